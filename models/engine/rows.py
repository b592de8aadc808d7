"""Input and output of the generator: requests, and the rows that are answered. Tokens and numbers; no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from warehouse.core.errors import RequestRefused

if TYPE_CHECKING:
    from models.engine.grammar import Constraint, Grammar

LEAST_TEMPERATURE = 1e-5
"""Below it, sampling in single precision always gives the likeliest token, as 0 does."""

Top = Sequence[tuple[int, float]]
"""The likeliest tokens of one place with their log-probabilities, the likeliest first, of those that could be sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `seed` feeds a generator of this request alone; temperature 0 is greedy. `vision` is what a vision-language
    model is handed beside the tokens; requests of one `conversation` follow one another and mostly begin alike. `num_top`: how many of the
    likeliest tokens to report beside each one sampled. From a token's logit `frequency_penalty` is taken for each time that the answer
    holds it already, `presence_penalty` if it does at all, and `logit_bias` is added to it. `grammar`: what the answer may consist of;
    None: anything."""

    prompt: Sequence[int]
    temperature: float
    max_new_tokens: int
    seed: int
    top_p: float = 1.0
    conversation: str | None = None
    vision: Mapping[str, Tensor] = field(default_factory=dict)
    num_top: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None

    def check(self, vocabulary_size: int) -> None:
        """Raises RequestRefused for an invalid value, so that it never reaches the other requests of its batch."""
        if self.temperature != 0 and not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise RequestRefused(f"temperature {self.temperature!r}: must be 0 (greedy) or at least {LEAST_TEMPERATURE:g}", "temperature")
        if not 0 < self.top_p <= 1:
            raise RequestRefused(f"top_p {self.top_p!r}: must be above 0 and at most 1", "top_p")
        if not -(2**63) <= self.seed < 2**63:
            raise RequestRefused(f"seed {self.seed}: must be a 64-bit integer", "seed")
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise RequestRefused(f"{name} {getattr(self, name)!r}: must be a finite number", name)
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocabulary_size or not math.isfinite(bias):
                raise RequestRefused(f"logit_bias {token}: {bias!r}: ids below {vocabulary_size} and finite biases only", "logit_bias")
        if self.max_new_tokens < 1:
            raise RequestRefused(f"max_new_tokens {self.max_new_tokens}: must be at least 1", "max_tokens")
        if self.prompt and not 0 <= min(self.prompt) <= max(self.prompt) < vocabulary_size:
            wrong = next(token for token in self.prompt if not 0 <= token < vocabulary_size)
            raise RequestRefused(f"token id {wrong} is outside the model's vocabulary of {vocabulary_size}", "prompt")


@dataclass(slots=True, eq=False)
class Row:
    """One answer under way. Keys and values of the first `num_cached` of `tokens` (prompt and answer) lie in the row's place of the KV
    cache. `keys` distinguish tokens when prefixes are compared (image tokens by their image); `extra` is the backend's own. `crossed_swap`:
    its keys and values come from more than one set of weights. `error`: why it alone cannot be answered."""

    request: Request
    tokens: list[int]
    keys: Sequence[int]
    draws: list[float]
    extra: Any = None
    num_cached: int = 0
    crossed_swap: bool = False
    is_done: bool = False
    error: Exception | None = None
    constraint: Constraint | None = None
    policy_id: str = ""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, *, keys: Sequence[int] | None = None, extra: Any = None) -> Row:
        draws = []
        if request.temperature > 0:
            draws = torch.rand(request.max_new_tokens, generator=torch.Generator().manual_seed(request.seed)).tolist()
        return cls(
            request=request,
            tokens=list(request.prompt),
            keys=request.prompt if keys is None else keys,
            draws=draws,
            extra=extra,
            constraint=request.grammar.begin() if request.grammar is not None else None,
        )

    @property
    def shifts_logits(self) -> bool:
        asked = self.request
        return bool(asked.frequency_penalty or asked.presence_penalty or asked.logit_bias)

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_pending(self) -> int:
        """Tokens that must still be read before the next one can be chosen."""
        return len(self.tokens) - self.num_cached

    @property
    def reach(self) -> int:
        """Slots the row may come to need."""
        return len(self.request.prompt) + self.request.max_new_tokens
