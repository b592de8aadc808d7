"""What CT learns of an episode that was routed to it: each objective is a pure function from a trajectory to chats whose messages have
their own loss weights. Which objectives are asked for is failure_mining.py's setting; where rows come from and go to is samples.py's.

A trajectory is the rows of one episode in order: of `steps` messages (the prompt as it was asked), response, step_index, and where an
objective needs them observation and action; of the episode instruction, task_id, verdict, first_wrong (None where it is not known).
Weights of what the policy did not write (prompts, observations) are scaled by a run's `prompt_loss_weight`, those of answers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from warehouse.routing.hindsight import Wordings, achieved, with_instruction

CtObjective = Literal["answers", "all_tokens", "next_observation", "hindsight", "until_first_error"]
Row = Mapping[str, Any]
Taught = tuple[Row, list[dict[str, Any]]]
"""A step and the chat that is learned of it."""
Objective = Callable[[Sequence[Row], Wordings], Iterator[Taught]]
OF_OBSERVATIONS: frozenset[CtObjective] = frozenset({"all_tokens", "next_observation"})
"""Those that learn nothing, or answers alone, where prompt_loss_weight is 0."""
OF_TRAJECTORIES: frozenset[CtObjective] = frozenset({"next_observation", "hindsight"})
"""Those that read more of a step than its prompt and its answer."""


def weighed(messages: Sequence[Any], response: str, *, prompt_loss: float, answer_loss: float = 1.0) -> list[dict[str, Any]]:
    """A prompt, whose messages all weigh alike, and its answer. Messages are objects or mappings."""
    answer = {"role": "assistant", "content": response, "screenshot_id": None, "loss": float(answer_loss)}
    return [*(message_row(message) | {"loss": float(prompt_loss)} for message in messages), answer]


def message_row(message: Any) -> dict[str, Any]:
    """A message of the catalogue's layout, with the loss that it has."""
    read = message.get if isinstance(message, Mapping) else lambda name, default=None: getattr(message, name, default)
    return {
        "role": read("role"),
        "content": read("content"),
        "screenshot_id": read("screenshot_id", None),
        "loss": float(read("loss", 0.0) or 0.0),
    }


def answers(steps: Sequence[Row], wordings: Wordings) -> Iterator[Taught]:
    """The answer to each prompt, as SFT learns it."""
    for step in steps:
        yield step, weighed(step["messages"], step["response"], prompt_loss=0.0)


def all_tokens(steps: Sequence[Row], wordings: Wordings) -> Iterator[Taught]:
    """The whole text: instruction, history, screen and answer."""
    for step in steps:
        yield step, weighed(step["messages"], step["response"], prompt_loss=1.0)


def next_observation(steps: Sequence[Row], wordings: Wordings) -> Iterator[Taught]:
    """What the environment showed after the action, and nothing that the policy chose: true of failed episodes as of solved ones. A last
    step, and one after which there was nothing to read, gives nothing."""
    for step, after in pairwise(steps):
        if after["step_index"] == step["step_index"] + 1 and after["observation"]:
            shown = {"role": "user", "content": after["observation"], "screenshot_id": None, "loss": 1.0}
            yield step, [*weighed(step["messages"], step["response"], prompt_loss=0.0, answer_loss=0.0), shown]


def hindsight(steps: Sequence[Row], wordings: Wordings) -> Iterator[Taught]:
    """The answers of a failed episode under the instruction that they do carry out, where solved attempts show which that is
    (hindsight.py; hindsight relabelling: Andrychowicz et al. 2017, arXiv 1707.01495)."""
    if not steps or steps[0]["verdict"] or (instruction := achieved(steps, wordings)) is None:
        return
    for step in steps:
        if (prompt := with_instruction(step["messages"], step["instruction"], instruction)) is not None:
            yield step, weighed(prompt, step["response"], prompt_loss=0.0)


def until_first_error(steps: Sequence[Row], wordings: Wordings) -> Iterator[Taught]:
    """The answers before the first wrong one, where it is known; else all of them."""
    right = [step for step in steps if step["first_wrong"] is None or step["step_index"] < step["first_wrong"]]
    yield from answers(right, wordings)


OBJECTIVES: dict[CtObjective, Objective] = {
    "answers": answers,
    "all_tokens": all_tokens,
    "next_observation": next_observation,
    "hindsight": hindsight,
    "until_first_error": until_first_error,
}
