"""From tokens to text as they come: what is certain about an answer before it is complete, and where a stop text ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What decoding gives for a character of which only the first bytes are there yet."""


class TextSoFar:
    """Tokens go in one by one, pieces of text come out; put together they are the answer's text. A piece is held back while a later token
    could still change it: half a character, or what may be the beginning of a stop text.

    Only the last few tokens are decoded again each time: from the beginning of the last piece that was said, so that marks that join tokens
    (spaces, glue) see their neighbour.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._token_ids: list[int] = []
        self._window = self._said = 0
        self._held = ""
        self.is_stopped = False

    def add(self, token_id: int) -> str:
        """The text that is certain now. After a stop text, nothing more."""
        if self.is_stopped:
            return ""
        self._token_ids.append(token_id)
        before = self._decode(self._token_ids[self._window : self._said]) if self._said > self._window else ""
        after = self._decode(self._token_ids[self._window :])
        if after.endswith(REPLACEMENT) or not after.startswith(before):
            return ""
        self._window, self._said = self._said, len(self._token_ids)
        return self._release(after[len(before) :])

    def finish(self) -> str:
        """What was held back and turned out to belong to the answer."""
        if self.is_stopped:
            return ""
        rest = ""
        if self._said < len(self._token_ids):
            before = self._decode(self._token_ids[self._window : self._said]) if self._said > self._window else ""
            rest = self._decode(self._token_ids[self._window :])[len(before) :]
            self._window, self._said = self._said, len(self._token_ids)
        text = self._release(rest)
        held, self._held = self._held, ""
        return text if self.is_stopped else text + held

    def _release(self, new: str) -> str:
        text = self._held + new
        ends = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max((size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
