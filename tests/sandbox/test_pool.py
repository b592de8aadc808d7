"""The pool: leases, waiting, recycling, bookkeeping."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psutil
import pytest

from sandbox.pool.pool import SessionPool
from sandbox.pool.slots import RecyclePolicy
from tests.sandbox.process_watch import group_members, soon, within
from warehouse.core.errors import ConfigError, SandboxError, TaskError


@pytest.mark.parametrize(("size", "num_browsers"), [(0, 1), (2, 3), (2, 0)])
def test_impossible_sizes(size: int, num_browsers: int) -> None:
    with pytest.raises(ConfigError, match="1 <= num_browsers <= size"):
        SessionPool(size=size, num_browsers=num_browsers)


def test_an_unknown_kind() -> None:
    with pytest.raises(ConfigError, match="beginframe"):
        asyncio.run(SessionPool(kind="netscape").__aenter__())  # type: ignore[arg-type]


def test_leases_are_exclusive_and_wait_their_turn(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        in_use: set[int] = set()

        async def play(seed: int) -> str:
            async with pool.lease() as session:
                assert id(session) not in in_use
                in_use.add(id(session))
                assert len(in_use) <= 2
                instruction = (await session.reset(html_task(), seed)).instruction
                in_use.remove(id(session))
                return instruction

        assert await asyncio.gather(*(play(seed) for seed in range(7))) == [f"seed {seed}: " for seed in range(7)]
        stats = pool.stats()
        assert (stats.num_leases, stats.num_resets, stats.num_leased, stats.num_launches, stats.num_crashes) == (7, 7, 0, 1, 0)
        assert stats.memory_mib > 20

    with live_pool(SessionPool({"html": html_source()}, size=2, num_browsers=1)) as live:
        live.run(use)


def test_a_session_with_the_tasks_page_is_preferred(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as one, pool.lease() as two:
            await one.reset(html_task(), 1)
            await two.reset(html_task("second"), 1)
        for task, session in ((html_task(), one), (html_task("second"), two)):
            async with pool.lease(task) as leased:
                assert leased is session

    source = html_source()
    source.url = lambda task: (source.root / "kitchen.html").as_uri()
    with live_pool(SessionPool({"html": source}, size=2, num_browsers=1)) as live:
        live.run(use)


@pytest.mark.slow
def test_a_worn_browser_is_replaced_when_nobody_uses_it(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async def play(seed: int) -> None:
            async with pool.lease() as session:
                await session.reset(html_task(), seed)

        await asyncio.gather(*(play(seed) for seed in range(9)))
        stats = pool.stats()
        assert stats.num_recycled >= 2 and stats.num_crashes == 0 and stats.num_resets == 9

    with live_pool(SessionPool({"html": html_source()}, size=2, num_browsers=1, recycle=RecyclePolicy(recycle_resets=3))) as live:
        live.run(use)


def test_who_uses_a_worn_browser_stays_on_it_and_the_next_finds_a_fresh_one(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as stays:
            await stays.reset(html_task(), 1)
            (worn,) = pool.browser_pids()
            for seed in range(2):
                async with pool.lease() as session:
                    await session.reset(html_task(), seed)
            async with pool.lease() as session:
                await session.reset(html_task(), 3)
                assert len(pool.browser_pids()) == 2 and worn in pool.browser_pids()
                assert (await stays.reset(html_task(), 5)).instruction == "seed 5: "
        assert worn not in pool.browser_pids() and pool.stats().num_recycled == 1 and pool.stats().num_crashes == 0

    with live_pool(SessionPool({"html": html_source()}, size=2, num_browsers=1, recycle=RecyclePolicy(recycle_resets=2))) as live:
        live.run(use)


@pytest.mark.parametrize("limit", [{"recycle_age_s": 0.3}, {"recycle_memory_mib": 1.0}])
def test_an_old_or_large_browser_is_replaced(limit: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
            (worn,) = pool.browser_pids()
        await soon(lambda: worn not in pool.browser_pids())
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        assert pool.stats().num_recycled >= 1 and pool.stats().num_crashes == 0

    with live_pool(SessionPool({"html": html_source()}, size=1, recycle=RecyclePolicy(heartbeat_s=0.2, **limit))) as live:
        live.run(use)


def test_a_browser_being_replaced_ends_with_the_pool(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> int:
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
            (worn,) = pool.browser_pids()
        while pool.browser_pids():  # from here on its session is being closed
            await asyncio.sleep(0)
        return worn

    with live_pool(SessionPool({"html": html_source()}, size=1, recycle=RecyclePolicy(heartbeat_s=0.05, recycle_age_s=1.0))) as live:
        worn = live.run(use)
    assert within(5, lambda: not group_members(worn))


@pytest.mark.slow
def test_what_nobody_uses_is_closed_and_comes_back_when_it_is_wanted(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease(html_task()) as session:
            await session.reset(html_task(), 1)
            await asyncio.sleep(1)  # in use, though nothing is asked of it
            assert pool.stats().num_browsers_alive == 1
        await soon(lambda: not pool.browser_pids())
        async with pool.lease(html_task()) as again:
            assert again is not session and (await again.reset(html_task(), 1)).instruction == "seed 1: "
        assert pool.stats().num_recycled == 0 and pool.stats().num_launches == 2

    with live_pool(SessionPool({"html": html_source()}, size=1, recycle=RecyclePolicy(heartbeat_s=0.1, idle_s=0.4))) as live:
        live.run(use)


def test_a_task_of_no_known_source_is_refused(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(TaskError, match="nowhere"):
            async with pool.lease(html_task().model_copy(update={"source": "nowhere"})):
                pass
        assert pool.stats().num_leased == 0

    with live_pool(SessionPool({"html": html_source()}, size=1)) as live:
        live.run(use)


@pytest.mark.slow
def test_an_error_of_the_user_costs_the_page_and_not_the_browser(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(ZeroDivisionError):
            async with pool.lease() as session:
                await session.reset(html_task(), 1)
                raise ZeroDivisionError
        for delay_s in (0.7, 0.71, 0.713, 0.717):  # wherever it is cut off, also while a frame is drawn
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay_s), pool.lease() as session:
                    while True:
                        await session.reset(html_task(), 1)
        async with pool.lease() as session:
            assert (await session.reset(html_task(), 4)).instruction == "seed 4: "
        assert pool.stats().num_launches == 1

    with live_pool(SessionPool({"html": html_source()}, size=1)) as live:
        live.run(use)


def test_a_closed_pool(html_source: Any, html_task: Any) -> None:
    async def use() -> None:
        pool = SessionPool({"html": html_source()}, size=1)
        async with pool, pool.lease() as session:
            await session.reset(html_task(), 1)
            waiting = asyncio.ensure_future(pool.lease().__aenter__())
            await asyncio.sleep(0)
            await pool.close()
            with pytest.raises(SandboxError, match="closed"):
                await waiting
            with pytest.raises(SandboxError):
                await session.reset(html_task(), 1)
        await pool.close()
        assert pool.browser_pids() == []

    asyncio.run(use())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_pool_that_is_closed_while_a_browser_starts(html_source: Any, html_task: Any) -> None:
    async def use() -> None:
        pool = await SessionPool({"html": html_source()}, size=1).__aenter__()
        before = set(psutil.Process().children())
        leasing = asyncio.create_task(pool.lease(html_task()).__aenter__())
        await soon(lambda: set(psutil.Process().children()) != before)
        started = set(psutil.Process().children()) - before
        await pool.close()
        with pytest.raises(SandboxError):
            await leasing
        await soon(lambda: not started & set(psutil.Process().children()))

    asyncio.run(use())


def test_a_pool_belongs_to_its_loop(html_source: Any) -> None:
    async def lease(pool: SessionPool) -> None:
        async with pool.lease():
            pass

    async def enter() -> SessionPool:
        return await SessionPool({"html": html_source()}, size=1).__aenter__()

    pool = asyncio.run(enter())
    with pytest.raises(SandboxError, match="event loop"):
        asyncio.run(lease(pool))
