"""A desk for a scripted person: a display with a window manager, a session bus and accessibility, hands (xdotool), a voice (espeak-ng)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageGrab

from sandbox.desktop.inside.home import FILES

ROOT = Path(__file__).resolve().parents[3]
OPENBOX = ROOT / "sandbox" / "desktop" / "inside" / "openbox.xml"
NEEDED = {
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "dbus-daemon": "dbus",
    "xdotool": "xdotool",
    "mousepad": "mousepad",
    "tesseract": "tesseract-ocr",
}
CURSOR_PX = 100
VOICE = {"pulseaudio": "pulseaudio", "pactl": "pulseaudio-utils", "paplay": "pulseaudio-utils", "espeak-ng": "espeak-ng"}


def need(programs: dict[str, str]) -> None:
    missing = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if missing:
        pytest.skip(f"Debian packages are missing: {' '.join(missing)} (scripts/setup.sh installs them where we are root on Debian)")


@dataclass
class Desk:
    home: Path
    env: dict[str, str]
    size_px: tuple[int, int]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def spawn(self, *command: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.home / "programs.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**self.env, **more}, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        self.started.append(process)
        return process

    def hands(self, *arguments: str) -> str:
        return subprocess.run(["xdotool", *arguments], env=self.env, check=True, capture_output=True, text=True, timeout=30).stdout

    def click(self, x: int, y: int, *more: str) -> None:
        self.hands("mousemove", str(x), str(y), "sleep", "0.15", "click", *more, "1")

    def type(self, text: str, delay_ms: int = 40) -> None:
        self.hands("type", "--delay", str(delay_ms), text)

    def key(self, *keys: str) -> None:
        self.hands("key", "--delay", "60", *keys)

    def wait_for_rest(self, rest_s: float = 0.4, limit_s: float = 30.0) -> None:
        """Until the screen has not changed for a while: programs have drawn what they were asked to. A blinking cursor is not a change."""
        seen, since_s, end_s = self._look(), time.monotonic(), time.monotonic() + limit_s
        while time.monotonic() - since_s < rest_s:
            assert time.monotonic() < end_s, f"the screen did not come to rest within {limit_s} s"
            time.sleep(0.05)
            now = self._look()
            if np.count_nonzero(now != seen) > CURSOR_PX:
                seen, since_s = now, time.monotonic()

    def _look(self) -> np.ndarray:
        return np.asarray(ImageGrab.grab(xdisplay=self.env["DISPLAY"]).convert("L"))

    def window(self, name: str, limit_s: float = 20.0) -> str:
        """The id of a window that shows, once there is one."""
        found = wait_until(lambda: self._search(name), limit_s, f"a window {name}")
        return found.split()[-1]

    def _search(self, name: str) -> str:
        ran = subprocess.run(
            ["xdotool", "search", "--onlyvisible", "--name", name], env=self.env, capture_output=True, text=True, timeout=10
        )
        return ran.stdout

    def close(self) -> None:
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def wait_until(look: Callable[[], str | bool | None], limit_s: float, what: str) -> str:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        found = look()
        if found:
            return str(found)
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {limit_s} s")


@contextlib.contextmanager
def a_desk(width_px: int = 1024, height_px: int = 768, *, voice: bool = False) -> Iterator[Desk]:
    need(NEEDED | (VOICE if voice else {}))
    home = Path(tempfile.mkdtemp(prefix="desk-"))
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    keep = ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    env = {name: os.environ[name] for name in keep if name in os.environ} | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "GSETTINGS_BACKEND": "memory",
        "GTK_MODULES": "gail:atk-bridge",
        "NO_AT_BRIDGE": "0",
        "GIO_USE_VFS": "local",
        "LANG": "C.UTF-8",
        "LIBGL_ALWAYS_SOFTWARE": "1",
        "GTK_OVERLAY_SCROLLING": "0",
    }
    for path, text in FILES.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    desk = Desk(home, env, (width_px, height_px))
    try:
        # Without -noreset the server ends its clients' connections when the last one leaves: a first look (xdotool) could end openbox.
        screen = ("-screen", "0", f"{width_px}x{height_px}x24")
        env["DISPLAY"] = ":" + reported(desk, "Xvfb", "-displayfd", "{fd}", *screen, "-nolisten", "tcp", "-noreset")
        env["DBUS_SESSION_BUS_ADDRESS"] = reported(
            desk, "dbus-daemon", "--session", "--nofork", "--print-address={fd}", f"--address=unix:dir={runtime}"
        )
        desk.spawn("openbox", "--sm-disable", "--config-file", str(OPENBOX))
        if voice:
            give_voice(desk)
        wait_until(lambda: has_manager(desk), 20, "the window manager")
        yield desk
    finally:
        desk.close()
        shutil.rmtree(home, ignore_errors=True)


def has_manager(desk: Desk) -> bool:
    return subprocess.run(["xdotool", "get_desktop"], env=desk.env, capture_output=True, timeout=10).returncode == 0


def reported(desk: Desk, *command: str) -> str:
    """Start a program that writes a line to a descriptor when it is ready, and what it wrote."""
    read, write = os.pipe()
    words = [word.replace("{fd}", str(write)) for word in command]
    with (desk.home / "programs.log").open("ab") as log:
        process = subprocess.Popen(
            words, env=desk.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(write,), process_group=0
        )
    desk.started.append(process)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.readline().decode().strip()


def give_voice(desk: Desk) -> None:
    """A sound server with one sink that plays nowhere; what is played into it is what the microphone hears."""
    (desk.home / ".asoundrc").write_text("pcm.!default { type pulse }\nctl.!default { type pulse }\n")
    desk.env["PULSE_SERVER"] = f"unix:{desk.home}/run/pulse/native"
    desk.env["PULSE_SOURCE"] = "person.monitor"
    desk.spawn(
        "pulseaudio",
        "--daemonize=no",
        "--exit-idle-time=-1",
        "-n",
        "--load=module-null-sink sink_name=person rate=16000 channels=1",
        "--load=module-native-protocol-unix",
    )
    wait_until(
        lambda: subprocess.run(["pactl", "info"], env=desk.env, capture_output=True, timeout=10).returncode == 0, 20, "the sound server"
    )


def say(desk: Desk, text: str, *options: str) -> tuple[float, float]:
    """Speak, and return when it began and ended (monotonic seconds)."""
    path = desk.home / "said.wav"
    subprocess.run(["espeak-ng", *options, "-w", str(path), text], env=desk.env, check=True, timeout=60)
    start_s = time.monotonic()
    subprocess.run(["paplay", "--device=person", str(path)], env=desk.env, check=True, timeout=120)
    return start_s, time.monotonic()
