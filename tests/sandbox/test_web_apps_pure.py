"""What is known of web tasks without starting anything: maps, instances, splits, differences of state, how a page is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandbox.actions import Click, Finished, SelectOption
from sandbox.session import Element, Observation
from sandbox.tasks.hitting import on_element
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split, Task
from sandbox.tasks.web_apps.apps import APPS
from sandbox.tasks.web_apps.compose import instances
from sandbox.tasks.web_apps.drafts import row_split
from sandbox.tasks.web_apps.functions import load_map, path_of
from sandbox.tasks.web_apps.html import read_page
from sandbox.tasks.web_apps.install import install
from sandbox.tasks.web_apps.seeds import task_file, web_instance
from sandbox.tasks.web_apps.source import facts, load_tasks
from sandbox.tasks.web_apps.state import Change, State, difference, unmet
from sandbox.tasks.web_apps.tasks import plain
from warehouse.core.errors import ConfigError, TaskError, WebAppMissing

TASKS = load_tasks()


@pytest.mark.parametrize("name", APPS)
def test_a_map_says_what_an_application_can_do(name: str) -> None:
    found = load_map(APPS[name])
    assert {function.op for function in found.functions} >= {"insert", "update"}
    assert found.views and found.dropped and found.num_pages > len(found.functions)
    tables = APPS[name].tables
    assert all(function.table in tables and function.submit for function in found.functions)


FIRST = {(family.app, family.kind): name for name, family in reversed(task_file().tasks.items())}
"""A family of each kind over each application."""


@pytest.mark.parametrize("name", [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow) for name in TASKS])
def test_every_split_has_instances_of_its_own(name: str) -> None:
    task = TASKS[name]
    reported: dict[Split, set[str]] = {}
    for split in Split:
        found = [web_instance(task, seed) for seed in task.seeds(split, 10)]
        reported[split] = {instance.instruction for instance in found}
        assert len(reported[split]) == 10, "two of ten seeds share an instance"
        assert all((instance.answer is None) == bool(instance.changes) for instance in found)
    assert not reported[Split.TRAIN] & reported[Split.EVAL] and not (reported[Split.TRAIN] | reported[Split.EVAL]) & reported[Split.HOLDOUT]


def test_rows_that_are_asked_about_or_changed_are_of_one_split() -> None:
    for name, task in TASKS.items():
        if task_file().tasks[name].kind in {"use", "chain"}:
            by_split: dict[Split, set[tuple[str, str]]] = {}
            for split in Split:
                changes = [change for seed in task.seeds(split, 8) for change in web_instance(task, seed).changes]
                by_split[split] = {(change.table, change.key) for change in changes if change.key}
            assert not by_split[Split.TRAIN] & by_split[Split.HOLDOUT] and not by_split[Split.EVAL] & by_split[Split.HOLDOUT], name


def test_a_hop_ends_in_a_row_of_its_split() -> None:
    """A question over two rows asks for what stands in the last, so that one decides; its way may begin anywhere."""
    tables = APPS["datasette"].world()
    by_title = {book["title"]: book["id"] for book in tables["books"]}
    member_of = {loan["book_id"]: loan["member_id"] for loan in tables["loans"]}
    names = {member["id"]: str(member["name"]) for member in tables["members"]}
    task = TASKS["datasette-hop"]
    for split in Split:
        for seed in task.seeds(split, 40):
            (title,) = re.findall(r'the book "(.+?)"', web_instance(task, seed).instruction)
            assert row_split("datasette", "members", names[member_of[by_title[title]]]) is split


def test_facts_are_the_same_every_time_and_tell_instances_apart() -> None:
    seen: Mapping[str, int] = {}
    found = [SOURCES["web"].facts(task, seed) for task in TASKS.values() for seed in task.seeds(Split.TRAIN, 10)]
    assert found == [facts(task, seed) for task in TASKS.values() for seed in task.seeds(Split.TRAIN, 10)]
    seen = {each.content_id: index for index, each in enumerate(found) if each is not None}
    assert len(seen) == len(found)
    assert all(each is not None and 0 < each.difficulty <= 1 and each.provenance["app"] for each in found)
    for task in TASKS.values():
        instance, reported = web_instance(task, 3), facts(task, 3).reference or ""
        wanted = [str(cell) for change in instance.changes for cell in change.cells.values()]
        assert all(value in reported or repr(value) in reported for value in wanted) and (instance.answer or "") in reported, reported


def test_dropped_candidates_are_counted_by_reason() -> None:
    task = TASKS["datasette-hop"]
    dropped = [facts(task, seed).dropped for seed in task.seeds(Split.TRAIN, 40)]
    reasons = {reason for each in dropped for reason in each}
    assert {"no row, or several, refers to it"} <= reasons <= {"no row, or several, refers to it", "a column with so few values is guessed"}


@pytest.mark.parametrize("name", [name for name, family in task_file().tasks.items() if family.kind in ("find", "hop")])
def test_no_guess_is_right_often(name: str) -> None:
    """Saying what is said most often, whatever the question: right by the data in at most one of ten."""
    family = task_file().tasks[name]
    answers = Counter(instance.answer for split in Split for instance in instances(name, family, split))
    assert answers.most_common(1)[0][1] <= 0.1 * answers.total()


def test_strange_tasks_and_groups_are_refused() -> None:
    with pytest.raises(TaskError, match="cannot run"):
        web_instance(Task(source="web", name="datasette-dance", domain="web", max_steps=3), 1)
    with pytest.raises(ConfigError, match="Groups: all"):
        load_tasks("tiny")
    assert set(load_tasks("small")) < set(load_tasks("all")) and len(load_tasks("trac")) > 3


BEFORE: State = {"books": {"1": {"title": "A", "shelf": "B1"}, "2": {"title": "C", "shelf": None}}}


def test_only_the_wanted_change_and_nothing_else_will_do() -> None:
    moved = {"books": {**BEFORE["books"], "1": {"title": "A", "shelf": "C3"}}}
    wanted = [Change(op="update", table="books", key="1", cells={"shelf": "C3"})]
    assert unmet(wanted, difference(BEFORE, moved)) == []
    assert unmet(wanted, difference(BEFORE, BEFORE)) == ["missing: update books 1 (shelf 'C3')"]
    more = {"books": {**moved["books"], "9": {"title": "A", "shelf": None}}}
    assert unmet(wanted, difference(BEFORE, more)) == ["not asked for: insert books (title 'A', shelf None)"]
    empty = {"books": {"1": {"title": "A", "shelf": "C3"}, "2": {"title": "C", "shelf": ""}}}
    assert unmet(wanted, difference(BEFORE, empty)) == ["not asked for: update books 2 (shelf '')"]
    assert unmet([], difference(BEFORE, {"books": {}})) == ["not asked for: delete books 1", "not asked for: delete books 2"]


def test_a_row_that_comes_twice_is_one_too_many() -> None:
    row = {"title": "New", "shelf": "A1"}
    twice = {"books": {**BEFORE["books"], "3": row, "4": row}}
    assert len(unmet([Change(op="insert", table="books", cells=row)], difference(BEFORE, twice))) == 1


def test_a_page_is_read_as_a_person_would_see_it() -> None:
    page = read_page(
        "<title>T</title><script>var a = '<form>'</script><a href='/x?a=1&amp;b=2'>go <b>on</b></a>"
        "<form action=/do method=POST><label for=n>Name:</label><input id=n name=name value=7><label>Size <select name=size>"
        "<option>S<option value=l selected>Large</select></label><input type=checkbox name=c><textarea name=t disabled>\nhello</textarea>"
        "<input type=hidden name=k value=v><button name=go value=1>Send  it</button></form>"
        "<table><tr><th>a<th>b</tr><tr><td>1</td><td>2<table><tr><td>in it</td></tr></table></td></tr></table><input type=password name=p>"
    )
    form, login = page.forms
    assert [(grid.header, grid.rows) for grid in page.grids] == [(["a", "b"], [["1", "2in it"]]), ([], [["in it"]])]
    assert [control.kind for control in login.controls] == ["password"] and read_page("").title == ""
    assert page.links == [("/x?a=1&b=2", "go on")] and page.title == "T" and form.method == "post"
    assert [(each.kind, each.name, each.label) for each in form.controls[:2]] == [("text", "name", "Name"), ("select", "size", "Size")]
    assert form.defaults() == {"name": "7", "size": "l", "k": "v"} and form.submits()[0].label == "Send it"
    assert form.controls[1].options == [("S", "S"), ("l", "Large")]


def test_paths_of_rows() -> None:
    assert path_of("/books/{books}", "12") == "/books/12"
    assert path_of("/products/update/{products:json64}/", "3") == "/products/update/WzNd/"
    assert path_of("/wiki/{wiki}?action=edit", "Old Wall") == "/wiki/Old%20Wall?action=edit"
    assert path_of("/newticket", None) == "/newticket"


def test_answers_are_compared_without_case_quotes_and_a_full_stop() -> None:
    assert plain(' "Oslo". ') == plain("oslo") != plain("Oslo 2")


def test_a_missing_application_says_how_to_fix_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(WebAppMissing, match=r"could not be installed .* pip must be in"):
        install("none", ("flywheel-web-application==1",))
    assert not [path for path in (tmp_path / "flywheel" / "web-apps").iterdir() if path.is_dir()], "something half-made was left"


def test_an_oracle_clicks_where_the_element_that_it_means_is_clicked() -> None:
    """So that whoever reads elements can say it by its number."""
    shown = (("text", 100, 60, 200, 20), ("input", 140, 60, 120, 20), ("link", 100, 160, 180, 40), ("button", 60, 160, 60, 20))
    elements = tuple(Element(role=role, text="", x_px=x, y_px=y, width_px=width, height_px=height) for role, x, y, width, height in shown)
    screen = Observation(instruction="", elements=elements, screenshot=None, width_px=320, height_px=200, time_ms=0.0)
    assert on_element(Click(x=100, y=62), screen) == Click(x=140, y=60)
    assert on_element(Click(x=50, y=152, count=3), screen) == Click(x=60, y=160, count=3), "the smaller of two"
    assert on_element(SelectOption(x=180, y=150, option="A"), screen) == SelectOption(x=100, y=160, option="A")
    for action in (Click(x=10, y=10), Finished(answer="A"), None):
        assert on_element(action, screen) == action
