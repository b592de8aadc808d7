"""What is written in pixels, by tesseract where it is installed: words with their boxes. Pictures go to it through a pipe, never a file.

Of a picture that differs from the last one in a part, only that part is read again. A picture that could not be read raises: no words must
never be taken for nothing to hide.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from annotation.recordings.bundle import Box
from warehouse.core.errors import RecorderUnavailable

SCALE = 2
"""Letters of a screen are smaller than what tesseract was trained on."""
MARGIN_PX = 16
WHOLE_SHARE = 0.6
"""Where more than this share of the screen changed, all of it is read."""
LIMIT_S = 60.0
KNOWN_TEXT = "Letters that can be read"
"""What `check` has read, to see that reading works."""
HOW_TO_FIX = "Install it with its English data (tesseract-ocr-eng), or remove it: without it the recorder says that pixels are not read."


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWord:
    """A word and where it stands; words of equal `line` stand in one line, in order."""

    text: str
    box: Box
    line: tuple[int, ...]


class TextReader(Protocol):
    @property
    def name(self) -> str: ...

    def words(self, pixels: np.ndarray) -> list[SeenWord]:
        """Words of a picture, shape (height, width, 3), in reading order. Raises RecorderUnavailable where it could not be read."""
        ...

    def check(self) -> None:
        """Whether it reads: a small made picture is given to it. Raises RecorderUnavailable."""
        ...


class Tesseract:
    """One at a time: it remembers the last picture."""

    name = "tesseract"

    def __init__(self, languages: str = "eng") -> None:
        self._languages = languages
        self._last: np.ndarray | None = None
        self._words: list[SeenWord] = []
        self._generation = 0

    def words(self, pixels: np.ndarray) -> list[SeenWord]:
        part = _changed(self._last, pixels)
        if part is None:
            return self._words
        # Until it has been read nothing is known of what it shows: after a failure the next picture is read whole.
        before, self._last = self._words if self._last is not None and self._last.shape == pixels.shape else [], None
        part = _with_cut_words(part, before, pixels.shape[1], pixels.shape[0])
        self._generation += 1
        self._words = [*(word for word in before if not word.box.overlaps(part)), *self._read(pixels, part)]
        self._last = pixels.copy()
        return self._words

    def check(self) -> None:
        image = Image.new("RGB", (360, 60), "white")
        ImageDraw.Draw(image).text((20, 16), KNOWN_TEXT, fill="black", font=ImageFont.load_default(20))
        pixels = np.asarray(image)
        read = self._read(pixels, Box(x=0, y=0, width=pixels.shape[1], height=pixels.shape[0]))
        if not {word.text for word in read} & set(KNOWN_TEXT.split()):
            found = f"in a picture that says {KNOWN_TEXT!r} it found {len(read)} other words"
            raise RecorderUnavailable(f"tesseract does not read: {found}. {HOW_TO_FIX}")

    def _read(self, pixels: np.ndarray, part: Box) -> list[SeenWord]:
        crop = pixels[part.y : part.y + part.height, part.x : part.x + part.width]
        image = Image.fromarray(crop).convert("L")
        image = image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.BICUBIC)
        if np.asarray(image).mean() < 110:  # light on dark
            image = Image.fromarray(255 - np.asarray(image))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        words = []
        for row in self._ask(buffer.getvalue()):
            level, _, block, paragraph, line, _, left, top, width, height, _, text = row.split("\t", 11)
            if level == "5" and text.strip():
                box = Box(
                    x=part.x + int(left) // SCALE,
                    y=part.y + int(top) // SCALE,
                    width=-(-int(width) // SCALE) + 1,
                    height=-(-int(height) // SCALE) + 1,
                )
                words.append(SeenWord(text=text, box=box, line=(self._generation, int(block), int(paragraph), int(line))))
        return words

    def _ask(self, png: bytes) -> list[str]:
        """The rows of its output for a picture. Its error messages name files and languages, not what it read."""
        command = ["tesseract", "stdin", "stdout", "-l", self._languages, "--psm", "11", "--dpi", "200", "tsv"]
        environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
        try:
            ran = subprocess.run(command, input=png, capture_output=True, timeout=LIMIT_S, env=environment)
        except subprocess.TimeoutExpired as error:
            raise RecorderUnavailable(f"tesseract did not read a picture within {LIMIT_S:g} s.") from error
        except OSError as error:
            raise RecorderUnavailable(f"tesseract does not run: {error}. {HOW_TO_FIX}") from error
        head, *rows = ran.stdout.decode("utf-8", "replace").splitlines() or [""]
        if ran.returncode or not head.startswith("level\t"):
            said = " ".join(ran.stderr.decode("utf-8", "replace").split())[:300]
            raise RecorderUnavailable(
                f"tesseract read nothing and ended with code {ran.returncode}: {said or 'without a word'}. {HOW_TO_FIX}"
            )
        return rows


def find_text_reader() -> TextReader | None:
    """What reads pixels on this machine; None where nothing is installed."""
    return Tesseract() if shutil.which("tesseract") else None


def _changed(before: np.ndarray | None, now: np.ndarray) -> Box | None:
    """The part of a picture that differs from the one before, with a margin; None where nothing does."""
    height, width = now.shape[:2]
    whole = Box(x=0, y=0, width=width, height=height)
    if before is None or before.shape != now.shape:
        return whole
    differs = (before != now).any(axis=2)
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not rows.size:
        return None
    box = Box(x=int(columns[0]), y=int(rows[0]), width=int(columns[-1] - columns[0]) + 1, height=int(rows[-1] - rows[0]) + 1)
    margin = Box(x=box.x - MARGIN_PX, y=box.y - MARGIN_PX, width=box.width + 2 * MARGIN_PX, height=box.height + 2 * MARGIN_PX)
    part = _union([margin], width, height)
    return whole if part.width * part.height > WHOLE_SHARE * width * height else part


def _union(boxes: list[Box], width: int, height: int) -> Box:
    x, y = max(0, min(box.x for box in boxes)), max(0, min(box.y for box in boxes))
    right, bottom = min(width, max(box.x + box.width for box in boxes)), min(height, max(box.y + box.height for box in boxes))
    return Box(x=x, y=y, width=right - x, height=bottom - y)


def _with_cut_words(part: Box, words: list[SeenWord], width: int, height: int) -> Box:
    """A part with every word that its edge cuts: a word is read whole or stays as it was."""
    while True:
        wider = _union([part, *(word.box for word in words if word.box.overlaps(part))], width, height)
        if wider == part:
            return part
        part = wider
