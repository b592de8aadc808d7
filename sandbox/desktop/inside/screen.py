"""The pixels of the screen: PNG screenshots by mss, and waiting until they stand still."""

from __future__ import annotations

import os
import time

import mss
from mss.tools import to_png
from Xlib import display
from Xlib.ext import damage

POLL_MS = 20.0
PNG_LEVEL = 1
"""Of zlib: level 6 costs three times the time for a fifth less bytes."""


class Screen:
    """Reads the display of DISPLAY. The pointer is not drawn: where it is depends on what came before."""

    def __init__(self) -> None:
        self._grabber = mss.mss()
        self._area = self._grabber.monitors[0]
        self._own = {os.getpid(), 1}
        self._display = display.Display()
        self._display.damage_query_version()
        self._damage = self._display.screen().root.damage_create(damage.DamageReportNonEmpty)

    def png(self) -> bytes:
        shot = self._grabber.grab(self._area)
        png = to_png(shot.rgb, shot.size, level=PNG_LEVEL)
        if png is None:
            raise RuntimeError("mss returned no PNG")
        return png

    def settle(self, quiet_ms: float, limit_ms: float) -> bool:
        """Wait until for `quiet_ms` no pixel changed and no process of the box wanted the processor, or `limit_ms` have gone by (False).

        The processes are asked because on a busy machine a program may not have begun to draw what it is about to draw.
        """
        start = still_since = time.monotonic()
        self._was_drawn_on()
        before = self._grabber.grab(self._area).raw
        while True:
            time.sleep(POLL_MS / 1000)
            # Programs also draw what is there already, so where one drew the pixels are looked at; where none did, they need not be.
            now = self._grabber.grab(self._area).raw if self._was_drawn_on() else before
            moment = time.monotonic()
            if now != before or self._is_busy():
                before, still_since = now, moment
            if (moment - still_since) * 1000 >= quiet_ms:
                return True
            if (moment - start) * 1000 >= limit_ms:
                return False

    def _was_drawn_on(self) -> bool:
        """Whether anything was drawn since this was last asked."""
        was_drawn_on = False
        while self._display.pending_events():
            self._display.next_event()
            was_drawn_on = True
        if was_drawn_on:
            self._display.damage_subtract(self._damage)
            self._display.sync()
        return was_drawn_on

    def _is_busy(self) -> bool:
        """Whether any process but the box's own two runs, wants to run, or waits for a disk."""
        for entry in os.scandir("/proc"):
            if not entry.name.isdecimal() or int(entry.name) in self._own:
                continue
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    state = file.read().rpartition(b") ")[2][:1]
            except OSError:
                continue
            if state in b"RD":
                return True
        return False
