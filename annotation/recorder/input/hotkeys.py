"""The keys that pause a recording and end it: heard among all others, and no action of the recording."""

from __future__ import annotations

from collections.abc import Callable

from annotation.recorder.input.events import Key
from annotation.recorder.settings import RecordSettings


class Hotkeys:
    """Knows which keys are held down. `pause` and `stop` are called where a key is the last of its combination."""

    def __init__(self, settings: RecordSettings, *, pause: Callable[[], None], stop: Callable[[], None]) -> None:
        self._settings, self._pause, self._stop = settings, pause, stop
        self._down: set[str] = set()

    def obeys(self, key: Key) -> bool:
        """Whether a key was one of them; then it was obeyed."""
        (self._down.add if key.is_down else self._down.discard)(key.name)
        if not key.is_down:
            return False
        if self._down >= set(self._settings.pause_keys):
            self._pause()
            return True
        if self._down >= set(self._settings.stop_keys):
            self._stop()
            return True
        return False
