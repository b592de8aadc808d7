"""Windows by what the window manager says of them (Extended Window Manager Hints, EWMH 1.5), and changes asked of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from Xlib import X, display, error
from Xlib.protocol import event

_SOURCE_PAGER = 2
_CHANGES = {"maximise": 1, "restore": 0}
_HIDDEN_TYPES = ("_NET_WM_WINDOW_TYPE_DESKTOP", "_NET_WM_WINDOW_TYPE_DOCK")


@dataclass(frozen=True)
class FoundWindow:
    """One window; `frame` is the width of its frame's left, right, top and bottom edge in pixels."""

    window_id: int
    pid: int
    title: str
    window_class: str
    x_px: int
    y_px: int
    width_px: int
    height_px: int
    frame: tuple[int, int, int, int]
    is_focused: bool
    is_minimised: bool
    is_maximised: bool

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("pid", "frame")}


class Windows:
    def __init__(self) -> None:
        self._display = display.Display()
        self._display.set_error_handler(lambda *_: None)  # a window may go while it is asked something
        self._root = self._display.screen().root
        self._atoms: dict[str, int] = {}

    def close(self) -> None:
        self._display.close()

    def _atom(self, name: str) -> int:
        if name not in self._atoms:
            self._atoms[name] = self._display.intern_atom(name)
        return self._atoms[name]

    def _values(self, window: Any, name: str) -> list[int]:
        found = window.get_full_property(self._atom(name), X.AnyPropertyType)
        return [] if found is None else list(found.value)

    def _text(self, window: Any, *names: str) -> str:
        for name in names:
            found = window.get_full_property(self._atom(name), X.AnyPropertyType)
            if found is not None:
                value = found.value
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return ""

    def server(self) -> str:
        """Who made the X server, and its release number, e.g. 12101007 for 21.1.7."""
        info = self._display.display.info
        return f"{info.vendor} {info.release_number}"

    def has_manager(self) -> bool:
        return bool(self._values(self._root, "_NET_SUPPORTING_WM_CHECK"))

    def all(self) -> list[FoundWindow]:
        """From the top one down."""
        active = (self._values(self._root, "_NET_ACTIVE_WINDOW") or [0])[0]
        found = [self._look(window_id, active) for window_id in reversed(self._values(self._root, "_NET_CLIENT_LIST_STACKING"))]
        return [window for window in found if window is not None]

    def _look(self, window_id: int, active: int) -> FoundWindow | None:
        window = self._display.create_resource_object("window", window_id)
        try:
            box = window.get_geometry()
            corner = self._root.translate_coords(window, 0, 0)
            types = self._values(window, "_NET_WM_WINDOW_TYPE")
            if any(self._atom(name) in types for name in _HIDDEN_TYPES):
                return None
            states = self._values(window, "_NET_WM_STATE")
            left, right, top, bottom = (self._values(window, "_NET_FRAME_EXTENTS") + [0] * 4)[:4]
            return FoundWindow(
                window_id=window_id,
                pid=(self._values(window, "_NET_WM_PID") or [0])[0],
                title=self._text(window, "_NET_WM_NAME", "WM_NAME"),
                window_class=(window.get_wm_class() or ("", ""))[1],
                x_px=corner.x,
                y_px=corner.y,
                width_px=box.width,
                height_px=box.height,
                frame=(left, right, top, bottom),
                is_focused=window_id == active,
                is_minimised=self._atom("_NET_WM_STATE_HIDDEN") in states,
                is_maximised=self._atom("_NET_WM_STATE_MAXIMIZED_VERT") in states and self._atom("_NET_WM_STATE_MAXIMIZED_HORZ") in states,
            )
        except (error.XError, AttributeError):
            return None  # it closed while we looked

    def change(self, window_id: int, change: str) -> None:
        if change == "activate":
            self._ask(window_id, "_NET_ACTIVE_WINDOW", [_SOURCE_PAGER, X.CurrentTime, 0])
        elif change == "close":
            self._ask(window_id, "_NET_CLOSE_WINDOW", [X.CurrentTime, _SOURCE_PAGER])
        elif change == "minimise":
            self._ask(window_id, "WM_CHANGE_STATE", [3])
        elif change in _CHANGES:
            both = [self._atom("_NET_WM_STATE_MAXIMIZED_VERT"), self._atom("_NET_WM_STATE_MAXIMIZED_HORZ")]
            self._ask(window_id, "_NET_WM_STATE", [_CHANGES[change], *both, _SOURCE_PAGER])
        else:
            raise ValueError(f"unknown change {change!r}")

    def place(self, window_id: int, box: list[int | None]) -> None:
        """x, y, width, height of the contents; what is None stays."""
        static_gravity = 10
        flags = static_gravity | _SOURCE_PAGER << 12
        for bit, value in enumerate(box):
            flags |= (value is not None) << (8 + bit)
        self._ask(window_id, "_NET_MOVERESIZE_WINDOW", [flags, *(value or 0 for value in box)])

    def _ask(self, window_id: int, message: str, values: list[int]) -> None:
        window = self._display.create_resource_object("window", window_id)
        data = (32, (values + [0] * 5)[:5])
        asked = event.ClientMessage(window=window, client_type=self._atom(message), data=data)
        self._root.send_event(asked, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self._display.sync()
