"""Pictures from outside: three formats, a limit of pixels that holds before anything is decoded, and one error for all that is wrong."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from PIL import Image

from warehouse.core.errors import UnreadablePicture
from warehouse.storage.screenshots import pictures

SIZE = (7, 5)


def written(format: str, size: tuple[int, int] = SIZE) -> bytes:
    out = io.BytesIO()
    picture = Image.new("RGB", size)
    picture.putdata([(x * 31 % 256, x * 17 % 256, x * 7 % 256) for x in range(size[0] * size[1])])
    picture.save(out, format)
    return out.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A PNG of some bytes that says it has so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(64))), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_three_formats_are_read(format: str, tmp_path: Path) -> None:
    data = written(format)
    (tmp_path / "picture").write_bytes(data)
    for source in (data, tmp_path / "picture"):
        assert pictures.header(source) == pictures.Header(format=format.lower(), width_px=7, height_px=5)
        assert pictures.decoded(source).size == SIZE and pictures.decoded(source, "L").mode == "L"


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "ICO", "PPM", "TGA", "ICNS", "JPEG2000", "PCX", "SGI", "DDS", "EPS", "PDF"])
def test_other_formats_are_not(format: str) -> None:
    data = written(format, (16, 16))
    with pytest.raises(UnreadablePicture, match="PNG, JPEG or WEBP"):
        pictures.header(data)


def test_what_says_it_is_large_is_refused_before_it_is_decoded() -> None:
    tracemalloc.start()
    for width, height in [(8192, 8192), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (33_177_601, 1)]:
        with pytest.raises(UnreadablePicture):
            pictures.decoded(huge_png(width, height))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * 2**20
    with pytest.raises(UnreadablePicture, match="7 by 5 pixels: 1 to 34 in all"):
        pictures.header(written("PNG"), max_pixels=34)
    assert pictures.header(written("PNG"), max_pixels=35).width_px == 7


def test_whatever_is_broken_is_one_error() -> None:
    """Cut, flipped and filled at random places: read, or UnreadablePicture, and nothing else."""
    dice, num_refused = random.Random(17), 0
    for format in ("PNG", "JPEG", "WEBP"):
        whole = written(format, (64, 48))
        for _ in range(700):
            data = bytearray(whole)
            for _ in range(dice.randrange(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.3:
                del data[dice.randrange(len(data)) :]
            try:
                pictures.decoded(bytes(data))
            except UnreadablePicture:
                num_refused += 1
    assert num_refused > 200


def test_nothing_else_opens_pictures() -> None:
    root = Path(__file__).resolve().parents[2]
    rooms = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
    openers = {str(file.relative_to(root)) for room in rooms for file in (root / room).rglob("*.py") if "Image.open(" in file.read_text()}
    assert openers == {"warehouse/storage/screenshots/pictures.py"}
