"""The fleet: workers that come and go with the queue, that are killed, stopped and worn out; leases that are forgotten; and nothing that
is left behind, however the fleet ends. That its sessions are sessions like any other: test_sessions.py."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.session import Session
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.sources import tasks_of
from tests.sandbox.html_pages import PAGE_SOURCES
from tests.sandbox.process_watch import session_members, soon, within
from warehouse.core.errors import BrowserCrashed, LeaseLost, MachineLimit, SandboxError, TaskError, WorkerCrashed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")

Use = Callable[[Fleet], Coroutine[Any, Any, None]]
ALSO = pytest.mark.long
"""Ways that come to the same as one that is always tried."""


def live(use: Use, **settings: Any) -> None:
    """Run on a fleet of small workers; afterwards none of their processes is left."""

    async def run() -> list[int]:
        settings.setdefault("sessions_per_worker", 1)
        async with Fleet(FleetSettings(page_sources=PAGE_SOURCES, **settings)) as fleet:
            seen = set()

            async def note_workers() -> None:
                while True:
                    seen.update(fleet.worker_pids())
                    await asyncio.sleep(0.01)

            noting = asyncio.create_task(note_workers())
            try:
                await asyncio.wait_for(use(fleet), 150)
            finally:
                noting.cancel()
        return sorted(seen)

    pids = asyncio.run(run())
    assert within(20, lambda: not any(session_members(pid) for pid in pids))


@pytest.mark.slow
def test_it_grows_with_the_queue_and_shrinks_when_idle(html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        assert fleet.stats().num_workers == 0
        arrived, go = [], asyncio.Event()

        async def play(seed: int) -> str:
            async with fleet.lease(html_task()) as session:
                observation = await session.reset(html_task(), seed)
                arrived.append(seed)
                await go.wait()
                return observation.instruction

        players = [asyncio.create_task(play(seed)) for seed in range(5)]
        await soon(lambda: len(arrived) == 2)
        assert fleet.stats().num_workers == 2 and fleet.stats().num_leased == 2
        await soon(lambda: fleet.stats().num_waiting == 3)
        go.set()
        assert await asyncio.gather(*players) == [f"seed {seed}: " for seed in range(5)]
        stats = fleet.stats()
        assert (stats.num_leases, stats.num_resets, stats.num_leased, stats.num_crashes) == (5, 5, 0, 0)
        await soon(lambda: fleet.stats().num_workers == 0)
        assert fleet.stats().num_workers_dismissed == 2 and fleet.stats().num_workers_lost == 0
        async with fleet.lease(html_task()) as session:  # and it comes back
            await session.reset(html_task(), 1)
        assert fleet.stats().num_resets == 6 and fleet.stats().num_workers_started == 3

    live(use, min_workers=0, max_workers=2, grow_after_s=0.1, shrink_after_s=1.0)


@pytest.mark.slow
def test_a_worker_with_the_tasks_page_is_preferred() -> None:
    async def use(fleet: Fleet) -> None:
        tasks = [load_tasks()[name] for name in ("click-button", "click-test")]
        async with fleet.lease(tasks[0]) as one, fleet.lease(tasks[1]) as two:
            for session, task in ((one, tasks[0]), (two, tasks[1])):
                await session.reset(task, 1)
        for session, task in ((one, tasks[0]), (two, tasks[1])):
            async with fleet.lease(task) as again:
                assert again._channel is session._channel

    live(use, max_workers=2, min_workers=2)


@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=ALSO), pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_or_hangs_is_replaced(sent: signal.Signals, html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        async with fleet.lease(html_task()) as session:
            await session.reset(html_task(), 1)
            (pid,) = fleet.worker_pids()
            assert len(session_members(pid)) > 3, "the worker and its browser"
            step = asyncio.create_task(session.step(actions.Wait(seconds=30)))
            await asyncio.sleep(0.1)
            os.kill(pid, sent)
            with pytest.raises(WorkerCrashed):
                await step
            with pytest.raises(WorkerCrashed):
                await session.evaluate()
        await soon(lambda: not session_members(pid))
        async with fleet.lease(html_task()) as session:
            assert (await session.reset(html_task(), 2)).instruction == "seed 2: "
        stats = fleet.stats()
        assert (stats.num_workers_lost, stats.num_workers, stats.num_leases, stats.num_leased) == (1, 1, 2, 0)

    live(use, max_workers=1, heartbeat_s=0.3, hung_after_s=3.0)


def test_a_killed_browser_costs_its_sessions_and_not_its_worker(html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        with pytest.raises(BrowserCrashed):
            async with fleet.lease(html_task()) as session:
                await session.reset(html_task(), 1)
                (pid,) = await fleet.browser_pids()
                os.kill(pid, signal.SIGKILL)
                await session.step(actions.Wait(seconds=30))
        async with fleet.lease(html_task()) as session:
            await session.reset(html_task(), 1)
        assert await fleet.browser_pids() != [pid]
        stats = fleet.stats()
        assert (stats.num_crashes, stats.num_launches, stats.num_workers_lost, stats.num_workers_started) == (1, 2, 0, 1)

    live(use, max_workers=1)


@pytest.mark.slow
def test_a_forgotten_lease_is_taken_back(html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        async with fleet.lease(html_task()) as forgotten:
            await forgotten.reset(html_task(), 1)
            await forgotten.step(actions.Wait(seconds=2.5))  # longer than the time to live, but under way
            async with fleet.lease(html_task()) as session:  # waits until the other is taken back
                assert (await session.reset(html_task(), 2)).instruction == "seed 2: "
                with pytest.raises(LeaseLost, match="not used for 1 s"):
                    await forgotten.step(actions.Wait(seconds=1))
                assert (await session.reset(html_task(), 3)).instruction == "seed 3: "
        assert fleet.stats().num_reclaimed == 1 and fleet.stats().num_leased == 0
        with pytest.raises(LeaseLost, match="over"):
            await session.evaluate()

    live(use, max_workers=1, lease_ttl_s=1.0)


@pytest.mark.slow
def test_a_call_that_hangs_is_answered_and_its_lease_taken_back() -> None:
    task = tasks_of("terminal:small")[0]

    async def use(fleet: Fleet) -> None:
        async with fleet.lease(task) as hanging:
            await hanging.reset(task, 1)
            with pytest.raises(LeaseLost, match="longer than 4 s"):
                await hanging.step(actions.Wait(seconds=60))
            with pytest.raises(LeaseLost, match="call_limit_s"):
                await hanging.evaluate()
            async with fleet.lease(task) as session:  # the only slot is free again, and its jail a new one
                assert (await session.reset(task, 1)).instruction
        stats = fleet.stats()
        assert (stats.num_reclaimed, stats.num_leased, stats.num_workers_lost) == (1, 0, 0)

    live(use, max_workers=1, ready_limit_s=3.0, step_limit_s=3.0, call_limit_s=4.0)


@pytest.mark.slow
def test_the_end_of_a_lease_answers_what_is_under_way() -> None:
    task = tasks_of("terminal:small")[0]

    async def use(fleet: Fleet) -> None:
        async with fleet.lease(task) as session:
            await session.reset(task, 1)
            step = asyncio.create_task(session.step(actions.Wait(seconds=60)))
            await asyncio.sleep(0.1)
        with pytest.raises(LeaseLost, match="over"):
            await asyncio.wait_for(step, 10)

    live(use, max_workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    [
        {"recycle_worker_leases": 3},
        pytest.param({"recycle_worker_memory_mib": 1.0}, marks=ALSO),
        pytest.param({"recycle_worker_age_s": 0.5}, marks=ALSO),
    ],
)
def test_a_worn_worker_is_replaced_and_no_lease_notices(limit: dict[str, Any], html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        async def play(seed: int) -> str:
            async with fleet.lease(html_task()) as session:
                return (await session.reset(html_task(), seed)).instruction

        assert await asyncio.gather(*(play(seed) for seed in range(7))) == [f"seed {seed}: " for seed in range(7)]
        stats = fleet.stats()
        assert stats.num_workers_recycled >= 1 and stats.num_workers_lost == 0 and stats.num_resets == stats.num_leases == 7

    live(use, max_workers=2, sessions_per_worker=2, grow_after_s=0.1, **limit)


@pytest.mark.slow
def test_a_step_that_is_given_up_stops_in_the_worker(html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        with pytest.raises(TimeoutError):
            async with fleet.lease(html_task()) as session:
                await session.reset(html_task(), 1)
                async with asyncio.timeout(0.3):
                    await session.step(actions.Wait(seconds=60))
        async with asyncio.timeout(40), fleet.lease(html_task()) as session:
            assert (await session.reset(html_task(), 2)).instruction == "seed 2: "
        assert fleet.stats().num_crashes == 0

    live(use, max_workers=1)


def test_errors_are_those_of_a_pool(html_task: Any) -> None:
    async def use(fleet: Fleet) -> None:
        with pytest.raises(TaskError, match="nowhere"):
            async with fleet.lease(html_task().model_copy(update={"source": "nowhere"})):
                pass
        with pytest.raises(SandboxError, match="could not be opened"):
            async with fleet.lease() as session:
                await session.reset(html_task("nonesuch"), 1)
        async with fleet.lease() as session:
            assert isinstance(session, Session)
            waiting = asyncio.create_task(fleet.lease().__aenter__())
            await asyncio.sleep(0.05)
            await fleet.close()
            with pytest.raises(SandboxError, match="closed"):
                await waiting
            with pytest.raises(WorkerCrashed, match="closed"):
                await session.reset(html_task(), 1)
        with pytest.raises(SandboxError, match="closed"):
            async with fleet.lease():
                pass

    live(use, max_workers=1)


def test_workers_that_cannot_be_started_are_reported_to_who_waits(monkeypatch: pytest.MonkeyPatch, html_task: Any) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def use(fleet: Fleet) -> None:
        with pytest.raises(SandboxError, match="No sandbox process could be started"):
            async with fleet.lease(html_task()):
                pass

    live(use, max_workers=1)


@pytest.mark.slow
def test_processes_that_cannot_be_forked_are_reported_to_who_waits(html_task: Any) -> None:
    """No descriptor is left for a worker's socket; once there is one, workers restart."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def use(fleet: Fleet) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        try:
            with pytest.raises(MachineLimit, match=r"Too many open files.*ulimit -n"):
                async with asyncio.timeout(30), fleet.lease(html_task()):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        async with fleet.lease(html_task()) as session:
            assert (await session.reset(html_task(), 1)).instruction == "seed 1: "

    live(use, min_workers=0, max_workers=1)


def test_a_fleet_belongs_to_its_loop(html_task: Any) -> None:
    async def lease(fleet: Fleet) -> None:
        async with fleet.lease():
            pass

    async def enter() -> Fleet:
        return await Fleet(FleetSettings(min_workers=0)).__aenter__()

    fleet = asyncio.run(enter())
    with pytest.raises(SandboxError, match="event loop"):
        asyncio.run(lease(fleet))


SCRIPT = """
import asyncio, os, signal, sys
from sandbox.actions import Wait
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.tasks.miniwob.source import load_tasks

async def use(fleet, then):
    task = load_tasks()["click-button"]
    async with fleet.lease(task) as one, fleet.lease(task) as two:
        for session in (one, two):
            await session.reset(task, 1)
        print(*fleet.worker_pids(), *await fleet.browser_pids(), flush=True)
        match then:
            case "raise":
                raise ValueError("a defect of the caller")
            case "exit":
                sys.exit(0)
            case "vanish":
                os._exit(0)
            case "forget":
                return
        await asyncio.gather(*(session.step(Wait(seconds=60)) for session in (one, two)))

async def main(then):
    lonely_after_s = 6 if then == "SIGSTOP" else 600
    settings = FleetSettings(min_workers=2, max_workers=2, sessions_per_worker=1, heartbeat_s=0.5, lonely_after_s=lonely_after_s)
    if then == "forget":
        global fleet
        fleet = await Fleet(settings).__aenter__()
        await use(fleet, then)
    else:
        async with Fleet(settings) as fleet:
            await use(fleet, then)

asyncio.run(main(sys.argv[1]))
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "end",
    [
        "SIGKILL",
        pytest.param("SIGTERM", marks=ALSO),
        pytest.param("SIGINT", marks=ALSO),
        pytest.param("SIGSTOP", marks=pytest.mark.slow),
        pytest.param("raise", marks=ALSO),
        pytest.param("exit", marks=ALSO),
        pytest.param("vanish", marks=ALSO),
        pytest.param("forget", marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_its_manager(end: str) -> None:
    """However the manager ends: killed, interrupted, by an error, by exit; or falls silent; or goes on, with its event loop closed and the
    fleet not."""
    command = [sys.executable, "-c", SCRIPT, end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
    ) as manager:
        assert manager.stdout is not None and manager.stdin is not None
        pids = [int(word) for word in manager.stdout.readline().split()]
        assert len(pids) == 4, "two workers, two browsers"
        if end.startswith("SIG"):
            assert all(len(session_members(pid)) > 3 for pid in pids[:2])
            manager.send_signal(getattr(signal, end))
        assert within(30, lambda: not any(session_members(pid) for pid in pids[:2]))
        if end == "forget":
            assert manager.poll() is None
        manager.stdin.close()
        if end == "SIGSTOP":
            manager.kill()
        manager.wait(30)
