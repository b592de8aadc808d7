"""Windows of Microsoft Windows, by user32 and kernel32. Not run by our tests, which run on Linux."""

from __future__ import annotations

import ctypes
from typing import Any

from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box

_QUERY_LIMITED_INFORMATION = 0x1000


class Win32Windows:
    knows_windows = True

    def __init__(self) -> None:
        libraries: Any = ctypes
        self._user32, self._kernel32 = libraries.windll.user32, libraries.windll.kernel32

    def look(self) -> tuple[SeenWindow, ...]:
        """EnumWindows goes from the top one down."""
        found: list[SeenWindow] = []
        active = self._user32.GetForegroundWindow()
        kind = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)

        def visit(handle: int, _: int) -> bool:
            if self._user32.IsWindowVisible(handle) and not self._user32.IsIconic(handle):
                found.append(self._seen(handle, handle == active))
            return True

        self._user32.EnumWindows(kind(visit), 0)
        return tuple(window for window in found if window.box.width > 0 and window.box.height > 0)

    def _seen(self, handle: int, is_active: bool) -> SeenWindow:
        title = ctypes.create_unicode_buffer(512)
        self._user32.GetWindowTextW(handle, title, 512)
        edges = (ctypes.c_long * 4)()
        self._user32.GetWindowRect(handle, edges)
        left, top, right, bottom = edges
        pid = ctypes.c_ulong()
        self._user32.GetWindowThreadProcessId(handle, ctypes.byref(pid))
        box = Box(x=left, y=top, width=max(0, right - left), height=max(0, bottom - top))
        return SeenWindow(
            window_id=int(handle),
            pid=pid.value,
            title=title.value,
            application=self._program(pid.value),
            box=box,
            inner=box,
            is_active=is_active,
        )

    def _program(self, pid: int) -> str:
        process = self._kernel32.OpenProcess(_QUERY_LIMITED_INFORMATION, False, pid)
        if not process:
            return ""
        try:
            length, path = ctypes.c_ulong(1024), ctypes.create_unicode_buffer(1024)
            self._kernel32.QueryFullProcessImageNameW(process, 0, path, ctypes.byref(length))
            return path.value.rpartition("\\")[2]
        finally:
            self._kernel32.CloseHandle(process)

    def close(self) -> None: ...
