"""What decides that two machines run the same sandbox: the release, the code and pages of this room, the task sources. A server says it in
its status; a pool over several servers (servers_pool.py) uses only those that say the same as itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sandbox.tasks.registry import SOURCES
from warehouse.core.identity import digests_id, file_digest
from warehouse.core.plugins import declared

SUFFIXES = (".py", ".js", ".html", ".css", ".json", ".yaml", ".sh")


@cache
def code_id() -> str:
    """Id of the files of this room: its code, and the pages and task lists that ship with it."""
    room = Path(__file__).resolve().parents[1]
    files = sorted(path for path in room.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return digests_id("code", ((path.relative_to(room).as_posix(), file_digest(path)) for path in files))


def source_ids() -> dict[str, str]:
    """By the name of each task source of this process: the id of its file where it is a file of its own, else its module."""
    return {name: _reference_id(reference) for name, reference in SOURCES.references().items()}


def plugin_ids() -> dict[str, str]:
    """`source_ids`, and the same of the plug-ins of other kinds that the environment names: a grammar, say, decides what prompts are."""
    others = [(kind, reference) for kind, reference in declared() if kind != SOURCES.kind]
    return {**source_ids(), **{f"{kind} {reference}": _reference_id(reference) for kind, reference in others}}


@cache
def _reference_id(reference: str) -> str:
    where, _, attribute = reference.rpartition(":")
    if not where.endswith(".py"):
        return reference
    return f"{file_digest(Path(where))}:{attribute}" if Path(where).is_file() else "not there"
