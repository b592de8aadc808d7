"""What fields for secrets are called: one list, for programs (secrecy.py) and, as text, for pages (browser/script.js).

The pattern means the same to Python's `re` and to JavaScript's RegExp with the flag u: no \\b and no \\w, which differ in letters that are
not ASCII. Names like `newPin` or `user_pin` are split into words by spaces beforehand (`words_of`).
"""

from __future__ import annotations

import re

_GAP = "[ _-]?"
_ANYWHERE = (
    f"pass{_GAP}(?:word|phrase|code|wort|wd)",
    "pwd",
    "kennwort",
    f"mot{_GAP}de{_GAP}passe",
    "contrase[nñ]a",
    "wachtwoord",
    "l[oö]senord",
    "парол",
    "密码",
    "密碼",
    "パスワード",
    "비밀번호",
    "secret(?!ar)",
    f"(?:api|access){_GAP}(?:key|token)",
    f"security{_GAP}code",
    f"one{_GAP}time{_GAP}(?:code|pass|pin)",
)
_BEGINNING_A_WORD = ("cv[cv]", "senha")
_WHOLE_WORDS = (f"pin(?:{_GAP}(?:code|number))?", "csc", f"t?otp(?:{_GAP}code)?", "2fa")
SOURCE = f"{'|'.join(_ANYWHERE)}|(?<![a-z0-9])(?:{'|'.join(_BEGINNING_A_WORD)}|(?:{'|'.join(_WHOLE_WORDS)})(?![a-z]))"
_NAMES = re.compile(SOURCE, re.IGNORECASE)
_WORDS = re.compile(r"([a-z0-9])([A-Z])")


def is_secret_name(name: str) -> bool:
    return _NAMES.search(words_of(name)) is not None


def words_of(name: str) -> str:
    """A name with its words apart; browser/script.js does the same."""
    return _WORDS.sub(r"\1 \2", name)
