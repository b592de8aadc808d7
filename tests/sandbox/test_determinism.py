"""Under begin-frame control the same seed and actions give the same pixels and elements: on used and fresh pages, in other browsers,
however slow the machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.reproducibility import any_action, compare
from sandbox import actions
from sandbox.browser.cdp.beginframe import GESTURE_FRAME_MS, FramedPage
from sandbox.browser.page_session import PageSession
from sandbox.pool.pool import SessionPool
from sandbox.session import Element
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Task

TASKS = (
    "click-dialog",
    "click-tab",
    "login-user",
    "use-autocomplete-nodelay",
    "choose-list",
    "click-collapsible-nodelay",
    "click-checkboxes",
)


Trace = list[tuple[str | None, tuple[Element, ...], float, bool]]


async def episode(session: PageSession, task: Task, seed: int, num_steps: int = 6) -> Trace:
    generator = random.Random(seed)
    observation = await session.reset(task, seed)
    trace: Trace = [(observation.screenshot_id, observation.elements, 0.0, False)]
    for _ in range(num_steps):
        transition = await session.step(any_action(observation, generator))
        observation = transition.observation
        trace.append((observation.screenshot_id, observation.elements, transition.reward, transition.terminated))
        if transition.terminated or transition.truncated:
            break
    return trace


@pytest.fixture(scope="module")
def two_browsers(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool(kind="beginframe", size=2, num_browsers=2)) as live:
        yield live


@pytest.fixture(scope="module")
def another_browser(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool(kind="beginframe", size=1)) as live:
        yield live


@pytest.mark.parametrize("name", [*TASKS[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in TASKS[2:])])
def test_the_same_seed_and_actions_give_the_same_pixels(two_browsers: Any, another_browser: Any, name: str) -> None:
    task = load_tasks()[name]

    async def on_used_pages(pool: SessionPool) -> dict[int, Trace]:
        """Instances one after another in two browsers at once, in an order that differs between them."""

        async def several(seeds: list[int]) -> dict[int, Trace]:
            async with pool.lease() as session:
                return {seed: await episode(session, task, seed) for seed in seeds}

        first, second = await asyncio.gather(several([1, 2, 3]), several([3, 1, 2]))
        assert first == second
        return first

    async def on_a_fresh_page(pool: SessionPool) -> Trace:
        async with pool.lease() as session:
            return await episode(session, task, 2)

    traces = two_browsers.run(on_used_pages)
    assert another_browser.run(on_a_fresh_page) == traces[2]
    assert traces[1] != traces[2]


SEVERAL_WAYS = ["scroll-text", "stock-market", "email-inbox-reply", "tic-tac-toe", "choose-date-medium", "social-media"]
SEVERAL_WAYS += ["shapes-6", "catch-4"]
"""Pages with inner scrolling, timers, pictures that come later, animations of two kinds, dragging, and time that runs."""


@pytest.mark.slow
def test_two_workers_show_the_same() -> None:
    tasks = tasks_in(["miniwob", "games:all"])
    report = asyncio.run(compare([tasks[name] for name in SEVERAL_WAYS], 1))
    assert report.num_distinct_screens > 5 * len(SEVERAL_WAYS)
    assert report.differences == ()


def test_a_button_held_on_a_scrollbar_scrolls_on(live_pool: Any) -> None:
    """Scrolling that no input asks for each time: frames must not wait for it."""

    async def use(pool: SessionPool) -> None:
        task = load_tasks()["scroll-text"]
        async with pool.lease(task) as session:
            await session.reset(task, 1)
            page = session._page
            assert page is not None
            await session.step(actions.MouseDown(x=150, y=129))  # the arrow at its lower end
            at_first = await page.evaluate("document.querySelector('textarea').scrollTop")
            await session.step(actions.Wait(seconds=1))
            later = await page.evaluate("document.querySelector('textarea').scrollTop")
            await session.step(actions.MouseUp(x=150, y=129))
            assert later > at_first

    with live_pool(SessionPool(kind="beginframe", size=1)) as live:
        live.run(use)


def test_a_frame_drawn_again_takes_no_page_time(live_pool: Any) -> None:
    """As where a frame missed an input by a hair: here an answer that comes half a second late."""

    async def use(pool: SessionPool) -> None:
        task = load_tasks()["click-test-2"]
        async with pool.lease(task) as session:
            await session.reset(task, 1)
            page = session._page
            assert isinstance(page, FramedPage)
            before_ms = page.time_ms
            answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.5, answer.set_result, {})
            await asyncio.wait_for(page._answered_by_frames([answer]), 10)
            assert page.time_ms - before_ms == pytest.approx(GESTURE_FRAME_MS)
            assert (await session.step(actions.Wait(seconds=0.1))).observation.screenshot

    with live_pool(SessionPool(kind="beginframe", size=1)) as live:
        live.run(use)


def test_between_our_calls_everything_stands_still(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
            before = (await session.step(actions.Wait(seconds=0.5))).observation
            page = session._page
            assert page is not None
            clock = await page.evaluate("[Date.now(), performance.now(), frames]")
            await asyncio.sleep(0.5)
            assert await page.evaluate("[Date.now(), performance.now(), frames]") == clock
            animation = await page.evaluate("getComputedStyle(mover).transform")
            after = (await session.step(actions.Wait(seconds=2))).observation
            late = await page.evaluate("[Date.now(), performance.now(), frames]")
            assert late[2] - clock[2] == 123  # two seconds and the step's own 50 ms, at 60 frames a second
            assert late[0] - clock[0] == pytest.approx(2050, abs=1)
            assert after.time_ms - before.time_ms == pytest.approx(2050, abs=0.1)
            assert animation != await page.evaluate("getComputedStyle(mover).transform")

    with live_pool(SessionPool({"html": html_source()}, kind="beginframe", size=1)) as live:
        live.run(use)
