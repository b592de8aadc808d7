"""Every invariant on small tables: none is broken after a regular iteration, and each names the row that breaks it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.gates.invariants import INVARIANTS
from tests.warehouse.conftest import Make
from warehouse.core.home import Home
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SEED, ACTED, ROUTED = (
    {"iteration": "0000", "stage": "seed_demonstrations"},
    {"iteration": "0001", "stage": "rollouts"},
    {"iteration": "0001", "stage": "routing"},
)
CHECKPOINT = "ckpt-1"


def episode(episode_id: str, **rest: Any) -> dict[str, Any]:
    return Make.episode(episode_id, policy_id=CHECKPOINT, **rest)


def steps(episode_id: str, **rest: Any) -> list[dict[str, Any]]:
    return [Make.step(episode_id, index, **rest) for index in (0, 1)]


def member(sample_id: str, kind: str = "sft", weight: float = 1.0) -> dict[str, Any]:
    return {"dataset_id": f"data-{kind}", "kind": kind, "sample_id": sample_id, "component": "demonstration", "weight": weight}


def instance(seed: int, content_id: str, split: str = "train") -> dict[str, Any]:
    return {
        "task_id": "task-a",
        "seed": seed,
        "split": split,
        "content_id": content_id,
        "instruction": "Click",
        "difficulty": 0.5,
        "provenance": "{}",
        "why": "seed",
    }


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Warehouse:
    shutil.copytree(finished_once, tmp_path / "home")
    return Warehouse(Home(tmp_path / "home"))


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed and one iteration, as an iteration writes them."""
    made = Warehouse(Home(tmp_path_factory.mktemp("finished")))
    made.replace_partition("tasks", [Make.task("task-a"), Make.task("task-b", held_out=True)], iteration="0000", stage="tasks")
    made.add_screenshots([Make.screenshot("shot-0", b"a"), Make.screenshot("shot-1", b"b")])
    made.replace_partition("episodes", [Make.episode("ep-seed", purpose="seed", seed=9)], **SEED)
    made.replace_partition("steps", steps("ep-seed"), **SEED)
    samples = [Make.sample(f"seed-{index}", episode_id="ep-seed", step_index=index) for index in (0, 1)]
    made.replace_partition("sft_samples", samples, **SEED)
    tutorial = Make.sample("tutorial", origin="tutorial", verdict=None, domain="general")
    made.replace_partition("ct_samples", [tutorial], iteration="0000", stage="seed_tutorials")
    made.replace_partition("checkpoints", [Make.checkpoint(CHECKPOINT)], iteration="0001", stage="released_policy")
    made.replace_partition("datasets", [member("tutorial", "ct")], iteration="0001", stage="ct_dataset")
    members = [member("seed-0"), member("seed-1"), member("tutorial", "ct")]
    made.replace_partition("datasets", members, iteration="0001", stage="sft_dataset")
    act(made)
    made.replace_partition("task_instances", [instance(1, "a"), instance(2, "b")], iteration="0001", stage="task_pool")
    return made.home.root


def act(made: Warehouse, *more: dict[str, Any]) -> None:
    """Rollouts of the iteration: one solved, one not, one crashed; and what became of them."""
    failed = episode("ep-bad", seed=2, outcome="failure", reward=0.0)
    crashed = episode("ep-lost", seed=3, outcome="crashed", reward=None, error="gone", num_steps=0)
    episodes = {row["episode_id"]: row for row in (episode("ep-good"), failed, crashed, *more)}
    made.replace_partition("episodes", list(episodes.values()), **ACTED)
    made.replace_partition("steps", [*steps("ep-good"), *steps("ep-bad")], **ACTED)
    verdicts = [Make.verdict("ep-good", judge="verifier"), Make.verdict("ep-bad", judge="verifier", score=0.0, passed=False)]
    made.replace_partition("verdicts", verdicts, iteration="0001", stage="verdicts")
    routes = {
        "ep-good": ("sft", "V=1: verifier 1 >= 0.5, 9 filters passed"),
        "ep-bad": ("ct", "V=0: verifier 0 < 0.5"),
        "ep-lost": ("withheld", "crashed: gone"),
    }
    rows = [{"episode_id": name, "route": route, "reason": reason} for name, (route, reason) in routes.items()]
    made.replace_partition("routes", rows, **ROUTED)
    made.replace_partition("annotations", [Make.annotation("note", "ep-bad")], iteration="0001", stage="annotations")
    made.replace_partition("sft_samples", [Make.sample("good-0", origin="rollout", episode_id="ep-good", step_index=0)], **ROUTED)
    made.replace_partition("ct_samples", [Make.sample("bad-0", origin="rollout", episode_id="ep-bad", verdict=False)], **ROUTED)


def broken(warehouse: Warehouse, *names: str) -> dict[str, str]:
    """What the invariants (these, or all) say of the seed and of iteration 0001: the rows that break them, by name."""
    found = {}
    with connect(warehouse) as con:
        for invariant in (each for each in INVARIANTS if not names or each.name in names):
            iteration = "0000" if invariant.asset.startswith("seed_") else "0001"
            rows = con.sql(invariant.sql, params={"iteration": iteration}).to_arrow_table().to_pylist()
            if rows:
                found[invariant.name] = str(rows)
    return found


def sft(*rows: dict[str, Any]) -> Callable[[Warehouse], Any]:
    return lambda made: made.replace_partition("sft_samples", list(rows), iteration="0001", stage="imported")


def rollouts(*rows: dict[str, Any]) -> Callable[[Warehouse], Any]:
    return lambda made: act(made, *rows)


def seeded(table: str, *rows: dict[str, Any], stage: str = "imported", iteration: str = "0000") -> Callable[[Warehouse], Any]:
    return lambda made: made.replace_partition(table, list(rows), iteration=iteration, stage=stage)


def played_twice(made: Warehouse, differs: list[bool]) -> None:
    """Solved holdout instances that were played again in the other browser, where some were not solved."""
    made.replace_partition(
        "episodes",
        [
            episode(f"ep-{purpose}-{seed}", purpose=purpose, split="holdout", seed=100 + seed, outcome="failure" if fails else "success")
            for seed, fails_there in enumerate(differs)
            for purpose, fails in (("evaluation", False), ("second_browser", fails_there))
        ],
        iteration="0001",
        stage="evaluation",
    )


LEAK = Make.sample("leak", origin="rollout", episode_id="ep-eval")
FAULTS: dict[str, tuple[Callable[[Warehouse], Any], str]] = {
    "demonstrations_on_train_only": (
        lambda made: made.replace_partition("episodes", [Make.episode("ep-seed", purpose="seed", outcome="failure")], **SEED),
        "seed-0",
    ),
    "ct_dataset_of_samples_there_are": (seeded("datasets", member("nobody", "ct"), stage="ct_dataset", iteration="0001"), "nobody"),
    "sft_dataset_of_samples_there_are": (seeded("sft_samples", Make.sample("seed-0")), "0000/imported"),
    "sft_dataset_trains_on_train_only": (
        lambda made: made.replace_partition("episodes", [Make.episode("ep-seed", purpose="seed", split="eval")], **SEED),
        "seed-1",
    ),
    "sft_dataset_screenshots_present": (seeded("datasets", member("good-0"), stage="sft_dataset", iteration="0001"), "shot-9"),
    "sft_dataset_of_successes_and_corrections": (
        lambda made: made.replace_partition("sft_samples", [Make.sample("seed-0", verdict=False), Make.sample("seed-1")], **SEED),
        "seed-0",
    ),
    "verdicts_agree_in_full_chromium": (lambda made: played_twice(made, [True, True]), "'here': 'success', 'there': 'failure'"),
    "episodes_counted_once": (seeded("episodes", episode("ep-good"), iteration="0001"), "0001/imported"),
    "contents_of_one_split": (
        rollouts(
            episode("ep-good", content_id="content-1"),
            episode("ep-bad", seed=9, split="holdout", purpose="evaluation", outcome="failure", reward=0.0, content_id="content-1"),
        ),
        "'learned_from': 'ep-good', 'evaluated': 'ep-bad'",
    ),
    "instances_of_one_split": (rollouts(episode("ep-bad", seed=9, split="eval", outcome="failure", reward=0.0)), "'eval', 'train'"),
    "pool_without_duplicates": (seeded("task_instances", instance(5, "a", "holdout"), iteration="0001", stage="more"), "task-a/5"),
    "policies_registered": (rollouts(episode("ep-good") | {"policy_id": "ckpt-x"}), "ckpt-x"),
    "screenshots_present": (
        lambda made: made.replace_partition("steps", [*steps("ep-good"), *steps("ep-bad", screenshot_id="shot-9")], **ACTED),
        "shot-9",
    ),
    "steps_of_an_episode_complete": (rollouts(episode("ep-good", num_steps=3)), "ep-good"),
    "tokens_with_their_log_probabilities": (
        lambda made: made.replace_partition("steps", [*steps("ep-good", response_token_ids=[1, 2]), *steps("ep-bad")], **ACTED),
        "ep-good",
    ),
    "outcomes_with_their_rewards": (rollouts(episode("ep-lost", seed=3, outcome="crashed", reward=0.0, num_steps=0)), "ep-lost"),
    "annotations_of_steps_there_are": (
        seeded("annotations", Make.annotation("far", "ep-bad", step_index=7), iteration="0001", stage="annotations"),
        "far",
    ),
    "verdicts_follow_their_scores": (
        seeded("verdicts", Make.verdict("ep-good", judge="orm", score=0.1), iteration="0001", stage="orm"),
        "ep-good",
    ),
    "verdict_for_every_end": (seeded("verdicts", Make.verdict("ep-good", judge="verifier"), iteration="0001", stage="verdicts"), "ep-bad"),
    "routing_total_and_disjoint": (
        seeded("routes", {"episode_id": "ep-good", "route": "ct", "reason": "too"}, iteration="0001", stage="other"),
        "ep-good",
    ),
    "sft_only_successes_or_corrections": (sft(Make.sample("bad", origin="rollout", episode_id="ep-bad", verdict=False)), "bad"),
    "sft_verdict_agrees_with_its_route": (sft(Make.sample("lie", origin="rollout", episode_id="ep-bad")), "lie"),
    "corrections_stand": (
        lambda made: (
            made.replace_partition(
                "annotations", [Make.annotation("note", "ep-bad", decision="beyond_repair")], iteration="0001", stage="annotations"
            ),
            sft(Make.sample("hopeless", origin="annotation", episode_id="ep-bad", annotation_id="note", verdict=False))(made),
        ),
        "hopeless",
    ),
    "sft_trains_on_train_only": (
        lambda made: (
            seeded("episodes", episode("ep-eval", purpose="evaluation", split="holdout", seed=7), iteration="0001")(made),
            seeded("steps", *steps("ep-eval"), iteration="0001")(made),
            sft(LEAK)(made),
        ),
        "leak",
    ),
    "ct_trains_on_train_only": (
        lambda made: (
            rollouts(episode("ep-good", task_id="task-b"))(made),
            seeded("ct_samples", Make.sample("held", origin="rollout", episode_id="ep-good"), iteration="0001")(made),
        ),
        "held",
    ),
    "sft_history_without_duplicates": (sft(Make.sample("good-0", episode_id="ep-good")), "0001/imported"),
    "ct_history_without_duplicates": (seeded("ct_samples", Make.sample("tutorial"), iteration="0001"), "0000/seed_tutorials"),
    "sft_learns_from_something": (sft(Make.sample("mute", messages=[{"role": "user", "content": "x", "loss": 0.0}])), "mute"),
    "orm_verdicts_are_true": (seeded("orm_samples", Make.sample("lie", episode_id="ep-bad"), iteration="0001"), "lie"),
    "orm_learns_from_something": (seeded("orm_samples", Make.sample("mute", messages=[]), iteration="0001"), "mute"),
}


def test_a_regular_iteration_breaks_none(finished: Warehouse) -> None:
    assert broken(finished) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_rule_names_its_row(finished: Warehouse, name: str) -> None:
    plant, named = FAULTS[name]
    if name == "sft_dataset_screenshots_present":
        shown = {"role": "user", "content": "x", "screenshot_id": "shot-9", "loss": 0.0}
        messages = [shown, {"role": "assistant", "content": "y", "loss": 1.0}]
        finished.replace_partition("sft_samples", [Make.sample("good-0", messages=messages)], iteration="0000", stage="imported")
    plant(finished)
    found = broken(finished, name)
    assert name in found and named in found[name], found


@pytest.mark.parametrize(
    ("num_alike", "num_differ", "is_broken"), [(1, 1, False), (0, 2, True), (9, 2, True), (18, 2, False), (17, 3, True)]
)
def test_one_in_ten_verdicts_may_differ_in_the_other_browser(finished: Warehouse, num_alike: int, num_differ: int, is_broken: bool) -> None:
    played_twice(finished, [False] * num_alike + [True] * num_differ)
    assert bool(broken(finished, "verdicts_agree_in_full_chromium")) == is_broken


OF_A_FAILURE = {"episode_id": "ep-bad", "step_index": 0}
BLUFFS = {
    "rollout": Make.sample("bluff", origin="rollout", **OF_A_FAILURE),
    "demonstration": Make.sample("bluff", origin="demonstration", **OF_A_FAILURE),
    "general text": Make.sample("bluff", origin="general", **OF_A_FAILURE),
    "correction": Make.sample("bluff", origin="correction", **OF_A_FAILURE),
    "annotation that is not there": Make.sample("bluff", origin="annotation", annotation_id="nobody", **OF_A_FAILURE),
}


@pytest.mark.parametrize("bluff", BLUFFS)
def test_a_step_of_a_failed_episode_is_not_learned_though_it_says_that_it_succeeded(finished: Warehouse, bluff: str) -> None:
    assert BLUFFS[bluff]["verdict"] is True
    finished.replace_partition("sft_samples", [BLUFFS[bluff]], iteration="0000", stage="imported")
    finished.replace_partition("datasets", [member("bluff")], iteration="0001", stage="sft_dataset")
    rule = "sft_dataset_of_successes_and_corrections"
    assert "'bluff'" in broken(finished, rule)[rule]


def test_what_another_home_exported_is_taken_at_its_word(finished: Warehouse) -> None:
    rule = "sft_dataset_of_successes_and_corrections"
    exported = [Make.sample(f"came-{origin}", origin=origin, episode_id=None) for origin in ("rollout", "correction", "reflection")]
    finished.replace_partition("datasets", [member(row["sample_id"]) for row in exported], iteration="0001", stage="sft_dataset")
    finished.replace_partition("sft_samples", exported, iteration="0000", stage="imported_theirs")
    assert broken(finished, rule) == {}
    finished.replace_partition("sft_samples", [row | {"verdict": None} for row in exported], iteration="0000", stage="imported_theirs")
    assert "'came-rollout'" in broken(finished, rule)[rule], "it does not say that it succeeded"
    finished.replace_partition("sft_samples", [], iteration="0000", stage="imported_theirs")
    finished.replace_partition("sft_samples", exported, iteration="0001", stage="routing")
    assert "'came-rollout'" in broken(finished, rule)[rule], "what was routed here is of an episode"


def routed(made: Warehouse, **reasons: str) -> None:
    """Other routes than those of `act`, by the episode's name without `ep-`."""
    where = {"V=1: ": "sft", "V=0: ": "ct"}
    rows = [
        {"episode_id": f"ep-{name}", "route": where.get(reason[:5], "withheld"), "reason": reason}
        for name, reason in {"lost": "crashed: gone", **reasons}.items()
    ]
    made.replace_partition("routes", rows, **ROUTED)


def test_a_threshold_that_the_profiles_rules_lower_breaks_no_rule(finished: Warehouse) -> None:
    """routing.rules with {orm: {threshold: 0.4}}: what the stored threshold fails is routed to SFT all the same."""
    said = Make.verdict("ep-good", judge="orm", origin="orm", score=0.45, threshold=0.8, passed=False)
    finished.replace_partition("verdicts", [said], iteration="0001", stage="verdicts")
    routed(finished, good="V=1: orm 0.45 >= 0.4, 9 filters passed", bad="unjudged: no judge gave V")
    agrees = "sft_verdict_agrees_with_its_route"
    assert broken(finished, agrees, "verdict_for_every_end") == {}
    routed(finished, good="V=1: orm 0.9 >= 0.4, 9 filters passed", bad="unjudged: no judge gave V")
    assert "good-0" in broken(finished, agrees)[agrees], "the route tells of a score that nobody gave"
    routed(finished, good="V=1: judge 0.45 >= 0.4, 9 filters passed", bad="unjudged: no judge gave V")
    assert "good-0" in broken(finished, agrees)[agrees], "nor has this judge spoken"
    sft(Make.sample("elsewhere", origin="correction", episode_id="ep-seed"))(finished)
    assert "elsewhere" in broken(finished, agrees)[agrees], "a correction is of an episode that was routed"


def test_in_a_domain_the_verifier_speaks_for_every_episode_or_for_none(finished: Warehouse) -> None:
    rule = "verdict_for_every_end"
    spoken = [Make.verdict("ep-good", judge="verifier")]
    finished.replace_partition("verdicts", spoken, iteration="0001", stage="verdicts")
    good = "V=1: verifier 1 >= 0.5, 9 filters passed"
    routed(finished, good=good, bad="unjudged: no judge gave V")
    assert "ep-bad" in broken(finished, rule)[rule], "the verifier that spoke for one has lost its word on the other"
    act(finished, episode("ep-bad", seed=2, domain="forms", outcome="failure", reward=0.0))
    finished.replace_partition("verdicts", spoken, iteration="0001", stage="verdicts")
    routed(finished, good=good, bad="unjudged: no judge gave V")
    assert broken(finished, rule) == {}, "in a domain of its own that nobody may judge"
    routed(finished, good=good, bad="V=0: orm 0.2 < 0.5")
    assert "ep-bad" in broken(finished, rule)[rule], "no V is there, and it is not withheld for that"
    finished.append_partition("verdicts", [Make.verdict("ep-bad", judge="orm", origin="orm")], iteration="0001", stage="judgements")
    assert broken(finished, rule) == {}


def test_what_is_taken_back_breaks_no_rule_of_before_and_may_not_be_trained_on_after(finished: Warehouse) -> None:
    sft(Make.sample("bad", origin="rollout", episode_id="ep-bad", verdict=False))(finished)
    assert broken(finished, "sft_only_successes_or_corrections")
    withdraw(finished, "sft_samples", ["bad", "seed-1"], iteration="0002")
    assert broken(finished) == {}
    withdraw(finished, "sft_samples", ["seed-0"], iteration="0001")
    assert broken(finished, "sft_dataset_of_samples_there_are")


def test_every_rule_says_how_it_is_mended_and_has_a_name_of_its_own() -> None:
    assert len({invariant.name for invariant in INVARIANTS}) == len(INVARIANTS)
    for invariant in INVARIANTS:
        assert invariant.fix and invariant.meaning and "$iteration" in invariant.sql, invariant.name
