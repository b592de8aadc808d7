"""The scripted annotator at the service: what it does there is what it does beside the policy, to the token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.episode.episode import Episode, Outcome
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.prompts.prompt import PromptBuilder
from annotation.config import Mode, ScriptedAnnotatorConfig
from annotation.scripted import AnnotationResult, annotate
from annotation.service.scripted_collector import LET_STAND, ServiceCollector
from annotation.storage.database import Database
from annotation.storage.schema import Run, RunStep
from sandbox.pool.pool import SessionPool
from tests.annotation.test_scripted import GRAMMAR, ErringPolicy, requests
from warehouse.core.errors import ModelError

SETTINGS = CollectorSettings(concurrency=3)


def untimed(episode: Episode) -> Episode:
    steps = tuple(step.model_copy(update={"latency_ms": 0.0}) for step in episode.steps)
    return episode.model_copy(update={"duration_ms": 0.0, "steps": steps})


async def play(collector: Any, mode: Mode) -> AnnotationResult:
    policy = ErringPolicy(0.4)
    config = ScriptedAnnotatorConfig(mode=mode, max_interventions_per_episode=2)
    return await annotate(policy, requests(policy, 4), collector, GRAMMAR, config)


@pytest.mark.slow
def test_episodes_and_annotations_are_those_of_the_collector_beside_the_policy() -> None:
    async def run() -> None:
        async with SessionPool(size=3, num_browsers=1) as pool:
            for mode in ("relabel", "intervene"):
                service = ServiceCollector(pool, PromptBuilder("compact"), settings=SETTINGS)
                beside = await play(PoolCollector(pool, PromptBuilder("compact"), settings=SETTINGS), mode)  # type: ignore[arg-type]
                at_service = await play(service, mode)  # type: ignore[arg-type]
                assert at_service.rows == beside.rows and {row["decision"] for row in beside.rows} >= {"accept", "override"}
                assert [untimed(each) for each in at_service.episodes] == [untimed(each) for each in beside.episodes]
                database = service._database
                assert database is not None
                check_stored(database, at_service)

    asyncio.run(run())


def check_stored(database: Database, result: AnnotationResult) -> None:
    """Every step was asked and decided as a person's is."""
    with database.read() as session:
        stored = session.query(Run).all()
        decided = session.query(RunStep).filter(RunStep.decision.is_not(None)).all()
    assert len(stored) == len(result.episodes) and {run.state for run in stored} == {"finished"}
    assert len(decided) == sum(len(episode.steps) for episode in result.episodes)
    assert {step.decision for step in decided} <= {"accept", "override", "beyond_repair", LET_STAND}
    assert all(run.person_verdict == run.verifier_verdict for run in stored)


class _Down:
    policy_id = "policy-down"

    async def act(self, prompts: Any) -> Any:
        raise ModelError("the engine is down, on purpose")


def test_a_broken_policy_ends_the_collection_and_lost_sandboxes_are_recorded() -> None:
    async def run() -> None:
        policy = ErringPolicy(0.0)
        async with SessionPool(size=1, num_browsers=1) as pool:
            collector = ServiceCollector(pool, PromptBuilder("compact"), settings=CollectorSettings(concurrency=1, retry_delay_s=0.0))
            with pytest.raises(ModelError, match="does not answer"):
                async for _ in collector.collect(_Down(), requests(policy, 1)):
                    pass
        lost = [episode async for episode in collector.collect(policy, requests(policy, 1)[:1])]
        assert [(each.outcome, each.num_retries) for each in lost] == [(Outcome.CRASHED, 2)] and "closed" in str(lost[0].error)
        await collector.close()
        await collector.close()

    asyncio.run(run())
