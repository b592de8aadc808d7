"""Oracles of tasks that are solved by pointing: click one thing, click in order, tick options, open sections, tabs and menus."""

from __future__ import annotations

from sandbox.actions import Action, Click
from sandbox.miniwob.oracle_screen import Screen, click, hits
from sandbox.session import Element


def only_button(screen: Screen) -> Action | None:
    return click(screen.first("button"))


def button_one(screen: Screen) -> Action | None:
    return click(screen.first("button", text="ONE"))


def quoted_button(screen: Screen) -> Action | None:
    return click(screen.first("button", text=screen.quoted[0]))


def quoted_link(screen: Screen) -> Action | None:
    return click(screen.first("link", text=screen.quoted[0]))


def close_dialog(screen: Screen) -> Action | None:
    return click(screen.first("button", text="x"))


def named_tab(screen: Screen) -> Action | None:
    named = screen.match(r"(Tab #\d)")
    return click(screen.first("tab", text=named[0])) if named else None


def only_field(screen: Screen) -> Action | None:
    return click(screen.first("input"))


def nth_field(screen: Screen) -> Action | None:
    position = screen.match(r"(\d)(?:st|nd|rd)")
    fields = screen.all("input")
    return click(fields[int(position[0]) - 1]) if position and len(fields) >= int(position[0]) else None


def widget(screen: Screen) -> Action | None:
    """click-widget calls a one-line field "text"."""
    return click(screen.first({"text": "input"}.get(screen.quoted[0], screen.quoted[0])))


def radio_option(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.+) and click Submit")
    option = screen.first("radio", text=named[0]) if named else None
    if option is None:
        return None
    return click(screen.first("button", text="Submit")) if "checked" in option.states else click(option)


def tick_boxes(screen: Screen, wanted: list[str]) -> Action | None:
    """Untick what is wrong first, then tick in the order of `wanted`, then submit."""
    boxes = screen.all("checkbox")
    for box in boxes:
        if "checked" in box.states and box.text not in wanted:
            return click(box)
    for text in wanted:
        box = next((b for b in boxes if b.text == text), None)
        if box is not None and "checked" not in box.states:
            return click(box)
    return click(screen.first("button", text="Submit"))


def checkboxes(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.*) and click Submit")
    return tick_boxes(screen, named[0].split(", ")) if named else None


def button_sequence(screen: Screen) -> Action | None:
    """Each button counts once and the second ends the episode: after a wrong first there is no way back."""
    one, two = screen.first("button", text="ONE"), screen.first("button", text="TWO")
    pushed = [name for action in screen.history if (name := _pushed(action, one, two))]
    if not pushed:
        return click(one)
    return click(two) if pushed == ["ONE"] else None


def _pushed(action: Action, one: Element | None, two: Element | None) -> str | None:
    # TWO is drawn over ONE, so a point on both is a push of TWO. A covered button's box is around where it can be hit.
    if two is not None and hits(action, two):
        return "TWO"
    return "ONE" if one is not None and isinstance(action, Click) and hits(action, one) else None


def expand_and_submit(screen: Screen) -> Action | None:
    header = screen.first("header")
    if header is None:
        return None
    return click(screen.first("button", text="Submit")) if "expanded" in header.states else click(header)
