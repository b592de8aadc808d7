"""Workers called in this process: the merge on real checkpoints, live intervention, and a disk that fills up under each library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console

from agent.episode.collector import Requests
from agent.episode.episode import Episode, Outcome, Step
from agent.episode.log import EpisodeLog
from agent.policy.policy import Policy
from annotation.config import Mode, ScriptedAnnotatorConfig
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, MergeSettings, TaskSettings
from assets.stages.requests import AnnotateRequest, InitialiseRequest, MergeRequest, RlRequest, StageResult
from assets.tasks.instances import first_instance
from models.checkpoints.checkpoint import load_tokenizer, save, verify
from models.families.registry import load_policy
from models.families.shift_qwen3 import initialise
from models.rl.config import PpoConfig
from pipelines.orchestration.work.folder import work_folder
from pipelines.stages import annotate as annotate_worker
from pipelines.stages import initialise as seed_worker
from pipelines.stages import merge as merge_worker
from pipelines.stages import rl as rl_worker
from pipelines.stages.context import WorkerContext, profile_tasks
from pipelines.stages.evaluate import requests_to_choose
from pipelines.stages.evaluate_checkpoint import evaluate_budgets
from pipelines.stages.kept_episodes import KeptEpisodes
from sandbox.actions import Finished
from warehouse.core.errors import CheckpointError, FlywheelError, NothingToLearn, StorageFull, ValueGateNotPassed
from warehouse.core.home import Home
from warehouse.evaluation.merge_results import kept_by_search, mixtures
from warehouse.lineage import registry
from warehouse.storage.sql.query import connect


def context(home: Home, iteration: str, stage: str) -> WorkerContext:
    folder = work_folder(home, iteration, stage)
    folder.mkdir(parents=True, exist_ok=True)
    return WorkerContext(folder=folder, home=home, iteration=iteration, stage=stage, log=print)


def seed(home: Home) -> None:
    request = InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",))
    seed_worker.run(request, context(home, "0000", "seed_policy"))


@pytest.fixture
def seeded(tmp_path: Path) -> WorkerContext:
    """A home with a seed policy; the context in which iteration 0001 merges."""
    home = Home(tmp_path / "home")
    seed(home)
    return context(home, "0001", "merged_policy")


def specialist(place: WorkerContext, stage: str, seed: int | None) -> str:
    """Register a checkpoint made from the seed policy; without `seed` its training moved nothing."""
    base = registry.made_by(place.warehouse, "0000", "seed_policy")
    model, tokenizer = load_policy(base.folder), load_tokenizer(base.folder)
    if seed is not None:
        initialise(model, seed)
    folder = place.home.checkpoints / "0001" / stage
    card = save(folder, model, tokenizer, stage=stage, iteration="0001", parents=(base.checkpoint_id,))
    registry.register(place.warehouse, iteration="0001", stage=stage, checkpoint_id=card.checkpoint_id, folder=folder, parents=card.parents)
    return card.checkpoint_id


def merge_request(specialists: dict[str, str], settings: MergeSettings, base: str | None = None) -> MergeRequest:
    return MergeRequest(
        iteration="0001",
        stage="merged_policy",
        seed=0,
        specialists=specialists,
        merge=settings,
        base=base,
        acting=ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms"))),
    )


def merge(place: WorkerContext, specialists: dict[str, str], weights: tuple[float, ...] | None) -> StageResult:
    return merge_worker.run(merge_request(specialists, MergeSettings(weights=weights)), place)


def test_candidates_of_the_search_lie_where_a_policy_server_may_load_them(tmp_path: Path) -> None:
    place = context(Home(tmp_path), "0001", "merged_policy")
    assert place.candidate.is_relative_to(place.home.checkpoints), "all that `flywheel policy serve` loads by itself"
    search = merge_worker._Search(merge_request({}, MergeSettings()), place, KeptEpisodes(place, whole=False), [], None)
    assert search._candidate == place.candidate


def test_fixed_weights_are_taken_as_they_are(seeded: WorkerContext) -> None:
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    result = merge(seeded, specialists, (0.25, 0.75))
    merged = registry.made_by(seeded.warehouse, "0001", "merged_policy")
    assert result.checkpoint_id == merged.checkpoint_id == verify(merged.folder).checkpoint_id
    assert merged.parents == tuple(specialists.values())
    assert result.metrics == {"weight/rl_pointing": 0.25, "weight/rl_forms": 0.75} and result.details["search"] == []
    first, second = (load_policy(registry.find(seeded.warehouse, name).folder).state_dict() for name in specialists.values())
    for name, tensor in load_policy(merged.folder).state_dict().items():
        assert torch.equal(tensor, first[name] * 0.25 + second[name] * 0.75), name


@pytest.mark.slow
def test_a_merge_made_again_leaves_the_weights_it_made_before(seeded: WorkerContext) -> None:
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    merge(seeded, specialists, (0.25, 0.75))
    first = registry.made_by(seeded.warehouse, "0001", "merged_policy")
    registry.pass_on(seeded.warehouse, first, iteration="0001", stage="released_policy", note="")
    merge(seeded, specialists, (0.5, 0.5))
    assert registry.made_by(seeded.warehouse, "0001", "merged_policy").checkpoint_id != first.checkpoint_id
    released = registry.made_by(seeded.warehouse, "0001", "released_policy")
    assert released.checkpoint_id == verify(released.folder).checkpoint_id == first.checkpoint_id
    assert merge(seeded, specialists, (0.25, 0.75)).checkpoint_id == first.checkpoint_id, "the same again is not a new folder"
    assert len(list(first.folder.parent.iterdir())) == 2


def test_a_specialist_without_a_share_is_no_parent(seeded: WorkerContext) -> None:
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    assert merge(seeded, specialists, (0.0, 1.0)).checkpoint_id == specialists["rl_forms"]
    assert registry.made_by(seeded.warehouse, "0001", "merged_policy").parents == (specialists["rl_forms"],)


@pytest.mark.slow
def test_task_vectors_are_merged_on_the_checkpoint_they_came_from(seeded: WorkerContext) -> None:
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    base = registry.made_by(seeded.warehouse, "0000", "seed_policy")
    settings = MergeSettings(weights=(0.5, 0.5), method="task_arithmetic", scale=2.0)
    result = merge_worker.run(merge_request(specialists, settings, base.checkpoint_id), seeded)
    merged = registry.made_by(seeded.warehouse, "0001", "merged_policy")
    assert result.checkpoint_id == merged.checkpoint_id and merged.parents == (*specialists.values(), base.checkpoint_id)
    start = load_policy(base.folder).state_dict()
    first, second = (load_policy(registry.find(seeded.warehouse, name).folder).state_dict() for name in specialists.values())
    for name, tensor in load_policy(merged.folder).state_dict().items():
        added = ((first[name] - start[name]) * 0.5 + (second[name] - start[name]) * 0.5) * 2
        assert torch.equal(tensor, start[name] + added), name


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["linear", "ties"])
def test_the_search_keeps_what_every_mixture_did(seeded: WorkerContext, method: str) -> None:
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    base = registry.made_by(seeded.warehouse, "0000", "seed_policy").checkpoint_id
    chosen = {"method": method, "grid_steps": 2, "refine_rounds": 1, "instances_per_task": 1}
    merge_worker.run(merge_request(specialists, MergeSettings.model_validate(chosen), base), seeded)
    with connect(seeded.warehouse) as con:
        tried = mixtures(con, "0001")
    beside = [one for one in tried if one.method == "specialist"]
    assert len(beside) == (2 if method == "ties" else 0)
    grid = [tuple(one.weights.values()) for one in tried if one.method == method]
    assert grid[:3] == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)] and len(set(grid)) == len(grid) >= 4
    assert [one.is_chosen for one in tried].count(True) == 1
    assert {row.role for row in kept_by_search(tried)} == set(specialists)
    assert not (seeded.folder / "candidate").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_search_that_was_cut_off_plays_only_the_episodes_that_it_lacks(seeded: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    append, played = KeptEpisodes.append, list[str]()

    def cut_off(kept: KeptEpisodes, episode: Episode) -> None:
        if len(played) == num_until:
            raise RuntimeError("as a kill")
        played.append(episode.episode_id)
        append(kept, episode)

    monkeypatch.setattr(KeptEpisodes, "append", cut_off)
    specialists = {"rl_pointing": specialist(seeded, "rl_pointing", 1), "rl_forms": specialist(seeded, "rl_forms", 2)}
    request = merge_request(specialists, MergeSettings(grid_steps=2, instances_per_task=1))
    num_mixtures, num_each = 3, len(requests_to_choose(request.acting, "policy", 1))  # some tasks have no instance to choose by
    assert 1 < num_each < len(profile_tasks(request.acting.tasks))
    num_until = num_each + 1
    with pytest.raises(RuntimeError, match="as a kill"):
        merge_worker.run(request, seeded)
    num_until = -1
    merge_worker.run(request, seeded)
    assert len(played) == len(set(played)) == num_mixtures * num_each
    stored = seeded.warehouse.read("merge_candidates")
    assert set(stored["candidate"].to_pylist()) == set(range(num_mixtures)) and sum(stored["num_episodes"].to_pylist()) == len(played)
    seeded.clean_up()
    assert not (seeded.folder / "episodes").exists()


@pytest.mark.parametrize("weights", [None, (0.0, 1.0)])
def test_specialists_that_learned_nothing_are_one_checkpoint_and_merge(seeded: WorkerContext, weights: tuple[float, float] | None) -> None:
    specialists = {stage: specialist(seeded, stage, None) for stage in ("rl_pointing", "rl_forms")}
    (unmoved,) = set(specialists.values())
    assert merge(seeded, specialists, weights).checkpoint_id == unmoved
    assert registry.made_by(seeded.warehouse, "0001", "merged_policy").parents == (unmoved,)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_annotator_may_intervene_while_the_policy_acts(seeded: WorkerContext) -> None:
    """The policy has random weights: it does nothing right, and every step of a solved episode is the annotator's."""
    place = context(seeded.home, "0001", "annotations")
    policy_id = registry.made_by(place.warehouse, "0000", "seed_policy").checkpoint_id
    request = AnnotateRequest(
        iteration="0001",
        stage="annotations",
        seed=0,
        checkpoint_id=policy_id,
        first_instance=first_instance("annotation", "0001"),
        instances_per_task=1,
        acting=ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), sandbox=SandboxSettings(num_sessions=2)),
        annotator=ScriptedAnnotatorConfig(mode="intervene", max_interventions_per_episode=12),
    )
    result = annotate_worker.run(request, place)
    assert result.metrics["success"] > 0 and result.counts["decision/override"] > 0
    with connect(place.warehouse) as con:
        assert con.sql("select distinct mode, annotator from annotations").fetchall() == [("intervene", "oracle")]
        overridden = con.sql(
            """select a.response = s.response and s.policy_id = 'oracle' and a.proposal <> a.response
               from annotations a join steps s using (episode_id, step_index) where a.decision = 'override'"""
        ).fetchall()
        assert overridden == [(True,)] * result.counts["decision/override"]
        assert con.sql("select distinct purpose, split, policy_id from episodes").fetchall() == [("annotation", "train", policy_id)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["relabel", "intervene"])
def test_annotation_that_was_cut_off_goes_on_to_the_same_decisions(
    seeded: WorkerContext, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    append, played = annotate_worker.AnnotatedEpisodes.append, list[str]()

    def cut_off(kept: annotate_worker.AnnotatedEpisodes, episode: Episode) -> None:
        if len(played) == num_until:
            raise RuntimeError("as a kill")
        played.append(episode.episode_id)
        append(kept, episode)

    monkeypatch.setattr(annotate_worker.AnnotatedEpisodes, "append", cut_off)
    policy_id = registry.made_by(seeded.warehouse, "0000", "seed_policy").checkpoint_id
    request = AnnotateRequest(
        iteration="0001",
        stage="annotations",
        seed=0,
        checkpoint_id=policy_id,
        first_instance=first_instance("annotation", "0001"),
        instances_per_task=2,
        acting=ActingSettings(
            tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), sandbox=SandboxSettings(num_sessions=2, fixed_batch=True)
        ),
        annotator=ScriptedAnnotatorConfig(mode=mode, max_interventions_per_episode=12),
    )

    def decisions() -> set[tuple[object, ...]]:
        columns = ("episode_id", "step_index", "decision", "proposal", "response")
        rows = seeded.warehouse.read("annotations", columns=columns).to_pylist()
        return {tuple(row[column] for column in columns) for row in rows}

    num_until = -1
    whole = annotate_worker.run(request, first := context(seeded.home, "0001", "annotations"))
    first.clean_up()
    wanted, num_played = decisions(), len(played)
    assert wanted and num_played == len(set(played))
    num_until = num_played + num_played // 2
    with pytest.raises(RuntimeError, match="as a kill"):
        annotate_worker.run(request, context(seeded.home, "0001", "annotations"))
    num_until = -1
    result = annotate_worker.run(request, last := context(seeded.home, "0001", "annotations"))
    assert sorted(played[:num_played]) == sorted(played[num_played:]), "each once, by the run that was cut off or by the next"
    counts = {name: count for name, count in result.counts.items() if not name.startswith("resumed/")}
    assert decisions() == wanted and counts == whole.counts and result.metrics == whole.metrics
    assert "resumed/restarted" not in result.counts
    last.clean_up()
    assert not (last.folder / "episodes").exists()


def test_a_disk_that_fills_up_under_a_checkpoint_leaves_nothing_of_it(small_disk: Path) -> None:
    home = Home(small_disk / "home")
    with pytest.raises(StorageFull, match="no room for the checkpoint"):
        seed(home)
    assert [path for path in home.checkpoints.rglob("*") if path.is_file()] == []
    with pytest.raises(CheckpointError):
        registry.made_by(context(home, "0000", "seed_policy").warehouse, "0000", "seed_policy")


def one_sample(place: WorkerContext, kind: str) -> None:
    """A dataset snapshot of a single sample, to replay."""
    messages = [
        {"role": role, "content": text, "screenshot_id": None, "loss": loss}
        for role, text, loss in (("user", "see", 0.0), ("assistant", "Ok", 1.0))
    ]
    sample = {
        "sample_id": f"{kind}-1",
        "origin": "general",
        "domain": "general",
        "messages": messages,
        "episode_id": None,
        "step_index": None,
        "annotation_id": None,
        "verdict": None,
        "withdrawn": False,
    }
    member = {"dataset_id": f"data-{kind}", "kind": kind, "sample_id": f"{kind}-1", "component": "general", "weight": 1.0}
    place.warehouse.replace_partition(f"{kind}_samples", [sample], iteration="0001", stage="test")
    place.warehouse.replace_partition("datasets", [member], iteration="0001", stage=f"{kind}_dataset")


class Failing:
    """A collector whose episodes fail, and from the `crash_after`-th on crash."""

    def __init__(self, crash_after: int) -> None:
        self._crash_after, self._num = crash_after, 0

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        assert isinstance(requests, AsyncIterable)
        async for request in requests:
            crashes = self._num >= self._crash_after
            self._num += 1
            step = Step(
                step_index=0,
                policy_id=policy.policy_id,
                observation="",
                screenshot_id=None,
                messages=(),
                response="Ok",
                thought=None,
                action=Finished(),
                prompt_token_ids=(3, 4),
                response_token_ids=(5, 2),
                response_logprobs=(-0.1, -0.1),
            )
            episode = Episode(
                request=request,
                instruction="",
                steps=() if crashes else (step,),
                duration_ms=1.0,
                environment="test",
                outcome=Outcome.CRASHED if crashes else Outcome.FAILURE,
                reward=None if crashes else 0.0,
                error="the browser went away" if crashes else None,
            )
            if log is not None:
                log.append(episode)
            yield episode

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"algorithm": "reinforce", "max_fruitless_rounds": 1}, NothingToLearn),
        pytest.param({"gate_policy": "block"}, ValueGateNotPassed, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_failed_leaves_its_episodes_and_curves(
    seeded: WorkerContext, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], error: type[FlywheelError]
) -> None:
    crash_after = 2 if error is NothingToLearn else 99

    @asynccontextmanager
    async def collector(_: ActingSettings, *, to_choose: bool) -> AsyncIterator[Failing]:
        yield Failing(crash_after)

    monkeypatch.setattr(rl_worker, "open_collector", collector)
    base = registry.made_by(seeded.warehouse, "0000", "seed_policy")
    for kind in ("sft", "ct"):
        one_sample(seeded, kind)
    request = RlRequest(
        iteration="0001",
        stage="rl_forms",
        seed=0,
        domains=("forms",),
        checkpoint_id=base.checkpoint_id,
        acting=ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("forms",))),
        config=PpoConfig.model_validate({"rounds": 2, "episodes_per_task": 2, "pretraining_rounds": 1, "pretraining_epochs": 1} | settings),
        replay_dataset_ids=("data-sft", "data-ct"),
    )
    with pytest.raises(error):
        rl_worker.run(request, context(seeded.home, "0001", "rl_forms"))
    num_asked_again = 2 if error is NothingToLearn else 0
    curves = "select distinct step, checkpoint_id from training_metrics where run = 'rl_forms' and metric = 'success'"
    with connect(seeded.warehouse) as con:
        assert con.sql("select count(*) from episodes where stage = 'rl_forms'").fetchall() == [(4 + num_asked_again,)]
        assert con.sql(curves).fetchall() == [(1, base.checkpoint_id)]
    assert not error.is_retryable


def test_what_is_not_there_or_not_wanted_is_not_replayed(seeded: WorkerContext) -> None:
    """A first iteration without tutorials has nothing but demonstrations, and no sample of kind ct."""
    init = registry.made_by(seeded.warehouse, "0000", "seed_policy").folder
    one_sample(seeded, "sft")
    for config, num_sft in ((PpoConfig(), 1), (PpoConfig(replay_sft=0), 0), (PpoConfig(replay_weight=0.0), 0)):
        pool = rl_worker._replay(config, seeded, init, "data-sft", "data-sft")
        assert (len(pool.sft), len(pool.ct)) == (num_sft, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_domains_are_trained_jointly_with_a_specialists_budget(seeded: WorkerContext) -> None:
    base = registry.made_by(seeded.warehouse, "0000", "seed_policy")
    for kind in ("sft", "ct"):
        one_sample(seeded, kind)
    place = context(seeded.home, "0001", "rl_joint_pointing_forms")
    request = RlRequest(
        iteration="0001",
        stage="rl_joint_pointing_forms",
        seed=0,
        domains=("pointing", "forms"),
        checkpoint_id=base.checkpoint_id,
        acting=ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms"))),
        config=PpoConfig(rounds=1, episodes_per_task=4, pretraining_rounds=0, pretraining_epochs=1),
        replay_dataset_ids=("data-sft", "data-ct"),
    )
    result = rl_worker.run(request, place)
    made = registry.made_by(seeded.warehouse, "0001", "rl_joint_pointing_forms")
    critic = registry.made_by(seeded.warehouse, "0001", "critic_joint_pointing_forms")
    assert made.checkpoint_id == result.checkpoint_id and made.parents == (base.checkpoint_id, critic.checkpoint_id)
    assert critic.parents == (base.checkpoint_id,) and verify(critic.folder).kind == "critic"
    with connect(seeded.warehouse) as con:
        counts = con.sql("select domain, count(*), count(distinct task_name) from episodes group by all").fetchall()
    assert {domain for domain, _, _ in counts} == {"pointing", "forms"}
    assert all(num == 2 * num_tasks for _, num, num_tasks in counts), "half of 4 a task"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_growing_step_budgets_are_reported_domain_by_domain(seeded: WorkerContext, tmp_path: Path) -> None:
    folder, console = registry.made_by(seeded.warehouse, "0000", "seed_policy").folder, Console(record=True, width=120)
    svg, figures = tmp_path / "curve.svg", tmp_path / "figures.json"
    evaluate_budgets(seeded.warehouse, str(folder), "eval", 1, "0.5x,1x", "smoke", {}, console, svg=svg, as_json=figures)
    rows = json.loads(figures.read_text())
    assert {(row["domain"], row["budget"]) for row in rows} == {
        (domain, budget) for domain in ("pointing", "forms", "all tasks") for budget in ("0.5x", "1x")
    }
    steps = {row["budget"]: row["steps"] for row in rows if row["domain"] == "all tasks"}
    assert 0 < steps["0.5x"] <= steps["1x"]
    assert "by step budget" in console.export_text() and svg.read_text().startswith("<svg")
