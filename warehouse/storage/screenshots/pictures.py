"""How pictures are opened that did not come from this process: three formats, a limit of pixels, and one error for all that is wrong with
them. Nothing else calls `Image.open`. What pictures are for is their readers'.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from warehouse.core.errors import UnreadablePicture

FORMATS = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp"}
"""What is opened, by Pillow's name, and how the table `screenshots` calls it. Other decoders are old, rare and seldom looked at."""
MAX_PIXELS = 33_177_600
"""Of one picture: an 8K screen, or four 4K screens side by side; 100 MB as RGB. A file of a few KiB may name any size."""
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
"""What Pillow raises for a file that is not a whole picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a picture says of itself. `format`: a value of FORMATS."""

    format: str
    width_px: int
    height_px: int


@contextmanager
def opened(source: bytes | Path, *, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = tuple(FORMATS)) -> Iterator[Image.Image]:
    """A picture whose header was read; its pixels are decoded when they are first asked for, which belongs inside the block. Raises
    UnreadablePicture, also for what goes wrong in the block."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats) as image:
            check_size(image.size, max_pixels)
            yield image
    except UnreadablePicture:
        raise
    except BROKEN as error:
        said = type(error).__name__
        if not isinstance(error, UnidentifiedImageError):  # whose words are of an object in memory
            said += f": {' '.join(str(error).split())[:120]}"
        raise UnreadablePicture(f"the picture cannot be read as {_listed(formats)} ({said})") from error


def header(source: bytes | Path, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Format and size, without decoding; of a PNG it is seen too whether all of it is there. Raises UnreadablePicture."""
    with opened(source, max_pixels=max_pixels) as image:
        found = Header(format=FORMATS[str(image.format)], width_px=image.width, height_px=image.height)
        image.verify()
        return found


def decoded(source: bytes | Path, mode: str = "RGB", *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in memory, its pixels in Pillow's `mode`. Raises UnreadablePicture."""
    with opened(source, max_pixels=max_pixels) as image:
        return image.convert(mode)


def check_size(size_px: tuple[int, int], max_pixels: int = MAX_PIXELS) -> None:
    """Raises UnreadablePicture for a picture that is too large to decode, or empty."""
    width_px, height_px = size_px
    if not 0 < width_px * height_px <= max_pixels:
        raise UnreadablePicture(f"the picture has {width_px} by {height_px} pixels: 1 to {max_pixels} in all are read; make it smaller")


def _listed(formats: tuple[str, ...]) -> str:
    *others, last = formats
    return f"{', '.join(others)} or {last}" if others else last
