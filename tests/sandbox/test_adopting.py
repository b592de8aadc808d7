"""Adopting a site: pages become tasks, what is ambiguous is dropped, oracles prove the rest, and nothing leaves the site."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sandbox.adopting import adopt
from sandbox.adopting.checks import added, read_rows
from sandbox.adopting.compose import Composer
from sandbox.adopting.crawl import pages_of, same_in_both
from sandbox.adopting.login import log_in
from sandbox.adopting.proof import row_check
from sandbox.adopting.records import (
    AdoptedTask,
    AnswerCheck,
    Folder,
    Locator,
    Look,
    RequestCheck,
    Site,
    Step,
    TaskSet,
    Visit,
    origin_of,
    page_key,
)
from sandbox.adopting.source import EDGES, adopted_source, kept_tasks, split_of
from sandbox.adopting.window import SiteBrowser
from sandbox.browser.page import WebPage
from sandbox.tasks.task import Split
from tests.sandbox.adopted_app import serve
from warehouse.core.errors import ConfigError, SandboxError, TaskError

ORIGIN = "http://127.0.0.1:9"
SITE = Site(name="shop", origin=ORIGIN)


def look(path: str, **parts: Any) -> Look:
    empty: dict[str, Any] = {"links": [], "fields": [], "forms": [], "toggles": [], "tables": [], "facts": []}
    return Look.model_validate({"url": ORIGIN + path, "title": path, "heading": "", **empty, **parts})


def link(name: str, path: str, top: int = 10) -> dict[str, Any]:
    return {"at": {"tag": "a", "name": name, "key": path}, "url": ORIGIN + path, "top": top}


def cell(text: str) -> dict[str, Any]:
    return {"text": text, "top": 20, "at": {"tag": "td", "name": text}}


def field(name: str, **more: Any) -> dict[str, Any]:
    return {"at": {"tag": "input", "name": name, "key": name.lower()}, "type": "text", "top": 5, "state": "", **more}


def composed(site: Site = SITE, **pages: Look) -> tuple[list[AdoptedTask], Counter[str]]:
    composer = Composer(site, {page_key(page.url): page for page in pages.values()})
    return composer.compose(500).tasks, composer.dropped


def instructions(tasks: Sequence[AdoptedTask], family: str) -> set[str]:
    return {task.instruction for task in tasks if task.family == family}


def test_a_page_is_its_path_and_query():
    assert page_key("http://h/a?z=1&b=2#part") == page_key("http://h/a?b=2&z=1") == "/a?b=2&z=1"
    assert page_key("http://h/#/route") == "/#/route"
    assert origin_of("http://h:80/x") == origin_of("http://h/y") == "http://h"
    assert origin_of("http://h:8080") != origin_of("https://h:8080")


def test_links_to_known_pages_are_tasks_and_ambiguous_ones_are_not():
    home = look(
        "/", links=[link("Goods", "/goods"), link("More", "/goods"), link("More", "/about"), link("Out", "/unknown"), link("Home", "/")]
    )
    tasks, dropped = composed(home=home, goods=look("/goods", links=[link("About us", "/about")]), about=look("/about"))
    goals = {(task.start, page_key(ORIGIN + task.checks[0].key)) for task in tasks if task.family == "open-link"}  # type: ignore[union-attr]
    assert goals == {("/", "/goods"), ("/goods", "/about")}
    assert instructions(tasks, "open-path") == {'Open "Goods", then open "About us" there.'}
    assert dropped["several links of one name lead to different pages"] == 1
    assert dropped["a link to what was not crawled"] == dropped["a link to the page itself"] == 1


def test_the_same_words_for_different_pages_are_dropped():
    names = {f"/{number}" for number in range(40)}
    pages = {f"p{path[1:]}": look(path, links=[link("Next", f"/{(int(path[1:]) + 1) % 40}")]) for path in names}
    tasks, dropped = composed(**pages)
    assert not [task for task in tasks if task.family == "open-link"]
    assert dropped["the same instruction with another verifier"] >= 40


def test_tables_are_asked_by_what_names_their_rows():
    rows = [[cell("1"), cell("Kettle"), cell("34.50"), cell("new")], [cell("2"), cell("Chair"), cell("129"), cell("new")]]
    tasks, _ = composed(home=look("/", tables=[{"columns": ["No", "Name", "Price", "State"], "rows": rows}]))
    asked = {task.instruction.removesuffix(" Answer with the text on the page."): task.answer for task in tasks}
    assert asked['What is "Price" of "Kettle"?'] == "34.50"
    assert not [question for question in asked if "State" in question], "a value that all rows have is guessed"
    tasks, dropped = composed(home=look("/", facts=[{"label": "Owner", "value": cell("A")}, {"label": "Owner", "value": cell("B")}]))
    assert tasks == [] and dropped["a question with several answers"] == 1


def test_times_that_go_by_and_rows_named_by_numbers_are_no_tasks():
    rows = [[cell("0.394 ± 0.027"), cell("12")], [cell("0.250 ± 0.020"), cell("13")]]
    table = {"columns": ["Success", "Runs"], "rows": rows}
    facts = [{"label": "Changed", "value": cell("3 minutes ago")}, {"label": "Owner", "value": cell("Edda Falk")}]
    home = look("/", links=[link("Lentil soup 11 minutes ago", "/soup")], tables=[table], facts=facts)
    tasks, dropped = composed(home=home, soup=look("/soup"))
    assert [task.answer for task in tasks] == ["Edda Falk"]
    assert dropped["a table whose rows have no name"] == 1


def test_fields_and_searches():
    search = {"method": "get", "action": f"{ORIGIN}/search", "submit": None}
    box, twice = field("Q", form=0), field("Note")
    tasks, dropped = composed(home=look("/", fields=[box, twice, twice], forms=[search]))
    searches = [task for task in tasks if task.family == "search"]
    assert searches
    for task in searches:
        (check,) = task.checks
        assert isinstance(check, RequestCheck)
        assert (check.method, check.path, check.fields) == ("GET", "/search", {"q": task.steps[0].value})
    assert dropped["several fields of one label"] == 2


def test_forms_that_write_are_only_for_sites_that_may_be_written_to():
    form = {"method": "post", "action": f"{ORIGIN}/add", "submit": {"tag": "button", "name": "Save"}}
    page = look("/", fields=[field("Title", form=0)], forms=[form])
    assert not instructions(composed(home=page)[0], "fill-form")
    tasks, _ = composed(SITE.model_copy(update={"allow_writes": True}), home=page)
    assert all("press" in said for said in instructions(tasks, "fill-form")) and instructions(tasks, "fill-form")


def test_what_changes_between_two_visits_is_left_out():
    first = look("/", links=[link("A", "/a"), link("number 1", "/v/1")], facts=[{"label": "Now", "value": cell("10:01")}])
    second = look("/", links=[link("A", "/a", top=30), link("number 2", "/v/2")], facts=[{"label": "Now", "value": cell("10:02")}])
    kept = same_in_both(first, second)
    assert [each.at.name for each in kept.links] == ["A"] and kept.facts == ()


def test_lists_go_on_after_a_line_that_was_cut_off(tmp_path: Path):
    folder = Folder(tmp_path)
    folder.add("crawl.jsonl", Visit(url="u", depth=0, visit=1))
    with (tmp_path / "crawl.jsonl").open("ab") as file:
        file.write(b'{"url": "v", "dep')
    folder.add("crawl.jsonl", Visit(url="w", depth=0, visit=1))
    assert [visit.url for visit in folder.lines("crawl.jsonl", Visit)] == ["u", "w"]


def test_a_folder_is_of_one_site(tmp_path: Path):
    adopt.open_site(Folder(tmp_path), SITE)
    adopt.open_site(Folder(tmp_path), SITE)
    with pytest.raises(ConfigError, match="allow_writes False, now True"):
        adopt.open_site(Folder(tmp_path), SITE.model_copy(update={"allow_writes": True}))


def reading(number: int) -> AdoptedTask:
    step = Step(do="read", key="/", at=Locator(tag="td", name=str(number)))
    asked = f'What is "Price" of "{number}"?'
    return AdoptedTask(
        family="read-value", instruction=asked, start="/", checks=(AnswerCheck(text=str(number)),), steps=(step,), answer=str(number)
    )


def test_splits_are_by_what_is_asked_for_and_seeds_keep_to_them(tmp_path: Path):
    tasks = [reading(number) for number in range(120)]
    Folder(tmp_path).write("tasks.json", kept_tasks(SITE, tasks))
    source = adopted_source(tmp_path)
    (task,) = source.load_tasks().values()
    said: dict[Split, set[str]] = {}
    for split in EDGES:
        said[split] = {facts.instruction for seed in task.seeds(split, 60) if (facts := source.facts(task, seed)) is not None}
        wanted = {each.instruction for each in tasks if split_of(SITE, each) is split}
        assert said[split] <= wanted and len(said[split]) == min(60, len(wanted))
    assert 0.5 < len([1 for each in tasks if split_of(SITE, each) is Split.TRAIN]) / 120 < 0.7
    from_elsewhere = tasks[0].model_copy(update={"start": "/other", "instruction": "Said otherwise?"})
    assert split_of(SITE, from_elsewhere) is split_of(SITE, tasks[0])
    with pytest.raises(ConfigError, match="no task group"):
        source.load_tasks("some")


def test_a_family_with_nothing_to_train_on_is_held_out(tmp_path: Path):
    reported = [task for task in map(reading, range(60)) if split_of(SITE, task) is not Split.TRAIN]
    Folder(tmp_path).write("tasks.json", kept_tasks(SITE, reported))
    (task,) = adopted_source(tmp_path).load_tasks().values()
    assert task.held_out and task.seeds(Split.TRAIN, 1) == []
    with pytest.raises(TaskError, match="no task"):
        adopted_source(tmp_path).facts(task.model_copy(update={"name": "other"}), 0)


def test_a_missing_or_broken_task_set_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no .*tasks\.json"):
        adopted_source(tmp_path)
    (tmp_path / "tasks.json").write_text("{}")
    with pytest.raises(ConfigError, match="not usable"):
        adopted_source(tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    yield from served(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    yield from served(tmp_path, wants_login=True)


def served(folder: Path, **options: Any) -> Iterator[tuple[str, Path]]:
    database = folder / "shop.db"
    server = serve(database, **options)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", database
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_rows_that_were_added_are_told_from_those_that_were_there(shop: tuple[str, Path]):
    import sqlite3
    from contextlib import closing

    _, database = shop
    before = read_rows(str(database))
    with closing(sqlite3.connect(database)) as con, con:
        con.execute("insert into goods (title, amount) values ('copper 7', '12')")
    task = AdoptedTask(
        family="fill-form",
        instruction="…",
        start="/add",
        checks=(),
        steps=tuple(Step(do="type", key="/add", at=Locator(tag="input", name=n), value=v) for n, v in (("a", "copper 7"), ("b", "12"))),
    )
    row = row_check(task, added(before, read_rows(str(database))))
    assert row is not None and (row.table, row.cells) == ("goods", {"title": "copper 7", "amount": "12"})
    assert row_check(task, added(read_rows(str(database)), read_rows(str(database)))) is None
    with pytest.raises(ConfigError, match="no such file"):
        read_rows(str(database.with_name("other.db")))


def test_a_window_reaches_the_site_alone_and_only_reads(shop: tuple[str, Path]):
    origin, database = shop
    site = Site(name="shop", origin=origin)

    reached: list[bytes] = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.readline())
        writer.close()

    async def use() -> tuple[list[str], list[str], Any]:
        server = await asyncio.start_server(other, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        browser = SiteBrowser(site)
        try:
            window = await browser.open()
            assert isinstance(window, WebPage)
            assert await window.go(f"{origin}/add", 20_000) == ""
            send = "fetch('/add', {method: 'POST', body: 'title=x'}).then(() => 'sent', () => 'refused')"
            leave = "fetch('http://localhost:1/').then(() => 'sent', () => 'refused')"
            said = [
                await window.evaluate(send),
                await window.evaluate(leave),
                await window.evaluate("fetch('/logout').catch(() => 'refused')"),
            ]
            noted = list(window.traffic.elsewhere), list(window.traffic.writes)
            assert await window.go(f"{origin}/away?{port}", 20_000) != ""
            assert f"127.0.0.1:{port}" in browser.refused
            return *noted, said
        finally:
            await browser.close()
            server.close()

    elsewhere, writes, said = asyncio.run(use())
    assert said == ["refused"] * 3
    assert set(elsewhere) == {"https://elsewhere.example/pixel.png", "http://localhost:1/"}
    assert writes == ["POST /add", "GET /logout"]
    assert reached == [], "a redirect to another port of the same host is refused by the proxy"
    assert read_rows(str(database))["goods"] == Counter()


async def adopted(folder: Folder, site: Site, **limits: int) -> TaskSet:
    def silent(*_: Any) -> None:
        """No bars."""

    await adopt.crawl(folder, site, max_pages=limits.get("pages", 20), max_depth=3, report=silent)
    adopt.compose(folder, site, max_tasks=limits.get("tasks", 24))
    await adopt.prove(folder, site, num_sessions=2, report=silent)
    adopt.write_source(folder, site)
    return folder.read("tasks.json", TaskSet)


@pytest.mark.slow
def test_a_shop_is_adopted_and_its_source_keeps_what_sources_promise(shop: tuple[str, Path], tmp_path: Path):
    from pipelines.plugins.conformance import check

    folder, site = Folder(tmp_path / "made"), Site(name="adoptedshop", origin=shop[0], delay_s=0)
    made = asyncio.run(adopted(folder, site))
    pages, num_changed = pages_of(folder, site)
    assert "/goods/3" not in pages, "robots.txt forbids it"
    assert not [key for key in pages if key.startswith(("/logout", "/visitor"))] and num_changed
    proof = adopt.read_summary(folder)["proof"]
    assert proof["sound"] == len(made.tasks) >= 0.9 * proof["played"]
    assert {kept.task.family for kept in made.tasks} >= {"open-link", "read-value", "search", "toggle", "choose-option"}
    again = asyncio.run(adopted(folder, site))
    assert again == made and adopt.read_summary(folder)["proof"]["s"] < 5, "nothing is played twice"
    problems = [each for each in check(f"{folder.path('source.py')}:SOURCE", tmp_path, (), num_seeds=1) if each.problem]
    assert problems == []


@pytest.mark.slow
def test_forms_are_filled_in_where_the_site_may_be_written_to(shop: tuple[str, Path], tmp_path: Path):
    import sys

    origin, database = shop
    reset = (sys.executable, "-c", f"import sqlite3; c = sqlite3.connect({str(database)!r}); c.execute('delete from goods'); c.commit()")
    site = Site(name="shop", origin=origin, start="/add", allow_writes=True, reset=reset, database=str(database), delay_s=0)
    made = asyncio.run(adopted(Folder(tmp_path / "made"), site, pages=1, tasks=6))
    forms = [kept.task for kept in made.tasks if kept.task.family == "fill-form"]
    assert forms and all([each.kind for each in task.checks] == ["request", "row"] for task in forms)


@pytest.mark.slow
def test_a_log_in_is_kept_and_its_password_is_not(guarded: tuple[str, Path], tmp_path: Path):
    folder, site = Folder(tmp_path / "made"), Site(name="shop", origin=guarded[0], has_login=True, delay_s=0)
    with pytest.raises(SandboxError, match="asks for the password again"):
        asyncio.run(log_in(folder, site, "/login", "ann", "wrong"))
    asyncio.run(log_in(folder, site, "/login", "ann", "secret"))
    assert folder.login.stat().st_mode & 0o077 == 0
    assert "secret" not in json.dumps(json.loads(folder.login.read_text()))

    async def crawl() -> set[str]:
        await adopt.crawl(folder, site, max_pages=3, max_depth=1, report=lambda *_: None)
        return set(pages_of(folder, site)[0])

    assert "/login" not in asyncio.run(crawl()) and (tmp_path / "made" / "crawl.jsonl").exists()
