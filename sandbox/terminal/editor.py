"""The file tool `str_replace_editor`: view, create, str_replace, insert, undo_edit, on text files of one workspace. What a path may name is
workspace.py's business. Every answer is text for the agent; what cannot be done raises ToolError with the reason in words.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.terminal.tool_errors import ToolError
from sandbox.terminal.workspace import HOME, Entry, Workspace

MAX_FILE_BYTES = 1 << 20
MAX_VIEW_CHARS = 16_000
MAX_HISTORY_BYTES = 8 << 20
SNIPPET_LINES = 4
"""Lines shown before and after a change."""


class EditorCall(BaseModel):
    """The arguments of one call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"]
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: Annotated[int, Field(ge=0)] | None = None
    view_range: tuple[int, int] | None = None


class Editor:
    """One session's editor; it remembers, for undo, what each file held before each of its changes."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._history: list[tuple[str, str | None]] = []
        """Oldest first: path, and the text before the change (None: there was no file)."""

    def execute(self, call: EditorCall) -> str:
        """Raises ToolError; OSError with a reason of the file system."""
        match call.command:
            case "view":
                return self._view(call)
            case "create":
                return self._create(call)
            case "str_replace":
                return self._replace(call)
            case "insert":
                return self._insert(call)
            case "undo_edit":
                return self._undo(call)

    def _view(self, call: EditorCall) -> str:
        entry = self._workspace.look(call.path)
        if entry is not None and entry.kind == "folder":
            if call.view_range is not None:
                raise ToolError(f"{call.path} is a folder: view_range is for files")
            return self._listing(entry)
        lines = self._read(call.path).split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        first, last = call.view_range or (1, len(lines))
        last = len(lines) if last == -1 else last
        if call.view_range is not None and not 1 <= first <= last <= len(lines):
            raise ToolError(f"view_range {list(call.view_range)} does not fit: {call.path} has lines 1 to {len(lines)}")
        return numbered(lines[first - 1 : last], first) or f"({call.path} is empty)"

    def _listing(self, folder: Entry) -> str:
        entries = [entry for entry in self._workspace.walk(folder.path, depth=2, limit=500) if "/." not in f"/{entry.path}"]
        lines = [f"{HOME / entry.path}{'/' if entry.kind == 'folder' else ''}" for entry in entries]
        return "\n".join([f"Files and folders in {HOME / folder.path}, two levels deep, hidden ones left out:", *lines])

    def _create(self, call: EditorCall) -> str:
        if call.file_text is None:
            raise ToolError("create needs file_text, the content of the file")
        self._check_size(call.file_text)
        before = self._read(call.path) if self._workspace.look(call.path) is not None else None
        self._change(call.path, before, call.file_text)
        return f"{call.path} was {'created' if before is None else 'written over'}: {len(call.file_text)} characters."

    def _replace(self, call: EditorCall) -> str:
        if not call.old_str:
            raise ToolError("str_replace needs old_str, the text to replace, which must be exactly as in the file")
        text, new = self._read(call.path), call.new_str or ""
        num_found = text.count(call.old_str)
        if num_found == 0:
            raise ToolError(f"old_str is not in {call.path}: it must be exactly as there, spaces and line ends too. Nothing was changed")
        if num_found > 1:
            lines = [str(text.count("\n", 0, at) + 1) for at in positions(text, call.old_str)]
            places = ", ".join(lines)
            raise ToolError(f"old_str is {num_found} times in {call.path} (lines {places}): take in more around it. Nothing was changed")
        at = text.index(call.old_str)
        changed = text[:at] + new + text[at + len(call.old_str) :]
        self._check_size(changed)
        self._change(call.path, text, changed)
        return self._snippet(call.path, changed, text.count("\n", 0, at), new.count("\n") + 1)

    def _insert(self, call: EditorCall) -> str:
        if call.insert_line is None or call.new_str is None:
            raise ToolError("insert needs insert_line, the line after which to insert (0: at the beginning), and new_str, the text")
        text = self._read(call.path)
        lines = text.splitlines(keepends=True)
        if call.insert_line > len(lines):
            raise ToolError(f"insert_line {call.insert_line} does not fit: {call.path} has {len(lines)} lines")
        if 0 < call.insert_line == len(lines) and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        new = call.new_str if call.new_str.endswith("\n") else call.new_str + "\n"
        changed = "".join([*lines[: call.insert_line], new, *lines[call.insert_line :]])
        self._check_size(changed)
        self._change(call.path, text, changed)
        return self._snippet(call.path, changed, call.insert_line, new.count("\n"))

    def _undo(self, call: EditorCall) -> str:
        path = self._workspace.relative(call.path)
        index = next((n for n in reversed(range(len(self._history))) if self._history[n][0] == path), None)
        if index is None:
            raise ToolError(f"there is no change of {call.path} by this tool to undo")
        _, before = self._history.pop(index)
        if before is None:
            self._workspace.remove(path)
            return f"The creation of {call.path} was undone: the file is removed."
        self._workspace.write(path, before)
        return f"The last change of {call.path} was undone.\n{numbered(before.splitlines()[: 2 * SNIPPET_LINES], 1)}"

    def _change(self, path: str, before: str | None, after: str) -> None:
        self._workspace.write(path, after)
        self._history.append((self._workspace.relative(path), before))
        while len(self._history) > 1 and sum(len(text or "") for _, text in self._history) > MAX_HISTORY_BYTES:
            self._history.pop(0)

    def _read(self, path: str) -> str:
        content = self._workspace.read(path, limit_bytes=MAX_FILE_BYTES)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is not a text file (byte {error.start} is not UTF-8): use the terminal for it") from error
        if "\0" in text:
            raise ToolError(f"{path} is not a text file (it holds NUL characters): use the terminal for it")
        return text

    @staticmethod
    def _check_size(text: str) -> None:
        if len(text.encode()) > MAX_FILE_BYTES:
            raise ToolError(f"the file would have {len(text.encode())} bytes; this tool writes at most {MAX_FILE_BYTES}")

    @staticmethod
    def _snippet(path: str, text: str, first: int, num_lines: int) -> str:
        lines = text.splitlines()
        start = max(0, first - SNIPPET_LINES)
        shown = numbered(lines[start : first + num_lines + SNIPPET_LINES], start + 1)
        return f"{path} was changed; around the change it now reads:\n{shown}"


def numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers; what is over the limit is left out and said to be."""
    text, num_shown = [], 0
    for number, line in enumerate(lines, start=first):
        num_shown += len(line) + 8
        if num_shown > MAX_VIEW_CHARS:
            text.append(f"[… lines {number} to {first + len(lines) - 1} left out: ask for them by view_range …]")
            break
        text.append(f"{number:6}\t{line}")
    return "\n".join(text)


def positions(text: str, part: str) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + len(part))
    return found
