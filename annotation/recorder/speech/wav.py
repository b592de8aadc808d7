"""WAV files of 16 kHz, 16 bits, mono: a header of 44 bytes and the samples."""

from __future__ import annotations

import struct

from annotation.recordings.bundle import SAMPLE_RATE_HZ

PART_SAMPLES = 60 * SAMPLE_RATE_HZ
HEADER_BYTES = 44


def pack(samples: bytes) -> bytes:
    """The same samples always give the same bytes."""
    rate = SAMPLE_RATE_HZ
    return (
        struct.pack(
            "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", len(samples)
        )
        + samples
    )


def unpack(data: bytes) -> bytes:
    """The samples of what `pack` wrote. Raises ValueError for anything else."""
    samples = data[HEADER_BYTES:]
    if pack(samples) != data:
        raise ValueError("no WAV file of 16 kHz, 16 bits, mono")
    return samples
