"""Requests to a server, its answers, and what may differ between kinds of servers: the types of routes.py and kinds.py. No server
is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agent.policy.policy import Message, Sampling
from models.http.config import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One answer wanted. `extras` are the fields beyond the common ones that the server was found to take."""

    model: str
    messages: Sequence[Message]
    images: Mapping[str, bytes]
    token_ids: Sequence[int] | None
    sampling: Sampling
    stop: Sequence[str]
    extras: Mapping[str, Any]
    conversation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer; None for what it does not return. `top_logprob` is that of the likeliest first token, where it was requested."""

    text: str
    prompt_token_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprob: float | None = None
    versions: tuple[int, ...] = ()
    policy_id: str | None = None
    is_unnamed: bool = False
    """Whether the server says that its weights are those that it started with."""


class Dialect(Protocol):
    path: str
    extras: Sequence[Mapping[str, Any]]
    """Sets of further fields, the richest first: what a server does not take, it may refuse."""
    top_fields: Mapping[str, Any]
    """Fields that ask for the likeliest token's log-probability."""

    def body(self, ask: Ask) -> dict[str, Any]: ...

    def read(self, data: Mapping[str, Any]) -> Answer:
        """Raises ModelError for an answer of another form."""
        ...

    def is_broken_off(self, data: Any) -> bool: ...


Request = tuple[str, Mapping[str, Any]]
"""A path to post to, and the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a kind of server loads other weights, by one of the ways it has."""

    takes: Literal["checkpoints", "adapters"]
    path: str
    body: Callable[[str, str, int, str], dict[str, Any]]
    """Of the folder, the checkpoint's id, its version, and the name of this engine's own model where `adds_model`."""
    is_sent: bool = False
    """Whether the weights travel over the network instead of through a folder (models/http/transfer.py): the body is all but the data."""
    needs: str | None = None
    """Path that a server which has this way answers with 200."""
    confirmed_by: str | None = None
    """Field of its answer without which it did not load them; None: the status says all."""
    forbidden_code: str | None = None
    """What it calls the refusal of a folder that it may not load from; None: it cannot be asked in advance."""
    holds: str | None = None
    """Path that stops generation while weights are loaded; answers under way go on behind `releases`."""
    holds_when_finished: str | None = None
    """The same, but answers under way finish first."""
    releases: str | None = None
    before: Sequence[Request] = ()
    after: Callable[[str, int], Sequence[Request]] = lambda checkpoint_id, version: ()
    """Further requests, by the checkpoint's id and its version."""
    if_lost: Sequence[Request] = ()
    """Requests to send where loading failed half-way."""
    keeps_tied_head_on_cpu: bool = False
    """Whether, on a CPU, an output layer that is tied to the embedding stays as it was; `SERVER_INFO` says where it runs."""
    adds_model: bool = False
    """Whether the weights become a further model with a name of its own, beside the one that was listed."""
    unload_path: str | None = None
    """Where such a model is unloaded, by `unload_body` of its name."""
    unload_body: Callable[[str], dict[str, Any]] = field(default=lambda name: {"name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is known of a kind of server before it is asked anything."""

    owner: str | None = None
    """Who owns its models, as its list of them says."""
    declares_in: str | None = None
    """Field of that list in which it says itself what it gives; None: it is found out."""
    neutral: Mapping[str, Any] = field(default_factory=dict)
    """Fields that leave sampling as it was asked for, where a server would take more from the model's generation_config."""
    chat_fields: Mapping[str, Any]
    """Fields that make a chat completion return token ids and log-probabilities, as far as it can."""
    takes_conversation: bool = False
    """Whether requests name the conversation that a prompt continues; other servers find common prefixes by themselves."""
    tokens: Sequence[Callable[[Kind], Dialect]]
    """Its routes for prompts of token ids, the one that gives most first; servers may be started without it."""
    ways: Mapping[Way, Loading] = field(default_factory=dict)
    """How it loads weights, the way that is taken by itself first."""
