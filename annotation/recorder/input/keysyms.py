"""From X11 keysyms to key names and characters. Pure but for libxkbcommon, which knows the legacy keysyms of other scripts where it is
installed.

Input methods (Chinese, Japanese, Korean) compose text where the X server does not see it: what is recorded then are the keys.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import unicodedata
from collections.abc import Sequence
from functools import cache

SHIFT, LOCK, NUM_LOCK, LEVEL_3 = 1, 2, 16, 128
"""Bits of an event's state as layouts use them: Shift, Caps Lock, Mod2, Mod5 (AltGr)."""
_NAMES = {
    0xFF0D: "enter",
    0xFF8D: "enter",
    0xFF09: "tab",
    0xFE20: "tab",
    0xFF1B: "escape",
    0xFF08: "backspace",
    0xFFFF: "delete",
    0xFF9F: "delete",
    0xFF63: "insert",
    0xFF9E: "insert",
    0xFF51: "arrowleft",
    0xFF52: "arrowup",
    0xFF53: "arrowright",
    0xFF54: "arrowdown",
    0xFF96: "arrowleft",
    0xFF97: "arrowup",
    0xFF98: "arrowright",
    0xFF99: "arrowdown",
    0xFF55: "pageup",
    0xFF56: "pagedown",
    0xFF9A: "pageup",
    0xFF9B: "pagedown",
    0xFF57: "end",
    0xFF9C: "end",
    0xFF50: "home",
    0xFF95: "home",
    0xFFE3: "ctrl",
    0xFFE4: "ctrl",
    0xFFE1: "shift",
    0xFFE2: "shift",
    0xFFE9: "alt",
    0xFFEA: "alt",
    0xFFE7: "meta",
    0xFFE8: "meta",
    0xFFEB: "meta",
    0xFFEC: "meta",
    0xFE03: "altgr",
    0xFF7E: "altgr",
    0xFFE5: "capslock",
    0x0020: "space",
    **{0xFFBD + n: f"f{n}" for n in range(1, 13)},
}
_KEYPAD = {
    0xFFAA: "*",
    0xFFAB: "+",
    0xFFAC: ",",
    0xFFAD: "-",
    0xFFAE: ".",
    0xFFAF: "/",
    0xFFBD: "=",
    **{0xFFB0 + n: str(n) for n in range(10)},
}
_DEAD = {
    0xFE50: "\u0300",
    0xFE51: "\u0301",
    0xFE52: "\u0302",
    0xFE53: "\u0303",
    0xFE54: "\u0304",
    0xFE55: "\u0306",
    0xFE56: "\u0307",
    0xFE57: "\u0308",
    0xFE58: "\u030a",
    0xFE59: "\u030b",
    0xFE5A: "\u030c",
    0xFE5B: "\u0327",
    0xFE5C: "\u0328",
}
"""Dead keys, by the combining character they put on the next letter."""
_SPACING = {"\u0300": "`", "\u0301": "´", "\u0302": "^", "\u0303": "~", "\u0308": "¨", "\u0327": "¸"}


def character(keysym: int) -> str:
    """What a keysym types; empty for keys that type nothing."""
    if 0x20 <= keysym <= 0x7E or 0xA0 <= keysym <= 0xFF:
        return chr(keysym)
    if 0x01000100 <= keysym <= 0x0110FFFF:
        return chr(keysym - 0x01000000)
    if keysym in _KEYPAD:
        return _KEYPAD[keysym]
    library = _xkbcommon()
    if library is None or not 0x100 <= keysym < 0xFD00:
        return ""
    code = int(library.xkb_keysym_to_utf32(keysym))
    return chr(code) if code >= 0x20 else ""


def name_of(keysym: int) -> str:
    """The key's name; empty for keys that actions do not know."""
    return _NAMES.get(keysym) or character(keysym).lower()


def choose(keysyms: Sequence[int], state: int) -> int:
    """The keysym that a key gives with these modifiers, of its list in the core protocol's order: group 1 plain and shifted, group 2 the
    same, then the third and fourth level of group 1."""

    def at(index: int) -> int:
        return keysyms[index] if index < len(keysyms) else 0

    group = 2 * ((state >> 13 & 3) == 1)
    is_shifted = bool(state & SHIFT)
    if state & NUM_LOCK and 0xFF80 <= at(group + 1) <= 0xFFBD:
        return at(group + (not is_shifted))
    if state & LEVEL_3 and (at(4) or at(5)):
        return at(4 + is_shifted) or at(4)
    plain, shifted = at(group) or at(0), at(group + 1) or at(group) or at(1) or at(0)
    if state & LOCK and character(plain).isalpha():
        is_shifted = not is_shifted
    if is_shifted and shifted == plain and character(plain).islower():
        upper = character(plain).upper()
        return ord(upper) if len(upper) == 1 and ord(upper) < 0x100 else shifted
    return shifted if is_shifted else plain


class Composer:
    """Puts a dead key's accent on the letter after it."""

    def __init__(self) -> None:
        self._accent = ""

    def text(self, keysym: int) -> str:
        """What a key that went down types, now that everything before it is known."""
        if keysym in _DEAD:
            self._accent = _DEAD[keysym]
            return ""
        typed = character(keysym)
        if not typed or not self._accent:
            return typed
        accent, self._accent = self._accent, ""
        if typed == " ":
            return _SPACING.get(accent, "")
        composed = unicodedata.normalize("NFC", typed + accent)
        return composed if len(composed) == 1 else typed


def is_dead(keysym: int) -> bool:
    return keysym in _DEAD


@cache
def _xkbcommon() -> ctypes.CDLL | None:
    path = ctypes.util.find_library("xkbcommon")
    if path is None:
        return None
    library = ctypes.CDLL(path)
    library.xkb_keysym_to_utf32.argtypes, library.xkb_keysym_to_utf32.restype = [ctypes.c_uint32], ctypes.c_uint32
    return library
