"""Speech from a microphone, 16 kHz, 16 bits, mono, by sounddevice (PortAudio), with the moment at which its first sample was taken.

The sound card counts samples, the system counts seconds: when the first sample was taken follows from every block, and the earliest
answer is right, since blocks only ever come late. What is said while recording is paused is dropped at once.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from annotation.recordings.bundle import SAMPLE_RATE_HZ
from warehouse.core.errors import RecorderUnavailable

BLOCK = 800
CLOCK_BLOCKS = 200
"""Blocks (10 s) after which the clocks are compared again: a card's own clock runs a little fast or slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """Samples that follow each other, 16-bit little-endian; `start_s` is when the first was taken, as well as is known by now."""

    start_s: float
    samples: bytes


class SpeechSource(Protocol):
    name: str

    def start(self, sink: Callable[[Sound], None]) -> None: ...

    def pause(self, is_paused: bool) -> None: ...

    def stop(self) -> None: ...


class Microphone:
    """`device` is a name or a number of sounddevice's list; None is the system's own choice."""

    def __init__(self, device: str | int | None = None) -> None:
        self.name = str(device) if device is not None else "default"
        self._device = device
        self._stream: Any = None
        self._is_paused = False
        self._clock = _Clock()
        self._blocks: queue.SimpleQueue[Sound] = queue.SimpleQueue()

    @classmethod
    def called(cls, device: str | None) -> Microphone:
        """As options name it: by name or number."""
        return cls(int(device) if device is not None and device.isdecimal() else device)

    def check(self) -> None:
        """Whether it could be used; nothing is heard for it. Raises RecorderUnavailable."""
        try:
            import sounddevice

            sounddevice.check_input_settings(device=self._device, channels=1, dtype="int16", samplerate=SAMPLE_RATE_HZ)
        except Exception as error:  # PortAudio's own errors, or its library is missing
            raise self._unusable(error) from error

    def start(self, sink: Callable[[Sound], None]) -> None:
        """Raises RecorderUnavailable where there is no microphone, or no PortAudio."""
        try:
            import sounddevice

            self._stream = sounddevice.RawInputStream(
                samplerate=SAMPLE_RATE_HZ,
                channels=1,
                dtype="int16",
                blocksize=BLOCK,
                device=self._device,
                callback=lambda data, frames, times, status: self._take(sink, bytes(data), frames, times, status.input_overflow),
            )
            self._stream.start()
        except Exception as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> RecorderUnavailable:
        return RecorderUnavailable(
            f"The microphone {self.name} cannot be used: {error}. Choose one with --microphone, or record without (--no-speech). "
            "On Debian PortAudio is libportaudio2."
        )

    def _take(self, sink: Callable[[Sound], None], data: bytes, num_samples: int, times: Any, is_torn: bool) -> None:
        if is_torn:  # samples were lost before these: counting begins again
            self._clock = _Clock()
        start_s = self._clock.start_of(num_samples, time.monotonic() - (times.currentTime - times.inputBufferAdcTime))
        if not self._is_paused:
            sink(Sound(start_s=start_s, samples=data))

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused

    def stop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.stop()
            stream.close()


class _Clock:
    """Counts samples: given when the first sample of each block seems to have been taken, says when it was."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._zero_s: float | None = None
        self._earliest_s = float("inf")
        self._blocks = 0

    def start_of(self, num_samples: int, seems_s: float) -> float:
        zero_s = seems_s - self._num_samples / SAMPLE_RATE_HZ
        self._earliest_s = min(self._earliest_s, zero_s)
        if self._zero_s is None or zero_s < self._zero_s:
            self._zero_s = zero_s
        self._blocks += 1
        if self._blocks % CLOCK_BLOCKS == 0:
            self._zero_s, self._earliest_s = self._earliest_s, float("inf")
        start_s = self._zero_s + self._num_samples / SAMPLE_RATE_HZ
        self._num_samples += num_samples
        return start_s
