"""The critic before the run and its gate in each round: fitted to stored episodes until it improves no more, carried on, shut again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.families.registry import load_codec, load_policy
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM
from models.rl.config import PpoConfig
from models.rl.distributed.process_group import ProcessGroup
from models.rl.updates.buffer import Trajectory
from models.rl.updates.weighting import weigh_round
from models.rl.value.critic import Critic, predict
from models.rl.value.critic_checkpoint import load_critic, save_critic
from models.rl.value.learner import Gate, ValueLearner, held_apart
from models.rl.value.offline_fit import OfflineFit
from models.rl.value.pretraining import fit_offline
from tests.models.ppo_episodes import random_trajectories, tiny_policy
from warehouse.core.errors import CheckpointError, ValueGateNotPassed

CONFIG = PpoConfig(critic_learning_rate=1e-2, critic_minibatch_tokens=256, pretraining_rounds=0)


@pytest.fixture
def model() -> ShiftQwen3ForCausalLM:
    return tiny_policy()


def learner_of(model: ShiftQwen3ForCausalLM, config: PpoConfig = CONFIG) -> ValueLearner:
    return ValueLearner(Critic.of_policy(model), config, pad_id=0)


def predictable_by_prompt(model: ShiftQwen3ForCausalLM, count: int, *, seed: int = 0, good: int = 5) -> list[Trajectory]:
    """Episodes whose first prompt token, 5 or 6, decides the reward: `good` is the one that is rewarded."""
    made = []
    for index, item in enumerate(random_trajectories(model, count, seed=seed)):
        first, won = 5 + index % 2, float(5 + index % 2 == good)
        last = len(item.steps) - 1
        steps = tuple(
            replace(step, prompt_ids=(first, *step.prompt_ids), reward=won if place == last else 0.0)
            for place, step in enumerate(item.steps)
        )
        made.append(replace(item, episode_id=f"{seed}-{index}", steps=steps, reward=won, is_success=bool(won), is_truncated=False))
    return made


@pytest.fixture(scope="module")
def fitted() -> tuple[list[Trajectory], ValueLearner, OfflineFit, list[float]]:
    """Stored episodes, what was fitted to them, how it went, and the loss of each epoch."""
    model = tiny_policy()
    items, values, losses = predictable_by_prompt(model, 160), learner_of(model), list[float]()
    fit = fit_offline(values, items, CONFIG, lambda _, loss: losses.append(loss))
    assert fit is not None
    return items, values, fit, losses


@pytest.fixture
def knowing(model: ShiftQwen3ForCausalLM, fitted: tuple[list[Trajectory], ValueLearner, OfflineFit, list[float]]) -> ValueLearner:
    """A learner of a test's own whose critic was fitted to the stored episodes."""
    values = learner_of(model)
    values.critic.load_state_dict(fitted[1].critic.state_dict())
    return values


def test_the_critic_is_fitted_until_held_out_episodes_are_predicted_no_better(
    fitted: tuple[list[Trajectory], ValueLearner, OfflineFit, list[float]],
) -> None:
    items, values, fit, losses = fitted
    assert fit.epochs == len(losses) < CONFIG.offline_max_epochs, "it ended by itself"
    assert fit.value_loss == min(losses) == losses[fit.best_epoch - 1] and fit.epochs == fit.best_epoch + CONFIG.offline_patience
    assert fit.value_loss < 0.1 * fit.initial_loss and fit.explained_variance > 0.9
    fitted, checked = held_apart(items, CONFIG.gate_holdout)
    assert fit.episode_ids == tuple(items[i].episode_id for i in fitted) and fit.num_held_out == len(checked) > 8
    # What is kept are the best epoch's weights.
    held_out = [items[i] for i in checked]
    found = np.concatenate(predict(values.critic, held_out, level="step", batching=values.batching))
    wanted = np.concatenate([values.estimate(held_out).returns[i] for i in range(len(held_out))])
    assert float(np.mean((found - wanted) ** 2)) == pytest.approx(fit.value_loss, rel=1e-5)


def test_of_several_processes_the_first_fits_it_before_the_others_have_joined(model: ShiftQwen3ForCausalLM) -> None:
    items, alone, several = predictable_by_prompt(model, 60), learner_of(model), learner_of(model)
    several = ValueLearner(several.critic, CONFIG, pad_id=0, group=ProcessGroup(size=2))
    assert fit_offline(several, items, CONFIG) == fit_offline(alone, items, CONFIG)
    assert all(torch.equal(one, two) for one, two in zip(several.critic.parameters(), alone.critic.parameters(), strict=True))


def test_what_cannot_be_improved_stays_as_it_came_and_too_few_episodes_teach_nothing(
    model: ShiftQwen3ForCausalLM, knowing: ValueLearner
) -> None:
    items, values = predictable_by_prompt(model, 160), knowing
    before = [parameter.clone() for parameter in values.critic.parameters()]
    diverging = CONFIG.model_copy(update={"critic_learning_rate": 0.5})
    again = fit_offline(values, items, diverging)
    assert again is not None and (again.best_epoch, again.epochs) == (0, CONFIG.offline_patience)
    assert all(torch.equal(a, b) for a, b in zip(before, values.critic.parameters(), strict=True))
    assert fit_offline(learner_of(model), items[:10], CONFIG) is None


def test_a_round_is_the_critics_or_the_baselines_by_what_it_predicts_of_it(model: ShiftQwen3ForCausalLM, knowing: ValueLearner) -> None:
    """The gate opens on fresh episodes before the critic is fitted to them, shuts when the rewards turn around, and opens again."""
    values = knowing
    values.gate = Gate(num_fits=1)
    steered = []
    for index, good in enumerate((5, 5, 6, 6, 6, 6), start=1):
        items = predictable_by_prompt(model, 80, seed=index, good=good)
        weighting = weigh_round(items, CONFIG.model_copy(update={"critic_epochs": 4}), values, index, np.random.default_rng(index))
        assert weighting.metrics["critic_steers"] == weighting.metrics["value_gate"] == 1.0 - weighting.metrics["baseline_steers"]
        steered.append(weighting.metrics["critic_steers"])
        if not steered[-1]:
            baseline = CONFIG.model_copy(update={"algorithm": "reinforce"})
            expected = weigh_round(items, baseline, None, index, np.random.default_rng(index)).advantages
            assert same(weighting.advantages, expected)
    assert steered[:3] == [1.0, 1.0, 0.0] and steered[-1] == 1.0


def same(found: Sequence[np.ndarray] | None, expected: Sequence[np.ndarray] | None) -> bool:
    return found is not None and expected is not None and all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_gate_that_shuts_after_it_was_open_does_not_end_a_run_that_was_to_block(
    model: ShiftQwen3ForCausalLM, knowing: ValueLearner
) -> None:
    config, values = CONFIG.model_copy(update={"gate_policy": "block"}), knowing
    values.gate = Gate(num_fits=1)
    found = [weigh_round(predictable_by_prompt(model, 80, seed=i, good=4 + i), config, values, i, np.random.default_rng(i)) for i in (1, 2)]
    assert [each.metrics["critic_steers"] for each in found] == [1.0, 0.0]
    with pytest.raises(ValueGateNotPassed, match="has never passed its gate"):
        weigh_round(predictable_by_prompt(model, 80), config, learner_of(model), 1, np.random.default_rng(0))


def test_a_gate_may_ask_for_more_than_the_mean_of_the_tasks_other_episodes() -> None:
    returns, of_others = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.9, 0.8, 0.1, 0.2])
    vague, sharp = np.array([0.7, 0.7, 0.3, 0.3]), np.array([0.95, 0.95, 0.05, 0.05])
    assert Gate().judged(vague, returns, 0.1).has_passed and not Gate().judged(vague, returns, 0.1, of_others).has_passed
    assert Gate().judged(sharp, returns, 0.1, of_others).has_passed


def test_a_round_whose_task_means_say_more_than_the_critic_is_the_baselines(model: ShiftQwen3ForCausalLM) -> None:
    """The critic has learned half of what it could know; the task, which it is not told, is all of it."""
    items = predictable_by_prompt(model, 80)
    of_tasks = [replace(item, task_name=f"task-{item.reward:.0f}") for item in items]
    steered = {}
    for gate_baseline in ("constant", "task"):
        config = CONFIG.model_copy(update={"gate_baseline": gate_baseline, "skip_uniform_tasks": False, "gate_explained_variance": -9.0})
        values = learner_of(model, config)
        values.gate = Gate(num_fits=1)
        values.critic.head.bias.data.fill_(0.3)
        metrics = weigh_round(of_tasks, config, values, 1, np.random.default_rng(0)).metrics
        steered[gate_baseline] = metrics["critic_steers"]
        assert metrics["explained_by_task"] == 1.0 and metrics["explained_variance"] == pytest.approx(0.0, abs=0.05)
        assert metrics["loss_by_task"] == 0.0 and metrics["loss_of_critic"] == values.gate.loss, "what the gate compares"
    assert steered == {"constant": 1.0, "task": 0.0}


def test_shifted_values_of_a_critic_that_knows_nothing_are_the_mean_of_the_tasks_other_episodes(model: ShiftQwen3ForCausalLM) -> None:
    items = predictable_by_prompt(model, 30)
    settings = {"value_offset": "task", "gate_policy": "open", "lambda_policy": 1.0, "advantage_normalisation": "none"}
    config = CONFIG.model_copy(update=settings)
    weighting = weigh_round(items, config, learner_of(model, config), 1, np.random.default_rng(0))
    assert weighting.advantages is not None and weighting.metrics["critic_steers"] == 1.0
    for index, (item, values) in enumerate(zip(items, weighting.advantages, strict=True)):
        others = [other.reward for place, other in enumerate(items) if other.task_name == item.task_name and place != index]
        assert values == pytest.approx(item.reward - np.mean(others))
    assert weighting.metrics["explained_shifted"] == weighting.metrics["explained_by_task"]


def test_lambda_moves_with_length_at_token_level_once_its_floor_is_low(model: ShiftQwen3ForCausalLM) -> None:
    items = predictable_by_prompt(model, 80)
    moving = CONFIG.model_copy(update={"level": "token", "lambda_floor": 0.0, "lambda_alpha": 0.5})
    values = learner_of(model, moving)
    metrics = weigh_round(items, moving, values, 1, np.random.default_rng(0)).metrics
    lengths = [item.num_response_tokens for item in items]
    assert metrics["lambda_policy_min"] == max(0.0, 1 - 2 / min(lengths)) < metrics["lambda_policy_max"] == 1 - 2 / max(lengths)


def test_a_critic_is_a_checkpoint_that_answers_nothing(model: ShiftQwen3ForCausalLM, tmp_path: Path) -> None:
    critic, parents = Critic.of_policy(model), ("checkpoint-0123456789abcdef",)
    with torch.no_grad():
        critic.head.weight.fill_(0.5)
    card = save_critic(tmp_path / "c", critic, CONFIG, stage="critic_forms", iteration="0001", parents=parents, metrics={"value_gate": 1.0})
    assert (card.kind, card.stage, card.parents) == ("critic", "critic_forms", parents)
    again = Critic.of_policy(model)
    assert load_critic(tmp_path / "c", again).checkpoint_id == card.checkpoint_id
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), again.parameters(), strict=True))
    for opened in (load_policy, load_codec):
        with pytest.raises(CheckpointError, match="is a critic, which answers nothing"):
            opened(tmp_path / "c")
    with pytest.raises(CheckpointError, match="does not fit the policy"):
        load_critic(tmp_path / "c", Critic.of_policy(tiny_policy(num_layers=1)))
