"""The program inside a box: starts the X server, the session bus and the window manager, then obeys commands until its input ends.

A message, either way, is two big-endian lengths of four bytes, a JSON object and a blob. A command is {"method", "arguments"}; its
answer {"result"} or {"error", "kind"}. Ends with its input; the box (a process namespace) ends with it, and with that everything else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from sandbox.desktop.inside.home import furnish

MAX_FILE_BYTES = 64 * 1024 * 1024
START_LIMIT_S = 60.0
OUTPUT_LIMIT_BYTES = 256 * 1024
REMAP_QUIET_MS, REMAP_LIMIT_MS = 60.0, 2000.0
"""Before a key is given another character, the ones typed so far have to have arrived."""
LOG = Path("/tmp/applications.log")
CONFIG = Path(__file__).with_name("openbox.xml")


class Refused(Exception):
    """A command that cannot be done: reported to its sender."""


def start_display(width_px: int, height_px: int) -> None:
    """Start the X server on the first free display and set DISPLAY. It comes up before this returns."""
    ready, write = os.pipe()
    command = [
        "Xvfb",
        "-displayfd",
        str(write),
        "-screen",
        "0",
        f"{width_px}x{height_px}x24",
        "-dpi",
        "96",
        "-nolisten",
        "tcp",
        "-noreset",
        "-nocursor",
    ]
    spawn(command, pass_fds=(write,))
    os.close(write)
    with os.fdopen(ready, "rb") as pipe:
        number = pipe.readline().decode().strip()
    if not number:
        raise Refused(f"Xvfb did not start: {log_tail()}")
    os.environ["DISPLAY"] = f":{number}"


def start_bus() -> None:
    """Start the session bus and set its address; accessibility and settings daemons are started by it when first asked for."""
    display_read, display_write = os.pipe()
    spawn(
        ["dbus-daemon", "--session", "--nofork", f"--print-address={display_write}", "--address=unix:dir=/tmp"], pass_fds=(display_write,)
    )
    os.close(display_write)
    with os.fdopen(display_read, "rb") as pipe:
        address = pipe.readline().decode().strip()
    if not address:
        raise Refused(f"The session bus did not start: {log_tail()}")
    os.environ["DBUS_SESSION_BUS_ADDRESS"] = address


def spawn(command: list[str], pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a program of the session; what it prints goes to the log."""
    with LOG.open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds, cwd=Path.home())


def log_tail() -> str:
    """The last lines that programs of the session printed."""
    try:
        return LOG.read_text(errors="replace")[-2000:].strip()
    except OSError:
        return ""


class DesktopCommands:
    """Everything a command may be about. The method `do_x` does the command "x": arguments to (result, blob)."""

    def __init__(self, width_px: int, height_px: int) -> None:
        furnish(Path.home())
        start_display(width_px, height_px)
        start_bus()
        window_manager = spawn(["openbox", "--sm-disable", "--config-file", str(CONFIG)])
        # Imported when there is a display and a bus: both are looked for on import.
        from sandbox.desktop.inside.accessibility import Accessibility
        from sandbox.desktop.inside.hands import Hands
        from sandbox.desktop.inside.screen import Screen
        from sandbox.desktop.inside.windows import Windows

        self.screen = Screen()
        self.hands = Hands(lambda: self.screen.settle(REMAP_QUIET_MS, REMAP_LIMIT_MS))
        self.windows = Windows()
        deadline = time.monotonic() + START_LIMIT_S
        while not self.windows.has_manager():
            if window_manager.poll() is not None or time.monotonic() > deadline:
                raise Refused(f"The window manager did not start: {log_tail()}")
            time.sleep(0.005)
        self.accessibility = Accessibility(width_px, height_px)

    def do_screenshot(self) -> tuple[Any, bytes]:
        return None, self.screen.png()

    def do_settle(self, quiet_ms: float, limit_ms: float) -> tuple[Any, bytes]:
        return self.screen.settle(quiet_ms, limit_ms), b""

    def do_elements(self) -> tuple[Any, bytes]:
        return self.accessibility.elements(self.windows.all()), b""

    def do_input(self, events: list[list[Any]]) -> tuple[Any, bytes]:
        self.hands.play(events)
        return None, b""

    def do_windows(self) -> tuple[Any, bytes]:
        return [window.as_dict() for window in self.windows.all()], b""

    def do_change_window(self, window_id: int, change: str) -> tuple[Any, bytes]:
        self.windows.change(window_id, change)
        return None, b""

    def do_place_window(self, window_id: int, box: list[int | None]) -> tuple[Any, bytes]:
        self.windows.place(window_id, box)
        return None, b""

    def do_launch(self, command: list[str]) -> tuple[Any, bytes]:
        if shutil.which(command[0]) is None:
            raise Refused(f"There is no program {command[0]!r}.")
        spawn(command)
        return None, b""

    def do_run(self, command: list[str], timeout_s: float, environment: dict[str, str]) -> tuple[Any, bytes]:
        """What takes too long is killed with all that it started."""
        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=Path.home(),
                start_new_session=True,
                env=os.environ | environment,
            )
        except OSError as error:
            return [127, "", str(error)], b""
        with program:
            try:
                out, err = program.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as expired:
                os.killpg(program.pid, signal.SIGKILL)
                return [124, _text(expired.stdout), _text(expired.stderr)], b""
        return [program.returncode, _text(out), _text(err)], b""

    def do_put_file(self, path: str, content: bytes) -> tuple[Any, bytes]:
        target = Path.home() / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return None, b""

    def do_get_file(self, path: str) -> tuple[Any, bytes]:
        try:
            descriptor = os.open(Path.home() / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False, b""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:  # a reader would run out of memory
            os.close(descriptor)
            return False, b""
        with os.fdopen(descriptor, "rb") as file:
            return True, file.read()

    def do_list_files(self) -> tuple[Any, bytes]:
        found = []
        for folder, folders, files in os.walk(Path.home()):
            folders[:] = [name for name in folders if not name.startswith(".")]
            base = Path(folder).relative_to(Path.home())
            found += [[str(base / name), True] for name in folders]
            found += [[str(base / name), False] for name in files if not name.startswith(".")]
        return sorted(found), b""

    def do_processes(self) -> tuple[Any, bytes]:
        """Names of the programs that run, the box's own among them."""
        names = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    names.append((entry / "comm").read_text().strip())
                except OSError:
                    continue
        return sorted(names), b""

    def do_version(self) -> tuple[Any, bytes]:
        return self.windows.server(), b""


def _text(output: bytes | None) -> str:
    return (output or b"")[:OUTPUT_LIMIT_BYTES].decode("utf-8", "replace")


def _read(pipe: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    head = pipe.read(8)
    if len(head) < 8:
        return None
    header_length, blob_length = struct.unpack(">II", head)
    return json.loads(pipe.read(header_length)), pipe.read(blob_length)


def _write(pipe: BinaryIO, header: dict[str, Any], blob: bytes = b"") -> None:
    encoded = json.dumps(header).encode()
    pipe.write(struct.pack(">II", len(encoded), len(blob)) + encoded + blob)
    pipe.flush()


def _answer(desktop: DesktopCommands, command: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    arguments = dict(command["arguments"])
    if command["method"] == "put_file":
        arguments["content"] = blob
    try:
        result, out = getattr(desktop, f"do_{command['method']}")(**arguments)
        return {"result": result}, out
    except Exception as error:  # whatever it is, the other end has to hear of it, and goes on or gives up
        return {"error": f"{type(error).__name__}: {error}", "kind": type(error).__name__}, b""


def main() -> int:
    """Arguments: width and height of the screen. Takes the pipes over from standard input and output, so that no program writes there."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        desktop = DesktopCommands(int(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:
        _write(answers, {"error": f"{type(error).__name__}: {error}", "kind": type(error).__name__})
        return 1
    _write(answers, {"result": "ready"})
    while (message := _read(commands)) is not None:
        _write(answers, *_answer(desktop, *message))
    return 0


if __name__ == "__main__":
    sys.exit(main())
