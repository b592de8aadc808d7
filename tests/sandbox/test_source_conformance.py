"""What every registered source keeps to, and a user's own of docs/page-tasks.md with them. Sessions are test_session_conformance.py's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.android.instance import AndroidInstance
from sandbox.desktop.instance import Instance as DesktopInstance
from sandbox.hybrid.tasks import HybridInstance
from sandbox.tasks.describe import describe
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split, Task, first_seed
from sandbox.tasks.task_source import TaskSource, instance_of
from sandbox.terminal.tasks import Instance as TerminalInstance
from tests.sandbox.own_source import write_own_source
from warehouse.core.errors import ConfigError, CorpusMissing, TaskError

INSTANCES: dict[str, type] = {
    "terminal": TerminalInstance,
    "hybrid": HybridInstance,
    "desktop": DesktopInstance,
    "android": AndroidInstance,
}
NAMES = [*(name for name in SOURCES.installed() if name != "imported"), "press"]
"""What is imported lies in a home: test_imported.py."""


@pytest.fixture(params=NAMES)
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskSource:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    SOURCES.use("press.py:SOURCE", write_own_source(tmp_path))
    return SOURCES[request.param]


def few(source: TaskSource) -> list[Task]:
    """The first and the last of a source's tasks."""
    tasks = list(source.load_tasks().values())
    return tasks[:2] + tasks[-2:]


def test_its_tasks_are_its_own_and_each_has_one_name(source: TaskSource) -> None:
    tasks = source.load_tasks()
    assert tasks and all((task.source, task.name) == (source.name, name) for name, task in tasks.items())
    assert len({task.task_id for task in tasks.values()}) == len(tasks)
    assert source.load_tasks() == tasks, "the same every time"
    with pytest.raises(ConfigError, match="nonesuch"):
        source.load_tasks("nonesuch")


def test_a_group_is_a_part_of_it(source: TaskSource) -> None:
    groups = ["small", "quickstart", "settings"]
    found = []
    for group in groups:
        try:
            found.append(source.load_tasks(group))
        except ConfigError as error:
            assert group in str(error)
    assert found and all(part.items() <= source.load_tasks().items() for part in found)


def test_a_seed_has_one_split_whatever_the_limits(source: TaskSource) -> None:
    for task in few(source):
        longer = task.model_copy(update={"max_steps": task.max_steps + 1})
        assert [task.split(seed) for seed in range(60)] == [longer.split(seed) for seed in range(60)]
        for split in Split:
            assert all(task.split(seed) is split for seed in task.seeds(split, 5))
        assert not task.held_out or task.seeds(Split.TRAIN, 1) == []


def test_its_kind_is_one_that_it_can_be_played_as(source: TaskSource) -> None:
    for task in few(source):
        kind = source.kind_of(task)
        if kind in INSTANCES:
            first, again = (instance_of(SOURCES, task, first_seed(task), INSTANCES[kind]) for _ in range(2))
            assert getattr(first, "instruction", None) == getattr(again, "instruction", None) and source.environment
        elif kind == "page":
            assert source.page is not None and source.page.root.is_dir() and source.page.url(task) and source.page.environment
        else:
            assert source.open_session is not None and source.environment


def test_it_says_what_a_task_asks_for_and_whether_an_oracle_solves_it(source: TaskSource) -> None:
    for task in few(source):
        assert describe(task).strip() and "\n" not in describe(task)
    with_oracle = [task for task in source.load_tasks().values() if source.has_oracle(task)]
    assert with_oracle and all(isinstance(source.has_oracle(task), bool) for task in source.load_tasks().values())
    assert source.page is None or callable(source.page.oracle_action)


def test_its_facts_name_an_instance_by_content(source: TaskSource) -> None:
    for task in few(source):
        reported: list[Any] = []
        for seed in task.seeds(Split.EVAL if task.held_out else Split.TRAIN, 3):
            try:
                reported.append((source.facts(task, seed), source.facts(task, seed)))
            except CorpusMissing:  # its pages are not on this machine
                continue
        for first, again in reported:
            assert (first is None) == (again is None)
            assert first is None or (first.content_id == again.content_id and first.instruction and 0 <= first.difficulty <= 1)


def test_a_task_of_another_source_is_refused(source: TaskSource) -> None:
    stranger = Task(source="nowhere", name="x", domain="pointing", max_steps=1)
    if source.name == "press":  # the document's page has one task, and does not look
        return
    with pytest.raises(TaskError):
        if source.page is not None:
            source.page.url(stranger)
        else:
            source.facts(stranger, 1)
            source.instance(stranger, 1)


def test_an_index_is_of_the_tasks_that_there_are(source: TaskSource) -> None:
    if source.contents is not None:
        assert source.contents.is_file() and (source.content is not None or source.page is not None)
