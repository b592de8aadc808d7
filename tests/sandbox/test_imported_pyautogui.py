"""PyAutoGUI code as typed actions: what is understood, what is refused, and that nothing of it is ever carried out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.actions import CallUser, Click, Drag, Finished, Hotkey, KeyDown, MouseDown, MoveTo, Scroll, TypeText, Wait
from sandbox.importing.pyautogui_calls import BadCode, Hand
from sandbox.importing.pyautogui_code import parse_code

SIZE = (1000, 500)


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("pyautogui.click(x=0.25, y=0.5)", (Click(x=250, y=250),)),
        ("pyautogui.click(x=1.0, y=1.0)", (Click(x=999, y=499),)),
        ("pyautogui.click(30, 40, clicks=2, button='right')", (Click(x=30, y=40, button="right", count=2),)),
        ("import pyautogui\npyautogui.moveTo(10, 20)\npyautogui.click()", (Click(x=10, y=20),)),
        ("pyautogui.moveTo(0.1, 0.2); pyautogui.dragTo(0.3, 0.4, duration=1)", (Drag(x=100, y=100, to_x=300, to_y=200),)),
        ("pyautogui.moveTo(0.1, 0.2); pyautogui.drag(100, -50)", (Drag(x=100, y=100, to_x=200, to_y=50),)),
        ("pyautogui.moveTo(7, 8)", (MoveTo(x=7, y=8),)),
        ("pyautogui.tripleClick(5, 6)", (Click(x=5, y=6, count=3),)),
        ("computer.triple_click(x=0.5, y=0.5)", (Click(x=500, y=250, count=3),)),
        ("pyautogui.mouseDown(1, 2)", (MouseDown(x=1, y=2),)),
        ("pyautogui.scroll(-5, x=10, y=20)", (Scroll(direction="down", x=10, y=20),)),
        ("pyautogui.hscroll(3)", (Scroll(direction="right"),)),
        ("pyautogui.write('it\\'s\\n', interval=0.1)", (TypeText(text="it's\n"),)),
        ("pyautogui.typewrite(['a', 'Return'])", (Hotkey(keys=("a",)), Hotkey(keys=("enter",)))),
        ("pyautogui.press('pgdn', presses=2)", (Hotkey(keys=("pagedown",)), Hotkey(keys=("pagedown",)))),
        ("pyautogui.hotkey('ctrl', 'shift', 'T')", (Hotkey(keys=("ctrl", "shift", "T")),)),
        ("pyautogui.hotkey(['command', 'c'])", (Hotkey(keys=("meta", "c")),)),
        ("pyautogui.keyDown('shift')", (KeyDown(key="shift"),)),
        ("time.sleep(2)", (Wait(seconds=2.0),)),
        ("```python\npyautogui.press('esc')\n```", (Hotkey(keys=("escape",)),)),
        ("computer.terminate(status='success', answer='4')", (Finished(answer="4"),)),
        ("computer.terminate(status='failure')", (CallUser(),)),
        ("DONE", (Finished(),)),
        ("WAIT", (Wait(),)),
    ],
)
def test_code_becomes_typed_actions(code: str, actions: tuple[object, ...]) -> None:
    assert parse_code(code, SIZE).actions == actions


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("__import__('os').system('touch {}')", "not a name"),
        ("open('{}', 'w')", "not one of the functions"),
        ("pyautogui.click(x=open('{}', 'w'))", "not a constant"),
        ("pyautogui.write(f'{open(1)}')", "not a constant"),
        ("[open('{}', 'w') for _ in (1,)]", "is not a call"),
        ("for _ in range(3): pyautogui.press('a')", "a for and no call"),
        ("pyautogui.__class__('a')", "not one of the functions"),
        ("pyautogui.click(**{'x': 1, 'y': 2})", "dictionary"),
        ("pyautogui.click(", "not Python"),
        ("pyautogui.click()", "names no point"),
        ("pyautogui.click(2000, 10)", "outside the screen of 1000x500"),
        ("pyautogui.hotkey('a', 'b', 'c', 'd')", "4 keys"),
        ("pyautogui.press('a', presses=10**9)", "not a constant"),
        ("pyautogui.press('a', presses=1000000)", "presses"),
        ("import os", "does nothing"),
        ("(" * 5000, "not Python"),
        ("x" * 200_000, "at most"),
    ],
)
def test_what_is_no_such_code_is_refused_and_nothing_happens(code: str, why: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(BadCode, match=why):
        parse_code(code.replace("{}", str(target)), SIZE)
    assert not target.exists()


def test_the_pointer_is_followed_from_step_to_step_and_what_is_lost_is_reported() -> None:
    hand = Hand()
    assert parse_code("pyautogui.moveTo(0.5, 0.5, duration=0.5)", SIZE, hand).lost == ("duration",)
    parsed = parse_code("pyautogui.scroll(10)", SIZE, hand)
    assert parsed.actions == (Scroll(direction="up", x=500, y=250),) and parsed.lost == ("scroll amount",)
