"""Episodes: what one is (request, steps, outcome). The loop that runs one is agent/episode/loop.py; rows and files of one are
agent/episode/rows.py's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.policy.policy import Message
from sandbox.actions import Action
from sandbox.tasks.task import Split, Task
from warehouse.core.identity import content_id, stable_seed

Purpose = Literal["seed", "rollout", "annotation", "rl", "evaluation", "second_browser", "gateway"]


class Outcome(StrEnum):
    """How an episode ended. Only `crashed` is the infrastructure's doing: it has no reward."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    """max_steps was reached without an end."""
    TIMEOUT = "timeout"
    """the policy took longer than the episode's wall-clock limit."""
    INVALID_ACTION = "invalid_action"
    """too many unparseable actions in a row."""
    CRASHED = "crashed"


CUT_OFF = frozenset({Outcome.TRUNCATED, Outcome.TIMEOUT})
"""Ended by a limit, not by what was done: an estimate of what was still to come stands for the rest. A slow answer may be the server's or
the machine's doing."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fork(_Record):
    """Where an episode leaves another one of its instance: it begins with the first `step` steps of `parent_id`, replayed."""

    parent_id: str
    step: Annotated[int, Field(ge=0)]


class EpisodeRequest(_Record):
    """One attempt of one policy at one task instance; of siblings that leave one parent at one step, `attempt` counts from 1."""

    purpose: Purpose
    task: Task
    seed: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=0, description="sampling index, not a retry")] = 0
    policy_id: str
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    screenshots: bool = True
    fork: Annotated[Fork | None, Field(exclude_if=lambda fork: fork is None)] = None

    @property
    def episode_id(self) -> str:
        left = () if self.fork is None else (self.fork.parent_id, self.fork.step)
        return content_id("episode", [self.purpose, self.policy_id, self.task.task_id, self.seed, self.attempt, *left])

    @property
    def split(self) -> Split:
        return self.task.split(self.seed)

    def sampling_seed(self, step_index: int) -> int:
        """Seed of the generator that samples one step: fixed by the episode, so the same episode samples the same tokens again."""
        return stable_seed(self.episode_id, step_index)


class Step(_Record):
    """One thought and action, with what was seen and every token that was read and written. Mirrors the table `steps`."""

    step_index: int
    policy_id: str
    observation: str
    screenshot_id: str | None
    messages: tuple[Message, ...]
    response: str
    thought: str | None
    action: Action
    more_actions: Annotated[tuple[Action, ...], Field(description="further actions of the same response, carried out in order")] = ()
    proposal: Annotated[str | None, Field(description="what the policy wrote, where an annotator's `response` stands")] = None
    prompt_token_ids: tuple[int, ...] = ()
    response_token_ids: tuple[int, ...] = ()
    response_logprobs: tuple[float, ...] = ()
    response_versions: Annotated[
        tuple[int, ...], Field(description="updates that the weights behind each response token had seen; empty where none are counted")
    ] = ()
    reward: float = 0.0
    latency_ms: float = 0.0


class Episode(_Record):
    """A finished episode, whatever became of it. `screenshots` maps screenshot ids to image bytes not yet in the warehouse."""

    request: EpisodeRequest
    instruction: str | None
    content_id: Annotated[
        str | None, Field(description="of the first observation (sandbox/tasks/reserved.py); None where there was none")
    ] = None
    steps: tuple[Step, ...]
    outcome: Outcome
    reward: float | None
    points: Annotated[float | None, Field(description="the score in the environment's own points, where the verifier says one")] = None
    num_retries: int = 0
    error: str | None = None
    duration_ms: float
    environment: str
    fork_refused: Annotated[
        str | None,
        Field(
            description="why an episode that was to begin as a fork did not: it was then played from its first step on",
            exclude_if=lambda reason: reason is None,
        ),
    ] = None
    final_messages: Annotated[
        tuple[Message, ...], Field(description="the prompt that would have come next, where a limit cut an episode of purpose rl off")
    ] = ()
    screenshots: dict[str, bytes] = Field(default_factory=dict, repr=False, exclude=True)

    @property
    def episode_id(self) -> str:
        return self.request.episode_id

    @property
    def is_success(self) -> bool:
        return self.outcome is Outcome.SUCCESS

    @property
    def fork(self) -> Fork | None:
        """Where it left its parent; None of an episode that is its own from the first step on."""
        return None if self.fork_refused is not None else self.request.fork

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """Its steps without those that are its parent's."""
        return self.steps if self.fork is None else self.steps[self.fork.step :]
