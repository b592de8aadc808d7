"""Pointer and keyboard: plays input events through the XTEST extension, so that programs cannot distinguish them from a person's.

Events are lists: ["move", x, y], ["button", number, is_down], ["key", keysym, is_down], ["pause", ms]. A character that the keyboard map
lacks is put on a spare key first, as input methods for X do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from Xlib import XK, X, display
from Xlib.ext import xtest  # noqa: F401  registers Display.xtest_fake_input


class Hands:
    """Holds what is pressed until it is let go."""

    def __init__(self, let_settle: Callable[[], object]) -> None:
        """`let_settle` waits until programs have done with the input they were sent."""
        self._let_settle = let_settle
        self._display = display.Display()
        self._shift = self._display.keysym_to_keycode(XK.XK_Shift_L)
        self._first_code = self._display.display.info.min_keycode
        num_codes = self._display.display.info.max_keycode - self._first_code + 1
        self._map = [list(keysyms) for keysyms in self._display.get_keyboard_mapping(self._first_code, num_codes)]
        self._spare = [row for row, keysyms in enumerate(self._map) if not any(keysyms)]
        self._codes: dict[int, tuple[int, bool]] = {}
        """Keysyms to key codes, and whether shift is needed."""
        self._borrowed: list[int] = []
        self._down: dict[int, int] = {}
        for code, keysyms in enumerate(self._map, start=self._first_code):
            for level, keysym in enumerate(keysyms[:2]):
                if keysym:
                    self._codes.setdefault(keysym, (code, level == 1))
        # A key held down would repeat by the clock, and how often would depend on the machine.
        self._display.change_keyboard_control(auto_repeat_mode=X.AutoRepeatModeOff)
        self.play([["move", 1, 1]])

    def play(self, events: list[list[Any]]) -> None:
        for index, (kind, *values) in enumerate(events):
            if kind == "move":
                self._display.xtest_fake_input(X.MotionNotify, x=values[0], y=values[1])
            elif kind == "button":
                self._display.xtest_fake_input(X.ButtonPress if values[1] else X.ButtonRelease, values[0])
            elif kind == "key":
                if values[1] and values[0] not in self._codes:
                    self._borrow([event[1] for event in events[index:] if event[0] == "key"])
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
        if keysym not in self._codes:
            return  # the map has no spare key at all
        code, needs_shift = self._codes[keysym]
        needs_shift = needs_shift and self._shift not in self._down.values()
        if needs_shift:
            self._display.xtest_fake_input(X.KeyPress, self._shift)
        self._display.xtest_fake_input(X.KeyPress, code)
        if needs_shift:
            self._display.xtest_fake_input(X.KeyRelease, self._shift)
        self._down[keysym] = code

    def _borrow(self, keysyms: list[int]) -> None:
        """Put the first of these that the map lacks on the spare keys, all at once: every program reads the whole map after a change."""
        wanted = [keysym for keysym in dict.fromkeys(keysyms) if keysym not in self._codes or keysym in self._borrowed][: len(self._spare)]
        if not self._spare:
            return
        if self._borrowed:
            self._display.sync()
            self._let_settle()  # programs read the map when they come to a key's event, not when it was sent
        for keysym in self._borrowed:
            del self._codes[keysym]
        self._borrowed = wanted
        for row, keysym in zip(self._spare, wanted, strict=False):
            self._map[row] = [keysym] * len(self._map[row])
            self._codes[keysym] = (self._first_code + row, False)
        first, last = self._spare[0], self._spare[-1]
        self._display.change_keyboard_mapping(self._first_code + first, self._map[first : last + 1])
        self._display.sync()
