"""Oracles of tasks with widgets: sliders, spinners, drop-downs, scroll lists, calendars, date fields, guesses, marked text."""

from __future__ import annotations

import re

from sandbox.actions import Action, Click, KeyDown, KeyUp, TypeText
from sandbox.session import Element
from sandbox.tasks.miniwob.oracle_forms import submit_button
from sandbox.tasks.miniwob.oracle_screen import Screen, click, fill, number, press, scroll_down, wait


def guess_number(screen: Screen) -> Action | None:
    """Begin in the middle, then step towards the hint, which speaks of the last guess."""
    hint = next((e for e in screen.all("text") if "lower than" in e.text or "higher than" in e.text), None)
    field = screen.first("spinner")
    guess = 5
    if hint is not None:
        said = screen.after(hint, "text")
        if said is None or not said.text.isdigit():
            return None
        guess = int(said.text) + (1 if "higher" in hint.text else -1)
    return fill(screen, field, str(guess)) or click(submit_button(screen))


def spinner(screen: Screen) -> Action | None:
    wanted = screen.match(r"Select (-?\d+) with")
    field = screen.first("input", "spinner")
    value = number(field.text) if field else None
    if not wanted or value is None:
        return None
    missing = int(wanted[0]) - value
    return click(screen.first("button", text="up" if missing > 0 else "down")) if missing else click(submit_button(screen))


PAGE_FROM = 10
"""Page keys move a slider by a fifth of its range, which is never more than 20: with this much missing they come closer."""


def _slide(slider: Element, value: int, wanted: int) -> Action | None:
    """One key towards the wanted value, None where it is reached. Clicking a handle only focuses it."""
    if value == wanted:
        return None
    if "focused" not in slider.states:
        return click(slider)
    missing = wanted - value
    if abs(missing) > PAGE_FROM:
        return press("pageup" if missing > 0 else "pagedown")
    return press("right" if missing > 0 else "left")


def sliders(screen: Screen) -> Action | None:
    """use-slider, use-slider-2: each handle is followed by its value."""
    one = screen.match(r"Select (-?\d+) with the slider")
    wanted = [int(one[0])] if one else [int(n) for n in re.findall(r"\d+", (screen.match(r"\[(.+)\]") or ("",))[0])]
    handles = screen.all("slider")
    if len(handles) != len(wanted):
        return None
    for handle, goal in zip(handles, wanted, strict=True):
        shown = screen.after(handle, "text")
        value = number(shown.text) if shown else None
        if value is None:
            return None
        if move := _slide(handle, value, goal):
            return move
    return click(submit_button(screen))


def slider_and_checkbox(screen: Screen) -> Action | None:
    wanted = screen.match(r"Select (-?\d+) with the slider, click the (\d)")
    handle, shown, boxes = screen.first("slider"), screen.first("text"), screen.all("checkbox")
    value = number(shown.text) if shown else None
    if not wanted or handle is None or value is None or len(boxes) != 3:
        return None
    if move := _slide(handle, value, int(wanted[0])):
        return move
    for index, box in enumerate(boxes):
        if ("checked" in box.states) != (index == int(wanted[1]) - 1):
            return click(box)
    return click(submit_button(screen))


def radio_and_textbox(screen: Screen) -> Action | None:
    wanted = screen.match(r"Check the (\d)\w\w radio button and enter the number \"(-?\d+)\" into the (\d)")
    radios, fields = screen.all("radio"), screen.all("input")
    if not wanted or len(radios) != 3 or len(fields) != 3:
        return None
    radio = radios[int(wanted[0]) - 1]
    if "checked" not in radio.states:
        return click(radio)
    for index, field in enumerate(fields):
        text = wanted[1] if index == int(wanted[2]) - 1 else ""
        if field.text and field.text != text and "focused" in field.states and "selected" in field.states and not text:
            return press("backspace")
        if move := fill(screen, field, text):
            return move
    return click(submit_button(screen))


def dropdown_and_button(screen: Screen) -> Action | None:
    """form-sequence-3: a drop-down made of ordinary elements; its label shows what is chosen."""
    wanted = screen.match(r"Choose (.+) from the dropdown")
    opener = next((e for e in screen.all() if e.text == "▾"), None)
    if not wanted or opener is None:
        return None
    heights = [e for e in screen.all("item", "text") if re.fullmatch(r"\d ?ft.*", e.text)]
    options = [e for e in heights if e.y_px > opener.y_px + 20]
    chosen = next((e for e in heights if e not in options), None)
    if options:
        option = next((e for e in options if e.text == wanted[0]), None)
        return click(option) if option else scroll_down(screen, options[-1].x_px, options[-1].y_px)
    if chosen is None or chosen.text != wanted[0]:
        return click(opener)
    return click(screen.first("button", text=screen.quote()))


MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]


def pick_date(screen: Screen) -> Action | None:
    """choose-date*: the calendar opens on the field; turn to the month, click the day. It covers the button until it has faded."""
    wanted = screen.match(r"Select (\d\d/\d\d/\d{4}) as the date")
    field = screen.first("input")
    if not wanted or field is None:
        return None
    return calendar(screen, field, wanted[0]) or click(submit_button(screen)) or wait(0.5)


def calendar(screen: Screen, field: Element, date: str) -> Action | None:
    """The next move towards a date field holding mm/dd/yyyy, None where it does."""
    if field.text == date:
        return None
    month, day, year = (int(part) for part in date.split("/"))
    shown = next((MONTHS.index(e.text) for e in screen.all("text") if e.text in MONTHS), None)
    shown_year = next((int(e.text) for e in screen.all("text") if re.fullmatch(r"20\d\d", e.text)), None)
    if shown is None or shown_year is None:
        return click(field)
    if (shown_year, shown + 1) == (year, month):
        return click(screen.first("link", "item", text=str(day)))
    is_later = (shown_year, shown + 1) < (year, month)
    return click(next((e for e in screen.all() if e.text == ("next month" if is_later else "previous month")), None))


def typed_date(screen: Screen) -> Action | None:
    """enter-date: a browser date field takes digits segment by segment and shows ISO."""
    wanted = screen.match(r"Enter (\d\d)/(\d\d)/(\d{4}) as the date")
    field = screen.first("input")
    if not wanted or field is None:
        return None
    month, day, year = wanted
    return _by_segments(screen, field, f"{year}-{month}-{day}", f"{month}{day}{year}")


def typed_time(screen: Screen) -> Action | None:
    wanted = screen.match(r"Enter (\d+):(\d\d)\s?(AM|PM) as the time")
    field = screen.first("input")
    if not wanted or field is None:
        return None
    hour, minute, half = int(wanted[0]), wanted[1], wanted[2]
    value = f"{hour % 12 + (12 if half == 'PM' else 0):02d}:{minute}"
    return _by_segments(screen, field, value, f"{hour:02d}{minute}{half}")


def _by_segments(screen: Screen, field: Element, value: str, keys: str) -> Action | None:
    if field.text == value:
        return click(submit_button(screen))
    # A click on the left end focuses the first segment; typing overwrites whatever is in them.
    left = Click(x=field.x_px - field.width_px // 2 + 10, y=field.y_px)
    return TypeText(text=keys) if "focused" in field.states and screen.last == left else left


def highlight(screen: Screen) -> Action | None:
    """highlight-text, highlight-text-2: a triple click marks a paragraph."""
    position = screen.match(r"(\d)\w\w paragraph")
    paragraphs = screen.all("text")
    index = int(position[0]) - 1 if position else 0
    if index >= len(paragraphs):
        return None
    mark = Click(x=paragraphs[index].x_px, y=paragraphs[index].y_px, count=3)
    return click(submit_button(screen)) if screen.last == mark else mark


def scroll_list(screen: Screen) -> Action | None:
    """click-scroll-list: one entry is clicked, a second one with Ctrl held down."""
    wanted = screen.match(r"Select (.+) from the scroll list")
    if not wanted:
        return None
    names = wanted[0].split(", ")
    items = screen.all("item")
    is_ctrl_down = _is_held(screen, "ctrl")
    chosen = [e for e in items if "selected" in e.states]
    is_first = not any(isinstance(a, Click) for a in screen.history)
    for item in items:
        if item.text in names and item not in chosen:
            return click(item) if is_ctrl_down or is_first else KeyDown(key="ctrl")
    return scroll_list_end(screen, items, is_ctrl_down, names)


def scroll_list_end(screen: Screen, items: list[Element], is_ctrl_down: bool, names: list[str]) -> Action | None:
    """Everything that shows is chosen: look further down, or submit."""
    num_clicks = sum(isinstance(a, Click) for a in screen.history)
    if num_clicks < len(names):
        return scroll_down(screen, items[0].x_px, items[0].y_px, limit=4) if items else None
    return KeyUp(key="ctrl") if is_ctrl_down else click(submit_button(screen))


def _is_held(screen: Screen, key: str) -> bool:
    moves = [a for a in screen.history if isinstance(a, KeyDown | KeyUp) and a.key == key]
    return bool(moves) and isinstance(moves[-1], KeyDown)
