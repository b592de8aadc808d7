"""Which grammars there are, by name. A literal dict: a new grammar is a new line here."""

from __future__ import annotations

from agent.grammars.base import Grammar
from agent.grammars.compact import CompactGrammar
from warehouse.errors import ConfigError

GRAMMARS: dict[str, Grammar] = {
    "compact": CompactGrammar(),
}


def grammar_named(name: str) -> Grammar:
    """Raises ConfigError for a name that is not in GRAMMARS."""
    if name not in GRAMMARS:
        raise ConfigError(f"unknown grammar {name!r}; known are {', '.join(GRAMMARS)}; set `grammar` to one of them")
    return GRAMMARS[name]
