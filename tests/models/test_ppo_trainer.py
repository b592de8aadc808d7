"""The rounds of reinforcement learning on a small real environment: learning, the control, crashes, and going on after a kill.

The environment is a page of three buttons computed in Python; a policy presses them through the same episode loop, collector and engine
as on live browsers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from agent.episode.collector import Collector, Requests
from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.grammars.registry import grammar_named
from agent.policy.policy import Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder, training_messages
from models.checkpoints import checkpoint
from models.engine.choice import EngineChoice
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_codec, load_policy
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.families.tokenizer import build_tokenizer
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from models.merging.config import MethodConfig
from models.merging.merge import merge
from models.rl.config import PpoConfig
from models.rl.rollouts.curriculum import quotas, round_requests
from models.rl.trainer import PpoResult, PpoRun, rollout_log_of, train_ppo
from models.rl.updates.replay import ReplayPool
from models.rl.value.pretraining import CriticSource
from models.server.settings import ServerSettings
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import EncodedSample, tensors
from models.training.forward import weighted_loss
from pipelines.stages.engines import open_servers
from sandbox.actions import Action, Click
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Split, Task
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, our_server
from warehouse.core.errors import BrowserCrashed, CheckpointError, ConfigError, NothingToLearn
from warehouse.core.identity import stable_seed

torch.set_num_threads(1)
NAMES = ("Apple", "Brook", "Cedar", "Delta", "Ember", "Fjord")
TASK = Task(source="buttons", name="press-one", domain="pointing", max_steps=2)
OTHER = Task(source="buttons", name="press-two", domain="pointing", max_steps=2)
Weak = tuple[Path, list[EncodedSample]]
"""A checkpoint, and what it learned from."""


class ButtonSession:
    """Three buttons; pressing the last solves the task, which nothing on the page says, and pressing another ends it."""

    environment = "buttons 1"

    def __init__(self, crash_every: int = 0) -> None:
        self._crash_every, self._num_steps = crash_every, 0

    async def reset(self, task: Task, seed: int) -> Observation:
        order = np.random.default_rng(stable_seed("buttons", task.name, seed)).permutation(len(NAMES))
        self._names = [NAMES[i] for i in order[:3]]
        self._pressed: str | None = None
        return self._observe()

    async def step(self, action: Action) -> Transition:
        await asyncio.sleep(0)
        self._num_steps += 1
        if self._crash_every and self._num_steps % self._crash_every == 0:
            raise BrowserCrashed("the page of buttons went away, as planned")
        if isinstance(action, Click):
            self._pressed = self._names[action.y // 50]
        return Transition(observation=self._observe(), reward=float(self._is_solved), terminated=self._pressed is not None, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=float(self._is_solved), threshold=1.0)

    async def oracle_action(self) -> Action | None:
        return Click(x=80, y=25 + 50 * (len(self._names) - 1))

    async def close(self) -> None:
        self._pressed = None

    @property
    def _is_solved(self) -> bool:
        return self._pressed == self._names[-1]

    def _observe(self) -> Observation:
        elements = [
            Element(role="button", text=name, x_px=80, y_px=25 + 50 * row, width_px=60, height_px=20)
            for row, name in enumerate(self._names)
        ]
        return Observation(instruction="Press one", elements=tuple(elements), screenshot=None, width_px=160, height_px=150, time_ms=0.0)


class ButtonPool:
    size = 16
    """Twice what the collector below uses at once."""

    def __init__(self, crash_every: int = 0) -> None:
        self._crash_every = crash_every

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[ButtonSession]:
        yield ButtonSession(self._crash_every)

    async def close(self) -> None: ...


def collector(crash_every: int = 0, pool: ButtonPool | None = None) -> PoolCollector:
    settings = CollectorSettings(concurrency=8, max_retries=0, retry_delay_s=0.0, fixed_batch=True)
    return PoolCollector(pool or ButtonPool(crash_every), PromptBuilder("compact"), settings=settings)


async def demonstrations(count: int) -> list[TrainingSample]:
    """Prompts of the task with the answer that presses any button: the form is right, the choice is chance."""
    builder, grammar, session = PromptBuilder("compact"), grammar_named("compact"), ButtonSession()
    samples = []
    for seed in range(count):
        observation = await session.reset(TASK, seed)
        element = observation.elements[stable_seed("any", seed) % 3]
        action = Click(x=element.x_px, y=element.y_px)
        answer = grammar.format(None, action, observation)
        messages = training_messages(builder.build(builder.start(observation.instruction), observation), answer)
        samples.append(TrainingSample(messages=messages))
    return samples


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Weak:
    """A checkpoint that presses a button, any button, and the samples it learned that from."""
    tokenizer = build_tokenizer([*NAMES, "Press", "one"])
    pad, bos, eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 12,
        "intermediate_size": 96,
    }
    model = ShiftQwen3ForCausalLM(tiny_config(len(tokenizer), pad_token_id=pad, bos_token_id=bos, eos_token_id=eos, **sizes))
    initialise(model, seed=0)
    encoded = encode_samples(tokenizer, asyncio.run(demonstrations(200)), prompt_loss_weight=0.0, max_tokens=200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = np.random.default_rng(0)
    for _ in range(90):
        loss = weighted_loss(model, tensors([encoded[row] for row in generator.integers(len(encoded), size=32)], pad))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("weak") / "checkpoint"
    checkpoint.save(folder, model, tokenizer, stage="sft_model", iteration="0001")
    return folder, encoded


def make_run(weak: Weak, folder: Path, *, tasks: Sequence[Task] = (TASK,), **settings: object) -> PpoRun:
    defaults: dict[str, object] = {"rounds": 2, "episodes_per_task": 16, "minibatch_episodes": 8, "pretraining_rounds": 1}
    config = PpoConfig.model_validate(defaults | settings)
    return PpoRun(
        config=config,
        init_checkpoint=weak[0],
        tasks=tasks,
        replay=ReplayPool(sft=weak[1]),
        output=folder / "out",
        run_folder=folder / "out.run",
        stage="rl_pointing",
        iteration="0001",
    )


def train(run: PpoRun, collector: Collector, **options: Any) -> PpoResult:
    async def main() -> PpoResult:
        return await train_ppo(run, collector, **options)

    return asyncio.run(main())


def weights_of(result: PpoResult) -> str:
    return result.card.checkpoint_id


@pytest.mark.slow
def test_a_run_makes_a_checkpoint_metrics_and_a_rollout_log(weak: Weak, tmp_path: Path) -> None:
    seen: list[int] = []
    run = make_run(weak, tmp_path, tasks=(TASK, OTHER))
    result = train(run, collector(), on_progress=lambda index, _: seen.append(index))
    assert seen == [1, 2]
    assert checkpoint.verify(run.output) == result.card
    assert result.card.parents == (checkpoint.read_card(weak[0]).checkpoint_id,)
    episodes = list(result.rollout_log.episodes())
    assert len(episodes) == len({episode.episode_id for episode in episodes}) == 64
    # The first round was acted by the initial checkpoint; value pretraining held the policy, so the second was as well.
    assert result.policy_ids == (result.card.parents[0],) * 2
    lines = next(run.run_folder.glob("*/metrics.jsonl")).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    for name in (
        "reward",
        "success",
        "success/press-one",
        "entropy",
        "kl",
        "clip_fraction",
        "explained_variance",
        "value_loss",
        "value_gate",
        "tokens_per_step",
        "env_s",
        "gen_s",
        "update_s",
        "lease_busy_share",
        "mismatch_kl",
    ):
        assert np.isfinite(result.metrics[-1][name]), name
    assert result.metrics[-1]["mismatch_kl"] < 1e-4
    assert 0 < result.metrics[-1]["lease_busy_share"] <= 0.5, "half of the pool is never leased"


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [{}, {"lora_rank": 2}])
def test_a_checkpoint_in_bfloat16_becomes_one_in_bfloat16_that_merges_with_it(weak: Weak, tmp_path: Path, adapters: dict[str, int]) -> None:
    half = load_policy(weak[0], dtype="bfloat16")
    parent = checkpoint.save(tmp_path / "half", half, load_codec(weak[0]), stage="sft_model", iteration="0001")
    run = make_run((tmp_path / "half", weak[1]), tmp_path, rounds=1, episodes_per_task=8, algorithm="reinforce", **adapters)
    assert train(run, collector()).metrics[-1]["updates"] > 0
    assert checkpoint.stored_dtype(run.output) == "bfloat16" and checkpoint.stored_dtype(weak[0]) == "float32"
    method = MethodConfig(method="task_arithmetic")
    merged = merge([run.output, run.output], (0.5, 0.5), tmp_path / "merged", method, base=tmp_path / "half")
    assert parent.checkpoint_id in merged.parents and checkpoint.stored_dtype(tmp_path / "merged") == "bfloat16"


def test_requests_are_train_seeds_and_no_round_meets_those_of_another() -> None:
    config = PpoConfig(episodes_per_task=5, seed_offset=3, adaptive_episodes=True)
    met: Counter[str] = Counter()
    seen: list[tuple[str, int]] = []
    for rates in ({}, {TASK.task_id: 1.0, OTHER.task_id: 0.5}, {TASK.task_id: 0.5, OTHER.task_id: 0.0}):
        requests = round_requests([TASK, OTHER], quotas([TASK, OTHER], config, rates), met, config, "checkpoint-x")
        assert {request.split for request in requests} == {Split.TRAIN}
        seen += [(request.task.name, request.seed) for request in requests]
        met += Counter(request.task.task_id for request in requests)
    assert len(seen) == len(set(seen)) == 30
    assert not {seed for _, seed in seen} & set(TASK.seeds(Split.TRAIN, 3))


def test_episodes_go_where_the_outcome_is_open() -> None:
    tasks = [TASK.model_copy(update={"name": f"task-{i}"}) for i in range(5)]
    ids = [task.task_id for task in tasks]
    rates = dict(zip(ids, (0.0, 0.1, 0.5, 0.9, 1.0), strict=True))
    found = [quotas(tasks, PpoConfig(episodes_per_task=20, adaptive_episodes=True), rates)[task_id] for task_id in ids]
    assert found[2] > found[1] == found[3] > found[0] == found[4] >= 2
    assert 80 <= sum(found) <= 102
    assert set(quotas(tasks, PpoConfig(episodes_per_task=20), rates).values()) == {20}
    lonely = quotas(tasks, PpoConfig(episodes_per_task=20, adaptive_episodes=True), dict.fromkeys(ids, 1.0) | {ids[0]: 0.5})
    assert lonely[ids[0]] == 40  # no task takes more than twice its part


def test_held_out_tasks_are_refused(weak: Weak, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secret"):
        train(make_run(weak, tmp_path, tasks=(TASK.model_copy(update={"name": "secret", "held_out": True}),)), collector())


class Failing(ButtonPool):
    """Sessions whose browser dies: those of the leases, counted from 1, for which `dies` holds."""

    def __init__(self, dies: Callable[[int], bool]) -> None:
        super().__init__()
        self._dies, self.num_leased = dies, 0

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[ButtonSession]:
        self.num_leased += 1
        yield ButtonSession(int(self._dies(self.num_leased)))


def test_crashed_episodes_are_retried_once_then_counted_and_not_learned_from(weak: Weak, tmp_path: Path) -> None:
    every_other = Failing(lambda number: number % 2 == 1)
    result = train(make_run(weak, tmp_path, algorithm="reinforce", rounds=1), collector(pool=every_other))
    metrics = result.metrics[0]
    assert (metrics["episodes"], metrics["crashed"], metrics["retried"], every_other.num_leased) == (12, 4, 8, 24)
    assert metrics["updates"] > 0 and metrics["fruitless"] == 0.0
    episodes = list(result.rollout_log.episodes())
    assert len({episode.episode_id for episode in episodes}) == 24, "what crashed is kept, also where another attempt took its place"
    good = [episode for episode in episodes if episode.outcome is not Outcome.CRASHED]
    assert len({episode.request.seed for episode in good}) == 12
    assert metrics["reward"] == pytest.approx(np.mean([episode.is_success for episode in good]))
    assert sorted(result.episode_ids) == sorted(episode.episode_id for episode in good), "what the weights are from, and nothing else"


def test_a_run_whose_weights_no_episode_moved_names_none(weak: Weak, tmp_path: Path) -> None:
    """The control learns replayed samples alone; a policy that waits for its critic is the initial checkpoint still."""
    control = train(make_run(weak, tmp_path / "a", algorithm="reinforce", rounds=1, mode="replay_only"), collector())
    assert control.metrics[0]["updates"] > 0 and control.episode_ids == ()
    waiting = train(make_run(weak, tmp_path / "b", rounds=1, pretraining_policy="frozen"), collector())
    assert waiting.metrics[0]["updates"] == 0 and waiting.episode_ids == ()


@pytest.mark.slow
def test_a_round_that_an_outage_spoiled_passes_without_an_update(weak: Weak, tmp_path: Path) -> None:
    """Sixteen episodes, each tried twice; those of the second round but two; and value pretraining waits for something to learn from."""
    settings = {"rounds": 4, "fruitless_pause_s": 0.0, "min_intact": 0.25, "pretraining_policy": "frozen"}
    result = train(make_run(weak, tmp_path, **settings), collector(pool=Failing(lambda number: number <= 32 or 34 < number <= 64)))
    assert [metrics["fruitless"] for metrics in result.metrics] == [1.0, 1.0, 0.0, 0.0]
    assert [metrics["episodes"] for metrics in result.metrics] == [0, 2, 16, 16]
    assert ["value_gate" in metrics for metrics in result.metrics] == [False, False, True, True]
    assert [metrics["updates"] > 0 for metrics in result.metrics] == [False, False, False, True]
    assert len(result.episode_ids) == 32, "the two that the second round had left taught nothing"


@pytest.mark.slow
def test_a_run_that_gave_up_on_its_sandbox_resumes_after_the_crashed_rounds(weak: Weak, tmp_path: Path) -> None:
    settings = {"algorithm": "reinforce", "rounds": 4, "fruitless_pause_s": 0.0, "max_fruitless_rounds": 2, "state_every": 9, "epochs": 1}
    run = make_run(weak, tmp_path, **settings)
    seen: list[int] = []
    with pytest.raises(NothingToLearn, match=r"16 of 16 episodes of round 3 .*\(2 such .* resumes with round 4 .* so far") as gave_up:
        train(run, collector(pool=Failing(lambda number: number > 16)), on_progress=lambda index, _: seen.append(index))
    assert seen == [1, 2, 3] and "delete" not in str(gave_up.value)
    resumed = Dying(None)
    result = train(run, resumed)
    assert sum(resumed.asked.values()) == 16 and [m["fruitless"] for m in result.metrics] == [0.0, 1.0, 1.0, 0.0]
    assert result.policy_ids[0] != result.policy_ids[1] == result.policy_ids[3], "what the first round taught is still there"
    # One that never learned anything has nothing to keep.
    barren = make_run(weak, tmp_path / "barren", algorithm="reinforce", rounds=1)
    with pytest.raises(NothingToLearn, match="it starts over, since nothing was learned"):
        train(barren, collector(crash_every=1))
    assert train(barren, collector()).metrics[0]["episodes"] == 16


class Killed(BaseException):
    """Stands for SIGKILL inside one process: nothing of the run may catch it."""


class Dying:
    """A collector whose process dies after some episodes. Counts what it was asked to run."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        self.asked: Counter[str] = Counter()

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        async for episode in collector().collect(policy, requests, log=log):
            self.asked[episode.episode_id] += 1  # it is in the log by now
            if self.after is not None and sum(self.asked.values()) > self.after:
                raise Killed
            yield episode

    async def close(self) -> None: ...


@pytest.mark.parametrize("after", [pytest.param(5, marks=pytest.mark.long), 16, pytest.param(37, marks=pytest.mark.long)])
@pytest.mark.slow
def test_a_killed_run_goes_on_without_running_an_episode_twice(weak: Weak, tmp_path: Path, after: int) -> None:
    settings = {"rounds": 3, "pretraining_policy": "baseline"}
    whole = train(make_run(weak, tmp_path / "whole", **settings), Dying(None))
    run = make_run(weak, tmp_path / "killed", **settings)
    first, second = Dying(after), Dying(None)
    with pytest.raises(Killed):
        train(run, first)
    # Episodes that ended while the process was dying are in the log as well, though nobody was handed them.
    logged = {episode.episode_id for episode in rollout_log_of(run).episodes()}
    assert logged >= set(first.asked)
    rollout_log = max(run.run_folder.glob("*/episodes/*.jsonl"))
    rollout_log.write_bytes(rollout_log.read_bytes() + b'{"request": {"purp')  # the line that was being written
    resumed = train(run, second)
    assert not logged & set(second.asked)
    episodes = list(resumed.rollout_log.episodes())
    assert Counter(e.episode_id for e in episodes) == Counter([*logged, *second.asked])
    assert weights_of(resumed) == weights_of(whole)
    assert [m["reward"] for m in resumed.metrics] == [m["reward"] for m in whole.metrics]
    assert resumed.episode_ids == whole.episode_ids and len(whole.episode_ids) == 48
    # A finished run that is restarted only writes its checkpoint once more; without its state it learns again from its rollout log.
    assert weights_of(train(run, Dying(0))) == weights_of(whole)
    shutil.rmtree(resumed.state)
    assert weights_of(train(run, Dying(0))) == weights_of(whole)
    # Where it has to forget an episode, it learns again from the others, and plays none.
    shutil.rmtree(resumed.state)
    resumed.rollout_log.forget(whole.episode_ids[:1])
    without = train(run, Dying(0))
    assert without.episode_ids == whole.episode_ids[1:] and weights_of(without) != weights_of(whole)


def with_critic(weak: Weak, folder: Path, stored: Sequence[Episode], parent: Path | None = None) -> PpoRun:
    source = CriticSource(stage="critic_pointing", output=folder / "critic", parent=parent, episodes=lambda: stored, episodes_name="first")
    settings = {"rounds": 2, "pretraining_policy": "baseline", "offline_max_epochs": 2, "critic_learning_rate": 2e-3}
    return replace(make_run(weak, folder, **settings), critic=source)


@pytest.mark.slow
def test_a_critic_is_pretrained_kept_and_carried_and_a_killed_run_makes_the_same(weak: Weak, tmp_path: Path) -> None:
    stored = list(
        train(make_run(weak, tmp_path / "before", algorithm="reinforce", rounds=4, seed_offset=500), Dying(None)).rollout_log.episodes()
    )
    whole = train(with_critic(weak, tmp_path / "whole", stored), Dying(None))
    assert whole.critic is not None and checkpoint.verify(tmp_path / "whole" / "critic") == whole.critic
    assert whole.critic.kind == "critic" and whole.critic.parents == whole.card.parents
    num_fitted = whole.metrics[0]["offline_episodes"]
    assert whole.metrics[0]["offline_epochs"] >= 1 and "offline_epochs" not in whole.metrics[1] and 32 < num_fitted < 64
    assert len(whole.critic_episode_ids) == num_fitted + 32 and set(whole.episode_ids) < set(whole.critic_episode_ids)
    # Killed in the first round, in the second, and when all is done: the same weights of both.
    run = with_critic(weak, tmp_path / "killed", stored)
    for after in (5, 20):
        with pytest.raises(Killed):
            train(run, Dying(after))
    resumed = train(run, Dying(None))
    assert resumed.critic is not None and resumed.metrics[0]["offline_episodes"] == num_fitted
    assert (weights_of(resumed), resumed.critic.checkpoint_id) == (weights_of(whole), whole.critic.checkpoint_id)
    assert resumed.critic_episode_ids == whole.critic_episode_ids
    # The next run begins with it, and with other weights makes another one.
    carried = train(with_critic(weak, tmp_path / "next", (), parent=tmp_path / "whole" / "critic"), Dying(None))
    assert carried.critic is not None and carried.critic.parents == (*whole.card.parents, whole.critic.checkpoint_id)
    assert carried.critic.checkpoint_id != whole.critic.checkpoint_id and carried.metrics[0]["offline_episodes"] == 0
    # Nothing of what is evaluated may come in.
    reported = stored[0].model_copy(update={"request": stored[0].request.model_copy(update={"seed": TASK.seeds(Split.HOLDOUT, 1)[0]})})
    with pytest.raises(ConfigError, match="the critic learns from training instances only"):
        train(with_critic(weak, tmp_path / "refused", [reported]), Dying(None))


@pytest.mark.slow
def test_streaming_learns_from_each_episode_once_and_a_killed_run_goes_on(weak: Weak, tmp_path: Path) -> None:
    settings = {"algorithm": "reinforce", "streaming": True, "rounds": 3, "min_batch_episodes": 12, "batches_ahead": 1, "warmup_steps": 1}
    run = make_run(weak, tmp_path, tasks=(TASK, OTHER), **settings)
    seen: list[int] = []
    first, second = Dying(45), Dying(None)
    with pytest.raises(Killed):
        train(run, first)
    result = train(run, second, on_progress=lambda index, _: seen.append(index))
    assert seen == list(range(1, 9))  # 3 rounds of 16 episodes of 2 tasks, 12 at a time
    episodes = {episode.episode_id: episode for episode in result.rollout_log.episodes()}
    assert len(episodes) == 96 and not set(first.asked) & set(second.asked)
    recovered = result.rollout_log.recover(8)
    assert sorted(episode_id for ids in recovered.batches.values() for episode_id in ids) == sorted(episodes)
    assert Counter(request.task.name for block in recovered.blocks for request in block.requests) == {"press-one": 48, "press-two": 48}
    for index, metrics in enumerate(result.metrics, start=1):
        assert metrics["episodes"] == 12
        assert 0 <= metrics["staleness_mean"] <= metrics["staleness_max"] < index
        for name in (
            "queue_waiting",
            "queue_running",
            "queue_finished",
            "env_steps_per_s",
            "gen_tokens_per_s",
            "overlap_share",
            "wait_s",
            "round_s",
            "swap_s",
            "gen_s",
            "env_s",
            "update_s",
            "update_cpu_s",
        ):
            assert np.isfinite(metrics[name]) and metrics[name] >= 0, name
    for episode in episodes.values():
        for step in episode.steps:
            assert len(step.response_versions) == len(step.response_token_ids)
    assert max(v for e in episodes.values() for s in e.steps for v in s.response_versions) > 0
    # The same batches in the same order make the same weights: nothing was trained on twice or left out, before or after the kill.
    shutil.rmtree(result.state)
    assert weights_of(train(run, Dying(0))) == weights_of(result)


class AdapterEngine:
    """An engine that takes nothing but adapters: peft puts them on the checkpoint it was opened with."""

    is_continuous, takes_adapters = True, True

    def __init__(self, folder: Path, checkpoint_id: str, scratch: Path) -> None:
        self._folder, self._scratch = folder, scratch
        self._engine = EmbeddedEngine(load_policy(folder), load_codec(folder), checkpoint_id)

    @property
    def policy_id(self) -> str:
        return self._engine.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return await self._engine.act(prompts)

    def load_weights(self, state: object, checkpoint_id: str, version: int = 0) -> None:
        raise AssertionError(f"{checkpoint_id} was handed over whole")

    def load_adapter(self, save: Callable[[Path], None], checkpoint_id: str, version: int = 0) -> None:
        save(self._scratch / checkpoint_id)
        whole: Any = PeftModel.from_pretrained(load_policy(self._folder), str(self._scratch / checkpoint_id))
        self._engine.load_weights(whole.merge_and_unload().state_dict(), checkpoint_id, version)

    def close(self) -> None:
        self._engine.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's
def test_a_policy_that_takes_adapters_alone_answers_with_what_was_learned(weak: Weak, tmp_path: Path) -> None:
    run = make_run(weak, tmp_path, algorithm="reinforce", lora_rank=4, warmup_steps=1, learning_rate=3e-3)
    result = train(run, collector(), make_policy=lambda model, codec, name: AdapterEngine(weak[0], name, tmp_path))
    assert [metrics["updates"] > 0 for metrics in result.metrics] == [True, True]
    assert all(metrics["mismatch_kl"] < 1e-4 for metrics in result.metrics), "what was sampled from is what learns"


@pytest.mark.long
def test_a_server_acts_while_the_policy_learns(weak: Weak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generation may be elsewhere: new weights are handed over as they come, and each token says which ones wrote it."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    settings = {"algorithm": "reinforce", "streaming": True, "rounds": 3, "min_batch_episodes": 8, "batches_ahead": 1, "warmup_steps": 1}
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    with our_server(weak[0], ServerSettings(weight_roots=(exchange,))) as server:
        config = HttpEngineConfig(base_url=server.url, token_env=TOKEN_VARIABLE, exchange=str(exchange))
        run = make_run(weak, tmp_path, **settings)
        result = train(run, collector(), make_policy=lambda *_: HttpEngine.of_checkpoint(config, weak[0]))
    versions = {v for episode in result.rollout_log.episodes() for step in episode.steps for v in step.response_versions}
    assert len(result.metrics) == 6 and len(versions) > 2
    assert all(metrics["mismatch_kl"] < 0.5 for metrics in result.metrics)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_of_the_stages_own_gives_the_episodes_of_the_embedded_engine(weak: Weak, tmp_path: Path) -> None:
    settings = {"algorithm": "reinforce", "warmup_steps": 1, "learning_rate": 1e-3, "screenshots": False}
    here = train(make_run(weak, tmp_path / "here", **settings), collector())

    def served(model: Any, *_: object) -> HttpEngine:
        dtype = str(model.dtype).removeprefix("torch.")
        return open_servers(weak[0], EngineChoice(kind="served", device="cpu"), dtype=dtype, exchange=tmp_path / "exchange")

    there = train(make_run(weak, tmp_path / "there", **settings), collector(), make_policy=served)
    tokens = [{episode.episode_id: tokens_of(episode) for episode in result.rollout_log.episodes()} for result in (here, there)]
    assert tokens[0] == tokens[1], "ids are exact, and each token names the same version"
    versions = {version for episode in tokens[1].values() for _, _, step in episode for version in step}
    assert versions == {0, 1}
    assert [one["reward"] for one in here.metrics] == [one["reward"] for one in there.metrics]
    for one, other in zip(here.metrics, there.metrics, strict=True):
        assert one["policy_loss"] == pytest.approx(other["policy_loss"], abs=1e-5)
    assert not (tmp_path / "exchange").exists()


def tokens_of(episode: Episode) -> list[tuple[Any, Any, Any]]:
    return [(step.prompt_token_ids, step.response_token_ids, step.response_versions) for step in episode.steps]


def test_another_configuration_is_another_run_and_a_damaged_state_is_named(weak: Weak, tmp_path: Path) -> None:
    run = make_run(weak, tmp_path, rounds=1)
    (weights,) = train(run, collector()).state.glob("*/policy.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="round-0001 cannot be read"):
        train(run, Dying(0))
    other = Dying(None)
    train(make_run(weak, tmp_path, rounds=1, seed_offset=100), other)
    assert sum(other.asked.values()) == 16


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("algorithm", "streaming"),
    [
        pytest.param("reinforce", False, marks=pytest.mark.slow),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("ppo", False), ("reinforce", True), ("ppo", True))),
    ],
)
def test_learning_finds_the_right_button_and_the_control_does_not(weak: Weak, tmp_path: Path, algorithm: str, streaming: bool) -> None:
    """In rounds and streaming alike, after equal samples."""
    settings = {
        "algorithm": algorithm,
        "streaming": streaming,
        "rounds": 6,
        "episodes_per_task": 48,
        "minibatch_episodes": 16,
        "learning_rate": 5e-4,
        "max_kl": 0.1,
    }
    gate = {"gate_explained_variance": -1.0}  # nothing on the page tells a good start from a bad one: only the steering is tested
    learned = train(make_run(weak, tmp_path / "learn", **settings, **gate), collector())
    assert np.mean([m["success"] for m in learned.metrics[-2:]]) > 0.6
    if streaming:
        assert max(m["staleness_max"] for m in learned.metrics) > 0
        return
    control = train(make_run(weak, tmp_path / "control", mode="replay_only", **settings, **gate), collector())
    assert np.mean([m["success"] for m in control.metrics[-2:]]) < 0.45
