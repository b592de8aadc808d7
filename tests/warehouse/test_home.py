"""Folders, whole-file writes and locks, with real processes and real signals."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from sandbox.http.tokens import own_token
from warehouse.core.durable import make_folder
from warehouse.core.errors import StorageFull
from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import LOOKED_AT_S, FileLock, holder_of

ROOT = Path(__file__).parents[2]


def _python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_folders_are_made_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "deep" / "home")
    assert not home.root.exists()
    for name in ("tables", "checkpoints", "dagster", "prefect", "reports", "scratch", "locks"):
        assert getattr(home, name) == home.root / name
        assert (home.root / name).is_dir()
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "other"))
    assert Home.from_env().root == tmp_path / "other"
    monkeypatch.delenv("FLYWHEEL_HOME")
    monkeypatch.chdir(tmp_path)
    assert Home.from_env().root == tmp_path / ".flywheel"


def test_atomic_write_replaces_a_file_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "card.json"
    atomic_write(path, b"one")
    atomic_write(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["card.json"]


def test_atomic_write_on_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    atomic_write(path, b"old")
    code = """
import resource, sys
from pathlib import Path
from sandbox.http.tokens import own_token
from warehouse.core.errors import StorageFull
from warehouse.core.home import atomic_write
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    atomic_write(Path(sys.argv[1]), b"x" * 100_000)
except StorageFull as error:
    print(error)
"""
    with _python(code, path) as process:
        said, _ = process.communicate(timeout=60)
    assert f"no room for {path} (100,000 bytes): the disk of {tmp_path} has" in said and "256.0 MiB are wanted" in said
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["card.json"]
    assert issubclass(StorageFull, OSError)


def test_a_lock_excludes_other_processes_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    code = """
import sys
import tempfile
from pathlib import Path
from warehouse.core.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.readline()
"""
    process = _python(code, path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        lock = FileLock(path)
        assert lock.acquire(timeout_s=0.1) is False
        assert lock.holder() == holder_of(path) == process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        assert lock.acquire(timeout_s=5.0) is True
        assert lock.holder() == os.getpid()
        lock.release()
        assert holder_of(path) is None
    finally:
        process.kill()
        process.communicate()


def test_a_lock_excludes_other_threads_and_waits_for_them(tmp_path: Path) -> None:
    path, order = tmp_path / "one.lock", []

    def second() -> None:
        with FileLock(path):
            order.append("second")

    with FileLock(path) as lock:
        assert lock.is_held
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.2)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]
    assert holder_of(tmp_path / "never.lock") is None


def test_a_look_at_the_holder_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    path, is_over = tmp_path / "one.lock", threading.Event()
    path.touch()

    def look() -> None:
        while not is_over.is_set():
            holder_of(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            lock = FileLock(path)
            assert lock.acquire(timeout_s=LOOKED_AT_S)
            lock.release()
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()


def test_a_lock_is_not_taken_twice_by_one_object(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "one.lock")
    assert lock.acquire()
    with pytest.raises(RuntimeError, match="release it first"):
        lock.acquire()
    lock.release()
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_reads_nothing_of_a_home(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Made here, and found open: tables, tokens and pictures are their owner's alone."""
    with tempfile.TemporaryDirectory() as place:  # which everybody may pass, as pytest's own folders are not
        Path(place).chmod(0o755)
        made, found = Home(Path(place) / "deep" / "made"), Home(Path(place) / "found")
        made.tables.joinpath("secret").write_text("rows")
        own_token(made.root / "policy" / "token")
        (found.root / "tables").mkdir(parents=True)
        (found.root / "tables" / "secret").write_text("rows")
        found.root.chmod(0o755)
        seen = "import os, sys\nfor path in sys.argv[1:]:\n  try: print(os.listdir(path) if os.path.isdir(path) else open(path).read())\n"
        seen += "  except OSError as error: print(type(error).__name__)"
        paths = [*(home.root / part for home in (made, found) for part in ("", "tables", "tables/secret")), made.root / "policy" / "token"]

        def other_user() -> list[str]:
            command = ["/usr/bin/env", "python3", "-c", seen, *map(str, paths)]
            reported = subprocess.run(
                command, user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60
            )
            return reported.stdout.splitlines()

        before = other_user()
        assert before == [*["PermissionError"] * 3, "['tables']", "['secret']", "rows", "PermissionError"], "what is open is read"
        found.tables  # noqa: B018 # a home is corrected when it is used
        assert other_user() == ["PermissionError"] * len(paths)
        assert "closed to them now" in caplog.text and oct(found.root.stat().st_mode)[-3:] == "700"
        found.root.chmod(0o750)
        found.tables  # noqa: B018 # shared with a group on purpose
        assert oct(found.root.stat().st_mode)[-3:] == "750"


def test_what_is_made_below_a_folder_that_a_group_shares_is_the_groups_too(tmp_path: Path) -> None:
    shared, given, own = tmp_path / "shared", tmp_path / "given", tmp_path / "own"
    for folder, mode in ((shared, 0o2750), (given, 0o2770), (own, 0o750)):
        folder.mkdir()
        folder.chmod(mode)
        make_folder(folder / "screens" / "ab")
    modes = {folder: stat.S_IMODE((folder / "screens" / "ab").stat().st_mode) for folder in (shared, given, own)}
    assert modes == {shared: 0o2750, given: 0o2770, own: 0o700}, "without the setgid bit a folder is its owner's alone"
