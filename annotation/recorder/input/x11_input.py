"""Input by the RECORD extension of an X server: what every keyboard and pointer of it did, without standing in their way."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from annotation.recorder.input.events import Button, Event, Key, Press, Sink, Wheel
from annotation.recorder.input.keysyms import Composer, choose, is_dead, name_of
from warehouse.core.errors import RecorderUnavailable

_BUTTONS: dict[int, Button] = {1: "left", 2: "middle", 3: "right"}
_WHEEL = {4: (0, -1), 5: (0, 1), 6: (-1, 0), 7: (1, 0)}
_WORD_MS = 1 << 32
MAX_LAG_S = 5.0
"""An X server of this machine gives the time of the monotonic clock; one whose time is farther off than this is another machine's."""


class X11Input:
    """One recording of one display (DISPLAY)."""

    name = "x11-record"

    def __init__(self) -> None:
        self._composer = Composer()
        self._sink: Sink | None = None
        self._thread: threading.Thread | None = None
        self.failure: str | None = None

    def check(self) -> None:
        _connected().close()

    def start(self, sink: Sink) -> None:
        from Xlib import X
        from Xlib.ext import record

        self._control, self._data = _connected(), _connected()
        wanted = {
            "core_requests": (0, 0),
            "core_replies": (0, 0),
            "ext_requests": (0, 0, 0, 0),
            "ext_replies": (0, 0, 0, 0),
            "delivered_events": (0, 0),
            "device_events": (X.KeyPress, X.ButtonRelease),
            "errors": (0, 0),
            "client_started": False,
            "client_died": False,
        }
        self._context = self._data.record_create_context(0, [record.AllClients], [wanted])
        self._sink = sink
        self.failure = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(ready,), name="x11-record", daemon=True)
        self._thread.start()
        if not ready.wait(10.0):
            raise RecorderUnavailable("The X server did not begin to record within 10 s.")
        if self.failure is not None:
            raise RecorderUnavailable(f"The X server does not record: {self.failure}.")

    def stop(self) -> None:
        self._sink = None
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(Exception):  # the X server may be gone
            self._control.record_disable_context(self._context)
            self._control.flush()
        thread.join(5.0)
        for connection in (self._data, self._control):
            try:
                connection.close()
            except Exception:  # it wanted to say so to a server that is gone
                connection.display.socket.close()

    def _listen(self, ready: threading.Event) -> None:
        from Xlib import X
        from Xlib.ext import record
        from Xlib.protocol import rq

        fields = rq.EventField(None)

        def take(reply: Any) -> None:
            if reply.category == record.StartOfData:
                ready.set()
            if reply.category != record.FromServer or reply.client_swapped or not reply.data or reply.data[0] < 2:
                return
            data = reply.data
            while data:
                event, data = fields.parse_binary_value(data, self._data.display, None, None)
                if event.type in (X.KeyPress, X.KeyRelease, X.ButtonPress, X.ButtonRelease):
                    self._emit(event, event.type in (X.KeyPress, X.ButtonPress), event.type in (X.KeyPress, X.KeyRelease))

        why = "the X server ended it"
        try:
            self._data.record_enable_context(self._context, take)
            self._data.record_free_context(self._context)
        except Exception as error:  # only its type is reported, since its text may hold what was typed
            why = type(error).__name__
        if self._sink is not None:  # nobody stopped it
            self.failure = why
        ready.set()

    def _emit(self, event: Any, is_down: bool, is_key: bool) -> None:
        sink = self._sink
        made = self._key(event, is_down) if is_key else self._button(event, is_down)
        if sink is not None and made is not None:
            sink(made)

    def _button(self, event: Any, is_down: bool) -> Event | None:
        when, x, y = _time_of(event.time), event.root_x, event.root_y
        if event.detail in _WHEEL:
            dx, dy = _WHEEL[event.detail]
            return Wheel(time_s=when, dx=dx, dy=dy, x=x, y=y) if is_down else None
        button = _BUTTONS.get(event.detail)
        return None if button is None else Press(time_s=when, button=button, is_down=is_down, x=x, y=y)

    def _key(self, event: Any, is_down: bool) -> Event | None:
        self._learn_mapping()
        keysyms = [self._control.keycode_to_keysym(event.detail, index) for index in range(8)]
        keysym = choose(keysyms, event.state)
        text = self._composer.text(keysym) if is_down else ""
        if is_dead(keysym):
            return None
        # What a key is called does not depend on Shift, but for what only Shift makes of it.
        name = name_of(choose(keysyms, event.state & ~1)) or name_of(keysym)
        return Key(time_s=_time_of(event.time), name=name, is_down=is_down, text=text) if name else None

    def _learn_mapping(self) -> None:
        """Keyboards change their layout while we listen."""
        from Xlib import X

        while self._control.pending_events():
            news = self._control.next_event()
            if news.type == X.MappingNotify:
                self._control.refresh_keyboard_mapping(news)


def _connected() -> Any:
    """A connection to an X server that can be listened to. Raises RecorderUnavailable."""
    from Xlib import display, error

    try:
        connection = display.Display()
    except (error.DisplayError, OSError) as failure:
        raise RecorderUnavailable(f"No X server to record: {failure}. Set DISPLAY, or log in to an X11 session.") from failure
    if not connection.has_extension("RECORD"):
        connection.close()
        raise RecorderUnavailable("This X server has no RECORD extension; XWayland has none that sees other programs: use X11.")
    return connection


def _time_of(server_ms: int) -> float:
    """An event's time by our clock. Servers of this machine count the same clock's milliseconds, modulo 2^32."""
    now_s = time.monotonic()
    lag_ms = (int(now_s * 1000) - server_ms) % _WORD_MS
    return now_s - lag_ms / 1000 if lag_ms / 1000 <= MAX_LAG_S else now_s
