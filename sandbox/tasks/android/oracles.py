"""How the tasks of tasks.yaml are solved: from what is on the screen to the next action. One function a kind of task, without memory, so
that it finds its way from wherever the device is; where a screen is of no use it goes back.

Written for AOSP's words on the screen and tried on a simulated device only (tests/sandbox/android_device).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sandbox import actions
from sandbox.actions import Action
from sandbox.android.instance import AndroidStepContext
from sandbox.session import Element

Words = Mapping[str, str]
"""The instance's own words: name1, phone1 …, those of its row of choices, and `turns`: "on" or "off"."""

Oracle = Callable[[AndroidStepContext, Words, Sequence[str]], Action | None]

BACK = actions.PressBack()


def follow_route(context: AndroidStepContext, words: Words, route: Sequence[str]) -> Action | None:
    """Tap what lies deepest on the route; but what is switched as it should be already is left alone."""
    if context.is_solved:
        return actions.Finished()
    for target in route:
        found = _touchable(context, target)
        if found is not None and not _is_as_wanted(found, words["turns"]):
            return _tap(found)
    return BACK


def _is_as_wanted(element: Element, turns: str) -> bool:
    return element.role in ("checkbox", "radio") and ("checked" in element.states) == (turns == "on")


def add_contact(context: AndroidStepContext, words: Words, route: Sequence[str]) -> Action | None:
    if context.is_solved:
        return actions.Finished()
    save, inputs = _touchable(context, "Save"), [element for element in context.observation.elements if element.role == "input"]
    if save is None or len(inputs) < 2:
        return _into(context, ["Create contact", "Contacts"])
    for field, (hint, wanted) in zip(inputs, (("Name", words["name1"]), ("Phone", words["phone1"])), strict=False):
        if field.text == wanted:
            continue
        if "focused" not in field.states:
            return _tap(field)
        return actions.TypeText(text=wanted) if field.text == hint else actions.Hotkey(keys=("ctrl", "a"))
    return _tap(save)


def delete_contact(context: AndroidStepContext, words: Words, route: Sequence[str]) -> Action | None:
    if context.is_solved:
        return actions.Finished()
    everyone = {words[f"name{number}"] for number in range(1, 5)}
    shown = [element.text for element in context.observation.elements if element.text in everyone]
    if _touchable(context, "Create contact") is None and shown and words["name1"] not in shown:
        return BACK  # somebody else's page
    return _into(context, ["Delete", "More options", words["name1"], "Contacts"])


def find_number(context: AndroidStepContext, words: Words, route: Sequence[str]) -> Action | None:
    if any(element.text == words["phone1"] for element in context.observation.elements):
        return actions.Finished(answer=words["phone1"])
    return _into(context, [words["name1"], "Contacts"])


ORACLES: Mapping[str, Oracle] = {
    "route": follow_route,
    "add-contact": add_contact,
    "delete-contact": delete_contact,
    "find-number": find_number,
}


def _into(context: AndroidStepContext, route: Sequence[str]) -> Action:
    found = next((element for target in route if (element := _touchable(context, target)) is not None), None)
    return BACK if found is None else _tap(found)


def _touchable(context: AndroidStepContext, text: str) -> Element | None:
    """What can be touched and begins with a text: a row's title comes before its summary."""
    return next(
        (
            element
            for element in context.observation.elements
            if element.role != "text" and (element.text == text or element.text.startswith(f"{text}, "))
        ),
        None,
    )


def _tap(element: Element) -> Action:
    return actions.Click(x=element.x_px, y=element.y_px)
