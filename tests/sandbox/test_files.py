"""The files of a workspace from outside: what a path may name, what the file tool answers, and that no race with what runs inside leads
out."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sandbox.actions import ToolCall
from sandbox.terminal.bubblewrap import JailLimits
from sandbox.terminal.editor import MAX_FILE_BYTES
from sandbox.terminal.jail import Jail
from sandbox.terminal.tools import Tools, ToolSettings
from sandbox.terminal.workspace import Refused, Workspace
from warehouse.core.errors import SandboxError

Use = Callable[[Tools], Coroutine[Any, Any, Any]]


@pytest.fixture
def with_tools() -> Callable[[Use], Any]:
    def run(use: Use) -> Any:
        async def whole() -> Any:
            tools = await Tools.open(ToolSettings(jail=JailLimits(workspace_mib=32)))
            try:
                return await use(tools)
            finally:
                await tools.close()

        return asyncio.run(whole())

    return run


async def edit(tools: Tools, command: str, path: str, **arguments: Any) -> str:
    return await tools.call(ToolCall(name="str_replace_editor", arguments={"command": command, "path": path, **arguments}))


async def bash(tools: Tools, command: str) -> str:
    return await tools.call(ToolCall(name="execute_bash", arguments={"command": command}))


def test_a_file_is_made_seen_changed_and_restored(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        assert await edit(tools, "create", "src/a.py", file_text="one\ntwo\nthree\n") == "src/a.py was created: 14 characters."
        assert await edit(tools, "view", "/workspace/src/a.py") == "     1\tone\n     2\ttwo\n     3\tthree"
        assert await edit(tools, "view", "src/a.py", view_range=[2, -1]) == "     2\ttwo\n     3\tthree"
        assert "     2\tTWO" in await edit(tools, "str_replace", "src/a.py", old_str="two", new_str="TWO")
        assert "     1\tzero\n     2\tone" in await edit(tools, "insert", "src/a.py", insert_line=0, new_str="zero")
        assert "     5\tfour" in await edit(tools, "insert", "src/a.py", insert_line=4, new_str="four\n")
        assert (await bash(tools, "cat src/a.py")).startswith("zero\none\nTWO\nthree\nfour\n[")
        for expected in ("zero\none\nTWO\nthree\n", "one\nTWO\nthree\n", "one\ntwo\nthree\n"):
            assert "undone" in await edit(tools, "undo_edit", "./src/a.py")
            assert tools.jail.workspace.read("src/a.py").decode() == expected
        assert "removed" in await edit(tools, "undo_edit", "src/a.py")
        assert tools.jail.workspace.look("src/a.py") is None
        assert (await edit(tools, "undo_edit", "src/a.py")).startswith("error: there is no change")

    with_tools(use)


def test_each_file_has_its_own_history(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await edit(tools, "create", "a", file_text="a1")
        await edit(tools, "create", "b", file_text="b1")
        assert "written over" in await edit(tools, "create", "a", file_text="a2")
        await edit(tools, "str_replace", "b", old_str="b1", new_str="b2")
        await edit(tools, "undo_edit", "a")
        assert (tools.jail.workspace.read("a"), tools.jail.workspace.read("b")) == (b"a1", b"b2")

    with_tools(use)


def test_a_folder_is_listed_two_levels_deep(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "mkdir -p a/b/c .hidden/d; touch x a/y a/b/z a/b/c/deep .h")
        listing = (await edit(tools, "view", "/workspace")).splitlines()[1:]
        assert listing == ["/workspace/a/", "/workspace/a/b/", "/workspace/a/y", "/workspace/x"]
        listing = (await edit(tools, "view", "a")).splitlines()[1:]
        assert listing == ["/workspace/a/b/", "/workspace/a/b/c/", "/workspace/a/b/z", "/workspace/a/y"]

    with_tools(use)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"command": "str_replace", "path": "f", "old_str": "a", "new_str": "b"}, "2 times in f (lines 1, 3)"),
    ({"command": "str_replace", "path": "f", "old_str": "none", "new_str": "b"}, "old_str is not in f"),
    ({"command": "str_replace", "path": "f"}, "needs old_str"),
    ({"command": "insert", "path": "f", "insert_line": 9, "new_str": "x"}, "f has 3 lines"),
    ({"command": "insert", "path": "f"}, "needs insert_line"),
    ({"command": "create", "path": "f"}, "needs file_text"),
    ({"command": "create", "path": "d", "file_text": ""}, "is a folder"),
    ({"command": "create", "path": "f/x", "file_text": ""}, "Not a directory"),
    ({"command": "create", "path": "big", "file_text": "x" * (MAX_FILE_BYTES + 1)}, f"at most {MAX_FILE_BYTES}"),
    ({"command": "view", "path": "none"}, "No such file"),
    ({"command": "view", "path": "f", "view_range": [2, 9]}, "lines 1 to 3"),
    ({"command": "view", "path": "f", "view_range": [0, 1]}, "lines 1 to 3"),
    ({"command": "view", "path": "d", "view_range": [1, 2]}, "is a folder"),
    ({"command": "view", "path": "binary"}, "not a text file"),
    ({"command": "view", "path": "nul"}, "not a text file"),
    ({"command": "view", "path": "pipe"}, "not an ordinary file"),
    ({"command": "view", "path": "huge"}, f"at most {MAX_FILE_BYTES}"),
    ({"command": "view", "path": "a\0b"}, "NUL"),
    ({"command": "view", "path": "x" * 300}, "too long"),
    ({"command": "paint", "path": "f"}, "command: Input should be"),
    ({"command": "view"}, "path: Field required"),
    ({"command": "view", "path": "f", "colour": "red"}, "colour: Extra inputs"),
)


def test_what_cannot_be_done_is_said_and_changes_nothing(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "printf 'a\\nb\\na\\n' > f; mkdir d; printf '\\377\\376x' > binary; printf 'a\\0b' > nul")
        await bash(tools, "mkfifo pipe; truncate -s 2M huge")
        before = await bash(tools, "find . -type f | sort | xargs md5sum")
        for arguments, said in REFUSED:
            answer = await tools.call(ToolCall(name="str_replace_editor", arguments=arguments))
            assert answer.startswith("error: ") and said in answer, arguments
        assert await bash(tools, "find . -type f | sort | xargs md5sum") == before

    with_tools(use)


OUTSIDE = (
    "../x",
    "a/../../x",
    "/etc/passwd",
    "/workspace/../etc/passwd",
    "/",
    "/tmp/x",
    "a/b/../../../../etc/hosts",
    "..",
    "/proc/self/stat",
)


def test_a_path_that_leads_out_is_refused(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "mkdir -p a/b")
        for path in OUTSIDE:
            for answer in (await edit(tools, "view", path), await edit(tools, "create", path, file_text="x")):
                assert answer.startswith("error: "), (path, answer)

    with_tools(use)


def test_links_within_the_workspace_are_followed_and_those_out_of_it_are_not(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "mkdir d; echo inside > d/f; ln -s d/f good; ln -s d folder")
        await bash(tools, "ln -s /etc/passwd bad; ln -s /workspace/d/f absolute; ln -s /tmp out")
        assert "inside" in await edit(tools, "view", "good") and "inside" in await edit(tools, "view", "folder/f")
        for path in ("bad", "absolute", "out/x"):
            assert "leads out" in await edit(tools, "view", path)
        assert (await edit(tools, "create", "out/x", file_text="x")).startswith("error: ")
        assert [entry.kind for entry in tools.jail.workspace.walk() if entry.path in ("bad", "folder", "d")] == ["link", "folder", "link"]

    with_tools(use)


def test_files_made_here_belong_to_the_session(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        tools.jail.workspace.write("a/b.txt", "x", mode=0o600)
        text = await bash(tools, "stat -c '%U %a' a a/b.txt; echo more >> a/b.txt && rm -r a")
        assert text.startswith("agent 755\nagent 600\n[exit code 0")
        tools.jail.workspace.write("c.txt", "x")
        tools.jail.workspace.set_mode("c.txt", 0o000)
        with pytest.raises(PermissionError):
            tools.jail.workspace.read("c.txt")  # as the session's user, even where we are root

    with_tools(use)


def test_rights_are_given_back_after_each_use(with_tools: Any, tmp_path: Path) -> None:
    async def use(tools: Tools) -> None:
        tools.jail.workspace.write("x", "x")
        with pytest.raises(OSError):
            tools.jail.workspace.read("none")
        (tmp_path / "ours").write_text("x")
        assert (tmp_path / "ours").stat().st_uid == os.geteuid()

    with_tools(use)


def test_a_duplicate_leads_to_the_files_even_once_the_jail_has_ended(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        tools.jail.workspace.write("x", "from inside")
        duplicate = tools.jail.workspace.duplicate()
        try:
            await tools.close()
            assert Path(f"/proc/self/fd/{duplicate}/x").read_text() == "from inside"
        finally:
            os.close(duplicate)

    with_tools(use)


def test_a_closed_workspace_says_so() -> None:
    async def use() -> None:
        jail = await Jail.start()
        workspace = jail.workspace
        await jail.close()
        with pytest.raises(SandboxError, match="closed"):
            workspace.read("x")
        with pytest.raises(SandboxError, match="closed"):
            _ = jail.workspace

    asyncio.run(use())


RACES = {
    "a file and a link": "while :; do ln -sf /etc/passwd swap; rm -f swap; echo mine > swap 2>/dev/null; rm -f swap; done",
    "a folder and a link": "mkdir real; echo mine > real/passwd; "
    "while :; do ln -s /etc folder; rm folder; mv real folder; mv folder real; done",
    "a folder that moves out from under": "mkdir -p d/e/f; echo mine > d/e/f/x; while :; do mv d/e/f d/f; mv d/f d/e/f; done",
}


@pytest.mark.parametrize(
    ("race", "paths"),
    [
        ("a file and a link", ["swap"]),
        ("a folder and a link", ["folder/passwd"]),
        ("a folder that moves out from under", ["d/e/f/x", "d/e/f/../../../../x"]),
    ],
)
def test_a_race_with_links_leads_nowhere(with_tools: Any, race: str, paths: list[str]) -> None:
    """A program inside swaps a name between something harmless and a link to the outside, as fast as it can, while the file tool reads and
    writes there. Whatever comes is a file of the workspace, or an error."""

    async def use(tools: Tools) -> None:
        outside = Path("/etc/passwd").read_bytes()
        jail_outside = (await tools.jail.run(["/bin/cat", "/etc/passwd"])).output
        await bash(tools, f"({RACES[race]}) > /dev/null 2>&1 &")
        workspace, seen = tools.jail.workspace, set()
        for number in range(3000):
            path = paths[number % len(paths)]
            seen.add(outcome(workspace, path, write=number % 3 == 0))
            if number % 50 == 0:
                await asyncio.sleep(0)
        assert not seen & {outside, jail_outside}
        one_over_the_other = b"mine\nen"
        assert seen <= {b"mine\n", b"written", one_over_the_other, b"", b"an error"} and len(seen) > 1
        assert Path("/etc/passwd").read_bytes() == outside
        assert (await tools.jail.run(["/bin/cat", "/etc/passwd"])).output == jail_outside
        assert (await tools.jail.run(["/bin/sh", "-c", "ls /etc/x /x 2>/dev/null"])).output == b""

    with_tools(use)


def outcome(workspace: Workspace, path: str, *, write: bool) -> bytes:
    try:
        if write:
            workspace.write(path, b"written")
        return workspace.read(path)
    except (Refused, OSError):
        return b"an error"


def test_only_plain_permissions_can_be_read_from_an_entry(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "touch a; chmod 4755 a; ln -s a l; mkfifo p")
        entries = {entry.path: entry for entry in tools.jail.workspace.walk()}
        assert [entries[name].kind for name in "alp"] == ["file", "link", "other"]
        assert entries["a"].mode == stat.S_ISUID | 0o755

    with_tools(use)
