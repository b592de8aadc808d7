"""What is said, on its way to the journal: samples are gathered for a second, then written with a line that says when they were taken."""

from __future__ import annotations

from collections.abc import Callable

from annotation.recorder.speech.microphone import Sound
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import SAMPLE_RATE_HZ

GATHERED_BYTES = 2 * SAMPLE_RATE_HZ
"""A second of 16-bit samples."""


class SoundLines:
    """`at` gives a moment of the monotonic clock by the recording's."""

    def __init__(self, store: Store, at: Callable[[float], float]) -> None:
        self._store, self._at = store, at
        self._held: list[Sound] = []

    def hear(self, sound: Sound) -> None:
        self._held.append(sound)
        if sum(len(one.samples) for one in self._held) >= GATHERED_BYTES:
            self.write()

    def write(self) -> None:
        """The sound first: a line without its sound would shift all that follows."""
        if self._held:
            samples = b"".join(sound.samples for sound in self._held)
            self._store.append_speech(samples)
            self._store.append({"type": "speech", "start_s": self._at(self._held[0].start_s), "num_samples": len(samples) // 2})
            self._held = []
