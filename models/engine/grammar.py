"""What an answer may consist of: JSON of a schema, or a grammar, as the tokens that may come next. llguidance does the work, and is
imported where the first grammar is made.

A grammar is compiled once, away from the engine's thread; each answer goes on with a copy of its own. llguidance bounds the work of
compiling and of each step, so that no schema holds the running batch up for long. Which tokens are chosen among those that may come next,
and with what log-probability, is models/engine/sampling.py's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from warehouse.core.errors import ModelError, RequestRefused

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from transformers import PreTrainedTokenizerBase

WHITE_SPACE = r"[ \n]?"
"""Between the parts of a JSON text: a model that may write more of it may never come to an end."""
MAX_SCHEMA_CHARS, MAX_SCHEMA_DEPTH = 200_000, 64


class Constraint:
    """One answer under way."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher, self._vocabulary_size = matcher, vocabulary_size

    def allowed(self) -> Tensor:
        """Which tokens may come next (V), as booleans; at the end, those that end an answer. Raises RequestRefused where the grammar needs
        more work than is allowed for a step."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(mask, count=self._vocabulary_size, bitorder="little")
        if self._matcher.is_error():
            raise RequestRefused(f"no token continues the answer within its grammar: {self._matcher.get_error()}", "response_format")
        return torch.from_numpy(bits).bool()

    def take(self, token: int) -> None:
        """A token that was allowed came next."""
        self._matcher.consume_token(token)


class Grammar:
    """A compiled grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher, self._vocabulary_size = matcher, vocabulary_size

    def begin(self) -> Constraint:
        """For a new answer; from any thread."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary_size)


class Grammars:
    """Grammars over one tokenizer's tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int], vocabulary_size: int) -> None:
        """Raises ModelError for a tokenizer whose tokens are not pieces of text, or whose way of decoding is not known."""
        from llguidance import LLTokenizer

        core: Any = getattr(tokenizer, "backend_tokenizer", None)
        if core is None:
            raise ModelError(f"{type(tokenizer).__name__} is not backed by the tokenizers library, which constraining answers needs")
        self._vocabulary_size = vocabulary_size
        ends = [token for token in eos_token_ids if token < vocabulary_size]
        try:
            self._tokens = LLTokenizer(core.to_str(), n_vocab=max(vocabulary_size, len(tokenizer)), eos_token=ends)
        except ValueError as error:
            raise ModelError(f"answers of this checkpoint cannot be constrained to a grammar: {error}") from error

    def of_schema(self, schema: Mapping[str, Any], param: str) -> Grammar:
        """JSON of a schema. Raises RequestRefused for one that nothing satisfies or that asks for what is not supported; `param` is the
        field that it is from."""
        return self.of_lark(f"start: {json_rule(schema, param)}", param)

    def of_lark(self, text: str, param: str) -> Grammar:
        """What a grammar in llguidance's form of Lark describes. Raises RequestRefused."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(text), log_level=0)
        if matcher.is_error():
            raise RequestRefused(f"{param} cannot be compiled to a grammar: {' '.join(matcher.get_error().split())[:400]}", param)
        return Grammar(matcher, self._vocabulary_size)


def json_rule(schema: Mapping[str, Any], param: str) -> str:
    """JSON of a schema, inside a Lark grammar. Raises RequestRefused for a schema that is too large."""
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise RequestRefused(f"{param} is nested more than {MAX_SCHEMA_DEPTH} levels deep", param)
    text = json.dumps(dict(schema) | {"x-guidance": {"whitespace_pattern": WHITE_SPACE}})
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestRefused(f"{param} has {len(text)} characters; at most {MAX_SCHEMA_CHARS} are allowed", param)
    return f"%json {text}"


def _depth(value: Any) -> int:
    """Levels of nesting, counted no further than one beyond the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_SCHEMA_DEPTH:
        inner = [part.values() if isinstance(part, Mapping) else part for part in level if isinstance(part, (Mapping, list))]
        level, depth = [one for parts in inner for one in parts], depth + 1
    return depth
