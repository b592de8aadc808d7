"""Oracles of tasks that are solved by filling in: typing, choosing from lists and menus, several fields."""

from __future__ import annotations

import re

from sandbox.actions import Action, Click, Hotkey, KeyDown, KeyUp, Scroll, SelectOption, TypeText
from sandbox.miniwob.oracle_screen import Screen, click, fill, fill_all, hits, is_filled, number, press, scroll_down
from sandbox.session import Element


def _submit(screen: Screen) -> Element | None:
    return screen.first("button", text="Submit")


def quoted_text(screen: Screen) -> Action | None:
    return fill_all(screen, [(screen.first("input"), screen.quoted[0])], _submit(screen))


def login(screen: Screen) -> Action | None:
    return fill_all(screen, zip(_fields(screen, 2), screen.quoted[:2], strict=True), screen.first("button"))


def password_twice(screen: Screen) -> Action | None:
    return fill_all(screen, ((field, screen.quoted[0]) for field in _fields(screen, 2)), _submit(screen))


def _fields(screen: Screen, num: int) -> list[Element | None]:
    found: list[Element | None] = list(screen.all("input"))
    return found[:num] + [None] * (num - len(found))


def choose_from_list(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.+) from the list")
    menu = screen.first("select")
    if not named or menu is None:
        return None
    if menu.text == named[0]:
        return click(_submit(screen))
    return SelectOption(x=menu.x_px, y=menu.y_px, option=named[0])


def read_table(screen: Screen) -> Action | None:
    named = screen.match(r"value of (.+) into the text field")
    key = screen.first("text", text=named[0]) if named else None
    value = screen.after(key, "text") if key else None
    return fill_all(screen, [(screen.first("input"), value.text)], _submit(screen)) if value else None


def arithmetic(screen: Screen) -> Action | None:
    for element in screen.all("text"):
        if problem := re.fullmatch(r"(\d+) ([-+x]) (\d+) =", element.text):
            left, right = int(problem[1]), int(problem[3])
            answer = {"+": left + right, "-": left - right, "x": left * right}[problem[2]]
            return fill_all(screen, [(screen.first("input"), str(answer))], _submit(screen))
    return None


def autocomplete(screen: Screen) -> Action | None:
    """Type the start, then pick the first suggestion that ends as asked. Suggestions below the page are reached by the arrow keys."""
    start, end = screen.quoted[0], (screen.quoted[1:] or [""])[0]
    field = screen.first("input")
    if field is None:
        return None
    is_answer = field.text.startswith(start) and field.text.endswith(end) and field.text != start
    suggestions = screen.all("item")
    if is_answer and (not suggestions or isinstance(screen.last, Hotkey)):
        # Moving through the suggestions has already put this one into the field; the open menu may cover the button.
        return click(_submit(screen)) or press("enter")
    for item in suggestions:
        if item.text.startswith(start) and item.text.endswith(end):
            return click(item)
    if suggestions and (field.text == start or isinstance(screen.last, Hotkey)):
        return press("down")
    if field.text == start and is_filled(screen, field, start) and not end:
        return click(_submit(screen))
    if field.text == start and not (isinstance(screen.last, Click) and screen.last.count == 3 and hits(screen.last, field)):
        # The menu was closed: typing the start once more opens it.
        return Click(x=field.x_px, y=field.y_px, count=3)
    return fill(screen, field, start) or press("down")


def changed_case(screen: Screen) -> Action | None:
    text = screen.quoted[0]
    return fill_all(screen, [(screen.first("input"), text.upper() if "upper case" in screen.instruction else text.lower())], _submit(screen))


def shown_letters(screen: Screen) -> Action | None:
    """text-transform: the bent letters, one element each."""
    text = "".join(e.text for e in screen.all("text"))
    return fill_all(screen, [(screen.first("input"), text)], _submit(screen))


def nth_word(screen: Screen) -> Action | None:
    wanted = screen.match(r"Find the (\d+)\w\w word")
    words = re.sub(r"[^a-zA-Z ]", "", " ".join(e.text for e in screen.all("text"))).split()
    if not wanted or len(words) < int(wanted[0]):
        return None
    return fill_all(screen, [(screen.first("input"), words[int(wanted[0]) - 1])], _submit(screen))


def copy_text(screen: Screen) -> Action | None:
    """copy-paste, copy-paste-2: the named text area's whole text, typed."""
    position = screen.match(r"the (\d)\w\w text area")
    areas = screen.all("textarea")
    index = int(position[0]) - 1 if position else 0
    return fill_all(screen, [(screen.first("input"), areas[index].text)], _submit(screen)) if index < len(areas) else None


def last_word(screen: Screen) -> Action | None:
    """scroll-text. The observation gives a text area's value whole, so that there is no need to scroll."""
    area = screen.first("textarea")
    words = re.sub(r"[^a-zA-Z0-9 ]", "", area.text).split() if area else []
    return fill_all(screen, [(screen.first("input"), words[-1])], _submit(screen)) if words else None


def algebra(screen: Screen) -> Action | None:
    problem = screen.first("text")
    found = re.fullmatch(r"(x|\d+) ([-+]) (x|\d+) = (\d+)", problem.text) if problem else None
    if found is None:
        return None
    left, sign, right, result = found.groups()
    known, total = int(right if left == "x" else left), int(result)
    answer = total - known if sign == "+" else total + known if left == "x" else known - total
    return fill_all(screen, [(screen.first("input"), str(answer))], _submit(screen))


def count_blocks(screen: Screen) -> Action | None:
    return fill_all(screen, [(screen.first("input"), str(len(screen.all("shape"))))], _submit(screen))


def table_into_form(screen: Screen) -> Action | None:
    """read-table-2: a label ends with a colon and stands before its field; the table gives the value behind the same word."""
    wanted = []
    for label in (e for e in screen.all("text") if e.text.endswith(":")):
        key = screen.first("text", text=label.text.removesuffix(":"))
        value = screen.after(key, "text") if key else None
        if value is not None:
            wanted.append((screen.after(label, "input"), value.text))
    return fill_all(screen, wanted, _submit(screen))


def movie_search(screen: Screen) -> Action | None:
    """multi-layouts, multi-orderings: three fields, in any order, each with its label before it or (one layout) behind it."""
    wanted = screen.match(r"Search for (.+) movies directed by (.+) from year (\d+)\.")
    fields, labels = screen.all("input"), [e for e in screen.all("text") if e.text != "Movie Search"]
    if not wanted or len(fields) != 3 or len(labels) != 3:
        return None
    values = {"genre": wanted[0], "director": wanted[1], "year": wanted[2], "date": wanted[2]}
    rows = [
        (field, next(value for word, value in values.items() if word in label.text.lower()))
        for field, label in zip(fields, labels, strict=True)
    ]
    button = next((e for e in screen.all("button", "item") if e.text in ("Submit", "Search", "Go!")), None)
    return fill_all(screen, rows, button)


def login_with_popup(screen: Screen) -> Action | None:
    cancel = screen.first("button", text="Cancel")
    return click(cancel) if cancel else login(screen)


def agreement(screen: Screen) -> Action | None:
    """sign-agreement: only the end of the text enables the name and the buttons."""
    if screen.match("Click the cancel button"):
        return click(screen.first("button", text="Cancel"))
    area, name = screen.first("textarea"), screen.first("input")
    if area is None or name is None:
        return None
    if "disabled" in name.states:
        return Scroll(direction="down", x=area.x_px, y=area.y_px)
    who, button = screen.quoted[:2]
    return fill(screen, name, who, placeholder="Name") or click(screen.first("button", text=button))


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
    return fill(screen, field, str(guess)) or click(_submit(screen))


def spinner(screen: Screen) -> Action | None:
    wanted = screen.match(r"Select (-?\d+) with")
    field = screen.first("input", "spinner")
    value = number(field.text) if field else None
    if not wanted or value is None:
        return None
    missing = int(wanted[0]) - value
    return click(screen.first("button", text="up" if missing > 0 else "down")) if missing else click(_submit(screen))


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
    return click(_submit(screen))


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
    return click(_submit(screen))


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
    return click(_submit(screen))


def dropdown_and_button(screen: Screen) -> Action | None:
    """form-sequence-3: a drop-down made of ordinary elements; its label shows what is chosen."""
    wanted = screen.match(r"Choose (.+) from the dropdown")
    buttons = {e.text: e for e in screen.all("button")}
    if not wanted or screen.quoted[0] not in buttons:
        return None
    entries = [e for e in screen.all("item", "text") if e.text == wanted[0]]
    opener = next((e for e in screen.all("item", "button") if e.text == "▾"), None)
    options = screen.all("item")
    is_open = sum("ft" in e.text for e in options) > 1
    if is_open:
        return click(entries[-1]) if entries else None
    return click(buttons[screen.quoted[0]]) if entries else click(opener)


MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]


def pick_date(screen: Screen) -> Action | None:
    """choose-date*: the calendar opens on the field; turn to the month, click the day."""
    wanted = screen.match(r"Select (\d\d/\d\d/\d{4}) as the date")
    field = screen.first("input")
    if not wanted or field is None:
        return None
    return calendar(screen, field, wanted[0]) or click(_submit(screen))


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
        return click(_submit(screen))
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
    return click(_submit(screen)) if screen.last == mark else mark


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
    return KeyUp(key="ctrl") if is_ctrl_down else click(_submit(screen))


def _is_held(screen: Screen, key: str) -> bool:
    moves = [a for a in screen.history if isinstance(a, KeyDown | KeyUp) and a.key == key]
    return bool(moves) and isinstance(moves[-1], KeyDown)


def book_flight(screen: Screen) -> Action | None:
    """Two airports by their codes, a date, then the cheapest or the shortest of the offers."""
    wanted = screen.match(r"Book the (\w+) one-way flight from: (.+) to: (.+) on (\S+)\.")
    if not wanted:
        return None
    how, start, goal, date = wanted
    month, day, year = date.split("/")
    fields = screen.all("input")
    if len(fields) != 3:
        return _best_flight(screen, how)
    for field, code, placeholder in ((fields[0], start, "From:"), (fields[1], goal, "To:")):
        if code in field.text and field.text != code:
            continue
        suggestion = next((e for e in screen.all("item") if code in e.text), None)
        return click(suggestion) if suggestion else fill(screen, field, code, placeholder=placeholder)
    return calendar(screen, fields[2], f"{month}/{day}/{year}") or click(screen.first("button", text="Search"))


def _best_flight(screen: Screen, how: str) -> Action | None:
    return None if not how else click(screen.first("button"))
