"""Whether what was typed is a password. Nothing can know that for sure; what is looked at, in this order:

1. the program says that a password field had the keyboard (AT-SPI role "password text"), at any time while it was typed;
2. the active window's title asks for one ("Password required", "Unlock keyring");
3. the field that had the keyboard, or that was clicked last, is called so ("Password", "PIN", "Passphrase");
4. a terminal's line ends with a question for one ("[sudo] password for me:");
5. in terminals, and where the program does not expose which element has the focus: what was typed did not show on the screen.

Not detected: a field that is not called so and shows dots or the letters, of a program that exposes nothing of itself. For that there is
`unknown_typing="hide"`, which hides all typing into such programs; and not recording.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from annotation.recorder.privacy.secret_names import is_secret_name
from annotation.recorder.screen.accessibility import Focus
from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.exclusions import asks_for_password
from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box

UnknownTyping = Literal["keep", "hide"]
PROMPT = re.compile(r"(?:pass(?:word|phrase|code)|\bPIN\b|passwort|kennwort|mot de passe|contraseña)[^\n]{0,80}[:：?]\s*$", re.IGNORECASE)
MIN_UNSEEN = 3
CURSOR_PX = 20
"""A change narrower than this is a blinking cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A burst of typing and what was around it. `clicked` is the name of what was clicked last before it."""

    text: str
    focus: Sequence[Focus]
    windows: Sequence[tuple[SeenWindow, ...]]
    clicked: str
    before: Frame | None
    after: Frame | None


def why_secret(typed: Typed, unknown_typing: UnknownTyping) -> str | None:
    """What to call it in brackets; None where nothing says that it is secret."""
    active = [window for look in typed.windows for window in look if window.is_active]
    if any(focus.is_password for focus in typed.focus) or any(asks_for_password(window.title) for window in active):
        return "password"
    if any(is_secret_name(focus.name) for focus in typed.focus if focus.role in ("input", "textarea", "spinner")):
        return "password"
    if is_secret_name(typed.clicked) or any(PROMPT.search(focus.tail) for focus in typed.focus):
        return "password"
    known = is_known(typed.focus, active)
    if known and not any(focus.tail for focus in typed.focus):
        return None
    if not known and unknown_typing == "hide":
        return "text"
    return "unseen" if len(typed.text.strip()) >= MIN_UNSEEN and _is_unseen(typed, active) else None


def is_known(focus: Sequence[Focus], active: Sequence[SeenWindow]) -> bool:
    """Whether the programs that had the keyboard expose which element has the focus."""
    pids = {window.pid for window in active}
    return bool(focus) and all(one.role != "" and (not pids or one.pid in pids) for one in focus[-1:])


def _is_unseen(typed: Typed, active: Sequence[SeenWindow]) -> bool:
    """Whether the window looked the same before and after; also where there is no later picture to compare."""
    before, after = typed.before, typed.after
    if before is None or after is None or before.pixels.shape != after.pixels.shape:
        return True
    if before is after:
        return True
    box = active[-1].inner if active else Box(x=0, y=0, width=before.size_px[0], height=before.size_px[1])
    part = (slice(max(0, box.y), max(0, box.y + box.height)), slice(max(0, box.x), max(0, box.x + box.width)))
    columns = np.flatnonzero((before.pixels[part] != after.pixels[part]).any(axis=(0, 2)))
    return columns.size == 0 or int(columns[-1] - columns[0]) < CURSOR_PX
