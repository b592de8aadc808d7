"""Synthetic homes with a long history are homes: they keep every rule that the gates ask, and what reads a home reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.gates.checks import GATES, run_invariant
from benchmarks.common.history import Size, make_history
from benchmarks.growth import law
from warehouse.core.home import Home
from warehouse.lineage.walk import trace_back
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    home = Home(tmp_path_factory.mktemp("history"))
    assert list(make_history(home, Size(iterations=1, episodes=300))) == [1]
    assert list(make_history(home, Size(iterations=2, episodes=300), begin=1)) == [2], "a home can be made longer"
    return Warehouse(home)


@pytest.mark.slow
def test_every_rule_holds(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        for gate in GATES:
            for invariant in gate.invariants:
                result = run_invariant(con, invariant, "0000" if gate.is_seed else "0002")
                assert result.passed, result.description


@pytest.mark.slow
def test_tables_hang_together(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        ((episodes, routed, steps),) = con.execute(
            "select count(*), count(*) filter (purpose in ('rollout', 'annotation')), sum(num_steps) from episodes"
        ).fetchall()
        assert con.execute("select count(*) from routes").fetchall() == [(routed,)]
        assert con.execute("select count(*) from steps").fetchall() == [(steps,)] and 500 < episodes <= 600
        assert con.execute(
            "select count(*) from datasets d anti join (from ct_samples union all by name from sft_samples) s using (sample_id)"
        ).fetchall() == [(0,)]
    graph = trace_back(warehouse, "0002/released_policy")
    assert {"checkpoint", "dataset", "sft_sample", "annotation", "episode", "step", "task"} <= {n.kind for n in graph.nodes}


@pytest.mark.slow
def test_the_same_numbers_give_the_same_home(warehouse: Warehouse, tmp_path: Path) -> None:
    other = Warehouse(Home(tmp_path))
    list(make_history(other.home, Size(iterations=2, episodes=300)))
    for table in ("episodes", "sft_samples", "datasets"):
        with connect(warehouse, tables=[table]) as con, connect(other, tables=[table]) as again:
            query = f"select * from {table} order by all"
            assert con.sql(query).to_arrow_table() == again.sql(query).to_arrow_table(), table


def test_the_law_is_the_exponent() -> None:
    assert law([(10, 1.0), (20, 2.0), (40, 4.0)]) == pytest.approx(1)
    assert law([(10, 1.0), (20, 4.0)]) == pytest.approx(2)
    assert law([(10, 0.01), (20, 0.02)]) is None and law([(10, 5.0)]) is None
