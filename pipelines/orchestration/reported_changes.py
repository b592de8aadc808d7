"""What a command changes in the tables is told to Dagster, so that its page shows it and what was made from it counts as stale.

Each asset whose rows are others now gets a materialization, and each open iteration its input anew where that changed
(assets/handoff.py). A home that Dagster has not been started for is left as it is: there is nothing to be stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.catalogue import TABLES

if TYPE_CHECKING:
    import dagster as dg
    from rich.console import Console

    from warehouse.storage.tables import Warehouse

Place = tuple[str, str, str]
"""Table, iteration and stage."""
CHANGED_BY = "changed by"
"""Metadata of such a materialization: the command."""


@contextmanager
def reported(warehouse: Warehouse, command: str, console: Console) -> Iterator[None]:
    """Report what the block changes, also where it fails half-way. That Dagster cannot be told is said, and changes nothing of the data."""
    if not (warehouse.home.dagster / "history").is_dir():
        yield
        return
    before = _files(warehouse)
    try:
        yield
    finally:
        changed = {(table, iteration, stage) for table, iteration, stage, _ in before ^ _files(warehouse)}
        if changed:
            try:
                _report(warehouse, changed, command)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                console.print(f"[yellow]the tables are changed, and Dagster could not be told:[/] {why}", markup=True, soft_wrap=True)


def _files(warehouse: Warehouse) -> set[tuple[str, str, str, str]]:
    """Every file of the tables with iterations and stages, with its place."""
    named = [table for table, spec in TABLES.items() if spec.partitioned]
    return {(table, file.iteration, file.stage, file.path) for table in named for file in warehouse.listed(table)[1]}


def _report(warehouse: Warehouse, changed: set[Place], command: str) -> None:
    from assets.handoff import report_inputs
    from pipelines.orchestration.instance import open_instance

    with open_instance(warehouse.home) as instance:
        for event in _events(warehouse, changed, command):
            instance.report_runless_asset_event(event)
        report_inputs(instance, warehouse)


def _events(warehouse: Warehouse, changed: set[Place], command: str) -> Iterator[dg.AssetMaterialization]:
    import dagster as dg

    from assets.metadata import data_version
    from assets.stage_assets import ROW_COUNT, num_rows, results
    from pipelines.definitions import defs
    from warehouse.storage.catalogue import VERDICT_STAGE, WITHDRAWN_STAGE
    from warehouse.storage.content import content_digest

    for key, result in results(defs).items():
        stages = {result.stage, VERDICT_STAGE, WITHDRAWN_STAGE}
        touched = {(iteration, stage) for table, iteration, stage in changed if table == result.table and stage in stages}
        for iteration in sorted({iteration for iteration, _ in touched}):
            if (iteration == SEED_ITERATION) != result.is_seed:
                continue
            places = sorted(stage for each, stage in touched | {(iteration, result.stage)} if each == iteration)
            content = [content_digest(warehouse, [result.table], iteration=iteration, stage=stage) for stage in places]
            yield dg.AssetMaterialization(
                key,
                partition=None if result.is_seed else iteration,
                metadata={CHANGED_BY: command, ROW_COUNT: num_rows(warehouse, result, iteration)},
                tags={"dagster/data_version": data_version(content).value},
            )
