"""A second iteration: what the first one left chooses it, and nothing that is only reported does.

The second one works on reported rows that say the contrary of what was measured; then its own are inverted as well and everything that
chooses is asked again. What it should have chosen is worked out here from the rows it may read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from statistics import fmean
from typing import Any

import dagster as dg
import pytest

from assets.iterations.partitions import ITERATIONS
from assets.release import released_policy
from assets.settings.profile import Profile
from assets.stages.requests import JudgeRequest
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.tasks.pool import make_task_pool
from models.judges.judge import Judgement
from pipelines import profiles
from pipelines.stages.judge import to_judge, words_to_choose
from tests.iterations.reported import plant, poison
from warehouse.datasets.mixing import mixed
from warehouse.evaluation.judge_reports import choose_thresholds
from warehouse.lineage import registry
from warehouse.routing.routes import route
from warehouse.storage.sql.query import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


class Smoke(ProfileResource):
    def load(self) -> Profile:
        return profiles.load("smoke")


def solved(workspace: Any, checkpoint_id: str, split: str) -> dict[tuple[str, int], bool]:
    query = "select task_id, seed, outcome from episodes where purpose = 'evaluation' and policy_id = ? and split = ?"
    rows = workspace.sql(query, checkpoint_id, split)
    return {(task, seed): outcome == "success" for task, seed, outcome in rows if outcome != "crashed"}


def loses(candidate: dict[tuple[str, int], bool], incumbent: dict[tuple[str, int], bool]) -> bool:
    """Worse on average over tasks, and by more than 0.03 or so that who bets on it, at fair odds, has won twenty times the stake."""
    gains: dict[str, list[int]] = defaultdict(list)
    for key in candidate.keys() & incumbent.keys():
        gains[key[0]].append(candidate[key] - incumbent[key])
    mean = sum(sum(each) / len(each) for each in gains.values()) / len(gains)
    wins, losses = (sum(gain == sign for each in gains.values() for gain in each) for sign in (1, -1))
    capital = fmean((1 - bet / 1000) ** wins * (1 + bet / 1000) ** losses for bet in range(751))
    return mean < -0.03 or (mean < 0 and capital > 20)


def released(workspace: Any) -> str:
    return registry.made_by(workspace.warehouse, "0002", "released_policy").checkpoint_id


def gate(workspace: Any) -> str:
    """The second iteration's gate, asked again."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0002"])
        resources = {"tables": WarehouseResource(root=str(workspace.home.root)), "profile": Smoke()}
        assert dg.materialize([released_policy], partition_key="0002", instance=instance, resources=resources).success
    return released(workspace)


TARGETS = (0.5, 0.35, 0.2, 0.1, 0.05)
"""Precisions to choose a threshold by. A small policy solves little, so the higher ones may be out of reach."""


def thresholds(workspace: Any, settings: Profile) -> dict[tuple[str, float], float]:
    """By domain and target, the threshold of a judge who scores each episode by a hash of its id: only known truths move it."""
    request = JudgeRequest(
        iteration="0002",
        stage="judgements",
        seed=0,
        orm_id=None,
        orm=settings.orm,
        verdicts=settings.verdicts,
        engine=settings.engine,
        layout=settings.agent.builder().grammar.layout,
        success_threshold=settings.quality.success_threshold,
        known="",
    )
    with connect(workspace.warehouse) as con:
        wanted = to_judge(con, request, print)
    judged = [
        Judgement(
            episode_id=episode_id,
            score=hashlib.sha256(episode_id.encode()).digest()[0] / 255,
            reasons=(),
            num_asked=1,
            num_readable=1,
            cost_tokens=None,
            cost_ms=1.0,
        )
        for episode_id in wanted.known
    ]
    domains = {known.row["domain"] for known in wanted.known.values()}
    words = words_to_choose(wanted, judged)
    chosen = {target: choose_thresholds(words, domains, target=target, min_passed=1) for target in TARGETS}
    return {(domain, target): choice.threshold for target, choices in chosen.items() for domain, choice in choices.items()}


def test_the_second_release_is_what_the_eval_rows_say(finished_twice: Any) -> None:
    candidate = registry.made_by(finished_twice.warehouse, "0002", "merged_policy")
    incumbent = registry.made_by(finished_twice.warehouse, "0001", "released_policy")
    of_candidate, of_incumbent = (solved(finished_twice, one.checkpoint_id, "eval") for one in (candidate, incumbent))
    assert of_candidate and of_candidate.keys() == of_incumbent.keys(), "the same instances for ever"
    is_same = candidate.checkpoint_id == incumbent.checkpoint_id
    keeps = is_same or loses(of_candidate, of_incumbent)
    assert released(finished_twice) == (incumbent if keeps else candidate).checkpoint_id
    (note,) = (row["note"] for row in finished_twice.warehouse.read("checkpoints", iteration="0002", stage="released_policy").to_pylist())
    assert "first release" not in note


def test_the_merge_is_the_candidate_that_solves_most_of_eval(finished_twice: Any) -> None:
    """In both iterations: every mixture was tried on eval instances, and none that is chosen is beaten."""
    for iteration in ("0001", "0002"):
        rows = finished_twice.sql(
            """select candidate, method, is_chosen, avg(rate) from (
                 select candidate, method, bool_or(is_chosen) as is_chosen, task_id, sum(num_success) / sum(num_episodes) as rate
                 from merge_candidates where iteration = ? group by all) group by all""",
            iteration,
        )
        (chosen,) = (success for _, _, is_chosen, success in rows if is_chosen)
        assert chosen == max(success for _, method, _, success in rows if method != "specialist")


def test_evaluations_are_greedy_and_on_splits_that_nothing_learns_from(finished_twice: Any) -> None:
    rows = finished_twice.sql("select distinct temperature, split from episodes where purpose = 'evaluation'")
    assert {temperature for temperature, _ in rows} == {0.0} and "train" not in {split for _, split in rows}
    assert finished_twice.sql("select distinct split from episodes where purpose <> 'evaluation'") == [("train",)]
    assert finished_twice.sql("select count(*) from episodes where iteration = '0002' and purpose = 'rollout'")[0][0] > 0


def test_nothing_that_chooses_reads_what_is_only_reported(finished_twice: Any, copy_of: Any) -> None:
    """The gate, the task pool, the datasets, the routes and the judges' thresholds, asked again when every reported row says the
    contrary."""
    workspace, settings = copy_of(finished_twice), profiles.load("smoke", {"tasks.self_challenge.enabled": True})

    def choices() -> dict[str, Any]:
        with connect(workspace.warehouse) as con:
            mixtures = {"ct": settings.ct_mixture, "sft": settings.sft_mixture}
            datasets = {kind: mixed(con, kind, "0003", mixture).dataset_id for kind, mixture in mixtures.items()}  # type: ignore[arg-type]
            routes = route(con, settings.routing).to_pylist()
        pool = [(choice.task.name, choice.num, choice.why) for choice in make_task_pool(workspace.warehouse, settings, "0003")[0]]
        choices = {"release": gate(workspace), "pool": pool, "datasets": datasets, "routes": routes}
        return choices | {"thresholds": thresholds(workspace, settings)}

    before = choices()
    assert before["release"] == released(finished_twice) and before["pool"] and before["routes"]
    assert any(0 < threshold < 1 for threshold in before["thresholds"].values()), "some episode of the eval part is good"
    candidate = registry.made_by(workspace.warehouse, "0002", "merged_policy").checkpoint_id
    reported = solved(workspace, candidate, "holdout")
    assert poison(workspace.warehouse, "0002") >= len(reported) > 0
    assert solved(workspace, candidate, "holdout") == {key: not won for key, won in reported.items()}, "the poison is there"
    assert choices() == before
    assert plant(workspace.warehouse, "0001") > 0 and plant(workspace.warehouse, "0002") > 0
    assert choices() == before, "nor rows of the split that nothing plays, nor reported episodes in other stages"
