"""The parts of a recorder for the system it runs on."""

from __future__ import annotations

import sys

from annotation.recorder.desktop.screening import RecorderBackends
from annotation.recorder.input.events import InputSource
from annotation.recorder.input.pynput_input import PynputInput
from annotation.recorder.input.x11_input import X11Input
from annotation.recorder.screen.accessibility import Accessibility
from annotation.recorder.screen.camera import check_screen
from annotation.recorder.screen.sign import make_sign
from annotation.recorder.screen.text_reader import TextReader, find_text_reader
from annotation.recorder.screen.windows import NoWindows, WindowReader, X11Windows
from annotation.recorder.settings import RecordSettings
from annotation.recorder.speech.microphone import Microphone


def check_machine(settings: RecordSettings, *, with_microphone: bool, microphone: str | None = None) -> None:
    """Whether this machine can be recorded as is asked. Nothing is listened to, shown or kept for it, so that nobody need have agreed to
    anything; what reads pixels reads a picture that was made for it. Raises RecorderUnavailable."""
    _inputs().check()
    windows = window_reader()
    try:
        settings.exclusions.check(knows_windows=windows.knows_windows)
    finally:
        windows.close()
    check_screen()
    if (reader := _text_reader(settings)) is not None:
        reader.check()
    if with_microphone:
        Microphone.called(microphone).check()


def backends_for_this_machine(settings: RecordSettings, *, with_microphone: bool, microphone: str | None = None) -> RecorderBackends:
    """Raises RecorderUnavailable where there is no screen to record."""
    return RecorderBackends(
        inputs=_inputs(),
        windows=window_reader(),
        accessibility=Accessibility(),
        sign=make_sign(settings.sign),
        text_reader=_text_reader(settings),
        speech=Microphone.called(microphone) if with_microphone else None,
    )


def window_reader() -> WindowReader:
    """What this system has. Raises RecorderUnavailable where an X server is needed and there is none."""
    if sys.platform == "win32":
        from annotation.recorder.screen.windows_win32 import Win32Windows

        return Win32Windows()
    return NoWindows() if sys.platform == "darwin" else X11Windows()


def _text_reader(settings: RecordSettings) -> TextReader | None:
    return find_text_reader() if settings.read_pixels == "auto" else None


def _inputs() -> InputSource:
    return PynputInput() if sys.platform in ("win32", "darwin") else X11Input()
