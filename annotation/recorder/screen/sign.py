"""The sign that says that this machine is being recorded: a small window above all others. What lies under it is masked in every picture,
so it is never in one; a click on it is not recorded.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Literal, Protocol

from annotation.recordings.bundle import Box
from warehouse.core.errors import RecorderUnavailable

Corner = Literal["top-left", "top", "top-right", "bottom-left", "bottom", "bottom-right"]
WIDTH_PX, HEIGHT_PX, EDGE_PX = 150, 20, 4
APPLICATION = "flywheel-recorder"
RECORDING, PAUSED = "RECORDING", "PAUSED"


class Sign(Protocol):
    @property
    def box(self) -> Box | None: ...

    def show(self, is_paused: bool) -> None: ...

    def close(self) -> None: ...


def place(corner: Corner, width_px: int, height_px: int) -> Box:
    x = EDGE_PX if "left" in corner else width_px - WIDTH_PX - EDGE_PX if "right" in corner else (width_px - WIDTH_PX) // 2
    y = 0 if corner.startswith("top") else height_px - HEIGHT_PX
    return Box(x=x, y=y, width=WIDTH_PX, height=HEIGHT_PX)


class X11Sign:
    """A window that no window manager places, drawn by core X11."""

    def __init__(self, corner: Corner = "top") -> None:
        from Xlib import X, display, error

        try:
            self._display = display.Display()
        except (error.DisplayError, OSError) as failure:
            raise RecorderUnavailable(f"No X server: {failure}. Set DISPLAY.") from failure
        screen = self._display.screen()
        self.box = place(corner, screen.width_in_pixels, screen.height_in_pixels)
        colours = {name: screen.default_colormap.alloc_named_color(name).pixel for name in ("red3", "gray35", "white")}
        self._colours = colours
        self._window = screen.root.create_window(
            self.box.x,
            self.box.y,
            self.box.width,
            self.box.height,
            0,
            screen.root_depth,
            X.InputOutput,
            X.CopyFromParent,
            background_pixel=colours["red3"],
            override_redirect=True,
            event_mask=X.ExposureMask,
        )
        self._window.set_wm_class(APPLICATION, APPLICATION)
        self._window.set_wm_name("recording")
        self._font = self._display.open_font("fixed")
        self._context = self._window.create_gc(foreground=colours["white"], background=colours["red3"], font=self._font)
        self._text = RECORDING
        self._window.map()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="sign", daemon=True)
        self._draw()
        self._thread.start()

    def show(self, is_paused: bool) -> None:
        with self._lock:
            self._text = PAUSED if is_paused else RECORDING
            self._window.change_attributes(background_pixel=self._colours["gray35" if is_paused else "red3"])
        self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._window.clear_area()
            self._context.change(background=self._colours["gray35" if self._text == PAUSED else "red3"])
            extents: Any = self._font.query_text_extents(self._text.encode())
            self._window.image_text(self._context, (WIDTH_PX - extents.overall_width) // 2, HEIGHT_PX - 6, self._text)
            self._display.flush()

    def _keep(self) -> None:
        """On top, and drawn whenever something lay above it."""
        from Xlib import X

        with suppress(Exception):  # the X server may go before we do
            while not self._stop.wait(0.3):
                with self._lock:
                    self._window.configure(stack_mode=X.Above)
                    exposed = self._display.pending_events()
                    for _ in range(exposed):
                        self._display.next_event()
                if exposed:
                    self._draw()
                else:
                    self._display.flush()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5.0)
        with suppress(Exception):
            self._window.destroy()
            self._display.close()


class TkSign:
    """On Windows and macOS: tkinter in a process of its own, whose main thread it wants. Not run by our tests, which run on Linux."""

    _PROGRAM = f"""
import sys, threading, tkinter
root = tkinter.Tk()
root.overrideredirect(True)
root.attributes("-topmost", True)
root.geometry(f"{WIDTH_PX}x{HEIGHT_PX}+{{(root.winfo_screenwidth() - {WIDTH_PX}) // 2}}+0")
label = tkinter.Label(root, text="{RECORDING}", bg="#c00000", fg="white")
label.pack(fill="both", expand=True)
print((root.winfo_screenwidth() - {WIDTH_PX}) // 2, flush=True)
def listen():
    for line in sys.stdin:
        paused = line.strip() == "paused"
        root.after(0, lambda: label.config(text="{PAUSED}" if paused else "{RECORDING}", bg="#555555" if paused else "#c00000"))
    root.after(0, root.destroy)
threading.Thread(target=listen, daemon=True).start()
root.mainloop()
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", self._PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self._process.stdout.readline().strip() if self._process.stdout is not None else ""
        if not first:
            raise RecorderUnavailable("The recording sign could not be shown: tkinter is missing. Nothing is recorded without the sign.")
        self.box: Box | None = Box(x=int(first), y=0, width=WIDTH_PX, height=HEIGHT_PX)

    def show(self, is_paused: bool) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write("paused\n" if is_paused else "recording\n")
            self._process.stdin.flush()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def make_sign(corner: Corner) -> Sign:
    return TkSign() if sys.platform in ("win32", "darwin") else X11Sign(corner)
