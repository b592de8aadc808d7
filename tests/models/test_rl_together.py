"""Several that learn as one: whatever their number, the same weights, the same decisions, the same errors. The arithmetic of
models/rl/distributed/process_group.py on threads (learning_together.py); real processes, their starts and ends are test_rl_processes.py's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.policy.policy import Message
from models.rl.config import PpoConfig
from models.rl.distributed import process
from models.rl.distributed.process_group import ProcessGroup
from models.rl.distributed.ranks import RankProcesses
from models.rl.learner import Round
from models.rl.rollouts.log import RolloutLog
from models.rl.updates.buffer import Trajectory, TrajectoryStep, step_batches
from models.rl.updates.replay import ReplayPool
from models.rl.updates.update import PolicyLearner
from models.rl.updates.weighting import weigh_round
from models.rl.value.critic import Critic
from models.rl.value.learner import ValueLearner
from models.training.adapters import prepare_for_training
from models.training.batching import EncodedSample
from models.training.zero import is_shared_out
from sandbox.actions import Wait
from sandbox.tasks.task import Task
from tests.models.learning_together import at_once, groups
from tests.models.ppo_episodes import per_token, random_trajectories, tiny_policy
from warehouse.core.errors import ModelError, TrainingDiverged

SETTINGS: dict[str, Any] = {
    "level": "token",
    "pretraining_rounds": 1,
    "pretraining_policy": "baseline",
    "gate_policy": "open",
    "epochs": 2,
    "minibatch_episodes": 4,
    "learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "warmup_steps": 2,
    "max_kl": 9.0,
    "explosive_kl": 99.0,
    "microbatch_tokens": 60,
    "critic_minibatch_tokens": 60,
    "entropy_coefficient": 0.01,
    "positive_nll_weight": 0.1,
    "off_policy": "tis",
    "replay_sft": 2,
}
SAMPLE = EncodedSample(token_ids=(5, 6, 7, 8), loss_weights=(0.0, 0.0, 1.0, 1.0))
ROUNDS = 2
BASE = tiny_policy()
BATCHES = [random_trajectories(BASE, 10, seed=index) for index in range(1, ROUNDS + 1)]


class Part:
    """What one of several has: copies of policy and critic."""

    def __init__(self, group: ProcessGroup, config: PpoConfig) -> None:
        model = copy.deepcopy(BASE)
        critic = Critic.of_policy(model, config) if config.algorithm == "ppo" else None
        prepare_for_training(model, config)
        reference = (model if config.lora_rank else BASE) if config.kl_coefficient else None
        replay = ReplayPool(sft=[SAMPLE] * 3) if group.is_leader else ReplayPool.as_large_as(3, 0)
        self.config, self.group, self.critic = config, group, critic
        self.policy = PolicyLearner(model, config, pad_id=0, replay=replay, reference=reference, group=group)
        self.values = None if critic is None else ValueLearner(critic, config, pad_id=0, group=group)

    def learn(self, index: int, items: Sequence[Trajectory]) -> dict[str, float]:
        generator = np.random.default_rng(index)
        reference = self.policy.reference_logprobs(items)
        weighting = weigh_round(items, self.config, self.values, index, generator, reference=reference)
        assert weighting.advantages is not None
        metrics = weighting.metrics | self.policy.update(items, weighting.advantages, generator, unscaled_E=weighting.unscaled_E)
        if not any(is_shared_out(parameter) for parameter in self.policy.model.parameters()):
            self.group.check_same_weights(list(self.policy.model.parameters()))
        return metrics

    def weights(self) -> dict[str, Tensor]:
        modules: dict[str, nn.Module] = {"policy": self.policy.model} | ({"critic": self.critic} if self.critic else {})
        return {f"{name}.{key}": tensor for name, module in modules.items() for key, tensor in module.state_dict().items()}


def parts(size: int, **settings: Any) -> list[Part]:
    config = PpoConfig.model_validate(SETTINGS | settings)
    return [Part(group, config) for group in groups(size)]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0.0, atol=atol, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, {}),
        pytest.param(3, {"advantage_scope": "minibatch"}, marks=pytest.mark.slow),
        pytest.param(2, {"lora_rank": 2}, marks=pytest.mark.slow),
        pytest.param(3, {"lora_rank": 2, "kl_coefficient": 0.1}, marks=pytest.mark.slow),
        (2, {"kl_coefficient": 0.1, "kl_placement": "reward", "algorithm": "reinforce++", "off_policy": "none"}),
        (3, {"level": "step", "value_clip": 0.2, "minibatch_episodes": 1, "aggregation": "step", "epochs": 1}),
    ],
    ids=["weights", "minibatch", "adapters", "penalty", "reward", "lonely"],
)
def test_several_learn_what_one_does(size: int, settings: dict[str, Any]) -> None:
    """With one episode a minibatch some have nothing to compute, now and then."""
    (alone,) = parts(1, **settings)
    many = parts(size, **settings)
    before = copy.deepcopy(alone.weights())
    for index, items in enumerate(BATCHES, start=1):
        expected = alone.learn(index, items)
        found = at_once(many, lambda part, index=index, items=items: part.learn(index, items))
        led = found[0]
        assert led.keys() == expected.keys()
        for name, value in expected.items():
            assert led[name] == pytest.approx(value, rel=2e-3, abs=2e-5), name
        assert expected["updates"] > 0
    assert any(not torch.equal(tensor, before[name]) for name, tensor in alone.weights().items())
    assert_same(many[0].weights(), alone.weights(), atol=5e-6)
    for part in many[1:]:
        assert_same(part.weights(), many[0].weights())


def test_every_step_is_computed_by_one_of_them() -> None:
    items = BATCHES[0]
    seen = [
        (ref.trajectory, ref.step)
        for group in groups(3)
        for batch in step_batches(items, range(len(items)), max_tokens=50, pad_id=0, group=group)
        for ref in batch.refs
    ]
    assert sorted(seen) == [(i, k) for i, item in enumerate(items) for k in range(len(item.steps))]
    loads = [sum(lengths[i] for i in group.own_rows(lengths)) for lengths in [[7] * 5 + [30, 20, 9, 1]] for group in groups(3)]
    assert max(loads) - min(loads) <= 9 and sum(loads) == 95


def test_a_kl_that_explodes_is_undone_by_all_to_the_bit() -> None:
    settings = {"epochs": 2, "learning_rate": 0.3, "warmup_steps": 1, "explosive_kl": 1.0, "max_kl": 100.0, "on_explosion": "roll_back"}
    many = parts(2, algorithm="reinforce", **settings)
    before = copy.deepcopy(many[0].weights())
    found = at_once(many, lambda part: part.learn(1, BATCHES[0]))
    assert [(each["exploded"], each["rolled_back"], each["updates"]) for each in found] == [(1.0, 1.0, 0)] * 2
    for part in many:
        assert_same(part.weights(), before)


def test_a_pass_is_cut_at_the_same_minibatch() -> None:
    settings = {"learning_rate": 0.05, "warmup_steps": 1, "minibatch_episodes": 2, "max_kl": 0.04, "kl_check": "minibatch"}
    (alone,), many = parts(1, **settings), parts(2, **settings)
    expected, found = alone.learn(2, BATCHES[0]), at_once(many, lambda part: part.learn(2, BATCHES[0]))
    assert 0 < expected["updates"] < 10 and {each["updates"] for each in found} == {expected["updates"]}


def broken() -> list[Trajectory]:
    """One episode's log-probability is not a number, so one of two alone sees it."""
    step = TrajectoryStep(prompt_ids=(5, 6), response_ids=(7,), logprobs=(float("nan"),), reward=0.0)
    return [replace(BATCHES[0][0], steps=(step,)), *BATCHES[0][1:8]]


@pytest.mark.parametrize("handling", ["skip", "raise"])
def test_what_is_no_number_for_one_is_none_for_all(handling: str) -> None:
    many = parts(2, algorithm="reinforce", off_policy="none", on_non_finite=handling, epochs=1)
    items = broken()

    def work(part: Part) -> dict[str, float] | str:
        try:
            return part.policy.update(items, per_token(items, [1.0, -1.0] * 4), np.random.default_rng(0))
        except TrainingDiverged as error:
            return str(error)

    one, other = at_once(many, work)
    if handling == "raise":
        assert one == other and "the policy loss is nan at update" in str(one)
    else:
        assert isinstance(one, dict) and isinstance(other, dict)
        assert (one["skipped_minibatches"], one["updates"]) == (other["skipped_minibatches"], other["updates"]) == (1, 1)
        assert_same(many[1].weights(), many[0].weights())


def test_gradients_are_added_up_and_what_nobody_learned_has_none() -> None:
    def work(group: ProcessGroup) -> list[nn.Parameter]:
        parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(()))]
        parameters[0].grad = torch.full((3,), float(group.rank + 1))
        if group.rank == 1:
            parameters[2].grad = torch.tensor(5.0)
        group.sum_gradients(parameters)
        return parameters

    for parameters in at_once(groups(3), work):
        assert torch.equal(parameters[0].grad, torch.full((3,), 6.0))  # type: ignore[arg-type]
        assert parameters[1].grad is None and float(parameters[2].grad or 0) == 5.0


def test_a_rank_learns_from_what_the_leader_has_screenshots_and_all(tmp_path: Path) -> None:
    task = Task(source="t", name="t", domain="d", max_steps=4)
    shown = Message(role="user", content="Click", screenshot_id="seen.png")
    answered = Step(
        step_index=0,
        policy_id="p",
        observation="",
        screenshot_id="seen.png",
        messages=(shown,),
        response="x",
        thought=None,
        action=Wait(),
        prompt_token_ids=(3, 4),
        response_token_ids=(5, 2),
        response_logprobs=(-0.1, -1 / 3),
        response_versions=(0, 1),
    )
    episodes = [
        Episode(
            request=EpisodeRequest(purpose="rl", task=task, seed=seed, policy_id="p", screenshots=True),
            instruction="",
            steps=(answered,),
            outcome=Outcome.TRUNCATED,
            reward=0.0,
            duration_ms=1.0,
            environment="test",
            final_messages=(shown,),
            screenshots={"seen.png": b"a picture"},
        )
        for seed in range(3)
    ]
    run, rollout_log = tmp_path / "run", RolloutLog(tmp_path / "run" / "episodes")
    for episode in episodes:
        rollout_log.append(episode)
    others = RankProcesses(
        ProcessGroup(),
        run,
        init=tmp_path,
        config=PpoConfig(),
        state=run / "state",
        critic=run / "critic",
        episodes=run / "episodes",
        replay=ReplayPool(),
        device="cpu",
    )
    (run / "launch").mkdir()
    others.send(Round(index=1, num_fruitful=0, version=0), episodes)
    assert process._batch(run / "launch", rollout_log) == episodes
    others.stop()
    assert not list((run / "launch").iterdir())


def test_weights_that_differ_between_ranks_are_noticed() -> None:
    def work(group: ProcessGroup) -> None:
        weight = torch.ones(3)
        weight[2] += 1e-7 * group.rank
        group.check_same_weights([nn.Parameter(torch.ones(2)), nn.Parameter(weight)])

    with pytest.raises(ModelError, match="1 of 2 weight tensors differ"):
        at_once(groups(2), work)
