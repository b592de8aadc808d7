"""What becomes of pictures that tesseract does not read: a program in its place that fails, is slow, or says what the test wants."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from annotation.recorder.desktop import machine
from annotation.recorder.screen import text_reader
from annotation.recorder.screen.text_reader import SCALE, Tesseract, find_text_reader
from annotation.recorder.screen.windows import NoWindows
from annotation.recorder.settings import RecordSettings
from warehouse.core.errors import RecorderUnavailable

HEAD = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext\n"
PROGRAM = """#!/bin/sh
cat > "$FAKE/asked.png"
case "$(cat "$FAKE/manner")" in
  fails) echo "Error opening data file eng.traineddata" >&2; exit 1;;
  sleeps) exec sleep 30;;
  speaks) cat "$FAKE/said.tsv";;
esac
"""


class Fake:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        (folder / "tesseract").write_text(PROGRAM)
        (folder / "tesseract").chmod(0o755)
        monkeypatch.setenv("FAKE", str(folder))
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        self.says()

    def is_(self, manner: str) -> None:
        (self._folder / "manner").write_text(manner)

    def says(self, *words: tuple[str, int, int]) -> None:
        """Words and where they begin, by pixels of what it was asked to read."""
        rows = [f"5\t1\t1\t1\t{n}\t1\t{x * SCALE}\t{y * SCALE}\t80\t24\t95\t{text}\n" for n, (text, x, y) in enumerate(words)]
        (self._folder / "said.tsv").write_text(HEAD + "".join(rows))
        self.is_("speaks")

    @property
    def asked_px(self) -> tuple[int, int]:
        """Width and height of what it was asked to read last."""
        width, height = Image.open(io.BytesIO((self._folder / "asked.png").read_bytes())).size
        return width // SCALE, height // SCALE


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def page() -> np.ndarray:
    return np.full((300, 200, 3), 250, np.uint8)


@pytest.mark.parametrize("manner", ["fails", "sleeps", "says nothing at all"])
def test_a_picture_that_was_not_read_is_not_taken_for_one_without_words(manner: str, fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_reader, "LIMIT_S", 0.5 if manner == "sleeps" else 30.0)
    reader, pixels = Tesseract(), page()
    fake.is_(manner)
    for _ in range(2):
        with pytest.raises(RecorderUnavailable, match="within 0.5 s" if manner == "sleeps" else "tesseract read nothing"):
            reader.words(pixels)
    monkeypatch.setattr(text_reader, "LIMIT_S", 30.0)
    fake.says(("hello", 10, 10))
    assert [word.text for word in reader.words(pixels)] == ["hello"], "the same picture is read after all"
    changed = pixels.copy()
    changed[150:160, 50:60] = 0
    fake.is_(manner)
    monkeypatch.setattr(text_reader, "LIMIT_S", 0.5 if manner == "sleeps" else 30.0)
    with pytest.raises(RecorderUnavailable):
        reader.words(changed)
    monkeypatch.setattr(text_reader, "LIMIT_S", 30.0)
    later = changed.copy()
    later[250:255, 50:60] = 0
    fake.says(("hello", 10, 10), ("secret", 50, 150))
    assert [word.text for word in reader.words(later)] == ["hello", "secret"] and fake.asked_px == (200, 300), "read whole"


def test_words_outside_a_strip_that_is_read_again_are_kept(fake: Fake):
    reader, pixels = Tesseract(), page()
    fake.says(("above", 10, 10), ("tall", 10, 225))
    reader.words(pixels)
    changed = pixels.copy()
    changed[250:260] = 0  # as wide as the picture
    fake.says(("new", 10, 20))
    assert [(word.text, word.box.y) for word in reader.words(changed)] == [("above", 10), ("new", 245)], "with the word that its edge cut"


def test_a_recorder_does_not_start_with_a_reader_that_does_not_read(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    reader = find_text_reader()
    assert reader is not None
    fake.says(("noise", 3, 3))
    with pytest.raises(RecorderUnavailable, match="1 other words"):
        reader.check()
    fake.is_("fails")
    with pytest.raises(RecorderUnavailable, match=r"eng\.traineddata.*tesseract-ocr-eng"):
        reader.check()
    fake.says(("Letters", 20, 16))
    reader.check()
    monkeypatch.setattr(machine, "check_screen", lambda: None)
    monkeypatch.setattr(machine, "window_reader", NoWindows)
    monkeypatch.setattr(machine, "_inputs", lambda: type("Inputs", (), {"check": lambda self: None})())
    fake.is_("fails")
    with pytest.raises(RecorderUnavailable, match=r"eng\.traineddata"):
        machine.check_machine(RecordSettings(), with_microphone=False)
    machine.check_machine(RecordSettings(read_pixels="off"), with_microphone=False)
