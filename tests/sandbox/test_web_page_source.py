"""Any web page by its address as a task source: a real application with a database, in a process beside us, and in a file of YAML."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.actions import Action, Click, Finished, Navigate, TypeText
from sandbox.adapters.page_view import PageView
from sandbox.adapters.web_page_file import source_of_file
from sandbox.adapters.web_page_session import WebPageSession
from sandbox.adapters.web_page_source import web_page_source
from sandbox.adapters.web_page_task import PageInstance, Start, WebPageTask
from sandbox.browser.page_session import OpenPage
from sandbox.session import Verdict
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from sandbox.turns import turn_at
from tests.sandbox.notes_app import Notes, running
from tests.sandbox.one_session import in_one_browser
from tests.sandbox.own_source import ADAPTERS, write_files_of
from warehouse.core.conformance import problems
from warehouse.core.errors import ConfigError, SandboxBusy, SandboxError, TaskError

WORDS = ("tea", "milk", "rice", "salt", "oil", "figs", "bread", "eggs", "soap", "wine", "leek", "plum")
Use = Callable[[WebPageSession], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def port(notes: Notes) -> Iterator[int]:
    with running(notes) as port:
        yield port


def draw(dice: random.Random) -> dict[str, Any]:
    return {"text": dice.choice(WORDS), "number": dice.randrange(1000)}


def has_note(page: PageView) -> bool:
    wanted = f"{page.facts['text']} {page.facts['number']}"
    return [row["text"] for row in page.rows("SELECT text FROM notes")] == ["kept", wanted]


def add(page: PageView) -> Action:
    wanted = f"{page.facts['text']} {page.facts['number']}"
    if wanted in page.text:
        return Finished()
    (field,) = page.query("#text")
    if field.value == wanted:
        return page.click("#add")
    return TypeText(text=wanted) if page.actions else page.click("#text")


def task_of(notes: Notes, port: int, **more: Any) -> WebPageTask:
    def reset(start: Start) -> None:
        notes.run("DELETE FROM notes")
        notes.run("INSERT INTO notes (text) VALUES ('kept')")

    given: dict[str, Any] = {
        "name": "add",
        "url": f"http://localhost:{port}/?about={{text}}",
        "instruction": "Add the note {text} {number}.",
        "verifier": has_note,
        "facts": draw,
        "reset": reset,
        "oracle": add,
        "database": notes.path,
        "max_steps": 6,
    }
    return WebPageTask(**(given | more))


@pytest.fixture(scope="module")
def used() -> Iterator[tuple[Callable[[Use], Any], dict[str, TaskSource]]]:
    """Runs `use(session)`, whose task source is the one that the dict has as `now`."""
    current: dict[str, TaskSource] = {}

    def make(open_page: OpenPage) -> WebPageSession:
        session: WebPageSession = WebPageSession(open_page, lambda task, seed: current["now"].instance(task, seed))
        return session

    with in_one_browser(make) as use:
        yield use, current


def played(used: Any, source: TaskSource, play: Callable[[WebPageSession, Task], Coroutine[Any, Any, Any]]) -> Any:
    use, current = used
    current["now"] = source
    (task,) = source.load_tasks().values()
    return use(lambda session: play(session, task))


def test_a_task_is_played_at_its_address_and_judged_by_the_database(used: Any, notes: Notes, port: int) -> None:
    source = web_page_source("notes", [task_of(notes, port)])

    async def play(session: WebPageSession, task: Task) -> None:
        seed = task.seeds("train", 1)[0]
        seen = await session.reset(task, seed)
        facts = source.facts(task, seed)
        assert facts is not None and seen.instruction == facts.instruction and seen.screenshot is not None
        assert (seen.width_px, seen.height_px) == (800, 640) and seen.url.startswith(f"http://localhost:{port}/?about=")
        assert "Add" in [each.text for each in seen.elements] and not (await session.evaluate()).success
        for _ in range(4):
            action = await session.oracle_action()
            assert action is not None
            last = await session.step(action)
        assert (last.terminated, last.reward) == (True, 1.0) and (await session.evaluate()).success
        assert session.environment.startswith("web page 1; ")
        again = await session.reset(task, seed)
        assert again.screenshot_id == seen.screenshot_id, "the application was put back"
        wrong = await session.step(Finished())
        assert (wrong.terminated, wrong.reward) == (True, 0.0) and (await session.evaluate()).reasons == ("the verifier says no",)

    played(used, source, play)


def test_a_verifier_sees_the_page_its_requests_and_the_answer(used: Any, notes: Notes, port: int) -> None:
    seen: list[Any] = []

    def look(page: PageView) -> Verdict:
        seen[:] = [page.title, page.text, page.query("li, button"), page.requests, page.answer, page.url]
        return Verdict(origin="verifier", score=0.5, threshold=0.5, reasons=("half is enough",))

    source = web_page_source("notes", [task_of(notes, port, verifier=look)])

    async def play(session: WebPageSession, task: Task) -> None:
        first = await session.reset(task, 0)
        (delete,) = [each for each in first.elements if each.text == "x"]
        await session.step(Click(x=delete.x_px, y=delete.y_px))
        ended = await session.step(Finished(answer="done"))
        assert ended.reward == 1.0 and (await session.evaluate()).reasons == ("half is enough",)

    played(used, source, play)
    title, text, found, requests, answer, url = seen
    assert (title, answer) == ("Notes", "done") and "Add" in text and "0 notes, all of them short." in text
    assert [(each.tag, each.text, each.shown) for each in found] == [("button", "Add", True)] and found[0].attributes == {"id": "add"}
    assert [(each.method, each.kind, each.status) for each in requests] == [
        ("GET", "document", 200),
        ("DELETE", "fetch", 200),
        ("GET", "document", 200),
    ]
    assert url.startswith(f"http://localhost:{port}/")


def test_what_a_form_sent_is_among_the_requests(used: Any, notes: Notes, port: int) -> None:
    def sent_once(page: PageView) -> bool:
        forms = [each for each in page.requests if each.method == "POST"]
        return [(each.body, each.status) for each in forms] == [(f"text={page.facts['text']}+{page.facts['number']}", 303)]

    async def play(session: WebPageSession, task: Task) -> bool:
        await session.reset(task, 0)
        last = None
        while (action := await session.oracle_action()) is not None:
            last = await session.step(action)
            if last.terminated:
                break
        return last is not None and last.reward == 1.0

    assert played(used, web_page_source("notes", [task_of(notes, port, verifier=sent_once)]), play)


def test_the_page_reaches_its_own_application_and_no_other(used: Any, notes: Notes, port: int, tmp_path: Path) -> None:
    with running(Notes(tmp_path)) as other:

        async def play(session: WebPageSession, task: Task) -> None:
            await session.reset(task, 0)
            for elsewhere in (f"http://localhost:{other}/", f"http://127.0.0.1:{port}/", "http://example.org/", "file:///etc/passwd"):
                gone = await session.step(Navigate(url=elsewhere))
                assert "ignored" in gone.info and gone.observation.url.startswith(f"http://localhost:{port}/"), elsewhere

        played(used, web_page_source("notes", [task_of(notes, port)]), play)


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        (lambda page: page.rows("SELECT text FROM nowhere"), "verifier failed: OperationalError: no such table: nowhere"),
        (lambda page: page.rows("DELETE FROM notes"), "verifier failed: OperationalError: attempt to write a readonly database"),
        (lambda page: page.query("li["), "verifier failed: ValueError: 'li[' is not a CSS selector"),
        (lambda page: next(iter(())), "verifier failed: RuntimeError: StopIteration: "),
    ],
)
def test_a_verifier_that_fails_has_not_seen_it_solved(used: Any, notes: Notes, port: int, verifier: Any, reason: str) -> None:
    async def play(session: WebPageSession, task: Task) -> None:
        await session.reset(task, 0)
        assert (await session.step(Finished())).reward == 0.0
        assert (await session.evaluate()).reasons == (reason,)

    played(used, web_page_source("notes", [task_of(notes, port, verifier=verifier)]), play)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"verifier": lambda page: "yes"}, "returned 'yes': it returns True, False or a Verdict"),
        ({"reset": lambda start: 1 / 0}, "`reset` of add failed: ZeroDivisionError"),
        ({"url": "http://localhost:1/"}, "Nothing answers at localhost:1, where add is: start the application"),
        ({"url": "http://localhost:{port}/nowhere"}, "answered 404"),
    ],
)
def test_what_the_application_or_its_task_does_wrong_is_no_failure_of_the_agent(
    used: Any, notes: Notes, port: int, more: dict[str, Any], words: str
) -> None:
    more = more | {"url": more["url"].replace("{port}", str(port))} if "url" in more else more

    async def play(session: WebPageSession, task: Task) -> None:
        with pytest.raises(SandboxError, match=words):
            await session.reset(task, 0)
            await session.step(Finished())

    played(used, web_page_source("notes", [task_of(notes, port, **more)]), play)


def test_sessions_on_one_application_take_turns(used: Any, notes: Notes, port: int) -> None:
    task = task_of(notes, port)

    async def play(session: WebPageSession, stored: Task) -> None:
        await session.reset(stored, 0)
        with pytest.raises(SandboxBusy, match=f"Another session was at localhost:{port} .* set `is_shared`"):
            await turn_at("127.0.0.1", port, limit_s=0.2)
        await session.reset(stored, 1)  # its own turn ends with its episode
        await session._end_episode()
        (await turn_at("localhost", port)).release()

    played(used, web_page_source("notes", [task]), play)


@pytest.mark.parametrize(
    "url", ["ftp://host/", "localhost:80", "http:///x", "http://{host}/", "http://ann:secret@host/", "http://host:x/", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a page: write http:// or https:// and a host"):
        WebPageTask(name="a", url=url, instruction="", verifier=lambda page: True)


def test_tasks_of_a_source_draw_instances_by_split_or_none_does(notes: Notes, port: int) -> None:
    source = web_page_source("notes", [task_of(notes, port)])
    (task,) = source.load_tasks().values()
    by_split = {split: {source.facts(task, seed).content_id for seed in task.seeds(split, 20)} for split in ("train", "eval")}  # type: ignore[union-attr]
    assert by_split["train"].isdisjoint(by_split["eval"]) and len(by_split["train"]) > 10
    with pytest.raises(ConfigError, match="draw no `facts` and the others do"):
        web_page_source("notes", [task_of(notes, port), task_of(notes, port, name="one", facts=None)])
    with pytest.raises(ConfigError, match="two tasks of one name"):
        web_page_source("notes", [task_of(notes, port)] * 2)
    odd = web_page_source("notes", [task_of(notes, port, instruction="Add {nothing}.")])
    with pytest.raises(TaskError, match="cannot be filled with its facts"):
        odd.facts(next(iter(odd.load_tasks().values())), 0)
    elsewhere = web_page_source("notes", [task_of(notes, 81)])
    assert elsewhere.load_tasks() == source.load_tasks(), "the port is not what a task is"


@pytest.mark.parametrize(
    ("facts", "error"), [(json.loads, "TypeError"), (lambda _: {"n": float("inf")}, "ValueError"), (lambda _: {"n": object()}, "TypeError")]
)
def test_facts_that_cannot_be_drawn_are_said(facts: Any, error: str) -> None:
    task = WebPageTask(name="a", url="http://host/", instruction="i", verifier=lambda page: True, facts=facts)
    source = web_page_source("odd", [task])
    with pytest.raises(TaskError, match=f"`facts` of the task 'a' failed: {error}"):
        source.instance(source.load_tasks()["a"], 0)


@pytest.mark.parametrize("field", ["{text:>400000000}", "{text!r:*^1001}", "{text:>99999999999999999999}", "{text:{count}}"])
def test_a_field_that_would_be_filled_without_end_is_refused(field: str) -> None:
    facts = {"text": "tea", "count": 2000}
    task = WebPageTask(name="a", url="http://host/", instruction=field, verifier=lambda page: True, facts=lambda dice: facts)
    with pytest.raises(TaskError, match="a width of more than 1000"):
        _ = PageInstance(task=task, content=facts).instruction


@pytest.fixture
def file(notes: Notes, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = notes.path.parent
    write_files_of("adapters.md", folder, ADAPTERS)
    (folder / "shop.yaml").write_text((folder / "shop.yaml").read_text().replace("localhost:8000", f"localhost:{port}"))
    return folder / "shop.yaml"


def test_a_file_of_tasks_is_a_task_source(file: Path) -> None:
    SOURCES.use({"shop": "shop.yaml"}, file.parent)
    source = SOURCES["shop"]
    (task,) = source.load_tasks().values()
    assert (task.source, task.name, task.max_steps, source.licence) == ("shop", "add", 6, "MIT")
    assert source.has_oracle(task) and source is SOURCES["shop"]
    assert source.instance(task, 0).task.database == file.parent / "notes.sqlite"


@pytest.mark.slow
def test_a_file_of_tasks_keeps_what_sources_promise(file: Path) -> None:
    SOURCES.use({"shop": "shop.yaml"}, file.parent)
    assert problems(check_source(SOURCES["shop"])) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("tasks:", "jobs:"), "is not a file of tasks in web pages"),
        (("max_steps: 6", "max_steps: none"), "is not a file of tasks in web pages"),
        (("shop.py:has_note", "shop.py:nothing"), "has no 'nothing'"),
        (("shop.py:has_note", "has_note"), "expected module:function or path/to/file.py:function"),
        (("number: [1, 2, 3, 4, 5, 6, 7, 8]", "number: []"), "give each name at least one value"),
        (("shop.py:add", "shop.py:__name__"), "is a str: expected a function"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(file: Path, change: tuple[str, str], words: str) -> None:
    other = file.with_name("other.yaml")
    other.write_text(file.read_text().replace(*change))
    with pytest.raises(ConfigError, match=words):
        source_of_file(other)
