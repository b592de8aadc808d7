"""Where proposals come from: the seam through which the composition root (pipelines) hands policies to the annotation server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.policy.policy import Policy
from agent.prompts.prompt import PromptBuilder

NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A policy that answers, and how it is asked."""

    policy_id: str
    policy: Policy
    builder: PromptBuilder
    max_new_tokens: int


class KnownPolicies(Protocol):
    """Asked when a campaign names one."""

    async def check(self, policy: str) -> None:
        """Opens nothing; `newest` may be still to come. Raises CheckpointError for an unknown id."""
        ...


class PolicySource(KnownPolicies, Protocol):
    """Asked when an episode begins, so that a release is picked up between episodes without a restart."""

    async def get(self, policy: str) -> Served:
        """The policy of a checkpoint id, or the newest release for `newest`. Raises CheckpointError, ModelError."""
        ...

    async def close(self) -> None:
        """End the engines; may be called twice."""
        ...
