"""The parts of a recorder for the system it runs on."""

from __future__ import annotations

import sys

from annotation.recording.accessibility import Accessibility
from annotation.recording.events import InputSource
from annotation.recording.judge import Parts
from annotation.recording.microphone import Microphone
from annotation.recording.pynput_input import PynputInput
from annotation.recording.settings import RecordSettings
from annotation.recording.sign import make_sign
from annotation.recording.text_reader import find_text_reader
from annotation.recording.windows import window_reader
from annotation.recording.x11_input import X11Input


def parts_for_this_machine(settings: RecordSettings, *, with_microphone: bool, microphone: str | None = None) -> Parts:
    """Raises RecorderUnavailable where there is no screen to record."""
    is_x11 = sys.platform not in ("win32", "darwin")
    windows = window_reader()
    inputs: InputSource = X11Input() if is_x11 else PynputInput()
    device = int(microphone) if microphone is not None and microphone.isdecimal() else microphone
    return Parts(
        inputs=inputs, windows=windows, accessibility=Accessibility(), sign=make_sign(settings.sign),
        text_reader=find_text_reader() if settings.read_pixels == "auto" else None, speech=Microphone(device) if with_microphone else None,
    )  # fmt: skip
