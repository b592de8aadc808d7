"""Blame by source and episode from the influence of samples; where samples are from; what a policy lost, and by which training."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from warehouse.core.errors import ConfigError, UnknownId
from warehouse.lineage import registry
from warehouse.lineage.blame import OUTLIER, Blame, Scored, blame, members, robust_scores, tail
from warehouse.lineage.regression import regression, stages_between
from warehouse.lineage.sources import Traced, traced
from warehouse.storage.tables import Warehouse


def samples_of(num: int, judges: int = 3) -> list[Traced]:
    """Two samples an episode, episodes judged in turn."""
    return [
        Traced(
            sample_id=f"s-{place}",
            table="sft_samples",
            weight=1.0,
            episode_id=f"ep-{place // 2}",
            annotation_id=None,
            task="click",
            seed=place // 2,
            sources={"judge": f"judge-{place // 2 % judges}", "task list": "miniwob"},
        )
        for place in range(num)
    ]


def scored(harm_NF: np.ndarray, **more: Any) -> Scored:
    num, folds = harm_NF.shape
    whole: dict[str, Any] = {"draws_N": np.full(num, 2.0), "stands_for_N": np.ones(num), "fold_sizes_F": np.ones(folds)} | more
    return Scored(harm_NF=harm_NF, **whole)


def test_the_source_with_the_harmful_episodes_is_first_and_they_are_named() -> None:
    rng = np.random.default_rng(1)
    samples = samples_of(240)
    harm = rng.normal(-0.01, 0.002, size=(240, 8))  # all of them helped a little
    for episode in (0, 9, 33, 60):  # of judge-0
        harm[2 * episode : 2 * episode + 2] += 0.05
    found = blame(samples, scored(harm))
    assert found.sources[0].key == "judge=judge-0" and found.most_blamed == found.sources[0]
    assert {one.episode_id for one in found.named} == {"ep-0", "ep-9", "ep-33", "ep-60"} and found.sources[0].num_named == 4
    assert [one.dimension for one in found.sources] == ["judge"] * 3, "what all samples share is not a source to blame"
    assert found.total < 0 and all(one.low <= one.blame <= one.high for one in (*found.sources, *found.episodes))
    assert blame(samples, scored(harm)) == found and Blame.model_validate_json(found.model_dump_json()) == found


def test_blame_is_what_it_did_beyond_the_others_in_its_place() -> None:
    samples = samples_of(12, judges=2)
    harm = np.full((12, 2), -0.3)
    assert all(one.blame == pytest.approx(0) for one in blame(samples, scored(harm)).sources), "who helps like the others is not to blame"
    harm[[0, 1]] = 0.7  # of 6 samples of judge-0 two
    first = blame(samples, scored(harm)).sources[0]
    assert first.key == "judge=judge-0" and first.blame == pytest.approx(2 * 0.7 - 4 * 0.3 + 6 * 0.3)
    # one sample that stands for two counts as both
    half = [0, 2, 4, 6, 8, 10]
    twice = blame([samples[row] for row in half], scored(harm[half], stands_for_N=np.full(6, 2.0)))
    assert twice.sources[0].blame == pytest.approx(first.blame) and twice.sources[0].num_samples == 6


def test_an_episode_that_did_harm_to_one_lost_instance_alone_is_not_named() -> None:
    harm = np.random.default_rng(0).normal(0, 0.001, size=(80, 6))
    harm[10] = [-0.01, -0.01, -0.01, 1.0, -0.01, -0.01]
    found = blame(samples_of(80), scored(harm))
    assert found.episodes[0].episode_id == "ep-5" and found.episodes[0].score > OUTLIER and not found.episodes[0].is_named
    with pytest.raises(ValueError, match="80 samples and 79 rows"):
        blame(samples_of(80), scored(harm[:79]))


def test_tutorials_stand_out_only_as_an_episode_would() -> None:
    rng = np.random.default_rng(3)
    samples = samples_of(60) + [replace(one, sample_id=f"t-{place}", episode_id=None) for place, one in enumerate(samples_of(60))]
    harm = np.vstack([rng.normal(0, 0.01, size=(60, 8)), rng.normal(0, 0.0001, size=(60, 8))])
    harm[70], harm[80] = 0.01, 0.3  # the first is much among tutorials, and nothing among episodes
    assert [[*one.samples] for one in blame(samples, scored(harm)).named] == [["t-20"]]


def test_a_source_that_helps_on_the_whole_is_sure_by_how_many_of_its_episodes_are_named() -> None:
    rng = np.random.default_rng(2)
    samples = samples_of(600)
    harm = rng.normal(0, 0.002, size=(600, 8))
    own = [row for row, one in enumerate(samples) if one.sources["judge"] == "judge-1"]
    harm[own] -= 0.004  # better than the others, but for a few
    for row in own[:16]:
        harm[row] += 0.03
    found = blame(samples, scored(harm))
    first = found.sources[0]
    assert first.key == "judge=judge-1" and first.blame < 0 and first.is_sure and first.p_named < 0.01 and first.num_named == 8
    assert tail(0, 5, 3, 20) == 1 and tail(3, 3, 3, 6) == pytest.approx(1 / 20) and tail(2, 4, 2, 4) == 1
    few = blame(samples, scored(harm[:, :3]))
    assert not few.named and not any(one.is_sure for one in few.sources), "of three lost instances nothing is sure"


def test_robust_scores_are_standard_deviations_of_a_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(5, 2, size=20000)
    assert robust_scores(values).std() == pytest.approx(1, abs=0.05)
    assert (
        robust_scores(np.array([1.0, 1.0, 1.0, 1.0, 2.0]))[-1] > 3
        and not robust_scores(np.ones(3)).any()
        and not len(robust_scores(np.zeros(0)))
    )


def test_a_sample_is_traced_to_all_its_sources(planted: Warehouse) -> None:
    found = {one.sample_id: one for one in traced(planted, "data-sft-2", campaigns={"ep-bad": "checkout"})}
    assert found["sft-seed-0"].sources == {"task list": "miniwob", "collection": "demonstration"}
    corrected = found["sft-note-1"]
    assert corrected.sources["annotator"] == "oracle" and corrected.sources["campaign"] == "checkout"
    assert corrected.sources["collection"] == "annotation (demonstration) of 0001" and (corrected.task, corrected.seed) == (
        "click-button",
        2,
    )
    assert members(list(found.values()), "annotator=oracle") == {"sft-note-1"}
    with pytest.raises(ValueError, match=r"annotator=nobody.*annotator=oracle"):
        members(list(found.values()), "annotator=nobody")
    with pytest.raises(UnknownId, match="no dataset nowhere"):
        traced(planted, "nowhere")


@pytest.mark.usefixtures("tables_place")
def test_judges_and_imports_are_sources(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("ep-1")], iteration="0001", stage="rollouts")
    route = {"episode_id": "ep-1", "route": "sft", "reason": "V=1", "decided_verdict": True, "decided_by": "orm", "decided_score": 1.0}
    warehouse.replace_partition("routes", [route], iteration="0001", stage="routing")
    warehouse.replace_partition("sft_samples", [make.sample("s-1", origin="rollout", episode_id="ep-1")], iteration="0001", stage="routing")
    warehouse.replace_partition(
        "sft_samples", [make.sample("s-2"), make.sample("s-3", withdrawn=True)], iteration="0000", stage="imported_desks"
    )
    rows = [{"dataset_id": "d", "kind": "sft", "sample_id": f"s-{n}", "component": "rollout", "weight": 1.0} for n in (1, 2, 3)]
    warehouse.replace_partition("datasets", rows, iteration="0002", stage="sft_dataset")
    judged, imported = traced(warehouse, "d")
    assert judged.sources["judge"] == "orm" and imported.sources["import"] == "desks" and imported.sample_id == "s-2"


@pytest.fixture
def two(warehouse: Warehouse, make: Any) -> Warehouse:
    """`old` is live; `new` was trained from it and has played the same three instances of eval, of which it lost one."""
    rows = [{"dataset_id": "d", "kind": "sft", "sample_id": "s-1", "component": "demonstration", "weight": 1.0}]
    warehouse.replace_partition("datasets", rows, iteration="0002", stage="sft_dataset")
    made = {
        ("0000", "seed_policy"): make.checkpoint("seed"),
        ("0001", "sft_model"): make.checkpoint("old", parents=["seed"]),
        ("0001", "released_policy"): make.checkpoint("old", parents=["seed"]),
        ("0002", "sft_model"): make.checkpoint("sft", parents=["old"], datasets=["d"], config=json.dumps({"steps": 7})),
        ("0002", "rl_forms"): make.checkpoint("rl", parents=["sft"], datasets=["d"]),  # which it replays
        ("0002", "merged_policy"): make.checkpoint("new", parents=["rl"]),
        ("0003", "rl_forms"): make.checkpoint("rl-alone", parents=["new"], datasets=["d"]),
    }
    for (iteration, stage), row in made.items():
        warehouse.replace_partition("checkpoints", [row], iteration=iteration, stage=stage)
    for policy, iteration, lost in (("old", "0001", ()), ("new", "0002", (2,)), ("rl-alone", "0003", (2,))):
        same = {"purpose": "evaluation", "split": "eval", "policy_id": policy}
        played = [make.episode(f"{policy}-{n}", seed=n, outcome="failure" if n in lost else "success", **same) for n in (1, 2, 3)]
        warehouse.replace_partition("episodes", played, iteration=iteration, stage="evaluation")
        steps = [make.step(f"{policy}-2", place, action=json.dumps(place if place == 0 else [place, policy])) for place in (0, 1)]
        warehouse.replace_partition("steps", steps, iteration=iteration, stage="evaluation")
    return warehouse


@pytest.mark.usefixtures("tables_place")
def test_a_regression_is_asked_about_where_the_two_part(two: Warehouse) -> None:
    found = regression(two, "0002/merged_policy")
    assert (found.predecessor.checkpoint_id, found.num_alike) == ("old", 0)
    (lost,) = found.lost
    assert (lost.task, lost.seed, lost.step_index, lost.solved_by) == ("click-button", 2, 1, "old")
    assert lost.wanted.response and lost.given.messages[0]["role"] == "user"
    (stage,) = stages_between(two, found.policy, found.predecessor)
    assert (stage.name, stage.parent_id, stage.dataset_id, stage.kind, stage.config) == ("0002/sft_model", "old", "d", "sft", {"steps": 7})


def test_no_regression_no_evaluation_and_no_lineage_say_what_to_do(two: Warehouse, make: Any) -> None:
    for words, more, said in (
        (("0001/released_policy",), {"against": "0001/sft_model"}, "is old, the very policy that it would be compared with"),
        (
            ("0002/merged_policy",),
            {"against": "seed"},
            r"seed_policy \(seed\) has no stored episode on eval.*flywheel compare seed 0002/merged",
        ),
        (("old",), {"against": "0002/merged_policy"}, "has lost none of the 3 instances of eval"),
        (("0002/merged_policy",), {"tasks": ("nothing",)}, "no evaluated task or domain is called nothing; there are"),
    ):
        with pytest.raises(ConfigError, match=said):
            regression(two, *words, **more)
    alone, new = registry.named(two, "rl-alone"), registry.named(two, "new")
    with pytest.raises(UnknownId, match=r"no dataset that 0002/merged_policy .* 0003/rl_forms, which learn from episodes by their rewards"):
        stages_between(two, alone, new)
    two.replace_partition("steps", [], iteration="0002", stage="evaluation")
    with pytest.raises(ConfigError, match="none of the 1 lost instances has stored steps that part"):
        regression(two, "0002/merged_policy")


def test_what_an_oracle_solves_may_be_asked_about_as_well(two: Warehouse, make: Any) -> None:
    same = {"purpose": "evaluation", "split": "eval"}
    for policy, iteration in (("old", "0001"), ("new", "0002")):
        row = make.episode(f"{policy}-4", seed=4, outcome="failure", policy_id=policy, **same)
        two.replace_partition("episodes", [row], iteration=iteration, stage="more")
    two.replace_partition("steps", [make.step("new-4", 0, action='"wrong"')], iteration="0002", stage="more")
    two.replace_partition("episodes", [make.episode("oracle-4", seed=4, **same)], iteration="0002", stage="oracle")
    two.replace_partition("steps", [make.step("oracle-4", 0, action='"right"')], iteration="0002", stage="oracle")
    assert [one.seed for one in regression(two, "0002/merged_policy").lost] == [2]
    assert [(one.seed, one.solved_by) for one in regression(two, "0002/merged_policy", with_oracle=True).lost] == [
        (2, "old"),
        (4, "oracle"),
    ]
