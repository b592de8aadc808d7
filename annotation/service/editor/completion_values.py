"""What may stand in a place of an action: verbs and their places, and the values that the current screen, instruction and workspace suggest
for each kind of place. How a grammar writes them is completion_compact.py's and completion_calls.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agent.grammars.base import Grammar
from agent.grammars.elements import MAX_ELEMENTS, spoken_element
from annotation.wire.runs import Completion, Point
from sandbox.session import Element, Observation
from sandbox.tasks.task_source import SessionKind

Kind = Literal[
    "point",
    "direction",
    "button",
    "keys",
    "key",
    "text",
    "option",
    "answer",
    "question",
    "url",
    "seconds",
    "app",
    "tool",
    "arguments",
    "command",
    "path",
    "editor_command",
    "plain",
]
MAX_COMPLETIONS = 40
MAX_TEXTS = 30
LONGEST_TEXT = 80
KEYS = (
    "enter",
    "tab",
    "escape",
    "backspace",
    "delete",
    "space",
    "up",
    "down",
    "left",
    "right",
    "home",
    "end",
    "page_up",
    "page_down",
    "ctrl",
    "shift",
    "alt",
    "f1",
    "f2",
    "f3",
    "f4",
    "f5",
    "f6",
    "f7",
    "f8",
    "f9",
    "f10",
    "f11",
    "f12",
)
SHORTCUTS = ("ctrl a", "ctrl c", "ctrl v", "ctrl x", "ctrl z", "ctrl s", "shift tab", "alt left")
DIRECTIONS = ("down", "up", "left", "right")
ARGUMENTS = {
    "execute_bash": {"command": "ls"},
    "str_replace_editor": {"command": "view", "path": "/workspace"},
    "JupyterCI": {"code": "print(1)"},
    "Search": {"query": ""},
    "LinkReader": {"url": ""},
    "mcp": {},
}
EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
COMMANDS = ("ls -la", "pwd", "cat ", "grep -rn ", "find . -name ", "C-c", "C-d")
TYPED_ROLES = ("input", "textarea", "spinner")
FIRST_ROLES = ("button", "input", "textarea", "link", "checkbox", "radio", "select", "tab", "item", "slider", "spinner", "image", "shape")
_QUOTED = re.compile(r"\"([^\"\n]{1,200})\"|'([^'\n]{2,200})'|“([^”\n]{1,200})”")
_CAPITALISED = re.compile(r"(?<![.!?] )(?<!^)\b(?:[A-Z][\w'&-]*|\d[\w.:/-]*)(?: (?:[A-Z][\w'&-]*|\d[\w.:/-]*))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A parameter of a verb."""

    kind: Kind
    name: str = ""
    """Of grammars whose parameters have names."""
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What completions are made of: the screen and its task, and the files of the workspace as far as they are known."""

    grammar: Grammar
    observation: Observation
    session_kind: SessionKind = "page"
    files: tuple[str, ...] = ()

    @property
    def has_tools(self) -> bool:
        return self.session_kind in ("terminal", "hybrid", "desktop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a place. `text` is unescaped; a point has none, but the pixels."""

    text: str
    label: str
    detail: str = ""
    points: tuple[Point, ...] = ()
    element: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A completion before it is sorted: `typed` by which it was looked for is compared with its `keys`."""

    completion: Completion
    keys: tuple[str, ...]


def ranked(candidates: Iterable[Candidate], typed: str) -> list[Completion]:
    """Those that fit what was typed: whose key begins with it first, then those that hold it; otherwise in their order."""
    wanted = " ".join(typed.casefold().split())
    scored = []
    for order, candidate in enumerate(candidates):
        keys = [" ".join(key.casefold().split()) for key in candidate.keys]
        score = 0 if any(key.startswith(wanted) for key in keys) else 1 if any(wanted in key for key in keys) else 2
        if score < 2:
            scored.append((score, order, candidate.completion))
    found: dict[tuple[str, int, int], Completion] = {}
    for _, _, completion in sorted(scored, key=lambda each: each[:2]):
        found.setdefault((completion.text, completion.start, completion.end), completion)
    return list(found.values())[:MAX_COMPLETIONS]


def values(kind: Kind, around: Surroundings, *, verb: str = "") -> Iterator[Value]:
    """What may stand in a place of this kind, likeliest first."""
    match kind:
        case "point":
            yield from _elements(around.observation)
        case "direction":
            yield from _words(DIRECTIONS)
        case "button":
            yield from _words(("left", "middle", "right"))
        case "keys":
            yield from _words((*KEYS[:10], *SHORTCUTS, *KEYS[10:]))
        case "key":
            yield from _words(KEYS)
        case "seconds":
            yield from _words(("1", "2", "5", "10"))
        case "text" | "option" | "answer" | "app" | "plain":
            yield from _texts(kind, around.observation)
        case "url":
            yield from _urls(around.observation)
        case "tool":
            yield from _words(ARGUMENTS)
        case "arguments":
            yield Value(text=json.dumps(ARGUMENTS.get(verb, {})), label="arguments", detail="JSON")
        case "command":
            yield from _words(COMMANDS)
            yield from (Value(text=f"cat {path}", label=f"cat {path}", detail="file") for path in around.files)
        case "path":
            yield from (Value(text=path, label=path, detail="file") for path in around.files)
            yield Value(text="/workspace", label="/workspace", detail="folder")
        case "editor_command":
            yield from _words(EDITOR_COMMANDS)
        case "question":
            return


def _words(words: Iterable[str]) -> Iterator[Value]:
    return (Value(text=word, label=word) for word in words)


def _elements(observation: Observation) -> Iterator[Value]:
    """Things to click on before running text."""
    shown = list(enumerate(observation.elements[:MAX_ELEMENTS], start=1))
    for index, element in sorted(shown, key=lambda each: (_rank(each[1]), each[0])):
        point = Point(x=element.x_px, y=element.y_px)
        label = " ".join((*element.states, spoken_element(observation, index)))
        yield Value(text=element.text, label=label, detail=f"{element.x_px}, {element.y_px}", points=(point,), element=index)


def _rank(element: Element) -> int:
    return 0 if element.role in FIRST_ROLES else 1


def _texts(kind: Kind, observation: Observation) -> Iterator[Value]:
    """What the instruction quotes or names, then what stands on the screen."""
    for text in instruction_texts(observation.instruction):
        yield Value(text=text, label=text, detail="instruction")
    roles = ("item", "text", "link") if kind in ("option", "answer") else ("text", "link", *TYPED_ROLES, "item", "button")
    shown = [element for role in roles for element in observation.elements[:MAX_ELEMENTS] if element.role == role and element.text.strip()]
    for element in shown[:MAX_TEXTS]:
        text = " ".join(element.text.split())[:LONGEST_TEXT]
        yield Value(text=text, label=text, detail=element.role, points=(Point(x=element.x_px, y=element.y_px),))


def instruction_texts(instruction: str) -> list[str]:
    """Texts that an instruction quotes, then names and numbers in it."""
    quoted = [next(filter(None, match.groups())) for match in _QUOTED.finditer(instruction)]
    named = [match.group() for match in _CAPITALISED.finditer(_QUOTED.sub(" ", instruction))]
    return list(dict.fromkeys(text.strip(" .,") for text in (*quoted, *named) if text.strip(" .,")))


def _urls(observation: Observation) -> Iterator[Value]:
    found = re.findall(r"https?://[^\s\"'<>]+", " ".join((observation.instruction, observation.output)))
    here = [observation.url] if observation.url.startswith("http") else []
    for url in dict.fromkeys((*found, *here, "http://localhost:8000/")):
        yield Value(text=url, label=url)
