"""Oracles of tasks that are solved by filling in: typing, choosing from lists and menus, several fields."""

from __future__ import annotations

import re

from sandbox.actions import Action, Click, Hotkey, SelectOption
from sandbox.miniwob.oracle_screen import Screen, click, fill, fill_all, hits, is_filled, press
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
