"""Snapshots: recipe, caps, decay, determinism, and the guard against contamination."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.core.errors import ContaminatedDataset
from warehouse.datasets.mixing import MixtureConfig, SamplePool, allocate, mixed
from warehouse.quality.overlap import repeated_by, repeated_by_samples
from warehouse.storage.catalogue import TABLES

SFT_MIXTURE = MixtureConfig(
    demonstration=SamplePool(draws=250),
    correction=SamplePool(draws=450, max_repeats=2),
    on_policy=SamplePool(draws=300),
    tutorial=SamplePool(draws=700),
)
CT_MIXTURE = MixtureConfig(tutorial=SamplePool(), failure=SamplePool(draws=400, max_repeats=1), in_situ=SamplePool())
TASKS = {"task-a": "pointing", "task-b": "pointing", "task-c": "forms"}


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


class Store:
    """Small tables, grown by one sample at a time."""

    def __init__(self) -> None:
        names = ("ct_samples", "sft_samples", "episodes", "annotations", "tasks", "task_instances")
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for task, domain in TASKS.items():
            self.rows["tasks"].append(
                {
                    "iteration": "0000",
                    "stage": "tasks",
                    "task_id": task,
                    "source": "x",
                    "name": task,
                    "domain": domain,
                    "max_steps": 3,
                    "held_out": False,
                    "version": "1",
                }
            )

    def add(
        self, table: str, num: int, origin: str, task: str = "task-a", iteration: str = "0001", decision: str | None = None, **changes: Any
    ) -> None:
        split, verdict = changes.pop("split", "train"), changes.pop("verdict", None if origin == "tutorial" else True)
        for _ in range(num):
            number = len(self.rows["ct_samples"]) + len(self.rows["sft_samples"])
            base = {"iteration": iteration, "stage": "s"}
            episode_id = annotation_id = None
            if origin != "tutorial":
                episode_id = f"episode-{number}"
                self.rows["episodes"].append(
                    base
                    | {
                        "episode_id": episode_id,
                        "purpose": "rollout",
                        "task_id": task,
                        "task_name": task,
                        "domain": TASKS[task],
                        "seed": number,
                        "split": split,
                        "attempt": 0,
                        "policy_id": "p",
                        "temperature": 1.0,
                        "instruction": "",
                        "outcome": "success",
                        "reward": 1.0,
                        "num_steps": 1,
                        "num_retries": 0,
                        "error": None,
                        "duration_ms": 1.0,
                        "environment": "e",
                    }
                )
            if decision:
                annotation_id = f"annotation-{number}"
                self.rows["annotations"].append(
                    base
                    | {
                        "annotation_id": annotation_id,
                        "episode_id": episode_id,
                        "step_index": 0,
                        "annotator": "oracle",
                        "origin": "scripted",
                        "mode": "relabel",
                        "decision": decision,
                        "proposal": "",
                        "response": "",
                        "messages": [],
                        "withdrawn": changes.get("annotation_withdrawn", False),
                    }
                )
            self.rows[table].append(
                base
                | {
                    "sample_id": f"sample-{number:04}",
                    "origin": origin,
                    "domain": TASKS[task] if episode_id else "general",
                    "messages": [],
                    "episode_id": episode_id,
                    "step_index": 0,
                    "annotation_id": annotation_id,
                    "verdict": verdict,
                    "withdrawn": changes.get("withdrawn", False),
                }
            )

    def load(self, con: duckdb.DuckDBPyConnection) -> None:
        for name, rows in self.rows.items():
            con.register(name, pa.Table.from_pylist(rows, schema=TABLES[name].schema))


def by_component(rows: list[dict[str, Any]]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        totals[row["component"]] += row["weight"]
    return {name: round(total, 3) for name, total in sorted(totals.items())}


def test_the_recipe_of_an_sft_epoch(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 20, "demonstration", iteration="0000")
    store.add("sft_samples", 100, "annotation", "task-c", decision="override")
    store.add("sft_samples", 60, "annotation", decision="accept")
    store.add("sft_samples", 40, "rollout", "task-c")
    store.add("ct_samples", 300, "tutorial", iteration="0000")
    store.add("ct_samples", 50, "rollout", verdict=False)
    store.load(con)
    rows = mixed(con, "sft", "0002", SFT_MIXTURE).rows.to_pylist()
    totals = by_component(rows)
    assert totals["demonstration"] == 250 and totals["tutorial"] == 700
    assert totals["correction"] == 200, "100 corrections, each at most twice"
    assert totals["approved"] + totals["rollout"] == 300, "both are on-policy steps that stand, and share their draws"
    assert "failure" not in totals
    assert {row["kind"] for row in rows if row["component"] == "tutorial"} == {"ct"}, "`kind` names the table of the sample"
    more = Store()
    more.add("sft_samples", 400, "annotation", decision="override")
    more.load(con)
    assert by_component(mixed(con, "sft", "0002", SFT_MIXTURE).rows.to_pylist()) == {"correction": 450}


def test_failures_join_ct_by_their_weight(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("ct_samples", 100, "tutorial", iteration="0000")
    store.add("ct_samples", 500, "rollout", verdict=False)
    store.add("ct_samples", 20, "rollout", verdict=True)
    store.add("ct_samples", 5, "annotation", "task-c", decision="accept")
    store.load(con)
    mixtures = [CT_MIXTURE.model_copy(update={"ct_weight": weight}) for weight in (1.0, 0.5, 0.0)]
    full, half, none = (by_component(mixed(con, "ct", "0002", mixture).rows.to_pylist()) for mixture in mixtures)
    assert full["tutorial"] == half["tutorial"] == none["tutorial"] == 100 and full["in_situ"] == 5
    assert full["failure"] + full["demoted"] == pytest.approx(400, abs=0.01)
    assert half["failure"] + half["demoted"] == pytest.approx(200, abs=0.01)
    assert "failure" not in none and "demoted" not in none


def test_easy_tasks_and_domains_do_not_dominate_and_old_samples_fade(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 900, "rollout", "task-a")
    store.add("sft_samples", 50, "rollout", "task-b")
    store.add("sft_samples", 50, "rollout", "task-c", iteration="0001")
    store.add("sft_samples", 50, "rollout", "task-c", iteration="0003")
    store.load(con)
    mixture = MixtureConfig(on_policy=SamplePool(draws=300), max_task_share=0.5, max_domain_share=0.7, decay=0.5)
    task_of = {row["sample_id"]: episode["task_id"] for row, episode in zip(store.rows["sft_samples"], store.rows["episodes"], strict=True)}
    totals: dict[str, float] = defaultdict(float)
    weights: dict[str, set[float]] = defaultdict(set)
    for row in mixed(con, "sft", "0004", mixture).rows.to_pylist():
        totals[task_of[row["sample_id"]]] += row["weight"]
        weights[task_of[row["sample_id"]]].add(row["weight"])
    assert {task: round(total) for task, total in totals.items()} == {"task-a": 150, "task-b": 60, "task-c": 90}
    young, old = max(weights["task-c"]), min(weights["task-c"])
    assert young == pytest.approx(4 * old, rel=1e-4), "two iterations older, a quarter of the weight"


def test_only_earlier_iterations_and_nothing_withdrawn(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 1, "demonstration", iteration="0000")
    store.add("sft_samples", 1, "demonstration", iteration="0001")
    store.add("sft_samples", 1, "demonstration", iteration="0000", withdrawn=True)
    store.add("sft_samples", 1, "annotation", iteration="0000", decision="override", annotation_withdrawn=True)
    store.load(con)
    assert [row["sample_id"] for row in mixed(con, "sft", "0001", SFT_MIXTURE).rows.to_pylist()] == ["sample-0000"]
    assert [row["sample_id"] for row in mixed(con, "sft", "0002", SFT_MIXTURE).rows.to_pylist()] == ["sample-0000", "sample-0001"]


@pytest.mark.parametrize("split", ["eval", "holdout"])
def test_the_guard_refuses_foreign_splits(con: duckdb.DuckDBPyConnection, split: str) -> None:
    store = Store()
    store.add("sft_samples", 3, "demonstration")
    store.add("sft_samples", 1, "rollout", split=split)
    store.load(con)
    with pytest.raises(ContaminatedDataset, match=f"sample-0003 .* instance of the {split} split"):
        mixed(con, "sft", "0002", SFT_MIXTURE)
    with pytest.raises(ValueError, match="withdraw the sample"):
        mixed(con, "ct", "0002", CT_MIXTURE)


def test_the_guard_refuses_held_out_tasks_evaluations_and_the_unknown(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 1, "rollout")
    store.rows["tasks"][0]["held_out"] = True
    store.load(con)
    with pytest.raises(ContaminatedDataset, match="held-out task"):
        mixed(con, "sft", "0002", SFT_MIXTURE)
    store.rows["tasks"][0]["held_out"] = False
    store.rows["episodes"][0]["purpose"] = "evaluation"
    store.load(con)
    with pytest.raises(ContaminatedDataset, match="run to evaluate"):
        mixed(con, "sft", "0002", SFT_MIXTURE)
    store.rows["episodes"].clear()
    store.load(con)
    with pytest.raises(ContaminatedDataset, match="not in the warehouse"):
        mixed(con, "sft", "0002", SFT_MIXTURE)


def test_a_snapshot_is_the_same_whatever_the_row_order_and_names_its_content(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 30, "demonstration", "task-b", iteration="0000")
    store.add("sft_samples", 70, "annotation", "task-c", decision="override")
    store.add("ct_samples", 40, "tutorial")
    store.load(con)
    found = mixed(con, "sft", "0003", SFT_MIXTURE)
    assert len(found.rows) and set(found.rows["dataset_id"].to_pylist()) == {found.dataset_id}
    placed = [row | {"iteration": "0003", "stage": "sft_dataset"} for row in found.rows.to_pylist()]
    pa.Table.from_pylist(placed, schema=TABLES["datasets"].schema)
    for table in store.rows.values():
        random.Random(7).shuffle(table)
    store.load(con)
    assert mixed(con, "sft", "0003", SFT_MIXTURE) == found
    assert mixed(con, "ct", "0003", SFT_MIXTURE).dataset_id != found.dataset_id
    assert mixed(con, "sft", "0003", SFT_MIXTURE.model_copy(update={"correction": SamplePool(draws=10)})).dataset_id != found.dataset_id


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 1e4), st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 100)), min_size=1, max_size=30))
def test_allocation_keeps_caps_gives_all_it_can_and_is_fair(total: float, parts: list[tuple[float, float]]) -> None:
    weights, caps = [w for w, _ in parts], [c for _, c in parts]
    amounts = allocate(total, weights, caps)
    assert all(0 <= amount <= cap for amount, cap in zip(amounts, caps, strict=True))
    assert sum(amounts) == pytest.approx(min(total, sum(caps)))
    rates = [amount / weight for amount, weight, cap in zip(amounts, weights, caps, strict=True) if amount < cap * (1 - 1e-9)]
    assert max(rates, default=0.0) == pytest.approx(min(rates, default=0.0)), "whatever is below its cap is shared by weight"


def general(store: Store, num: int, text: str = "tell me of the sea") -> None:
    for _ in range(num):
        store.add("ct_samples", 1, "tutorial", iteration="0000")
        message = {"role": "user", "content": f"{text} {len(store.rows['ct_samples'])}", "screenshot_id": None, "loss": 0.0}
        store.rows["ct_samples"][-1] |= {"origin": "general", "messages": [message]}


def test_general_data_make_their_share_of_an_epoch(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("ct_samples", 100, "tutorial", iteration="0000")
    general(store, 50)
    store.load(con)
    mixture = CT_MIXTURE.model_copy(update={"general": SamplePool(), "general_share": 0.8})
    assert by_component(mixed(con, "ct", "0001", mixture).rows.to_pylist()) == {"general": 400, "tutorial": 100}
    few = mixture.model_copy(update={"general": SamplePool(max_repeats=2)})
    rows = mixed(con, "ct", "0001", few).rows.to_pylist()
    num = sum(row["component"] == "general" for row in rows)
    assert 40 <= num < 50, "one in twenty is in no dataset"
    assert by_component(rows) == {"general": 2 * num, "tutorial": 100}
    assert "general" not in by_component(mixed(con, "ct", "0001", CT_MIXTURE).rows.to_pylist())
    with pytest.raises(ValueError, match="general_share"):
        MixtureConfig(general_share=0.5)


def test_general_data_that_give_an_evaluated_instance_away_are_left_out(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    general(store, 3)
    general(store, 2, "Someone asked: click  the RED button twice please, and I did")
    general(store, 1, "click it now")
    store.add("ct_samples", 1, "rollout", iteration="0009", verdict=False)
    store.rows["episodes"][-1] |= {"split": "holdout", "purpose": "evaluation", "instruction": "Click the red button twice"}
    store.add("ct_samples", 1, "rollout", iteration="0009", verdict=False)
    store.rows["episodes"][-1] |= {"split": "eval", "purpose": "evaluation", "instruction": "click it"}
    store.load(con)
    assert by_component(mixed(con, "ct", "0001", MixtureConfig(general=SamplePool())).rows.to_pylist()) == {"general": 4}
    reported = mixed(con, "ct", "0001", MixtureConfig(general=SamplePool())).left_out
    assert set(reported.values()) == {"click the red button twice"}, "what is dropped is listed, with what it repeats"
    assert not mixed(con, "ct", "0001", MixtureConfig(tutorial=SamplePool())).left_out, "the mixture takes none of them anyway"


def instance(seed: int, instruction: str | None, split: str) -> dict[str, Any]:
    return {
        "iteration": "0000",
        "stage": "tasks",
        "task_id": "task-a",
        "seed": seed,
        "split": split,
        "content_id": f"c{seed}",
        "difficulty": 0.0,
        "instruction": instruction,
        "provenance": "{}",
        "why": "evaluated on",
    }


def test_what_people_did_elsewhere_gives_no_evaluated_instance_away(con: duckdb.DuckDBPyConnection) -> None:
    """Known from the first snapshot on, before anything was evaluated. What a policy of ours did on a train instance stays, whatever it
    was asked."""
    asked = "click the red button twice"
    store = Store()
    other = "move the book to shelf A1"
    store.rows["task_instances"] = [instance(1, asked, "holdout"), instance(2, other, "train"), instance(3, None, "eval")]
    for table, num in (("sft_samples", 2), ("ct_samples", 3)):
        store.add(table, num, "demonstration" if table == "sft_samples" else "annotation")
        for episode in store.rows["episodes"][-num:]:
            episode |= {"policy_id": "human", "purpose": "seed", "instruction": f"Please,  {asked.upper()}!"}
        store.rows["episodes"][-1]["instruction"] = other
    store.rows["episodes"][-2] |= {"policy_id": "unknown", "stage": "imported_logs"}
    chat = [{"role": "user", "content": f"Now {asked}", "screenshot_id": None, "loss": 0.0}]
    for table, origin in (("sft_samples", "demonstration"), ("ct_samples", "annotation"), ("sft_samples", "rollout")):
        store.add(table, 1, origin)
        store.rows[table][-1] |= {"episode_id": None, "messages": chat}
    store.add("sft_samples", 4, "demonstration")
    for episode in store.rows["episodes"][-4:]:
        episode |= {"policy_id": "oracle", "purpose": "seed", "instruction": asked}
    store.load(con)
    loose = {"max_task_share": 1.0, "max_domain_share": 1.0}
    mixture = MixtureConfig(demonstration=SamplePool(), on_policy=SamplePool(), in_situ=SamplePool(), **loose)
    found = mixed(con, "sft", "0002", mixture)
    assert by_component(found.rows.to_pylist()) == {"demonstration": 5, "in_situ": 1}
    assert list(found.left_out.values()) == [asked] * 6
    people = [episode["episode_id"] for episode in store.rows["episodes"] if episode["policy_id"] in ("human", "unknown")]
    assert [repeated_by(con, episode) for episode in people] == [asked, None, asked, asked, None]
    assert repeated_by(con, store.rows["episodes"][-1]["episode_id"]) is None
    assert by_component(mixed(con, "sft", "0002", mixture.model_copy(update={"in_situ": None})).rows.to_pylist()) == {"demonstration": 5}


def test_a_harness_that_may_run_scripts_in_the_page_gives_no_other_instance_away(con: duckdb.DuckDBPyConnection) -> None:
    """Its own instruction may be that of an evaluated instance; another's in what it read says that it started one."""
    store, own, other = Store(), "click the red button twice", "move the book to shelf A1"
    store.rows["task_instances"] = [instance(1, own, "holdout"), instance(2, other, "eval")]
    store.add("sft_samples", 3, "demonstration")
    for row, said in zip(store.rows["sft_samples"], (own, f"{own}, then {other}", f"{own}, then {other}"), strict=True):
        row["messages"] = [{"role": "user", "content": said, "screenshot_id": None, "loss": 0.0}]
    for episode, means in zip(store.rows["episodes"], ("; DevTools", "; DevTools", ""), strict=True):
        episode |= {"policy_id": "p", "purpose": "gateway", "instruction": own, "environment": f"miniwob 1{means}; harness mine"}
    store.load(con)
    found = mixed(con, "sft", "0002", MixtureConfig(demonstration=SamplePool(), max_task_share=1.0, max_domain_share=1.0))
    leaking = store.rows["sft_samples"][1]
    assert found.left_out == {leaking["sample_id"]: other.lower()}
    repeated = [repeated_by_samples(con, episode["episode_id"]) for episode in store.rows["episodes"]]
    assert repeated == [{}, {leaking["sample_id"]: other.lower()}, {}]


def totals_by(con: duckdb.DuckDBPyConnection, store: Store, mixture: MixtureConfig, column: str, iteration: str = "0004") -> dict[str, int]:
    store.load(con)
    samples = store.rows["sft_samples"]
    place = {row["sample_id"]: row | episode for row, episode in zip(samples, store.rows["episodes"], strict=True)}
    found: dict[str, float] = defaultdict(float)
    for row in mixed(con, "sft", iteration, mixture).rows.to_pylist():
        found[place[row["sample_id"]][column]] += row["weight"]
    return {name: round(total) for name, total in sorted(found.items())}


def test_tasks_that_are_solved_often_weigh_no_more_where_balance_is_asked(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 900, "rollout", "task-a")
    store.add("sft_samples", 100, "rollout", "task-b")
    free = MixtureConfig(on_policy=SamplePool(draws=100), max_task_share=1.0, max_domain_share=1.0)
    assert totals_by(con, store, free, "task_id") == {"task-a": 90, "task-b": 10}
    half = free.model_copy(update={"success_balance": 0.5})
    assert totals_by(con, store, half, "task_id") == {"task-a": 75, "task-b": 25}
    assert totals_by(con, store, free.model_copy(update={"success_balance": 1.0}), "task_id") == {"task-a": 50, "task-b": 50}
    shown = MixtureConfig(demonstration=SamplePool(draws=100), max_task_share=1.0, max_domain_share=1.0, success_balance=1.0)
    demonstrated = Store()
    demonstrated.add("sft_samples", 90, "demonstration", "task-a")
    demonstrated.add("sft_samples", 10, "demonstration", "task-b")
    assert totals_by(con, demonstrated, shown, "task_id") == {"task-a": 90, "task-b": 10}, "demonstrations were given, not sampled"


def test_a_domain_has_a_cap_of_its_own(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 50, "rollout", "task-a")
    store.add("sft_samples", 50, "rollout", "task-c")
    mixture = MixtureConfig(on_policy=SamplePool(draws=100), max_task_share=1.0, domain_caps={"forms": 0.1})
    assert totals_by(con, store, mixture, "domain") == {"forms": 10, "pointing": 75}
    assert totals_by(con, store, mixture.model_copy(update={"domain_caps": {}}), "domain") == {"forms": 50, "pointing": 50}


def test_earlier_iterations_are_replayed_in_the_share_kept_for_them(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 10, "rollout", "task-a", iteration="0001")
    store.add("sft_samples", 190, "rollout", "task-a", iteration="0003")
    mixture = MixtureConfig(on_policy=SamplePool(draws=100), max_task_share=1.0, max_domain_share=1.0, replay_share=0.4)
    assert totals_by(con, store, mixture, "iteration") == {"0001": 40, "0003": 60}
    capped = mixture.model_copy(update={"on_policy": SamplePool(draws=100, max_repeats=2)})
    assert totals_by(con, store, capped, "iteration") == {"0001": 20, "0003": 80}, "what replay cannot fill goes to the newest"
    young = Store()
    young.add("sft_samples", 10, "rollout", "task-a", iteration="0003")
    assert totals_by(con, young, mixture, "iteration") == {"0003": 100}, "there is nothing to replay"


def test_what_fades_to_nothing_is_not_in_a_snapshot(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 2, "rollout", iteration="0001")
    store.add("sft_samples", 2, "rollout", iteration="0003")
    store.load(con)
    rows = mixed(con, "sft", "0004", MixtureConfig(on_policy=SamplePool(draws=6), decay=1e-200)).rows.to_pylist()
    assert {row["sample_id"]: row["weight"] for row in rows} == {"sample-0002": 3.0, "sample-0003": 3.0}


def test_failures_of_no_weight_have_no_pool() -> None:
    mixture = MixtureConfig(failure=SamplePool(draws=3), tutorial=SamplePool(), ct_weight=0)
    assert (
        mixture.sample_pool("failure") is None
        and mixture.sample_pool("tutorial") == SamplePool()
        and mixture.sample_pool("general") is None
    )
    assert mixture.model_copy(update={"ct_weight": 0.5}).sample_pool("failure") == SamplePool(draws=3)


def test_a_small_share_is_no_less_than_an_even_one(con: duckdb.DuckDBPyConnection) -> None:
    """Two tasks cannot both stay under a fifth: each gets half, whatever their numbers. So with two domains."""
    store = Store()
    store.add("sft_samples", 90, "rollout", "task-a")
    store.add("sft_samples", 10, "rollout", "task-b")
    mixture = MixtureConfig(on_policy=SamplePool(draws=100), max_task_share=0.2, max_domain_share=0.2)
    assert totals_by(con, store, mixture, "task_id") == {"task-a": 50, "task-b": 50}
    store.add("sft_samples", 900, "rollout", "task-c")
    assert totals_by(con, store, mixture, "domain") == {"forms": 50, "pointing": 50}
    wide = mixture.model_copy(update={"max_domain_share": 0.8})
    assert totals_by(con, store, wide, "task_id") == {"task-a": 18, "task-b": 2, "task-c": 80}, "a fifth of the pool is all of a domain"
    bounded = wide.model_copy(update={"max_task_share": 0.15})
    assert totals_by(con, store, bounded, "task_id") == {"task-a": 15, "task-b": 5, "task-c": 80}
    loose = wide.model_copy(update={"max_task_share": 0.12, "max_domain_share": 0.5})
    assert totals_by(con, store, loose, "task_id") == {"task-a": 25, "task-b": 25, "task-c": 50}, "50 of 100, halved"
    uneven = wide.model_copy(update={"max_task_share": 0.3, "max_domain_share": 0.5})
    assert totals_by(con, store, uneven, "task_id") == {"task-a": 30, "task-b": 20, "task-c": 50}, "0.3 of the pool is 0.6 of the domain"


def test_repeats_are_bounded_for_ages_and_domains_alike(con: duckdb.DuckDBPyConnection) -> None:
    """By weight the newest ten would take nearly everything; they are drawn once each, and the rest goes to the others."""
    aged, apart = Store(), Store()
    aged.add("sft_samples", 10, "rollout", "task-a", iteration="0001")
    aged.add("sft_samples", 10, "rollout", "task-a", iteration="0003")
    apart.add("sft_samples", 100, "rollout", "task-a", iteration="0001")
    apart.add("sft_samples", 10, "rollout", "task-c", iteration="0003")
    settings = {"max_task_share": 1.0, "max_domain_share": 1.0, "decay": 0.1}
    few, many = (MixtureConfig.model_validate({"on_policy": SamplePool(draws=num, max_repeats=1)} | settings) for num in (15, 60))
    assert totals_by(con, aged, few, "iteration") == {"0001": 5, "0003": 10}
    assert totals_by(con, apart, many, "iteration") == {"0001": 50, "0003": 10}


def test_little_is_drawn_where_little_is_asked_for_and_nothing_where_nothing_is(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 4, "rollout", "task-a", iteration="0001")
    store.add("sft_samples", 4, "rollout", "task-c", iteration="0002")
    store.load(con)
    for replay_share in (None, 0.5):
        mixture = MixtureConfig(on_policy=SamplePool(draws=0.5), replay_share=replay_share)
        rows = mixed(con, "sft", "0003", mixture).rows.to_pylist()
        assert len(rows) == 8 and by_component(rows) == {"rollout": 0.5}
        assert not len(mixed(con, "sft", "0003", mixture.model_copy(update={"on_policy": SamplePool(draws=0)})).rows)
    only_newest = MixtureConfig(on_policy=SamplePool(draws=8, max_repeats=1), max_task_share=1.0, max_domain_share=1.0, replay_share=0.9)
    assert totals_by(con, store, only_newest, "iteration", "0003") == {"0001": 4, "0002": 4}


def test_a_snapshot_says_what_it_is_first(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 1, "demonstration")
    store.load(con)
    found = mixed(con, "sft", "0002", SFT_MIXTURE)
    assert found.rows.column_names == ["dataset_id", "kind", "sample_id", "component", "weight"] and found.left_out == {}
    assert found.rows.to_pylist()[0] == {
        "dataset_id": found.dataset_id,
        "kind": "sft",
        "sample_id": "sample-0000",
        "component": "demonstration",
        "weight": 250.0,
    }
    few = SFT_MIXTURE.model_copy(update={"demonstration": SamplePool(draws=1 / 3)})
    assert mixed(con, "sft", "0002", few).rows["weight"].to_pylist() == [0.333333], "to six digits"


@pytest.mark.parametrize(("num", "more"), [(20, ". Only"), (21, "; and 1 more. Only"), (23, "; and 3 more. Only")])
def test_of_many_foreign_samples_twenty_are_named(con: duckdb.DuckDBPyConnection, num: int, more: str) -> None:
    store = Store()
    store.add("sft_samples", num, "rollout", split="eval")
    store.load(con)
    with pytest.raises(ContaminatedDataset) as refused:
        mixed(con, "sft", "0002", SFT_MIXTURE)
    reported = str(refused.value)
    assert reported.startswith("sample sample-0000 may not be trained on: its episode episode-0 was run on an instance of the eval split; ")
    assert reported.count("may not be trained on") == 20 and f"of the eval split{more}" in reported


def test_what_is_shared_out_by_hand() -> None:
    assert allocate(12, [1, 2, 3], [9, 9, 9]) == [2, 4, 6]
    assert allocate(12, [1, 2, 3], [9, 9, 3]) == [3, 6, 3], "three are left over, a third to the first"
    assert allocate(12, [1, 2, 3], [1, 2, 3]) == [1, 2, 3] and allocate(12, [1, 1], [6, 9]) == [6, 6]
    assert allocate(0, [1, 2], [1, 1]) == [0, 0] and allocate(5, [], []) == [] and allocate(2, [1, 1], [0, 9]) == [0, 2]
    assert allocate(0.5, [1, 3], [9, 9]) == [0.125, 0.375]


def test_the_new_settings_leave_snapshots_of_before_as_they_were(con: duckdb.DuckDBPyConnection) -> None:
    store = Store()
    store.add("sft_samples", 33, "rollout", "task-a", iteration="0001")
    store.add("sft_samples", 17, "rollout", "task-b", iteration="0002")
    store.add("sft_samples", 29, "annotation", "task-c", decision="override")
    store.add("sft_samples", 12, "demonstration", "task-b", iteration="0000")
    store.add("ct_samples", 40, "tutorial")
    store.load(con)
    assert mixed(con, "sft", "0003", SFT_MIXTURE).dataset_id == "dataset-0ac919feee144224"
