"""Where control groups can be made: read from what the kernel says of its hierarchies, of version 1 and 2. That they hold is in
test_terminal_isolation.py; here the folders stand in for version 2, which a machine has instead of version 1."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path, PosixPath

import pytest

from sandbox.terminal import cgroups
from sandbox.terminal.bubblewrap import JailLimits
from sandbox.terminal.jail import Jail


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return path


def test_a_group_that_passes_no_controllers_on_is_passed_over_for_the_one_above(tmp_path: Path) -> None:
    """As for a session of an init system: its own group has processes, so nothing can be limited below it."""
    (folder_with(tmp_path / "all/user/session") / "cgroup.subtree_control").write_text("")
    (tmp_path / "all/user/cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "all/cgroup.subtree_control").write_text("cpu memory pids\n")
    mounts, memberships = f"cgroup2 {tmp_path}/all cgroup2 rw 0 0\n", "0::/user/session\n"
    found = [(each.folder.relative_to(tmp_path).as_posix(), each.controllers) for each in cgroups.candidates(mounts, memberships)]
    assert found == [("all/user/session", ()), ("all/user", ("memory", "pids")), ("all", ("memory", "pids", "cpu"))]


def test_hierarchies_of_version_1_are_found_by_their_controllers(tmp_path: Path) -> None:
    folder_with(tmp_path / "memory/box")
    folder_with(tmp_path / "cpu")
    mounts = (
        f"cgroup {tmp_path}/memory cgroup rw,memory 0 0\ncgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0\n"
        f"cgroup {tmp_path}/blkio cgroup rw,blkio 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    )
    memberships = "3:memory:/box\n2:cpu,cpuacct:/elsewhere\n"
    found = [(each.folder.name, each.version, each.controllers) for each in cgroups.candidates(mounts, memberships)]
    assert found == [("box", 1, ("memory",)), ("cpu", 1, ("cpu",))], "a path of the host's, in a container, stands for the mount itself"


def test_what_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    """A plain folder has no files for limits."""
    (folder_with(tmp_path / "all") / "cgroup.subtree_control").write_text("memory pids cpu\n")
    assert cgroups.usable(f"cgroup2 {tmp_path}/all cgroup2 rw 0 0\n", "0::/\n") == ()
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["cgroup.subtree_control"]


def test_groups_of_dead_processes_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    dead = max(int(name) for name in os.listdir("/proc") if name.isdigit()) + 100_000
    for owner in (dead, os.getpid(), 1):
        (tmp_path / f"{cgroups.PREFIX}-{owner}-0").mkdir()
    (tmp_path / "another").mkdir()
    cgroups.remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{cgroups.PREFIX}-{os.getpid()}-0", f"{cgroups.PREFIX}-1-0", "another"}


class RefusingFolder(PosixPath):
    """Below it groups can be made and limited, and none takes a process, as where version 2 is delegated in part."""

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        super().mkdir(mode, parents, exist_ok)
        os.mkdir(self / "cgroup.procs")


def test_a_jail_that_its_group_does_not_take_is_limited_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = cgroups.Hierarchy(folder=RefusingFolder(tmp_path), version=2, controllers=("memory", "pids"))
    monkeypatch.setattr(cgroups, "hierarchies", lambda: (refusing,))

    async def use() -> None:
        jail = await Jail.start(JailLimits(memory_mib=160))
        try:
            assert jail.held_by["memory"].startswith("RLIMIT_AS") and jail.held_by["processes"].startswith("RLIMIT_NPROC")
            assert (await jail.run(["/bin/bash", "-c", "ulimit -v"])).output == b"%d\n" % (160 << 10)
        finally:
            await jail.close()

    asyncio.run(use())
