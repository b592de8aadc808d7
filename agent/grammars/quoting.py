"""Text between double quotes in the compact grammar: escaped so that it survives a tokenizer which splits on white space, pads every
double quote with spaces, joins words with single spaces and knows printable ASCII only. What the quotes mean is compact.py's business.
"""

from __future__ import annotations

import re

from agent.grammars.base import BadText

_SIMPLE = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", '"': "\\q"}
_UNESCAPED = {"\\": "\\", "n": "\n", "t": "\t", "q": '"', "s": " "}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_PLAIN = re.compile(r"[!#-;=-\[\]-~]+(?: [!#-;=-\[\]-~]+)*")
"""Printable ASCII with single spaces between, without quote, backslash and `<`: most text, and nothing in it to escape."""
_TOKEN_LIKE = re.compile(r"<(?=/?\w{1,16}>)")


def _escape_character(character: str, keep_quotes: bool) -> str:
    if character == '"' and keep_quotes:
        return character
    if character in _SIMPLE:
        return _SIMPLE[character]
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def escape(text: str, *, keep_quotes: bool = False) -> str:
    """The form that stands between quotes. Spaces at the ends and after another space become `\\s`; other characters than printable
    ASCII become `\\uXXXX` or `\\UXXXXXXXX`; `<word>` loses its bracket, so that no page can write a special token."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = "".join(_escape_character(character, keep_quotes) for character in text)
    escaped = _TOKEN_LIKE.sub(r"\\u003c", escaped)
    escaped = re.sub(r"(?<= ) ", r"\\s", escaped)
    if escaped.startswith(" "):
        escaped = "\\s" + escaped[1:]
    return escaped[:-1] + "\\s" if escaped.endswith(" ") else escaped


def unescape(text: str) -> str:
    """The inverse of `escape`; white space at both ends is the tokenizer's and goes. An unknown escape stays as it is. Raises BadText."""

    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 1:
            return _UNESCAPED.get(code, match.group(0))
        value = int(code[1:], 16)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise BadText(f"escape \\{code} is not a character")
        return chr(value)

    return _ESCAPE.sub(replace, text.strip())


def one_line(text: str) -> str:
    """Running text for a prompt: white space collapsed, quotes kept, the rest escaped as between quotes."""
    return escape(" ".join(text.split()), keep_quotes=True)
