"""What every registered source keeps to, and a user's own of docs/page-tasks.md with them. Sessions are test_session_conformance.py's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sandbox.android.instance import AndroidInstance
from sandbox.desktop.instance import Instance as DesktopInstance
from sandbox.hybrid.tasks import HybridInstance
from sandbox.tasks.conformance import STATIC, few
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_source import TaskSource, instance_of
from sandbox.terminal.tasks import Instance as TerminalInstance
from tests.sandbox.own_source import write_own_source
from warehouse.core.conformance import checked, problems
from warehouse.core.errors import ConfigError, TaskError

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


def test_it_keeps_what_sources_promise(source: TaskSource) -> None:
    assert problems(checked(STATIC, source)) == []


def test_a_group_is_a_part_of_it(source: TaskSource) -> None:
    groups = ["small", "quickstart", "settings"]
    found = []
    for group in groups:
        try:
            found.append(source.load_tasks(group))
        except ConfigError as error:
            assert group in str(error)
    assert found and all(part.items() <= source.load_tasks().items() for part in found)


def test_its_instances_are_of_the_kind_that_its_sessions_run(source: TaskSource) -> None:
    for task in few(source):
        if (kind := source.kind_of(task)) in INSTANCES:
            assert instance_of(SOURCES, task, first_seed(task), INSTANCES[kind])
        elif kind == "web":
            assert source.open_session is not None


def test_an_oracle_solves_some_of_it(source: TaskSource) -> None:
    assert any(source.has_oracle(task) for task in source.load_tasks().values())
    assert source.page is None or callable(source.page.oracle_action)


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
