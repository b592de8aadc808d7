"""Oracles of tasks that are solved by filling in: typing, choosing from lists and menus, several fields."""

from __future__ import annotations

import re

from sandbox.actions import Action, Click, Hotkey, Scroll, SelectOption, TypeText
from sandbox.session import Element
from sandbox.tasks.miniwob.oracle_screen import Screen, click, fill, fill_all, press


def submit_button(screen: Screen) -> Element | None:
    return screen.first("button", text="Submit")


def quoted_text(screen: Screen) -> Action | None:
    return fill_all(screen, [(screen.first("input"), screen.quote())], submit_button(screen))


def login(screen: Screen) -> Action | None:
    return fill_all(screen, ((field, screen.quote(i)) for i, field in enumerate(_fields(screen, 2))), screen.first("button"))


def password_twice(screen: Screen) -> Action | None:
    return fill_all(screen, ((field, screen.quote()) for field in _fields(screen, 2)), submit_button(screen))


def _fields(screen: Screen, num: int) -> list[Element | None]:
    found: list[Element | None] = list(screen.all("input"))
    return found[:num] + [None] * (num - len(found))


def choose_from_list(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.+) from the list")
    menu = screen.first("select")
    if not named or menu is None:
        return None
    if menu.text == named[0]:
        return click(submit_button(screen))
    return SelectOption(x=menu.x_px, y=menu.y_px, option=named[0])


def read_table(screen: Screen) -> Action | None:
    named = screen.match(r"value of (.+) into the text field")
    key = screen.first("text", text=named[0]) if named else None
    value = screen.after(key, "text") if key else None
    return fill_all(screen, [(screen.first("input"), value.text)], submit_button(screen)) if value else None


def arithmetic(screen: Screen) -> Action | None:
    for element in screen.all("text"):
        if problem := re.fullmatch(r"(\d+) ([-+x]) (\d+) =", element.text):
            left, right = int(problem[1]), int(problem[3])
            answer = {"+": left + right, "-": left - right, "x": left * right}[problem[2]]
            return fill_all(screen, [(screen.first("input"), str(answer))], submit_button(screen))
    return None


def autocomplete(screen: Screen) -> Action | None:
    """Type the start, then pick the first suggestion that ends as asked. Suggestions below the page are reached by the arrow keys."""
    start, end = screen.quote(), (screen.quoted[1:] or [""])[0]
    field = screen.first("input")
    if field is None:
        return None
    is_answer = field.text.startswith(start) and field.text.endswith(end)
    suggestions = screen.all("item")
    is_browsing = isinstance(screen.last, Hotkey) and field.text != start
    if is_answer and (not suggestions or is_browsing):
        # Browsing has already put the suggestion into the field; the open menu may cover the button.
        return click(submit_button(screen)) or press("enter")
    for item in suggestions:
        if item.text.startswith(start) and item.text.endswith(end):
            return click(item)
    if suggestions and (field.text == start or is_browsing):
        return press("down")
    if field.text == start and "selected" not in field.states:
        # The menu was closed: typing the start once more opens it.
        return Click(x=field.x_px, y=field.y_px, count=3)
    return fill(screen, field, start) or TypeText(text=start)


def changed_case(screen: Screen) -> Action | None:
    text = screen.quote()
    wanted = text.upper() if "upper case" in screen.instruction else text.lower()
    return fill_all(screen, [(screen.first("input"), wanted)], submit_button(screen))


def shown_letters(screen: Screen) -> Action | None:
    """text-transform: the bent letters, one element each."""
    text = "".join(e.text for e in screen.all("text"))
    return fill_all(screen, [(screen.first("input"), text)], submit_button(screen))


def nth_word(screen: Screen) -> Action | None:
    wanted = screen.match(r"Find the (\d+)\w\w word")
    words = re.sub(r"[^a-zA-Z ]", "", " ".join(e.text for e in screen.all("text"))).split()
    if not wanted or len(words) < int(wanted[0]):
        return None
    return fill_all(screen, [(screen.first("input"), words[int(wanted[0]) - 1])], submit_button(screen))


def copy_text(screen: Screen) -> Action | None:
    """copy-paste, copy-paste-2: the named text area's whole text, typed."""
    position = screen.match(r"the (\d)\w\w text area")
    areas = screen.all("textarea")
    index = int(position[0]) - 1 if position else 0
    return fill_all(screen, [(screen.first("input"), areas[index].text)], submit_button(screen)) if index < len(areas) else None


def last_word(screen: Screen) -> Action | None:
    """scroll-text. The observation gives a text area's whole value, so scrolling is not needed."""
    area = screen.first("textarea")
    words = re.sub(r"[^a-zA-Z0-9 ]", "", area.text).split() if area else []
    return fill_all(screen, [(screen.first("input"), words[-1])], submit_button(screen)) if words else None


def algebra(screen: Screen) -> Action | None:
    problem = screen.first("text")
    found = re.fullmatch(r"(x|\d+) ([-+]) (x|\d+) = (\d+)", problem.text) if problem else None
    if found is None:
        return None
    left, sign, right, result = found.groups()
    known, total = int(right if left == "x" else left), int(result)
    answer = total - known if sign == "+" else total + known if left == "x" else known - total
    return fill_all(screen, [(screen.first("input"), str(answer))], submit_button(screen))


def count_blocks(screen: Screen) -> Action | None:
    return fill_all(screen, [(screen.first("input"), str(len(screen.all("shape"))))], submit_button(screen))


def table_into_form(screen: Screen) -> Action | None:
    """read-table-2: a label ends with a colon and stands before its field; the table gives the value behind the same word."""
    wanted = []
    for label in (e for e in screen.all("text") if e.text.endswith(":")):
        key = screen.first("text", text=label.text.removesuffix(":"))
        value = screen.after(key, "text") if key else None
        if value is not None:
            wanted.append((screen.after(label, "input"), value.text))
    return fill_all(screen, wanted, submit_button(screen))


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
    if "Click the cancel button" in screen.instruction:
        return click(screen.first("button", text="Cancel"))
    area, name = screen.first("textarea"), screen.first("input")
    if area is None or name is None:
        return None
    if "disabled" in name.states:
        return Scroll(direction="down", x=area.x_px, y=area.y_px)
    who, button = screen.quote(), screen.quote(1)
    return fill(screen, name, who, placeholder="Name") or click(screen.first("button", text=button))
