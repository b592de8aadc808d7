"""The collector on a pool of form sessions: everything exactly once, retries, crashes, cancellation, and results that do not depend on
concurrency."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agent.episode.collector import Collector, MeasuresLeases
from agent.episode.episode import Episode, Outcome
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import OracleActionSource, StepContext
from agent.policy.policy import Prompt, Response
from agent.prompts.prompt import PromptBuilder
from sandbox.tasks.task import Split
from warehouse.core.errors import BubblewrapMissing, ModelError, ReportedOnly, SandboxError

BUILDER = PromptBuilder("compact")


def collector(pool: Any, **settings: Any) -> PoolCollector:
    return PoolCollector(pool, BUILDER, settings=CollectorSettings(**{"retry_delay_s": 0.0, **settings}))


def collect(form: SimpleNamespace, pool: Any, requests: Sequence[Any], policy: Any = None, **settings: Any) -> list[Episode]:
    async def main() -> list[Episode]:
        return [episode async for episode in collector(pool, **settings).collect(policy or form.Policy(), requests)]

    return asyncio.run(main())


def essence(episodes: Sequence[Episode]) -> dict[str, Any]:
    """All of an episode but its clock times and retries."""
    return {
        episode.episode_id: (
            episode.model_dump(exclude={"duration_ms", "num_retries", "steps"}),
            [step.model_dump(exclude={"latency_ms"}) for step in episode.steps],
            sorted(episode.screenshots),
        )
        for episode in episodes
    }


def test_every_request_is_answered_once_in_batches(form: SimpleNamespace) -> None:
    requests = [form.request(seed) for seed in range(20)]
    pool, policy = form.Pool(5), form.Policy()
    episodes = collect(form, pool, requests, policy, concurrency=5)
    assert sorted(e.episode_id for e in episodes) == sorted(r.episode_id for r in requests)
    assert all(episode.is_success for episode in episodes)
    assert max(policy.batches) == 5 and len(policy.batches) < sum(len(e.steps) for e in episodes) / 2
    assert pool.num_leased == 0


def test_a_stage_that_chooses_plays_nothing_that_is_only_reported(form: SimpleNamespace) -> None:
    requests = [form.request(seed) for seed in range(60)]
    by_split = {split: [one for one in requests if one.split == split] for split in Split}
    pool = form.Pool(2)

    async def play(chosen: Sequence[Any]) -> list[Episode]:
        some = PoolCollector(pool, BUILDER, to_choose=True)
        return [episode async for episode in some.collect(form.Policy(), chosen)]

    allowed = [*by_split[Split.TRAIN][:2], *by_split[Split.EVAL][:2]]
    assert len(asyncio.run(play(allowed))) == len(allowed) == 4
    for split in set(Split) - {Split.TRAIN, Split.EVAL}:
        with pytest.raises(ReportedOnly, match=f"would read the split {split}, which is only reported"):
            asyncio.run(play(by_split[split][:1]))
    assert pool.num_leased == 0


def test_it_is_a_collector_and_closes_its_pool(form: SimpleNamespace) -> None:
    async def main() -> None:
        pool = form.Pool(1)
        some = collector(pool)
        assert isinstance(some, Collector)
        assert [episode async for episode in some.collect(form.Policy(), [])] == []
        await some.close()
        await some.close()
        assert pool.is_closed

    asyncio.run(main())


def test_crashes_are_retried_then_recorded_and_never_touch_siblings(form: SimpleNamespace) -> None:
    # The first session loses its browser in every episode, the second once.
    pool = form.Pool(2, crash_plan=[[1] * 100, [0]])
    requests = [form.request(seed) for seed in range(12)]
    episodes = collect(form, pool, requests, concurrency=2, max_retries=2)
    assert sorted(e.episode_id for e in episodes) == sorted(r.episode_id for r in requests)
    crashed = [episode for episode in episodes if episode.outcome is Outcome.CRASHED]
    assert crashed
    for episode in crashed:
        assert episode.reward is None and episode.num_retries == 2 and episode.steps == ()
        assert episode.error is not None and episode.error.startswith("BrowserCrashed: the form's browser")
    assert all(episode.is_success for episode in episodes if episode not in crashed)
    assert pool.num_replaced >= 3 * len(crashed)


def test_an_episode_that_does_not_end_is_an_infrastructure_failure(form: SimpleNamespace) -> None:
    class Hanging(form.Session):  # type: ignore[misc]
        async def step(self, action: Any) -> Any:
            await asyncio.sleep(60)

    pool, hanging = form.Pool(1), Hanging()
    pool._free = asyncio.Queue()
    pool._free.put_nowait(hanging)
    (episode,) = collect(form, pool, [form.request(0)], max_retries=1, episode_timeout_s=0.1)
    assert episode.outcome is Outcome.CRASHED and episode.reward is None and hanging.num_resets == 2
    assert episode.error is not None and re.match(r"SandboxTimeout: episode .* did not end within 0\.1 s", episode.error)


def test_what_a_person_must_fix_is_raised_at_once_and_no_episode_crashes(form: SimpleNamespace) -> None:
    class Missing(form.Session):  # type: ignore[misc]
        async def reset(self, task: Any, seed: int) -> Any:
            self.num_resets += 1
            raise BubblewrapMissing("no bwrap")

    pool, missing = form.Pool(1), Missing()
    pool._free = asyncio.Queue()
    pool._free.put_nowait(missing)
    with pytest.raises(BubblewrapMissing):
        collect(form, pool, [form.request(0)], max_retries=3)
    assert missing.num_resets == 1 and pool.num_leased == 0


def test_a_retry_gives_the_same_episode(form: SimpleNamespace) -> None:
    requests = [form.request(seed, temperature=1.0) for seed in range(6)]
    calm = collect(form, form.Pool(1), requests, form.Policy(error_rate=0.4))
    shaken = collect(form, form.Pool(1, crash_plan=[[0, 0, 9, 0]]), requests, form.Policy(error_rate=0.4), max_retries=4)
    assert sum(episode.num_retries for episode in shaken) == 3
    assert essence(calm) == essence(shaken)


@pytest.mark.parametrize("settings", [{"concurrency": 1}, {"concurrency": 7}, {"concurrency": 3, "fixed_batch": True}])
def test_results_do_not_depend_on_concurrency_or_session(form: SimpleNamespace, settings: dict[str, Any]) -> None:
    requests = [form.request(seed, temperature=1.0) for seed in range(15)]
    policy = form.Policy(error_rate=0.4)
    reference = collect(form, form.Pool(2), requests, form.Policy(error_rate=0.4), concurrency=2)
    assert {episode.outcome for episode in reference} > {Outcome.SUCCESS}
    assert essence(collect(form, form.Pool(7), requests[::-1], policy, **settings)) == essence(reference)
    if settings.get("fixed_batch"):
        assert set(policy.batches) == {1}


def test_a_broken_engine_is_raised_and_leaves_nothing_leased(form: SimpleNamespace) -> None:
    class Broken:
        policy_id = "policy-broken"

        async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
            raise ModelError("no weights")

    pool = form.Pool(3)
    with pytest.raises(ModelError):
        collect(form, pool, [form.request(seed) for seed in range(9)], Broken(), concurrency=3)
    assert pool.num_leased == 0


def test_leaving_early_gives_the_sessions_back(form: SimpleNamespace) -> None:
    async def main() -> None:
        pool = form.Pool(3)
        episodes = collector(pool, concurrency=3).collect(form.Policy(delay_s=0.001), [form.request(seed) for seed in range(30)])
        async for _ in episodes:
            break
        await episodes.aclose()  # type: ignore[attr-defined]
        assert pool.num_leased == 0

        async def consume() -> None:
            async for _ in collector(pool, concurrency=3).collect(form.Policy(delay_s=0.001), [form.request(s) for s in range(30)]):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.num_leased == 0

    asyncio.run(main())


def test_oracles_play_and_annotators_intervene(form: SimpleNamespace) -> None:
    oracle = OracleActionSource(BUILDER.grammar)

    async def intervene(context: StepContext, proposal: Response) -> str | None:
        return await oracle.response_text(context) if context.step_index == 0 else None

    async def main() -> None:
        requests = [form.request(seed) for seed in range(4)]
        played = [episode async for episode in collector(form.Pool(2)).play(oracle, requests)]
        assert len(played) == 4 and all(episode.is_success for episode in played)
        helped = [e async for e in collector(form.Pool(2)).collect(form.Policy(), requests, intervene=intervene)]
        assert all(episode.steps[0].proposal == "Thought click Action click [1]" for episode in helped)

    asyncio.run(main())


def test_requests_are_taken_as_there_is_room_from_any_iterable(form: SimpleNamespace) -> None:
    taken: list[int] = []

    def numbered() -> Iterator[Any]:
        for seed in range(9):
            taken.append(seed)
            yield form.request(seed)

    async def stream() -> AsyncIterator[Any]:
        for request in numbered():
            await asyncio.sleep(0)
            yield request

    class Held(form.Policy):  # type: ignore[misc]
        num_asked = 0
        is_continuous = True

        def __init__(self) -> None:
            super().__init__()
            self.is_released = asyncio.Event()

        async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
            self.num_asked += 1
            await self.is_released.wait()
            return list(await super().act(prompts))

    async def collected(episodes: AsyncIterator[Episode]) -> list[Episode]:
        return [episode async for episode in episodes]

    async def main() -> None:
        for requests in (numbered(), stream()):
            taken.clear()
            some, policy = collector(form.Pool(4), concurrency=3), Held()
            finished = asyncio.create_task(collected(some.collect(policy, requests)))
            while policy.num_asked < 3:
                await asyncio.sleep(0)
            assert taken == [0, 1, 2]  # one a worker, and no more before one of them ends
            policy.is_released.set()
            assert len(await finished) == 9
            assert some.lease_use.num_sessions == 4 and some.lease_use.leased_s > 0
            assert isinstance(some, MeasuresLeases)

    asyncio.run(main())


def test_a_stream_may_wait_for_what_comes_of_it_and_its_errors_are_raised(form: SimpleNamespace) -> None:
    async def main() -> None:
        pool, answered = form.Pool(2), asyncio.Event()

        async def stream() -> AsyncIterator[Any]:
            yield form.request(0)
            await answered.wait()  # the second request is only known once the first is answered
            yield form.request(1)
            raise SandboxError("no more tasks")

        episodes = collector(pool, concurrency=2).collect(form.Policy(), stream())
        assert (await anext(episodes)).request.seed == 0
        answered.set()
        with pytest.raises(SandboxError, match="no more tasks"):
            while (await anext(episodes)).request.seed == 1:
                pass
        assert pool.num_leased == 0

    asyncio.run(main())
