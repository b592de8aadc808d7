"""A person's look at a session's workspace: names and texts, bounded, without a step of the episode. Tools of the agent are tools.py's."""

from __future__ import annotations

from sandbox.session import FileEntry
from sandbox.terminal.workspace import Workspace
from warehouse.core.errors import SandboxError

MAX_FILES, MAX_DEPTH = 500, 8
MAX_TEXT_BYTES = 256 << 10


def list_files(workspace: Workspace) -> tuple[FileEntry, ...]:
    """Files and folders, each folder before what is in it; links and the like are left out."""
    try:
        entries = workspace.walk(depth=MAX_DEPTH, limit=MAX_FILES)
    except SandboxError:  # an OSError too, by its second parent
        raise
    except OSError:  # the agent let nobody in
        return ()
    return tuple(
        FileEntry(path=entry.path, kind="folder" if entry.kind == "folder" else "file", num_bytes=entry.num_bytes)
        for entry in entries
        if entry.kind in ("file", "folder")
    )


def read_text(workspace: Workspace, path: str) -> str | None:
    """None for what is not a text file in the workspace, or one that is longer than is shown."""
    try:
        text = workspace.read(path, limit_bytes=MAX_TEXT_BYTES).decode()
    except SandboxError:  # an OSError too, by its second parent
        raise
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
