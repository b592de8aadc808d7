"""Gradient steps on a real tiny model: what may and may not change them, and what is refused. Also tokens, critic and gate."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from agent.episode import Episode, EpisodeRequest, Outcome, Step
from models.ppo.buffer import Trajectory, Turn, microbatches, trajectory
from models.ppo.config import PpoConfig
from models.ppo.critic import Batching, Critic, predict
from models.ppo.update import PolicyLearner, ReplayPool, ReplaySample, response_log_distribution
from models.ppo.value_learner import Gate, ValueLearner
from models.ppo.weighting import weigh_round
from models.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from sandbox.actions import Finished, Wait
from sandbox.task import Task
from warehouse.errors import ModelError, TrainingDiverged

torch.set_num_threads(1)  # two threads on a busy machine make tiny tensors many times slower
VOCABULARY = 40
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
}


@pytest.fixture
def model() -> ShiftQwen3ForCausalLM:
    made = ShiftQwen3ForCausalLM(tiny_config(VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2, **SIZES))
    initialise(made, seed=0)
    return made.eval()


def random_trajectories(model: ShiftQwen3ForCausalLM, count: int, *, seed: int = 0) -> list[Trajectory]:
    """Episodes of one to three turns of random tokens, with the log-probabilities that the model gives them one by one."""
    generator = np.random.default_rng(seed)
    items = []
    for index in range(count):
        turns = []
        for _ in range(generator.integers(1, 4)):
            prompt = tuple(int(t) for t in generator.integers(3, VOCABULARY, size=generator.integers(2, 12)))
            response = tuple(int(t) for t in generator.integers(3, VOCABULARY, size=generator.integers(1, 6)))
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
            rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            logprobs = tuple(rows.gather(1, torch.tensor(response)[:, None])[:, 0].tolist())
            turns.append(Turn(prompt_ids=prompt, response_ids=response, logprobs=logprobs, reward=0.0))
        reward = float(index % 2)
        turns[-1] = Turn(prompt_ids=turns[-1].prompt_ids, response_ids=turns[-1].response_ids, logprobs=turns[-1].logprobs, reward=reward)
        items.append(
            Trajectory(episode_id=f"episode-{index}", task_name=f"task-{index % 3}", turns=tuple(turns), reward=reward, is_truncated=False)
        )
    return items


def per_token(items: Sequence[Trajectory], values: Sequence[float]) -> list[np.ndarray]:
    return [np.full(item.num_response_tokens, value) for item, value in zip(items, values, strict=True)]


def updated(
    model: ShiftQwen3ForCausalLM, config: PpoConfig, items: Sequence[Trajectory], values: Sequence[float], replay: ReplayPool
) -> dict[str, float]:
    learner = PolicyLearner(model, config, pad_id=0, replay=replay)
    return learner.update(items, per_token(items, values), np.random.default_rng(0))


@pytest.mark.parametrize("aggregation", ["token", "step", "episode"])
def test_micro_batches_change_memory_and_not_the_result(model: ShiftQwen3ForCausalLM, aggregation: str) -> None:
    items = random_trajectories(model, 12)
    values = np.random.default_rng(1).normal(size=12).tolist()
    results = []
    for tokens in (24, 10_000):
        copied = copy.deepcopy(model)
        config = PpoConfig(microbatch_tokens=tokens, minibatch_episodes=6, aggregation=aggregation, warmup_updates=1)  # type: ignore[arg-type]
        metrics = updated(copied, config, items, values, ReplayPool())
        assert metrics["updates"] == 4
        results.append(torch.cat([parameter.detach().flatten() for parameter in copied.parameters()]))
    assert torch.allclose(results[0], results[1], atol=2e-5)
    assert not torch.allclose(results[0], torch.cat([p.detach().flatten() for p in model.parameters()]), atol=1e-4)


def test_the_learner_sees_the_distribution_that_was_sampled_from(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 8)
    metrics = updated(model, PpoConfig(), items, [1.0, -1.0] * 4, ReplayPool())
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["entropy"] > 0


def test_nothing_to_learn_changes_nothing(model: ShiftQwen3ForCausalLM) -> None:
    before = copy.deepcopy(model.state_dict())
    metrics = updated(model, PpoConfig(), random_trajectories(model, 8), [0.0] * 8, ReplayPool())
    assert metrics["updates"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_control_learns_from_replay_alone(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 8)
    sample = ReplaySample(token_ids=(5, 6, 7, 8), weights=(0.0, 0.0, 1.0, 1.0))
    config = PpoConfig(mode="replay_only", minibatch_episodes=4)
    without, with_replay = copy.deepcopy(model), copy.deepcopy(model)
    assert updated(without, config, items, [0.0] * 8, ReplayPool())["updates"] == 4
    metrics = updated(with_replay, config, items, [0.0] * 8, ReplayPool(sft=[sample]))
    assert metrics["replay_loss"] > 0
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), without.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), with_replay.state_dict().values(), strict=True))


def test_a_good_action_becomes_likelier_and_a_bad_one_less_likely(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 6)
    values = [1.0, -1.0] * 3

    def log_likelihoods() -> np.ndarray:
        from models.ppo.buffer import turn_batches

        totals = np.zeros(len(items))
        with torch.no_grad():
            for batch in turn_batches(items, range(len(items)), max_tokens=1000, pad_id=0):
                picked = response_log_distribution(model, batch, 1.0).gather(1, batch.targets_N[:, None])[:, 0]
                for row, value in zip(batch.rows_N.tolist(), picked.tolist(), strict=True):
                    totals[batch.refs[row].trajectory] += value
        return totals

    before = log_likelihoods()
    updated(model, PpoConfig(warmup_updates=1, learning_rate=1e-3), items, values, ReplayPool())
    change = log_likelihoods() - before
    assert (change[::2] > 0).all()
    assert (change[1::2] < 0).all()


def test_a_round_stops_when_the_policy_has_moved_too_far(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 8)
    config = PpoConfig(epochs=4, learning_rate=0.05, warmup_updates=1, minibatch_episodes=4, max_kl=0.04)
    metrics = updated(model, config, items, [1.0, -1.0] * 4, ReplayPool())
    assert metrics["epochs"] == 1
    assert metrics["kl"] > 0.04


@pytest.mark.parametrize("where", ["advantage", "weights"])
def test_what_is_not_a_number_stops_the_run(model: ShiftQwen3ForCausalLM, where: str) -> None:
    items = random_trajectories(model, 4)
    if where == "weights":
        with torch.no_grad():
            model.model.norm.weight[0] = float("nan")
    with pytest.raises(TrainingDiverged, match=r"lower (critic_)?learning_rate"):
        updated(model, PpoConfig(), items, [float("nan") if where == "advantage" else 1.0] * 4, ReplayPool())


def test_micro_batches_hold_everything_once_within_the_budget() -> None:
    lengths = [5, 90, 7, 7, 3, 40, 41]
    groups = list(microbatches(lengths, 80))
    assert sorted(index for group in groups for index in group) == list(range(7))
    assert all(len(group) == 1 or len(group) * max(lengths[i] for i in group) <= 80 for group in groups)


def episode(outcome: Outcome, reward: float | None, *, step_rewards: Sequence[float] = (0.0, 0.0), logprobs: int = 2) -> Episode:
    request = EpisodeRequest(purpose="rl", task=Task(source="t", name="t", domain="d", max_steps=4), seed=1, policy_id="checkpoint-1")
    steps = [
        Step(
            step_index=k, policy_id="checkpoint-1", observation="", screenshot_id=None, messages=(), response="", thought=None,
            action=Finished() if k else Wait(), prompt_token_ids=(3, 4), response_token_ids=(5, 2), response_logprobs=(-0.1,) * logprobs,
            reward=step_reward,
        )
        for k, step_reward in enumerate(step_rewards)
    ]  # fmt: skip
    return Episode(request=request, instruction="", steps=tuple(steps), outcome=outcome, reward=reward, duration_ms=1.0, environment="test")


def test_a_crash_is_never_a_reward_of_zero() -> None:
    assert trajectory(episode(Outcome.CRASHED, None)) is None
    failed = trajectory(episode(Outcome.FAILURE, -1.0))
    assert failed is not None
    assert failed.reward == 0.0


def test_the_rewards_of_a_trajectory_sum_to_the_verified_one() -> None:
    solved = trajectory(episode(Outcome.SUCCESS, 1.0, step_rewards=(0.5, 1.0)))
    assert solved is not None
    assert [turn.reward for turn in solved.turns] == [0.0, 1.0]
    scored = trajectory(episode(Outcome.TRUNCATED, 0.75, step_rewards=(0.5, 0.5)), reward="score")
    assert scored is not None
    assert [turn.reward for turn in scored.turns] == [0.5, 0.25]
    assert scored.is_truncated


def test_tokens_without_their_log_probabilities_are_refused() -> None:
    with pytest.raises(ModelError, match="2 response tokens and 1 log-prob"):
        trajectory(episode(Outcome.SUCCESS, 1.0, logprobs=1))


@pytest.mark.parametrize("level", ["token", "step"])
def test_values_come_back_in_the_order_of_the_episode_whatever_the_batches(model: ShiftQwen3ForCausalLM, level: str) -> None:
    items = random_trajectories(model, 7)
    critic = Critic.of_policy(model)
    torch.nn.init.normal_(critic.head.weight)
    small, large = (
        predict(critic, items, level=level, batching=Batching(max_tokens=tokens, pad_id=0))  # type: ignore[arg-type]
        for tokens in (20, 10_000)
    )
    for item, a, b in zip(items, small, large, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
        first = item.turns[0]
        with torch.no_grad():
            alone = critic.backbone(input_ids=torch.tensor([first.prompt_ids])).last_hidden_state[0, -1] @ critic.head.weight[0]
        assert a[0] == pytest.approx(alone.item(), abs=1e-5)
        assert len(a) == (item.num_response_tokens if level == "token" else len(item.turns))


def test_a_new_critic_says_zero_and_shares_nothing_with_the_policy(model: ShiftQwen3ForCausalLM) -> None:
    critic = Critic.of_policy(model)
    assert not np.concatenate(
        predict(critic, random_trajectories(model, 3), level="step", batching=Batching(max_tokens=99, pad_id=0))
    ).any()
    shared = {parameter.data_ptr() for parameter in model.parameters()} & {parameter.data_ptr() for parameter in critic.parameters()}
    assert not shared


def test_the_gate_wants_a_lower_loss_and_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 0.0, 1.0])
    assert Gate().judged(np.array([0.1, 0.9, 0.2, 0.8]), returns, 0.1).has_passed
    assert not Gate().judged(np.full(4, 0.5), returns, 0.1).has_passed  # lower loss, nothing explained
    assert not Gate().judged(returns * 5, returns, -100.0).has_passed  # perfectly correlated, but the loss is higher than of saying 0
    passed = Gate(has_passed=True).judged(np.full(4, 0.5), returns, 0.1)
    assert passed.has_passed  # once passed it stays so: the critic steers


def predictable(model: ShiftQwen3ForCausalLM, count: int) -> list[Trajectory]:
    """Episodes whose first prompt token decides the reward."""
    items = random_trajectories(model, count)
    marked = []
    for index, item in enumerate(items):
        turns = [
            Turn(
                prompt_ids=(5 if index % 2 else 6, *turn.prompt_ids),
                response_ids=turn.response_ids,
                logprobs=turn.logprobs,
                reward=turn.reward,
            )
            for turn in item.turns
        ]
        marked.append(Trajectory(episode_id=item.episode_id, task_name="one", turns=tuple(turns), reward=item.reward, is_truncated=False))
    return marked


def test_value_pretraining_holds_the_policy_and_passes_on_unseen_episodes(model: ShiftQwen3ForCausalLM) -> None:
    config = PpoConfig(critic_learning_rate=1e-2, critic_minibatch_tokens=256, pretraining_epochs=8, pretraining_rounds=1)
    learner = ValueLearner(Critic.of_policy(model), config, pad_id=0)
    items = predictable(model, 120)
    first = weigh_round(items, config, learner, 1, np.random.default_rng(0))
    assert first.advantages is None
    assert first.metrics["value_gate"] == 1.0
    assert first.metrics["gate_explained_variance"] > 0.5
    second = weigh_round(items, config, learner, 2, np.random.default_rng(1))
    assert second.advantages is not None
    assert second.metrics["critic_steers"] == 1.0
    assert max(np.abs(values).max() for values in second.advantages) <= config.advantage_clip


def test_a_critic_that_failed_its_gate_does_not_steer(model: ShiftQwen3ForCausalLM) -> None:
    config = PpoConfig(gate_explained_variance=0.99, pretraining_rounds=1, pretraining_policy="baseline", critic_learning_rate=1e-6)
    learner = ValueLearner(Critic.of_policy(model), config, pad_id=0)
    items = random_trajectories(model, 40)
    for index in (1, 2):
        weighting = weigh_round(items, config, learner, index, np.random.default_rng(index))
        assert weighting.metrics["value_gate"] == weighting.metrics["critic_steers"] == 0.0
        assert weighting.advantages is not None
        expected = weigh_round(
            items, config.model_copy(update={"algorithm": "reinforce"}), None, index, np.random.default_rng(index)
        ).advantages
        assert expected is not None
        assert all(np.array_equal(a, b) for a, b in zip(weighting.advantages, expected, strict=True))
