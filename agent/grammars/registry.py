"""Which grammars there are, by name. A literal dict: a new grammar is a new line here."""

from __future__ import annotations

from agent.grammars.base import Grammar
from agent.grammars.compact import CompactGrammar
from agent.grammars.doubao import DoubaoGrammar
from agent.grammars.uitars1 import UiTars1Grammar
from agent.grammars.uitars2 import UiTars2Grammar
from agent.grammars.uitars15 import UiTars15Grammar
from warehouse.errors import ConfigError

GRAMMARS: dict[str, Grammar] = {
    "compact": CompactGrammar(),
    "uitars1": UiTars1Grammar(),
    "uitars15": UiTars15Grammar(),
    "doubao": DoubaoGrammar(),
    "uitars2": UiTars2Grammar(),
}


def grammar_named(name: str) -> Grammar:
    """Raises ConfigError for a name that is not in GRAMMARS."""
    if name not in GRAMMARS:
        raise ConfigError(f"unknown grammar {name!r}; known are {', '.join(GRAMMARS)}; set `grammar` to one of them")
    return GRAMMARS[name]
