"""Which grammars there are, by name: GRAMMARS. How one is registered is warehouse/core/plugins.py."""

from __future__ import annotations

from functools import cache

from agent.grammars.base import Grammar
from agent.grammars.uitars2 import UiTars2Grammar
from warehouse.core.errors import ConfigError
from warehouse.core.plugins import Plugins

GRAMMARS: Plugins[Grammar] = Plugins(
    "grammars",
    noun="grammar",
    example="grammar.py:GRAMMAR",
    is_one=lambda found: isinstance(found, Grammar) and not isinstance(found, type),
    expected="a Grammar (agent/grammars/base.py): an object with `name`, `layout`, `parse`, `format` and `describe`",
)


def grammar_named(name: str) -> Grammar:
    """`uitars2:TOKEN` is uitars2 with another word in its think tags, as a checkpoint may have learned it. Raises ConfigError for a name
    that is not in GRAMMARS, and for a token that is not a word."""
    family, colon, token = name.partition(":")
    if colon and family == "uitars2":
        return _with_token(name, token)
    if name not in GRAMMARS:
        raise ConfigError(
            f"unknown grammar {name!r}: set `grammar` to one of {', '.join(GRAMMARS)}, or to uitars2:TOKEN for another think token"
        )
    return GRAMMARS[name]


@cache
def _with_token(name: str, token: str) -> Grammar:
    try:
        return UiTars2Grammar(think_token=token)
    except ValueError as error:
        raise ConfigError(f"grammar {name!r}: {error}") from None
