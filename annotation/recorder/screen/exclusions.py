"""What is never recorded: windows by application or title, and parts of the screen. Nothing of them is stored: no events, and black pixels.

A window is as the window manager says; where a system does not report its windows (windows.py), only parts of the screen can be excluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box
from warehouse.core.errors import RecorderUnavailable

PASSWORD_APPLICATIONS = (
    "*pinentry*",
    "*keepass*",
    "*bitwarden*",
    "*1password*",
    "*lastpass*",
    "*seahorse*",
    "*kwallet*",
    "*askpass*",
    "*gcr-prompter*",
    "*polkit*",
    "*authentication-agent*",
    "*credentialui*",
    "*consent.exe*",
    "*securityagent*",
    "gksu*",
    "*lxqt-sudo*",
)
"""Programs that only ever ask for or show secrets."""
PASSWORD_TITLE = re.compile(
    r"\b(?:pass(?:word|phrase|code|wort)s?|pin entry|unlock (?:keyring|key|login|database)|authenticat(?:e|ion required)|keyring|"
    r"kennwort|mot de passe|contrase[nñ]a|master key|private key|seed phrase)\b",
    re.IGNORECASE,
)
"""Titles of windows that ask for a password: what is typed there is hidden, their title is not kept."""

Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class Exclusions(BaseModel):
    """Patterns are shell patterns without regard to case; a word without * or ? is found anywhere. Regions are pixels of the screen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    applications: tuple[Pattern, ...] = ()
    titles: tuple[Pattern, ...] = ()
    regions: tuple[Box, ...] = ()

    def check(self, *, knows_windows: bool) -> None:
        """Raises RecorderUnavailable where they could not be kept."""
        if (self.applications or self.titles) and not knows_windows:
            raise RecorderUnavailable("This system does not report its windows, so they cannot be excluded: exclude parts of the screen.")

    def hides(self, window: SeenWindow) -> bool:
        return (
            _matches(window.application, PASSWORD_APPLICATIONS)
            or _matches(window.application, self.applications)
            or _matches(window.title, self.titles)
        )

    def hides_point(self, x: int, y: int, windows: Sequence[SeenWindow]) -> bool:
        """Whether a point is in an excluded part of the screen, or on an excluded window. `windows` from the top one down."""
        if any(region.holds(x, y) for region in self.regions):
            return True
        top = next((window for window in windows if window.box.holds(x, y)), None)
        return top is not None and self.hides(top)

    def mask(self, looks: Iterable[Sequence[SeenWindow]], width_px: int, height_px: int) -> np.ndarray | None:
        """Which pixels are excluded by any of several looks at the windows, shape (height, width); None for no pixel."""
        hidden = np.zeros((height_px, width_px), dtype=bool)
        for windows in looks:
            if any(self.hides(window) for window in windows):
                one = np.zeros_like(hidden)
                for window in reversed(windows):
                    fill(one, window.box, self.hides(window))
                hidden |= one
        for region in self.regions:
            fill(hidden, region, True)
        return hidden if hidden.any() else None


def fill(array: np.ndarray, box: Box, value: object) -> None:
    """Set a rectangle of an image or a mask, as far as it lies inside."""
    array[max(0, box.y) : max(0, box.y + box.height), max(0, box.x) : max(0, box.x + box.width)] = value


def asks_for_password(title: str) -> bool:
    return PASSWORD_TITLE.search(title) is not None


def _matches(text: str, patterns: Iterable[str]) -> bool:
    folded = text.casefold()
    return any(
        fnmatchcase(folded, pattern.casefold()) if set("*?[") & set(pattern) else pattern.casefold() in folded for pattern in patterns
    )
