"""Versions of the games, held to their files: versions.json says for which checksum a version stands. What is in the files is not known.

    python -m sandbox.tasks.games.versions             # after a change: raise the version in the game's file (or the engine's), then this
    python -m sandbox.tasks.games.versions --keep      # while a version has not been released: the same version for the new files

A game's version is `<its own>.<the engine's>`; its checksum covers its page and every script and style sheet that the page loads.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from warehouse.core.errors import ConfigError
from warehouse.core.identity import files_id

PAGES = Path(__file__).with_name("pages")
VERSIONS_FILE = Path(__file__).with_name("versions.json")
INDEX = "index"
"""The page that lists the games."""

_OWN_VERSION = re.compile(r"^    version: (\d+),$", re.MULTILINE)
_LOADED = re.compile(r'(?:src|href)="([\w.-]+)"')
_ENGINE_VERSION = re.compile(r"^  const ENGINE_VERSION = (\d+);$", re.MULTILINE)


class GameVersion(BaseModel):
    """One game as it is: its version and the checksum of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    checksum: str


def game_names() -> tuple[str, ...]:
    """Every game that has a page, in alphabetical order."""
    return tuple(sorted(path.stem for path in PAGES.glob("*.html") if path.stem != INDEX))


def read_version(game: str) -> GameVersion:
    """Version and checksum as the files say. Raises ConfigError where the game has no page or states no version."""
    page = PAGES / f"{game}.html"
    try:
        files = [page, *(PAGES / name for name in _LOADED.findall(page.read_text(encoding="utf-8")))]
        own = _OWN_VERSION.search((PAGES / f"{game}.js").read_text(encoding="utf-8"))
        engine = _ENGINE_VERSION.search((PAGES / "engine.js").read_text(encoding="utf-8"))
        checksum = files_id("game", files)
    except OSError as error:
        raise ConfigError(f"The game {game!r} is incomplete: {error}. Its page must load files that are there.") from error
    if own is None or engine is None:
        raise ConfigError(f"The game {game!r} states no version: its definition needs a line `    version: 1,` (four spaces before it).")
    return GameVersion(version=f"{own[1]}.{engine[1]}", checksum=checksum)


@cache
def recorded_versions() -> dict[str, GameVersion]:
    """Games by name as versions.json says. Raises ConfigError where it is malformed."""
    try:
        stored = json.loads(VERSIONS_FILE.read_text(encoding="utf-8"))
        return {game: GameVersion.model_validate(version) for game, version in stored.items()}
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(
            f"sandbox/tasks/games/versions.json is not usable: {error}. Make it: python -m sandbox.tasks.games.versions"
        ) from error


def verified(game: str) -> GameVersion:
    """As recorded. Raises ConfigError where the game's files are others: what such a page says of itself is worth nothing."""
    found, recorded = read_version(game), recorded_versions().get(game)
    if found != recorded:
        raise ConfigError(
            f"The game {game!r} has files of checksum {found.checksum}, and versions.json knows "
            f"{recorded.checksum if recorded else 'none'}: its verifier is not to be trusted. Restore the files, or record the change: "
            "python -m sandbox.tasks.games.versions"
        )
    return found


def unraised() -> list[str]:
    """Games whose files changed while their version did not, or that versions.json does not know."""
    recorded = recorded_versions()
    return [game for game in game_names() if recorded.get(game) != read_version(game)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sandbox.tasks.games.versions", description="Record versions and checksums of the games."
    )
    parser.add_argument("--keep", action="store_true", help="allow a version to stand for changed files")
    options = parser.parse_args(arguments)
    found = {}
    for game in game_names():
        with suppress(ConfigError):  # being written; the tests report it
            found[game] = read_version(game)
    recorded = recorded_versions() if VERSIONS_FILE.exists() else {}
    changed = [game for game in found if game in recorded and recorded[game] != found[game]]
    same = [game for game in changed if recorded[game].version == found[game].version]
    if same and not options.keep:
        print(f"Changed, with the version of before: {', '.join(same)}. Raise `version` in the script, or ENGINE_VERSION.", file=sys.stderr)
        return 1
    VERSIONS_FILE.write_text(json.dumps({game: each.model_dump() for game, each in found.items()}, indent=1) + "\n", encoding="utf-8")
    recorded_versions.cache_clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
