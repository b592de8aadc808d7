"""The annotation server's policies: the newest release with each episode, the one before it for as long as somebody is at it."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from agent.policy.policy import Message, Prompt, Sampling
from assets.settings.profile import ActingSettings, TaskSettings
from models.engine.choice import EngineChoice
from pipelines.annotation_server import policy_source
from pipelines.annotation_server.policy_source import ReleasedPolicies
from pipelines.stages import engines
from pipelines.stages.engines import ClosablePolicy
from tests.pipelines.annotation_home import release, small_home
from warehouse.core.errors import CheckpointError, ModelError
from warehouse.core.home import Home

ACTING = ActingSettings(tasks=TaskSettings(lists=("miniwob:quickstart",), domains=("pointing",)))
PROMPT = Prompt(messages=(Message(role="user", content="Find Ok"),), sampling=Sampling(max_new_tokens=3))


@pytest.mark.slow
def test_a_release_is_picked_up_and_the_one_before_it_is_closed_when_nobody_is_at_it(tmp_path: Path) -> None:
    async def run() -> None:
        home, first_id = small_home(tmp_path)
        source = ReleasedPolicies(home, ACTING)
        first = await source.get("newest")
        assert first.policy_id == first.policy.policy_id == first_id and first.builder.grammar.name == "compact"
        second_id = release(home, "0002", 1)
        assert second_id != first_id
        second = await source.get("newest")
        assert second.policy_id == second_id and source.open_ids() == [first_id, second_id]
        answers = await asyncio.gather(first.policy.act([PROMPT]), second.policy.act([PROMPT]))
        assert [answer[0].policy_id for answer in answers] == [first_id, second_id]
        del first
        gc.collect()
        pinned = await source.get(second_id)
        assert source.open_ids() == [second_id]
        old = await source.get(first_id)
        assert (await old.policy.act([PROMPT]))[0].policy_id == first_id, "an older checkpoint can be asked for by its id"
        del pinned, second
        gc.collect()
        assert (await source.get("newest")).policy_id == second_id and second_id in source.open_ids()
        await source.close()
        await source.close()
        with pytest.raises(ModelError, match="shutting down"):
            await old.policy.act([PROMPT])

    asyncio.run(run())


def test_an_engine_that_nobody_asks_for_long_is_closed_and_opened_again_for_who_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        home, first_id = small_home(tmp_path)
        source = ReleasedPolicies(home, ACTING)
        first = await source.get("newest")
        second_id = release(home, "0002", 1)
        monkeypatch.setattr(policy_source, "IDLE_S", 0.0)
        await source.get("newest")
        assert source.open_ids() == [second_id]
        assert (await first.policy.act([PROMPT]))[0].policy_id == first_id
        await source.close()

    asyncio.run(run())


@pytest.mark.slow
def test_an_engine_that_was_opened_again_stays_for_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        home, first_id = small_home(tmp_path)
        source = ReleasedPolicies(home, ACTING)
        held, gone = await source.get("newest"), await source.get("newest")
        second_id = release(home, "0002", 1)
        with monkeypatch.context() as at_once:
            at_once.setattr(policy_source, "IDLE_S", 0.0)
            await source.get("newest")
        assert source.open_ids() == [second_id]
        await held.policy.act([PROMPT])
        del gone
        gc.collect()
        await source.get("newest")
        assert set(source.open_ids()) == {first_id, second_id}
        del held
        gc.collect()
        await source.get("newest")
        assert source.open_ids() == [second_id]
        await source.close()

    asyncio.run(run())


def test_who_asks_while_an_engine_closes_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        home, first_id = small_home(tmp_path)
        source = ReleasedPolicies(home, ACTING)
        first = await source.get("newest")
        release(home, "0002", 1)
        order: list[str] = []
        engine, opened = source._engines[first_id].policy, engines.open_engine
        closed, closing, go_on = engine.close, threading.Event(), threading.Event()

        def close() -> None:
            closing.set()
            go_on.wait(30)
            closed()
            order.append("closed")

        def open_engine(folder: Path, choice: EngineChoice) -> ClosablePolicy:
            order.append("opened")
            return opened(folder, choice)

        monkeypatch.setattr(engine, "close", close)
        second = await source.get("newest")
        monkeypatch.setattr(policy_source, "IDLE_S", 0.0)
        monkeypatch.setattr(policy_source, "open_engine", open_engine)
        third = asyncio.create_task(source.get("newest"))
        await asyncio.to_thread(closing.wait, 30)
        asked = asyncio.create_task(first.policy.act([PROMPT]))
        await asyncio.sleep(0.1)
        go_on.set()
        assert (await asked)[0].policy_id == first_id and order == ["closed", "opened"]
        assert (await third).policy_id == second.policy_id
        await source.close()

    asyncio.run(run())


def test_a_home_without_a_release_says_what_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        source = ReleasedPolicies(Home(tmp_path), ACTING)
        with pytest.raises(CheckpointError, match="run one iteration"):
            await source.get("newest")
        with pytest.raises(CheckpointError, match="no checkpoint none"):
            await source.get("none")
        await source.close()

    asyncio.run(run())
