"""Which grammars there are, by name. A literal dict: a new grammar is a new line here."""

from __future__ import annotations

from functools import cache

from agent.grammars.base import Grammar
from agent.grammars.compact import CompactGrammar
from agent.grammars.doubao import DoubaoGrammar
from agent.grammars.uitars1 import UiTars1Grammar
from agent.grammars.uitars2 import UiTars2Grammar
from agent.grammars.uitars15 import UiTars15Grammar
from warehouse.core.errors import ConfigError

GRAMMARS: dict[str, Grammar] = {
    "compact": CompactGrammar(),
    "uitars1": UiTars1Grammar(),
    "uitars15": UiTars15Grammar(),
    "doubao": DoubaoGrammar(),
    "uitars2": UiTars2Grammar(),
}


@cache
def grammar_named(name: str) -> Grammar:
    """`uitars2:TOKEN` is uitars2 with another word in its think tags, as a checkpoint may have learned it. Raises ConfigError for a name
    that is not in GRAMMARS, and for a token that is not a word."""
    family, colon, token = name.partition(":")
    if colon and family == "uitars2":
        try:
            return UiTars2Grammar(think_token=token)
        except ValueError as error:
            raise ConfigError(f"grammar {name!r}: {error}") from None
    if name not in GRAMMARS:
        raise ConfigError(
            f"unknown grammar {name!r}: set `grammar` to one of {', '.join(GRAMMARS)}, or to uitars2:TOKEN for another think token"
        )
    return GRAMMARS[name]
