"""Playwright's traces (trace.zip, `context.tracing.start(screenshots=True, title=…)`): what a script or an agent did to a page, each action
to the last frame before it began. The format is the trace's version 10, which Playwright 1.65 writes; frames of older ones, which lie in
`resources/`, are found as well.

A zip is read member by member and nothing is unpacked: a member is read up to a limit, a frame by the name that the trace gives it, if the
zip has one of that name.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.grammars.base import validation_reason
from pipelines.importing.computer_calls import READERS as GESTURES
from pipelines.importing.computer_calls import ComputerCall, chord_parts, key_of
from pipelines.importing.conversations import task_named
from pipelines.importing.reading import OnBytes
from pipelines.importing.trajectories import DemonstratedStep, Demonstration, Entry, Importer, Picture, Pictures
from sandbox.actions import (
    Action,
    Click,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    MoveTo,
    Navigate,
    NavigateBack,
    SelectOption,
    TypeText,
    Wait,
)
from sandbox.importing.fields import BadRecord
from sandbox.importing.pyautogui_calls import Hand
from sandbox.importing.reading import NotPlain, parse_json
from warehouse.core.errors import ConfigError
from warehouse.core.identity import file_digest

MAX_TRACE_BYTES = 256 * 2**20
MAX_FRAME_BYTES = 32 * 2**20
MAX_MEMBERS = 100_000
MAX_TRACES, MAX_TRACES_BYTES = 1000, 2**30
"""Of a zip, unpacked."""
MAX_FRAMES_BYTES = 512 * 2**20
"""Of a trace, each frame once: a demonstration is in memory as a whole."""
UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, OSError, ValueError)
"""What zipfile raises for a zip that is cut, encrypted, or compressed in another way."""


@dataclass(slots=True)
class _Frame:
    at_ms: float
    name: str
    size: tuple[float, float]


@dataclass(slots=True)
class _Done:
    """One call of the API, with the point and box that it acted on, in pixels of the page."""

    method: str
    params: Mapping[str, Any]
    at_ms: float
    is_input: bool = False
    point: tuple[float, float] | None = None
    box: tuple[float, float, float, float] | None = None
    error: str = ""


@dataclass(slots=True)
class _Trace:
    title: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    frames: list[_Frame] = field(default_factory=list)
    calls: dict[str, _Done] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)


def trace_entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
    """Satisfies EntryReader: one entry for each context that the zip has a trace of."""
    digest = file_digest(path)[:32]
    try:
        archive = zipfile.ZipFile(path)
    except UNREADABLE as error:
        raise ConfigError(f"{path} is not a zip that can be read: {error}") from error
    with archive:
        names, traces = frozenset(archive.namelist()), _traces(path, archive)
        for name in traces:
            entry = Entry(where=f"{path.name}:{name}", digest=f"{digest}{name}" if len(traces) > 1 else digest, text="{}")
            try:
                trace = _read(archive, name)
                trace.lost["steps of Playwright's test runner (test.trace)"] += "test.trace" in names
                entry.text = json.dumps(_about(trace), ensure_ascii=False)
                entry.made = _demonstration(path, names, trace)
            except (BadRecord, NotPlain) as error:
                entry.why_not = str(error)
            yield entry
    on_bytes(path.stat().st_size)


def _traces(path: Path, archive: zipfile.ZipFile) -> list[str]:
    """Names of the members that are traces. Raises ConfigError."""
    members = archive.infolist()
    traces = [member for member in members if member.filename.endswith(".trace") and member.filename != "test.trace"]
    if not traces:
        raise ConfigError(f"{path} is not a trace of Playwright: no member is called *.trace")
    num_bytes = sum(member.file_size for member in traces)
    for num, most, what in (
        (len(members), MAX_MEMBERS, "members"),
        (len(traces), MAX_TRACES, "traces"),
        (num_bytes >> 20, MAX_TRACES_BYTES >> 20, "MiB of traces, unpacked"),
    ):
        if num > most:
            raise ConfigError(f"{path} has {num} {what}, at most {most} are read: divide it")
    return [member.filename for member in traces]


IMPORTER = Importer(name="playwright-trace", entries=trace_entries)


def _about(trace: _Trace) -> dict[str, Any]:
    """What a rule of outcomes is asked about."""
    errors = [done.error for done in trace.calls.values() if done.error]
    return trace.about | {"num_errors": len(errors), "errors": errors[:10]}


def _member(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """Raises BadRecord for one that cannot be read, or is larger."""
    try:
        with archive.open(name) as file:
            data = file.read(max_bytes + 1)
    except (*UNREADABLE, KeyError) as error:
        raise BadRecord(f"the member {name[:80]!r} cannot be read: {error}") from None
    if len(data) > max_bytes:
        raise BadRecord(f"the member {name[:80]!r} is larger than {max_bytes // 2**20} MiB, unpacked")
    return data


class _Shots:
    """Frames of one trace, each read once."""

    def __init__(self, archive: zipfile.ZipFile, names: frozenset[str]) -> None:
        self._archive, self._names = archive, names
        self._read: dict[str, Picture] = {}
        self._left = MAX_FRAMES_BYTES

    def of(self, frame: _Frame) -> Picture:
        """Raises BadRecord."""
        if frame.name not in self._names:
            raise BadRecord(f"its frame {frame.name[:80]!r} is not in the zip")
        if frame.name not in self._read:
            data = _member(self._archive, frame.name, MAX_FRAME_BYTES)
            self._left -= len(data)
            if self._left < 0:
                raise BadRecord(f"its frames are larger than {MAX_FRAMES_BYTES // 2**20} MiB in all, unpacked")
            self._read[frame.name] = Picture(data=data)
        return self._read[frame.name]


def _read(archive: zipfile.ZipFile, name: str) -> _Trace:
    trace = _Trace()
    for number, line in enumerate(_member(archive, name, MAX_TRACE_BYTES).decode("utf-8", "replace").split("\n"), start=1):
        if line.strip():
            try:
                event = parse_json(line)
            except NotPlain as error:
                raise BadRecord(f"line {number} {error}") from None
            if not isinstance(event, Mapping):
                raise BadRecord(f"line {number} is {type(event).__name__}, expected an event")
            _take(event, trace)
    return trace


def _take(event: Mapping[str, Any], trace: _Trace) -> None:
    kind, name = event.get("type"), str(event.get("callId"))
    if kind == "context-options":
        trace.title = str(event.get("title") or "").strip()
        trace.about = {key: event[key] for key in ("title", "browserName", "playwrightVersion", "version", "platform") if key in event}
    elif kind == "screencast-frame":
        file = event.get("file") or f"resources/{event.get('sha1')}"
        trace.frames.append(_Frame(_number(event.get("timestamp")), str(file), (_number(event.get("width")), _number(event.get("height")))))
    elif kind == "before":
        params = event.get("params")
        method = f"{event.get('class')}.{event.get('method')}"
        trace.calls[name] = _Done(method, params if isinstance(params, Mapping) else {}, _number(event.get("startTime")))
    elif kind == "input" and name in trace.calls:
        done = trace.calls[name]
        done.is_input, done.point, done.box = True, _numbers(event.get("point"), "x", "y"), _numbers(event.get("box"), *BOX)  # type: ignore[assignment]
    elif kind == "after" and name in trace.calls:
        done = trace.calls[name]
        error, point = event.get("error"), _numbers(event.get("point"), "x", "y")
        done.error = str(error.get("message") or error)[:200] if isinstance(error, Mapping) else ""
        done.point = done.point or point  # type: ignore[assignment]
    else:
        trace.lost[f"events of the type {str(kind)[:40]}"] += 1


BOX = ("x", "y", "width", "height")


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise BadRecord(f"a time or a size is {value!r:.60}, expected a number")
    return float(value)


def _numbers(value: Any, *names: str) -> tuple[float, ...] | None:
    return tuple(_number(value.get(name)) for name in names) if isinstance(value, Mapping) else None


def _demonstration(path: Path, names: frozenset[str], trace: _Trace) -> Demonstration:
    if not trace.title:
        raise BadRecord("it has no title, which says what was done: give one to tracing.start(title=…)")
    if not trace.frames:
        raise BadRecord("it has no screenshots: begin it with tracing.start(screenshots=True)")
    lost = Counter(trace.lost)

    def load() -> Sequence[DemonstratedStep]:
        lost.clear()
        lost.update(+trace.lost)
        try:
            archive = zipfile.ZipFile(path)
        except UNREADABLE as error:
            raise BadRecord(f"{path.name} cannot be read any more: {error}") from None
        with archive:
            return _steps(_Shots(archive, names), trace, lost)

    return Demonstration(
        task_id=task_named(trace.title), instruction=trace.title, completed=None, quality={}, judged_by="verifier", load=load, lost=lost
    )


def _steps(shots: _Shots, trace: _Trace, lost: Counter[str]) -> list[DemonstratedStep]:
    frames = sorted(trace.frames, key=lambda frame: frame.at_ms)
    times = [frame.at_ms for frame in frames]
    made: list[DemonstratedStep] = []
    hand = _Focus()
    for done in sorted(trace.calls.values(), key=lambda done: done.at_ms):
        num_shown = bisect_right(times, done.at_ms)
        if done.error:
            lost[f"{done.method}, which failed"] += 1
        elif done.method not in READERS:
            if done.is_input:
                raise BadRecord(f"{done.method} has no action here; known are {', '.join(READERS)}")
            lost[f"{done.method}, which does nothing to the page by hand"] += 1
        elif not num_shown:
            lost[f"{done.method} before the first screenshot"] += 1
        else:
            made.append(_step(shots, frames[num_shown - 1], done, hand, lost))
    if not made:
        raise BadRecord("nothing in it acts on a page")
    return made


@dataclass(slots=True)
class _Focus:
    box: tuple[float, ...] | None = None
    pointer: Hand = field(default_factory=Hand)


def _step(shots: _Shots, frame: _Frame, done: _Done, focus: _Focus, lost: Counter[str]) -> DemonstratedStep:
    picture = shots.of(frame)
    if min(frame.size) <= 0:
        raise BadRecord(f"a frame of it is {frame.size[0]:g}x{frame.size[1]:g}")
    scale = (picture.size_px[0] / frame.size[0], picture.size_px[1] / frame.size[1])
    point = _point(done)
    given = {name: value for name, value in done.params.items() if name != "position"}
    values = {**given, **({} if point is None else {"x": point[0], "y": point[1]})}
    hand = focus.pointer if point is not None or done.method.startswith("Page.") else Hand()
    call = ComputerCall(name=done.method, values=values, size_px=picture.size_px, scale=scale, hand=hand, lost=lost)
    try:
        actions = READERS[done.method](call, _is_focused(done, focus))
    except ValidationError as error:
        raise BadRecord(f"{done.method}: {validation_reason(error)}") from None
    call.count_rest("selector", "strict", "timeout")
    return DemonstratedStep(picture=picture, size_px=picture.size_px, actions=tuple(actions))


def _point(done: _Done) -> tuple[float, float] | None:
    """In pixels of the page. The parameter `position` is relative to the element."""
    position = _numbers(done.params.get("position"), "x", "y")
    if done.point is not None or done.box is None:
        return done.point
    x, y, width, height = done.box
    return (x + position[0], y + position[1]) if position is not None else (x + width / 2, y + height / 2)


def _is_focused(done: _Done, focus: _Focus) -> bool:
    """Whether what a key goes to has been acted on just before."""
    is_same = done.box is not None and done.box == focus.box
    focus.box = done.box if done.is_input and done.box is not None else focus.box
    return is_same


Reader = Callable[[ComputerCall, bool], list[Action]]


def _click(count: int | None = None) -> Reader:
    def read(call: ComputerCall, is_focused: bool) -> list[Action]:
        x, y = call.point()
        times = count or round(call.number("clickCount", default=1))
        click = Click.model_validate({"x": x, "y": y, "button": call.any("button") or "left", "count": times})
        held = [key_of(str(key)) for key in call.any("modifiers") or []]
        return [*(KeyDown(key=key) for key in held), click, *(KeyUp(key=key) for key in reversed(held))]

    return read


def _typed(names: tuple[str, ...], *, replaces: bool) -> Reader:
    def read(call: ComputerCall, is_focused: bool) -> list[Action]:
        x, y = call.point()
        text = call.text(*names)
        clicked: list[Action] = [] if is_focused else [Click(x=x, y=y)]
        chosen: list[Action] = [Hotkey(keys=("ctrl", "a"))] if replaces else []
        return [*clicked, *chosen, TypeText(text=text) if text else Hotkey(keys=("delete",))]

    return read


def _pressed(call: ComputerCall, is_focused: bool) -> list[Action]:
    x, y = call.point()
    keys = Hotkey(keys=tuple(_keys(call.text("key"))))
    return [keys] if is_focused else [Click(x=x, y=y), keys]


def _keys(written: str) -> list[str]:
    found = [key_of(part) for part in chord_parts(written)]
    return found if len(found) == 1 else [key.lower() for key in found]


def _chosen(call: ComputerCall, is_focused: bool) -> list[Action]:
    options = call.any("options")
    first = options[0] if isinstance(options, list) and len(options) == 1 and isinstance(options[0], Mapping) else {}
    label = next((first[name] for name in ("label", "valueOrLabel", "value") if isinstance(first.get(name), str)), None)
    if label is None:
        raise BadRecord(f"{call.name} chooses {options!r:.60}; one option by its label or value has an action")
    x, y = call.point()
    return [SelectOption(x=x, y=y, option=label)]


def _at(action: type[MoveTo] | type[MouseDown] | type[MouseUp]) -> Reader:
    def read(call: ComputerCall, is_focused: bool) -> list[Action]:
        x, y = call.point()
        button = {} if action is MoveTo else {"button": call.any("button") or "left"}
        return [action.model_validate({"x": x, "y": y, **button})]

    return read


def _wheel(call: ComputerCall, is_focused: bool) -> list[Action]:
    call.values = {"delta_x": call.any("deltaX"), "delta_y": call.any("deltaY")}
    return GESTURES["scroll"](call)


READERS: Mapping[str, Reader] = {
    **{f"{of}.{name}": _click() for of in ("Frame", "ElementHandle") for name in ("click", "tap", "check", "uncheck", "setChecked")},
    **{f"{of}.dblclick": _click(2) for of in ("Frame", "ElementHandle")},
    **{f"{of}.hover": _at(MoveTo) for of in ("Frame", "ElementHandle")},
    **{f"{of}.fill": _typed(("value",), replaces=True) for of in ("Frame", "ElementHandle")},
    **{f"{of}.type": _typed(("text",), replaces=False) for of in ("Frame", "ElementHandle")},
    **{f"{of}.press": _pressed for of in ("Frame", "ElementHandle")},
    **{f"{of}.selectOption": _chosen for of in ("Frame", "ElementHandle")},
    "Frame.goto": lambda call, _: [Navigate(url=call.text("url"))],
    "Page.goBack": lambda call, _: [NavigateBack()],
    "Page.goForward": lambda call, _: [Hotkey(keys=("alt", "right"))],
    "Page.reload": lambda call, _: [Hotkey(keys=("f5",))],
    "Frame.waitForTimeout": lambda call, _: [Wait(seconds=min(60.0, max(0.01, call.number("waitTimeout", "timeout") / 1000)))],
    "Page.mouseMove": _at(MoveTo),
    "Page.mouseClick": _click(),
    "Page.mouseDown": _at(MouseDown),
    "Page.mouseUp": _at(MouseUp),
    "Page.touchscreenTap": _click(),
    "Page.mouseWheel": _wheel,
    "Page.keyboardType": lambda call, _: [TypeText(text=call.text("text"))],
    "Page.keyboardInsertText": lambda call, _: [TypeText(text=call.text("text"))],
    "Page.keyboardPress": lambda call, _: [Hotkey(keys=tuple(_keys(call.text("key"))))],
    "Page.keyboardDown": lambda call, _: [KeyDown(key=key_of(call.text("key")))],
    "Page.keyboardUp": lambda call, _: [KeyUp(key=key_of(call.text("key")))],
}
