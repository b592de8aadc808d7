"""The Policy protocol: prompts in, responses with token ids and log-probabilities out. Engines that satisfy it live in models/.

Token ids go out as they came in: what is learned from is exactly what was sampled, never a re-tokenised text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `loss` is the weight of its tokens in training (0 = context only); acting ignores it."""

    role: str
    content: str
    screenshot_id: str | None = None
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one response. `seed` feeds a generator of this request alone, so that it does not depend on its neighbours. `top_p`
    keeps the likeliest tokens that together reach this probability; 1 keeps all."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 48
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`images` holds the bytes of the screenshots that the messages name, for engines that look at pixels. Prompts of one `conversation`
    (an episode's id) follow one another and mostly begin alike: an engine may keep what it computed for the beginning."""

    messages: tuple[Message, ...]
    sampling: Sampling
    conversation: str | None = None
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """`token_ids` ends with the end token unless the length limit cut it off; `logprobs[i]` belongs to `token_ids[i]`, in nats,
    under the distribution that was sampled from (temperature and top-p included; for greedy, temperature 1 and all tokens). `versions[i]`
    counts the updates that the weights behind `token_ids[i]` had seen, where the engine follows a learner; `policy_id` is that of the
    weights behind the first token. `values[i]`, where a critic was asked: what the episode was expected to still earn when `token_ids[i]`
    was about to be written."""

    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_id: str
    versions: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@runtime_checkable
class Policy(Protocol):
    """Anything that answers prompts: an embedded engine, an HTTP server, a scripted oracle."""

    @property
    def policy_id(self) -> str:
        """Checkpoint id of the weights that answer now."""
        ...

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        """One response per prompt, in order. Raises ModelError when the engine is broken; a prompt that is too long gives a
        Response with no tokens, which the episode loop records."""
        ...


def is_continuous(policy: Policy) -> bool:
    """Whether the policy batches concurrent calls of `act` itself and answers each as soon as it is ready, so that prompts need not be
    gathered first: the policy declares it by an attribute `is_continuous`."""
    return bool(getattr(policy, "is_continuous", False))
