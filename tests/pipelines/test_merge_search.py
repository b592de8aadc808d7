"""The merge stage's choice: which mixtures it tries and in which order, what it takes, what it stores. Real merges of a few numbers, so
that a mixture's weights stand in its tensor; an episode is solved where the table of the test says so. On real checkpoints and pages:
test_workers.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from assets.settings.profile import ActingSettings, MergeSettings, TaskSettings
from assets.stages.requests import MergeRequest, StageResult
from models.checkpoints import checkpoint
from models.engine.choice import EngineChoice
from pipelines.orchestration.work import progress
from pipelines.stages import merge as merge_worker
from pipelines.stages.context import WorkerContext
from pipelines.stages.evaluate import requests_to_choose
from tests.models.merge_helpers import read_all, write_parent
from warehouse.core.errors import ModelError
from warehouse.core.home import Home
from warehouse.lineage import registry

STAGES = ("rl_pointing", "rl_forms", "rl_web")
ACTING = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)))
"""Two tasks."""
NUM = 4
Weights = tuple[float, ...]


class Mixed:
    """A checkpoint that is ready to act: what it is mixed of."""

    def __init__(self, folder: Path) -> None:
        self.policy_id, self.is_candidate = checkpoint.verify(folder).checkpoint_id, folder.name == "candidate"
        self.weights = tuple(read_all(folder)["w"].tolist())
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Place:
    """A home with specialists; `solves` says how many of a task's NUM instances a mixture of such weights solves."""

    context: WorkerContext
    base: str
    specialists: dict[str, str]
    solves: Callable[[Weights], int]
    opened: list[Mixed] = field(default_factory=list)
    num_played: int = 0
    fails_at: int = -1

    def merge(self, **settings: object) -> StageResult:
        made = MergeSettings.model_validate({"instances_per_task": NUM} | settings)
        request = MergeRequest(
            iteration="0001", stage="merged_policy", seed=0, specialists=self.specialists, merge=made, base=self.base, acting=ACTING
        )
        return merge_worker.run(request, self.context)

    async def collect(self, policy: Mixed, requests: Sequence[EpisodeRequest], *, log: EpisodeLog) -> AsyncIterator[Episode]:
        instances: dict[str, int] = {}
        for one in requests_to_choose(ACTING, policy.policy_id, NUM):
            number = instances[one.task.name] = instances.get(one.task.name, -1) + 1
            if one not in requests:
                continue
            if self.num_played == self.fails_at:
                raise ModelError("as a kill")
            self.num_played += 1
            is_solved = number < self.solves(policy.weights)
            outcome, reward = (Outcome.SUCCESS, 1.0) if is_solved else (Outcome.FAILURE, 0.0)
            made = Episode(request=one, instruction="", steps=(), outcome=outcome, reward=reward, duration_ms=1.0, environment="table")
            log.append(made)
            yield made

    def rows(self) -> list[tuple[int, str, Weights, bool, int]]:
        """One each candidate, whose tasks all have the same figures."""
        stored = self.context.warehouse.read("merge_candidates", iteration="0001", stage="merged_policy").to_pylist()
        found = [
            (row["candidate"], row["method"], json.loads(row["weights"]), row["is_chosen"], row["num_success"])
            for row in sorted(stored, key=lambda row: (row["candidate"], row["task_id"]))
        ]
        assert found[::2] == found[1::2] and all(list(weights) == list(self.specialists) for _, _, weights, _, _ in found)
        assert all((row["domain"], row["num_episodes"], row["num_crashed"]) == ("pointing", NUM, 0) for row in stored)
        return [(place, method, tuple(weights.values()), chosen, num) for place, method, weights, chosen, num in found[::2]]


@contextmanager
def place_of(folder: Path, monkeypatch: pytest.MonkeyPatch, num: int, solves: Callable[[Weights], int]) -> Iterator[Place]:
    home = Home(folder / "home")
    context = WorkerContext(folder=folder / "work", home=home, iteration="0001", stage="merged_policy", log=print)
    context.folder.mkdir(parents=True)

    def register(stage: str, place: int | None, parents: tuple[str, ...]) -> str:
        tensor = torch.zeros(num) if place is None else torch.eye(num)[place]
        written = write_parent(home.checkpoints / "0001" / stage, {"w": tensor}, parents=parents)
        made = checkpoint.read_card(written).checkpoint_id
        registry.register(context.warehouse, iteration="0001", stage=stage, checkpoint_id=made, folder=written, parents=parents)
        return made

    base = register("sft_model", None, ())
    specialists = {stage: register(stage, number, (base,)) for number, stage in enumerate(STAGES[:num])}
    place = Place(context, base, specialists, solves)

    def opened(at: Path, choice: EngineChoice) -> Mixed:
        assert choice == ACTING.engine
        place.opened.append(Mixed(at))
        return place.opened[-1]

    @asynccontextmanager
    async def collector(acting: ActingSettings, *, to_choose: bool = False) -> AsyncIterator[Place]:
        assert acting == ACTING and to_choose
        yield place

    monkeypatch.setattr(merge_worker, "open_engine", opened)
    monkeypatch.setattr(merge_worker, "open_collector", collector)
    yield place
    assert all(policy.is_closed for policy in place.opened) and not context.candidate.exists()


def test_the_grid_is_tried_and_the_best_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def solves(weights: Weights) -> int:
        return {(0.0, 1.0): 1, (0.25, 0.75): 3, (0.5, 0.5): 2, (0.75, 0.25): 0, (1.0, 0.0): 1}[weights]

    with place_of(tmp_path, monkeypatch, 2, solves) as place:
        result = place.merge(grid_steps=4)
    grid = [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (1.0, 0.0)]
    assert [policy.weights for policy in place.opened] == grid and all(policy.is_candidate for policy in place.opened)
    assert place.rows() == [(number, "linear", weights, number == 1, solves(weights)) for number, weights in enumerate(grid)]
    assert result.metrics == {"weight/rl_pointing": 0.25, "weight/rl_forms": 0.75}
    assert result.details == {
        "search": [
            {"weights": list(weights), "eval success": solves(weights) / NUM, "least kept": min(1.0, float(solves(weights)))}
            for weights in grid
        ]
    }
    merged = registry.made_by(place.context.warehouse, "0001", "merged_policy")
    assert result.checkpoint_id == merged.checkpoint_id == checkpoint.verify(merged.folder).checkpoint_id == place.opened[1].policy_id
    assert merged.parents == tuple(place.specialists.values()), "a linear merge has no base"
    card = checkpoint.read_card(merged.folder)
    assert card.stage == "merged_policy" and card.config["weights"] == dict(zip(merged.parents, (0.25, 0.75), strict=True))
    assert result.table_versions == {name: place.context.warehouse.version(name) for name in ("merge_candidates", "checkpoints")}
    said = progress.read(place.context.folder)
    assert said is not None and (said.done, said.total, said.unit, said.metrics) == (5, 5, "mixtures", {"success": 0.25})
    assert (place.context.folder / "episodes").exists(), "until the result is stored"
    place.context.clean_up()
    assert not (place.context.folder / "episodes").exists()


def test_among_equals_the_most_even_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of(tmp_path, monkeypatch, 3, lambda weights: 3 if max(weights) < 1 else 2) as place:
        result = place.merge(grid_steps=3)
    assert [row[2] for row in place.rows() if row[3]] == [(1 / 3, 1 / 3, 1 / 3)] and len(place.opened) == 10
    assert list(result.metrics.values()) == [1 / 3] * 3


def test_refinements_try_the_neighbours_of_the_best_at_half_the_step_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Best on the grid is 1/2, around it 5/8, around that still."""

    def solves(weights: Weights) -> int:
        return {0.5: 2, 0.625: 3, 0.75: 2}.get(weights[0], 1)

    with place_of(tmp_path, monkeypatch, 2, solves) as place:
        result = place.merge(grid_steps=2, refine_rounds=3)
    tried = [weights[0] for _, _, weights, _, _ in place.rows()]
    assert tried == [0.0, 0.5, 1.0, 0.25, 0.75, 0.375, 0.625, 0.5625, 0.6875]
    assert [row[0] for row in place.rows() if row[3]] == [6] and result.metrics["weight/rl_pointing"] == 0.625
    assert [entry["weights"][0] for entry in result.details["search"]] == sorted(tried)


def test_a_mixture_that_gives_a_domain_up_is_not_taken_for_its_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corner of forms solves most, for it has three tasks of four; where no mixture keeps enough, the one that keeps most is taken."""
    solved = {(0.0, 1.0): (0, 4), (0.5, 0.5): (2, 3), (1.0, 0.0): (4, 1)}

    def success_on(self: merge_worker.Tried, domain: str) -> float:
        return solved[self.weights][("pointing", "forms").index(domain)] / NUM

    def success(self: merge_worker.Tried) -> float:
        return (self.success_on("pointing") + 3 * self.success_on("forms")) / 4

    monkeypatch.setattr(merge_worker.Tried, "success_on", success_on)
    monkeypatch.setattr(merge_worker.Tried, "success", property(success))
    taken = []
    for min_kept in (0.0, 0.5, 0.95):
        with place_of(tmp_path / str(min_kept), monkeypatch, 2, lambda _: 1) as place:
            result = place.merge(grid_steps=2, min_kept=min_kept)
            taken.append(tuple(result.metrics.values()))
    assert taken == [(0.0, 1.0), (0.5, 0.5), (0.5, 0.5)]
    assert [one["least kept"] for one in result.details["search"]] == [0.0, 0.5, 0.25]


@pytest.mark.parametrize("method", ["task_arithmetic", "ties"])
def test_specialists_play_beside_mixtures_of_task_vectors_and_are_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Scaled, a mixture of one specialist alone is not the specialist."""
    said: list[tuple[int, int]] = []

    def solves(weights: Weights) -> int:
        return 4 if max(weights) == 1 else 3 if weights == (0.0, 2.0) else 1

    def update(self: progress.Progress, done: int, total: int, unit: str, metrics: object = None) -> None:
        said.append((done, total))

    monkeypatch.setattr(progress.Progress, "update", update)
    with place_of(tmp_path, monkeypatch, 2, solves) as place:
        result = place.merge(method=method, scale=2.0, density=1.0, normalize=False, grid_steps=3)
    grid = [(0.0, 1.0), (1 / 3, 2 / 3), (2 / 3, 1 / 3), (1.0, 0.0)]
    beside = [(0, "specialist", (1.0, 0.0), False, 4), (1, "specialist", (0.0, 1.0), False, 4)]
    assert place.rows() == [
        *beside,
        *((2 + number, method, weights, number == 0, 3 if number == 0 else 1) for number, weights in enumerate(grid)),
    ]
    assert [policy.policy_id for policy in place.opened[:2]] == list(place.specialists.values())
    assert said == [(number, 6) for number in range(1, 7)]
    assert result.metrics == {"weight/rl_pointing": 0.0, "weight/rl_forms": 1.0} and len(result.details["search"]) == 4
    made = registry.made_by(place.context.warehouse, "0001", "merged_policy")
    assert made.parents == (place.specialists["rl_forms"], place.base), "who has no share is not a parent, the base is one"
    assert read_all(made.folder)["w"].tolist() == [0, 2]


def test_given_weights_are_taken_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of(tmp_path, monkeypatch, 2, lambda weights: 0) as place:
        result = place.merge(weights=(0.125, 0.875))
    assert not place.opened and place.rows() == [] and result.details == {"search": []} and result.counts == {}
    assert result.metrics == {"weight/rl_pointing": 0.125, "weight/rl_forms": 0.875}
    assert read_all(registry.made_by(place.context.warehouse, "0001", "merged_policy").folder)["w"].tolist() == [0.125, 0.875]


def test_where_all_specialists_are_one_nothing_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of(tmp_path, monkeypatch, 2, lambda weights: 0) as place:
        first, other = place.specialists.values()
        place.specialists = dict.fromkeys(place.specialists, first)
        result = place.merge()
        assert result.checkpoint_id == first and result.metrics == {"weight/rl_pointing": 0.5, "weight/rl_forms": 0.5}
        assert not place.opened
        assert registry.made_by(place.context.warehouse, "0001", "merged_policy").parents == (first,)
        assert registry.find(place.context.warehouse, first).stage == "rl_pointing", "which made it first"
        assert place.merge(weights=(0.25, 0.75)).metrics == {"weight/rl_pointing": 0.25, "weight/rl_forms": 0.75}
        place.specialists = {"rl_pointing": first, "rl_forms": other, "rl_web": first}
        place.merge(grid_steps=1)
        assert len(place.opened) == 3, "two are one, but not all"


def test_a_merge_that_was_a_specialist_may_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of(tmp_path, monkeypatch, 2, lambda weights: 0) as place:
        assert place.merge(weights=(1.0, 0.0)).checkpoint_id == place.specialists["rl_pointing"]
        place.merge(weights=(0.5, 0.5))
    assert read_all(registry.made_by(place.context.warehouse, "0001", "merged_policy").folder)["w"].tolist() == [0.5, 0.5]


def test_a_search_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of(tmp_path, monkeypatch, 2, lambda weights: 2) as place:
        place.fails_at = 11
        with pytest.raises(ModelError, match="as a kill"):
            place.merge(grid_steps=2)
        assert not place.context.candidate.exists() and place.opened[-1].is_closed
        place.fails_at = -1
        result = place.merge(grid_steps=2)
    assert place.num_played == 3 * 2 * NUM, "three mixtures, each instance once"
    assert [row[3] for row in place.rows()] == [False, True, False] and result.counts == {}


def test_what_a_search_took_up_again_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = merge_worker.KeptEpisodes

    def resumed(context: WorkerContext, *, whole: bool) -> merge_worker.KeptEpisodes:
        assert not whole, "what became of each is all that is asked"
        kept = made(context, whole=whole)
        kept.resumed = dataclasses.replace(kept.resumed, num_episodes=2)
        return kept

    monkeypatch.setattr(merge_worker, "KeptEpisodes", resumed)
    with place_of(tmp_path, monkeypatch, 2, lambda weights: 2) as place:
        assert place.merge(grid_steps=1).counts == {"resumed/episodes": 2}
