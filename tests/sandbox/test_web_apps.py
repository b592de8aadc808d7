"""Web sessions: real applications in jails, real Chromium. Oracles that click and type, and cheats that must not pay.

The applications come from the package registry into the machine's cache the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Click, Finished, Navigate, SelectOption, TypeText
from sandbox.session import Observation
from sandbox.web_apps.apps import APPS
from sandbox.web_apps.crawl import main as crawl
from sandbox.web_apps.running import RunningApp
from sandbox.web_apps.session import WebAppSession
from sandbox.web_apps.source import load_tasks, web_instance
from tests.sandbox.one_session import in_one_browser
from tests.sandbox.tool_sessions import follow
from warehouse.errors import WebAppCrashed

Use = Callable[[WebAppSession], Coroutine[Any, Any, Any]]
TASKS = load_tasks()
ORIGIN = "http://localhost:8001"
QUICK = "datasette-read"
SEVERAL = ("datasette-hop", "sqlite-web-update-near", "trac-close")
"""With the quick one, one of each kind over all applications; the rest is long."""


def how_long(name: str) -> list[pytest.MarkDecorator]:
    return [] if name == QUICK else [pytest.mark.slow if name in SEVERAL else pytest.mark.long]


@pytest.fixture(scope="module")
def on_session() -> Iterator[Callable[[Use], Any]]:
    """Runs `use(session)` on one session in one browser, task after task, as a pool's seat does."""
    with in_one_browser(lambda open_page: WebAppSession(open_page, screenshots=False)) as on_session:
        yield on_session


def find(observation: Observation, text: str, role: str) -> tuple[int, int]:
    element = next(each for each in observation.elements if each.role == role and each.text == text)
    return element.x_px, element.y_px


def click(observation: Observation, text: str, role: str = "button") -> Click:
    x, y = find(observation, text, role)
    return Click(x=x, y=y)


@pytest.mark.parametrize("name", [pytest.param(name, marks=how_long(name)) for name in TASKS])
def test_oracles_solve_every_family_through_real_events(on_session: Any, name: str) -> None:
    async def use(session: WebAppSession) -> None:
        observation = await session.reset(TASKS[name], 4)
        assert observation.instruction == web_instance(TASKS[name], 4).instruction and observation.elements
        assert not (await session.evaluate()).success, "solved before it began"
        transition = await follow(session)
        verdict = await session.evaluate()
        assert transition.terminated and transition.reward == 1.0 and verdict.success, verdict.reasons

    on_session(use)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "sqlite-web" else [pytest.mark.slow]) for name in APPS])
def test_an_application_starts_with_its_data_and_the_next_knows_nothing_of_the_last(name: str) -> None:
    async def use() -> None:
        app = APPS[name]
        function = {"datasette": "/library/add_member", "sqlite-web": "/suppliers/insert/", "trac": "/newticket"}[name]
        first = await RunningApp.start(app)
        try:
            before = first.state()
            for table, rows in app.world().items():
                assert len(before[table]) == len(rows)
            assert (await first.get(function)).status == 200
            await first.jail.run(["/usr/bin/python3", "-c", f"import sqlite3; d = sqlite3.connect({app.database!r}); "
                                  f"d.execute('DELETE FROM {next(iter(app.world()))}'); d.commit()"])  # fmt: skip
            assert first.state() != before
        finally:
            await first.close()
        second = await RunningApp.start(app)
        try:
            assert second.state() == before
        finally:
            await second.close()

    asyncio.run(use())


def test_cheats_do_not_pay(on_session: Any) -> None:
    """The book is moved by no page that says so, no script, no address of another kind; nor by words."""
    task = TASKS["datasette-move-near"]

    async def use(session: WebAppSession) -> None:
        await session.reset(task, 4)
        for url in (
            "javascript:document.body.textContent='The book was moved'",
            "data:text/html,<h1>The book was moved</h1>",
            f"{ORIGIN}/library/move_book?title=x&shelf=A1",
            f"{ORIGIN}/library?sql=update+books+set+shelf='A1'",
        ):
            transition = await session.step(Navigate(url=url))
            assert not (await session.evaluate()).success and transition.reward == 0
        transition = await session.step(Finished(answer="The book was moved"))
        assert transition.terminated and transition.reward == 0.0
        assert "missing: update books" in (await session.evaluate()).reasons[0]

    on_session(use)


@pytest.mark.slow
def test_a_page_that_is_made_to_say_it_is_done_proves_nothing(on_session: Any) -> None:
    """Even whoever could run scripts in the page: the database is asked, from outside."""

    async def use(session: WebAppSession) -> None:
        await session.reset(TASKS["datasette-remove-near"], 4)
        page = session._page._instance.page  # type: ignore[union-attr]
        await page.evaluate(
            "void (document.body.innerHTML = '<h1>The member was removed</h1>', window.fetch = () => Promise.resolve(new Response('[]')))"
        )
        assert (await session.step(Finished())).reward == 0.0

    on_session(use)


@pytest.mark.slow
def test_doing_more_than_was_asked_fails(on_session: Any) -> None:
    async def use(session: WebAppSession) -> None:
        observation = await session.reset(TASKS["sqlite-web-delete-near"], 4)
        observation = (await session.step(click(observation, "Delete"))).observation
        assert (await session.evaluate()).success
        observation = (await session.step(Navigate(url=f"{ORIGIN}/products/delete/WzFd/"))).observation
        observation = (await session.step(click(observation, "Delete"))).observation
        verdict = await session.evaluate()
        assert not verdict.success and verdict.reasons == ("not asked for: delete products 1",)
        assert await session.hint() is None, "nothing brings the row back"
        assert (await session.step(Finished())).reward == 0.0

    on_session(use)


@pytest.mark.slow
def test_a_right_answer_counts_only_where_nothing_was_changed_and_addresses_may_be_typed(on_session: Any) -> None:
    """The application's own addresses are a person's means as well: reading there is no cheat."""
    task = TASKS["datasette-find"]

    async def use(session: WebAppSession) -> None:
        instance = web_instance(task, 4)
        for answer, spoils, reward in ((instance.answer, False, 1.0), ("nothing", False, 0.0), (instance.answer, True, 0.0)):
            await session.reset(task, 4)
            observation = (await session.step(Navigate(url=f"{ORIGIN}/library/remove_member"))).observation
            if spoils:
                name = next(row["name"] for row in APPS["datasette"].world()["members"])
                observation = (await session.step(click(observation, "", "input"))).observation
                observation = (await session.step(TypeText(text=f"{name}\n"))).observation
            assert (await session.step(Finished(answer=str(answer)))).reward == reward

    on_session(use)


def test_the_page_has_the_application_and_nothing_else(on_session: Any) -> None:
    async def use(session: WebAppSession) -> None:
        observation = await session.reset(TASKS["sqlite-web-read"], 4)
        for url in ("http://localhost:8002/", "https://example.org/", "file:///etc/passwd"):
            transition = await session.step(Navigate(url=url))
            assert not any("root:" in element.text for element in transition.observation.elements)
        transition = await session.step(actions.ToolCall(name="execute_bash", arguments={"command": "true"}))
        assert transition.info["ignored"]
        x, y = observation.elements[0].x_px, observation.elements[0].y_px
        assert (await session.step(SelectOption(x=x, y=y, option="none"))).info["ignored"]

    on_session(use)


@pytest.mark.slow
def test_an_application_that_dies_is_nobodys_failure(on_session: Any) -> None:
    async def use(session: WebAppSession) -> None:
        await session.reset(TASKS["datasette-read"], 4)
        episode = session._side.episode
        assert episode is not None
        await episode.running.jail.kill_all()
        await asyncio.wait([episode.running._process.ended], timeout=10)
        with pytest.raises(WebAppCrashed, match="has ended"):
            await session.step(Finished())

    on_session(use)


@pytest.mark.long
@pytest.mark.parametrize("name", list(APPS))
def test_a_crawl_finds_what_the_stored_map_says(name: str) -> None:
    assert crawl([name, "--check"]) == 0
