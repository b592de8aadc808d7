"""Gradient steps on a real tiny model: what may and may not change them, and what is refused. Also tokens, critic and gate."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.policy.policy import Message
from models.families.chat import EncodedChat
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise
from models.rl.config import PpoConfig
from models.rl.state import Counters, load_state, save_state
from models.rl.updates.buffer import State, Trajectory, TrajectoryStep, microbatches, random_groups, step_lengths, step_refs, trajectory
from models.rl.updates.replay import ReplayPool
from models.rl.updates.update import PolicyLearner, response_log_distribution
from models.rl.updates.weighting import weigh_round
from models.rl.value.critic import Batching, Critic, predict
from models.rl.value.learner import Gate, ValueLearner
from models.training.adapters import prepare_for_training
from models.training.batching import EncodedSample, tensors
from models.training.forward import weighted_loss
from sandbox.actions import Finished, Wait
from sandbox.tasks.task import Task
from tests.models.ppo_episodes import per_token, random_trajectories, tiny_policy
from warehouse.core.errors import CheckpointError, TrainingDiverged, ValueGateNotPassed


@pytest.fixture
def model() -> ShiftQwen3ForCausalLM:
    return tiny_policy()


def updated(
    model: ShiftQwen3ForCausalLM, config: PpoConfig, items: Sequence[Trajectory], values: Sequence[float], replay: ReplayPool
) -> dict[str, float]:
    learner = PolicyLearner(model, config, pad_id=0, replay=replay)
    return learner.update(items, per_token(items, values), np.random.default_rng(0))


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
    sample = EncodedSample(token_ids=(5, 6, 7, 8), loss_weights=(0.0, 0.0, 1.0, 1.0))
    bonuses = {"positive_nll_weight": 0.1, "entropy_coefficient": 0.01, "kl_coefficient": 0.1}
    items = [replace(item, is_success=bool(item.reward)) for item in items]
    config = PpoConfig.model_validate({"mode": "replay_only", "minibatch_episodes": 4} | bonuses)
    without, with_replay = copy.deepcopy(model), copy.deepcopy(model)
    reference = copy.deepcopy(model)
    initialise(reference, seed=5)
    learner = PolicyLearner(without, config, pad_id=0, replay=ReplayPool(), reference=reference)
    assert learner.update(items, per_token(items, [0.0] * 8), np.random.default_rng(0))["updates"] == 4
    metrics = updated(with_replay, config, items, [0.0] * 8, ReplayPool(sft=[sample]))
    assert metrics["replay_loss"] > 0
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), without.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), with_replay.state_dict().values(), strict=True))


def test_each_replay_pool_weighs_by_how_many_samples_it_gives(model: ShiftQwen3ForCausalLM) -> None:
    """Three samples of SFT to one of CT; what an update reports is the loss before its only step."""
    kinds = {
        "sft": EncodedSample(token_ids=(5, 6, 7, 8), loss_weights=(0.0, 0.0, 1.0, 1.0)),
        "ct": EncodedSample(token_ids=(9, 10, 11), loss_weights=(0.0, 1.0, 1.0)),
    }
    alone = {name: weighted_loss(model, tensors([sample], 0)).item() for name, sample in kinds.items()}
    assert abs(alone["sft"] - alone["ct"]) > 0.01, "or no weight would show"
    config = PpoConfig(mode="replay_only", epochs=1, minibatch_episodes=4, replay_sft=3, replay_ct=1)
    metrics = updated(model, config, random_trajectories(model, 4), [0.0] * 4, ReplayPool(sft=[kinds["sft"]], ct=[kinds["ct"]]))
    assert metrics["updates"] == 1
    assert metrics["replay_loss"] == pytest.approx(0.75 * alone["sft"] + 0.25 * alone["ct"], rel=1e-5)


def test_tokens_that_are_too_stale_teach_nothing_even_of_a_success(model: ShiftQwen3ForCausalLM) -> None:
    stale = [
        replace(item, is_success=True, steps=tuple(replace(step, versions=(0,) * len(step.response_ids)) for step in item.steps))
        for item in random_trajectories(model, 4)
    ]
    before = copy.deepcopy(model.state_dict())
    learner = PolicyLearner(model, PpoConfig(positive_nll_weight=0.1, max_staleness=2), pad_id=0, replay=ReplayPool())
    learner.update(stale, per_token(stale, [1.0] * 4), np.random.default_rng(0), version=3)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_good_action_becomes_likelier_and_a_bad_one_less_likely(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 6)
    values = [1.0, -1.0] * 3

    def log_likelihoods() -> np.ndarray:
        from models.rl.updates.buffer import step_batches

        totals = np.zeros(len(items))
        with torch.no_grad():
            for batch in step_batches(items, range(len(items)), max_tokens=1000, pad_id=0):
                picked = response_log_distribution(model, batch, 1.0).gather(1, batch.targets_N[:, None])[:, 0]
                for row, value in zip(batch.rows_N.tolist(), picked.tolist(), strict=True):
                    totals[batch.refs[row].trajectory] += value
        return totals

    before = log_likelihoods()
    updated(model, PpoConfig(warmup_steps=1, learning_rate=1e-3), items, values, ReplayPool())
    change = log_likelihoods() - before
    assert (change[::2] > 0).all()
    assert (change[1::2] < 0).all()


def test_a_round_stops_when_the_policy_has_moved_too_far(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 8)
    config = PpoConfig(epochs=4, learning_rate=0.05, warmup_steps=1, minibatch_episodes=4, max_kl=0.04)
    metrics = updated(model, config, items, [1.0, -1.0] * 4, ReplayPool())
    assert metrics["epochs"] == 1
    assert metrics["kl"] > 0.04


def test_a_round_can_stop_within_a_pass(model: ShiftQwen3ForCausalLM) -> None:
    settings = {"epochs": 2, "learning_rate": 0.05, "warmup_steps": 1, "minibatch_episodes": 2, "max_kl": 0.04}
    items, untouched = random_trajectories(model, 16), copy.deepcopy(model)
    whole = updated(untouched, PpoConfig.model_validate(settings), items, [1.0, -1.0] * 8, ReplayPool())
    cut = updated(model, PpoConfig.model_validate(settings | {"kl_check": "minibatch"}), items, [1.0, -1.0] * 8, ReplayPool())
    assert (whole["epochs"], whole["updates"]) == (1, 8)
    assert 1 <= cut["updates"] < 8
    assert cut["kl"] < whole["kl"]


EXPLODING = {"epochs": 2, "learning_rate": 0.3, "warmup_steps": 1, "minibatch_episodes": 4, "explosive_kl": 1.0, "max_kl": 100.0}


def test_an_exploding_update_stops_and_says_so(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 12)
    metrics = updated(model, PpoConfig.model_validate(EXPLODING), items, [1.0, -1.0] * 6, ReplayPool())
    assert (metrics["exploded"], metrics["rolled_back"]) == (1.0, 0.0)
    assert metrics["exploded_kl"] > 1.0
    assert 1 <= metrics["updates"] < 6


def test_an_exploding_update_can_be_undone_to_the_bit(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 12)
    learner = PolicyLearner(model, PpoConfig.model_validate(EXPLODING | {"on_explosion": "roll_back"}), pad_id=0, replay=ReplayPool())
    before = copy.deepcopy(model.state_dict())
    metrics = learner.update(items, per_token(items, [1.0, -1.0] * 6), np.random.default_rng(0))
    assert (metrics["exploded"], metrics["rolled_back"], metrics["updates"], learner.num_updates) == (1.0, 1.0, 0, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not learner.optimizer.pieces()


def test_a_minibatch_that_is_no_number_is_skipped_and_counted(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 8)
    broken = TrajectoryStep(prompt_ids=(5, 6), response_ids=(7,), logprobs=(float("nan"),), reward=0.0)
    items[0] = replace(items[0], steps=(broken,))
    config = PpoConfig(minibatch_episodes=4, epochs=1, on_non_finite="skip", warmup_steps=1)
    metrics = updated(model, config, items, [1.0, -1.0] * 4, ReplayPool())
    assert (metrics["skipped_minibatches"], metrics["updates"]) == (1, 1)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    with pytest.raises(TrainingDiverged, match="all 2 minibatches"):
        updated(model, config, [items[0]] * 8, [1.0] * 8, ReplayPool())


def test_an_update_of_no_episodes_is_no_update(model: ShiftQwen3ForCausalLM) -> None:
    assert updated(model, PpoConfig(), [], [], ReplayPool())["updates"] == 0


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


def test_a_minibatch_of_the_critic_has_steps_of_every_length_within_the_budget(model: ShiftQwen3ForCausalLM) -> None:
    short = random_trajectories(model, 20)
    long = [replace(item, steps=tuple(replace(step, prompt_ids=step.prompt_ids * 5) for step in item.steps)) for item in short]
    items, budget = [*short, *long], 600
    refs = step_refs(items, range(40))
    groups = random_groups(items, refs, max_tokens=budget, generator=np.random.default_rng(0))
    assert sorted((ref.trajectory, ref.step) for group in groups for ref in group) == [(ref.trajectory, ref.step) for ref in refs]
    assert all(len(group) * max(step_lengths(items, group)) <= budget for group in groups)
    assert all(min(step_lengths(items, group)) < 17 < max(step_lengths(items, group)) for group in groups[:-1])


def episode(outcome: Outcome, reward: float | None, *, step_rewards: Sequence[float] = (0.0, 0.0)) -> Episode:
    request = EpisodeRequest(purpose="rl", task=Task(source="t", name="t", domain="d", max_steps=4), seed=1, policy_id="checkpoint-1")
    steps = [
        Step(
            step_index=k,
            policy_id="checkpoint-1",
            observation="",
            screenshot_id=None,
            messages=(),
            response="",
            thought=None,
            action=Finished() if k else Wait(),
            prompt_token_ids=(3, 4),
            response_token_ids=(5, 2),
            response_logprobs=(-0.1, -0.1),
            reward=step_reward,
        )
        for k, step_reward in enumerate(step_rewards)
    ]
    return Episode(request=request, instruction="", steps=tuple(steps), outcome=outcome, reward=reward, duration_ms=1.0, environment="test")


def test_the_state_after_a_cut_is_encoded_as_the_next_prompt_would_have_been() -> None:
    class Codec:
        eos_token_ids = (2,)
        pad_token_id = 0

        def encode(
            self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
        ) -> EncodedChat:
            return EncodedChat(token_ids=[len(message.content) for message in messages], loss_weights=[0.0] * len(messages))

        def decode(self, token_ids: Sequence[int]) -> str:
            raise AssertionError("nothing is decoded here")

    cut = episode(Outcome.TRUNCATED, 0.0).model_copy(update={"final_messages": (Message(role="user", content="12345"),)})
    found = [trajectory(cut, codec=Codec()), trajectory(cut), trajectory(episode(Outcome.FAILURE, 0.0), codec=Codec())]
    assert [item and item.final_state for item in found] == [State(prompt_ids=(5,)), None, None]
    blind = cut.model_copy(update={"final_messages": (Message(role="user", content="x", screenshot_id="gone"),)})
    item = trajectory(blind, codec=Codec())
    assert item is not None
    assert item.final_state is None  # its picture was not kept: the value of the last state that was shown stands in


def test_the_rewards_of_a_trajectory_sum_to_the_verified_one() -> None:
    solved = trajectory(episode(Outcome.SUCCESS, 1.0, step_rewards=(0.5, 1.0)))
    assert solved is not None
    assert [step.reward for step in solved.steps] == [0.0, 1.0]
    failed = trajectory(episode(Outcome.FAILURE, -1.0))
    assert failed is not None and failed.reward == 0.0
    scored = trajectory(episode(Outcome.TRUNCATED, 0.75, step_rewards=(0.5, 0.5)), reward="score")
    assert scored is not None
    assert [step.reward for step in scored.steps] == [0.5, 0.25]
    assert scored.is_truncated


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
        first = item.steps[0]
        with torch.no_grad():
            alone = critic.backbone(input_ids=torch.tensor([first.prompt_ids])).last_hidden_state[0, -1] @ critic.head.weight[0]
        assert a[0] == pytest.approx(alone.item(), abs=1e-5)
        assert len(a) == (item.num_response_tokens if level == "token" else len(item.steps))


def test_a_new_critic_says_zero_and_shares_nothing_with_the_policy(model: ShiftQwen3ForCausalLM) -> None:
    critic = Critic.of_policy(model)
    assert not np.concatenate(
        predict(critic, random_trajectories(model, 3), level="step", batching=Batching(max_tokens=99, pad_id=0))
    ).any()
    shared = {parameter.data_ptr() for parameter in model.parameters()} & {parameter.data_ptr() for parameter in critic.parameters()}
    assert not shared


def test_a_critic_whose_gradient_is_no_number_takes_no_step(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 4)
    critic = Critic.of_policy(model)
    with torch.no_grad():  # what the layers make is huge and the head weighs it nothing: values are numbers, the head's gradient is not
        critic.backbone.norm.weight.fill_(1e30)
    learner = ValueLearner(critic, PpoConfig(), pad_id=0)
    before = {name: weight.clone() for name, weight in critic.named_parameters()}
    with pytest.raises(TrainingDiverged, match="gradient norm of the critic is inf: lower critic_learning_rate"):
        learner.pretrain(items, learner.estimate(items), np.random.default_rng(0))
    assert all(torch.equal(weight, before[name]) for name, weight in critic.named_parameters())


def test_the_gate_wants_a_lower_loss_and_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 0.0, 1.0])
    assert Gate().judged(np.array([0.1, 0.9, 0.2, 0.8]), returns, 0.1).has_passed
    assert not Gate().judged(np.full(4, 0.5), returns, 0.1).has_passed  # lower loss, nothing explained
    assert not Gate().judged(returns * 5, returns, -100.0).has_passed  # perfectly correlated, but the loss is higher than of saying 0
    shut = Gate(has_passed=True, has_ever_passed=True).judged(np.full(4, 0.5), returns, 0.1)
    assert not shut.has_passed and shut.has_ever_passed
    assert Gate(has_passed=True).judged(np.full(4, 0.5), np.ones(4), 0.1).has_passed  # all alike: nothing is told about the critic


def predictable(model: ShiftQwen3ForCausalLM, count: int) -> list[Trajectory]:
    """Episodes whose first prompt token decides the reward."""
    items = random_trajectories(model, count)
    marked = []
    for index, item in enumerate(items):
        steps = [
            TrajectoryStep(
                prompt_ids=(5 if index % 2 else 6, *step.prompt_ids),
                response_ids=step.response_ids,
                logprobs=step.logprobs,
                reward=step.reward,
            )
            for step in item.steps
        ]
        marked.append(Trajectory(episode_id=item.episode_id, task_name="one", steps=tuple(steps), reward=item.reward, is_truncated=False))
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
    assert max(np.abs(values).max() for values in second.advantages) <= config.highest_advantage == 2.0


def test_the_gate_sees_no_instance_that_the_critic_was_fitted_to(model: ShiftQwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts at an instance are on one side; where each has one, the side is its episode's."""
    items = random_trajectories(model, 80)
    learner = ValueLearner(Critic.of_policy(model), PpoConfig(gate_holdout=0.4), pad_id=0)
    fitted: list[int] = []
    monkeypatch.setattr(learner, "_fit", lambda *given: fitted.extend(given[2]))

    def split(items: Sequence[Trajectory]) -> tuple[set[int], set[int]]:
        fitted.clear()
        learner.pretrain(items, learner.estimate(items), np.random.default_rng(0))
        return set(fitted), set(range(80)) - set(fitted)

    pairs = [replace(item, instance=f"one/{number // 2}") for number, item in enumerate(items)]
    ours, gates = split(pairs)
    assert {number // 2 for number in ours}.isdisjoint(number // 2 for number in gates) and 20 < len(ours) < 70
    assert split([replace(item, instance=f"one/{number}") for number, item in enumerate(items)]) == split(items)


@pytest.mark.slow
def test_a_critic_of_adapters_passes_the_gate_beside_the_policys_frozen_weights(tmp_path: Path, model: ShiftQwen3ForCausalLM) -> None:
    policy, again, other = (copy.deepcopy(model) for _ in range(3))
    config = PpoConfig(
        critic_learning_rate=1e-2,
        critic_minibatch_tokens=256,
        pretraining_epochs=8,
        lora_rank=8,
        lora_base_dtype="bfloat16",
        gradient_checkpointing=True,
    )
    items = predictable(policy, 120)
    critic = Critic.of_policy(policy, config)
    prepare_for_training(policy, config)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    assert critic.backbone.is_activation_checkpointing and critic.backbone.get_input_embeddings() is not policy.get_input_embeddings()
    learner = ValueLearner(critic, config, pad_id=0)
    gate = weigh_round(items, config, learner, 1, np.random.default_rng(0)).metrics
    assert gate["value_gate"] == 1.0 and gate["gate_explained_variance"] > 0.5
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    # What is frozen is not in the state of a run, and a fresh critic goes on from it as the old one would.
    save_state(tmp_path, Counters(), {"critic": critic}, {"critic": learner.optimizer})
    saved = load_file(tmp_path / "round-0000" / "critic.safetensors")
    assert all("lora_" in name or name.startswith("head.") for name in saved)
    resumed = ValueLearner(Critic.of_policy(again, config), config, pad_id=0)
    load_state(tmp_path, {"critic": resumed.critic}, {"critic": resumed.optimizer})
    batching = Batching(max_tokens=256, pad_id=0)
    values = [predict(one, items, level="step", batching=batching) for one in (critic, resumed.critic)]
    assert all(np.array_equal(a, b) for a, b in zip(*values, strict=True))
    with pytest.raises(CheckpointError, match="does not match the trained weights"):
        load_state(tmp_path, {"critic": Critic.of_policy(other, config.model_copy(update={"lora_targets": ("q_proj",)}))}, {})


def test_a_failed_gate_ends_a_run_that_was_to_block(model: ShiftQwen3ForCausalLM) -> None:
    config = PpoConfig(gate_explained_variance=0.99, pretraining_rounds=1, critic_learning_rate=1e-6, gate_policy="block")
    learner = ValueLearner(Critic.of_policy(model), config, pad_id=0)
    items = random_trajectories(model, 40)
    first = weigh_round(items, config, learner, 1, np.random.default_rng(1))
    assert first.metrics["value_loss_now"] <= first.metrics["value_loss_initial"]
    assert first.metrics["lambda_policy_min"] == first.metrics["lambda_policy"] == 0.95
    with pytest.raises(ValueGateNotPassed, match=r"more than 0\.99"):
        weigh_round(items, config, learner, 2, np.random.default_rng(2))


def test_an_open_gate_lets_a_critic_steer_that_was_never_pretrained(model: ShiftQwen3ForCausalLM) -> None:
    config = PpoConfig(gate_explained_variance=0.99, pretraining_rounds=0, critic_learning_rate=1e-6, gate_policy="open")
    learner = ValueLearner(Critic.of_policy(model), config, pad_id=0)
    weighting = weigh_round(random_trajectories(model, 40), config, learner, 1, np.random.default_rng(1))
    assert weighting.metrics["critic_steers"] == 1.0 and weighting.metrics["value_gate"] == 0.0
    assert weighting.advantages is not None and any(values.any() for values in weighting.advantages)


def test_rejection_sampling_learns_successes_alone(model: ShiftQwen3ForCausalLM) -> None:
    items = [replace(item, is_success=bool(item.reward)) for item in random_trajectories(model, 8)]
    config = PpoConfig(algorithm="rejection", learning_rate=1e-3, warmup_steps=1)
    weighting = weigh_round(items, config, None, 1, np.random.default_rng(0))
    assert weighting.advantages is not None
    learner = PolicyLearner(model, config, pad_id=0, replay=ReplayPool())
    before = [values.sum() for values in learner.logprobs(items, range(8))]
    assert learner.update(items, weighting.advantages, np.random.default_rng(0))["active_episodes"] == 4
    after = [values.sum() for values in learner.logprobs(items, range(8))]
    assert all(b > a for a, b, item in zip(before, after, items, strict=True) if item.is_success)


def test_a_penalty_for_leaving_the_reference_comes_off_each_tokens_reward(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 6)
    other = copy.deepcopy(model)
    initialise(other, seed=5)
    config = PpoConfig(algorithm="reinforce++", kl_coefficient=0.5, kl_placement="reward")
    learner = PolicyLearner(model, config, pad_id=0, replay=ReplayPool(), reference=other)
    reference = learner.reference_logprobs(items)
    assert reference is not None
    found = weigh_round(items, config, None, 1, np.random.default_rng(0), reference=reference).advantages
    assert found is not None
    returns = []
    for item, reference_T in zip(items, reference, strict=True):
        sampled = [x for step in item.steps for x in step.logprobs]
        paid = [-0.5 * (a - b) for a, b in zip(sampled, reference_T, strict=True)]
        returns.append([sum(paid[t:]) + item.reward for t in range(len(paid))])
    flat = np.concatenate(returns)
    assert np.concatenate(found) == pytest.approx((flat - flat.mean()) / flat.std(), abs=1e-6)


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_what_learns_through_adapters_is_its_own_reference_without_them(model: ShiftQwen3ForCausalLM, placement: str) -> None:
    items = random_trajectories(model, 4)
    config = PpoConfig.model_validate({"kl_coefficient": 1.0, "kl_placement": placement, "lora_rank": 2, "warmup_steps": 1})
    adapted, separate = copy.deepcopy(model), copy.deepcopy(model)
    learners = []
    for made, reference in ((adapted, adapted), (separate, copy.deepcopy(model))):
        prepare_for_training(made, config)
        learners.append(PolicyLearner(made, config, pad_id=0, replay=ReplayPool(), reference=reference))
    for _ in range(2):
        first, second = (one.update(items, per_token(items, [1.0, -1.0] * 2), np.random.default_rng(0)) for one in learners)
        assert first == second and first["updates"] > 0
    given = [one.reference_logprobs(items) for one in learners]
    if placement == "reward":
        assert given[0] is not None and given[1] is not None
        assert all(np.array_equal(a, b) for a, b in zip(*given, strict=True))
    assert [parameter.requires_grad for parameter in adapted.parameters()] == [p.requires_grad for p in separate.parameters()]


def test_a_bonus_for_entropy_is_paid_for_an_episode_that_teaches_nothing_else(model: ShiftQwen3ForCausalLM) -> None:
    items = random_trajectories(model, 4)
    learner = PolicyLearner(model, PpoConfig(entropy_coefficient=1.0, warmup_steps=1, epochs=1), pad_id=0, replay=ReplayPool())
    first, second = (learner.update(items, per_token(items, [0.0] * 4), np.random.default_rng(0)) for _ in range(2))
    assert first["active_episodes"] == 4 and second["entropy"] > first["entropy"]


def test_a_penalty_in_the_loss_draws_back_an_episode_that_teaches_nothing_else(model: ShiftQwen3ForCausalLM) -> None:
    items, other = random_trajectories(model, 4), copy.deepcopy(model)
    initialise(other, seed=5)
    learner = PolicyLearner(model, PpoConfig(kl_coefficient=1.0, warmup_steps=1), pad_id=0, replay=ReplayPool(), reference=other)
    wanted = np.concatenate(learner.logprobs(items, range(4), model=other))

    def distance() -> float:
        return float(np.abs(np.concatenate(learner.logprobs(items, range(4))) - wanted).mean())

    before = distance()
    assert learner.update(items, per_token(items, [0.0] * 4), np.random.default_rng(0))["active_episodes"] == 4
    assert distance() < before


@pytest.mark.parametrize("algorithm", ["ppo", "reinforce", "grpo", "reinforce++"])
@pytest.mark.parametrize("scope", ["batch", "minibatch"])
def test_a_penalty_in_the_reward_is_what_remains_of_a_task_that_was_rewarded_alike(
    model: ShiftQwen3ForCausalLM, algorithm: str, scope: str
) -> None:
    """Tasks 0 and 1 differ in outcome, task 2 never succeeds."""
    items = [
        replace(item, reward=0.0, steps=tuple(replace(s, reward=0.0) for s in item.steps)) if item.task_name == "task-2" else item
        for item in random_trajectories(model, 12)
    ]
    config = PpoConfig.model_validate(
        {
            "algorithm": algorithm,
            "group_by": "task",
            "kl_coefficient": 0.5,
            "kl_placement": "reward",
            "advantage_clip": None,
            "gate_policy": "open",
            "pretraining_rounds": 0,
            "advantage_scope": scope,
        }
    )
    critic = ValueLearner(Critic.of_policy(model), config, pad_id=0) if algorithm == "ppo" else None
    reference = [np.array([x - 0.1 for step in item.steps for x in step.logprobs]) for item in items]
    weighting = weigh_round(items, config, critic, 1, np.random.default_rng(0), reference=reference)
    assert weighting.advantages is not None and weighting.metrics["uniform_fraction"] == pytest.approx(1 / 3)
    for index, (item, values) in enumerate(zip(items, weighting.advantages, strict=True)):
        if item.task_name == "task-2":
            assert values == pytest.approx(-0.5 * 0.1 * np.arange(item.num_response_tokens, 0, -1))
            assert weighting.unscaled_E is None or not weighting.unscaled_E[index]
        else:
            assert values.any()


def test_a_cut_episode_ends_in_the_value_of_what_came_after_where_that_is_known(model: ShiftQwen3ForCausalLM) -> None:
    config = PpoConfig(lambda_critic=1.0)
    learner = ValueLearner(Critic.of_policy(model), config, pad_id=0)
    torch.nn.init.normal_(learner.critic.head.weight)
    (item,) = random_trajectories(model, 1)
    cut = [replace(item, is_truncated=True), replace(item, is_truncated=True, final_state=State(prompt_ids=(7, 8, 9))), item]
    estimates = learner.estimate(cut)
    assert estimates.finals[0] is None
    with torch.no_grad():
        after = learner.critic.head(learner.critic.backbone(input_ids=torch.tensor([[7, 8, 9]])).last_hidden_state)[0, -1, 0].item()
    assert estimates.finals[1] == pytest.approx(after, abs=1e-5)
    ends = [returns[-1] for returns in estimates.returns]
    assert ends == pytest.approx([float(estimates.values[0][-1]), after, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "grpo"}, "group_size is 1"),
        ({"adam_beta1": 1.0}, "less than 1"),
        ({"adam_beta2": 1.0}, "less than 1"),
        ({"algorithm": "rejection", "off_policy": "tis"}, "must be none"),
        ({"off_policy": "sequence_mask", "proximal": "loglinear"}, "must be recompute"),
        ({"shaping_format": 0.5, "shaping_steps": 0.6}, r"add up to 1\.1"),
        ({"shaping_format": 0.1, "reward": "score"}, "shaping weight at 0"),
        ({"shaping_progress": 0.1, "gamma": 0.9}, "gamma to 1"),
        ({"shaping_length_soft": 64}, "below shaping_length_max"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PpoConfig.model_validate(settings)


@pytest.mark.parametrize("level", ["token", "step"])
@pytest.mark.parametrize("normalisation", ["none", "std", "mean_std"])
def test_advantages_can_be_scaled_minibatch_by_minibatch(model: ShiftQwen3ForCausalLM, normalisation: str, level: str) -> None:
    items = random_trajectories(model, 8)
    values = [5.0, 1.0, 7.0, 3.0] * 2
    config = {
        "advantage_scope": "minibatch",
        "advantage_normalisation": normalisation,
        "minibatch_episodes": 8,
        "epochs": 1,
        "level": level,
    }
    scaled, raw = copy.deepcopy(model), copy.deepcopy(model)
    learner = PolicyLearner(scaled, PpoConfig.model_validate(config), pad_id=0, replay=ReplayPool())
    learner.update(items, per_token(items, values), np.random.default_rng(0), unscaled_E=np.ones(8, dtype=bool))
    flat = np.repeat(values, [item.num_response_tokens if level == "token" else len(item.steps) for item in items])
    centre, spread = {"none": (0.0, 1.0), "std": (0.0, flat.std()), "mean_std": (flat.mean(), flat.std())}[normalisation]
    given = [float(np.clip((value - centre) / spread, -2, 2)) for value in values]
    updated(raw, PpoConfig(minibatch_episodes=8, epochs=1), items, given, ReplayPool())
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(scaled.parameters(), raw.parameters(), strict=True))


def by_step(item: Trajectory, values: np.ndarray) -> list[float]:
    """The value of each step's first token; all of a step's tokens have the same."""
    parts = np.split(values, np.cumsum(item.tokens_per_step)[:-1])
    assert all(np.ptp(part) == 0 for part in parts)
    return [part[0] for part in parts]


STEERING = {"gate_policy": "open", "pretraining_rounds": 0, "critic_learning_rate": 1e-6}


def test_only_what_a_critic_says_of_an_open_task_is_scaled_in_minibatches(model: ShiftQwen3ForCausalLM) -> None:
    items = [replace(item, is_success=True) for item in random_trajectories(model, 12)]
    items = [replace(item, reward=1.0) if item.task_name == "task-0" else item for item in items]
    config = PpoConfig.model_validate(
        STEERING
        | {
            "advantage_scope": "minibatch",
            "advantage_normalisation": "mean_std",
            "minibatch_episodes": 12,
            "epochs": 1,
            "positive_nll_weight": 1e-9,
        }
    )
    weighting = weigh_round(items, config, ValueLearner(Critic.of_policy(model), config, pad_id=0), 1, np.random.default_rng(0))
    assert weighting.unscaled_E is not None and weighting.advantages is not None
    is_open = np.array([item.task_name != "task-0" for item in items])
    assert np.array_equal(weighting.unscaled_E, is_open)
    given = [values if is_one else np.zeros_like(values) for values, is_one in zip(weighting.advantages, is_open, strict=True)]
    flat = np.array([x for values, item, is_one in zip(given, items, is_open, strict=True) if is_one for x in by_step(item, values)])
    expected = [
        np.clip((values - flat.mean()) / flat.std(), -2, 2) if is_one else values for values, is_one in zip(given, is_open, strict=True)
    ]
    found, wanted = copy.deepcopy(model), copy.deepcopy(model)
    for made, advantages, unscaled_E in ((found, weighting.advantages, weighting.unscaled_E), (wanted, expected, None)):
        learner = PolicyLearner(made, config, pad_id=0, replay=ReplayPool())
        learner.update(items, advantages, np.random.default_rng(0), unscaled_E=unscaled_E)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), wanted.parameters(), strict=True))
    baseline = config.model_copy(update={"gate_policy": "fallback", "gate_explained_variance": 0.99})
    fallback = weigh_round(items, baseline, ValueLearner(Critic.of_policy(model), baseline, pad_id=0), 1, np.random.default_rng(0))
    assert fallback.unscaled_E is None, "the baseline's are scaled already"


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
