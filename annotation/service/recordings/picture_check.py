"""Whether a picture of an uploaded recording is what its manifest says. Run as a process it answers a line of JSON for each that it is
given, within limits of memory and processor time, and can touch nothing that the server holds (picture_workers.py starts it).
"""

from __future__ import annotations

import io
import json
import resource
import struct
import sys
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from warehouse.core.errors import UnreadablePicture
from warehouse.core.identity import ID_HEX_DIGITS
from warehouse.core.processes import die_with_parent
from warehouse.storage.screenshots import pictures

PNG_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
PNG_TAIL = b"\x00\x00\x00\x00IEND\xaeB`\x82"
MEMORY_BYTES = 1024**3
"""Of the address space: a picture of the most pixels takes 130 MB, Python and Pillow less than that."""
PICTURE_CPU_S = 20
"""Of one picture; the largest takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A picture as its manifest describes it; `path` is where its bytes lie."""

    path: str
    sha256: str
    screen_id: str
    width_px: int
    height_px: int


def fault_of(wanted: Wanted) -> str | None:
    """What is wrong with a picture: its name is that of its bytes, its header is a PNG's of the stated size, it is there to its end,
    and it can be drawn. None where all that holds."""
    part = f"the part {wanted.sha256[:12]}… of {wanted.screen_id}"
    if wanted.screen_id != f"screen-{wanted.sha256[:ID_HEX_DIGITS]}":
        return f"{wanted.screen_id} is not the id of the picture {wanted.sha256[:12]}…: ids are made of the digest's beginning"
    try:
        head, tail = _ends(Path(wanted.path))
    except FileNotFoundError:
        return f"{part} is no longer here: upload the recording again"
    if len(head) < len(PNG_HEAD) + 17 or not head.startswith(PNG_HEAD) or tail != PNG_TAIL:
        return f"{part} is not a complete PNG picture"
    width, height = struct.unpack(">II", head[16:24])
    if zlib.crc32(head[12:29]) != struct.unpack(">I", head[29:33])[0]:
        return f"{part} is not a PNG picture: its header is broken"
    if (width, height) != (wanted.width_px, wanted.height_px):
        return f"{wanted.screen_id} has {width} by {height} pixels, its manifest says {wanted.width_px} by {wanted.height_px}"
    return _fault_of_pixels(wanted, part)


def _ends(path: Path) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        head = file.read(len(PNG_HEAD) + 17)
        file.seek(-min(len(PNG_TAIL), file.seek(0, io.SEEK_END)), io.SEEK_END)
        return head, file.read()


def _fault_of_pixels(wanted: Wanted, part: str) -> str | None:
    """Broken pictures are found here, not in training. A file may have several headers: the size is compared again."""
    try:
        for look in ("verify", "load"):  # the checksums of all chunks, then the pixels
            with pictures.opened(Path(wanted.path), formats=("PNG",)) as image:
                if image.size != (wanted.width_px, wanted.height_px):
                    return f"{part} cannot be drawn (it has two sizes, one of them {image.width} by {image.height})"
                getattr(image, look)()
    except UnreadablePicture as error:
        return f"{part} cannot be drawn ({error}): take this picture out of the recording"
    return None


def line_of(wanted: Wanted) -> bytes:
    return json.dumps(asdict(wanted)).encode() + b"\n"


def main() -> None:
    """Answers until its input ends. A picture that takes too long ends the process (SIGXCPU)."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + PICTURE_CPU_S, hard))
        print(json.dumps(fault_of(Wanted(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
