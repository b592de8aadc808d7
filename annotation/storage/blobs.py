"""Pictures, each stored once under the id of its bytes: the id that a session's observation gives it, and that a table refers to. A name
from outside is only ever compared with the form of an id, never made a path of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from warehouse.core.errors import ConfigError, UnknownSubject
from warehouse.core.home import Home, atomic_write
from warehouse.core.identity import ID_HEX_DIGITS, bytes_id

PNG = b"\x89PNG\r\n\x1a\n"
_ID = re.compile(rf"screen-([0-9a-f]{{{ID_HEX_DIGITS}}})")


class Blobs:
    """A folder of pictures. Its methods block: from an event loop call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_home(cls, home: Home) -> Blobs:
        return cls(home.root / "annotation" / "screens")

    def put(self, data: bytes) -> str:
        """Keep a PNG file; its id. What is there already is not written again. Raises ConfigError for anything but a PNG, StorageFull."""
        if not data.startswith(PNG):
            raise ConfigError(f"only PNG pictures are kept here; these {len(data)} bytes begin with {data[:8]!r}")
        screenshot_id = bytes_id("screen", data)
        path = self._path(screenshot_id)
        if path is not None and not path.is_file():
            atomic_write(path, data)
        return screenshot_id

    def get(self, screenshot_id: str) -> bytes:
        """Raises UnknownSubject for an id that is none, or that nothing is kept under."""
        path = self._path(screenshot_id)
        if path is None or not path.is_file():
            raise UnknownSubject(f"there is no picture {screenshot_id[:80]!r}")
        return path.read_bytes()

    def erase(self, screenshot_ids: Iterable[str]) -> int:
        """Remove pictures for good; how many there were. May be done twice."""
        num = 0
        for path in filter(None, map(self._path, screenshot_ids)):
            with suppress(FileNotFoundError):
                path.unlink()
                num += 1
        return num

    def has(self, screenshot_id: str) -> bool:
        path = self._path(screenshot_id)
        return path is not None and path.is_file()

    def _path(self, screenshot_id: str) -> Path | None:
        """None for what is not an id."""
        found = _ID.fullmatch(screenshot_id)
        return None if found is None else self.folder / found[1][:2] / f"{screenshot_id}.png"
