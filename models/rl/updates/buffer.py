"""Episodes as arrays to learn from: trajectories of steps, and padded micro-batches of steps. No gradient, no model.

A step's token ids and log-probabilities are the ones that were sampled and recorded; no answer is ever tokenised again.

Shape suffixes: B steps of a micro-batch, T positions (the last token of a sequence predicts nothing and is left out), N marked positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from agent.episode.episode import CUT_OFF, Episode, Fork, Outcome, Step
from agent.policy.policy import Message
from models.families.chat import ChatCodec
from models.families.vision import VisionCodec, collate_vision, screenshot_ids
from models.rl.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from models.rl.updates.advantages import Floats
from models.rl.updates.shaping import ShapingConfig, shaped_steps
from warehouse.core.errors import ModelError
from warehouse.core.identity import content_id

Reward = Literal["success", "score"]
Pixels = Callable[[], Mapping[str, Tensor]]
"""Makes the vision tensors of a prompt's screenshots, again on each call: they are many times the size of an image file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryStep:
    """One step as tokens. `logprobs[i]` belongs to `response_ids[i]` under the distribution that was sampled from, and `versions[i]` counts
    the updates that the weights behind it had seen; without any, all tokens are taken to be the learner's own (staleness 0). `reward` is
    earned at the last token; `token_rewards`, where there are any, are added token by token (a KL penalty)."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float
    versions: tuple[int, ...] = ()
    token_rewards: tuple[float, ...] = ()
    pixels: Pixels | None = field(default=None, repr=False, compare=False)
    step_index: int = 0
    state: str = ""
    """Names what was seen before the answer: elements, tool output and the screen, where it was kept."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a policy reads before it answers, as in TrajectoryStep."""

    prompt_ids: tuple[int, ...]
    pixels: Pixels | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode as steps. `reward` is the sum of theirs; `is_truncated`: a limit (of steps, of time) cut it off; `instance` names task
    and seed, which several attempts share; `is_success` is the stored verdict, whatever the reward was shaped to, and `shaping` what each
    component added; of a fork, whose steps begin where it left its parent, `fork` says where. `final_state` is what the policy would have
    read next where a limit cut the episode off, if that was recorded."""

    episode_id: str
    task_name: str
    steps: tuple[TrajectoryStep, ...]
    reward: float
    is_truncated: bool
    instance: str = ""
    is_success: bool = False
    shaping: Mapping[str, float] = field(default_factory=dict)
    final_state: State | None = None
    fork: Fork | None = None

    @property
    def tokens_per_step(self) -> list[int]:
        return [len(step.response_ids) for step in self.steps]

    @property
    def num_response_tokens(self) -> int:
        return sum(self.tokens_per_step)


def trajectory(
    episode: Episode,
    *,
    reward: Reward = "success",
    shaping: ShapingConfig | None = None,
    codec: ChatCodec | None = None,
    never: Collection[int] = (),
) -> Trajectory | None:
    """The episode to learn from, or None where there is nothing to learn: the infrastructure failed (no reward, which is not a reward of
    0), or the policy never wrote a token. A fork begins at its own first step: what it shares with its parent is learned from there.

    `success` rewards the last step with the verdict, 0 or 1. `score` keeps each step's own reward and adds to the last step what is missing
    to the episode's score, so that the total is always the verified one; where time ran out nobody verified, and the steps' own stand.
    `shaping` adds to that what shaping.py says, step by step. `codec` encodes the one prompt that no engine has, the state after a cut, and
    makes pixels of the screenshots that prompts name, for a policy that sees. A step whose answer holds an id in `never`
    (models.engine.vision_units.placeholder_ids) is left out: a server that does not exclude what stands for pictures sampled it from
    another distribution, and a model cannot read it as text.

    Raises ModelError for a step whose tokens, log-probabilities and versions do not match: it was not sampled by an engine of this system.
    """
    if episode.outcome is Outcome.CRASHED or episode.reward is None:
        return None
    for step in episode.steps:
        if step.response and not (step.response_token_ids and step.prompt_token_ids):
            raise ModelError(
                f"step {step.step_index} of {episode.episode_id} has a response but not the ids of its tokens and its prompt's: use "
                "an engine that returns them (docs/serving.md says which servers do)"
            )
    learned = [step for step in episode.own_steps if _is_learned(step, never)]
    steps = [_as_tokens(step, step.reward if reward == "score" else 0.0, episode, codec) for step in learned]
    if not steps:
        return None
    earned = min(1.0, max(-1.0, sum(step.reward for step in episode.steps)))
    score = earned if episode.outcome is Outcome.TIMEOUT else episode.reward
    # What a step that is left out earned stands at the end of its episode, and of the forks behind it: so they can be compared.
    shared = episode.steps[: len(episode.steps) - len(episode.own_steps)]
    before = sum(step.reward for step in shared if _is_learned(step, never))
    total = score - before if reward == "score" else float(episode.is_success)
    steps[-1] = replace(steps[-1], reward=total - sum(step.reward for step in steps[:-1]))
    added = shaped_steps(episode, learned, shaping) if shaping is not None and shaping.shapes else {}
    for values in added.values():
        steps = [replace(step, reward=step.reward + value) for step, value in zip(steps, values, strict=True)]
    sums = {name: sum(values) for name, values in added.items()}
    return Trajectory(
        episode_id=episode.episode_id,
        task_name=episode.request.task.name,
        steps=tuple(steps),
        reward=total + sum(sums.values()),
        is_truncated=episode.outcome in CUT_OFF,
        instance=f"{episode.request.task.task_id}/{episode.request.seed}",
        is_success=episode.is_success,
        shaping=sums,
        final_state=_final_state(episode, codec),
        fork=episode.fork,
    )


def is_left_out(step: Step, never: Collection[int]) -> bool:
    """Whether an answer holds an id that is never sampled."""
    return not frozenset(never).isdisjoint(step.response_token_ids)


def _is_learned(step: Step, never: Collection[int]) -> bool:
    return bool(step.response_token_ids) and not is_left_out(step, never)


def _final_state(episode: Episode, codec: ChatCodec | None) -> State | None:
    names = screenshot_ids(episode.final_messages)
    if codec is None or not episode.final_messages or not episode.screenshots.keys() >= set(names):
        return None
    ids = codec.encode(episode.final_messages, episode.screenshots).token_ids
    return State(prompt_ids=tuple(ids), pixels=_pixels(episode.final_messages, episode, codec))


def _as_tokens(step: Step, reward: float, episode: Episode, codec: ChatCodec | None) -> TrajectoryStep:
    num_tokens = len(step.response_token_ids)
    if num_tokens != len(step.response_logprobs) or len(step.response_versions) not in (0, num_tokens):
        raise ModelError(
            f"step {step.step_index} of {episode.episode_id} has {num_tokens} response tokens and "
            f"{len(step.response_logprobs)} log-probabilities ({len(step.response_versions)} versions): use an engine that "
            "returns one of each per token"
        )
    return TrajectoryStep(
        prompt_ids=step.prompt_token_ids,
        response_ids=step.response_token_ids,
        logprobs=step.response_logprobs,
        reward=reward,
        versions=step.response_versions,
        pixels=_pixels(step.messages, episode, codec),
        step_index=step.step_index,
        state=content_id("state", [step.observation, step.screenshot_id]),
    )


def _pixels(messages: Sequence[Message], episode: Episode, codec: ChatCodec | None) -> Pixels | None:
    names = screenshot_ids(messages)
    return partial(codec.vision, names, episode.screenshots) if isinstance(codec, VisionCodec) and names else None


def with_token_rewards(item: Trajectory, rewards_T: Sequence[float]) -> Trajectory:
    """The episode with more reward on each response token, in its total too."""
    steps, start = [], 0
    for step in item.steps:
        end = start + len(step.response_ids)
        earlier = step.token_rewards or (0.0,) * len(step.response_ids)
        steps.append(replace(step, token_rewards=tuple(a + float(b) for a, b in zip(earlier, rewards_T[start:end], strict=True))))
        start = end
    return replace(item, steps=tuple(steps), reward=item.reward + float(sum(rewards_T)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRef:
    """Where a step of a batch comes from: index of its trajectory in the list at hand, index of the step in it."""

    trajectory: int
    step: int


def step_refs(trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> list[StepRef]:
    """All steps of the chosen trajectories, in order."""
    return [StepRef(trajectory=i, step=k) for i in chosen for k in range(len(trajectories[i].steps))]


def step_groups(trajectories: Sequence[Trajectory], refs: Sequence[StepRef], *, max_tokens: int) -> list[list[StepRef]]:
    """The steps of each micro-batch, of similar length."""
    return [[refs[i] for i in group] for group in microbatches(step_lengths(trajectories, refs), max_tokens)]


def random_groups(
    trajectories: Sequence[Trajectory], refs: Sequence[StepRef], *, max_tokens: int, generator: np.random.Generator
) -> list[list[StepRef]]:
    """The same in random order: a minibatch has steps of every length, and so of every task."""
    order = generator.permutation(len(refs)).tolist()
    return [[refs[i] for i in group] for group in _cut(order, step_lengths(trajectories, refs), max_tokens)]


def step_lengths(trajectories: Sequence[Trajectory], refs: Sequence[StepRef]) -> list[int]:
    """Tokens of each step, prompt and response."""
    return [trajectories[ref.trajectory].steps[ref.step].num_tokens for ref in refs]


def microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices grouped so that a group padded to its longest member has at most `max_tokens` tokens (or one member), shortest first."""
    return _cut(sorted(range(len(lengths)), key=lambda i: (lengths[i], i)), lengths, max_tokens)


def _cut(order: Iterable[int], lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    group: list[int] = []
    for index in order:
        if group and max(lengths[i] for i in (*group, index)) * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Right-padded steps. `inputs_BT` is what a causal model reads, `response_BT` marks the positions whose *next* token was sampled and
    `first_BT` the first of these in each row; `targets_N` are the sampled tokens at the response positions, row by row. Padding stands on
    the right, where a causal model cannot see it, so no attention mask is needed. `vision` holds the tensors of the rows' images. Without
    `refs` it is a filler: a pass that other processes need, and that counts nothing."""

    refs: tuple[StepRef, ...]
    inputs_BT: Tensor
    response_BT: Tensor
    first_BT: Tensor
    targets_N: Tensor
    old_logprobs_N: Tensor
    rows_N: Tensor
    vision: Mapping[str, Tensor] = field(default_factory=dict)


def collate(trajectories: Sequence[Trajectory], refs: Sequence[StepRef], *, pad_id: int, device: torch.device | None = None) -> StepBatch:
    """Pad steps into one batch."""
    steps = [trajectories[ref.trajectory].steps[ref.step] for ref in refs]
    longest = max(step.num_tokens for step in steps)
    ids_BT = torch.full((len(steps), longest), pad_id, dtype=torch.long)
    response_BT = torch.zeros((len(steps), longest), dtype=torch.bool)
    first_BT = torch.zeros((len(steps), longest), dtype=torch.bool)
    for row, step in enumerate(steps):
        start, end = len(step.prompt_ids), step.num_tokens
        ids_BT[row, :end] = torch.tensor(step.prompt_ids + step.response_ids)
        response_BT[row, start:end] = True
        first_BT[row, start] = True
    return StepBatch(
        refs=tuple(refs),
        inputs_BT=ids_BT[:, :-1].to(device),
        response_BT=response_BT[:, 1:].to(device),
        first_BT=first_BT[:, 1:].to(device),
        targets_N=ids_BT[response_BT].to(device),
        old_logprobs_N=torch.tensor([x for step in steps for x in step.logprobs], dtype=torch.float32, device=device),
        rows_N=response_BT.nonzero()[:, 0].to(device),
        vision=collate_vision([step.pixels() if step.pixels else {} for step in steps]),
    )


def step_batches(
    trajectories: Sequence[Trajectory],
    chosen: Sequence[int],
    *,
    max_tokens: int,
    pad_id: int,
    device: torch.device | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    is_lockstep: bool = False,
) -> Iterator[StepBatch]:
    """All steps of the chosen trajectories in length-sorted micro-batches; of several processes each gets its share of the steps. In
    lockstep all get as many batches, the last of some being fillers."""
    refs = step_refs(trajectories, chosen)
    by_rank = [
        step_groups(trajectories, [refs[i] for i in rows], max_tokens=max_tokens)
        for rows in group.rows_by_rank(step_lengths(trajectories, refs))
    ]
    mine = by_rank[group.rank]
    for microbatch in mine:
        yield collate(trajectories, microbatch, pad_id=pad_id, device=device)
    for _ in range(max(map(len, by_rank)) - len(mine) if is_lockstep else 0):
        yield filler(trajectories, refs, pad_id=pad_id, device=device)


def filler(trajectories: Sequence[Trajectory], refs: Sequence[StepRef], *, pad_id: int, device: torch.device | None = None) -> StepBatch:
    """The shortest of the steps, as a batch that counts nothing."""
    lengths = step_lengths(trajectories, refs)
    shortest = min(range(len(refs)), key=lengths.__getitem__)
    return replace(collate(trajectories, [refs[shortest]], pad_id=pad_id, device=device), refs=())


def gathered(batch: StepBatch, trajectories: Sequence[Trajectory], values: Sequence[Floats]) -> Tensor:
    """What `values[i][t]` says of response token t of trajectory i, for the batch's tokens (N), in float32."""
    parts = []
    for ref in batch.refs:
        tokens = trajectories[ref.trajectory].tokens_per_step
        start = sum(tokens[: ref.step])
        parts.append(values[ref.trajectory][start : start + tokens[ref.step]])
    return torch.tensor(np.concatenate(parts), dtype=torch.float32, device=batch.targets_N.device)
