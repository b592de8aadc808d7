"""What is said in sound, when it can only be one of some sentences. With a free choice of words pocketsphinx mishears two of three that a
synthetic voice says; among a dozen sentences it finds the right one."""

from __future__ import annotations

from functools import cache

import pocketsphinx

SAID = ("first i click into the page", "now i write a greeting to emma", "at the end i select all of the text")
OTHERS = (
    "first i type into the field",
    "then i click on the button",
    "now i read a letter from anna",
    "now i close the window",
    "at the start i delete none of the words",
    "in the end i save the file",
    "first i look at the page",
    "i write the number of emma",
    "at last i copy the picture",
)
VOICE_OPTIONS = ("-v", "en-us+f2", "-s", "130")


@cache
def _decoder() -> pocketsphinx.Decoder:
    decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")
    decoder.add_jsgf_string("sentences", f"#JSGF V1.0; grammar sentences; public <sentence> = {' | '.join((*SAID, *OTHERS))} ;")
    decoder.activate_search("sentences")
    return decoder


def sentence_in(samples: bytes) -> str | None:
    """Which of SAID and OTHERS is said in 16 kHz mono samples; None where none is."""
    decoder = _decoder()
    decoder.start_utt()
    decoder.process_raw(samples, full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return found.hypstr if found is not None else None
