"""How every asset of an iteration and of the seed is declared: what they share.

Each is restarted as failures.py says, has a version of its code, and is of the concurrency pool that lets one run at a time into a home.
One that writes a table shows the table's columns, and with every materialization how many rows are of it and which columns of other
assets they were made from.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.iterations.partitions import ITERATIONS
from assets.stages.failures import RETRY, retried
from assets.stages.resources import WarehouseResource
from warehouse.core.identity import files_id
from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.catalogue import TABLES
from warehouse.storage.partitions import row_filter
from warehouse.storage.tables import Warehouse

CONCURRENCY_POOL = "flywheel_home"
"""Dagster's run queue lets one run of it through at a time (`concurrency.pools` in dagster.yaml)."""
OWNERS = ["team:flywheel"]
ROW_COUNT, COLUMN_LINEAGE = "dagster/row_count", "dagster/column_lineage"
ROWS = "rows"
"""Metadata of an asset: the table and the stage of its rows."""
COMPLETING_JOBS = ("iteration", "seed_iteration")
"""Jobs that complete what has been begun, and keep what is finished."""
Compute = Callable[..., Any]
Columns = Mapping[str, Sequence[str]]
"""`asset.column` of what a column is made from, by its name."""


def is_asked_for(run: dg.DagsterRun) -> bool:
    """Whether somebody wants the very stages of a run worked: it is of a stage's job, or of assets that are materialized."""
    return run.job_name not in COMPLETING_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The rows that are an asset's result: those of one stage, of every iteration or of the seed's."""

    table: str
    stage: str
    columns: Columns = field(default_factory=dict)
    is_seed: bool = False


def stage_asset(
    *, table: str | None = None, stage: str | None = None, columns: Columns = MappingProxyType({}), is_seed: bool = False, **options: Any
) -> Callable[[Compute], dg.AssetsDefinition]:
    """`@dg.asset` for a stage. `table` is the one whose rows are its result, those of the partition `stage` (the asset's name where it is
    not given); `columns` say what a column was made from, `{"route": ["verdicts.score"]}`; `options` are those of `dg.asset`."""

    def declare(compute: Compute) -> dg.AssetsDefinition:
        made = Result(table=table, stage=stage or compute.__name__, columns=columns, is_seed=is_seed) if table is not None else None
        declared: Callable[[Compute], dg.AssetsDefinition] = dg.asset(
            **_shared(is_seed), owners=OWNERS, code_version=_code_version(compute), metadata=_about(made), **options
        )
        return declared(retried(_describing(compute, {None: made} if made else {})))

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """An asset of a stage that makes several, and the rows that are its result."""

    spec: dg.AssetSpec
    result: Result


def stage_assets(*made: StageSpec, **options: Any) -> Callable[[Compute], dg.AssetsDefinition]:
    """`@dg.multi_asset` for a stage that makes several (`stage_spec`)."""

    def declare(compute: Compute) -> dg.AssetsDefinition:
        version = _code_version(compute)
        versioned = [one.spec.replace_attributes(code_version=version) for one in made]
        results: dict[dg.AssetKey | None, Result] = {one.spec.key: one.result for one in made}
        return dg.multi_asset(specs=versioned, **_shared(is_seed=False), **options)(retried(_describing(compute, results)))

    return declare


def stage_spec(name: str, *, table: str, stage: str | None = None, columns: Columns = MappingProxyType({}), **options: Any) -> StageSpec:
    """One of the assets of `stage_assets`; `table`, `stage` and `columns` as for `stage_asset`."""
    result = Result(table=table, stage=stage or name, columns=columns)
    return StageSpec(spec=dg.AssetSpec(name, owners=OWNERS, metadata=_about(result), **options), result=result)


def _shared(is_seed: bool) -> dict[str, Any]:
    return {"retry_policy": RETRY, "pool": CONCURRENCY_POOL, **({} if is_seed else {"partitions_def": ITERATIONS})}


def _code_version(compute: Compute) -> str:
    """Of the module that declares the asset. What a worker of a stage does is not in it: every materialization names the digest of all
    code (metadata.py)."""
    return files_id("code", [Path(inspect.getfile(compute))])


def _about(result: Result | None) -> dict[str, Any]:
    if result is None:
        return {}
    place = {"table": result.table, "stage": result.stage, "is_seed": result.is_seed}
    schema = table_schema(result.table, result.columns)
    return {"dagster/table_name": result.table, "dagster/column_schema": schema, ROWS: dg.MetadataValue.json(place)}


def table_schema(table: str, made_from: Columns = MappingProxyType({})) -> dg.TableSchema:
    """The columns of a table, as the catalogue describes them, and what each was made from: Dagster's own page does not draw the lineage of
    columns that it keeps."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=_type_name(column.type),
                description=". Made from ".join(filter(None, (column.meaning, ", ".join(made_from.get(column.name, ()))))),
                constraints=dg.TableColumnConstraints(
                    nullable=column.nullable, other=[f"one of {', '.join(column.values)}"] if column.values else []
                ),
            )
            for column in TABLES[table].columns
        ]
    )


def _type_name(kind: pa.DataType) -> str:
    return f"list of {_type_name(kind.value_type)}" if pa.types.is_list(kind) else "struct" if pa.types.is_struct(kind) else str(kind)


def _describing(compute: Compute, results: Mapping[dg.AssetKey | None, Result]) -> Compute:
    """The function, whose materializations say of what rows they are; None is the key of the only asset."""
    if not results:
        return compute

    def described(one: dg.MaterializeResult[None], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dg.MaterializeResult[None]:
        result = results[dg.AssetKey.from_coercible(one.asset_key) if one.asset_key else None]
        context: dg.AssetExecutionContext | None = args[0] if args else kwargs.get("context")
        iteration = context.partition_key if context is not None and context.has_partition_key else SEED_ITERATION
        tables: WarehouseResource = kwargs["tables"]
        about: dict[str, Any] = {ROW_COUNT: num_rows(tables.warehouse, result, iteration)}
        if result.columns:
            about[COLUMN_LINEAGE] = column_lineage(result.columns)
        return one._replace(metadata={**about, **(one.metadata or {})})

    if inspect.isgeneratorfunction(compute):

        @functools.wraps(compute)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for one in compute(*args, **kwargs):
                yield described(one, args, kwargs)

        return generator

    @functools.wraps(compute)
    def call(*args: Any, **kwargs: Any) -> Any:
        return described(compute(*args, **kwargs), args, kwargs)

    return call


def column_lineage(columns: Columns) -> dg.TableColumnLineage:
    return dg.TableColumnLineage(
        deps_by_column={
            name: [dg.TableColumnDep(asset_key=asset, column_name=column) for asset, _, column in (one.rpartition(".") for one in sources)]
            for name, sources in columns.items()
        }
    )


def num_rows(warehouse: Warehouse, result: Result, iteration: str) -> int:
    """Rows of an asset's result in one iteration, withdrawn ones counted in."""
    here = row_filter(TABLES[result.table], iteration=iteration, stage=result.stage)
    return int(warehouse.dataset(result.table).count_rows(filter=here))


def results(definitions: dg.Definitions) -> dict[dg.AssetKey, Result]:
    """What each asset's rows are, of those that have some."""
    found = {spec.key: spec.metadata[ROWS].value for spec in definitions.resolve_all_asset_specs() if ROWS in spec.metadata}
    return {key: Result(**place) for key, place in found.items()}
