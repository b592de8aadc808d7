"""One piece of an iteration's work on the newest iteration of a home, as one process: prints its seconds and peak memory as JSON.

python -m benchmarks.ours.history_work HOME "routes"
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent.judging import samples as judging_samples
from assets.gates import checks
from assets.iterations import handoff
from benchmarks.common.process import peak_mb
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.datasets.withdrawal import WITHDRAWABLE, withdrawn_ids
from warehouse.evaluation.solve_rates import solve_rates
from warehouse.lineage.iterations_graph import iterations_graph
from warehouse.quality.config import QualityConfig
from warehouse.quality.filters import iteration_verdicts
from warehouse.reporting.iteration_summaries import summaries
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.routing.routes import route
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

MIXTURE = MixtureConfig(
    demonstration=SamplePool(),
    correction=SamplePool(draws=450),
    on_policy=SamplePool(draws=300),
    tutorial=SamplePool(draws=700),
    failure=SamplePool(draws=400),
)


def verdicts(config: QualityConfig, warehouse: Warehouse, iteration: str) -> int:
    return sum(part.num_rows for part in iteration_verdicts(warehouse, iteration, config))


def routes(warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse) as con:
        return int(route(con, iteration=iteration).num_rows)


def samples(warehouse: Warehouse, iteration: str) -> int:
    return sum(stored.num_joined for stored in store_routed_samples(warehouse, iteration).values())


def datasets(warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse) as con:
        return int(mixed(con, "sft", iteration, MIXTURE).rows.num_rows)


def rates(warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse) as con:
        return len(solve_rates(con, iteration, 0.9))


def withdrawals(warehouse: Warehouse, iteration: str) -> int:
    return sum(len(withdrawn_ids(warehouse, table)) for table in WITHDRAWABLE)


def next_input(warehouse: Warehouse, iteration: str) -> int:
    return sum(map(len, handoff.samples_before(warehouse, f"{int(iteration) + 1:04d}").values()))


def drawing(warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse, tables=["evaluations"]) as con:
        return len(iterations_graph(con, summaries(warehouse)).to_svg())


def known(warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse) as con:
        return len(judging_samples.known_episodes(con, iteration, success_threshold=0.999))


def invariants(gate: checks.Gate, warehouse: Warehouse, iteration: str) -> int:
    with connect(warehouse) as con:
        found = [checks.run_invariant(con, invariant, iteration) for invariant in gate.invariants]
    broken = [f"{result.check_name}: {result.description}" for result in found if not result.passed]
    if broken:
        raise SystemExit("the synthetic home breaks rules: " + "; ".join(broken))
    return len(found)


def suites(gate: checks.Gate, warehouse: Warehouse, iteration: str) -> int:
    reports = [checks.run_suite(gate, warehouse, asset, table, iteration) for asset, tables in gate.suites.items() for table in tables]
    if not all(report.success for report in reports):
        raise SystemExit(f"the synthetic home breaks suites: {[report.failures for report in reports if not report.success]}")
    return len(reports)


def opened(warehouse: Warehouse, _: str) -> int:
    with connect(warehouse) as con:
        return len(con.execute("select * from tasks").fetchall())


_GATES = {gate.name: gate for gate in checks.GATES if not gate.is_seed}
WORK: dict[str, Callable[[Warehouse, str], int]] = {
    "tables opened": opened,
    "tables listed": lambda warehouse, _: len(Listing(warehouse, ("episodes", "steps", "checkpoints", "datasets")).files),
    "history of a table": lambda warehouse, _: len(warehouse.history("episodes")),
    "withdrawals": withdrawals,
    "sft_dataset": datasets,
    "task_pool: solve rates": rates,
    "verdicts": partial(verdicts, QualityConfig()),
    "verdicts, near-duplicates": partial(verdicts, QualityConfig(min_trajectory_novelty=0.1)),
    "verdicts, evaluation overlap": partial(verdicts, QualityConfig(min_evaluation_distance=0.1)),
    "routes": routes,
    "ct_samples, sft_samples": samples,
    "episodes of known truth": known,
    "iteration_output: next input": next_input,
    "iteration_output: drawing": drawing,
    **{f"{name}: invariants": partial(invariants, gate) for name, gate in _GATES.items() if gate.invariants},
    **{f"{name}: suites": partial(suites, gate) for name, gate in _GATES.items() if gate.suites},
}


def main() -> None:
    home, name = Home(Path(sys.argv[1])), sys.argv[2]
    warehouse = Warehouse(home)
    iteration = max(path.name for path in home.work.iterdir())
    began, cpu = time.perf_counter(), time.process_time()
    num = WORK[name](warehouse, iteration)
    figures = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "peak_mb": peak_mb(), "num": num}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
