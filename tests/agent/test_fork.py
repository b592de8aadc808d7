"""Forks: siblings begin at the state that their parent had come to, on form sessions here, and on live Chromium and in a terminal's jail
(marked slow); where the environment does not repeat they are refused and played whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.episode.episode import Episode, EpisodeRequest, Fork, Outcome
from agent.episode.fork import begin, fork
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split
from tests.agent.test_resume import Killed, killed_at, play, pool_of, untimed
from warehouse.core.errors import ConfigError

BUILDER = PromptBuilder("compact")


def parent_of(form: SimpleNamespace, log: EpisodeLog, **request: Any) -> Episode:
    return play(form.Pool(1), form.Policy(), form.request(0, **request), log)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_siblings_begin_at_the_state_of_their_parent_and_go_on_by_themselves(form: SimpleNamespace, tmp_path: Path, step: int) -> None:
    log = EpisodeLog(tmp_path)
    parent = parent_of(form, log)
    requests = fork(parent, step, 2, log)
    assert len({parent.episode_id, *(request.episode_id for request in requests)}) == 3
    policy = form.Policy()
    for request in requests:
        sibling = play(form.Pool(1), policy, request, log)
        assert sibling.fork == Fork(parent_id=parent.episode_id, step=step)
        assert sibling.steps[:step] == parent.steps[:step], "as they were first made, clock times included"
        met, left = sibling.steps[step], parent.steps[step]
        assert (met.observation, met.screenshot_id, met.messages) == (left.observation, left.screenshot_id, left.messages)
        assert sibling.own_steps == sibling.steps[step:] and sibling.is_success
    assert sum(policy.batches) == 2 * (len(parent.steps) - step), "no decision of the parent is made again"
    assert log.resumed.counts == {"forked/episodes": 2, **({"forked/steps": 2 * step} if step else {})}
    assert fork(parent, step, 2, log) == requests


class Elsewhere:
    """A form that shows another screen, or ends, once so many steps were made."""

    def __init__(self, form: SimpleNamespace, after: int, *, ends: bool = False) -> None:
        class Other(form.Session):  # type: ignore[misc, name-defined]
            num_steps = 0

            async def reset(self, task: Any, seed: int) -> Any:
                self.num_steps = 0
                return await super().reset(task, seed)

            async def step(self, action: Any) -> Any:
                self.num_steps += 1
                found = await super().step(action)
                if ends and self.num_steps == after:
                    self._done = True
                    return SimpleNamespace(observation=found.observation, reward=found.reward, terminated=True, truncated=False)
                return found

            def _observe(self) -> Any:
                seen = super()._observe()
                is_other = not ends and self.num_steps == after
                return replace(seen, elements=(*seen.elements, seen.elements[-1])) if is_other else seen

        self.session = Other(environment="form 2")


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
def test_an_environment_that_does_not_repeat_is_named_and_the_episode_played_whole(
    form: SimpleNamespace, tmp_path: Path, step: int, ends: bool
) -> None:
    log = EpisodeLog(tmp_path)
    (request,) = fork(parent_of(form, log), step, 1, log)
    policy, pool = form.Policy(), pool_of(Elsewhere(form, step, ends=ends).session)
    sibling = play(pool, policy, request, log)
    assert sibling.fork is None and sibling.own_steps == sibling.steps and sum(policy.batches) == len(sibling.steps)
    why = f"the episode ended after {step} steps" if ends else f"step {step} shows other elements"
    assert sibling.fork_refused is not None and why in sibling.fork_refused
    assert "enter-word does not repeat in the environment form 2" in sibling.fork_refused
    assert log.resumed.num_refused == 1 and log.resumed.num_forks == 0
    (kept,) = [episode for episode in log.episodes() if episode.request == request]
    assert kept.fork_refused == sibling.fork_refused


def test_a_refused_fork_stays_refused_after_a_kill(form: SimpleNamespace, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    parent = parent_of(form, log)
    (request,) = fork(parent, 1, 1, log)
    log.refuse_fork(request, "it does not repeat")
    with pytest.raises(Killed):
        play(killed_at(form, 2), form.Policy(), request, log)
    policy, log = form.Policy(), EpisodeLog(tmp_path)
    begin(request, parent, log)
    sibling = play(form.Pool(1), policy, request, log)
    assert sibling.fork_refused == "it does not repeat" and sum(policy.batches) == len(sibling.steps) - 2


@pytest.mark.parametrize("after", [1, 2])
def test_a_fork_that_was_cut_off_goes_on_with_its_own_steps(form: SimpleNamespace, tmp_path: Path, after: int) -> None:
    whole_log, log = EpisodeLog(tmp_path / "whole"), EpisodeLog(tmp_path / "killed")
    (request,) = fork(parent_of(form, whole_log, temperature=1.0), 1, 1, whole_log)
    whole = play(form.Pool(1), form.Policy(), request, whole_log)
    assert fork(parent_of(form, log, temperature=1.0), 1, 1, log) == [request]
    with pytest.raises(Killed):
        play(killed_at(form, after), form.Policy(), request, log)
    log = EpisodeLog(tmp_path / "killed")
    sibling = play(form.Pool(1), form.Policy(), request, log)
    assert untimed(sibling) == untimed(whole) and sibling.fork is not None
    assert [episode.request.fork for episode in log.episodes()] == [None, request.fork] and not log.steps(request)


def test_what_cannot_be_forked_is_named(form: SimpleNamespace, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    parent = parent_of(form, log)
    with pytest.raises(ConfigError, match=r"at step 3: its steps are 0 to 2"):
        fork(parent, 3, 1, log)
    with pytest.raises(ConfigError, match="0 siblings"):
        fork(parent, 1, 0, log)
    with pytest.raises(ConfigError, match="it crashed"):
        fork(parent.model_copy(update={"outcome": Outcome.CRASHED}), 1, 1, log)
    (request,) = fork(parent, 1, 1, log)
    with pytest.raises(ConfigError, match="begins in a log"):
        play(form.Pool(1), form.Policy(), request)
    sibling = play(form.Pool(1), form.Policy(), request, EpisodeLog(tmp_path / "other"))
    assert sibling.fork_refused == "its log does not have the steps of its parent"


def test_a_sandbox_that_fails_at_the_parents_steps_ends_in_a_whole_episode(form: SimpleNamespace, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    (request,) = fork(parent_of(form, log), 2, 1, log)
    sibling = play(form.Pool(1, crash_plan=[[1, 1]]), form.Policy(), request, log)
    assert sibling.is_success and sibling.num_retries == 2 and "the sandbox failed" in str(sibling.fork_refused)


def test_who_forgets_a_parent_forgets_what_begins_with_its_steps(form: SimpleNamespace, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    parent = parent_of(form, log)
    first, second = fork(parent, 1, 2, log)
    play(form.Pool(1), form.Policy(), first, log)
    with pytest.raises(Killed):
        play(killed_at(form, 2), form.Policy(), second, log)
    assert log.holds({parent.episode_id}) == {parent.episode_id, first.episode_id, second.episode_id}
    log.forget({parent.episode_id})
    assert not list(log.episodes()) and not log.holds({first.episode_id, second.episode_id})


def compared(parents: Sequence[Episode], log: EpisodeLog, pool: Any) -> list[tuple[Episode, Episode]]:
    """Each parent with its forks at a step in the middle and at the last one, played by the oracle."""
    of = {parent.episode_id: parent for parent in parents}
    steps = {parent.episode_id: {len(parent.steps) // 2, len(parent.steps) - 1} for parent in parents}
    requests = [request for parent in parents for step in sorted(steps[parent.episode_id]) for request in fork(parent, step, 1, log)]
    return [(of[str(one.request.fork and one.request.fork.parent_id)], one) for one in oracles(pool, requests, log)]


def oracles(open_pool: Any, requests: Sequence[EpisodeRequest], log: EpisodeLog) -> list[Episode]:
    async def main() -> list[Episode]:
        async with open_pool() as pool:
            collector = PoolCollector(pool, BUILDER, settings=CollectorSettings(concurrency=2))
            return [episode async for episode in collector.play(OracleActionSource(BUILDER.grammar), requests, log=log)]

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("names", [("miniwob", "login-user", "click-checkboxes-large"), ("terminal", "treasure-hunt", "pass-word-on")])
def test_on_real_pages_and_in_a_real_terminal_a_fork_meets_what_its_parent_saw(tmp_path: Path, names: tuple[str, ...]) -> None:
    """The oracle does the same from there on, so the whole rest is compared, screens and elements."""
    selection, *wanted = names
    log, tasks = EpisodeLog(tmp_path), [task for task in tasks_of(selection) if task.name in wanted]
    requests = [EpisodeRequest(purpose="seed", task=task, seed=task.seeds(Split.TRAIN, 1)[0], policy_id="oracle") for task in tasks]
    open_pool = partial(SessionPool, size=2, num_browsers=1)
    parents = oracles(open_pool, requests, log)
    assert len(parents) == len(wanted) and max(len(parent.steps) for parent in parents) > 2
    pairs = compared(parents, log, open_pool)
    assert len(pairs) >= len(parents) + 1
    for parent, sibling in pairs:
        assert sibling.fork_refused is None and sibling.is_success, (parent.request.task.name, sibling.fork_refused)
        seen, met = ([(step.observation, step.screenshot_id, step.messages) for step in one.steps] for one in (parent, sibling))
        assert seen == met and (selection == "terminal" or all(name for _, name, _ in met))
