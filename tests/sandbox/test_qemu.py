"""Desktops in a virtual machine: booted once, put back to a snapshot for every episode. The image is built by scripts/build-vm-image.sh
into the cache folder at the first run, in some minutes; skipped, with the reason, where that or QEMU cannot be had.

The times that the parts took are printed (pytest -s) and kept as properties of the tests' report.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import psutil
import pytest
from PIL import Image as Picture

from sandbox import actions
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop.config import DESKTOPS_VARIABLE
from sandbox.desktop.desktop import Desktop
from sandbox.desktop.machine import find_accelerator
from sandbox.desktop.qemu import QemuDesktop, QemuDesktops, QemuSettings, default_image
from sandbox.desktop.session import DesktopSession
from sandbox.pool.pool import SessionPool
from sandbox.tasks.desktop.source import load_tasks
from sandbox.tasks.prove import attempt
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxError

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]
BUILD_LIMIT_S = 1500
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """One set of desktops in an event loop of its own."""

    runner: asyncio.Runner
    desktops: QemuDesktops
    settings: QemuSettings

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.runner.run(awaited())

    def fresh(self) -> QemuDesktop:
        return self.run(self.desktops.fresh())


@pytest.fixture(scope="module")
def settings() -> QemuSettings:
    """With an image that is there and up to date."""
    image = default_image()
    script = REPOSITORY / "scripts" / "build-vm-image.sh"
    done = subprocess.run([script, image.folder], capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    if done.returncode != 0:
        pytest.skip(f"the image of the virtual machine cannot be built: {(done.stderr or done.stdout).strip()[-300:]}")
    settings = QemuSettings(image=image)
    try:
        settings.image.require()
    except DesktopMissing as error:
        pytest.skip(str(error))
    return settings


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, so that the first machine boots and the next ones begin where it had booted."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def live(settings: QemuSettings, cache: Path) -> Iterator[Live]:
    with asyncio.Runner() as runner:
        desktops = QemuDesktops(settings)
        try:
            live = Live(runner=runner, desktops=desktops, settings=settings)
            live.fresh()
            yield live
        finally:
            runner.run(desktops.close())


async def until(look: Callable[[], Awaitable[Any]], limit_s: float = 120.0) -> Any:
    """The first value that is something."""
    deadline = time.monotonic() + limit_s
    while not (found := await look()):
        assert time.monotonic() < deadline, f"nothing within {limit_s} s"
        await asyncio.sleep(0.1)
    return found


async def do(desktop: Desktop, action: actions.Action) -> None:
    phases = gestures(action, desktop.size_px, "desktop")
    assert not isinstance(phases, Refusal)
    await desktop.perform(phases)


def test_a_machine_boots_once_and_says_how_long_it_took(live: Live, cache: Path, record_property: Any) -> None:
    times, desktop = live.desktops.times, live.fresh()
    assert times.boot_s is not None and times.save_s is not None and times.resume_s is None
    for _ in range(4):
        live.fresh()
    assert len(times.loads_s) >= 5
    report = {
        "accelerator": find_accelerator(live.settings.image),
        "boot_s": round(times.boot_s, 1),
        "savevm_s": round(times.save_s, 2),
        "loadvm_until_the_agent_answers_s": [round(load, 2) for load in times.loads_s],
    }
    print(report)
    for name, value in report.items():
        record_property(name, value)
    assert "QEMU" in desktop.environment and "1024x768" in desktop.environment
    (kept,) = (cache / "flywheel").glob("vm-booted-*")
    assert kept.stat().st_mode & 0o077 == 0


def test_what_was_planted_is_gone_after_the_snapshot_is_loaded(live: Live) -> None:
    async def plant(desktop: Desktop) -> None:
        await desktop.put_file(PurePosixPath("planted/by me.txt"), b"x")
        await desktop.run(["sh", "-c", "echo x > /tmp/planted; echo x >> .bashrc; sync; nohup sleep 1000 >/dev/null 2>&1 &"])
        await desktop.launch("xterm")
        await until(desktop.windows)
        assert (await desktop.run(["pgrep", "-c", "sleep"])).stdout == "1\n"

    async def look(desktop: Desktop) -> None:
        assert await desktop.get_file(PurePosixPath("planted/by me.txt")) is None and not await desktop.list_files()
        assert (await desktop.run(["ls", "/tmp/planted"])).exit_code == 2
        assert b"x\n" not in (await desktop.get_file(PurePosixPath(".bashrc")) or b"")
        assert not await desktop.windows() and (await desktop.run(["pgrep", "sleep"])).exit_code == 1

    first = live.fresh()
    pixels = live.run(first.screenshot())
    live.run(plant(first))
    second = live.fresh()
    live.run(look(second))
    assert live.run(second.screenshot()) == pixels
    with pytest.raises(DesktopCrashed, match="closed"):
        live.run(first.screenshot())


def test_the_guest_runs_programs_and_keeps_files(live: Live) -> None:
    async def use(desktop: Desktop) -> None:
        result = await desktop.run(["sh", "-c", "id -un; pwd; uname -s; echo oops >&2; exit 3"])
        assert (result.exit_code, result.stdout, result.stderr) == (3, "user\n/home/user\nLinux\n", "oops\n")
        assert (await desktop.run(["sleep", "60"], timeout_s=0.5)).exit_code == 124
        content = os.urandom(3_000_000)
        await desktop.put_file(PurePosixPath("a/b.bin"), content)
        assert await desktop.get_file(PurePosixPath("a/b.bin")) == content
        assert (await desktop.run(["sha256sum", "a/b.bin"])).stdout.split()[0] == hashlib.sha256(content).hexdigest()

    live.run(use(live.fresh()))


def test_a_terminal_in_the_guest_obeys_what_is_typed(live: Live) -> None:
    async def use(desktop: Desktop) -> None:
        empty = await desktop.screenshot()
        await desktop.launch("xterm")

        async def focused() -> Any:
            return [window for window in await desktop.windows() if window.is_focused]

        await until(focused)
        await desktop.settle()
        await do(desktop, actions.TypeText(text="echo $((6*7)) > answer.txt\n"))

        async def answer() -> Any:
            return await desktop.get_file(PurePosixPath("answer.txt"))

        assert await until(answer) == b"42\n"
        full = await desktop.screenshot()
        with Picture.open(io.BytesIO(full)) as picture:
            assert picture.size == (1024, 768) and full != empty

    live.run(use(live.fresh()))


@pytest.mark.parametrize("name", ["dialog-press", "editor-type", "window-close"])
def test_desktop_tasks_are_solved_in_the_guest_by_their_oracles(live: Live, name: str) -> None:
    class Kept:
        """The session closes what it is given; ours goes on."""

        async def fresh(self) -> Desktop:
            return await live.desktops.fresh()

        async def close(self) -> None:
            return None

    async def use() -> None:
        session = DesktopSession(Kept(), window_s=300.0)
        await session.reset(load_tasks()[name], 1)
        transition = None
        while transition is None or not (transition.terminated or transition.truncated):
            action = await session.oracle_action()
            assert action is not None
            transition = await session.step(action)
        assert transition.reward == 1.0, (await session.evaluate()).reasons

    live.run(use())


def test_a_pool_lends_desktops_in_the_machine(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of its own, which begins at the moment that was kept."""
    file, task = tmp_path / "desktops.yaml", load_tasks()["dialog-press"]
    file.write_text(f"{{provider: qemu, image: {live.settings.image.folder}}}")
    monkeypatch.setenv(DESKTOPS_VARIABLE, str(file))

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task, screenshots=False) as session:
            for seed in (1, 2):
                assert (await attempt(session, task, seed)).is_success
            assert "QEMU" in session.environment

    live.run(use())


def test_the_guest_reaches_nothing_and_only_loopback_reaches_the_guest(live: Live) -> None:
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def listen() -> None:
            try:
                heard.append(server.accept()[1])
            except OSError:
                return

        thread = threading.Thread(target=listen)
        thread.start()
        port = server.getsockname()[1]
        knock = (
            "import socket, sys\n"
            f"for host, port in (('10.0.2.2', {port}), ('10.0.2.3', 53)):\n"
            "    try:\n"
            "        socket.create_connection((host, port), timeout=2).close()\n"
            "        print('reached', host)\n"
            "    except OSError as error:\n"
            "        print('no', host)\n"
        )
        desktop = live.fresh()
        result = live.run(desktop.run(["python3", "-c", knock], timeout_s=30))
        assert result.stdout == "no 10.0.2.2\nno 10.0.2.3\n", result
        lookup = ["python3", "-c", "import socket; socket.getaddrinfo('example.org', 80)"]
        assert live.run(desktop.run(lookup, timeout_s=60)).exit_code != 0
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert heard == []
    machine = live.desktops.machine
    assert machine is not None
    listening = [found for found in psutil.Process(machine.pid).net_connections() if found.status == psutil.CONN_LISTEN]
    assert [(found.laddr.ip, found.laddr.port) for found in listening] == [("127.0.0.1", machine.port)]
    if os.geteuid() == 0:
        assert psutil.Process(machine.pid).uids().real != 0


def test_the_image_is_never_written(live: Live) -> None:
    before = live.settings.image.disk.stat()
    live.run(live.fresh().run(["sh", "-c", "head -c 50000000 /dev/urandom > big; sync"], timeout_s=120))
    after = live.settings.image.disk.stat()
    assert (before.st_mtime_ns, before.st_blocks, before.st_size) == (after.st_mtime_ns, after.st_blocks, after.st_size)
    assert live.desktops.machine is not None and live.desktops.machine.overlay.stat().st_blocks * 512 > 50_000_000


def test_a_second_machine_begins_where_the_first_had_booted(live: Live, record_property: Any) -> None:
    async def use() -> None:
        others = QemuDesktops(live.settings)
        try:
            desktop = await others.fresh()
            assert others.times.boot_s is None and others.times.resume_s is not None
            print({"resume_s": round(others.times.resume_s, 2)})
            record_property("resume_s", round(others.times.resume_s, 2))
            await desktop.put_file(PurePosixPath("mine"), b"x")
            assert (await others.fresh()).size_px == (1024, 768)
        finally:
            await others.close()
            await others.close()
        with pytest.raises(SandboxError, match="closed"):
            await others.fresh()

    live.run(use())
    assert live.run(live.fresh().get_file(PurePosixPath("mine"))) is None


def test_a_kept_moment_that_is_damaged_is_made_again(live: Live, cache: Path) -> None:
    (kept,) = (cache / "flywheel").glob("vm-booted-*")
    (kept / "overlay.qcow2").write_bytes(b"nothing of use")

    async def use() -> None:
        others = QemuDesktops(live.settings)
        try:
            assert (await (await others.fresh()).run(["true"])).exit_code == 0
            assert others.times.boot_s is not None
        finally:
            await others.close()

    live.run(use())
    assert (kept / "overlay.qcow2").stat().st_size > 1_000_000


def test_a_machine_that_died_is_a_crash_and_is_replaced(live: Live) -> None:
    desktop, machine = live.fresh(), live.desktops.machine
    assert machine is not None
    os.kill(machine.pid, signal.SIGKILL)

    async def use() -> None:
        async def is_gone() -> bool:
            try:
                await desktop.screenshot()
            except DesktopCrashed:
                return True
            return False

        assert await until(is_gone)
        assert (await (await live.desktops.fresh()).run(["true"])).exit_code == 0

    live.run(use())
    assert live.desktops.machine is not None and live.desktops.machine.pid != machine.pid
    assert not machine.folder.exists()


def test_a_snapshot_that_is_not_there_is_refused(live: Live) -> None:
    machine = live.desktops.machine
    assert machine is not None
    with pytest.raises(SandboxError, match="could not 'loadvm nothing'"):
        live.run(machine._monitor_quietly("loadvm nothing"))


def test_a_machine_dies_with_whoever_started_it(live: Live, cache: Path) -> None:
    program = (
        "import asyncio, pathlib\n"
        "from sandbox.desktop.qemu import Image, QemuDesktops, QemuSettings\n"
        "async def main():\n"
        f"    image = Image(folder=pathlib.Path({str(live.settings.image.folder)!r}))\n"
        "    desktops = QemuDesktops(QemuSettings(image=image))\n"
        "    await desktops.fresh()\n"
        "    print(desktops.machine.pid, flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert psutil.pid_exists(pid)
        starter.kill()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
