"""Conformance of our reinforcement learning: every invariant that benchmarks/rl_conformance.py also runs on other libraries, and those that
need more of a system than one function: what becomes a trajectory, which tokens a gradient reaches, what may not change an update.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from benchmarks.invariants.all import INVARIANTS
from benchmarks.invariants.library import Invariant, Missing, naive_gae
from benchmarks.ours.rl_functions import LIBRARY
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM
from models.rl.config import PpoConfig
from models.rl.updates.advantages import decoupled_gae
from models.rl.updates.buffer import Trajectory, TrajectoryStep, step_batches, trajectory
from models.rl.updates.off_policy import episode_correction, staleness
from models.rl.updates.replay import ReplayPool
from models.rl.updates.update import PolicyLearner, response_log_distribution
from models.rl.updates.weighting import weigh_round
from models.rl.value.critic import Batching, Critic, predict, rewards_per_value
from sandbox.actions import Action, Click, Finished, InvalidAction
from sandbox.tasks.task import Task
from tests.models.ppo_episodes import per_token, random_trajectories, tiny_policy
from warehouse.core.errors import ModelError

TASK = Task(source="t", name="t", domain="d", max_steps=4)


WANTS_A_MASK = {
    "observation_tokens_change_nothing",
    "values_of_observations_do_not_matter",
    "nan_at_a_masked_token_stays_there",
    "right_padding_changes_nothing",
    "left_padding_changes_nothing",
    "reward_on_a_masked_last_token_counts",
    "reward_on_an_observation_token_counts",
    "terminated_ends_in_zero",
    "returns_cross_observation_spans",
    "returns_are_normalised_over_response_tokens",
    "padding_changes_no_return",
    "masked_values_are_not_fitted",
}
"""These hand in masked positions, for which our functions of advantages and values have no argument; below: they get none."""


@pytest.mark.parametrize("invariant", [each for each in INVARIANTS if each.name not in WANTS_A_MASK], ids=lambda each: each.name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_invariant(invariant: Invariant, seed: int) -> None:
    invariant.check(LIBRARY, np.random.default_rng(seed))


@pytest.mark.parametrize("name", sorted(WANTS_A_MASK))
def test_the_adapter_passes_nothing_that_our_functions_cannot_be_asked(name: str) -> None:
    (invariant,) = (each for each in INVARIANTS if each.name == name)
    with pytest.raises(Missing, match="no argument for masked positions"):
        invariant.check(LIBRARY, np.random.default_rng(0))


@pytest.fixture(scope="module")
def model() -> ShiftQwen3ForCausalLM:
    return tiny_policy(num_layers=1)


def learned(
    model: ShiftQwen3ForCausalLM, items: Sequence[Trajectory], values: Sequence[float], version: int = 0, **options: Any
) -> torch.Tensor:
    """All weights after one update."""
    copied = copy.deepcopy(model)
    config = PpoConfig.model_validate({"epochs": 1, "warmup_steps": 1, "minibatch_episodes": 100, "microbatch_tokens": 10_000} | options)
    learner = PolicyLearner(copied, config, pad_id=0, replay=ReplayPool())
    learner.update(items, per_token(items, values), np.random.default_rng(0), version=version)
    return torch.cat([parameter.detach().flatten() for parameter in copied.parameters()])


def step(index: int, *, action: Action | None = None, reward: float = 0.0, tokens: int = 2, **more: Any) -> Step:
    return Step(
        step_index=index,
        policy_id="p",
        observation=more.pop("observation", str(index)),
        screenshot_id=None,
        messages=(),
        response="same" if tokens else "",
        thought=None,
        action=action or Click(x=index, y=1),
        prompt_token_ids=(3, 4),
        response_token_ids=(5,) * tokens,
        response_logprobs=(-0.1,) * tokens,
        reward=reward,
        **more,
    )


def episode(outcome: Outcome, steps: Sequence[Step], reward: float | None = 0.0, seed: int = 1) -> Episode:
    request = EpisodeRequest(purpose="rl", task=TASK, seed=seed, policy_id="p")
    return Episode(request=request, instruction="", steps=tuple(steps), outcome=outcome, reward=reward, duration_ms=1.0, environment="test")


def must(item: Trajectory | None) -> Trajectory:
    assert item is not None
    return item


def test_ids_are_learned_as_they_were_sampled() -> None:
    """Retokenisation drift (TRL #5224, #6250): the text of a response is never read."""
    odd = step(0).model_copy(update={"response": "another text altogether", "response_token_ids": (7, 7), "prompt_token_ids": (9,)})
    first = must(trajectory(episode(Outcome.SUCCESS, [odd], 1.0))).steps[0]
    assert (first.prompt_ids, first.response_ids, first.logprobs) == ((9,), (7, 7), (-0.1, -0.1))


def test_a_crash_is_no_reward_and_weighs_on_no_baseline() -> None:
    """NeMo Gym #2921: orphaned sessions were scored 0."""
    episodes = [
        episode(Outcome.SUCCESS, [step(0)], 1.0),
        episode(Outcome.FAILURE, [step(0)], 0.0, seed=2),
        episode(Outcome.CRASHED, [step(0)], None, seed=3),
    ]
    items = [item for item in map(trajectory, episodes) if item is not None]
    assert [item.reward for item in items] == [1.0, 0.0]
    config = PpoConfig(algorithm="grpo", group_by="task")
    weighting = weigh_round(items, config, None, 1, np.random.default_rng(0))
    assert weighting.advantages is not None
    assert [values[0] for values in weighting.advantages] == pytest.approx([0.7071, -0.7071], abs=1e-3)


def test_only_sampled_tokens_are_targets(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 4)
    found = [int(token) for batch in step_batches(items, range(4), max_tokens=999, pad_id=0) for token in batch.targets_N]
    assert sorted(found) == sorted(token for item in items for step in item.steps for token in step.response_ids)


def test_a_gradient_reaches_no_prediction_of_an_observation(model: ShiftQwen3ForCausalLM) -> None:
    """The logits at prompt positions, those that predict the next prompt token, have no gradient."""
    (batch,) = step_batches(random_trajectories(model, 3), range(3), max_tokens=999, pad_id=0)
    hidden: list[torch.Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    response_log_distribution(model, batch, 1.0)
    hook.remove()
    assert hidden[0].shape[0] == len(batch.targets_N)


def test_the_critic_speaks_of_response_tokens_alone_whatever_pads_them(model: ShiftQwen3ForCausalLM) -> None:
    items, critic = random_trajectories(model, 6), Critic.of_policy(model)
    torch.nn.init.normal_(critic.head.weight)
    tight, padded = (
        predict(critic, items, level="token", batching=Batching(max_tokens=tokens, pad_id=pad_id)) for tokens, pad_id in ((1, 0), (999, 17))
    )
    assert [len(values) for values in padded] == [item.num_response_tokens for item in items]
    for alone, together in zip(tight, padded, strict=True):
        assert together == pytest.approx(alone, abs=1e-5)


@given(observations=st.lists(st.integers(1, 30), min_size=2, max_size=2), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_returns_cross_observations_of_any_length(observations: list[int], seed: int) -> None:
    """verl #7278, #7300: neither the discount nor the trace decays over an observation, and what a step paid belongs to its last token."""
    first, second = np.random.default_rng(seed).normal(size=2)
    steps = tuple(
        TrajectoryStep(prompt_ids=(1,) * length, response_ids=(2, 2), logprobs=(0.0, 0.0), reward=float(reward))
        for length, reward in zip(observations, (first, second), strict=True)
    )
    item = Trajectory(episode_id="e", task_name="t", steps=steps, reward=float(first + second), is_truncated=False)
    found = decoupled_gae(rewards_per_value(item, "token"), np.zeros(4), gamma=0.9, lambda_policy=1.0, lambda_critic=1.0).advantages_T
    assert found == pytest.approx([0.9 * first + 0.9**3 * second, first + 0.9**2 * second, 0.9 * second, second])


@pytest.mark.parametrize("aggregation", ["token", "step", "episode", "episode_mean"])
def test_accumulated_micro_batches_are_the_big_batch(model: ShiftQwen3ForCausalLM, aggregation: str) -> None:
    items, values = random_trajectories(model, 8), np.random.default_rng(1).normal(size=8).tolist()
    big, small = (learned(model, items, values, aggregation=aggregation, microbatch_tokens=tokens) for tokens in (10_000, 14))
    assert torch.allclose(big, small, atol=2e-6)


def test_order_of_episodes_changes_nothing(model: ShiftQwen3ForCausalLM) -> None:
    items, values = random_trajectories(model, 6), np.random.default_rng(1).normal(size=6).tolist()
    assert torch.allclose(learned(model, items, values), learned(model, items[::-1], values[::-1]), atol=2e-6)


def test_what_stands_in_the_padding_changes_nothing(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 5)
    found = []
    for pad_id in (0, 17):
        (batch,) = step_batches(items, range(5), max_tokens=9999, pad_id=pad_id)
        found.append(response_log_distribution(model, batch, 1.0))
    assert torch.allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_old_log_probabilities_are_those_of_the_sampling_temperature(model: ShiftQwen3ForCausalLM, temperature: float) -> None:
    items = random_trajectories(model, 4, temperature=temperature)
    learner = PolicyLearner(copy.deepcopy(model), PpoConfig(temperature=temperature), pad_id=0, replay=ReplayPool())
    metrics = learner.update(items, [np.ones(item.num_response_tokens) for item in items], np.random.default_rng(0))
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    cold = PolicyLearner(copy.deepcopy(model), PpoConfig(temperature=temperature * 1.5), pad_id=0, replay=ReplayPool())
    assert cold.update(items, [np.ones(i.num_response_tokens) for i in items], np.random.default_rng(0))["mismatch_kl"] > 1e-4


def test_a_top_p_cut_of_the_sampler_is_seen_and_weighed(model: ShiftQwen3ForCausalLM) -> None:
    """A sampler that cuts its distribution to a mass m gives every kept token 1/m of its probability: the weight of each is m again."""
    mass = 0.8
    items = random_trajectories(model, 4)
    cut = [
        replace(item, steps=tuple(replace(step, logprobs=tuple(x - float(np.log(mass)) for x in step.logprobs)) for step in item.steps))
        for item in items
    ]
    config = PpoConfig(off_policy="tis")
    learner = PolicyLearner(copy.deepcopy(model), config, pad_id=0, replay=ReplayPool())
    metrics = learner.update(cut, [np.ones(item.num_response_tokens) for item in cut], np.random.default_rng(0))
    assert metrics["mismatch_kl"] > 1e-2
    assert metrics["correction_mean"] == pytest.approx(mass, abs=1e-4)
    assert metrics["clip_fraction"] < 1.0  # the ratio is against the learner's own: nothing is clipped for the sampler's cut


@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_splitting_an_episode_into_steps_changes_no_token(cuts: list[int], seed: int) -> None:
    """Step-wise decomposition: the same tokens and rewards, in one step or several, have the same advantages at token level."""
    rng = np.random.default_rng(seed)
    total = sum(cuts)
    paid, values = rng.normal(size=total), rng.normal(size=total)

    def item(lengths: Sequence[int]) -> Trajectory:
        steps, start = [], 0
        for length in lengths:
            mine = paid[start : start + length].tolist()
            step = TrajectoryStep(prompt_ids=(1,), response_ids=(2,) * length, logprobs=(0.0,) * length, reward=mine[-1])
            steps.append(replace(step, token_rewards=(*mine[:-1], 0.0)))
            start += length
        return Trajectory(episode_id="e", task_name="t", steps=tuple(steps), reward=float(paid.sum()), is_truncated=False)

    found = [
        decoupled_gae(rewards_per_value(item(lengths), "token"), values, gamma=0.9, lambda_policy=0.8, lambda_critic=1.0).advantages_T
        for lengths in (cuts, [total])
    ]
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(naive_gae(paid, values, 0.9, 0.8))


outcomes = st.sampled_from([Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED, Outcome.INVALID_ACTION, Outcome.TIMEOUT])
weights = st.lists(st.floats(0, 1), min_size=5, max_size=5).map(lambda w: [0.99 * x / max(1.0, sum(w)) for x in w])


@st.composite
def shaped_episodes(draw: st.DrawFn, outcome: st.SearchStrategy[Outcome] = outcomes) -> Episode:
    count = draw(st.integers(1, 4))
    steps = [
        step(
            index,
            action=draw(st.sampled_from([Click(x=1, y=1), InvalidAction(text="", reason="no"), Finished()])),
            reward=draw(st.floats(-1, 1)),
            tokens=draw(st.integers(1, 90)),
            observation=draw(st.sampled_from(["a", "b"])),
        )
        for index in range(count)
    ]
    return episode(draw(outcome), steps)


@given(win=shaped_episodes(st.just(Outcome.SUCCESS)), loss=shaped_episodes(outcomes.filter(lambda o: o is not Outcome.SUCCESS)), w=weights)
@settings(max_examples=100, deadline=None)
def test_shaping_never_puts_a_failure_above_a_success(win: Episode, loss: Episode, w: list[float]) -> None:
    names = ("format", "repeat", "length", "steps", "progress")
    config = PpoConfig.model_validate({f"shaping_{name}": weight for name, weight in zip(names, w, strict=True)})
    won, lost = (must(trajectory(item, shaping=config)) for item in (win, loss))
    assert won.reward > lost.reward
    for item, seen in ((won, win), (lost, loss)):
        assert abs(item.reward - float(seen.is_success)) <= sum(w) + 1e-9
        assert item.reward == pytest.approx(float(seen.is_success) + sum(item.shaping.values()))
        assert item.reward == pytest.approx(sum(step.reward for step in item.steps))
        assert item.is_success == seen.is_success  # the verdict is what it was


def test_truncated_is_not_terminated() -> None:
    outcomes = (Outcome.TRUNCATED, Outcome.TIMEOUT, Outcome.FAILURE, Outcome.INVALID_ACTION)
    assert [must(trajectory(episode(outcome, [step(0)]))).is_truncated for outcome in outcomes] == [True, True, False, False]


def test_running_out_of_time_takes_no_reward_back() -> None:
    """Nobody verified what was reached: the clock may have run for a server that was loading weights."""
    item = must(trajectory(episode(Outcome.TIMEOUT, [step(0, reward=0.5), step(1)], 0.0), reward="score"))
    assert [step.reward for step in item.steps] == [0.5, 0.0]


def test_a_step_without_tokens_loses_no_reward() -> None:
    """A prompt longer than the context is answered by nothing: no step, and the outcome falls on the last answer there was."""
    silent = step(1, action=InvalidAction(text="", reason="the prompt is too long"), tokens=0, reward=0.25)
    item = must(trajectory(episode(Outcome.TRUNCATED, [step(0, reward=0.5), silent], 0.75), reward="score"))
    assert [step.reward for step in item.steps] == [0.75]
    assert trajectory(episode(Outcome.INVALID_ACTION, [silent])) is None


def test_an_answer_without_token_ids_is_refused() -> None:
    """A server that gives text alone: nothing is made tokens of again, and nothing is passed over in silence."""
    with pytest.raises(ModelError, match="not the ids of its tokens"):
        trajectory(episode(Outcome.SUCCESS, [step(0).model_copy(update={"prompt_token_ids": ()})], 1.0))


@pytest.mark.parametrize("change", [{"response_versions": (1,)}, {"response_logprobs": (-0.1,)}])
def test_versions_and_log_probabilities_that_do_not_match_their_tokens_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"2 response tokens and \d log-probabilities \(\d versions\)"):
        trajectory(episode(Outcome.SUCCESS, [step(0).model_copy(update=change)], 1.0))


def aged(item: Trajectory, versions: Sequence[int]) -> Trajectory:
    steps, rest = [], list(versions)
    for step in item.steps:
        steps.append(replace(step, versions=tuple(rest[: len(step.response_ids)])))
        rest = rest[len(step.response_ids) :]
    return replace(item, steps=tuple(steps))


def test_stale_tokens_leave_the_loss_and_stay_in_the_advantages(model: ShiftQwen3ForCausalLM) -> None:
    item = max(random_trajectories(model, 6), key=lambda item: item.num_response_tokens)
    count = item.num_response_tokens
    old = aged(item, [1] * (count - 1) + [4])
    assert staleness(old, 4).tolist() == [3] * (count - 1) + [0]
    assert episode_correction(old, None, 4, PpoConfig(max_staleness=2)).tolist() == [0.0] * (count - 1) + [1.0]
    assert rewards_per_value(old, "token").tolist() == rewards_per_value(item, "token").tolist()
    fresh_only, everything = (learned(model, [old], [1.0], 4, max_staleness=most) for most in (0, 3))
    assert torch.equal(everything, learned(model, [item], [1.0]))
    assert not torch.allclose(fresh_only, everything, atol=1e-6)


@pytest.mark.parametrize(
    ("off_policy", "proximal"),
    [(name, how) for name in ("tis", "decoupled", "icepop") for how in ("recompute", "loglinear")] + [("sequence_mask", "recompute")],
)
def test_on_policy_every_correction_is_plain_ppo(model: ShiftQwen3ForCausalLM, off_policy: str, proximal: str) -> None:
    items, values = random_trajectories(model, 4), [1.0, -1.0, 0.5, -0.5]
    plain, corrected = (
        learned(model, items, values, off_policy=name, proximal=how, minibatch_episodes=2)
        for name, how in (("none", "recompute"), (off_policy, proximal))
    )
    assert torch.allclose(plain, corrected, atol=2e-5)


def test_garbage_is_learned_from_like_anything_else(model: ShiftQwen3ForCausalLM) -> None:
    """A policy that writes nothing that can be parsed: all rewards equal, all advantages nothing, no update, no error."""
    steps = [step(index, action=InvalidAction(text="?", reason="no action")) for index in range(3)]
    items = [must(trajectory(episode(Outcome.INVALID_ACTION, steps, seed=seed))) for seed in range(4)]
    for algorithm in ("reinforce", "reinforce++", "grpo", "rejection"):
        config = PpoConfig.model_validate({"algorithm": algorithm, "group_by": "task"})
        weighting = weigh_round(items, config, None, 1, np.random.default_rng(0))
        assert weighting.advantages is not None
        assert weighting.metrics["group_zero_std"] == 1.0
        learner = PolicyLearner(copy.deepcopy(model), config, pad_id=0, replay=ReplayPool())
        assert learner.update(items, weighting.advantages, np.random.default_rng(0))["updates"] == 0
