"""What a choice may read: no row of a split that is only reported, whichever table it is looked for in."""

from __future__ import annotations

from typing import Any

import pytest

from warehouse.core.errors import ReportedOnly
from warehouse.evaluation.choosing import CHOICE_SPLITS, connect_to_choose, outcomes_to_choose, require_choosable
from warehouse.storage.catalogue import SPLITS, TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

REPORTED = sorted(set(SPLITS) - set(CHOICE_SPLITS))


@pytest.fixture
def mixed(warehouse: Warehouse, make: Any) -> Warehouse:
    """An episode of each split with all that hangs on it; every value of a reported one names its split."""
    evaluated = TABLES["evaluations"].column("split").values or ()
    evaluations = [make.evaluation(f"policy-{split}", "merged_policy", split=split) for split in evaluated]
    rows = {
        "episodes": [make.episode(f"ep-{split}", split=split, seed=seed, purpose="evaluation") for seed, split in enumerate(SPLITS)],
        "steps": [make.step(f"ep-{split}", 0) for split in SPLITS],
        "verdicts": [make.verdict(f"ep-{split}") for split in SPLITS],
        "routes": [{"episode_id": f"ep-{split}", "route": "ct", "reason": "V=0"} for split in SPLITS],
        "annotations": [make.annotation(f"note-{split}", f"ep-{split}") for split in SPLITS],
        "sft_samples": [make.sample(f"sft-{split}", episode_id=f"ep-{split}") for split in SPLITS] + [make.sample("sft-of-nothing")],
        "evaluations": evaluations,
    }
    for table, content in rows.items():
        warehouse.replace_partition(table, content, iteration="0001", stage="test")
    return warehouse


def test_no_view_of_a_choice_has_a_row_that_is_only_reported(mixed: Warehouse) -> None:
    assert REPORTED
    with connect(mixed) as con, connect_to_choose(mixed) as choosing:
        for table in TABLES:
            whole, seen = (str(one.sql(f"from {table}").fetchall()) for one in (con, choosing))
            for split in REPORTED:
                assert f"-{split}'" not in seen and f"'{split}'" not in seen, table
            if f"-{REPORTED[0]}'" in whole:
                assert "-eval'" in seen, f"{table} keeps what may be chosen by"
        assert choosing.sql("select sample_id from sft_samples where episode_id is null").fetchall() == [("sft-of-nothing",)]
    with connect(mixed, splits=CHOICE_SPLITS, lineage=True) as choosing:
        reported = str(choosing.sql("select * from lineage_nodes").fetchall() + choosing.sql("select * from lineage").fetchall())
        assert not any(f"ep-{split}" in reported for split in REPORTED) and "ep-eval" in reported


def test_outcomes_are_those_of_eval(mixed: Warehouse, make: Any) -> None:
    policy = make.episode("ep")["policy_id"]
    outcomes = outcomes_to_choose(mixed, policy)
    assert {seed for _, seed in outcomes} == {SPLITS.index(split) for split in CHOICE_SPLITS}


def test_an_outcome_is_whether_an_instance_was_solved_and_nothing_where_it_crashed(warehouse: Warehouse, make: Any) -> None:
    def played(seed: int, outcome: str, **rest: Any) -> dict[str, Any]:
        whose = {"purpose": "evaluation", "policy_id": "policy-asked", "split": "eval"} | rest
        reward = {"success": 1.0, "crashed": None}.get(outcome, 0.0)
        return make.episode(f"ep-{seed}", seed=seed, outcome=outcome, reward=reward, **whose)  # type: ignore[no-any-return]

    rows = [
        played(1, "success"),
        played(2, "failure"),
        played(3, "crashed"),
        played(4, "truncated", task_id="task-b"),
        played(5, "success", policy_id="policy-other"),
        played(6, "success", purpose="rollout"),
        played(7, "success", split="holdout"),
    ]
    warehouse.replace_partition("episodes", rows, iteration="0001", stage="evaluation")
    assert outcomes_to_choose(warehouse, "policy-asked") == {("task-a", 1): True, ("task-a", 2): False, ("task-b", 4): False}


def test_a_reported_split_is_refused_by_name() -> None:
    require_choosable(CHOICE_SPLITS, "a test")
    require_choosable([], "a test")
    with pytest.raises(ReportedOnly, match=r"^a test would read the split holdout, which is only reported: choose by train and eval only$"):
        require_choosable(["eval", "holdout"], "a test")


@pytest.mark.parametrize("stages", [("evaluation", "again"), ("again", "evaluation")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_last_attempt_counts_in_whatever_order_rows_were_written(
    warehouse: Warehouse, make: Any, stages: tuple[str, str], is_reversed: bool
) -> None:
    def asked(name: str, outcome: str, attempt: int) -> dict[str, Any]:
        return make.episode(name, policy_id="policy", split="eval", purpose="evaluation", seed=1, outcome=outcome, attempt=attempt)

    rows = {
        ("0001", stages[0]): [asked("z-early", "success", 5)],
        ("0002", stages[1]): [asked("b-first", "success", 0), asked("a-last", "failure", 1)],
    }
    for (iteration, stage), content in sorted(rows.items(), reverse=is_reversed):
        warehouse.replace_partition("episodes", content[::-1] if is_reversed else content, iteration=iteration, stage=stage)
    assert outcomes_to_choose(warehouse, "policy") == {("task-a", 1): False}
