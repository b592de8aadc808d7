"""Under begin-frame control the same seed and actions give the same pixels and elements: on used and fresh pages, in other browsers,
however slow the machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import PageSession
from sandbox.miniwob.source import load_tasks
from sandbox.pool import SessionPool
from sandbox.session import Element, Observation
from sandbox.task import Task

TASKS = (
    "click-dialog",
    "click-tab",
    "login-user",
    "use-autocomplete-nodelay",
    "choose-list",
    "click-collapsible-nodelay",
    "click-checkboxes",
)


def random_action(observation: Observation, generator: random.Random) -> Action:
    """Anything a policy might do, so that episodes go astray in every way."""
    element = generator.choice(observation.elements) if observation.elements else None
    point = (element.x_px, element.y_px) if element else (80, 100)
    other = {"x": generator.randrange(160), "y": generator.randrange(60, 210)}
    return generator.choice(
        [
            actions.Click(x=point[0], y=point[1]),
            actions.Click(x=point[0], y=point[1]),
            actions.Click(**other),
            actions.MoveTo(x=point[0], y=point[1]),
            actions.TypeText(text=generator.choice(["ab", "x\n", "Zoë"])),
            actions.Hotkey(keys=(generator.choice(["tab", "enter", "down", "escape"]),)),
            actions.Scroll(direction="down", **other),
            actions.Drag(x=point[0], y=point[1], to_x=other["x"], to_y=other["y"]),
            actions.Wait(seconds=0.3),
        ]
    )


Trace = list[tuple[str | None, tuple[Element, ...], float, bool]]


async def episode(session: PageSession, task: Task, seed: int, num_steps: int = 6) -> Trace:
    generator = random.Random(seed)
    observation = await session.reset(task, seed)
    trace: Trace = [(observation.screenshot_id, observation.elements, 0.0, False)]
    for _ in range(num_steps):
        transition = await session.step(random_action(observation, generator))
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


@pytest.mark.parametrize("name", TASKS)
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
