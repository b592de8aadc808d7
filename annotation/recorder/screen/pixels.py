"""Where private text stands on the screen, and pictures without it: black boxes, drawn before a picture is stored.

Two sources, and what either finds is blackened: programs that expose their text and where it is (AT-SPI), and what is read off the pixels.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from PIL import Image

from annotation.recorder.screen.exclusions import fill
from annotation.recorder.screen.text_reader import SeenWord
from annotation.recordings.bundle import Box
from annotation.recordings.redaction import Redactor
from warehouse.storage.screenshots import pictures

EDGE_PX = 2
"""Boxes are a little larger than what they hide."""
PNG_LEVEL = 6


def boxes_in_words(words: Sequence[SeenWord], redactor: Redactor) -> list[Box]:
    """Boxes of the words that hold something private, line by line and in whatever way lines were read."""
    found: list[Box] = []
    for _, line in groupby(words, key=lambda word: word.line):
        parts = list(line)
        found += _in_line(parts, redactor)
    # tesseract splits what stands far apart into lines of its own; what stands side by side is looked at once more
    for row in _rows(words):
        found += _in_line(row, redactor)
    return list(dict.fromkeys(found))


def _in_line(words: Sequence[SeenWord], redactor: Redactor) -> list[Box]:
    found: list[Box] = []
    for separator in (" ", ""):
        text, starts = "", []
        for word in words:
            starts.append(len(text))
            text += word.text + separator
        for finding in redactor.find(text, loose=True):
            if separator == "" and finding.kind != "card":  # words run together look like addresses and keys
                continue
            ends = [start + len(word.text) for start, word in zip(starts, words, strict=True)]
            hit = [word.box for start, end, word in zip(starts, ends, words, strict=True) if start < finding.end and end > finding.start]
            found += [grown(box) for box in hit]
    return found


def _rows(words: Sequence[SeenWord]) -> list[list[SeenWord]]:
    """Words that stand side by side with less than three letters' room between them."""
    rows: list[list[SeenWord]] = []
    for word in sorted(words, key=lambda word: (word.box.y + word.box.height // 2, word.box.x)):
        middle = word.box.y + word.box.height / 2
        for row in rows[-6:]:
            last = row[-1].box
            if abs(last.y + last.height / 2 - middle) < 6 and 0 <= word.box.x - last.x - last.width < 3 * max(8, word.box.height):
                row.append(word)
                break
        else:
            rows.append([word])
    return [row for row in rows if len(row) > 1]


def grown(box: Box, edge_px: int = EDGE_PX) -> Box:
    return Box(x=box.x - edge_px, y=box.y - edge_px, width=box.width + 2 * edge_px, height=box.height + 2 * edge_px)


def blacken(pixels: np.ndarray, boxes: Iterable[Box], mask: np.ndarray | None = None) -> np.ndarray:
    """A copy, shape (height, width, 3), with these places black."""
    result = pixels.copy()
    for box in boxes:
        fill(result, box, 0)
    if mask is not None:
        result[mask] = 0
    return result


def png_of(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(pictures.decoded(png))
