"""Events become actions: text with backspaces resolved, clicks, drags, scrolls, hotkeys; and what the two input sources make of keys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from annotation.recorder.input.events import Event, Key, Press, Wheel
from annotation.recorder.input.gestures import Draft, Gestures
from annotation.recorder.input.keysyms import LOCK, SHIFT, Composer, choose, name_of
from annotation.recorder.input.pynput_input import key_of, press_of, wheels_of
from sandbox.actions import Click, Drag, Hotkey, KeyDown, KeyUp, MouseDown, MouseUp, Scroll, TypeText

NAMES = {"\n": "enter", "<": "backspace", "\t": "tab", " ": "space"}


class Hand:
    """Writes events one after the other, a tenth of a second apart."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.events: list[Event] = []

    def keys(self, text: str) -> Hand:
        for character in text:
            name = NAMES.get(character, character.lower())
            typed = character if character == " " or character not in NAMES else ""
            self.down(name, typed).up(name)
        return self

    def down(self, name: str, text: str = "") -> Hand:
        return self._add(Key(time_s=self.now_s, name=name, is_down=True, text=text))

    def up(self, name: str) -> Hand:
        return self._add(Key(time_s=self.now_s, name=name, is_down=False))

    def hotkey(self, *names: str) -> Hand:
        for name in names:
            self.down(name, name if len(name) == 1 else "")
        for name in reversed(names):
            self.up(name)
        return self

    def press(self, x: int, y: int, to: tuple[int, int] | None = None, button: str = "left") -> Hand:
        to_x, to_y = to or (x, y)
        self._add(Press(time_s=self.now_s, button=button, is_down=True, x=x, y=y))
        return self._add(Press(time_s=self.now_s, button=button, is_down=False, x=to_x, y=to_y))

    def notches(self, count: int, dy: int = 1) -> Hand:
        for _ in range(count):
            self._add(Wheel(time_s=self.now_s, dx=0, dy=dy, x=5, y=6))
        return self

    def rest(self, seconds: float) -> Hand:
        self.now_s += seconds
        return self

    def _add(self, event: Event) -> Hand:
        self.events.append(event)
        self.now_s += 0.1
        return self


def drafts_of(hand: Hand) -> list[Draft[int]]:
    gestures: Gestures[int] = Gestures()
    found = [draft for number, event in enumerate(hand.events) for draft in gestures.feed(event, number)]
    return [*found, *gestures.flush()]


def actions_of(hand: Hand) -> list[object]:
    return [draft.action for draft in drafts_of(hand)]


@pytest.mark.parametrize(
    ("hand", "actions"),
    [
        (Hand().keys("Hello wrold<<<<orld"), [TypeText(text="Hello world")]),
        (Hand().keys("one\ntwo\n"), [TypeText(text="one\n"), TypeText(text="two\n")]),
        (Hand().keys("ab<<"), []),
        (Hand().keys("a<<"), [Hotkey(keys=("backspace",))]),
        (Hand().keys("\n"), [Hotkey(keys=("enter",))]),
        (Hand().keys("name\tcity"), [TypeText(text="name"), Hotkey(keys=("tab",)), TypeText(text="city")]),
        (Hand().keys("ab").rest(3).keys("cd"), [TypeText(text="ab"), TypeText(text="cd")]),
        (Hand().hotkey("ctrl", "s"), [Hotkey(keys=("ctrl", "s"))]),
        (Hand().hotkey("ctrl", "shift", "t"), [Hotkey(keys=("ctrl", "shift", "t"))]),
        (Hand().hotkey("shift", "ctrl", "alt", "x"), [KeyDown(key="ctrl"), Hotkey(keys=("alt", "shift", "x")), KeyUp(key="ctrl")]),
        (Hand().hotkey("meta"), [Hotkey(keys=("meta",))]),
        (Hand().hotkey("ctrl"), []),
        (Hand().down("shift").keys("A").up("shift").keys("b"), [TypeText(text="Ab")]),
        (Hand().hotkey("shift", "arrowleft"), [Hotkey(keys=("shift", "arrowleft"))]),
        (Hand().press(3, 4), [Click(x=3, y=4)]),
        (Hand().press(3, 4, button="right"), [Click(x=3, y=4, button="right")]),
        (Hand().press(3, 4).press(4, 4), [Click(x=3, y=4, count=2)]),
        (Hand().press(3, 4).press(3, 4).press(3, 4), [Click(x=3, y=4, count=3)]),
        (Hand().press(3, 4).rest(1).press(3, 4), [Click(x=3, y=4), Click(x=3, y=4)]),
        (Hand().press(3, 4).press(40, 4), [Click(x=3, y=4), Click(x=40, y=4)]),
        (Hand().press(3, 4, to=(6, 5)), [Click(x=3, y=4)]),
        (Hand().press(3, 4, to=(90, 80)), [Drag(x=3, y=4, to_x=90, to_y=80)]),
        (Hand().press(3, 4, to=(90, 80), button="right"), [MouseDown(x=3, y=4, button="right"), MouseUp(x=90, y=80, button="right")]),
        (Hand().down("ctrl").press(3, 4).up("ctrl"), [KeyDown(key="ctrl"), Click(x=3, y=4), KeyUp(key="ctrl")]),
        (Hand().notches(3), [Scroll(direction="down", x=5, y=6)]),
        (Hand().notches(1, dy=-1), [Scroll(direction="up", x=5, y=6)]),
        (Hand().notches(7), [Scroll(direction="down", x=5, y=6)] * 2),
        (Hand().notches(2).rest(2).notches(2), [Scroll(direction="down", x=5, y=6)] * 2),
        (Hand().keys("ab").press(3, 4).keys("c"), [TypeText(text="ab"), Click(x=3, y=4), TypeText(text="c")]),
    ],
)
def test_what_hands_do_becomes_actions(hand: Hand, actions: list[object]):
    assert actions_of(hand) == actions


def test_a_draft_keeps_what_came_with_its_first_and_its_last_event():
    first, second = drafts_of(Hand().keys("ab").press(3, 4))
    assert (first.before, first.latest) == (0, 2), "the keys that went down"
    assert (second.before, second.latest, second.points) == (4, 5, ((3, 4),))
    assert (first.start_s, first.end_s) == pytest.approx((100.0, 100.2))


def test_drafts_come_out_when_time_has_shown_that_they_are_over():
    gestures: Gestures[int] = Gestures()
    hand = Hand().press(3, 4)
    assert [draft for event in hand.events for draft in gestures.feed(event)] == []
    assert gestures.tick(hand.now_s) == []
    assert [draft.action for draft in gestures.tick(hand.now_s + 1)] == [Click(x=3, y=4)]


def test_a_button_that_went_down_before_we_listened_does_nothing():
    assert actions_of(Hand()) == []
    gestures: Gestures[int] = Gestures()
    assert gestures.feed(Press(time_s=1.0, button="left", is_down=False, x=1, y=1)) == [] and gestures.flush() == []


def test_keysyms_follow_the_layout():
    german = [ord("z"), ord("Z"), 0, 0, 0, 0]
    assert [chr(choose(german, state)) for state in (0, SHIFT, LOCK, SHIFT | LOCK)] == ["z", "Z", "Z", "z"]
    assert chr(choose([ord("q"), ord("Q"), 0, 0, ord("@"), 0], 128)) == "@", "AltGr"
    cyrillic_group = [ord("a"), ord("A"), 0x06C6, 0x06E6]
    assert choose(cyrillic_group, 1 << 13) == 0x06C6
    keypad = [0xFF95, 0xFFB7]
    assert (name_of(choose(keypad, 0)), name_of(choose(keypad, 16))) == ("home", "7")
    assert name_of(0xFF0D) == "enter" and name_of(ord("A")) == "a" and name_of(0x20) == "space"


def test_dead_keys_put_their_accent_on_the_next_letter():
    composer = Composer()
    assert [composer.text(keysym) for keysym in (0xFE51, ord("e"), ord("e"))] == ["", "é", "e"]
    assert [composer.text(keysym) for keysym in (0xFE52, 0x20)] == ["", "^"]


def test_what_pynput_says_means_the_same():
    def reported(**attributes: object) -> tuple[str, str] | None:
        key = key_of(SimpleNamespace(**attributes), is_down=True, time_s=1.0)
        return (key.name, key.text) if key else None

    assert reported(name="cmd") == ("meta", "") and reported(name="page_down") == ("pagedown", "") and reported(name="media_next") is None
    assert reported(char="A", vk=65) == ("a", "A") and reported(name="space") == ("space", " ")
    assert reported(char="\x03", vk=67) == ("c", "c"), "Ctrl+C on Windows"
    assert reported(char=None, vk=0x31) == ("1", "1") and reported(char=None, vk=255) is None
    press = press_of(3.4, 4.6, SimpleNamespace(name="right"), is_down=True, time_s=1.0)
    assert press == Press(time_s=1.0, button="right", is_down=True, x=3, y=5)
    assert press_of(0, 0, SimpleNamespace(name="x1"), is_down=True, time_s=1.0) is None
    assert [(wheel.dx, wheel.dy) for wheel in wheels_of(0, 0, 0, -2, time_s=1.0)] == [(0, 1), (0, 1)], "pynput's down is negative"
