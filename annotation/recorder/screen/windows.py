"""Which windows there are, and which has the keyboard: by EWMH on X11, by user32 on Windows. On macOS nothing is known of them, so that
windows cannot be excluded there (parts of the screen can).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from annotation.recordings.bundle import Box
from warehouse.core.errors import RecorderUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWindow:
    """A window on the screen, with its frame in `box` and without it in `inner`. Of a menu or tooltip (`is_popup`) little is known."""

    window_id: int
    pid: int
    title: str
    application: str
    box: Box
    inner: Box
    is_active: bool
    is_popup: bool = False


class WindowReader(Protocol):
    knows_windows: bool

    def look(self) -> tuple[SeenWindow, ...]:
        """Windows that show, from the top one down."""
        ...

    def close(self) -> None: ...


class NoWindows:
    """Where the system does not report windows."""

    knows_windows = False

    def look(self) -> tuple[SeenWindow, ...]:
        return ()

    def close(self) -> None: ...


class X11Windows:
    """By what the window manager says; menus and the like, which it does not manage, by what the X server says."""

    knows_windows = True

    def __init__(self) -> None:
        from Xlib import display, error

        from sandbox.desktop.inside.windows import Windows

        try:
            self._managed = Windows()
            self._display = display.Display()
        except (error.DisplayError, OSError) as failure:
            raise RecorderUnavailable(f"No X server: {failure}. Set DISPLAY.") from failure
        self._display.set_error_handler(lambda *_: None)
        self._root = self._display.screen().root

    def look(self) -> tuple[SeenWindow, ...]:
        managed = [_seen(window) for window in self._managed.all() if not window.is_minimised]
        active = next((window for window in managed if window.is_active), None)
        popups = [popup for child in reversed(self._children()) if (popup := self._popup(child, active)) is not None]
        return (*popups, *managed)

    def _children(self) -> Sequence[Any]:
        from Xlib import error

        try:
            return list(self._root.query_tree().children)
        except error.XError:
            return []

    def _popup(self, window: Any, active: SeenWindow | None) -> SeenWindow | None:
        """A window that no manager knows; without a name of its own it counts as the active window's."""
        from Xlib import X, error

        try:
            attributes = window.get_attributes()
            if not attributes.override_redirect or attributes.map_state != X.IsViewable or attributes.win_class != X.InputOutput:
                return None
            box = window.get_geometry()
            if box.width <= 1 or box.height <= 1 or box.x + box.width <= 0 or box.y + box.height <= 0:
                return None
            application = (window.get_wm_class() or ("", ""))[1] or (active.application if active else "")
        except (error.XError, AttributeError):
            return None
        place = Box(x=box.x, y=box.y, width=box.width, height=box.height)
        return SeenWindow(
            window_id=window.id,
            pid=0,
            title=active.title if active else "",
            application=application,
            box=place,
            inner=place,
            is_active=False,
            is_popup=True,
        )

    def close(self) -> None:
        self._managed.close()
        self._display.close()


def _seen(window: Any) -> SeenWindow:
    left, right, top, bottom = window.frame
    inner = Box(x=window.x_px, y=window.y_px, width=window.width_px, height=window.height_px)
    outer = Box(x=inner.x - left, y=inner.y - top, width=inner.width + left + right, height=inner.height + top + bottom)
    return SeenWindow(
        window_id=window.window_id,
        pid=window.pid,
        title=window.title,
        application=window.window_class,
        box=outer,
        inner=inner,
        is_active=window.is_focused,
    )
