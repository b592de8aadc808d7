"""The recogniser that everybody has, on a synthetic voice without a sound server between: how much it hears, and that the sentences of
hearing.py are told apart."""

from __future__ import annotations

import io
import json
import subprocess
import wave

import numpy as np
import pytest
from desk import need
from hearing import OTHERS, SAID, VOICE_OPTIONS, sentence_in

from annotation.recorder.speech.speech import Sphinx


def spoken(text: str) -> bytes:
    """At 16 kHz, half a second of silence before and after."""
    need({"espeak-ng": "espeak-ng"})
    said = subprocess.run(["espeak-ng", *VOICE_OPTIONS, "--stdout", text], check=True, capture_output=True, timeout=60).stdout
    with wave.open(io.BytesIO(said)) as sound:
        rate_hz, samples = sound.getframerate(), np.frombuffer(sound.readframes(1 << 30), dtype="<i2").astype(float)
    length = int(len(samples) * 16_000 / rate_hz)
    resampled = np.interp(np.arange(length) * rate_hz / 16_000, np.arange(len(samples)), samples)
    return np.pad(resampled, 8000).astype("<i2").tobytes()


def test_the_recogniser_hears_a_part_of_what_is_said() -> None:
    import jiwer

    recogniser = Sphinx()
    heard = [" ".join(word.text for word in recogniser.words(spoken(text), 0.0)) for text in SAID]
    found = jiwer.process_words(list(SAID), heard)
    assert found.wer <= 0.75 and found.hits >= 6, f"0.68 and 7 of 22 words when this was written; now {found.wer:.2f}: {json.dumps(heard)}"


@pytest.mark.parametrize("text", [*SAID, *OTHERS])
def test_each_sentence_is_distinguished_from_the_others(text: str) -> None:
    assert sentence_in(spoken(text)) == text


def test_silence_says_nothing() -> None:
    assert sentence_in(bytes(64_000)) is None
