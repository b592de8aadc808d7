"""Completion in the grammars that write calls with named parameters: `click(start_box='…')` of UI-TARS 1.x and Doubao, and the
`<function=…>` blocks of UI-TARS-2. A verb brings all that it needs; accepted values lead to the next one that is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agent.grammars.base import NotRepresentable
from agent.grammars.points import escape_text
from agent.grammars.thought_action import ThoughtActionGrammar
from agent.grammars.uitars2 import SDK_TOOLS
from annotation.service.editor.completion_compact import offered_verbs
from annotation.service.editor.completion_values import Candidate, Kind, Place, Surroundings, Value, ranked, values
from annotation.wire.runs import Completion
from sandbox.actions import Click

POINT = Place(kind="point", name="point")
MAYBE_POINT = Place(kind="point", name="point", is_optional=True)
MAYBE_BUTTON = Place(kind="button", name="button", is_optional=True)
CALLS: dict[str, tuple[Place, ...]] = {
    "click": (POINT,),
    "type": (Place(kind="text", name="content"),),
    "hotkey": (Place(kind="keys", name="key"),),
    "finished": (Place(kind="answer", name="content", is_optional=True),),
    "scroll": (MAYBE_POINT, Place(kind="direction", name="direction")),
    "select": (Place(kind="option", name="content"), POINT),
    "drag": (Place(kind="point", name="start_point"), Place(kind="point", name="end_point")),
    "left_double": (POINT,),
    "right_single": (POINT,),
    "left_triple": (POINT,),
    "middle_click": (POINT,),
    "move_to": (POINT,),
    "wait": (Place(kind="seconds", name="time", is_optional=True),),
    "navigate": (Place(kind="url", name="content"),),
    "navigate_back": (),
    "mouse_down": (MAYBE_POINT, MAYBE_BUTTON),
    "mouse_up": (MAYBE_POINT, MAYBE_BUTTON),
    "press": (Place(kind="key", name="key"),),
    "release": (Place(kind="key", name="key"),),
    "long_press": (POINT,),
    "open_app": (Place(kind="app", name="app_name"),),
    "press_home": (),
    "press_back": (),
    "call_user": (Place(kind="question", name="content", is_optional=True),),
}
"""Every function with its parameters, oftenest used first."""
_TOOL_KINDS: dict[tuple[str, str], Kind] = {
    ("execute_bash", "command"): "command",
    ("str_replace_editor", "command"): "editor_command",
    ("str_replace_editor", "path"): "path",
    ("Search", "query"): "text",
    ("LinkReader", "url"): "url",
}
_NEEDED = {
    "execute_bash": ("command",),
    "str_replace_editor": ("command", "path"),
    "JupyterCI": ("code",),
    "Search": ("query",),
    "LinkReader": ("url",),
}
TOOL_CALLS: dict[str, tuple[Place, ...]] = {
    name: tuple(Place(kind=_TOOL_KINDS.get((name, key), "plain"), name=key, is_optional=key not in _NEEDED[name]) for key in parameters)
    for name, parameters in SDK_TOOLS.items()
}
_WORD = re.compile(r"[A-Za-z_]\w*$")
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_ARGUMENT = re.compile(r"\s*,?\s*(\w+)\s*=\s*(['\"])((?:[^'\"\\]|\\.)*)(\2|$)", re.DOTALL)
_KEY = re.compile(r"\s*,?\s*(\w*)$")
_EMPTY = {"call": re.compile(r"=''"), "tag": re.compile(r"<parameter=[\w.\-]+></parameter>")}
_OPEN_PARAMETER = re.compile(r"<parameter=([\w.\-]+)>((?:(?!</parameter>).)*)$", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.\-]+)>")
_OPEN_FUNCTION = re.compile(r"(?:<seed:tool_call>\s*)?<function=([\w.\-]*)$")


def complete_call(action: str, cursor: int, around: Surroundings) -> list[Completion]:
    """In `name(key='value', …)`."""
    head, position = action[:cursor], 0
    while match := _CALL.match(head, position):
        name, position, given = match.group(1), match.end(), []
        while argument := _ARGUMENT.match(head, position):
            if not argument.group(4):
                return _values_in_call(action, cursor, name, argument.group(1), argument.start(3), around)
            given.append(argument.group(1))
            position = argument.end()
        closing = re.compile(r"\s*\)").match(head, position)
        if closing is None:
            key = _KEY.match(head, position)
            return [] if key is None else _keys_in_call(action, cursor, name, given, key.group(1), around)
        position = closing.end()
    if position and not head[position:].strip() and "\n" not in head[position:]:
        return []  # a whole call; another one goes on a line of its own
    word = _WORD.search(head)
    start = word.start() if word else cursor
    end = cursor + len(re.match(r"\w*", action[cursor:]).group())  # type: ignore[union-attr]  # it always matches
    if action[end:].lstrip().startswith("("):
        named = ((verb, verb) for verb in _names(around))
    else:
        named = ((verb, _snippet(verb, around)) for verb in _names(around))
    return ranked(_verbs(named, start, end, action, "call"), head[start:])


def complete_tags(action: str, cursor: int, around: Surroundings) -> list[Completion]:
    """In `<seed:tool_call>` blocks."""
    head = action[:cursor]
    function = ([match.group(1) for match in _FUNCTION.finditer(head)] or [""])[-1]
    if (value := _OPEN_PARAMETER.search(head)) is not None:
        return _values_in_tag(action, cursor, function, value.group(1), value.start(2), around)
    if (opened := _OPEN_FUNCTION.search(head)) is not None:
        start, typed = opened.start(), opened.group(1)
    else:
        body = head[head.rfind("<function=") :] if "<function=" in head else ""
        if body and "</function>" not in body:
            return _missing_tags(action, cursor, function, body)
        word = _WORD.search(head)
        start, typed = (word.start(), word.group()) if word else (cursor, "")
    end = cursor + len(re.match(r"\w*>?", action[cursor:]).group())  # type: ignore[union-attr]  # it always matches
    named = ((verb, _block(verb, _places(verb))) for verb in (*_names(around), *(TOOL_CALLS if around.has_tools else ())))
    return ranked(_verbs(named, start, end, action, "tag"), typed)


def _names(around: Surroundings) -> list[str]:
    return offered_verbs(list(CALLS), around.session_kind, around.has_tools)


def _places(name: str) -> tuple[Place, ...]:
    return CALLS.get(name) or TOOL_CALLS.get(name) or ()


def _parameter(place: Place, around: Surroundings) -> str:
    if place.kind == "point" and isinstance(around.grammar, ThoughtActionGrammar):
        return around.grammar.parameter_name(place.name)
    return place.name


def _snippet(verb: str, around: Surroundings) -> str:
    needed = [f"{_parameter(place, around)}=''" for place in CALLS[verb] if not place.is_optional]
    return f"{verb}({', '.join(needed)})"


def _block(verb: str, places: Sequence[Place]) -> str:
    lines = [f"<parameter={place.name}></parameter>" for place in places if not place.is_optional]
    return "\n".join(("<seed:tool_call>", f"<function={verb}>", *lines, "</function>", "</seed:tool_call>"))


def _verbs(named: Iterator[tuple[str, str]], start: int, end: int, action: str, form: str) -> Iterator[Candidate]:
    for verb, text in named:
        detail = ", ".join(f"({place.name})" if place.is_optional else place.name for place in _places(verb))
        cursor = _next_empty(action[:start] + text + action[end:], start, start + len(text), form)
        yield Candidate(
            completion=Completion(text=text, label=verb, detail=detail, start=start, end=end, cursor=cursor),
            keys=(verb, verb.replace("_", " ")),
        )


def _next_empty(text: str, position: int, otherwise: int, form: str) -> int:
    """Inside the next parameter without a value."""
    match = _EMPTY[form].search(text, position)
    if match is None:
        return otherwise
    return match.end() - (1 if form == "call" else len("</parameter>"))


def _values_in_call(action: str, cursor: int, name: str, key: str, start: int, around: Surroundings) -> list[Completion]:
    place = next((place for place in _places(name) if _parameter(place, around) == key), None)
    if place is None:
        return []
    quote = action[start - 1]
    rest = re.compile(rf"(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL).match(action, cursor)
    end = rest.end() - 1 if rest else cursor
    return _values(action, cursor, place, (start, end, "" if rest else quote), "call", around)


def _values_in_tag(action: str, cursor: int, name: str, key: str, start: int, around: Surroundings) -> list[Completion]:
    place = next((place for place in _places(name) if place.name == key), None)
    if place is None:
        return []
    closing = action.find("</parameter>", cursor)
    end, missing = (cursor, "</parameter>") if closing < 0 else (closing, "")
    return _values(action, cursor, place, (start, end, missing), "tag", around)


def _values(action: str, cursor: int, place: Place, span: tuple[int, int, str], form: str, around: Surroundings) -> list[Completion]:
    start, end, missing = span
    candidates = []
    for value in values(place.kind, around):
        written = _write(place, value, around, is_raw=form == "tag" and place.kind in ("command", "path", "plain", "editor_command"))
        if written is None:
            continue
        text = written + missing
        after = _next_empty(action[:start] + text + action[end:], start + len(text), -1, form)
        if after < 0:  # behind the quote or tag that closes the value
            after = start + len(text) + (0 if missing else 1 if form == "call" else len("</parameter>"))
        candidates.append(
            Candidate(
                completion=Completion(
                    text=text, label=value.label, detail=value.detail, start=start, end=end, cursor=after, points=value.points
                ),
                keys=(value.text, value.label, written),
            )
        )
    return ranked(candidates, action[start:cursor])


def _write(place: Place, value: Value, around: Surroundings, *, is_raw: bool) -> str | None:
    """A value as it stands in the parameter; None for a point that the grammar cannot write."""
    if place.kind != "point":
        return value.text if is_raw else escape_text(value.text)
    try:
        click = around.grammar.format(None, Click(x=value.points[0].x, y=value.points[0].y), around.observation)
    except NotRepresentable:
        return None
    match = re.search(r"='(.*)'\)|<parameter=point>(.*?)</parameter>", click)
    return None if match is None else match.group(1) or match.group(2)


def _keys_in_call(action: str, cursor: int, name: str, given: Sequence[str], typed: str, around: Surroundings) -> list[Completion]:
    candidates = []
    start = cursor - len(typed)
    for place in _places(name):
        key = _parameter(place, around)
        if key in given:
            continue
        comma = ", " if given and not action[:start].rstrip().endswith(",") else ""
        text = f"{comma}{key}=''"
        completion = Completion(text=text, label=key, detail=place.kind, start=start, end=cursor, cursor=start + len(text) - 1)
        candidates.append(Candidate(completion=completion, keys=(key,)))
    return ranked(candidates, typed)


def _missing_tags(action: str, cursor: int, name: str, body: str) -> list[Completion]:
    typed = re.search(r"<?[\w=.]*$", body)
    start = cursor - (len(typed.group()) if typed else 0)
    candidates = []
    for place in _places(name):
        if f"<parameter={place.name}>" in body:
            continue
        text = f"<parameter={place.name}></parameter>"
        completion = Completion(
            text=text, label=place.name, detail=place.kind, start=start, end=cursor, cursor=start + len(text) - len("</parameter>")
        )
        candidates.append(Candidate(completion=completion, keys=(place.name, text)))
    return ranked(candidates, action[start:cursor])
