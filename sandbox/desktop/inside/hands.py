"""Pointer and keyboard: plays input events through the XTEST extension, so that programs cannot tell them from a person's.

Events are lists: ["move", x, y], ["button", number, is_down], ["key", keysym, is_down], ["pause", ms]. A character that the keyboard map
lacks is put on a spare key first, as input methods for X do.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from Xlib import XK, X, display
from Xlib.ext import xtest  # noqa: F401  registers Display.xtest_fake_input

REMAP_PAUSE_S = 0.15
"""Before a spare key is given another character: programs ask for the map when they come to the key's event, not when it was sent."""


class Hands:
    """Holds what is pressed until it is let go."""

    def __init__(self) -> None:
        self._display = display.Display()
        self._shift = self._display.keysym_to_keycode(XK.XK_Shift_L)
        self._codes: dict[int, tuple[int, bool]] = {}
        self._spare: OrderedDict[int, int | None] = OrderedDict()
        self._down: dict[int, int] = {}
        self._read_map()
        # A key held down would repeat by the clock, and how often would depend on the machine.
        self._display.change_keyboard_control(auto_repeat_mode=X.AutoRepeatModeOff)
        self.play([["move", 1, 1]])

    def _read_map(self) -> None:
        lowest = self._display.display.info.min_keycode
        highest = self._display.display.info.max_keycode
        for code, keysyms in enumerate(self._display.get_keyboard_mapping(lowest, highest - lowest + 1), start=lowest):
            if not any(keysyms):
                self._spare[code] = None
            for level, keysym in enumerate(keysyms[:2]):
                if keysym:
                    self._codes.setdefault(keysym, (code, level == 1))

    def play(self, events: list[list[Any]]) -> None:
        for kind, *values in events:
            if kind == "move":
                self._display.xtest_fake_input(X.MotionNotify, x=values[0], y=values[1])
            elif kind == "button":
                self._display.xtest_fake_input(X.ButtonPress if values[1] else X.ButtonRelease, values[0])
            elif kind == "key":
                self._key(values[0], values[1])
            elif kind == "pause":
                self._display.sync()
                time.sleep(values[0] / 1000)
        self._display.sync()

    def _key(self, keysym: int, is_down: bool) -> None:
        if not is_down:
            if (code := self._down.pop(keysym, None)) is not None:
                self._display.xtest_fake_input(X.KeyRelease, code)
            return
        code, needs_shift = self._codes.get(keysym) or self._borrow(keysym)
        needs_shift = needs_shift and self._shift not in self._down.values()
        if needs_shift:
            self._display.xtest_fake_input(X.KeyPress, self._shift)
        self._display.xtest_fake_input(X.KeyPress, code)
        if needs_shift:
            self._display.xtest_fake_input(X.KeyRelease, self._shift)
        self._down[keysym] = code

    def _borrow(self, keysym: int) -> tuple[int, bool]:
        """A spare key, free or the one borrowed longest ago, that now types this character."""
        code, before = self._spare.popitem(last=False)
        if before is not None:
            self._display.sync()
            time.sleep(REMAP_PAUSE_S)
            self._codes.pop(before, None)
        self._spare[code] = keysym
        self._codes[keysym] = (code, False)
        self._display.change_keyboard_mapping(code, [[keysym] * 2])
        self._display.sync()
        return code, False
