"""From sound to words with times: the protocol `Recogniser`, and the recognisers that run on this machine. Nothing is sent anywhere.

pocketsphinx brings its English model in its wheel; it is small and old and errs often (docs/recording.md has figures). faster-whisper is
used where it is installed and its weights are there already: they are never downloaded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from annotation.recordings.bundle import SAMPLE_RATE_HZ, Word
from warehouse.core.errors import RecorderUnavailable

CHUNK_S = 10 * 60.0
SPHINX, WHISPER = "pocketsphinx", "faster-whisper"


class Recogniser(Protocol):
    @property
    def name(self) -> str: ...

    def words(self, samples: bytes, start_s: float) -> list[Word]:
        """Words in 16 kHz mono samples whose first was taken at `start_s`, in order."""
        ...


class Sphinx:
    """Splits speech at pauses and recognises each stretch by itself."""

    name = SPHINX

    def __init__(self) -> None:
        """Raises RecorderUnavailable where pocketsphinx is not installed."""
        try:
            import pocketsphinx
        except ImportError as error:
            raise RecorderUnavailable("pocketsphinx is not installed. Install the extra: pip install 'flywheel[recorder]'") from error
        self._segmenter = pocketsphinx.Segmenter
        self._decoder = pocketsphinx.Decoder(samprate=SAMPLE_RATE_HZ, loglevel="FATAL")

    def words(self, samples: bytes, start_s: float) -> list[Word]:
        found: list[Word] = []
        rate = self._decoder.config["frate"] or 100
        for segment in self._segmenter(sample_rate=SAMPLE_RATE_HZ).segment(io.BytesIO(samples)):
            self._decoder.start_utt()
            self._decoder.process_raw(segment.pcm, full_utt=True)
            self._decoder.end_utt()
            if self._decoder.hyp() is None:
                continue
            zero_s = start_s + segment.start_time
            for part in self._decoder.seg():
                text = part.word.partition("(")[0]
                if text and not text.startswith(("<", "[", "+")):
                    times = {"start_s": round(zero_s + part.start_frame / rate, 3), "end_s": round(zero_s + (part.end_frame + 1) / rate, 3)}
                    found.append(Word(text=text, confidence=min(1.0, max(0.0, part.prob)), **times))
        return found


class Whisper:
    """faster-whisper with weights that are on this machine: a folder, or the name of a model that was fetched before."""

    name = WHISPER

    def __init__(self, model: str = "base.en") -> None:
        """Raises RecorderUnavailable where the library or the weights are missing."""
        try:
            library = import_module("faster_whisper")  # by name: it is nobody's dependency here
        except ImportError as error:
            raise RecorderUnavailable(
                "faster-whisper is not installed: `pip install faster-whisper`, or use --recogniser pocketsphinx."
            ) from error
        try:
            self._model = library.WhisperModel(model, device="auto", compute_type="default", local_files_only=True)
        except Exception as error:  # its own and the hub's errors; all mean that the weights cannot be had
            raise RecorderUnavailable(f"The weights {model!r} of faster-whisper are not on this machine; they are not fetched.") from error

    def words(self, samples: bytes, start_s: float) -> list[Word]:
        import numpy as np

        sound = np.frombuffer(samples, dtype="<i2").astype(np.float32) / 32768.0
        segments, _ = self._model.transcribe(sound, word_timestamps=True, vad_filter=True)
        return [
            Word(
                text=word.word.strip()[:200],
                start_s=round(start_s + word.start, 3),
                end_s=round(start_s + word.end, 3),
                confidence=_share(word.probability),
            )
            for segment in segments
            for word in segment.words or ()
            if word.word.strip()
        ]


def _share(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


def chunks(samples: bytes, start_s: float) -> Iterator[tuple[bytes, float]]:
    """Long speech in pieces of ten minutes, so that it need not be recognised at once."""
    step = int(CHUNK_S * SAMPLE_RATE_HZ) * 2
    for at in range(0, len(samples), step):
        yield samples[at : at + step], start_s + at / 2 / SAMPLE_RATE_HZ


def check_recogniser(name: str) -> None:
    """Whether there is one of that name, which is not loaded for it. Raises RecorderUnavailable."""
    if name not in ("auto", SPHINX, WHISPER):
        raise RecorderUnavailable(f"There is no recogniser {name!r}; there are auto, {SPHINX} and {WHISPER}.")
    wanted = (WHISPER, SPHINX) if name == "auto" else (name,)
    if all(find_spec(one.replace("-", "_")) is None for one in wanted):
        missing, other = f"{name} is not installed", "choose another --recogniser"
        if name == "auto":
            missing, other = f"Neither {WHISPER} nor {SPHINX} is installed", "pip install 'flywheel[recorder]'"
        raise RecorderUnavailable(f"{missing}: {other}, or --recogniser none and speech is kept as sound.")


@cache
def recogniser_named(name: str, model: str = "") -> Recogniser:
    """`auto` is faster-whisper where it works, else pocketsphinx. Raises RecorderUnavailable."""
    if name == WHISPER:
        return Whisper(model or "base.en")
    if name == "auto":
        try:
            return Whisper(model or "base.en")
        except RecorderUnavailable:
            return Sphinx()
    check_recogniser(name)
    return Sphinx()
