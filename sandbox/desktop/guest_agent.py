#!/usr/bin/env python3
"""The guest agent: the program that runs inside a machine and lets its desktop be driven over HTTP. One file, to be copied there by itself:
standard library, Python 3.9 or later, Linux or Windows. sandbox/desktop/agent_desktop.py is the other end.

    python3 guest_agent.py --token-file FILE [--host 127.0.0.1] [--port 8765] [--screen 1024x768]

With `--screen` (Linux) it starts a display, a session bus and a window manager of its own, by the package sandbox/desktop/inside, which has
to be importable then. Without, it drives the screen that is there, with PyAutoGUI and mss (pip install pyautogui mss); what that lacks (a
list of windows, elements, characters that no key has) `health` says. It does for whoever holds the token whatever its user may do: bind it
to loopback or to an interface that only the host reaches.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import importlib
import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

VERSION = "2"
MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_OUTPUT_BYTES = 256 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
MIN_TOKEN_CHARACTERS = 16
TIMED_OUT, NOT_STARTED = 124, 127
"""Exit codes of `run` beside the program's own."""
POLL_S = 0.03
IS_WINDOWS = sys.platform == "win32"

Json = dict[str, Any]
Events = list[list[Any]]


class Refused(Exception):
    """A request that cannot be done: answered with status 400 and this text."""


# --- the screen that is there: PyAutoGUI and mss


def load(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # PyAutoGUI fails in many ways without a display, and exits without tkinter
        problem = f"The Python package {name!r} cannot be used here ({error!r})."
        raise Refused(f"{problem} Install it (pip install {package}); it needs a screen.") from error


class CurrentScreen:
    """The screen of the session that this program was started in."""

    types = "every character" if IS_WINDOWS or shutil.which("xdotool") else "ASCII only: others are left out; install xdotool"

    def __init__(self) -> None:
        self._mouse, self._mss = load("pyautogui", "pyautogui"), load("mss", "mss")
        self._tools = importlib.import_module("mss.tools")
        self._mouse.PAUSE, self._mouse.FAILSAFE = 0, False
        self._grabber = self._mss.mss()
        self._windows, self.windows_from = windows_of_this_system()
        self._elements, self.elements_from = elements_of_this_system(*self.size())

    def size(self) -> tuple[int, int]:
        area = self._grabber.monitors[0]
        return area["width"], area["height"]

    def version(self) -> str:
        versions = f"PyAutoGUI {self._mouse.__version__}, mss {self._mss.__version__}"
        return f"{platform.platform()}, {versions}"

    def screenshot(self) -> bytes:
        shot = self._grabber.grab(self._grabber.monitors[0])
        return bytes(self._tools.to_png(shot.rgb, shot.size, level=1))

    def settle(self, quiet_ms: float, limit_ms: float) -> bool:
        start = still_since = time.monotonic()
        before = bytes(self._grabber.grab(self._grabber.monitors[0]).raw)
        while (time.monotonic() - start) * 1000 < limit_ms:
            time.sleep(POLL_S)
            now = bytes(self._grabber.grab(self._grabber.monitors[0]).raw)
            if now != before:
                before, still_since = now, time.monotonic()
            elif (time.monotonic() - still_since) * 1000 >= quiet_ms:
                return True
        return False

    def elements(self) -> list[Json]:
        return [] if self._elements is None else list(self._elements.elements(self._windows.all()))

    def windows(self) -> list[Json]:
        return [] if self._windows is None else [window.as_dict() for window in self._windows.all()]

    def change_window(self, window_id: int, change: str) -> None:
        if self._windows is not None:
            self._windows.change(window_id, change)

    def place_window(self, window_id: int, box: list[int | None]) -> None:
        if self._windows is not None:
            self._windows.place(window_id, box)

    def input(self, events: Events) -> None:
        """Events as sandbox/desktop/keys.py makes them: ["move", x, y], ["button", X button, is_down], ["key", keysym, is_down],
        ["pause", ms]."""
        for kind, *values in events:
            if kind == "move":
                self._mouse.moveTo(values[0], values[1], _pause=False)
            elif kind == "button":
                self._button(int(values[0]), bool(values[1]))
            elif kind == "key":
                self._key(int(values[0]), bool(values[1]))
            elif kind == "pause":
                time.sleep(values[0] / 1000)
            else:
                raise Refused(f"unknown input event {kind!r}")

    def _button(self, number: int, is_down: bool) -> None:
        if number in BUTTONS:
            press = self._mouse.mouseDown if is_down else self._mouse.mouseUp
            press(button=BUTTONS[number], _pause=False)
        elif is_down:  # a notch of the wheel is a button's press in X, and 120 units in Windows
            notch = (120 if IS_WINDOWS else 1) * (1 if number in (4, 7) else -1)
            scroll = self._mouse.scroll if number in (4, 5) else self._mouse.hscroll
            scroll(notch, _pause=False)

    def _key(self, keysym: int, is_down: bool) -> None:
        name = KEYS.get(keysym) or (chr(keysym) if 0x20 <= keysym <= 0x7E else "")
        if name:
            press = self._mouse.keyDown if is_down else self._mouse.keyUp
            press(name, _pause=False)
        elif is_down:
            type_character(chr(keysym & 0xFFFFFF))


BUTTONS = {1: "left", 2: "middle", 3: "right"}
KEYS = {
    0xFF0D: "enter",
    0xFF09: "tab",
    0xFF1B: "esc",
    0xFF08: "backspace",
    0xFFFF: "delete",
    0xFF63: "insert",
    0xFF51: "left",
    0xFF52: "up",
    0xFF53: "right",
    0xFF54: "down",
    0xFF55: "pageup",
    0xFF56: "pagedown",
    0xFF57: "end",
    0xFF50: "home",
    0xFFE3: "ctrlleft",
    0xFFE1: "shiftleft",
    0xFFE9: "altleft",
    0xFFEB: "winleft",
    0xFFE5: "capslock",
    0x20: "space",
    **{0xFFBD + n: f"f{n}" for n in range(1, 13)},
}
"""PyAutoGUI's names of keys by keysym; characters go by themselves."""


def type_character(character: str) -> None:
    """A character that no key has. PyAutoGUI types none; Windows takes one as an event of its own, X through xdotool where it is there.
    Else it is left out, which `health` reports beforehand."""
    if IS_WINDOWS:
        send_unicode(character)
    elif shutil.which("xdotool") is not None:
        subprocess.call(["xdotool", "type", "--", character])


def windows_of_this_system() -> tuple[Any, str]:
    """Something with all(), change() and place(), or None; and where it is from or why there is none."""
    if IS_WINDOWS:
        return Win32Windows(), "user32"
    try:
        return importlib.import_module("sandbox.desktop.inside.windows").Windows(), "EWMH"
    except Exception as error:
        return None, f"none: sandbox.desktop.inside.windows cannot be used ({error!r})"


def elements_of_this_system(width_px: int, height_px: int) -> tuple[Any, str]:
    """Something with elements(windows), or None; and where it is from or why there is none."""
    if IS_WINDOWS:
        try:
            return UiAutomation(importlib.import_module("uiautomation")), "UI Automation"
        except Exception as error:
            return None, f"none: the Python package uiautomation cannot be used ({error!r})"
    try:
        return importlib.import_module("sandbox.desktop.inside.accessibility").Accessibility(width_px, height_px), "AT-SPI"
    except Exception as error:
        return None, f"none: sandbox.desktop.inside.accessibility cannot be used ({error!r})"


# --- Windows: user32 by ctypes, elements by the package uiautomation


class Win32Window:
    def __init__(self, values: Json) -> None:
        self._values = values

    def as_dict(self) -> Json:
        return self._values


class Win32Windows:
    """Top-level windows with a title, from the top one down."""

    def __init__(self) -> None:
        import ctypes
        import ctypes.wintypes

        self._c: Any = ctypes
        self._user: Any = ctypes.windll.user32  # type: ignore[attr-defined,unused-ignore]
        self._user.SetProcessDPIAware()

    def all(self) -> list[Win32Window]:
        found: list[Win32Window] = []
        kind = self._c.WINFUNCTYPE(self._c.c_bool, self._c.wintypes.HWND, self._c.wintypes.LPARAM)

        def look(handle: int, _: int) -> bool:
            title = self._text(self._user.GetWindowTextW, handle)
            if title and self._user.IsWindowVisible(handle):
                found.append(Win32Window(self._describe(handle, title)))
            return True

        self._user.EnumWindows(kind(look), 0)
        return found

    def _describe(self, handle: int, title: str) -> Json:
        left, top, width, height = self._contents(handle)
        return {
            "window_id": int(handle),
            "title": title,
            "window_class": self._text(self._user.GetClassNameW, handle),
            "x_px": left,
            "y_px": top,
            "width_px": width,
            "height_px": height,
            "is_focused": self._user.GetForegroundWindow() == handle,
            "is_minimised": bool(self._user.IsIconic(handle)),
            "is_maximised": bool(self._user.IsZoomed(handle)),
        }

    def _text(self, function: Any, handle: int) -> str:
        buffer = self._c.create_unicode_buffer(512)
        function(handle, buffer, 512)
        return str(buffer.value)

    def _contents(self, handle: int) -> tuple[int, int, int, int]:
        box, corner = self._c.wintypes.RECT(), self._c.wintypes.POINT(0, 0)
        self._user.GetClientRect(handle, self._c.byref(box))
        self._user.ClientToScreen(handle, self._c.byref(corner))
        return corner.x, corner.y, box.right, box.bottom

    def change(self, window_id: int, change: str) -> None:
        show = {"minimise": 6, "maximise": 3, "restore": 9}
        if change == "close":
            self._user.PostMessageW(window_id, 0x0010, 0, 0)
        elif change == "activate":
            self._user.SetForegroundWindow(window_id)
        elif change in show:
            self._user.ShowWindow(window_id, show[change])
        else:
            raise Refused(f"unknown change {change!r}")

    def place(self, window_id: int, box: list[int | None]) -> None:
        """The box is that of the contents; user32 wants that of the frame."""
        frame = self._c.wintypes.RECT()
        self._user.GetWindowRect(window_id, self._c.byref(frame))
        now = self._contents(window_id)
        left, top, width, height = (now[n] if value is None else value for n, value in enumerate(box))
        edges_x, edges_y = (frame.right - frame.left) - now[2], (frame.bottom - frame.top) - now[3]
        x, y = left - (now[0] - frame.left), top - (now[1] - frame.top)
        self._user.MoveWindow(window_id, x, y, width + edges_x, height + edges_y, True)


def send_unicode(character: str) -> None:
    """One character as Windows' own Unicode key event."""
    import ctypes

    class Keyboard(ctypes.Structure):
        _fields_ = (
            ("vk", ctypes.c_ushort),
            ("scan", ctypes.c_ushort),
            ("flags", ctypes.c_ulong),
            ("time", ctypes.c_ulong),
            ("extra", ctypes.c_void_p),
            ("padding", ctypes.c_ulong * 2),
        )

    class Input(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_ulong), ("keyboard", Keyboard))

    user: Any = ctypes.windll.user32  # type: ignore[attr-defined,unused-ignore]
    units = memoryview(character.encode("utf-16-le")).cast("H")
    for flags in (4, 4 | 2):  # KEYEVENTF_UNICODE, and with KEYEVENTF_KEYUP
        for unit in units:
            event = Input(1, Keyboard(0, unit, flags, 0, None))
            user.SendInput(1, ctypes.byref(event), ctypes.sizeof(event))


class UiAutomation:
    """Elements of all top-level windows, by the package uiautomation."""

    LIMIT = 400
    ROLES: ClassVar[dict[str, str]] = {
        "ButtonControl": "button",
        "SplitButtonControl": "button",
        "HyperlinkControl": "link",
        "TextControl": "text",
        "EditControl": "input",
        "DocumentControl": "textarea",
        "CheckBoxControl": "checkbox",
        "RadioButtonControl": "radio",
        "TabItemControl": "tab",
        "ComboBoxControl": "select",
        "ListItemControl": "item",
        "MenuItemControl": "item",
        "TreeItemControl": "item",
        "DataItemControl": "item",
        "HeaderItemControl": "header",
        "TitleBarControl": "header",
        "ImageControl": "image",
        "SliderControl": "slider",
        "SpinnerControl": "spinner",
    }

    def __init__(self, package: Any) -> None:
        self._package = package

    def elements(self, windows: list[Any]) -> list[Json]:
        found: list[Json] = []
        for control, _ in self._package.WalkControl(self._package.GetRootControl(), maxDepth=20):
            role, box = self.ROLES.get(control.ControlTypeName), control.BoundingRectangle
            if role is None or control.IsOffscreen or box.width() < 2 or box.height() < 2:
                continue
            states = [name for name, is_so in (("focused", control.HasKeyboardFocus), ("disabled", not control.IsEnabled)) if is_so]
            middle = {"x": box.left + box.width() // 2, "y": box.top + box.height() // 2}
            found.append({"role": role, "text": control.Name, "states": states, **middle, "width": box.width(), "height": box.height()})
            if len(found) >= self.LIMIT:
                break
        return found


# --- a screen of its own: sandbox/desktop/inside


class OwnScreen:
    """A display with a bus and a window manager that end with us, by sandbox/desktop/inside."""

    windows_from, elements_from, types = "EWMH", "AT-SPI", "every character"

    def __init__(self, width_px: int, height_px: int) -> None:
        self._size = width_px, height_px
        self._commands = importlib.import_module("sandbox.desktop.inside.main").DesktopCommands(width_px, height_px)

    def size(self) -> tuple[int, int]:
        return self._size

    def version(self) -> str:
        return str(self._commands.do_version()[0])

    def screenshot(self) -> bytes:
        return bytes(self._commands.do_screenshot()[1])

    def settle(self, quiet_ms: float, limit_ms: float) -> bool:
        return bool(self._commands.do_settle(quiet_ms, limit_ms)[0])

    def elements(self) -> list[Json]:
        return list(self._commands.do_elements()[0])

    def windows(self) -> list[Json]:
        return list(self._commands.do_windows()[0])

    def change_window(self, window_id: int, change: str) -> None:
        self._commands.do_change_window(window_id, change)

    def place_window(self, window_id: int, box: list[int | None]) -> None:
        self._commands.do_place_window(window_id, box)

    def input(self, events: Events) -> None:
        self._commands.do_input(events)


# --- files and programs


def in_home(path: str) -> Path:
    """Raises Refused for a path that is not below the home."""
    given = Path(path)
    if not path or given.is_absolute() or given.drive or ".." in given.parts:
        raise Refused(f"{path!r} does not lie in the home folder: give a relative path without '..'.")
    return Path.home() / given


def put_file(path: str, content: bytes) -> None:
    target = in_home(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def get_file(path: str) -> bytes | None:
    """A regular file's bytes, or None; one larger than MAX_FILE_BYTES is none. A link is not followed."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(in_home(path), flags)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def list_files() -> list[list[Any]]:
    found: list[list[Any]] = []
    for folder, folders, files in os.walk(Path.home()):
        folders[:] = [name for name in folders if not name.startswith(".")]
        base = Path(folder).relative_to(Path.home())
        found += [[(base / name).as_posix(), True] for name in folders]
        found += [[(base / name).as_posix(), False] for name in files if not name.startswith(".")]
    return sorted(found)


def run(command: list[str], timeout_s: float, environment: dict[str, str]) -> list[Any]:
    """Exit code, stdout and stderr of a program that finds `environment` beside ours. What takes too long is killed with all that it
    started."""
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path.home(),
            start_new_session=True,
            env={**os.environ, **environment},
        )
    except OSError as error:
        return [NOT_STARTED, "", str(error)]
    try:
        out, err = program.communicate(timeout=timeout_s)
        code = program.returncode
    except subprocess.TimeoutExpired:
        kill(program)
        out, err = program.communicate()
        code = TIMED_OUT
    return [code, *(part[:MAX_OUTPUT_BYTES].decode("utf-8", "replace") for part in (out, err))]


def kill(program: subprocess.Popen[bytes]) -> None:
    if IS_WINDOWS:
        subprocess.call(["taskkill", "/F", "/T", "/PID", str(program.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def launch(command: list[str]) -> bool:
    """Start a program and leave it running; False for an unknown name."""
    try:
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path.home(), start_new_session=True
        )
    except FileNotFoundError:
        return False
    threading.Thread(target=program.wait, daemon=True).start()  # so that no zombie stays
    return True


# --- HTTP


class Agent:
    """What is asked for, done. What is about the screen is done in one thread, which also makes it (connections to X, Windows' device
    contexts and COM belong to the thread that opened them); programs run beside it."""

    def __init__(self, make_screen: Callable[[], CurrentScreen | OwnScreen]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._screen = self._thread.submit(make_screen).result()
        self._health = self._thread.submit(self._describe).result()

    def _describe(self) -> Json:
        return {
            "version": VERSION,
            "platform": sys.platform,
            "python": platform.python_version(),
            "size": list(self._screen.size()),
            "system": self._screen.version(),
            "windows": self._screen.windows_from,
            "elements": self._screen.elements_from,
            "types": self._screen.types,
        }

    def health(self) -> Json:
        return self._health

    def screenshot(self) -> bytes:
        return self._thread.submit(self._screen.screenshot).result()

    def call(self, method: str, arguments: Json) -> Any:
        """Raises Refused for an unknown method or arguments that do not fit."""
        beside: dict[str, Any] = {"run": run, "launch": launch, "list_files": list_files, "health": self.health}
        on_screen = ("settle", "elements", "windows", "change_window", "place_window", "input")
        try:
            if method in beside:
                return beside[method](**arguments)
            if method in on_screen:
                return self._thread.submit(getattr(self._screen, method), **arguments).result()
        except TypeError as error:
            raise Refused(f"{method} cannot be called with {sorted(arguments)}: {error}") from error
        raise Refused(f"there is no method {method!r}; there are {', '.join([*beside, *on_screen])}")


class Handler(BaseHTTPRequestHandler):
    """GET /v1/health, GET /v1/screenshot (PNG), GET and PUT /v1/file?path=…, POST /v1/METHOD with the arguments as a JSON object, answered
    by {"result": …} or {"error": …}. Every request needs `Authorization: Bearer TOKEN`."""

    server: Server
    timeout = 60

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_POST(self) -> None:
        self._serve(self._post)

    def _serve(self, answer: Any) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {self.server.token}".encode()):
            return self._send(401, {"error": "wrong or missing token"})
        try:
            answer(urlsplit(self.path).path, {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})
        except (Refused, KeyError, ValueError) as error:
            self._send(400, {"error": str(error) if isinstance(error, Refused) else repr(error)})
        except Exception as error:
            self._send(500, {"error": f"{type(error).__name__}: {error}"})

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path == "/v1/screenshot":
            self._send(200, self.server.agent.screenshot(), "image/png")
        elif path == "/v1/file":
            content = get_file(query["path"])
            self._send(404, {"error": "no such file"}) if content is None else self._send(200, content)
        elif path == "/v1/health":
            self._send(200, {"result": self.server.agent.health()})
        else:
            self._send(404, {"error": f"nothing at {path}"})

    def _put(self, path: str, query: dict[str, str]) -> None:
        if path != "/v1/file":
            return self._send(404, {"error": f"nothing at {path}"})
        put_file(query["path"], self._body())
        self._send(200, {"result": None})

    def _post(self, path: str, query: dict[str, str]) -> None:
        prefix, _, method = path.rpartition("/")
        if prefix != "/v1":
            return self._send(404, {"error": f"nothing at {path}"})
        arguments = json.loads(self._body() or b"{}")
        if not isinstance(arguments, dict):
            raise Refused("arguments are a JSON object")
        self._send(200, {"result": self.server.agent.call(method, arguments)})

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= MAX_BODY_BYTES:
            raise Refused(f"a body of {length} bytes is not taken; at most {MAX_BODY_BYTES}")
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refused(f"the body ended after {len(body)} of {length} bytes")
        return body

    def _send(self, status: int, content: bytes | Json, kind: str = "application/octet-stream") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind if isinstance(content, bytes) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: requests are many."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], agent: Agent, token: str) -> None:
        self.agent, self.token = agent, token
        super().__init__(address, Handler)


def main() -> int:
    parser = argparse.ArgumentParser(description="Lets the desktop of this machine be driven over HTTP.")
    parser.add_argument("--token-file", type=Path, required=True, help="file with the token that every request has to carry")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on: loopback, or an interface that only the host reaches")
    parser.add_argument("--port", type=int, default=8765, help="0: any free one; it is printed")
    parser.add_argument("--screen", metavar="WIDTHxHEIGHT", help="start a display of this size (Linux) instead of driving the current one")
    options = parser.parse_args()
    token = options.token_file.read_text(encoding="ascii").strip()
    if len(token) < MIN_TOKEN_CHARACTERS:
        parser.error(f"the token has {len(token)} characters; at least {MIN_TOKEN_CHARACTERS}")
    size = [int(part) for part in options.screen.split("x")] if options.screen else None
    try:
        agent = Agent(CurrentScreen if size is None else lambda: OwnScreen(*size))
    except Refused as error:
        parser.error(str(error))
    server = Server((options.host, options.port), agent, token)
    print(f"listening on {options.host}:{server.server_address[1]}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
