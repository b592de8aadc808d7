"""What every composed task comes with beside its instance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.tasks.supply import Facts
from sandbox.terminal.bubblewrap import HOME
from sandbox.terminal.tasks import Absent, Executable, Folder, Holds, HoldsJson, Instance, Names, Present, Prints

MAX_SHOWN_CHARS = 300
"""Of a text in a reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A candidate of a generator."""

    instance: Instance
    content: Mapping[str, Any]
    difficulty: float
    provenance: Mapping[str, str]

    def facts(self, dropped: Mapping[str, int]) -> Facts:
        return Facts(
            instruction=self.instance.instruction,
            content=self.content,
            difficulty=round(self.difficulty, 3),
            provenance=self.provenance,
            dropped=dropped,
            reference=reference_of(self.instance),
        )


def reference_of(instance: Instance, more: Sequence[str] = ()) -> str | None:
    """What is right at the end, for a judge that cannot look into the workspace; `more` beside its goals. None where a goal is one that
    only a program can check. It does not say that a file of the task still holds what it held."""
    wanted = list(more)
    for goal in instance.goals:
        match goal:
            case Holds(path=path, text=text) if instance.files.get(path) == text:
                continue
            case Holds(path=path, text=text):
                described = f"{path} holds {_short(text)}"
            case HoldsJson(path=path, value=value):
                described = f"{path} holds as JSON {_short(json.dumps(value, ensure_ascii=False))}"
            case Absent(path=path):
                described = f"{path} is not there"
            case Present(path=path):
                described = f"there is a file {path}"
            case Prints(command=command, text=text):
                described = f"`{command}` prints {_short(text)}"
            case Executable(path=path):
                described = f"{path} can be executed"
            case Folder(path=path):
                described = f"there is a folder {path}"
            case Names(path=path, names=names):
                described = f"the folder {path or HOME} holds {', '.join(sorted(names))} and nothing else"
            case _:
                return None
        wanted.append(described)
    return f"Right is that {'; and that '.join(wanted)}." if wanted else None


def _short(text: str) -> str:
    more = f" and so on, {len(text)} characters" if len(text) > MAX_SHOWN_CHARS else ""
    return f"{text[:MAX_SHOWN_CHARS]!r}{more}"
