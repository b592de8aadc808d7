"""Histories of the browser-use library (`history.save_to_file`): a JSON document a run. An action's point is the one in its result,
else the middle of the element; what was asked is read from the message that the library saves with each step, and screenshots, which it
names by paths of the machine that it ran on, are looked for beside the history and below --images: by the folder of the run and their file
names, or by these alone where no other run has them there.

Source: browser-use 0.13 (agent/views.py, tools/views.py), and the names that its actions had before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote_plus

from pydantic import ValidationError

from agent.grammars.base import validation_reason
from pipelines.importing.computer_calls import READERS as GESTURES
from pipelines.importing.computer_calls import ComputerCall
from pipelines.importing.conversations import fields_of, task_named
from pipelines.importing.reading import OnBytes, raw_records
from pipelines.importing.trajectories import DemonstratedStep, Demonstration, Entry, Importer, Picture, Pictures
from sandbox.actions import Action, Click, Finished, Hotkey, Navigate, NavigateBack, Scroll, SelectOption, TypeText
from sandbox.importing.fields import BadRecord, Fields, listed
from sandbox.importing.pyautogui_calls import Hand

_REQUEST = re.compile(r"<user_request>\s*(?P<text>.+?)\s*</user_request>", re.DOTALL)
_PAGES_ABOVE = re.compile(r"<page_info>(?P<pages>\d{1,6}\.?\d{0,6}) pages above")
_RUN = "browser_use_agent_"
"""How the folder of a run begins, which holds its `screenshots`."""
WIDE_PX = 2400
"""Screenshots of this width may be of a screen of device scale 2; a history does not say it."""
_NEWER = {
    "click_element_by_index": "click",
    "click_element": "click",
    "input_text": "input",
    "go_to_url": "navigate",
    "open_tab": "navigate",
    "select_dropdown_option": "select_dropdown",
    "search_google": "search",
    "extract_structured_data": "extract",
    "extract_content": "extract",
    "get_dropdown_options": "dropdown_options",
}
"""What earlier versions call the same action."""
LOOKS = (
    "extract",
    "search_page",
    "find_elements",
    "dropdown_options",
    "screenshot",
    "read_file",
    "write_file",
    "replace_file",
    "save_as_pdf",
)
"""Actions that do nothing to the page: they read it, or the agent's own files."""
ENGINES = {
    "duckduckgo": "https://duckduckgo.com/?q=",
    "google": "https://www.google.com/search?udm=14&q=",
    "bing": "https://www.bing.com/search?q=",
}


def history_entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
    """Satisfies EntryReader."""
    for raw in raw_records(path, on_bytes):
        entry = Entry(where=raw.where, digest=raw.digest, text=raw.text, why_not=raw.error)
        if not raw.error:
            try:
                entry.made = _demonstration(raw.value, pictures, entry.unknown)
            except BadRecord as error:
                entry.why_not = str(error)
        yield entry


IMPORTER = Importer(name="browser-use", entries=history_entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of the run, its actions each with the element and the result."""

    thought: str | None
    screenshot: PurePosixPath | None
    is_scrolled: bool | None
    """None where the message to the model does not say."""
    actions: Sequence[tuple[str, Mapping[str, Any], Any, Mapping[str, Any]]]
    read: str
    has_failed: bool
    says_failed: bool
    """Of the task: a result has `success: false`."""


def _demonstration(record: Any, pictures: Pictures, unknown: list[str]) -> Demonstration:
    fields = fields_of(record)
    history = fields.take("history", list)
    said: Counter[str] = Counter()
    said["`usage`"] += fields.any("usage") is not None
    items = [fields_of(item, "history[]") for item in history]
    asked = [match["text"] for item in items if (match := _REQUEST.search(str(item.any("state_message") or ""))) is not None]
    steps = [step for item in items if (step := _read(item, said, unknown)) is not None]
    unknown += fields.unknown()
    if not asked:
        raise BadRecord("no `state_message` says what was asked (<user_request>): save it with a version of browser-use that keeps it")
    if not steps:
        raise BadRecord("no step of it has an answer of the model")
    lost = Counter(said)

    def load() -> Sequence[DemonstratedStep]:
        lost.clear()
        lost.update(+said)
        return _steps(steps, pictures, lost)

    return Demonstration(
        task_id=task_named(asked[0]),
        instruction=asked[0],
        completed=False if steps[-1].has_failed or any(step.says_failed for step in steps) else None,
        quality={},
        judged_by="judge",
        load=load,
        lost=lost,
    )


def _read(item: Fields, lost: Counter[str], unknown: list[str]) -> _Step | None:
    state, output = fields_of(item.any("state") or {}, "history[].state"), item.any("model_output")
    lost["`state_message`, but for what was asked"] += item.any("state_message") is not None
    item.keep_aside("metadata")
    results = [fields_of(result, "history[].result[]") for result in listed(item.any("result"))]
    if output is None:
        lost["steps without an answer of the model"] += 1
        return None
    answer = fields_of(output, "history[].model_output")
    thought = "\n".join(str(text).strip() for name in ("thinking", "next_goal") if (text := answer.any(name)))
    elements = listed(state.any("interacted_element"))
    actions = []
    for index, given in enumerate(listed(answer.any("action"))):
        name, values = _one(given)
        result = results[index] if index < len(results) else None
        about = result.any("metadata") if result is not None else None
        element = elements[index] if index < len(elements) else None
        actions.append((name, values, element, about if isinstance(about, Mapping) else {}))
    for name in ("evaluation_previous_goal", "memory", "current_plan_item", "plan_update"):
        lost[f"`{answer.dotted(name)}`"] += answer.any(name) is not None
    screenshot = state.any("screenshot_path")
    state.keep_aside("tabs", "url", "title")
    read = [str(result.any("extracted_content") or "") for result, one in zip(results, actions, strict=False) if one[0] in LOOKS]
    failed = [result for result in results if result.any("error") is not None]
    _leave(results, lost, unknown)
    unknown += [*item.unknown(), *state.unknown(), *answer.unknown()]
    path = PurePosixPath(str(screenshot).replace("\\", "/")) if screenshot else None
    above = _PAGES_ABOVE.search(str(item.any("state_message") or ""))
    says_failed = any(result.any("success") is False for result in results)
    return _Step(
        thought=thought or None,
        screenshot=path,
        is_scrolled=None if above is None else float(above["pages"]) > 0,
        actions=actions,
        read="\n".join(read),
        has_failed=bool(failed),
        says_failed=says_failed,
    )


def _leave(results: Sequence[Fields], lost: Counter[str], unknown: list[str]) -> None:
    for result in results:
        result.keep_aside("is_done", "extracted_content", "include_extracted_content_only_once", "include_in_memory", "long_term_memory")
        for name in ("success", "judgement", "attachments", "images", "error"):
            lost[f"`{result.dotted(name)}`"] += result.any(name) not in (None, [])
        unknown += result.unknown()


def _one(given: Any) -> tuple[str, Mapping[str, Any]]:
    """An action's name and values: {"click": {"index": 3}}."""
    if not isinstance(given, Mapping) or len(given) != 1:
        raise BadRecord(f"an action is {str(given)[:80]!r}, expected one name with its values")
    ((name, values),) = given.items()
    if not isinstance(values, Mapping | None):
        raise BadRecord(f"the values of {str(name)[:60]} are {values!r:.60}, expected an object")
    return _NEWER.get(str(name), str(name)), values or {}


def _steps(steps: Sequence[_Step], pictures: Pictures, lost: Counter[str]) -> list[DemonstratedStep]:
    made: list[DemonstratedStep] = []
    hand, output = Hand(), ""
    for number, step in enumerate(steps):
        shot = _shot(pictures, step.screenshot) if step.screenshot else None
        if shot is None:
            lost["steps without a screenshot"] += 1
            continue
        try:
            actions = []
            is_scrolled = step.is_scrolled
            for name, values, element, about in step.actions:
                actions += _actions(name, values, _place(name, values, element, about, is_scrolled), shot, hand, lost)
                is_scrolled = True if name == "scroll" else is_scrolled
        except BadRecord as error:
            raise BadRecord(f"step {number}: {error}") from None
        if actions:
            demonstrated = DemonstratedStep(
                picture=shot, size_px=shot.size_px, actions=tuple(actions), thought=step.thought, is_good=not step.has_failed, output=output
            )
            made.append(demonstrated)
            output = ""
        output = "\n".join(filter(None, (output, step.read)))
    if not made:
        raise BadRecord("no step of it acts on a page that a screenshot shows")
    _check_scale(made)
    return made


def _shot(pictures: Pictures, path: PurePosixPath) -> Picture:
    """By the folder of the run, else by the file's own name, which other runs have too. Raises BadRecord."""
    run = next((part for part in path.parts if part.startswith(_RUN)), None)
    found = list(dict.fromkeys(pictures.paths(*("/".join(path.parts[-num:]) for num in (3, 2, 1)))))
    of_runs = {file: {part for part in file.parts if part.startswith(_RUN)} for file in found}
    of_this = [file for file in found if run in of_runs[file]] or [file for file in found if not of_runs[file]]
    if not of_this:
        return pictures.read("/".join(path.parts[-3:]))
    read = {file: Picture(data=file.read_bytes()) for file in of_this}
    if len({picture.screenshot_id for picture in read.values()}) > 1:
        raise BadRecord(
            f"its screenshot {path.name} may be any of {', '.join(map(str, read))}: keep the folder {run or _RUN + '…'} of the run, or "
            "import its history alone with its --images"
        )
    return read[of_this[0]]


def _check_scale(made: Sequence[DemonstratedStep]) -> None:
    """Points are of the page's own pixels. Raises BadRecord where the screenshots may have more."""
    places = [(action, step.size_px) for step in made for action in step.actions if isinstance(action, Click | SelectOption)]
    is_quarter = bool(places) and all(action.x <= width_px / 2 and action.y <= height_px / 2 for action, (width_px, height_px) in places)
    if is_quarter and max(width_px for _, (width_px, _) in places) >= WIDE_PX:
        width_px, height_px = places[0][1]
        raise BadRecord(
            f"its screenshots have {width_px}x{height_px} pixels and every point is in their top left quarter: they may be of a screen of "
            "device scale 2, which a history does not say. Record with BrowserProfile(device_scale_factor=1)"
        )


def _actions(name: str, values: Mapping[str, Any], place: Mapping[str, Any], shot: Picture, hand: Hand, lost: Counter[str]) -> list[Action]:
    if name in LOOKS:
        lost[f"{name}, which does nothing to the page"] += 1
        return []
    if name not in READERS:
        raise BadRecord(f"the action {name[:60]!r} has no action here; known are {', '.join((*READERS, *LOOKS))}")
    call = ComputerCall(name=name, values={**values, **place}, size_px=shot.size_px, scale=(1.0, 1.0), hand=hand, lost=lost)
    try:
        found = READERS[name](call)
    except ValidationError as error:
        raise BadRecord(f"{name}: {validation_reason(error)}") from None
    call.count_rest("index", "coordinate_x", "coordinate_y")
    return found


def _place(name: str, values: Mapping[str, Any], element: Any, about: Mapping[str, Any], is_scrolled: bool | None) -> dict[str, Any]:
    """Where an action was, as its result or the model says, else the middle of its element; nothing where none of them does. Bounds of an
    element are of the document. Raises BadRecord for those of a page that is scrolled, or may be."""
    for x, y in (("click_x", "click_y"), ("input_x", "input_y")):
        if about.get(x) is not None:
            return {"x": about[x], "y": about.get(y)}
    if values.get("coordinate_x") is not None:
        return {"x": values["coordinate_x"], "y": values.get("coordinate_y")}
    bounds = element.get("bounds") if isinstance(element, Mapping) and name in POINTED else None
    if not isinstance(bounds, Mapping):
        return {}
    if is_scrolled is not False:
        how = "is scrolled" if is_scrolled else "may be scrolled (no <page_info> in its `state_message`)"
        raise BadRecord(f"{name}: its element's bounds are of the document, and the page {how}: where it was on the screen is not known")
    try:
        return {"x": bounds["x"] + bounds["width"] / 2, "y": bounds["y"] + bounds["height"] / 2}
    except (KeyError, TypeError):
        raise BadRecord(f"the bounds of an element are {str(bounds)[:80]!r}, expected x, y, width and height") from None


def _point(call: ComputerCall) -> tuple[int, int]:
    if call.any("x") is None:
        raise BadRecord(f"{call.name}: neither its result nor its element says where it was")
    return call.point()


def _click(call: ComputerCall) -> list[Action]:
    x, y = _point(call)
    return [Click(x=x, y=y)]


def _input(call: ComputerCall) -> list[Action]:
    """By default it replaces what the field holds; an empty text clears it."""
    text, replaces = call.text("text"), call.any("clear") is not False
    written: list[Action] = [TypeText(text=text)] if text else [Hotkey(keys=("delete",))] if replaces else []
    return [*_click(call), *([Hotkey(keys=("ctrl", "a"))] if replaces else []), *written]


def _keys(call: ComputerCall) -> list[Action]:
    """Keys and chords by their names, else a text that is typed, as the library does it."""
    written = call.text("keys")
    is_text = len(written) > 1 and "+" not in written and not written[0].isupper()
    return [TypeText(text=written)] if is_text else GESTURES["key"](call)


def _scroll(call: ComputerCall) -> list[Action]:
    x, y = call.point() if call.any("x") is not None else (None, None)
    call.lost["scroll distance"] += 1
    return [Scroll(direction="up" if call.any("down") is False else "down", x=x, y=y)]


def _navigate(call: ComputerCall) -> list[Action]:
    call.lost["new tabs: an address opens in the tab that is there"] += call.any("new_tab") is True
    return [Navigate(url=call.text("url"))]


def _search(call: ComputerCall) -> list[Action]:
    engine = str(call.any("engine") or "duckduckgo").lower()
    if engine not in ENGINES:
        raise BadRecord(f"search asks {engine!r:.40}; known are {', '.join(ENGINES)}")
    return [Navigate(url=ENGINES[engine] + quote_plus(call.text("query")))]


def _select(call: ComputerCall) -> list[Action]:
    x, y = _point(call)
    return [SelectOption(x=x, y=y, option=call.text("text"))]


READERS: Mapping[str, Callable[[ComputerCall], list[Action]]] = {
    "click": _click,
    "input": _input,
    "send_keys": _keys,
    "scroll": _scroll,
    "wait": GESTURES["wait"],
    "navigate": _navigate,
    "search": _search,
    "go_back": lambda call: [NavigateBack()],
    "select_dropdown": _select,
    "done": lambda call: [Finished(answer=str(call.any("text") or ""))],
}
POINTED = ("click", "input", "select_dropdown")
"""Actions on an element."""
