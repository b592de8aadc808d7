"""Parts of virtual machines that need no image: QMP against a real QEMU with no machine in it, what the guest is handed, missing files."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.desktop.config import DESKTOPS_VARIABLE, LocalProvider, QemuProvider, machine_provider
from sandbox.desktop.machine import QEMU, Image, _forwarded_port
from sandbox.desktop.qemu import MAX_KEPT, forget_old, seed_archive
from sandbox.desktop.qmp import Qmp
from sandbox.pool.kinds import limits_at_once
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_in
from warehouse.core.errors import ConfigError, DesktopCrashed, DesktopMissing, SandboxError, SandboxTimeout


@pytest.fixture
def empty_qemu(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    if shutil.which(QEMU) is None:
        pytest.skip(f"there is no {QEMU}: apt-get install qemu-system-x86 qemu-utils")
    path = tmp_path / "qmp"
    command = ["setpriv", "--pdeathsig=KILL", "--", QEMU, "-nodefaults", "-machine", "none", "-display", "none"]
    process = subprocess.Popen([*command, "-qmp", f"unix:{path},server=on,wait=off"], stdin=subprocess.DEVNULL)
    try:
        yield process, path
    finally:
        process.kill()
        process.wait()


def test_qemu_does_as_asked_and_says_what_it_refuses(empty_qemu: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, path = empty_qemu

    async def use() -> None:
        qmp = await Qmp.connect(path)
        assert (await qmp.execute("query-status"))["status"] == "running"
        assert await qmp.monitor("info name") == ""
        answers = await asyncio.gather(*(qmp.execute("query-name") for _ in range(5)))
        assert answers == [{}] * 5
        with pytest.raises(SandboxError, match=r"refused 'explode'.*has not been found"):
            await qmp.execute("explode")
        process.kill()
        process.wait()
        with pytest.raises(DesktopCrashed, match="QEMU is gone"):
            await qmp.execute("query-status")
        qmp.close()

    asyncio.run(use())


def test_a_qemu_that_never_comes_is_a_timeout(tmp_path: Path) -> None:
    with pytest.raises(SandboxTimeout, match=r"within 0\.1 s"):
        asyncio.run(Qmp.connect(tmp_path / "nothing", limit_s=0.1))


def test_the_guest_is_handed_the_agent_its_token_and_how_to_start_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(seed_archive("secret-token", 800, 600))) as archive:
        modes = {entry.name: entry.mode for entry in archive.getmembers()}
        start = archive.extractfile("start")
        assert start is not None
        line = start.read().decode()
    assert modes["token"] == 0o400 and modes["start"] == 0o755
    assert {"guest_agent.py", "sandbox/__init__.py", "sandbox/desktop/__init__.py", "sandbox/desktop/inside/main.py"} <= set(modes)
    assert "sandbox/desktop/inside/openbox.xml" in modes
    assert "--screen 800x600" in line and "secret-token" not in line and subprocess.run(["sh", "-n", "-c", line]).returncode == 0


def test_the_port_that_leads_to_the_guest_is_read_from_qemu() -> None:
    listing = (
        "Hub -1 (#net076):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n"
        "  TCP[HOST_FORWARD]  14       127.0.0.1 35173       10.0.2.15  8765     0     0\r\n"
    )
    assert _forwarded_port(listing) == 35173
    with pytest.raises(SandboxError, match="names no port"):
        _forwarded_port("nothing")


def test_a_missing_image_is_reported_with_the_line_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(DesktopMissing, match=r"apt-get install qemu|scripts/build-vm-image.sh"):
        Image(folder=tmp_path).require()


def test_only_the_moments_used_last_are_kept(tmp_path: Path) -> None:
    for number in range(MAX_KEPT + 2):
        folder = tmp_path / f"vm-booted-{number}"
        folder.mkdir()
        os.utime(folder, (number, number))
    (tmp_path / "vm-debian").mkdir()
    forget_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"vm-booted-{number}" for number in range(2, MAX_KEPT + 2)), "vm-debian"]


def test_a_machines_own_file_says_where_desktops_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DESKTOPS_VARIABLE, raising=False)
    assert isinstance(machine_provider(), LocalProvider) and limits_at_once()["desktop"] == 4
    file = tmp_path / "desktops.yaml"
    monkeypatch.setenv(DESKTOPS_VARIABLE, str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        machine_provider()
    for text, said in (
        ("", "malformed"),
        ("provider: vmware", "'local', 'qemu', 'agent'"),
        ("{provider: qemu, disk: /x}", "disk"),
        ("{provider: agent, host: h, port: 1, token_file: t, restore: []}", "restore"),
        ("provider: [", "malformed"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            SessionPool(size=1)
    file.write_text("{provider: qemu, image: /no/such/image, at_once: 2}")
    assert isinstance(machine_provider(), QemuProvider)
    assert limits_at_once()["desktop"] == 2 and limits_at_once({"desktop": 5})["desktop"] == 5


def test_a_pool_makes_desktops_where_the_machines_own_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "desktops.yaml"
    file.write_text(f"{{provider: qemu, image: {tmp_path}}}")
    monkeypatch.setenv(DESKTOPS_VARIABLE, str(file))
    task = next(iter(tasks_in(["desktop:quick"]).values()))

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            with pytest.raises(DesktopMissing, match=r"apt-get install qemu|scripts/build-vm-image.sh"):
                await session.reset(task, 1)

    asyncio.run(use())
