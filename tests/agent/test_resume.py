"""Turn-exact resume on form sessions: what was recorded is not decided again, the episode is what it would have been, and where the
environment does not repeat it restarts. Real processes are killed in tests/benchmarks/test_resume.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder


class Killed(SystemExit):
    """Stands for SIGKILL inside one process: it leaves the event loop at once."""


def play(pool: Any, policy: Any, request: Any, log: EpisodeLog | None = None, **more: Any) -> Episode:
    async def main() -> Episode:
        collector = PoolCollector(pool, PromptBuilder("compact"), settings=CollectorSettings(retry_delay_s=0.0))
        (episode,) = [episode async for episode in collector.collect(policy, [request], log=log, **more)]
        return episode

    return asyncio.run(main())


def untimed(episode: Episode) -> dict[str, Any]:
    steps = tuple(step.model_copy(update={"latency_ms": 0.0}) for step in episode.steps)
    return episode.model_copy(update={"steps": steps, "duration_ms": 0.0, "num_retries": 0}).model_dump() | {"images": episode.screenshots}


def pool_of(session: Any) -> Any:
    """A pool of that one session, as it is."""

    class One:
        size = 1

        @asynccontextmanager
        async def lease(self, task: Any = None, *, screenshots: bool = True) -> AsyncIterator[Any]:
            yield session

        async def close(self) -> None: ...

    return One()


def killed_at(form: SimpleNamespace, num_steps: int) -> Any:
    """A pool whose process dies after so many steps."""

    class Dying(form.Session):  # type: ignore[misc, name-defined]
        num_left = num_steps

        async def step(self, action: Any) -> Any:
            if type(self).num_left == 0:
                raise Killed
            type(self).num_left -= 1
            return await super().step(action)

    return pool_of(Dying())


@pytest.mark.parametrize("after", [1, 2])
def test_a_retry_goes_on_at_the_step_that_failed(form: SimpleNamespace, after: int) -> None:
    request, undisturbed = form.request(0), form.Policy()
    whole = play(form.Pool(1), undisturbed, request)
    policy = form.Policy()
    episode = play(form.Pool(1, crash_plan=[[after]]), policy, request)
    assert episode.num_retries == 1 and untimed(episode) == untimed(whole) and episode.is_success
    assert sum(policy.batches) == len(whole.steps) + 1, "the response that could not be carried out is requested again, no other"


def test_the_last_retry_starts_from_the_beginning(form: SimpleNamespace) -> None:
    policy = form.Policy()
    episode = play(form.Pool(1, crash_plan=[[2, 2]]), policy, form.request(0))
    assert episode.num_retries == 2 and episode.is_success
    assert sum(policy.batches) == 3 + 1 + len(episode.steps), "two steps and the one that failed; that one again; all of them"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_start_after_a_kill_goes_on_at_the_step_that_was_cut_off(form: SimpleNamespace, tmp_path: Path, after: int) -> None:
    request = form.request(0)
    whole = play(form.Pool(1), form.Policy(), request)
    first, second = form.Policy(), form.Policy()
    with pytest.raises(Killed):
        play(killed_at(form, after), first, request, EpisodeLog(tmp_path))
    log = EpisodeLog(tmp_path)
    assert len(log.steps(request)) == after and not list(log.episodes())
    episode = play(form.Pool(1), second, request, log)
    assert untimed(episode) == untimed(whole)
    (kept,) = log.episodes()
    named = {step.screenshot_id for step in whole.steps}
    assert untimed(kept) == untimed(whole) | {"images": {name: whole.screenshots[name] for name in named}}
    assert sum(first.batches) == after + 1 and sum(second.batches) == len(whole.steps) - after
    assert log.resumed.counts == ({"resumed/episodes": 1, "resumed/steps": after} if after else {})
    assert log.steps(request) == []


@pytest.mark.parametrize("changed", ["elements", "screen", "reward"])
def test_where_the_environment_does_not_repeat_the_episode_starts_again_and_says_so(
    form: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: str
) -> None:
    request = form.request(0)

    class Other(form.Session):  # type: ignore[misc, name-defined]
        async def step(self, action: Any) -> Any:
            found = await super().step(action)
            if changed == "reward":
                found = SimpleNamespace(observation=found.observation, reward=0.25, terminated=found.terminated, truncated=found.truncated)
            return found

        def _observe(self) -> Any:
            from dataclasses import replace

            seen = super()._observe()
            if changed == "screen":
                return replace(seen, screenshot=seen.screenshot.replace(b"IEND", b"IENE"))
            return replace(seen, elements=(*seen.elements, seen.elements[-1])) if changed == "elements" else seen

    with pytest.raises(Killed):
        play(killed_at(form, 2), form.Policy(), request, EpisodeLog(tmp_path))
    log, policy = EpisodeLog(tmp_path), form.Policy()
    with caplog.at_level(logging.WARNING):
        episode = play(pool_of(Other()), policy, request, log)
    assert untimed(episode) == untimed(play(pool_of(Other()), form.Policy(), request)), "nothing of what was recorded is left"
    assert sum(policy.batches) == len(episode.steps) and episode.num_retries == 0
    assert log.resumed.num_restarted == 1 and log.resumed.num_episodes == 0
    assert f"{request.episode_id} of enter-word restarts" in caplog.text


def test_what_an_annotator_overrode_is_overridden_again_without_asking_the_policy(form: SimpleNamespace, tmp_path: Path) -> None:
    request, erring = form.request(3, temperature=1.0), form.Policy(error_rate=1.0)

    async def oracle(context: StepContext, response: Response) -> str | None:
        action = await context.oracle_action()
        return None if action is None else PromptBuilder("compact").grammar.format(None, action, context.observation)

    whole = play(form.Pool(1), erring, request, intervene=oracle)
    assert whole.outcome is Outcome.SUCCESS and all(step.proposal is not None for step in whole.steps)
    with pytest.raises(Killed):
        play(killed_at(form, 2), form.Policy(error_rate=1.0), request, EpisodeLog(tmp_path), intervene=oracle)
    policy = form.Policy(error_rate=1.0)
    episode = play(form.Pool(1), policy, request, EpisodeLog(tmp_path), intervene=oracle)
    assert untimed(episode) == untimed(whole) and sum(policy.batches) == len(whole.steps) - 2
