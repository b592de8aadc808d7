"""The registry of sources, and that one pool lends a session for the tasks of every one of them."""

from __future__ import annotations

import asyncio
import os
from typing import Any, get_args

import pytest

from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.kinds import FACTORIES, limits_at_once
from sandbox.pool.pool import SessionPool
from sandbox.session import Session
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import all_tasks, kind_of, page_tasks, tasks_in, tasks_of
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import ConfigError, SandboxError, TaskError

BUILT_IN = [name for name in SOURCES if name != "imported"]
"""Those whose tasks come with the code: what is imported lies in a home (test_imported.py)."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_source_is_what_the_registry_says(name: str) -> None:
    tasks = tasks_of(name)
    assert tasks and {task.source for task in tasks} == {name}
    assert {kind_of(task) for task in tasks} == {SOURCES[name].kind} <= set(FACTORIES)
    assert (name in page_tasks()) == (SOURCES[name].page is not None)


def test_every_kind_is_made_by_somebody() -> None:
    shipped = {SOURCES[name].kind for name in BUILT_IN}
    assert shipped | {"own"} == set(FACTORIES) == set(get_args(SessionKind)), "of the last kind are adapters (test_gymnasium_source.py)"
    assert limits_at_once({"terminal": 3})["terminal"] == 3


def test_tasks_are_selected_by_source_and_group() -> None:
    assert tasks_of("miniwob:quickstart") and set(tasks_of("miniwob:quickstart")) < set(tasks_of("miniwob")) < set(all_tasks())
    for wrong in ("nonesuch", "miniwob:", "nonesuch:small"):
        with pytest.raises(ConfigError, match="e\\.g\\. miniwob:quickstart"):
            tasks_of(wrong)
    with pytest.raises(ConfigError, match="nonesuch"):
        tasks_in(["miniwob:nonesuch"])
    with pytest.raises(TaskError, match="nowhere"):
        kind_of(Task(source="nowhere", name="x", domain="pointing", max_steps=1))


async def solves(pool: Any, task: Task, seed: int = 1) -> bool:
    async with pool.lease(task, screenshots=False) as session:
        assert isinstance(session, Session)
        await session.reset(task, seed)
        is_over = False
        while not is_over and (action := await session.oracle_action()) is not None:
            transition = await session.step(action)
            is_over = transition.terminated or transition.truncated
        return bool((await session.evaluate()).success)


MIXED = ["miniwob:quickstart", "games", "terminal:small", "hybrid:small"]


@pytest.mark.slow
def test_one_pool_runs_tasks_of_many_kinds_at_once() -> None:
    async def run() -> None:
        tasks = [task for selection in MIXED for task in tasks_of(selection)[:2]]
        async with SessionPool(size=3, num_browsers=1, max_at_once={"terminal": 1}) as pool:
            assert all(await asyncio.gather(*(solves(pool, task) for task in tasks)))
            assert pool.stats().num_leased == 0

    asyncio.run(run())


@pytest.mark.slow
def test_a_fleet_does_too() -> None:
    async def run() -> None:
        tasks = [tasks_of(selection)[0] for selection in MIXED]
        async with Fleet(FleetSettings(max_workers=1, sessions_per_worker=2)) as fleet:
            assert all(await asyncio.gather(*(solves(fleet, task) for task in tasks)))

    asyncio.run(run())


def test_a_session_that_cannot_be_made_is_an_error_of_the_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")  # nobody listens there

    async def run() -> None:
        async with SessionPool(size=1) as pool:
            with pytest.raises(SandboxError, match=r"(?i)adb"):
                async with pool.lease(tasks_of("android")[0]):
                    pass
            assert await solves(pool, tasks_of("miniwob:quickstart")[0])

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix" or not os.path.exists("/usr/bin/Xvfb"), reason="needs an X server")
def test_desktops_come_from_the_pool_and_are_bounded() -> None:
    async def run() -> None:
        async with SessionPool(size=3, num_browsers=1, max_at_once={"desktop": 1}) as pool:
            tasks = [*tasks_of("desktop")[:2], tasks_of("miniwob:quickstart")[0]]
            assert all(await asyncio.gather(*(solves(pool, task) for task in tasks)))

    asyncio.run(run())
