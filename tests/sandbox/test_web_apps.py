"""Web sessions: real applications in jails, real Chromium. Oracles that click and type, and cheats that must not pay.

The applications come from the package registry into the machine's cache the first time."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Click, Finished, Navigate, SelectOption, TypeText
from sandbox.session import Observation
from sandbox.tasks.web_apps.apps import APPS
from sandbox.tasks.web_apps.crawl import main as crawl
from sandbox.tasks.web_apps.running import RunningApp
from sandbox.tasks.web_apps.seeds import web_instance
from sandbox.tasks.web_apps.session import WebAppSession
from sandbox.tasks.web_apps.source import load_tasks
from tests.sandbox.one_session import in_one_browser
from tests.sandbox.tool_sessions import fail, follow
from warehouse.core.errors import JailCrashed

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
    """Runs `use(session)` on one session in one browser, task after task, as a pool's slot does."""
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
            before = await first.state()
            for table, rows in app.world().items():
                assert len(before[table]) == len(rows)
            assert (await first.get(function)).status == 200
            await first.jail.run(
                [
                    "/usr/bin/python3",
                    "-c",
                    f"import sqlite3; d = sqlite3.connect({app.database!r}); "
                    f"d.execute('DELETE FROM {next(iter(app.world()))}'); d.commit()",
                ]
            )
            assert await first.state() != before
        finally:
            await first.close()
        second = await RunningApp.start(app)
        try:
            assert await second.state() == before
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
        assert await session.oracle_action() is None, "nothing brings the row back"
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


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS id, '' AS name, '' AS colour, 1 AS price, 1 AS stock FROM n"
)
HUGE = "SELECT 1 AS id, hex(zeroblob(400000000)) AS name, '' AS colour, 1 AS price, 1 AS stock"
COLUMNS = "id INTEGER PRIMARY KEY, colour TEXT, price INTEGER, stock INTEGER"
SPOILED = {
    "an endless view": f"DROP TABLE products; CREATE VIEW products AS {ENDLESS}",
    "a huge view": f"DROP TABLE products; CREATE VIEW products AS {HUGE}",
    "a virtual table": "DROP TABLE products; CREATE VIRTUAL TABLE products USING fts5(name, colour, price, stock)",
    "a computed column": f"DROP TABLE products; CREATE TABLE products ({COLUMNS}, name TEXT AS (hex(zeroblob(30000000)))); "
    "INSERT INTO products (id) VALUES (1)",
    "another way to write": "PRAGMA journal_mode = WAL; DELETE FROM products",
    "a trigger": "CREATE TRIGGER t AFTER DELETE ON products BEGIN DELETE FROM suppliers; END",
    "text that is none": "UPDATE products SET name = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("what", [pytest.param(what, marks=[] if what == "an endless view" else [pytest.mark.slow]) for what in SPOILED])
def test_what_sql_puts_in_the_place_of_a_table_fails_and_stops_nobody(on_session: Any, what: str) -> None:
    """The host evaluates none of it: it opens no database, the event loop, which is every session's, goes on, and its memory is not
    taken."""

    async def use(session: WebAppSession) -> None:
        await session.reset(TASKS["sqlite-web-read"], 4)
        episode = session._side.episode
        assert episode is not None
        written = f"import sqlite3; d = sqlite3.connect({APPS['sqlite-web'].database!r}); d.executescript({SPOILED[what]!r}); d.commit()"
        assert (await episode.running.jail.run(["/usr/bin/python3", "-c", written])).exit_code == 0
        taken_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        num_opened = len(_all_databases_opened())
        num_turns = await _turns_beside(session.step(Finished(answer=str(episode.instance.answer))))
        verdict = await session.evaluate()
        assert not verdict.success and verdict.score == 0.0
        assert len(verdict.reasons) <= 30 and all(len(reason) < 500 for reason in verdict.reasons)
        assert len(_all_databases_opened()) == num_opened and num_turns >= 5, "another session would have waited"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - taken_kib < 300 << 10

    on_session(use)


async def _turns_beside(work: Coroutine[Any, Any, Any]) -> int:
    """How often the event loop served somebody else meanwhile."""
    doing, num_turns = asyncio.ensure_future(work), 0
    while not doing.done():
        await asyncio.sleep(0.01)
        num_turns += 1
    await doing
    return num_turns


@cache
def _all_databases_opened() -> list[str]:
    """What this process opens by sqlite3 from now on: a hook of Python's audit stays for good."""
    opened: list[str] = []

    def watch(event: str, reported: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":
            opened.append(str(reported[0]))

    sys.addaudithook(watch)
    return opened


def test_a_database_that_this_process_opens_is_seen() -> None:
    num_before = len(_all_databases_opened())
    sqlite3.connect(":memory:").close()
    assert _all_databases_opened()[num_before:] == [":memory:"]


@pytest.mark.slow
def test_an_agent_that_types_such_sql_has_failed(on_session: Any) -> None:
    async def use(session: WebAppSession) -> None:
        await session.reset(TASKS["sqlite-web-read"].model_copy(update={"max_steps": 9}), 4)
        observation = (await session.step(Navigate(url=f"{ORIGIN}/query/"))).observation
        for statement in SPOILED["an endless view"].split("; "):
            area = next(each for each in observation.elements if each.role == "textarea")
            await session.step(Click(x=area.x_px, y=area.y_px, count=3))
            observation = (await session.step(TypeText(text=statement))).observation
            observation = (await session.step(click(observation, "Execute"))).observation
        transition = await session.step(Finished(answer="1"))
        assert transition.terminated and transition.reward == 0.0
        assert "is a view" in (await session.evaluate()).reasons[0]

    on_session(use)


@pytest.mark.slow
def test_an_application_that_ends_is_the_agents_failure_and_a_jail_that_ends_is_not(on_session: Any) -> None:
    """What runs in the jail is the agent's to spoil, as by SQL that takes all of the jail's memory."""

    async def use(session: WebAppSession) -> None:
        await session.reset(TASKS["datasette-read"], 4)
        episode = session._side.episode
        assert episode is not None
        await episode.running.jail.kill_all()
        await asyncio.wait([episode.running._process.ended], timeout=10)
        await session.step(actions.NavigateBack())
        transition = await session.step(Finished(answer=str(episode.instance.answer)))
        assert transition.terminated and transition.reward == 0.0
        assert "has ended" in (await session.evaluate()).reasons[0]
        await session.reset(TASKS["datasette-read"], 4)
        episode = session._side.episode
        assert episode is not None
        fail(episode.running.jail, signal.SIGKILL)
        with pytest.raises(JailCrashed):
            await session.step(Finished())

    on_session(use)


@pytest.mark.long
@pytest.mark.parametrize("name", list(APPS))
def test_a_crawl_finds_what_the_stored_map_says(name: str) -> None:
    assert crawl([name, "--check"]) == 0
