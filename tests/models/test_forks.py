"""Credit by forks and by states met again: formulas by hand, what a fork's trajectory is, which steps are chosen, and a pool of rollouts
that forks, also after a kill. Forks on real browsers are in tests/agent/test_fork.py."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from agent.episode.episode import Episode, EpisodeRequest, Fork, Outcome, Step
from models.rl.config import PpoConfig
from models.rl.metrics import episode_metrics
from models.rl.rollouts.curriculum import updated_rates
from models.rl.rollouts.forks import fork_advantages, fork_requests
from models.rl.rollouts.log import FORKED_FILE, Forks, RolloutLog
from models.rl.rollouts.pool import RolloutPool
from models.rl.updates.buffer import Trajectory, trajectory
from models.rl.updates.shaping import shaped_steps
from models.rl.updates.weighting import _steered
from models.rl.value.learner import _baselines, _offsets
from sandbox.actions import Wait
from tests.models.corridor import SHORT
from tests.models.test_ppo_weighting import item, of_episodes, weighed
from tests.models.test_rollouts import LONG, Walking, request, run, walking


def placed(one: Trajectory, states: str = "", fork: Fork | None = None, first: int = 0) -> Trajectory:
    """With a state a letter, and steps that count from `first`."""
    steps = [replace(step, step_index=first + i, state=states[i : i + 1]) for i, step in enumerate(one.steps)]
    return replace(one, steps=tuple(steps), fork=fork)


def forked() -> list[Trajectory]:
    """A failure of three steps of two tokens; two siblings that left it at its second step, one of which succeeds; two other episodes."""
    left = Fork(parent_id="episode-0", step=1)
    return [
        placed(item(0, "task", 0.0, widths=(2, 2, 2))),
        placed(item(1, "task", 1.0, widths=(2, 2)), fork=left, first=1),
        placed(item(2, "task", 0.0, widths=(2,)), fork=left, first=1),
        placed(item(3, "task", 1.0, widths=(2,))),
        placed(item(4, "task", 0.0, widths=(2,))),
    ]


def test_from_a_fork_on_siblings_steer_and_before_it_the_usual_estimate() -> None:
    """The three that met got 0, 1, 0: less the mean of the two others that is -1/2, 1, -1/2. The baseline is that of the three whole
    episodes (0, 1, 0): mean 1/3, spread sqrt(2)/3 = .47. The five steps behind the fork have -1/2 three times and 1 twice: mean .1, spread
    sqrt(.54) = .73. Both kinds are divided by the greater spread and the floor."""
    scale = math.sqrt(0.54) + 0.1
    weighting = weighed(forked(), algorithm="reinforce", fork_siblings=2, advantage_clip=None)
    assert weighting.advantages is not None
    usual, parent = -1 / 3 / scale, -0.5 / scale
    expected = [[usual] * 2 + [parent] * 4, [1 / scale] * 4, [parent] * 2, [2 / 3 / scale] * 2, [usual] * 2]
    for found, wanted in zip(weighting.advantages, expected, strict=True):
        assert found == pytest.approx(wanted)
    assert (weighting.metrics["fork_groups"], weighting.metrics["fork_zero_std"]) == (1.0, 0.0)


def test_one_fork_that_solves_a_task_nobody_solved_does_not_shout() -> None:
    """Whole episodes all got 0, and so say nothing; by their spread and the floor alone, 0 and .1, siblings would come to 10 and -5."""
    items = [
        replace(one, reward=0.0, steps=tuple(replace(step, reward=0.0) for step in one.steps)) if one.fork is None else one
        for one in forked()
    ]
    weighting = weighed(items, algorithm="reinforce", fork_siblings=2)
    assert weighting.advantages is not None
    scale = math.sqrt(0.54) + 0.1
    expected = [[0.0] * 2 + [-0.5 / scale] * 4, [1 / scale] * 4, [-0.5 / scale] * 2, [0.0] * 2, [0.0] * 2]
    for found, wanted in zip(weighting.advantages, expected, strict=True):
        assert found == pytest.approx(wanted)
    assert sum(found[-1] for found in weighting.advantages) == pytest.approx(0.0), "one of each that met"


def test_forks_are_not_among_the_tasks_other_episodes() -> None:
    """Whole episodes got 0, 1, 0 and a critic said 1/4 of all: each stands beside the mean of the two others, a fork beside that of all."""
    items = forked()
    returns = [np.full(len(one.steps), one.reward) for one in items]
    values = [np.full(len(one.steps), 0.25) for one in items]
    assert _baselines(items, returns) == pytest.approx([0.5, 1 / 3, 1 / 3, 0.0, 0.5])
    assert _offsets(items, values, returns) == pytest.approx([0.25, 1 / 3 - 0.25, 1 / 3 - 0.25, -0.25, 0.25])
    alone = [*items[:3]]
    assert _baselines(alone, returns[:3]) == pytest.approx([1 / 3, 0.0, 0.0]), (
        "of the one whole episode there is no other: the round's mean"
    )


@pytest.mark.parametrize("level", ["step", "token"])
def test_the_critics_advantages_are_replaced_before_they_are_scaled(level: str) -> None:
    items = forked()
    config = PpoConfig.model_validate({"fork_siblings": 2, "level": level, "advantage_clip": None})
    width = 2 if level == "token" else 1
    by_critic = [np.full(len(one.steps) * width, 0.25) for one in items]
    raw = [0.25, -0.5, -0.5, 1, 1, -0.5, 0.25, 0.25]
    spread = np.std(raw)
    found = _steered(by_critic, items, config, np.zeros(len(items), dtype=bool))
    assert np.concatenate(found) == pytest.approx(np.repeat(np.array(raw) / spread, 2))


def test_the_last_fork_before_a_step_counts_and_a_state_met_once_says_nothing() -> None:
    parent = placed(item(0, "task", 0.0, widths=(1, 1, 1)))
    first = [placed(item(i, "task", 1.0), fork=Fork(parent_id="episode-0", step=0)) for i in (1, 2)]
    last = placed(item(3, "task", 1.0), fork=Fork(parent_id="episode-0", step=2), first=2)
    lost = placed(item(4, "task", 1.0), fork=Fork(parent_id="crashed", step=0))
    found, metrics = fork_advantages([parent, *first, last, lost], PpoConfig(fork_siblings=2))
    assert found[0].tolist() == [-1.0, -1.0, -1.0] and found[3].tolist() == [1.0]
    assert found[1].tolist() == [0.5] and np.isnan(found[4]).all() and metrics["fork_groups"] == 2.0


def test_gigpo_by_hand() -> None:
    """Two attempts at one instance, discount 1/2. The first goes a, b and succeeds: returns 1/2, 1. The second goes a, a, b and fails.
    Episodes: (1 - 1/2) / sqrt(1/2) = .7071 and its negative. State a: 1/2, 0, 0 with mean 1/6 and sample deviation sqrt(1/12): 1.1547 and
    twice -.5774. State b: 1 and 0: +-.7071."""
    items = [
        placed(item(0, "task", 1.0, instance="task/1", widths=(1, 2)), "ab"),
        placed(item(1, "task", 0.0, instance="task/1", widths=(1, 1, 1)), "aab"),
        placed(item(2, "task", 1.0, instance="task/2", widths=(1,)), "a"),
    ]
    settings = {"algorithm": "gigpo", "group_size": 2, "gamma": 0.5}
    episode, other = math.sqrt(0.5), -math.sqrt(1 / 3)
    for weight in (1.0, 0.5):
        weighting = weighed(items, **settings, step_group_weight=weight)
        assert weighting.advantages is not None
        first, second, third = (values.tolist() for values in weighting.advantages)
        assert first == pytest.approx([episode - weight * 2 * other, *[episode + weight * episode] * 2])
        assert second == pytest.approx([-episode + weight * other] * 2 + [-episode - weight * episode])
        assert third == [0.0], "another instance's state is another state"
    without = weighed(items, **settings, group_normalise_std=False).advantages
    assert without is not None and without[0].tolist() == pytest.approx([0.5 + 1 / 3, 1.0, 1.0])


def test_gigpo_tells_fast_successes_from_slow_ones_unless_groups_rewarded_alike_are_skipped() -> None:
    items = [placed(item(i, "task", 1.0, instance="task/1", widths=(1,) * (i + 1)), "ab") for i in range(2)]
    settings = {"algorithm": "gigpo", "group_size": 2, "gamma": 0.5}
    assert of_episodes(weighed(items, **settings, skip_uniform_tasks=False)) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert of_episodes(weighed(items, **settings)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "grpo", "group_size": 4, "fork_siblings": 2}, "fork_siblings is 2, but algorithm grpo"),
        ({"algorithm": "gigpo"}, "gigpo compares attempts at one instance, but group_size is 1"),
        ({"algorithm": "gigpo", "group_size": 4, "group_by": "task"}, "group_by must be instance"),
        ({"fork_siblings": -1}, "fork_siblings"),
        ({"fork_siblings": 1, "fork_choice": "critic"}, "'entropy' or 'uniform'"),
    ],
)
def test_settings_that_do_not_go_together_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PpoConfig.model_validate(settings)


def played(logprobs: Sequence[float], *, fork: Fork | None = None, reward: float = 1.0) -> Episode:
    """An episode whose answers, of one token each, had these log-probabilities; each step pays .1."""
    asked = request(LONG, 0).model_copy(update={"fork": fork})
    steps = [
        Step(
            step_index=index,
            policy_id="p",
            observation=f"state {index}",
            screenshot_id=None,
            messages=(),
            response="Action wait",
            thought=None,
            action=Wait(),
            prompt_token_ids=(1,),
            response_token_ids=(2,),
            response_logprobs=(logprob,),
            reward=0.1,
        )
        for index, logprob in enumerate(logprobs)
    ]
    return Episode(request=asked, instruction="", steps=tuple(steps), outcome=Outcome.SUCCESS, reward=reward, duration_ms=1, environment="")


def test_a_fork_teaches_its_own_steps_and_what_they_earned() -> None:
    whole, fork = played([-1.0] * 3), played([-1.0] * 3, fork=Fork(parent_id="episode-0", step=2))
    item_ = trajectory(fork, reward="score")
    assert item_ is not None and [step.step_index for step in item_.steps] == [2] and item_.fork == fork.fork
    assert item_.reward == pytest.approx(0.8) and trajectory(whole, reward="score").reward == 1.0  # type: ignore[union-attr]
    refused = trajectory(fork.model_copy(update={"fork_refused": "it does not repeat"}))
    assert refused is not None and len(refused.steps) == 3 and refused.fork is None
    assert len({step.state for step in refused.steps}) == 3


def test_what_a_left_out_step_earned_counts_alike_for_a_parent_and_its_forks() -> None:
    """Each step pays .1; the first answer holds an id that is never sampled. Both end at 1, so their last steps earn .9."""
    whole, fork = (
        one.model_copy(update={"steps": (one.steps[0].model_copy(update={"response_token_ids": (9,)}), *one.steps[1:])})
        for one in (played([-1.0] * 3), played([-1.0] * 3, fork=Fork(parent_id="episode-0", step=2)))
    )
    parent, sibling = (trajectory(one, reward="score", never=(9,)) for one in (whole, fork))
    assert parent is not None and sibling is not None
    assert [step.reward for step in parent.steps] == pytest.approx([0.1, 0.9])
    assert [step.reward for step in sibling.steps] == pytest.approx([0.9]), "from the third step on as much as its parent"


def test_a_forks_first_step_can_repeat_the_last_that_it_shares() -> None:
    """All steps wait in states of other names, but the third is seen as the second was: a repeat, for the parent and for its fork."""
    whole, fork = (
        one.model_copy(update={"steps": (*one.steps[:2], one.steps[2].model_copy(update={"observation": "state 1"}))})
        for one in (played([-1.0] * 3), played([-1.0] * 3, fork=Fork(parent_id="episode-0", step=2)))
    )
    cost = -0.5 / LONG.max_steps
    shaping = PpoConfig(shaping_repeat=0.5)
    assert shaped_steps(whole, whole.steps, shaping) == {"repeat": pytest.approx([0.0, 0.0, cost])}
    assert shaped_steps(fork, fork.own_steps, shaping) == {"repeat": pytest.approx([cost])}
    from_start = played([-1.0] * 2, fork=Fork(parent_id="episode-0", step=0))
    assert shaped_steps(from_start, from_start.own_steps, shaping) == {"repeat": [0.0, 0.0]}


def test_points_are_where_the_answer_was_least_likely_or_any() -> None:
    episode = played([-0.1, -2.0, -0.5, -3.0])

    def points(**settings: object) -> list[int]:
        asked = fork_requests(episode, PpoConfig.model_validate({"fork_siblings": 2, **settings}))
        assert len({one.episode_id for one in asked}) == len(asked) and all(n == 2 for n in Counter(one.fork for one in asked).values())
        return sorted({one.fork.step for one in asked if one.fork})

    assert points() == [3] and points(fork_points=2) == [1, 3] and points(fork_points=9) == [0, 1, 2, 3]
    assert points(fork_choice="uniform") == points(fork_choice="uniform") and len(points(fork_choice="uniform", fork_points=3)) == 3
    fork = played([-1.0], fork=Fork(parent_id="episode-0", step=0))
    assert fork_requests(fork, PpoConfig(fork_siblings=2)) == [], "a fork is not forked"


def test_forks_are_no_part_of_a_tasks_success() -> None:
    episodes = [played([-1.0], reward=1.0), played([-1.0, -1.0], fork=Fork(parent_id="episode-0", step=1))]
    lost = episodes[1].model_copy(update={"fork_refused": "it does not repeat", "outcome": Outcome.FAILURE, "reward": 0.0})
    assert updated_rates({}, episodes) == {LONG.task_id: 1.0}
    metrics = episode_metrics([*episodes, lost])
    assert (metrics["episodes"], metrics["success"]) == (2, 0.5)
    assert (metrics["forks"], metrics["forks_refused"], metrics["replayed_steps"]) == (1, 1, 1)
    assert "forks" not in episode_metrics([played([-1.0])])


def forking(folder: Path, **settings: object) -> RolloutPool:
    config = PpoConfig.model_validate({"algorithm": "reinforce", "fork_siblings": 2, "fork_choice": "uniform", **settings})
    return RolloutPool(walking(4), Walking(), RolloutLog(folder), num_learned=0, fork=partial(fork_requests, config=config))


def asked() -> list[EpisodeRequest]:
    return [request(task, number) for task in (SHORT, LONG) for number in range(2)]


def test_a_batch_has_the_forks_of_its_episodes_and_a_later_start_the_same(tmp_path: Path) -> None:
    async def main(*, is_first: bool) -> list[Episode]:
        async with forking(tmp_path) as pool:
            if is_first:
                pool.admit(asked())
            return await pool.batch(1, len(asked()))

    batch = run(main(is_first=True))
    parents = {episode.episode_id: episode for episode in batch if episode.fork is None}
    siblings = [episode for episode in batch if episode.fork is not None]
    assert len(parents) == 4 and len(siblings) == 8
    for sibling in siblings:
        assert sibling.fork is not None
        parent = parents[sibling.fork.parent_id]
        assert sibling.request.seed == parent.request.seed and sibling.steps[: sibling.fork.step] == parent.steps[: sibling.fork.step]
    assert [episode.episode_id for episode in run(main(is_first=False))] == [episode.episode_id for episode in batch]


def test_forks_that_a_kill_kept_from_starting_start_later_and_none_twice(tmp_path: Path) -> None:
    """The first start ends while forks are under way; of one parent they were never written."""

    async def cut_off() -> None:
        async with forking(tmp_path) as pool:
            pool.admit(asked())
            while len(list(RolloutLog(tmp_path).lines(FORKED_FILE, Forks))) < 2:
                await asyncio.sleep(0.001)

    async def rest() -> list[Episode]:
        async with forking(tmp_path) as pool:
            return await pool.batch(1, len(asked()))

    run(cut_off())
    batch = run(rest())
    assert len(batch) == 12 and len({episode.episode_id for episode in batch}) == 12
    assert not any(episode.fork_refused for episode in batch)
    assert Counter(episode.episode_id for episode in RolloutLog(tmp_path).episodes()).most_common(1)[0][1] == 1
