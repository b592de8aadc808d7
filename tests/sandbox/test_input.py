"""Actions as gestures and gestures as commands; that they reach pages is shown by test_sessions.py."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.input import CdpInput, Insert, KeyStroke, Pause, PointerDown, PointerMove, PointerUp, Refusal, find_key, gestures

AREA = (160, 210)


@pytest.mark.parametrize("character", string.printable.strip() + " \n\t")
def test_every_printable_character_has_a_key(character: str) -> None:
    key = find_key(character)
    assert key is not None and (key.text == character or character in "\n\t")


@pytest.mark.parametrize("name", ["ctrl", "Control", "RETURN", "esc", "page_down", "pgdn", "arrowleft", "left", "F5", "super", "plus"])
def test_the_names_that_agents_write(name: str) -> None:
    assert find_key(name) is not None


@given(st.text(max_size=40))
def test_typing_covers_the_text_in_order(text: str) -> None:
    phases = gestures(actions.TypeText(text=text), AREA)
    assert not isinstance(phases, Refusal)
    typed = ""
    for phase in phases:
        assert not isinstance(phase, Pause)
        for gesture in phase:
            if isinstance(gesture, Insert):
                typed += gesture.text
            elif isinstance(gesture, KeyStroke) and gesture.is_down:
                typed += gesture.name
    assert typed == text.replace("\r\n", "\n").replace("\r", "\n")


@given(st.integers(-300, 600), st.integers(-300, 600))
def test_points_outside_are_refused(x: int, y: int) -> None:
    for action in (actions.Click(x=x, y=y), actions.Drag(x=5, y=5, to_x=x, to_y=y), actions.Scroll(direction="up", x=x, y=y)):
        assert isinstance(gestures(action, AREA), Refusal) == (not (0 <= x < 160 and 0 <= y < 210))


def test_a_drag_moves_on_the_way() -> None:
    phases = gestures(actions.Drag(x=10, y=10, to_x=50, to_y=30), AREA)
    assert not isinstance(phases, Refusal)
    assert phases[0] == (PointerMove(x=10, y=10), PointerDown(button="left"))
    assert phases[1:-1] == ((PointerMove(x=20, y=15),), (PointerMove(x=30, y=20),), (PointerMove(x=40, y=25),), (PointerMove(x=50, y=30),))
    assert phases[-1] == (PointerUp(button="left"),)


@pytest.mark.parametrize("action", [actions.OpenApp(name="mail"), actions.PressBack(), actions.ToolCall(name="ls"), actions.NavigateBack()])
def test_what_a_page_has_no_gesture_for(action: Action) -> None:
    assert isinstance(gestures(action, AREA), Refusal)


def test_what_is_held_shows_in_every_event_and_is_let_go() -> None:
    hand = CdpInput()
    for gesture in (KeyStroke(name="ctrl", is_down=True), PointerMove(x=3, y=4), PointerDown(button="right")):
        (command,) = hand.commands(gesture)
    assert command[1] == {"type": "mousePressed", "x": 3, "y": 4, "buttons": 2, "modifiers": 2, "button": "right", "clickCount": 1}
    kinds = [params["type"] for _, params in hand.rest(159, 209)]
    assert kinds == ["mouseReleased", "keyUp", "mouseMoved"]
    assert [params["type"] for _, params in hand.rest(159, 209)] == ["mouseMoved"]


def test_with_control_held_no_text_is_typed() -> None:
    hand = CdpInput()
    list(hand.commands(KeyStroke(name="ctrl", is_down=True)))
    ((_, params),) = hand.commands(KeyStroke(name="a", is_down=True))
    assert params["type"] == "rawKeyDown" and "text" not in params
