"""The pool of rollouts: admission by staleness, batches of what has finished, long episodes that neither block nor get lost, and what a
start after a kill goes on with.

The environment is the corridor of corridor.py: a task walks so many steps. Killed processes are in test_streaming_faults.py.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent.episode.collector import Requests
from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.policy import Message, Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder
from models.families.tiny_vision import tiny_vision_policy
from models.rl.clocks import MeteredPolicy
from models.rl.config import PpoConfig
from models.rl.metrics import staleness_metrics
from models.rl.rollouts.curriculum import batch_episodes, instances_met, num_rounds, num_to_admit, stream_requests
from models.rl.rollouts.log import Block, RolloutLog
from models.rl.rollouts.pool import AGAIN, RolloutPool
from models.rl.updates.buffer import trajectory
from sandbox.actions import Wait
from sandbox.tasks.task import Split, Task
from tests.models.chat_models import png
from tests.models.corridor import SHORT, CorridorPool, Gates
from warehouse.core.errors import ModelError, SandboxError

LONG = Task(source="corridor", name="walk-20", domain="pointing", max_steps=20)
TASKS = (SHORT, LONG)
T = TypeVar("T")


class Walking:
    """A policy that always clicks; its engine counts no versions."""

    policy_id = "policy-walking"

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        await asyncio.sleep(0)
        return [
            Response(text="Action click [1]", prompt_token_ids=(1,), token_ids=(2, 3), logprobs=(-0.1, -0.2), policy_id=self.policy_id)
            for _ in prompts
        ]


def walking(size: int = 4, gates: Gates | None = None) -> PoolCollector:
    settings = CollectorSettings(concurrency=size, max_retries=0, max_wait_ms=0.0)
    return PoolCollector(CorridorPool(size, gates), PromptBuilder("compact"), settings=settings)


def request(task: Task, number: int, attempt: int = 0) -> EpisodeRequest:
    """On the task's `number`-th train seed."""
    (seed,) = task.seeds(Split.TRAIN, 1, skip=number)
    return EpisodeRequest(purpose="rl", task=task, seed=seed, attempt=attempt, policy_id="p", temperature=1.0, screenshots=False)


def run(main: Coroutine[Any, Any, T]) -> T:
    """A test that hangs says so."""

    async def timed() -> T:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(timed())


def instance(one: EpisodeRequest) -> tuple[str, int]:
    return one.task.name, one.seed


def ids(episodes: Sequence[Episode]) -> list[str]:
    return [episode.episode_id for episode in episodes]


@pytest.mark.slow
@given(
    batch_size=st.integers(1, 9),
    ahead=st.integers(0, 4),
    num_batches=st.integers(1, 7),
    learned=st.integers(0, 7),
    before=st.integers(0, 90),
)
def test_admission_is_areals_rule_and_ends_with_the_run(batch_size: int, ahead: int, num_batches: int, learned: int, before: int) -> None:
    admitted = before + num_to_admit(before, learned, batch_size=batch_size, batches_ahead=ahead, num_batches=num_batches)
    may_start = [n for n in range(1, batch_size * num_batches + 1) if (n - 1) // batch_size <= learned + ahead]
    assert admitted == max(before, len(may_start))


def test_tasks_take_turns_by_what_was_started(tmp_path: Path) -> None:
    """Streaming on a corridor of one step and one of twenty: short episodes end twenty times as soon, and get no more turns for it."""
    config = PpoConfig(streaming=True, rounds=12, episodes_per_task=8, min_batch_episodes=8, batches_ahead=2)
    size, num_batches = batch_episodes(config, 2), num_rounds(config, 2)
    assert (size, num_batches) == (8, 24)
    consumed: Counter[str] = Counter()
    lead = []

    async def main() -> None:
        async with RolloutPool(walking(6), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            for index in range(1, num_batches + 1):
                more = num_to_admit(pool.num_admitted, index - 1, batch_size=size, batches_ahead=2, num_batches=num_batches)
                met = instances_met(r for block in pool.blocks for r in block.requests)
                passes = pool.blocks[-1].passes if pool.blocks else {}
                if more:
                    pool.admit(*stream_requests(TASKS, more, passes, {}, met, config, "p"))
                batch = await pool.batch(index, size)
                consumed.update(episode.request.task.name for episode in batch)
                lead.append(consumed[SHORT.name] - consumed[LONG.name])
            admitted = [r for block in pool.blocks for r in block.requests]
            for stop in range(len(admitted) + 1):
                started = Counter(r.task.name for r in admitted[:stop])
                assert abs(started[SHORT.name] - started[LONG.name]) <= 1
            assert len({r.episode_id for r in admitted}) == len(admitted) == size * num_batches

    run(main())
    assert consumed == {SHORT.name: 96, LONG.name: 96}
    # Short ones are learned from earlier, by what admission lets them run ahead and no more.
    assert 0 < max(lead) <= 3 * size


def test_open_tasks_get_more_turns_and_groups_stay_together() -> None:
    config = PpoConfig(adaptive_episodes=True, group_size=3, streaming=True)
    tasks = [LONG.model_copy(update={"name": f"task-{i}"}) for i in range(4)]
    rates = {task.task_id: rate for task, rate in zip(tasks, (0.5, 1.0, 0.0, 0.5), strict=True)}
    first, passes = stream_requests(tasks, 60, {}, rates, {}, config, "p")
    second, _ = stream_requests(tasks, 60, passes, rates, instances_met(first), config, "p")
    for requests in (first, second):
        assert len(requests) == 60
        counts = Counter(r.task.name for r in requests)
        assert counts["task-0"] == counts["task-3"] == 24 and counts["task-1"] == counts["task-2"] == 6
        for start in range(0, 60, 3):
            group = requests[start : start + 3]
            assert len({(r.task.name, r.seed) for r in group}) == 1 and [r.attempt for r in group] == [0, 1, 2]
    assert not {(r.task.name, r.seed) for r in first} & {(r.task.name, r.seed) for r in second}
    lonely = stream_requests(tasks, 60, {}, dict.fromkeys(rates, 1.0) | {tasks[0].task_id: 0.5}, {}, config, "p")[0]
    assert Counter(r.task.name for r in lonely)["task-0"] == 30  # no task takes more than twice its part
    assert batch_episodes(config.model_copy(update={"min_batch_episodes": 64}), 4) == 66
    assert batch_episodes(PpoConfig(streaming=True, rounds=1, episodes_per_task=8, min_batch_episodes=64), 2) == 16


@given(
    rounds=st.integers(1, 5), per_task=st.integers(1, 12), num_tasks=st.integers(1, 5), group=st.integers(1, 4), wanted=st.integers(1, 90)
)
def test_a_run_asks_for_no_more_than_it_has_however_large_a_batch_is_to_be(
    rounds: int, per_task: int, num_tasks: int, group: int, wanted: int
) -> None:
    config = PpoConfig(streaming=True, rounds=rounds, episodes_per_task=per_task, group_size=group, min_batch_episodes=wanted)
    size, has = batch_episodes(config, num_tasks), rounds * per_task * num_tasks
    assert size % group == 0 and size * num_rounds(config, num_tasks) <= max(has, group)
    assert size >= min(wanted, has - group + 1)


@pytest.mark.slow
def test_no_task_takes_more_than_twice_its_part_of_a_run_however_small_its_batches() -> None:
    config = PpoConfig(adaptive_episodes=True, streaming=True)
    tasks = [LONG.model_copy(update={"name": f"task-{i}"}) for i in range(17)]
    rates = dict.fromkeys((task.task_id for task in tasks), 1.0) | {tasks[0].task_id: 0.5}
    started: list[EpisodeRequest] = []
    passes: dict[str, float] = {}
    for _ in range(170):
        more, passes = stream_requests(tasks, 2, passes, rates, instances_met(started), config, "p")
        started += more
    assert Counter(r.task.name for r in started)["task-0"] == 2 * 340 // 17


def test_a_straggler_never_blocks_and_is_learned_from_when_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        straggler, gate = request(LONG, 0), asyncio.Event()
        policy = MeteredPolicy(Walking(), version=0)
        collector = walking(3, {instance(straggler): gate})
        async with RolloutPool(collector, policy, RolloutLog(tmp_path), num_learned=0) as pool:
            pool.admit([straggler, *(request(SHORT, i) for i in range(12))])
            for index in range(1, 4):
                batch = await pool.batch(index, 4)
                assert straggler.episode_id not in ids(batch)
                policy.version = index
            assert pool.queues == {"queue_waiting": 0.0, "queue_running": 1.0, "queue_finished": 0.0}
            gate.set()
            (late,) = await pool.batch(4, 1)
            versions = [version for step in late.steps for version in step.response_versions]
            assert versions[:2] == [0, 0] and versions[-2:] == [3, 3] and versions == sorted(versions)
            shares = staleness_metrics([late], 3)
            assert shares["staleness_max"] == 3.0 and shares["staleness/3"] == pytest.approx(2 / 40)
            assert sum(value for name, value in shares.items() if "/" in name) == pytest.approx(1.0)
            use = pool.lease_use
            assert use is not None and use.num_sessions == 3 and use.leased_s > 0
            assert policy.num_tokens == 2 * (12 + 20) and policy.busy_s > 0

    run(main())


def test_the_last_screen_of_a_cut_episode_is_there_when_it_is_learned_from(tmp_path: Path) -> None:
    """Nobody answered to it, so that no step names it: it is the state whose value the episode ends in."""
    asked = request(SHORT, 0).model_copy(update={"screenshots": True})
    images = {"shown": png(64, 64, "green"), "last": png(64, 64, "yellow")}
    before, after = ((Message(role="user", content="see", screenshot_id=name),) for name in images)
    step = Step(
        step_index=0,
        policy_id="p",
        observation="",
        screenshot_id="shown",
        messages=before,
        response="wait",
        thought=None,
        action=Wait(),
        prompt_token_ids=(3, 4),
        response_token_ids=(5, 6),
        response_logprobs=(-0.1, -0.2),
    )
    cut = Episode(
        request=asked,
        instruction="",
        steps=(step,),
        outcome=Outcome.TRUNCATED,
        reward=0.0,
        duration_ms=1.0,
        environment="t",
        screenshots=images,
        final_messages=after,
    )

    class Cutting:
        async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
            async for _ in requests:  # type: ignore[union-attr]
                if log is not None:
                    log.append(cut)
                yield cut

        async def close(self) -> None: ...

    async def main() -> Episode:
        async with RolloutPool(Cutting(), Walking(), RolloutLog(tmp_path / "episodes"), num_learned=0) as pool:
            pool.admit([asked])
            (found,) = await pool.batch(1, 1)
            return found

    _, codec = tiny_vision_policy(("see",), 0, num_hidden_layers=1)
    item = trajectory(run(main()), codec=codec)
    assert item is not None and item.final_state is not None and item.steps[0].pixels is not None and item.final_state.pixels is not None
    assert item.final_state.prompt_ids == tuple(codec.encode(after, images).token_ids)
    for pixels, name in ((item.steps[0].pixels, "shown"), (item.final_state.pixels, "last")):
        found, expected = pixels(), codec.vision([name], images)
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_batch_is_made_of_whole_groups_oldest_first(tmp_path: Path) -> None:
    async def main() -> None:
        gates = {instance(one): asyncio.Event() for one in (request(LONG, 0), request(SHORT, 2))}  # else the last may end before another
        async with RolloutPool(walking(4, gates), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            held_up = [request(LONG, 0), request(LONG, 0, attempt=1)]
            groups = [[request(SHORT, i, attempt=0), request(SHORT, i, attempt=1)] for i in range(3)]
            pool.admit([*held_up, *(one for group in groups for one in group)])
            assert ids(await pool.batch(1, 3)) == [r.episode_id for r in groups[0] + groups[1]]
            for gate in gates.values():
                gate.set()
            assert ids(await pool.batch(2, 4)) == [r.episode_id for r in held_up + groups[2]]

    run(main())


class Crashing:
    """A collector that crashes what it is asked for under these attempt numbers; notes what it was asked."""

    def __init__(self, *attempts: int) -> None:
        self._attempts, self.asked = attempts, list[tuple[int, int]]()

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        async for one in requests:  # type: ignore[union-attr]
            self.asked.append((one.seed, one.attempt))
            crashes = one.attempt in self._attempts
            episode = Episode(
                request=one,
                instruction="",
                steps=(),
                duration_ms=1.0,
                environment="t",
                reward=None if crashes else 0.0,
                outcome=Outcome.CRASHED if crashes else Outcome.FAILURE,
            )
            if log is not None:
                log.append(episode)
            yield episode

    async def close(self) -> None: ...


def test_what_crashed_is_asked_once_more_and_its_group_waits_for_it(tmp_path: Path) -> None:
    """Attempt 1 of each instance crashes, of the second one the attempt in its place as well; the next start knows it from the rollout
    log."""
    groups = [[request(SHORT, number, attempt) for attempt in (0, 1)] for number in (0, 1)]
    seeds = [group[0].seed for group in groups]

    async def start(num_learned: int, collector: Crashing, num_batches: int) -> list[list[Episode]]:
        async with RolloutPool(collector, Walking(), RolloutLog(tmp_path), num_learned=num_learned) as pool:
            if not pool.blocks:
                pool.admit([one for group in groups for one in group])
            found = [await pool.batch(index, 2) for index in range(num_learned + 1, num_batches + 1)]
            assert pool.num_admitted == 4 and pool.num_retried == sum(attempt == 1 for _, attempt in collector.asked)
            return found

    collector = Crashing(1)
    first, second = run(start(0, collector, 2))
    assert collector.asked == [(seed, attempt) for seed in seeds for attempt in (0, 1)] + [(seed, 1 + AGAIN) for seed in seeds]
    assert [[(one.request.seed, one.request.attempt) for one in batch] for batch in (first, second)] == [
        [(seed, 0), (seed, 1 + AGAIN)] for seed in seeds
    ]
    assert not any(one.outcome is Outcome.CRASHED for one in first + second)
    # Starts after a kill: the weights have seen both batches, one, or none. Nothing is run, and the batches are the same.
    for num_learned, expected in ((2, []), (1, [second]), (0, [first, second])):
        idle = Crashing()
        assert [ids(batch) for batch in run(start(num_learned, idle, 2))] == [ids(batch) for batch in expected] and idle.asked == []


def test_a_crash_is_retried_also_by_the_start_after_a_kill_and_counts_the_second_time(tmp_path: Path) -> None:
    asked = [request(SHORT, number) for number in (0, 1)]
    rollout_log = RolloutLog(tmp_path)
    rollout_log.issue(Block(num_learned=0, requests=tuple(asked)))
    crash = Episode(request=asked[0], instruction="", steps=(), outcome=Outcome.CRASHED, reward=None, duration_ms=1.0, environment="t")
    rollout_log.append(crash)

    async def start(collector: Crashing) -> list[Episode]:
        async with RolloutPool(collector, Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            return await pool.batch(1, 2)

    collector = Crashing(AGAIN)
    batch = run(start(collector))
    assert collector.asked == [(asked[0].seed, AGAIN), (asked[1].seed, 0)]
    assert [(one.request.attempt, one.outcome) for one in batch] == [(AGAIN, Outcome.CRASHED), (0, Outcome.FAILURE)]


def test_after_a_kill_long_episodes_are_asked_for_again_first(tmp_path: Path) -> None:
    """No survivor bias: what was under way when the trainer died was mostly long, and must not be missing from what is learned."""
    requests = [request(task, i) for i in range(8) for task in TASKS]
    asked: list[str] = []

    class Noting:
        """Notes the order in which requests are taken."""

        def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
            async def noted() -> AsyncIterator[EpisodeRequest]:
                async for one in requests:  # type: ignore[union-attr]
                    asked.append(one.episode_id)
                    yield one

            return walking(16).collect(policy, noted(), log=log)

        async def close(self) -> None: ...

    async def start(num_learned: int, batches: Sequence[tuple[int, int]], collector: Any = None) -> list[list[Episode]]:
        async with RolloutPool(collector or walking(16), Walking(), RolloutLog(tmp_path), num_learned=num_learned) as pool:
            if not pool.blocks:
                pool.admit(requests)
            return [await pool.batch(index, size) for index, size in batches]

    closed = {(LONG.name, r.seed): asyncio.Event() for r in requests if r.task == LONG}  # the long ones are on their way for ever
    (first,) = run(start(0, [(1, 8)], walking(16, closed)))
    assert {episode.request.task.name for episode in first} == {SHORT.name}
    finished = set(ids(list(RolloutLog(tmp_path).episodes())))
    issued = tmp_path / "issued.jsonl"
    issued.write_bytes(issued.read_bytes() + b'{"num_learned": 1, "requ')  # the block that was being written
    left = [r.episode_id for r in requests if r.episode_id not in finished]
    (second,) = run(start(1, [(2, 8)], Noting()))
    assert asked == left
    assert {episode.request.task.name for episode in second} == {LONG.name}
    assert sorted(ids(first + second)) == sorted(r.episode_id for r in requests)
    # Weights that are older than the rollout log learn from the same batches again, and nothing is run.
    again = run(start(0, [(1, 8), (2, 8)], Noting()))
    assert [ids(batch) for batch in again] == [ids(first), ids(second)] and asked == left


def test_what_was_admitted_later_waits_until_older_weights_have_caught_up(tmp_path: Path) -> None:
    async def first_start() -> None:
        async with RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            pool.admit([request(SHORT, i) for i in range(2)])
            await pool.batch(1, 2)
            pool.admit([request(SHORT, i) for i in range(2, 4)])

    async def second_start() -> None:
        async with RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            assert pool.num_admitted == 4 and pool.queues["queue_waiting"] == 0
            await pool.batch(1, 2)
            assert len(await pool.batch(2, 2)) == 2

    run(first_start())
    run(second_start())


def test_a_power_cut_leaves_no_batch_without_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is on the disk, and its file's name in the folder, before the next thing is written."""
    rollout_log = RolloutLog(tmp_path / "episodes")
    one = request(SHORT, 0)
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", fsync)
    rollout_log.issue(Block(num_learned=0, requests=(one,)))
    assert synced == ["issued.jsonl", "episodes"]
    crashed = Episode(request=one, instruction="", steps=(), outcome=Outcome.CRASHED, reward=None, duration_ms=1.0, environment="t")
    rollout_log.append(crashed)
    assert synced[2:] == ["episodes.jsonl", "episodes"]
    rollout_log.take(1, [one.episode_id])
    assert synced[4:] == ["batches.jsonl", "episodes"]
    rollout_log.take(2, [])
    assert synced[6:] == ["batches.jsonl"]


def test_a_rollout_log_with_holes_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            pool.admit([request(SHORT, 0)])
            await pool.batch(1, 1)

    run(main())
    with pytest.raises(ModelError, match="lacks batch 2"):
        RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=2)
    (tmp_path / "issued.jsonl").unlink()
    with pytest.raises(ModelError, match="lacks the requests"):
        RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=0)
    (tmp_path / "batches.jsonl").write_text("{}\n")
    with pytest.raises(ModelError, match=r"line 1 of .* is not a BatchLine"):
        RolloutPool(walking(), Walking(), RolloutLog(tmp_path), num_learned=0)


@pytest.mark.parametrize(("fault", "message"), [("ends", "no episode for"), ("repeats", "came before"), ("breaks", "no weights")])
def test_a_faulty_collector_is_reported(tmp_path: Path, fault: str, message: str) -> None:
    class Faulty:
        async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
            async for episode in walking(1).collect(policy, requests, log=log):
                yield episode
                if fault == "breaks":
                    raise ModelError("no weights")
                if fault == "ends":
                    return
                yield episode

        async def close(self) -> None: ...

    async def main() -> None:
        async with RolloutPool(Faulty(), Walking(), RolloutLog(tmp_path), num_learned=0) as pool:
            pool.admit([request(SHORT, i) for i in range(3)])
            await pool.batch(1, 3)

    with pytest.raises((SandboxError, ModelError), match=message):
        run(main())


def test_leaving_gives_the_sessions_back(tmp_path: Path) -> None:
    async def main() -> None:
        straggler = request(LONG, 0)
        pool = CorridorPool(1, {instance(straggler): asyncio.Event()})
        collector = PoolCollector(pool, PromptBuilder("compact"), settings=CollectorSettings(concurrency=4))
        async with RolloutPool(collector, Walking(), RolloutLog(tmp_path), num_learned=0) as rollouts:
            rollouts.admit([straggler])
            while not rollouts.queues["queue_running"]:
                await asyncio.sleep(0)
        async with asyncio.timeout(5), pool.lease():
            pass
        assert {task.get_name() for task in asyncio.all_tasks()} & {"collector", "rollouts"} == set()

    run(main())
