"""Asset checks: the Great Expectations suites of the catalogue, and the flywheel's invariants (invariants.py), in gates between the stages
of an iteration. Each gate blocks: what follows does not run on rows that break a rule, unless the rule only warns. The gate of value
pretraining is value_gate.py's.

A suite looks at the rows that its gate's assets have written, and at no others: each row is checked once, before what follows reads it; a
screenshot by the gate of each stage that shows it.
A check reads the warehouse only, so it can be run again on any iteration.
"""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow.compute as pc

from assets.gates.invariants import INVARIANTS, REWORK, Invariant
from assets.iterations.partitions import ITERATIONS
from assets.stages.failures import RETRYABLE
from assets.stages.resources import WarehouseResource
from warehouse.core.stages import SEED_ITERATION
from warehouse.datasets.imports import unchecked_imports
from warehouse.quality.data_docs import build_data_docs
from warehouse.quality.expectations import ValidationReport, validate
from warehouse.storage.catalogue import TABLES
from warehouse.storage.partitions import row_filter
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROWS_SHOWN = 20
ROWS_QUOTED = 3
"""Of each broken rule in the message of a failed run; the check itself shows ROWS_SHOWN."""
MESSAGE_CHARS = 2000
IMPORTS = "expectations_imports"
IMPORTS_MEANING = "The suites of what was imported since the gate was last passed: every expectation holds."
IMPORT_AGAIN = "`flywheel restore TABLE VERSION` puts the table back; or import again under the same name (demonstrations: with --replace)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks that one op runs in one process (importing Great Expectations costs seconds) between two stages of an iteration.

    `suites` maps an asset to the tables whose suite is shown there; they look at the rows of `stages` (names of partitions, or patterns of
    them). The last gate that looks at a table takes the rows of stages that no gate names. What follows the assets of `guards` waits for
    the op, and does not run where a check that blocks has failed, also one that is shown on an asset further upstream.
    """

    name: str
    guards: tuple[str, ...]
    suites: dict[str, tuple[str, ...]]
    stages: tuple[str, ...] = ()
    is_seed: bool = False
    """Of assets without partitions, whose rows are iteration 0000's."""
    imports: str | None = None
    """The asset on which the suites of what was imported since the gate was last passed are shown."""

    def names(self, stage: str) -> bool:
        return any(fnmatch(stage, named) for named in self.stages)

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        return tuple(invariant for invariant in INVARIANTS if invariant.asset in self.guards)

    def specs(self) -> list[dg.AssetCheckSpec]:
        return [
            *(
                self._spec(invariant.name, invariant.asset, invariant.meaning, blocking=invariant.is_blocking)
                for invariant in self.invariants
            ),
            *(
                self._spec(
                    _suite_check(table),
                    asset,
                    f"The Great Expectations suite of `{table}`, made from the catalogue.",
                    blocking=asset in self.guards,
                )
                for asset, tables in self.suites.items()
                for table in tables
            ),
            *([self._spec(IMPORTS, self.imports, IMPORTS_MEANING, blocking=True)] if self.imports else []),
        ]

    def _spec(self, name: str, asset: str, description: str, *, blocking: bool) -> dg.AssetCheckSpec:
        with warnings.catch_warnings():
            # Without partitions a check loads all of its asset's. Dagster calls them a preview in the version that we pin, at every check.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            partitions = None if self.is_seed else ITERATIONS
            return dg.AssetCheckSpec(name, asset=asset, description=description, blocking=blocking, partitions_def=partitions)


GATES = (
    Gate(
        name="seed_gate",
        guards=("seed_tutorials", "seed_demonstrations", "seed_policy"),
        suites={
            "tasks": ("tasks", "task_instances", "sources"),
            "seed_tutorials": ("ct_samples",),
            "seed_demonstrations": ("episodes", "steps", "screenshots", "sft_samples"),
            "seed_policy": ("checkpoints",),
        },
        is_seed=True,
    ),
    Gate(
        name="dataset_gate",
        guards=("ct_dataset", "sft_dataset"),
        suites={"sft_dataset": ("datasets",)},
        stages=("ct_dataset", "sft_dataset"),
        imports="sft_dataset",
    ),
    Gate(
        name="merge_gate",
        guards=("merged_policy",),
        suites={"merged_policy": ("checkpoints", "training_metrics", "merge_candidates", "episodes", "steps", "screenshots")},
        stages=("ct_model", "sft_model", "rl_*", "critic_*", "merged_policy"),
    ),
    Gate(
        name="evaluation_gate",
        guards=("evaluations",),
        suites={"evaluations": ("evaluations", "episodes", "steps", "screenshots")},
        stages=("evaluation",),
    ),
    Gate(
        name="orm_gate",
        guards=("orm_dataset",),
        suites={"orm_samples": ("orm_samples",), "orm_dataset": ("datasets",)},
        stages=("orm_samples", "orm_dataset"),
    ),
    Gate(
        name="collection_gate",
        guards=("rollouts", "annotations", "human_annotations", "gateway_episodes"),
        suites={
            "released_policy": ("checkpoints", "releases", "taints"),
            "task_pool": ("task_instances",),
            "rollouts": ("episodes", "steps", "screenshots"),
            "annotations": ("annotations",),
            "human_annotations": ("sources",),
        },
        stages=("released_policy", "task_pool", "rollouts", "annotations", "human_annotations", "gateway_episodes"),
    ),
    Gate(
        name="routing_gate",
        guards=("routes", "ct_samples", "sft_samples"),
        suites={
            "orm_model": ("checkpoints", "training_metrics"),
            "verdicts": ("verdicts",),
            "routes": ("routes", "judge_reports"),
            "ct_samples": ("ct_samples",),
            "sft_samples": ("sft_samples",),
        },
        stages=("orm_model", "verdicts", "judgements", "judge_reports", "routing", "recordings"),
    ),
)


def build_gate(gate: Gate) -> dg.AssetChecksDefinition:
    """The op of one gate."""

    @dg.multi_asset_check(name=gate.name, specs=gate.specs(), can_subset=True)
    def run_gate(context: dg.AssetCheckExecutionContext, tables: WarehouseResource) -> Iterator[dg.AssetCheckResult]:
        iteration, wanted = SEED_ITERATION if gate.is_seed else context.partition_key, context.selected_asset_check_keys
        broken = []
        for result in _results(gate, tables, iteration, wanted):
            yield result
            if not result.passed and result.severity is dg.AssetCheckSeverity.ERROR:
                broken.append(f"- {result.check_name}: {result.description}")
        if broken:
            rules = "one rule is" if len(broken) == 1 else f"{len(broken)} rules are"
            raise dg.Failure(
                f"{gate.name} of iteration {iteration}: {rules} broken, so nothing downstream was run. Fix the rows and run again; "
                "finished stages are kept.\n" + "\n".join(broken),
                metadata={RETRYABLE: False},
                allow_retries=False,
            )

    return run_gate


def _results(gate: Gate, tables: WarehouseResource, iteration: str, wanted: Collection[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckResult]:
    suites = [
        (asset, run_suite(gate, tables.warehouse, asset, table, iteration))
        for asset, names in gate.suites.items()
        for table in names
        if dg.AssetCheckKey(dg.AssetKey(asset), _suite_check(table)) in wanted
    ]
    if suites:
        docs = build_data_docs(tables.home, [report for _, report in suites])
        for asset, report in suites:
            yield _suite_result(asset, report, docs, tables.warehouse.version(report.table))
    if gate.imports and dg.AssetCheckKey(dg.AssetKey(gate.imports), IMPORTS) in wanted:
        yield _imports_result(gate.imports, tables, iteration, gate.guards)
    invariants = [each for each in gate.invariants if dg.AssetCheckKey(dg.AssetKey(each.asset), each.name) in wanted]
    if invariants:
        with connect(tables.warehouse) as con:
            for invariant in invariants:
                yield run_invariant(con, invariant, iteration)


def run_suite(gate: Gate, warehouse: Warehouse, asset: str, table: str, iteration: str) -> ValidationReport:
    """The table's suite on the gate's own rows of an iteration, reported under the asset on which it is shown."""
    if gate.is_seed:
        return validate(warehouse, table, iteration)
    spec = TABLES[table if TABLES[table].partitioned else "steps"]  # a screenshot is of the stages whose steps show it
    written = warehouse.stored_dataset(spec.name).to_table(columns=["stage"], filter=row_filter(spec, iteration=iteration))
    stages = [stage for stage in sorted(pc.unique(written.column("stage")).to_pylist()) if is_checked_by(gate, table, stage)]
    return validate(warehouse, table, iteration, asset, stages=stages)


def is_checked_by(gate: Gate, table: str, stage: str) -> bool:
    """Whether the gate's suite of the table looks at the rows of a stage."""
    gates = [each for each in GATES if not each.is_seed and any(table in tables for tables in each.suites.values())]
    return gate.names(stage) or (gate is gates[-1] and not any(each.names(stage) for each in gates))


def _suite_check(table: str) -> str:
    return f"expectations_{table}"


def run_invariant(con: duckdb.DuckDBPyConnection, invariant: Invariant, iteration: str) -> dg.AssetCheckResult:
    """A query that cannot be run counts as failed too: a table is not as the catalogue says; its suite has the details."""
    given, num_rows, shown = {"iteration": iteration}, 0, []
    try:
        shown = _plain(con.sql(f"SELECT * FROM ({invariant.sql}) LIMIT {ROWS_SHOWN}", params=given).to_arrow_table().to_pylist())
        if shown:
            ((num_rows,),) = con.sql(f"SELECT count(*) FROM ({invariant.sql})", params=given).fetchall()
        text = f"{num_rows} rows break the rule that {invariant.meaning}: {_quoted(shown)}. To fix: {invariant.fix}"
    except duckdb.Error as error:
        num_rows, text = -1, f"cannot check whether {invariant.meaning}: {str(error).strip()[:MESSAGE_CHARS]}. To fix: {REWORK}"
    return dg.AssetCheckResult(
        passed=num_rows == 0,
        asset_key=invariant.asset,
        check_name=invariant.name,
        severity=dg.AssetCheckSeverity.ERROR if invariant.is_blocking else dg.AssetCheckSeverity.WARN,
        description=text if num_rows else invariant.meaning,
        metadata={"rule": invariant.meaning, "violations": num_rows, "rows": dg.MetadataValue.json(shown), "fix": invariant.fix},
    )


def _suite_result(asset: str, report: ValidationReport, docs: Path, version: int) -> dg.AssetCheckResult:
    failures = _failures(report)
    found = "; ".join(_failure_text(failure) for failure in failures)
    return dg.AssetCheckResult(
        passed=report.success,
        asset_key=asset,
        check_name=_suite_check(report.table),
        description=f"table {report.table} (version {version}) is not as the catalogue says: {found}. To fix: {REWORK}"
        if failures
        else "every expectation holds",
        metadata={
            "expectations": report.num_expectations,
            "failures": dg.MetadataValue.json(failures),
            "data docs": dg.MetadataValue.path(str(docs)),
        },
    )


def _imports_result(asset: str, tables: WarehouseResource, iteration: str, snapshots: Sequence[str]) -> dg.AssetCheckResult:
    """The suites of imported rows that no gate has seen, which may have come in at any time since the seed's."""
    seeded = next(gate for gate in GATES if gate.is_seed).suites
    fresh = list(unchecked_imports(tables.warehouse, iteration, seeded=seeded, snapshots=snapshots))
    reports = [validate(tables.warehouse, table, SEED_ITERATION, stage) for table, stage in fresh]
    docs = build_data_docs(tables.home, reports) if reports else None
    broken = {f"{report.table} of {report.stage or 'all stages'}": report for report in reports if not report.success}
    bad = [f"{name}: {'; '.join(_failure_text(each) for each in _failures(report))}" for name, report in broken.items()]
    return dg.AssetCheckResult(
        passed=not broken,
        asset_key=asset,
        check_name=IMPORTS,
        description=f"imported rows are not as the catalogue says: {'. '.join(bad)}. To fix: {IMPORT_AGAIN}" if bad else IMPORTS_MEANING,
        metadata={
            "looked at": dg.MetadataValue.json([f"{table} of {stage or 'all stages'}" for table, stage in fresh]),
            "failures": dg.MetadataValue.json({name: _failures(report) for name, report in broken.items()}),
            **({} if docs is None else {"data docs": dg.MetadataValue.path(str(docs))}),
        },
    )


def _failures(report: ValidationReport) -> list[dict[str, Any]]:
    return _plain([asdict(failure) for failure in report.failures])


def _failure_text(failure: dict[str, Any]) -> str:
    column = f" of {failure['column']}" if failure["column"] else ""
    detail = f", {failure['detail']}"[:MESSAGE_CHARS] if failure["detail"] else ""
    rows = f" in {failure['num_unexpected']} rows: {_quoted(failure['rows'])}" if failure["rows"] else ""
    return f"{failure['expectation']}{column}{detail}{rows}"


def _quoted(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first rows on a line, for a message."""
    more = " …" if len(rows) > ROWS_QUOTED else ""
    return "; ".join(json.dumps(row, ensure_ascii=False) for row in rows[:ROWS_QUOTED])[:MESSAGE_CHARS] + more


def _plain(rows: Sequence[Any]) -> list[Any]:
    """As JSON can hold them."""
    plain: list[Any] = json.loads(json.dumps(rows, default=str))
    return plain
