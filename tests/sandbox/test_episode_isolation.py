"""Nothing crosses from one episode to the next in a session that is used again: each thing that could is planted, and looked for after.
What a web session, a desktop or a device keeps apart is shown beside their own tests."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.pool.pool import SessionPool
from sandbox.session import Observation
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.sources import tasks_of
from tests.sandbox.html_pages import page_sources
from tests.sandbox.process_watch import soon

PLANTS = {
    "local storage": "localStorage.setItem('planted', 1)",
    "session storage": "sessionStorage.setItem('planted', 1)",
    "database": "indexedDB.open('planted', 1).onupgradeneeded = (event) => event.target.result.createObjectStore('planted')",
    "cache": "caches.open('planted').then((cache) => cache.put('https://planted/', new Response('planted')))",
}
LOOK = """
(async () => {
  const databases = (await indexedDB.databases()).map((each) => each.name);
  window.found = [...Object.keys(localStorage), ...Object.keys(sessionStorage), ...databases, ...(await caches.keys()), document.cookie];
})()
"""


@pytest.fixture(scope="module", params=["beginframe", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "playwright"))])
def live(request: pytest.FixtureRequest, live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool(page_sources(), kind=request.param, size=1)) as live:
        yield live


async def until(session: Any, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Let the page's time pass until something is so."""
    deadline_s = time.monotonic() + 60
    while not await is_so():
        assert time.monotonic() < deadline_s
        await session.step(actions.Wait(seconds=0.05))


async def stored(session: Any) -> list[str]:
    """Names of what the page's browser context keeps, whatever the kind."""
    await session._page.evaluate(f"void {LOOK}")

    async def has_looked() -> bool:
        return bool(await session._page.evaluate("'found' in window"))

    await until(session, has_looked)
    found = await session._page.evaluate("(() => { const found = window.found; delete window.found; return found })()")
    return [name for name in found if name]


@pytest.mark.parametrize("what", PLANTS)
@pytest.mark.slow
def test_what_a_page_stores_ends_with_its_episode(what: str, live: Any, html_task: Any) -> None:
    others = [load_tasks()["click-button"]] if what == "local storage" else []

    async def use(pool: SessionPool) -> None:
        for following in (html_task(), *others):
            async with pool.lease(html_task()) as session:
                await session.reset(html_task(), 1)
                assert await stored(session) == []
                await session._page.evaluate(f"void ({PLANTS[what]})")

                async def is_planted(session: Any = session) -> bool:
                    return await stored(session) == ["planted"]

                await until(session, is_planted)
                await session.reset(following, 2)
                assert await stored(session) == []

    live.run(use)


@pytest.mark.parametrize("what", ["local storage", "session storage"])
def test_what_a_page_stores_last_of_all_ends_too(what: str, live: Any, html_task: Any) -> None:
    """With no time for the browser to tell of it."""

    async def use(pool: SessionPool) -> None:
        tasks = load_tasks()
        for first, following in ((html_task(), html_task()), (tasks["click-button"], tasks["click-link"])):
            async with pool.lease(first) as session:
                await session.reset(first, 1)
                await session._page.evaluate(f"void ({PLANTS[what]})")
                session._page.notes.has_stored = False  # as if its event were still to come
                await session.reset(following, 2)
                assert await stored(session) == []

    live.run(use)


def test_what_nothing_is_stored_in_is_used_again(live: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease(html_task()) as session:
            await session.reset(html_task(), 1)
            page = session._page
            for seed in range(3):
                await session.step(actions.Wait(seconds=0.05))
                await session.reset(html_task(), seed)
            assert session._page is page

    live.run(use)


def test_a_script_leaves_no_history(live: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease(html_task()) as session:
            await session.reset(html_task(), 1)
            await session._page.evaluate("history.pushState({planted: 1}, '', '#planted')")
            await session.step(actions.Wait(seconds=0.05))
            await session.reset(html_task(), 2)

            async def is_forgotten() -> bool:
                return await session._page.evaluate("[history.length, history.state, location.hash]") == [1, None, ""]

            await until(session, is_forgotten)

    live.run(use)


def test_sessions_that_run_at_once_do_not_see_what_the_other_stores(html_task: Any) -> None:
    async def use() -> None:
        async with SessionPool(page_sources(), size=2, num_browsers=1) as pool, pool.lease() as one, pool.lease() as two:
            for session in (one, two):
                await session.reset(html_task(), 1)
            for plant in PLANTS.values():
                await one._page.evaluate(f"void ({plant})")

            async def are_planted() -> bool:
                return await stored(one) == ["planted"] * len(PLANTS)

            await until(one, are_planted)
            assert await stored(two) == []

    asyncio.run(use())


def test_a_page_of_files_gets_no_cookies_no_service_worker_and_no_private_files(live: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease(html_task()) as session:
            await session.reset(html_task(), 1)
            await session._page.evaluate(
                "void (document.cookie = 'planted=1', window.worker = window.files = 'none',"
                " navigator.storage.getDirectory().catch((error) => { window.files = error.name }),"
                " navigator.serviceWorker.register('worker.js').catch((error) => { window.worker = error.name }))"
            )

            async def is_refused() -> bool:
                return bool(await session._page.evaluate("window.worker !== 'none' && window.files !== 'none'"))

            await until(session, is_refused)
            cookie, worker, files = await session._page.evaluate("[document.cookie, window.worker, window.files]")
            assert cookie == "" and worker in {"TypeError", "SecurityError"} and files == "SecurityError"

    live.run(use)


def test_what_was_copied_is_not_pasted_in_the_next_episode(live: Any, html_task: Any) -> None:
    if live.pool.kind == "playwright":
        pytest.skip("its pages share the clipboard of their browser, and it says so")

    def click(observation: Observation, role: str) -> actions.Click:
        element = next(element for element in observation.elements if element.role == role)
        return actions.Click(x=element.x_px, y=element.y_px)

    def text(observation: Observation) -> str:
        return next(element.text for element in observation.elements if element.role == "area")

    async def use(pool: SessionPool) -> None:
        async with pool.lease(html_task()) as session:
            observation = await session.reset(html_task(), 1)
            copied = [actions.TypeText(text="planted"), *(actions.Hotkey(keys=("ctrl", key)) for key in "ac")]
            for action in (click(observation, "area"), *copied):
                await session.step(action)
            observation = await session.reset(html_task(), 1)
            for action in (click(observation, "area"), actions.Hotkey(keys=("ctrl", "v"))):
                transition = await session.step(action)
            assert "planted" not in text(transition.observation)

    live.run(use)


def processes_with(word: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and folder.name != str(os.getpid()):
            found.append(line)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
@pytest.mark.parametrize("source", ["terminal", "hybrid"])
def test_processes_and_files_of_a_terminal_end_with_its_lease(source: str) -> None:
    task, marker = tasks_of(f"{source}:small")[0], f"31{os.getpid()}"

    async def run(session: Any, command: str) -> str:
        transition = await session.step(actions.ToolCall(name="execute_bash", arguments={"command": command}))
        return str(transition.observation.output)

    async def use() -> None:
        async with SessionPool(size=1) as pool:
            async with pool.lease(task, screenshots=False) as session:
                await session.reset(task, 1)
                await run(session, f"(setsid sleep {marker} &); for place in . /tmp ~; do echo planted > $place/planted; done")
                await soon(lambda: any(f"sleep {marker}" in line for line in processes_with(marker)))
            assert not any(f"sleep {marker}" in line for line in processes_with(marker)), "gone with the lease, not only with the next"
            async with pool.lease(task, screenshots=False) as session:
                await session.reset(task, 1)
                assert "planted" not in await run(session, "ls -a . /tmp ~")

    asyncio.run(use())
