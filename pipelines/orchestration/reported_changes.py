"""Reports to Dagster what a command changes in the tables, so that its page shows it and what was made from it counts as stale.

Each asset whose rows are others now gets a materialization, and each open iteration its input again where that changed
(assets/iterations/handoff.py). What a command does with an asset and leaves no rows of gets an observation, which makes nothing stale: a
merge by hand on the checkpoints that went into it, what people take back on what will answer it. A home that Dagster has not been started
for is left as it is: there is nothing to be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.orchestration.instance import is_known, open_known
from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.catalogue import TABLES

if TYPE_CHECKING:
    import dagster as dg
    from rich.console import Console

    from models.checkpoints.checkpoint import Card
    from warehouse.core.home import Home
    from warehouse.storage.tables import Warehouse

Place = tuple[str, str, str]
"""Table, iteration and stage."""
CHANGED_BY = "changed by"
"""Metadata of such a materialization: the command."""
OBSERVED_BY, MERGED, TAKEN_BACK = "observed by", "merged into", "taken back"
"""Of an observation: the command, the folder of what a checkpoint was merged into, and how many runs and recordings were withdrawn."""


@contextmanager
def reported(warehouse: Warehouse, command: str, console: Console) -> Iterator[None]:
    """Report what the block changes, also where it fails half-way. A failure to report is logged; the data stay as they are."""
    if not is_known(warehouse.home):
        yield
        return
    before = _files(warehouse)
    try:
        yield
    finally:
        changed = {(table, iteration, stage) for table, iteration, stage, _ in before ^ _files(warehouse)}
        if changed:
            _try(lambda: _report(warehouse, changed, command), "the tables are changed", console)


def report_merge(home: Home, card: Card, output: Path, console: Console) -> None:
    """Observe each checkpoint of the home that `flywheel merge` has merged: what it became part of."""
    if not is_known(home):
        return

    def report() -> None:
        weights = card.config.get("weights", {})
        about = {MERGED: str(output.resolve()), "checkpoint": card.checkpoint_id, "method": str(card.config.get("method"))}
        for iteration, stage, checkpoint_id in _registered(home, card.parents):
            more = {"weight": float(weights[checkpoint_id])} if checkpoint_id in weights else {}
            _observe(home, _checkpoint_key(stage), iteration, {OBSERVED_BY: "flywheel merge", **about, **more})

    _try(report, "the checkpoint is merged", console)


def report_taken_back(home: Home, num: int, console: Console) -> None:
    """Observe on the open iteration's `withdrawals`, which will answer it, what `flywheel annotate withdraw` has withdrawn."""
    if not num or not is_known(home):
        return

    def report() -> None:
        from pipelines.orchestration.jobs import first_incomplete

        with open_known(home) as instance:
            iteration = first_incomplete(instance)
        if iteration is not None:
            _observe(home, "withdrawals", iteration, {OBSERVED_BY: "flywheel annotate withdraw", TAKEN_BACK: num})

    _try(report, "it is withdrawn", console)


def _try(report: Callable[[], None], done: str, console: Console) -> None:
    """Whatever goes wrong with Dagster is not a failure of the command."""
    try:
        report()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        console.print(f"[yellow]{done}, and Dagster could not be notified:[/] {why}", markup=True, soft_wrap=True)


def _registered(home: Home, checkpoint_ids: Collection[str]) -> list[tuple[str, str, str]]:
    """Iteration, stage and id of those checkpoints that the home's registry names, where each was made first."""
    from warehouse.lineage import registry
    from warehouse.storage.tables import Warehouse

    warehouse = Warehouse(home)
    known = set(warehouse.read("checkpoints", columns=["checkpoint_id"])["checkpoint_id"].to_pylist())
    found = [registry.find(warehouse, one) for one in checkpoint_ids if one in known]
    return [(one.iteration, one.stage, one.checkpoint_id) for one in found]


def _checkpoint_key(stage: str) -> str:
    """The asset that registers checkpoints under a stage, as Dagster writes keys."""
    from assets.stages.asset_keys import rl_asset_key
    from warehouse.core.stages import rl_stage, rl_stage_of

    name = rl_stage_of(stage).removeprefix(rl_stage(""))
    return stage if name == stage else rl_asset_key(name).to_user_string()


def _observe(home: Home, key: str, iteration: str, metadata: dict[str, Any]) -> None:
    import dagster as dg

    partition = None if iteration == SEED_ITERATION else iteration
    with open_known(home) as instance:
        instance.report_runless_asset_event(dg.AssetObservation(dg.AssetKey.from_user_string(key), partition=partition, metadata=metadata))


def _files(warehouse: Warehouse) -> set[tuple[str, str, str, str]]:
    """Every file of the tables with iterations and stages, with its place."""
    named = [table for table, spec in TABLES.items() if spec.partitioned]
    return {(table, file.iteration, file.stage, file.path) for table in named for file in warehouse.listed(table)[1]}


def _report(warehouse: Warehouse, changed: set[Place], command: str) -> None:
    from assets.iterations.handoff import report_inputs

    with open_known(warehouse.home) as instance:
        for event in _events(warehouse, changed, command):
            instance.report_runless_asset_event(event)
        report_inputs(instance, warehouse)


def _events(warehouse: Warehouse, changed: set[Place], command: str) -> Iterator[dg.AssetMaterialization]:
    import dagster as dg

    from assets.stages.metadata import data_version
    from assets.stages.stage_assets import ROW_COUNT, num_rows, results
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
