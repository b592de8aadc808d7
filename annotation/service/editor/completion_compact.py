"""Completion in the compact grammar: a verb, then its places in order, `[2]` for an element, texts in double quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.grammars.quoting import escape
from annotation.service.editor.completion_values import Candidate, Kind, Place, Surroundings, Value, ranked, values
from annotation.wire.runs import Completion
from sandbox.tasks.task_source import SessionKind

POINT, TEXT_KINDS = Place(kind="point"), ("text", "option", "answer", "question", "url", "app", "tool", "arguments", "command", "plain")
MAYBE_POINT, MAYBE_BUTTON = Place(kind="point", is_optional=True), Place(kind="button", is_optional=True)
VERBS: dict[str, tuple[Place, ...]] = {
    "click": (POINT,),
    "type": (Place(kind="text"),),
    "press": (Place(kind="keys"),),
    "finished": (Place(kind="answer", is_optional=True),),
    "run": (Place(kind="command"),),
    "tool": (Place(kind="tool"), Place(kind="arguments", is_optional=True)),
    "scroll": (Place(kind="direction"), MAYBE_POINT),
    "select": (POINT, Place(kind="option")),
    "drag": (POINT, POINT),
    "double_click": (POINT,),
    "triple_click": (POINT,),
    "right_click": (POINT,),
    "middle_click": (POINT,),
    "move_to": (POINT,),
    "wait": (Place(kind="seconds", is_optional=True),),
    "navigate": (Place(kind="url"),),
    "navigate_back": (),
    "mouse_down": (MAYBE_BUTTON, MAYBE_POINT),
    "mouse_up": (MAYBE_BUTTON, MAYBE_POINT),
    "key_down": (Place(kind="key"),),
    "key_up": (Place(kind="key"),),
    "long_press": (POINT,),
    "open_app": (Place(kind="app"),),
    "press_home": (),
    "press_back": (),
    "call_user": (Place(kind="question", is_optional=True),),
}
"""Every verb with its places, oftenest used first."""
TOOL_VERBS, MOBILE_VERBS = ("run", "tool"), ("long_press", "open_app", "press_home", "press_back")
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)("|$)|\[\s*(\d*)\s*(\]|$)|([^\s"\[\]]+)', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: Literal["text", "index", "word"]
    value: str
    start: int
    end: int
    is_closed: bool


def complete_compact(action: str, cursor: int, around: Surroundings) -> list[Completion]:
    """What may stand at the cursor."""
    tokens = _tokens(action[:cursor])
    touched = tokens.pop() if tokens and tokens[-1].end == cursor and not (tokens[-1].kind != "word" and tokens[-1].is_closed) else None
    end = _end_of(action, cursor, touched)
    start = touched.start if touched else cursor
    typed = "" if touched is None else f"[{touched.value}" if touched.kind == "index" else touched.value
    if not tokens:
        return ranked(_verbs(start, end, action, around), typed)
    verb = tokens[0].value
    candidates = []
    for place, rest in _open_places(VERBS.get(verb, ()), tokens[1:]):
        candidates += list(_at_place(place, rest, start, end, action, around, tokens))
    return ranked(candidates, typed)


def offered_verbs(names: Sequence[str], session_kind: SessionKind, has_tools: bool) -> list[str]:
    """Verbs that do something in a session of this kind."""
    hidden = () if has_tools else TOOL_VERBS
    return [name for name in names if name not in hidden and (session_kind == "android" or name not in MOBILE_VERBS)]


def _verbs(start: int, end: int, action: str, around: Surroundings) -> Iterator[Candidate]:
    has_more = bool(action[end:].strip())
    for verb in offered_verbs(list(VERBS), around.session_kind, around.has_tools):
        places = VERBS[verb]
        text, back = verb, 0
        if places and not has_more and not places[0].is_optional:
            is_text = places[0].kind in TEXT_KINDS
            text, back = f'{verb} ""' if is_text else f"{verb} ", int(is_text)
        yield Candidate(
            completion=Completion(text=text, label=verb, detail=_usage(places), start=start, end=end, cursor=start + len(text) - back),
            keys=(verb, verb.replace("_", " ")),
        )


def _usage(places: Sequence[Place]) -> str:
    shown = {"point": "[1]", "keys": "enter", "key": "enter", "direction": "down", "button": "left", "seconds": "5"}
    words = [shown.get(place.kind, f'"{place.kind}"') for place in places]
    return " ".join(f"({word})" if place.is_optional else word for word, place in zip(words, places, strict=True))


def _open_places(places: Sequence[Place], tokens: Sequence[_Token]) -> list[tuple[Place, tuple[Place, ...]]]:
    """The places that the cursor may stand in, each with those after it; none where all are filled."""
    left, index = list(places), 0
    while index < len(tokens) and left:
        width = _fits(left[0].kind, tokens[index:])
        if width:
            index += width
            if left[0].kind != "keys":
                left.pop(0)
        elif left[0].is_optional:
            left.pop(0)
        else:
            return []
    if index < len(tokens):
        return []
    found = []
    for number, place in enumerate(left):
        found.append((place, tuple(left[number + 1 :])))
        if not place.is_optional:
            break
    return found


def _fits(kind: Kind, tokens: Sequence[_Token]) -> int:
    """How many tokens a place of this kind takes; 0 where they do not fit."""
    first = tokens[0]
    if kind == "point":
        if first.kind == "index":
            return 1
        are_numbers = [token.kind == "word" and bool(_NUMBER.fullmatch(token.value)) for token in tokens[:2]]
        return 2 if are_numbers == [True, True] else 0
    if kind == "button":
        return int(first.kind == "word" and first.value in ("left", "middle", "right"))
    return int((first.kind == "text") == (kind in TEXT_KINDS))


def _at_place(
    place: Place, rest: Sequence[Place], start: int, end: int, action: str, around: Surroundings, tokens: Sequence[_Token]
) -> Iterator[Candidate]:
    tool = next((token.value for token in tokens if token.kind == "text"), "")
    used = {token.value for token in tokens if token.kind == "word"}
    for value in values(place.kind, around, verb=tool):
        if place.kind == "keys" and used & set(value.text.split()):
            continue
        written = _write(place.kind, value)
        goes_on = bool(rest) and not rest[0].is_optional and not action[end:].strip()
        next_text = goes_on and rest[0].kind in TEXT_KINDS
        text = written + (' ""' if next_text else " " if goes_on else "")
        yield Candidate(
            completion=Completion(
                text=text,
                label=value.label,
                detail=value.detail,
                start=start,
                end=end,
                cursor=start + len(text) - int(next_text),
                points=value.points,
            ),
            keys=(value.text, value.label, written),
        )


def _write(kind: Kind, value: Value) -> str:
    if kind == "point":
        return f"[{value.element}]"
    return f'"{escape(value.text)}"' if kind in TEXT_KINDS else value.text


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        quoted, quote, index, bracket, word = match.groups()
        if word is not None:
            found.append(_Token(kind="word", value=word, start=match.start(), end=match.end(), is_closed=False))
        elif index is not None:
            found.append(_Token(kind="index", value=index, start=match.start(), end=match.end(), is_closed=bracket == "]"))
        else:
            found.append(_Token(kind="text", value=quoted, start=match.start(), end=match.end(), is_closed=quote == '"'))
    return found


def _end_of(action: str, cursor: int, touched: _Token | None) -> int:
    """Where the token under the cursor ends: what stands right of the cursor and belongs to it is replaced too."""
    if touched is None:
        return cursor
    ends = {"text": r'(?:[^"\\]|\\.)*"', "index": r"\d*\s*\]", "word": r'[^\s"\[\]]*'}
    match = re.compile(ends[touched.kind], re.DOTALL).match(action, cursor)
    return match.end() if match else cursor
