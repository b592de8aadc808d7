"""Adopting a site: pages become tasks, what is ambiguous is dropped, oracles prove the rest, and nothing leaves the site."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest

from sandbox.actions import Navigate
from sandbox.adopting import adopt, checks, window
from sandbox.adopting.checks import added, holds, primary_keys, read_rows
from sandbox.adopting.compose import Composer
from sandbox.adopting.crawl import Crawler, is_alike, new_view, pages_of, same_in_both, shape_of, usable_buttons
from sandbox.adopting.login import log_in
from sandbox.adopting.proof import row_check, session_task
from sandbox.adopting.records import (
    PASSWORD,
    AdoptedTask,
    AnswerCheck,
    Folder,
    Locator,
    Look,
    RequestCheck,
    RowCheck,
    ShownCheck,
    Site,
    StateCheck,
    Step,
    TaskSet,
    UrlCheck,
    View,
    Visit,
    is_leaving,
    is_of_date,
    origin_of,
    page_key,
)
from sandbox.adopting.session import AdoptedSession, run_reset
from sandbox.adopting.site_browser import SiteBrowser, shared_browser
from sandbox.adopting.source import EDGES, adopted_source, kept_tasks, split_of
from sandbox.adopting.traffic import Sent
from sandbox.adopting.values import WORDS, samples, shaped, value_of, vocabulary
from sandbox.browser.page import WebPage
from sandbox.tasks.task import Split
from tests.sandbox import adopted_office
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


def test_addresses_keep_what_is_encoded_in_them_and_malformed_ones_are_nothing():
    for path in ("/s?tag=C%2B%2B", "/s?c=%23fff", "/s?q=a%26b", "/s?q=two+words"):
        assert page_key(f"http://h{path}") == path == page_key(f"http://h{page_key(path)}")
    for url in ("http://h:99999/x", "http://[x"):
        assert (origin_of(url), page_key(url), is_leaving(url)) == ("", "", True)
    tasks, dropped = composed(
        home=look("/", links=[{**link("Odd", "/odd"), "url": "http://[x"}, link("Goods", "/goods")]), goods=look("/goods")
    )
    assert {task.checks for task in tasks if task.family == "open-link"} == {(UrlCheck(key="/goods"),)}
    assert dropped["a link to what was not crawled"] == 1


def check_holds(check: Any, url: str = f"{ORIGIN}/", sent: Sequence[Sent] = (), is_form_shown: bool = False) -> bool:
    async def evaluate(expression: str) -> bool:
        return is_form_shown

    return asyncio.run(holds(check, origin=ORIGIN, url=url, answer=None, sent=sent, evaluate=evaluate, new_rows=dict))


def test_a_page_of_another_site_is_not_the_page():
    assert check_holds(UrlCheck(key="/"))
    assert not check_holds(UrlCheck(key="/"), "chrome-error://chromewebdata/")
    assert not check_holds(UrlCheck(key="/"), "http://elsewhere.example/")


def test_a_form_that_is_shown_again_was_refused():
    check = RequestCheck(method="POST", path="/add", fields={"title": "x"})
    assert check_holds(check, sent=[Sent("POST", "/add", {"title": "x"}, 303)], is_form_shown=True)
    assert check_holds(check, sent=[Sent("POST", "/add", {"title": "x"}, 200)])
    assert not check_holds(check, sent=[Sent("POST", "/add", {"title": "x"}, 200)], is_form_shown=True)
    assert not check_holds(check, sent=[Sent("POST", "/add", {"title": "x"}, 500)])


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


def press(name: str, **more: Any) -> dict[str, Any]:
    return {"at": {"tag": "button", "name": name}, "top": 5, **more}


def test_buttons_are_tasks_where_what_they_did_can_be_verified():
    dialog = {"kind": "dialog", "name": "Write an order"}
    presses = [press("New", shows=dialog), press("Stock", opens=f"{ORIGIN}/stock"), press("Idle"), press("Save", is_refused=True)]
    presses += [press("Twice", shows=dialog), press("Gone", shows=dialog), press("Far", opens=f"{ORIGIN}/far")]
    buttons = [{"at": each["at"], "top": 5} for each in presses if each["at"]["name"] != "Gone"]
    home = look("/", presses=presses, buttons=buttons, links=[link("Twice", "/stock")])
    tasks, dropped = composed(home=home, stock=look("/stock"))
    found = {task.instruction: task.checks for task in tasks if task.family == "press-button"}
    assert found == {'Press "New".': (ShownCheck(view=View(**dialog), page="/"),), 'Press "Stock".': (UrlCheck(key="/stock"),)}
    assert dropped["a button that would write"] == dropped["a button that changes nothing that is verified"] == 1
    assert dropped["a button without a name of its own"] == 2 and dropped["a button to what was not crawled"] == 1


def test_buttons_that_destroy_are_not_tried():
    names = ("Delete all", "Log out", "Sign Out", "Drop database", "New order")
    page = look("/", buttons=[{"at": {"tag": "button", "name": name}, "top": 5} for name in names])
    assert [each.at.name for each in usable_buttons(page)] == ["New order"]


def test_a_page_is_alike_where_the_same_can_be_done_on_it():
    here = look("/", links=[link("A", "/a")], toggles=[{**press("More"), "state": "false", "kind": "expand"}])
    assert is_alike(here, look("/", links=[link("A", "/a", top=90)], toggles=[{**press("More"), "state": "false", "kind": "expand"}]))
    assert not is_alike(here, look("/", links=[link("A", "/a")], toggles=[{**press("More"), "state": "true", "kind": "expand"}]))
    assert not is_alike(here, look("/", toggles=[{**press("More"), "state": "false", "kind": "expand"}]))


def test_what_a_click_brought_up_is_a_dialog_before_a_heading():
    views = [{"kind": "heading", "name": "Orders"}, {"kind": "heading", "name": "New"}, {"kind": "dialog", "name": "Write"}]
    before, after = look("/", views=views[:1]), look("/", views=views)
    assert new_view(before, after) == View(kind="dialog", name="Write")
    assert new_view(after, before) is None


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


def test_the_name_of_what_changed_is_taken():
    home = look("/", links=[link("More", "/v/1"), link("More", "/about")], facts=[{"label": "Now", "value": cell("1")}])
    again = look("/", links=[link("More", "/v/2"), link("More", "/about")], facts=[{"label": "Now", "value": cell("1")}] * 2)
    assert same_in_both(home, again).links == ()
    rows = [[cell("Kettle"), cell("34")], [cell("Kettle"), cell("35")], [cell("Chair"), cell("9")], [cell("Shelf"), cell("8")]]
    later = [rows[0], [cell("Kettle"), cell("36")], *rows[2:]]
    first, second = (look("/", tables=[{"columns": ["Name", "Price"], "rows": each}]) for each in (rows, later))
    tasks, dropped = composed(home=same_in_both(first, second))
    assert tasks == [] and dropped["a table whose rows have no name"] == 1
    cut = look("/", tables=[{"columns": ["Name", "Price"], "rows": rows[1:], "is_cut": True}])
    assert composed(home=cut)[1]["a table with more rows than were read"] == 1


def crawler(folder: Folder) -> Crawler:
    return Crawler(folder, SITE, SiteBrowser(SITE), max_pages=5, max_depth=1, on_page=lambda *_: None)


def test_a_visit_that_may_go_well_the_next_time_is_not_kept(tmp_path: Path):
    folder = Folder(tmp_path)
    crawling = crawler(folder)
    for why_not in ("answers with status 404", "answers with status 502", "did not load: refused", "is application/pdf"):
        crawling._keep(Visit(url=why_not, depth=1, visit=1, why_not=why_not))
    assert [visit.why_not for visit in folder.lines("crawl.jsonl", Visit)] == ["answers with status 404", "is application/pdf"]
    with pytest.raises(SandboxError, match="pages in a row failed"):
        for number in range(5):
            crawling._keep(Visit(url=f"u{number}", depth=1, visit=1, why_not="did not load: refused"))


def nowhere() -> str:
    """An origin where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_application_that_was_not_up_is_crawled_when_it_is(tmp_path: Path):
    folder = Folder(tmp_path)

    async def crawl(site: Site) -> Counter[str]:
        browser = SiteBrowser(site)
        try:
            return await Crawler(folder, site, browser, max_pages=1, max_depth=0, on_page=lambda *_: None).run()
        finally:
            await browser.close()

    with pytest.raises(SandboxError, match="Is the application running there"):
        asyncio.run(crawl(SITE.model_copy(update={"origin": nowhere()})))
    assert list(folder.lines("crawl.jsonl", Visit)) == []
    for origin, _ in served(tmp_path):
        assert asyncio.run(crawl(SITE.model_copy(update={"origin": origin, "delay_s": 0}))) == {"used": 1}


def test_a_row_is_known_by_its_fields_not_by_chance():
    steps = tuple(
        Step(do="type", key="/add", at=Locator(tag="input", name=n, key=n), value=v) for n, v in (("title", "x"), ("amount", "7"))
    )
    task = AdoptedTask(family="fill-form", instruction="…", start="/add", checks=(), steps=steps)
    row = (("id", "7"), ("rank", "7"), ("title", "x"), ("amount", "7"))
    found = row_check(task, {"goods": Counter([row])}, {"goods": frozenset({"id"})})
    assert found == RowCheck(table="goods", cells={"title": "x", "amount": "7"})


def test_large_tables_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sqlite3
    from contextlib import closing

    monkeypatch.setattr(checks, "MAX_ROWS", 2)
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as con, con:
        con.execute("create table small (a)")
        con.execute("create table large (a)")
        con.execute("insert into large values (1), (2), (3)")
    assert set(read_rows(str(path))) == {"small"}


def test_a_reset_may_leave_the_application_running_and_fails_with_what_it_says(shop: tuple[str, Path], tmp_path: Path):
    site = SITE.model_copy(update={"origin": shop[0], "reset_folder": str(tmp_path)})
    begun_s = time.monotonic()
    asyncio.run(run_reset(site.model_copy(update={"reset": ("sh", "-c", "echo done > done.txt; sleep 3 &")})))
    assert (tmp_path / "done.txt").exists() and time.monotonic() - begun_s < 2.5
    with pytest.raises(SandboxError, match="ended with status 3: no seed"):
        asyncio.run(run_reset(site.model_copy(update={"reset": ("sh", "-c", "echo no seed; exit 3")})))
    with pytest.raises(SandboxError, match="could not be started"):
        asyncio.run(run_reset(site.model_copy(update={"reset": ("no-such-command",)})))


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


def test_what_is_far_down_a_page_has_steps_to_scroll_to_it():
    near, far = (
        composed(home=look("/", facts=[{"label": "Owner", "value": {**cell("Edda Falk"), "top": top}}]))[0][0] for top in (20, 1450)
    )
    assert far.max_steps == near.max_steps + 8 and far.task_id == near.task_id


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


@pytest.mark.parametrize("split", list(Split))
def test_a_family_of_one_instance_is_usable_or_left_out(tmp_path: Path, split: Split):
    one = next(task for task in map(reading, range(500)) if split_of(SITE, task) is split)
    made = kept_tasks(SITE, [one])
    if split in (Split.REPORT, Split.HOLDOUT):
        assert made.tasks == ()
        return
    Folder(tmp_path).write("tasks.json", made)
    source = adopted_source(tmp_path)
    (task,) = source.load_tasks().values()
    assert source.description is not None and source.description(task) == one.instruction
    assert task.version != "1"


def test_a_missing_or_broken_task_set_is_reported(tmp_path: Path):
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


def test_rows_that_were_added_are_distinguished_from_those_that_were_there(shop: tuple[str, Path]):
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
    row = row_check(task, added(before, read_rows(str(database))), primary_keys(str(database)))
    assert row is not None and (row.table, row.cells) == ("goods", {"title": "copper 7", "amount": "12"})
    assert row_check(task, added(before, before), {}) is None
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


@pytest.mark.slow
def test_a_page_that_the_server_has_not_sent_yet_is_waited_for(shop: tuple[str, Path], monkeypatch: pytest.MonkeyPatch):
    assert window.SETTINGS.web is not None
    monkeypatch.setattr(window, "SETTINGS", replace(window.SETTINGS, web=replace(window.SETTINGS.web, settle_limit_s=0.3)))

    async def use() -> str:
        browser = SiteBrowser(Site(name="shop", origin=shop[0]))
        try:
            opened = await browser.open()
            assert await opened.go(f"{shop[0]}/about", 20_000) == ""
            async with opened._page.expect_request("**/slow"):
                await opened.evaluate("(() => { location.href = '/slow'; })()")
            await opened.rest_of_loading()
            return page_key(opened.full_url)
        finally:
            await browser.close()

    assert asyncio.run(use()) == "/slow"


async def adopted(folder: Folder, site: Site, **limits: int) -> TaskSet:
    def silent(*_: Any) -> None:
        """No bars."""

    await adopt.crawl(folder, site, max_pages=limits.get("pages", 20), max_depth=3, report=silent)
    adopt.compose(folder, site, max_tasks=limits.get("tasks", 24))
    await adopt.prove(folder, site, num_sessions=2, report=silent)
    adopt.write_source(folder, site)
    return folder.read("tasks.json", TaskSet)


@pytest.mark.slow
@pytest.mark.timeout(900)
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
    assert again == made and adopt.read_summary(folder)["proof"]["s"] < proof["s"] + 5, "nothing is played twice"
    problems = [each for each in check(f"{folder.path('source.py')}:SOURCE", tmp_path, (), num_seeds=1) if each.problem]
    assert problems == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_page_that_scripts_draw_is_adopted_by_its_buttons(shop: tuple[str, Path], tmp_path: Path):
    folder, site = Folder(tmp_path / "made"), Site(name="desk", origin=shop[0], start="/desk", delay_s=0)
    made = asyncio.run(adopted(folder, site, pages=4, tasks=60))
    pages, _ = pages_of(folder, site)
    assert set(pages) == {"/desk", "/desk/stock"}, "a button leads to the second"
    outcomes = {
        press.at.name: (press.opens and page_key(press.opens), press.shows and press.shows.name) for press in pages["/desk"].presses
    }
    assert outcomes == {
        "Hide the menu": ("", None),
        "Stock levels": ("/desk/stock", None),
        "New order": ("", "Write an order"),
        "Help": ("", "How to order"),
        "Empty the basket": ("", None),
    }
    assert read_rows(str(shop[1]))["goods"] == Counter(), "a button that writes is refused"
    candidates, sound = folder.read("candidates.json", adopt.Candidates).tasks, adopt.sound_tasks(folder)
    assert len(sound) >= 0.9 * len(candidates), adopt.read_summary(folder)["proof"]
    assert instructions(sound, "press-button") == {'Press "Stock levels".', 'Press "New order".', 'Press "Help".'}
    answers = {task.answer for task in sound if task.family == "read-value"}
    assert {"12.10", "Gunnar Lind", "1991", "41"} <= answers
    assert instructions(sound, "search"), "a field named action hides no address"
    assert all('the field "Find"' in said for said in instructions(sound, "fill-field")), "a submit button is not a field of its label"
    assert instructions(sound, "fill-field")
    assert made.tasks


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_page_sends_by_itself_is_named_and_what_is_covered_is_not_there(shop: tuple[str, Path], tmp_path: Path):
    folder, site = Folder(tmp_path / "made"), Site(name="notes", origin=shop[0], start="/notes", delay_s=0)
    found = asyncio.run(adopt.crawl(folder, site, max_pages=1, max_depth=0, report=lambda *_: None))
    assert (found["pages_that_write_by_themselves"], found["such_writes"]) == (1, ["POST /add"])
    (page,) = pages_of(folder, site)[0].values()
    assert page.links == () and [button.at.name for button in page.buttons] == ["Go on"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_application_that_is_down_or_answers_otherwise_is_no_failure_of_the_agent(shop: tuple[str, Path], tmp_path: Path):
    async def begin(origin: str, path: str) -> str:
        site = Site(name="shop", origin=origin)
        one = reading(1).model_copy(update={"start": path})
        session = AdoptedSession(Folder(tmp_path), site, lambda task, seed: one)
        try:
            await session.reset(session_task(site, one), 0)
            transition = await session.step(Navigate(url="http://["))
            return str(transition.observation.instruction)
        finally:
            await session.close()
            await shared_browser(site, None).close()

    assert asyncio.run(begin(shop[0], "/about")) == reading(1).instruction
    with pytest.raises(SandboxError, match="did not open: it answered 404"):
        asyncio.run(begin(shop[0], "/nowhere"))
    with pytest.raises(SandboxError, match="did not open: it answered 50"):
        asyncio.run(begin(nowhere(), "/about"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forms_are_filled_in_where_the_site_may_be_written_to(shop: tuple[str, Path], tmp_path: Path):
    import sys

    origin, database = shop
    reset = (sys.executable, "-c", f"import sqlite3; c = sqlite3.connect({str(database)!r}); c.execute('delete from goods'); c.commit()")
    site = Site(name="shop", origin=origin, start="/add", allow_writes=True, reset=reset, database=str(database), delay_s=0)
    made = asyncio.run(adopted(Folder(tmp_path / "made"), site, pages=1, tasks=6))
    forms = [kept.task for kept in made.tasks if kept.task.family == "fill-form"]
    assert forms and all([each.kind for each in task.checks] == ["request", "row"] for task in forms)


@pytest.mark.slow
@pytest.mark.timeout(600)
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_log_in_by_http_authentication_needs_a_cookie(guarded: tuple[str, Path], tmp_path: Path):
    folder, site = Folder(tmp_path / "made"), Site(name="shop", origin=guarded[0], has_login=True, delay_s=0)
    with pytest.raises(SandboxError, match="answers with status 401"):
        asyncio.run(log_in(folder, site, "/http-login", "ann", "wrong"))
    with pytest.raises(SandboxError, match="sets no cookie"):
        asyncio.run(log_in(folder, site, "/http-login-only", "ann", "secret"))
    assert not folder.login.exists()
    asyncio.run(log_in(folder, site, "/http-login", "ann", "secret"))
    kept = folder.login.read_text()
    assert [cookie["name"] for cookie in json.loads(kept)["cookies"]] == ["who"] and "secret" not in kept


def test_a_sort_is_by_the_head_of_a_column_and_says_its_order():
    rows = [[cell("Chair")], [cell("kettle")], [cell("Shelf")]]
    head = {**link("Name", "/goods?o=name"), "is_head": True}
    sorted_ = look("/goods?o=name", tables=[{"columns": ["Name"], "rows": rows}])
    back = look("/goods?o=-name", tables=[{"columns": ["Name"], "rows": rows[::-1]}], links=[head])
    tasks, _ = composed(goods=look("/goods", links=[head]), sorted=sorted_, back=back)
    assert instructions(tasks, "sort") == {'Sort the list by "Name", in ascending order.'}
    tasks, _ = composed(goods=look("/goods?o=name", links=[link("Goods", "/goods")]), other=look("/goods"))
    assert not instructions(tasks, "sort") and instructions(tasks, "open-link")


def test_links_of_one_name_are_distinguished_by_their_row_or_part():
    links = [{**link("Yes", "/goods?a=1"), "group": "By lent"}, {**link("Yes", "/goods?b=1"), "group": "By broken"}, link("Yes", "/goods")]
    rows = [{**link("Edit", f"/goods/{name}"), "group": "Kettle", "is_in_row": True} for name in ("1", "2")]
    rows += [{**link("Edit", "/goods/3"), "group": "Chair", "is_in_row": True}]
    others = {f"p{number}": look(path) for number, path in enumerate(["/goods?a=1", "/goods?b=1", "/goods/1", "/goods/2", "/goods/3"])}
    tasks, dropped = composed(home=look("/goods", links=[*links, *rows]), **others)
    said = {task.instruction: task.checks for task in tasks if task.start == "/goods"}
    assert said == {
        'Under "By lent", click "Yes".': (UrlCheck(key="/goods?a=1"),),
        'Under "By broken", click "Yes".': (UrlCheck(key="/goods?b=1"),),
        'In the row "Chair", click "Edit".': (UrlCheck(key="/goods/3"),),
    }
    assert dropped["several links of one name lead to different pages"] == 0


def test_the_same_words_on_pages_with_other_headings_name_the_heading():
    def searched(path: str, heading: str) -> Look:
        form = {"method": "get", "action": ORIGIN + path, "submit": None}
        return look(path, fields=[field("Q", form=0)], forms=[form]).model_copy(update={"heading": heading})

    tasks, dropped = composed(goods=searched("/goods", "Goods"), orders=searched("/orders", "Orders"), more=searched("/more", "Orders"))
    assert {task.start for task in tasks if task.family == "search"} == {"/goods"}
    assert all(said.startswith('On the page "Goods": Search for "') for said in instructions(tasks, "search"))
    assert dropped["the same instruction with another verifier"] == 8


def test_a_date_names_no_row_and_a_code_does():
    rows = [[cell(code), cell(day), cell(sum_)] for code, day, sum_ in (("A1", "x", "1"), ("A2", "y", "2"))]
    assert composed(home=look("/", tables=[{"columns": ["No", "Day", "Sum"], "rows": rows}]))[0] == []
    rows = [[cell(day), cell(code), cell(sum_)] for day, code, sum_ in (("May 26, 2026", "A1033", "8"), ("June 2, 2026", "A1034", "9"))]
    tasks, _ = composed(home=look("/", tables=[{"columns": ["Day", "No", "Sum"], "rows": rows}]))
    assert {task.instruction.split("?")[0] for task in tasks} == {
        f'What is "{what}" of "{code}"' for what in ("Day", "Sum") for code in ("A1033", "A1034")
    }
    assert not any(is_of_date(text) for text in ("May", "marble 3 cm", "12.50", "3/4", "Model 2026"))
    assert all(is_of_date(text) for text in ("Sept. 29, 2026", "29 September", "2026-09-29", "29.9.2026", "9/29/26"))


def test_values_have_the_shape_and_the_length_that_a_field_takes():
    dice = Random(3)
    for like, shape in (
        ("2026-03-04", r"2026-\d\d-\d\d"),
        ("09:30", r"\d\d:\d\d"),
        ("A1033", r"A\d{4}"),
        ("12.50", r"\d+\.\d\d"),
        ("ann@example.org", r"\w+@example\.org"),
    ):
        assert re.fullmatch(shape, shaped(like, dice)), like
    assert shaped("Copper kettle", dice) == shaped("", dice) == ""
    assert all(len(value_of("text", dice, 6)) <= 6 for _ in range(20))
    known = look("/1", fields=[field("Due", state="2026-03-04")])
    tasks, _ = composed(add=look("/add", fields=[field("Due"), field("Code", max_length=4)]), known=known)
    typed = {task.steps[0].at.name: task.steps[0].value for task in tasks if task.start == "/add"}
    assert re.fullmatch(r"2026-\d\d-\d\d", typed["Due"]) and len(typed.get("Code", "")) <= 4
    table = {"columns": ["DUE", "NO", "NOTE"], "rows": [[cell("Sept. 29, 2026"), cell("A12"), cell("x")]] * 2}
    assert samples([look("/", tables=[table])]) == {"due": "2026-01-01", "no": "A12"}


def test_words_are_those_of_the_content_not_of_the_menu():
    menu = [link("Settings", "/settings"), link("Remove", "/x")]
    tables = [{"columns": ["Name"], "rows": [[cell("Copper kettle")], [cell("Authentication1 unbelievably")]]}]
    pages = [look(f"/{number}", links=menu, tables=tables if number == 3 else []) for number in range(5)]
    assert set(vocabulary(pages)) - set(WORDS) == {"Copper", "kettle", "unbelievably"}, "a long word is not cut"


def test_a_state_is_one_of_the_page_that_was_asked_for():
    tasks, _ = composed(goods=look("/goods", fields=[field("Lent", type="checkbox", state="false")]))
    (check,) = tasks[0].checks
    assert isinstance(check, StateCheck) and check.page == "/goods"
    assert tasks[0].goal == [check.model_dump(mode="json", exclude={"page"})], "splits go by what is done"

    async def evaluate(expression: str) -> Any:
        return {"state": "true"}

    def is_held(path: str) -> bool:
        return asyncio.run(holds(check, origin=ORIGIN, url=ORIGIN + path, answer=None, sent=(), evaluate=evaluate, new_rows=dict))

    assert is_held("/goods") and not is_held("/other")


def test_forms_name_the_button_that_is_pressed_and_choose_what_they_require():
    named = {"tag": "input", "key": "_save"}
    submits = [
        {"at": {**named, "name": name}, "key": key, "value": name} for name, key in (("Save", "_save"), ("Save and add another", "_more"))
    ]
    submits += [{"at": {**named, "name": "Delete"}, "key": "_delete", "value": "Delete"}]
    form = {"method": "post", "action": f"{ORIGIN}/add", "submit": submits[0]["at"], "submits": submits}
    room = field("Room", type="select", form=0, is_required=True, state="", options=["Choose", "Hall"], values=["", "1"])
    finder = field("Filter", form=0, is_sent=False)
    page = look("/add", fields=[field("Title", form=0), finder, room | {"options": ["-", "Hall"]}], forms=[form])
    tasks, _ = composed(SITE.model_copy(update={"allow_writes": True}), home=page)
    forms = [task for task in tasks if task.family == "fill-form"]
    pressed = {}
    for task in forms:
        (check,) = task.checks
        assert isinstance(check, RequestCheck) and check.fields["room"] == "1" and '"Room" is "Hall"' in task.instruction
        pressed[task.instruction.rpartition("press ")[2]] = set(check.fields)
    assert pressed == {'"Save".': {"title", "room", "_save"}, '"Save and add another".': {"title", "room", "_more"}}
    hiding = page.model_copy(update={"forms": (page.forms[0].model_copy(update={"hides_required": True}),)})
    _, dropped = composed(SITE.model_copy(update={"allow_writes": True}), home=hiding)
    assert dropped["a form that hides what it requires"] == 1


def test_pages_of_one_shape_wait_for_those_of_others():
    assert shape_of("/goods/12/edit") == shape_of("/goods/7/edit") != shape_of("/goods/12")
    assert shape_of("/goods?b=2&a=1") == shape_of("/goods?a=3&b=4") != shape_of("/goods?a=3")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_office_whose_reset_forgets_the_log_in_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys

    database = tmp_path / "office.db"
    server, office = adopted_office.serve(database)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    reset = (sys.executable, "-c", f"import sqlite3; sqlite3.connect({str(database)!r}).executescript({adopted_office.SEED!r})")
    folder = Folder(tmp_path / "made")
    site = Site(
        name="office",
        origin=f"http://127.0.0.1:{server.server_address[1]}",
        start="/items",
        allow_writes=True,
        reset=reset,
        database=str(database),
        has_login=True,
        login_path="/login",
        user="ann",
        delay_s=0,
    )

    async def make() -> None:
        await log_in(folder, site, "/login", "ann", "secret")
        await run_reset(site)
        await adopt.crawl(folder, site, max_pages=9, max_depth=2, report=lambda *_: None)
        adopt.compose(folder, site, max_tasks=500)
        made = folder.read("candidates.json", adopt.Candidates)
        more = next(task for task in made.tasks if task.instruction.endswith('press "Save and add another".'))
        sort = next(task for task in made.tasks if task.family == "sort")
        folder.write("candidates.json", made.model_copy(update={"tasks": (more, sort)}))
        seen.extend(made.tasks)
        await adopt.prove(folder, site, num_sessions=1, report=lambda *_: None)

    async def read() -> list[str]:
        """A site that is only read forgets the log-in, too."""
        other, only_read = Folder(tmp_path / "read"), site.model_copy(update={"allow_writes": False, "reset": (), "database": None})
        await log_in(other, only_read, "/login", "ann", "secret")
        await run_reset(site)
        await adopt.crawl(other, only_read, max_pages=1, max_depth=0, report=lambda *_: None)
        return list(pages_of(other, only_read)[0])

    seen: list[AdoptedTask] = []
    try:
        monkeypatch.delenv(PASSWORD, raising=False)
        with pytest.raises(ConfigError, match=PASSWORD):
            asyncio.run(make())
        monkeypatch.setenv(PASSWORD, "secret")
        asyncio.run(make())
        assert asyncio.run(read()) == ["/items"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert adopt.read_summary(folder)["proof"]["sound"] == 2, adopt.read_summary(folder)["proof"]
    assert office.num_log_ins > 4, "each play that a reset precedes needs a log-in"
    assert "secret" not in "".join(path.read_text() for path in folder.root.iterdir() if path.suffix != ".lock")
    said = {task.instruction for task in seen}
    assert {'Under "By lent", click "Yes".', 'In the row "Rooms", click "Add".', 'Sort the list by "Code", in ascending order.'} <= said
    assert not [each for each in said if "token" in each or "Delete" in each], "tokens are no content, and nothing is deleted"
    assert 'What is "Title" of "A101"? Answer with the text on the page.' in said
    assert not [each for each in said if '"Due" of' in each], "a column that one has to scroll to is not there"
    assert not [each for each in said if 'What is "Items"' in each or 'Open "Code"' in each], (
        "navigation is no content, and sorting opens nothing"
    )
