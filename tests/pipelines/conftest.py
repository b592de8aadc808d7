"""A FLYWHEEL_HOME with a real Dagster instance, and this process's environment set for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import RunOpConcurrency

from assets.iterations.handoff import INPUT, add_iteration
from assets.stages.asset_keys import ITERATION_OUTPUT
from assets.stages.stage_assets import CONCURRENCY_POOL
from pipelines.orchestration.instance import open_instance, prepare
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True)
class Place:
    """A home, its instance and its warehouse."""

    home: Home
    instance: dg.DagsterInstance

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.home)

    def open(self, key: str) -> None:
        add_iteration(self.instance, self.home, key)
        self.instance.report_runless_asset_event(dg.AssetMaterialization(INPUT, partition=key))

    def close(self, key: str) -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(ITERATION_OUTPUT, partition=key))

    def add_run(self, status: dg.DagsterRunStatus, **tags: str) -> dg.DagsterRun:
        works_in_home = RunOpConcurrency(
            root_key_counts={CONCURRENCY_POOL: 1}, has_unconstrained_root_nodes=False, all_pools={CONCURRENCY_POOL}
        )
        return self.instance.add_run(dg.DagsterRun(job_name="iteration", status=status, tags=tags, run_op_concurrency=works_in_home))


@pytest.fixture(scope="session")
def empty_dagster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The databases of an instance on which nothing has run; making them takes a second each time."""
    home = Home(tmp_path_factory.mktemp("empty"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in prepare(home).items():
            patch.setenv(name, value)
        with dg.DagsterInstance.get() as instance:
            assert instance.get_runs() == []
    return home.dagster


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_dagster: Path) -> Iterator[Place]:
    home = Home(tmp_path / "home")
    shutil.copytree(empty_dagster, home.dagster, dirs_exist_ok=True)
    for name, value in prepare(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLYWHEEL_PROFILE", "smoke")
    with open_instance(home) as instance:
        yield Place(home, instance)
