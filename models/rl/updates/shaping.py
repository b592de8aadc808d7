"""Reward shaping with the outcome dominant: its settings, and what each step of an episode adds to the reward. The stored verdict and the
episode's own reward are never changed; what was added is logged component by component.

Every component is a share in [0, 1] of the episode (or a potential in [0, 1]) times its weight, and the weights add up to less than 1, the
distance between success and failure. So however an episode was shaped, a success is worth more than any failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent.episode.episode import CUT_OFF, Episode, Step

COMPONENTS = ("format", "repeat", "length", "steps", "progress")
Weight = Annotated[float, Field(ge=0, lt=1)]


class ShapingConfig(BaseModel):
    """Weights of the components; all 0: the outcome alone. UI-TARS-2 names format reward and length penalty and gives no values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shaping_format: Annotated[Weight, Field(description="penalty if every step's answer cannot be parsed; its share for fewer")] = 0.0
    shaping_repeat: Annotated[
        Weight, Field(description="penalty if every step repeats the action before it on a screen that did not change; its share for fewer")
    ] = 0.0
    shaping_length: Annotated[
        Weight,
        Field(
            description="penalty if every answer is longer than shaping_length_max; answers between the two lengths count in part (DAPO, "
            "arXiv 2503.14476, soft overlong punishment)"
        ),
    ] = 0.0
    shaping_length_soft: Annotated[int, Field(ge=0, description="tokens of the longest answer that costs nothing")] = 32
    shaping_length_max: Annotated[int, Field(ge=1, description="tokens of an answer that costs in full")] = 64
    shaping_steps: Annotated[Weight, Field(description="penalty for using all steps that the task allows; its share for fewer")] = 0.0
    shaping_progress: Annotated[
        Weight,
        Field(description="worth of the task's own progress signal, as a potential: paid when reached, taken back when the episode ends"),
    ] = 0.0

    @model_validator(mode="after")
    def _outcome_dominates(self) -> Self:
        weights = {name: getattr(self, f"shaping_{name}") for name in COMPONENTS}
        if sum(weights.values()) >= 1.0:
            shown = ", ".join(f"shaping_{name} {weight:g}" for name, weight in weights.items() if weight)
            raise ValueError(f"{shown} add up to {sum(weights.values()):g}: must be below 1, or a shaped failure could beat a success")
        if self.shaping_length_soft >= self.shaping_length_max:
            raise ValueError(f"shaping_length_soft {self.shaping_length_soft} must be below shaping_length_max ({self.shaping_length_max})")
        return self

    @property
    def shapes(self) -> bool:
        return any(getattr(self, f"shaping_{name}") for name in COMPONENTS)


def overlong(num_tokens: int, *, soft: int, longest: int) -> float:
    """How overlong an answer is, in [0, 1]: 0 up to `soft` tokens, 1 from `longest` on, linear between. Source: the soft overlong
    punishment of DAPO (arXiv 2503.14476), with L_max = longest and L_cache = longest - soft."""
    return min(1.0, max(0.0, (num_tokens - soft) / (longest - soft)))


def is_repeat(before: Step, step: Step) -> bool:
    """Whether a step does what the one before it did, and that had changed nothing to be seen."""
    same_screen = step.observation == before.observation and step.screenshot_id == before.screenshot_id
    return same_screen and step.action == before.action and step.more_actions == before.more_actions


def potentials(episode: Episode, steps: Sequence[Step]) -> list[float]:
    """Phi before the first of `steps` and after each: what the task's step rewards have added up to, held inside [0, 1].

    Where the environment or the policy ended the episode, the last one is 0 (the potential of a terminal state), so that shaping changes
    no return; where a limit cut it off, the state goes on and so does its potential."""
    rewards = {step.step_index: step.reward for step in episode.steps}
    first = 0 if episode.fork is None else episode.fork.step
    reached = sum(rewards[index] for index in range(first))
    values = [min(1.0, max(0.0, reached))]
    for step in steps:
        reached += sum(rewards[index] for index in range(first, step.step_index + 1) if index in rewards)
        first = step.step_index + 1
        values.append(min(1.0, max(0.0, reached)))
    if episode.outcome not in CUT_OFF:
        values[-1] = 0.0
    return values


def shaped_steps(episode: Episode, steps: Sequence[Step], config: ShapingConfig) -> dict[str, list[float]]:
    """What each component adds to the reward of each of `steps` (those of the episode's steps that are learned from).

    Penalties of a step are divided by the steps that its task allows, so a component never takes more than its weight from an episode.
    A fork's first step may repeat the last one that it shares with its parent.
    `progress` is F = Phi(after) - Phi(before), potential-based shaping without discount (Ng, Harada & Russell 1999, theorem 1): the best
    policy stays what it was."""
    most = max(episode.request.task.max_steps, len(steps))
    shared = () if episode.fork is None else episode.steps[: episode.fork.step]
    earlier: list[Step | None] = [shared[-1] if shared else None, *steps[:-1]]
    phi = potentials(episode, steps)
    soft, longest = config.shaping_length_soft, config.shaping_length_max
    shares: dict[str, list[float]] = {
        "format": [float(step.action.kind == "invalid") for step in steps],
        "repeat": [float(before is not None and is_repeat(before, step)) for before, step in zip(earlier, steps, strict=True)],
        "length": [overlong(len(step.response_token_ids), soft=soft, longest=longest) for step in steps],
        "steps": [1.0 for _ in steps],
    }
    added = {name: [-getattr(config, f"shaping_{name}") * share / most for share in values] for name, values in shares.items()}
    added["progress"] = [config.shaping_progress * (after - before) for before, after in pairwise(phi)]
    return {name: values for name, values in added.items() if getattr(config, f"shaping_{name}")}
