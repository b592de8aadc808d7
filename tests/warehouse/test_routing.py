"""Routing is total, disjoint, idempotent and free of row order; its invariants are proven with SQL on random histories."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.core.home import Home
from warehouse.routing.routes import RoutingConfig, Rule, cause_label, route
from warehouse.storage.catalogue import ROUTES, TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FILTERS = ("format", "no_op", "loop", "leak", "duplicate", "contamination")


def episode(episode_id: str = "e1", **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "iteration": "0001",
        "stage": "rollouts",
        "episode_id": episode_id,
        "purpose": "rollout",
        "task_id": "task-a",
        "task_name": "a",
        "domain": "pointing",
        "seed": 1,
        "split": "train",
        "attempt": 0,
        "policy_id": "policy-1",
        "temperature": 1.0,
        "instruction": "Click.",
        "outcome": "success",
        "reward": 1.0,
        "num_steps": 1,
        "num_retries": 0,
        "error": None,
        "duration_ms": 1.0,
        "environment": "env",
    }
    return row | changes


def verdict(episode_id: str, judge: str, score: float, **changes: Any) -> dict[str, Any]:
    kind = "verdict" if judge in ("verifier", "human", "orm") else "filter"
    threshold = changes.get("threshold", 0.5)
    row: dict[str, Any] = {
        "iteration": "0001",
        "stage": "verdicts",
        "episode_id": episode_id,
        "judge": judge,
        "judge_version": "1",
        "kind": kind,
        "origin": judge if kind == "verdict" else "filter",
        "score": score,
        "threshold": threshold,
        "passed": score >= threshold,
        "reasons": [f"why {judge}"],
    }
    return row | changes


def arrow(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=TABLES[table].schema)


def route_rows(episodes: list[dict[str, Any]], verdicts: list[dict[str, Any]], config: RoutingConfig | None = None, **kw: Any) -> pa.Table:
    with duckdb.connect() as con:
        con.register("episodes", arrow("episodes", episodes))
        con.register("verdicts", arrow("verdicts", verdicts))
        return route(con, config, **kw)


def routed(
    episodes: list[dict[str, Any]], verdicts: list[dict[str, Any]], config: RoutingConfig | None = None, **kw: Any
) -> dict[str, Any]:
    table = route_rows(episodes, verdicts, config, **kw)
    return {row["episode_id"]: (row["route"], row["reason"]) for row in table.to_pylist()}


def one(episode_row: dict[str, Any], *verdicts: dict[str, Any], config: RoutingConfig | None = None) -> tuple[str, str]:
    decision: tuple[str, str] = routed([episode_row], list(verdicts), config)[episode_row["episode_id"]]
    return decision


def test_success_that_passes_goes_to_sft() -> None:
    decision = one(episode(), verdict("e1", "verifier", 1), verdict("e1", "loop", 0.9))
    assert decision == ("sft", "V=1: verifier 1 >= 0.5, 1 filters passed")


def test_a_score_at_the_threshold_passes() -> None:
    decision = one(episode(), verdict("e1", "verifier", 0.5), verdict("e1", "loop", 0.5))
    assert decision == ("sft", "V=1: verifier 0.5 >= 0.5, 1 filters passed")


def test_a_judge_that_no_rule_names_speaks_after_those_that_are_named() -> None:
    appraised = verdict("e1", "appraiser", 0, kind="verdict", origin="judge")
    assert one(episode(), appraised, verdict("e1", "orm", 1)) == ("sft", "V=1: orm 1 >= 0.5, 0 filters passed")
    assert one(episode(), appraised) == ("ct", "V=0: appraiser 0 < 0.5")


def test_of_two_filters_that_withhold_the_first_one_speaks_in_its_own_words() -> None:
    duplicates = [verdict("e1", "near_duplicate", 0.1, threshold=0.3), verdict("e1", "duplicate", 0.4, threshold=0.9)]
    failed = [*duplicates, verdict("e1", "leak", 0.25)]
    for order in (failed, failed[::-1]):
        assert one(episode(), verdict("e1", "verifier", 1), *order) == ("withheld", "leak 0.25 < 0.5: why leak")


def test_of_two_filters_that_demote_the_first_one_speaks_in_its_own_words() -> None:
    failed = [verdict("e1", "no_op", 0.4, threshold=0.6), verdict("e1", "loop", 0.25)]
    for order in (failed, failed[::-1]):
        decision = one(episode(), verdict("e1", "verifier", 1), *order)
        assert decision == ("ct", "V=1 (verifier 1 >= 0.5), demoted by loop 0.25 < 0.5: why loop")


def test_only_filters_are_counted_among_what_was_passed() -> None:
    decision = one(episode(), verdict("e1", "verifier", 1), *(verdict("e1", name, 1) for name in ("loop", "no_op", "format")))
    assert decision == ("sft", "V=1: verifier 1 >= 0.5, 3 filters passed")
    many = [verdict("e1", f"filter{number:02}", 1) for number in range(70)]
    reported = one(episode(), verdict("e1", "verifier", 1), *many)
    assert reported == ("sft", "V=1: verifier 1 >= 0.5, 70 filters passed"), "more than an integer has bits"


def test_failure_goes_to_ct_whatever_the_quality() -> None:
    assert one(episode(), verdict("e1", "verifier", 0), verdict("e1", "loop", 0.1)) == ("ct", "V=0: verifier 0 < 0.5")


def test_success_of_poor_quality_goes_to_ct_and_names_the_filter() -> None:
    decision = one(episode(), verdict("e1", "verifier", 1), verdict("e1", "loop", 0.25), verdict("e1", "no_op", 0.4))
    assert decision == ("ct", "V=1 (verifier 1 >= 0.5), demoted by loop 0.25 < 0.5: why loop")


@pytest.mark.parametrize("judge", ["contamination", "leak", "personal_data", "duplicate", "near_duplicate", "evaluation_overlap"])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_some_filters_withhold_success_and_failure_alike(judge: str, score: float) -> None:
    decision = one(episode(), verdict("e1", "verifier", score), verdict("e1", judge, 0.2), verdict("e1", "loop", 0))
    assert decision == ("withheld", f"{judge} 0.2 < 0.5: why {judge}")


def test_infrastructure_failures_and_foreign_splits_are_withheld_even_without_a_filter() -> None:
    crashed = episode(outcome="crashed", reward=None, error="browser gone")
    assert one(crashed, verdict("e1", "verifier", 1)) == ("withheld", "crashed: browser gone")
    rewarded = episode(outcome="crashed", reward=1.0, error="browser gone")
    assert one(rewarded, verdict("e1", "verifier", 1)) == ("withheld", "crashed: browser gone"), "whatever reward stands beside it"
    unrewarded = episode(outcome="success", reward=None, error=None)
    assert one(unrewarded, verdict("e1", "verifier", 1)) == ("withheld", "crashed: no reward")
    assert one(episode(split="eval"), verdict("e1", "verifier", 1))[0] == "withheld"
    assert one(episode()) == ("withheld", "unjudged: no judge gave V")


def test_a_human_outranks_the_verifier() -> None:
    assert one(episode(), verdict("e1", "verifier", 1), verdict("e1", "human", 0))[0] == "ct"
    assert one(episode(), verdict("e1", "orm", 0), verdict("e1", "verifier", 1))[0] == "sft"


def test_who_may_not_be_trusted_abstains_and_silences_nobody() -> None:
    judge = {"kind": "verdict", "origin": "judge"}
    distrusted = verdict("e1", "judge", 0.9, threshold=1.0, **judge)
    assert one(episode(), distrusted, verdict("e1", "orm", 0.9))[0] == "sft", "the ORM has a threshold that was measured"
    assert one(episode(), distrusted, verdict("e1", "verifier", 1))[0] == "sft"
    alone = one(episode(reward=0.0), distrusted, verdict("e1", "orm", 0.2, threshold=1.0))
    assert alone == ("withheld", "unjudged: no judge gave V; not to be trusted with it: judge, orm"), "nobody has called it a failure"
    assert one(episode(), distrusted, config=RoutingConfig(rules={"judge": Rule(effect="decide", threshold=0.5, precedence=2)}))[0] == "sft"
    trusted_before = RoutingConfig(rules={"orm": Rule(effect="decide", threshold=1.0, precedence=3)})
    assert one(episode(), verdict("e1", "orm", 0.9), config=trusted_before)[0] == "withheld"
    assert one(episode(), verdict("e1", "verifier", 0.9, threshold=1.0)) == ("ct", "V=0: verifier 0.9 < 1"), "a verifier may be exact"


def test_what_a_rule_leaves_out_stays_as_it_is_by_default() -> None:
    named = RoutingConfig.model_validate({"rules": {"human": {"threshold": 0.6}, "leak": {"precedence": 9}, "loop": {"threshold": 0.3}}})
    rules = RoutingConfig.model_validate_json(named.model_dump_json()).effective_rules
    assert rules["human"] == Rule(effect="decide", threshold=0.6, precedence=0), "a person is still heard first"
    assert rules["leak"] == Rule(effect="withhold", precedence=9) and rules["loop"] == Rule(threshold=0.3)
    said = verdict("e1", "human", 0.55), verdict("e1", "verifier", 1)
    assert one(episode(), *said, config=named) == ("ct", "V=0: human 0.55 < 0.6")
    assert one(episode(), verdict("e1", "verifier", 1), verdict("e1", "leak", 0.2), config=named)[0] == "withheld"
    assert one(episode(), verdict("e1", "verifier", 1), verdict("e1", "loop", 0.2), config=named)[0] == "ct", "a filter demotes"
    scripted = verdict("e1", "rules_of_thumb", 0.9, kind="verdict", origin="scripted", threshold=0.95)
    trusting = RoutingConfig(rules={"rules_of_thumb": Rule(threshold=0.5)})
    assert one(episode(), scripted)[0] == "ct" and one(episode(), scripted, config=trusting)[0] == "sft", "a verdict decides"


def test_history_is_routed_again_under_other_rules() -> None:
    verdicts = [verdict("e1", "verifier", 1), verdict("e1", "loop", 0.4)]
    assert one(episode(), *verdicts)[0] == "ct"
    assert one(episode(), *verdicts, config=RoutingConfig(rules={"loop": Rule(effect="demote", threshold=0.3)}))[0] == "sft"
    assert one(episode(), *verdicts, config=RoutingConfig(rules={"loop": Rule(effect="withhold")}))[0] == "withheld"


def test_the_newest_verdict_of_a_judge_counts() -> None:
    old, new = verdict("e1", "loop", 0.1), verdict("e1", "loop", 0.9, iteration="0002", judge_version="2")
    assert one(episode(), verdict("e1", "verifier", 1), old, new)[0] == "sft"


def test_only_routed_purposes_and_the_asked_iteration() -> None:
    episodes = [
        episode("r"),
        episode("a", purpose="annotation"),
        episode("s", purpose="seed"),
        episode("x", purpose="evaluation"),
        episode("l", purpose="rl"),
        episode("later", iteration="0002"),
        episode("r", iteration="0002"),
    ]
    verdicts = [verdict(row["episode_id"], "verifier", 1) for row in episodes[:6]]
    assert routed(episodes, verdicts).keys() == {"r", "a", "later"}
    assert routed(episodes, verdicts, iteration="0001").keys() == {"r", "a"}
    assert routed(episodes, verdicts, iteration="0002").keys() == {"later"}, "an episode is routed once, in the first iteration that has it"


@pytest.mark.usefixtures("tables_place")
def test_rows_of_tables_are_routed_as_rows_in_memory_and_the_routes_come_back_whole(tmp_path: Path) -> None:
    """Through the views of a warehouse, from rows that several commits wrote."""
    episodes = [
        episode(f"e{number}", outcome="success" if number % 3 else "failure", reward=float(bool(number % 3))) for number in range(12)
    ]
    verdicts = [verdict(row["episode_id"], "verifier", row["reward"]) for row in episodes]
    verdicts += [verdict(row["episode_id"], "loop", 0.9 if number % 2 else 0.1) for number, row in enumerate(episodes)]
    warehouse = Warehouse(Home(tmp_path))
    for half in (episodes[:5], episodes[5:]):
        warehouse.append_partition("episodes", half, iteration="0001", stage="rollouts")
    for judge in ("verifier", "loop"):
        of_judge = [row for row in verdicts if row["judge"] == judge]
        warehouse.append_partition("verdicts", of_judge, iteration="0001", stage="verdicts")
    with connect(warehouse) as con:
        there = route(con, iteration="0001")
    assert there.equals(route_rows(episodes, verdicts, iteration="0001"))
    assert len(set(there.column("route").to_pylist())) > 1
    warehouse.replace_partition("routes", there, iteration="0001", stage="routing")
    read = Warehouse(Home(tmp_path)).read("routes", columns=there.column_names)
    assert sorted(read.to_pylist(), key=str) == sorted(there.to_pylist(), key=str)


def test_v_its_judge_and_its_score_are_columns_whatever_the_route() -> None:
    episodes = [episode(name) for name in ("demoted", "solved", "unjudged", "withheld")]
    rows = route_rows(
        episodes,
        [
            verdict("solved", "orm", 0.123456, threshold=0.1),
            verdict("demoted", "verifier", 1),
            verdict("demoted", "loop", 0.1),
            verdict("withheld", "verifier", 0.25),
            verdict("withheld", "leak", 0),
            verdict("unjudged", "loop", 1),
        ],
    )
    columns = ("route", "decided_verdict", "decided_by", "decided_score")
    reported = {row["episode_id"]: tuple(row[name] for name in columns) for row in rows.to_pylist()}
    assert reported == {
        "demoted": ("ct", True, "verifier", 1.0),
        "solved": ("sft", True, "orm", 0.123456),
        "unjudged": ("withheld", None, None, None),
        "withheld": ("withheld", False, "verifier", 0.25),
    }


def test_routes_from_before_there_were_these_columns_say_it_all_the_same(tmp_path: Path) -> None:
    reasons = {
        "solved": ("sft", "V=1: orm 0.45 >= 0.4, 9 filters passed"),
        "failed": ("ct", "V=0: verifier 0 < 0.5"),
        "demoted": ("ct", "V=1 (verifier 1 >= 1), demoted by loop 0.25 < 0.5: why"),
        "leaked": ("withheld", "leak 0 < 1: V=1 verifier 1"),
        "wasteful": ("ct", "V=1 (verifier 1 >= 1), demoted by no-waste 0.25 < 0.5: why"),
        "crashed": ("withheld", "crashed: V=0"),
        "foreign": ("withheld", "contamination: the instance belongs to the eval split"),
        "unjudged": ("withheld", "unjudged: no judge gave V"),
        "erased": ("withheld", "erased"),
    }
    place = {"iteration": "0001", "stage": "routing"}
    old = [place | {"episode_id": name, "route": to, "reason": reason} for name, (to, reason) in reasons.items()]
    warehouse = Warehouse(Home(tmp_path))
    table = pa.Table.from_pylist(old, schema=pa.schema([pa.field(name, pa.string(), nullable=False) for name in old[0]]))
    write_deltalake(warehouse.folder("routes"), table, partition_by=["iteration", "stage"])
    with connect(warehouse) as con:
        rows = con.execute("select episode_id, decided_verdict, decided_by, decided_score from routes").fetchall()
        causes = con.execute("select episode_id, cause, withheld_by, demoted_by from routes").fetchall()
    reported = {name: rest for name, *rest in rows}
    assert reported == {
        "solved": [True, "orm", 0.45],
        "failed": [False, "verifier", 0.0],
        "demoted": [True, "verifier", 1.0],
        "wasteful": [True, "verifier", 1.0],
        **{name: [None] * 3 for name in ("leaked", "crashed", "foreign", "unjudged", "erased")},
    }
    assert {name: tuple(rest) for name, *rest in causes} == {
        "solved": ("solved", None, None),
        "failed": ("not_solved", None, None),
        "demoted": ("demoted", None, "loop"),
        "leaked": ("withheld", "leak", None),
        "wasteful": ("demoted", None, "no-waste"),
        "crashed": ("crashed", None, None),
        "foreign": ("contamination", None, None),
        "unjudged": ("unjudged", None, None),
        "erased": ("erased", None, None),
    }


def test_rows_for_the_table() -> None:
    with duckdb.connect() as con:
        con.register("episodes", arrow("episodes", [episode("a"), episode("b", iteration="0002")]))
        con.register("verdicts", arrow("verdicts", [verdict("a", "verifier", 0)]))
        rows = route(con, iteration="0001").to_pylist()
        causes = {"cause": "not_solved", "withheld_by": None, "demoted_by": None}
        reported = {**causes, "reason": "V=0: verifier 0 < 0.5", "decided_verdict": False, "decided_by": "verifier", "decided_score": 0.0}
        assert rows == [{"episode_id": "a", "route": "ct", **reported}]
        assert con.execute("select count(*) from duckdb_views() where view_name = 'rules'").fetchone() == (0,)


def test_a_row_says_what_decided_whatever_the_judges_are_called() -> None:
    episodes = [episode(name) for name in ("solved", "failed", "demoted", "withheld", "unjudged")]
    episodes += [episode("crashed", outcome="crashed", reward=None), episode("foreign", split="eval"), episode("gone", task_name="erased")]
    verdicts = [verdict(row["episode_id"], "verifier", 1) for row in episodes if row["episode_id"] not in ("failed", "unjudged")]
    verdicts += [verdict("failed", "verifier", 0), verdict("failed", "no-waste", 0), verdict("solved", "no-waste", 1)]
    verdicts += [verdict("demoted", "no-waste", 0.1), verdict("withheld", "keep out: V=1", 0.1), verdict("withheld", "no-waste", 0.1)]
    verdicts += [verdict("crashed", "keep out: V=1", 0.1)]
    rows = route_rows(episodes, verdicts, RoutingConfig(rules={"keep out: V=1": Rule(effect="withhold")})).to_pylist()
    columns = ("cause", "withheld_by", "demoted_by")
    assert {row["episode_id"]: tuple(row[name] for name in columns) for row in rows} == {
        "solved": ("solved", None, None),
        "failed": ("not_solved", None, None),
        "demoted": ("demoted", None, "no-waste"),
        "withheld": ("withheld", "keep out: V=1", None),
        "unjudged": ("unjudged", None, None),
        "crashed": ("crashed", None, None),
        "foreign": ("contamination", None, None),
        "gone": ("erased", None, None),
    }
    labels = {row["episode_id"]: cause_label(*(row[name] for name in columns)) for row in rows}
    assert [labels[name] for name in ("failed", "demoted", "withheld", "crashed")] == ["not solved", "no-waste", "keep out: V=1", "crashed"]


def test_routing_leaves_nothing_of_its_own_on_the_connection() -> None:
    """Nor does who was judged twice change any other's route, or the order of the rows."""
    episodes = [episode(name) for name in ("c", "a", "d", "b")]
    verdicts = [verdict(name, "verifier", 1) for name in "abcd"] + [verdict("b", "verifier", 0, iteration="0002")]
    with duckdb.connect() as con:
        con.register("episodes", arrow("episodes", episodes))
        con.register("verdicts", arrow("verdicts", verdicts))
        found = route(con).to_pylist()
        (kept,) = con.execute("select list(view_name order by view_name) from duckdb_views() where not internal").fetchall()
    assert kept == (["episodes", "heard", "verdicts"],)
    assert [(row["episode_id"], row["route"]) for row in found] == [("a", "sft"), ("b", "ct"), ("c", "sft"), ("d", "sft")]
    columns = ["episode_id", "route", "reason", "cause", "withheld_by", "demoted_by", "decided_verdict", "decided_by", "decided_score"]
    assert [list(row) for row in found] == [columns] * 4


def history(seed: int, num: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rng = random.Random(seed)
    episodes, verdicts = [], []
    for index in range(num):
        outcome = rng.choice(["success", "failure", "truncated", "crashed"])
        reward = None if outcome == "crashed" else float(outcome == "success")
        row = episode(
            f"e{index}",
            outcome=outcome,
            reward=reward,
            split=rng.choice(["train", "train", "eval", "holdout"]),
            purpose=rng.choice(["rollout", "annotation", "seed", "evaluation"]),
            iteration=rng.choice(["0001", "0002"]),
        )
        episodes += [row] if rng.random() < 0.9 else [row, row | {"iteration": "0003"}]
        verdicts += [verdict(f"e{index}", "verifier", reward)] if reward is not None and rng.random() < 0.9 else []
        for name in FILTERS:
            if rng.random() < 0.3:
                verdicts.append(verdict(f"e{index}", name, rng.random(), iteration=rng.choice(["0001", "0002"])))
    return episodes, verdicts


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 40))
@pytest.mark.slow
def test_routing_is_total_disjoint_idempotent_and_free_of_row_order(seed: int, num: int) -> None:
    episodes, verdicts = history(seed, num)
    with duckdb.connect() as con:
        con.register("episodes", arrow("episodes", episodes))
        con.register("verdicts", arrow("verdicts", verdicts))
        routes = route(con)
        assert route(con) == routes, "idempotent"
        con.register("routes", routes)
        count = "select count(*) from "
        routable = "(select distinct episode_id from episodes where purpose in ('rollout', 'annotation'))"
        checks = {
            "total": f"{count} {routable} anti join routes using (episode_id)",
            "nothing else": f"{count} routes anti join {routable} using (episode_id)",
            "disjoint": count + "(select episode_id from routes group by all having count(*) > 1)",
            "closed": count + f"routes where route not in {ROUTES} or reason = ''",
            "sft has V=1": count + "routes r where route = 'sft' and not exists (from verdicts v where v.episode_id = r.episode_id "
            "and judge = 'verifier' and passed)",
            "trained on is train": count + "routes join episodes using (episode_id) where route <> 'withheld' and split <> 'train'",
            "crashed is withheld": count + "routes join episodes using (episode_id) where route <> 'withheld' and outcome = 'crashed'",
        }
        assert {name: con.execute(sql).fetchone() for name, sql in checks.items()} == dict.fromkeys(checks, (0,))
    rng = random.Random(seed)
    rng.shuffle(episodes)
    rng.shuffle(verdicts)
    assert route_rows(episodes, verdicts) == routes
