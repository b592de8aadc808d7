"""The evaluation worker: its rows and figures, on a corridor that is computed; on a live browser what a policy is shown, and that it is
closed whatever becomes of the episodes.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.pool_collector import PoolCollector
from agent.policy.policy import Policy, Prompt, Response
from assets.gates.checks import run_invariant
from assets.gates.invariants import INVARIANTS
from assets.settings.agent import AgentSettings
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, EvaluationSettings, TaskSettings
from assets.stages.requests import EvaluateRequest, InitialiseRequest, StageResult
from models.engine.choice import EngineChoice
from pipelines.orchestration.work import progress
from pipelines.orchestration.work.folder import work_folder
from pipelines.stages import context as contexts
from pipelines.stages import evaluate, initialise
from pipelines.stages.context import WorkerContext
from pipelines.stages.evaluate_checkpoint import success_by_task, success_figures
from sandbox.tasks.games.source import load_tasks as games
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split
from tests.models.corridor import CorridorPool
from warehouse.core.errors import ModelError
from warehouse.core.home import Home
from warehouse.evaluation.statistics import TaskCount
from warehouse.lineage import registry
from warehouse.storage.sql.query import connect

AGREE = next(rule for rule in INVARIANTS if rule.name == "verdicts_agree_in_full_chromium")
NUM = 4
"""Instances of each task."""


class Looking:
    """Keeps the pictures that it was shown and says that it is done; fails, where it is to, once it has seen so many."""

    policy_id = "policy-looking"

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.is_closed, self._fails_at = False, fails_at

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        if self._fails_at is not None and len(self.seen) >= self._fails_at:
            raise ModelError("its weights have diverged")
        self.seen += [len(prompt.images) for prompt in prompts]
        text = "Thought: Done.\nAction: finished(content='')"
        return [Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=self.policy_id) for _ in prompts]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def place(tmp_path: Path) -> WorkerContext:
    """Where the stage `evaluations` works, in a home that has a seed policy."""
    home = Home(tmp_path / "home")
    places = [
        WorkerContext(folder=work_folder(home, iteration, stage), home=home, iteration=iteration, stage=stage, log=print)
        for iteration, stage in (("0000", "seed_policy"), ("0001", "evaluations"))
    ]
    for one in places:
        one.folder.mkdir(parents=True)
    initialise.run(InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",)), places[0])
    return places[1]


def evaluated(
    place: WorkerContext, policy: Looking, monkeypatch: pytest.MonkeyPatch, *, role: str = "released", playwright_share: float = 0.0
) -> StageResult:
    """One evaluation of the seed policy, for which `policy` answers; where it plays again, of the holdout too."""

    def opened(folder: Path, choice: EngineChoice) -> Policy:
        return policy

    monkeypatch.setattr(contexts, "open_engine", opened)
    checkpoint_id = registry.made_by(place.warehouse, "0000", "seed_policy").checkpoint_id
    request = EvaluateRequest(
        iteration="0001",
        stage="evaluations",
        checkpoints={role: checkpoint_id},
        splits={role: ("eval", "holdout") if playwright_share else ("eval",)},
        seed=0,
        acting=ActingSettings(
            tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)),
            agent=AgentSettings(grammar="uitars15"),
            sandbox=SandboxSettings(num_sessions=2),
        ),
        evaluation=EvaluationSettings(eval_per_task=NUM, holdout_per_task=1, playwright_share=playwright_share),
    )
    return evaluate.run(request, place)


ROLES = {"sft_model": "policy-sft", "rl_pointing": "policy-best", "merged_policy": "policy-best"}
"""The merge is one of its specialists."""
ON = {"sft_model": ("holdout",), "rl_pointing": ("holdout",), "merged_policy": ("eval", "holdout")}
NUM_OF = {"eval": 2, "holdout": 3}
TASKS = {name: task for name, task in tasks_in(("miniwob:smoke",)).items() if task.domain == "pointing"}


def seeds_of(split: str) -> dict[str, list[int]]:
    """In the corridor whoever finishes on an odd one has solved it."""
    return {name: found for name, task in TASKS.items() if (found := task.seeds(Split(split), NUM_OF[split]))}


def evaluated_in_a_corridor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: str | None = None, playwright_share: float = 0.0
) -> tuple[StageResult, list[Path], WorkerContext]:
    """An evaluation of ROLES, and the folders of the policies that were opened for it; `fails`: one of these dies at its second prompt."""
    context = WorkerContext(folder=tmp_path / "work", home=Home(tmp_path / "home"), iteration="0002", stage="evaluation", log=print)
    context.folder.mkdir(exist_ok=True)
    row = {"parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}
    for stage in ("sft_model", "rl_pointing"):
        made = row | {"checkpoint_id": ROLES[stage], "path": f"checkpoints/{ROLES[stage]}"}
        context.warehouse.replace_partition("checkpoints", [made], iteration="0002", stage=stage)
    opened: list[Path] = []

    def open_one(folder: Path, choice: EngineChoice) -> Policy:
        assert choice == acting.engine
        opened.append(folder)
        policies.append(Looking(fails_at=1 if folder.name == fails else None))
        return policies[-1]

    @asynccontextmanager
    async def corridor(acting: ActingSettings) -> AsyncIterator[PoolCollector]:
        yield PoolCollector(CorridorPool(4), acting.agent.builder())

    policies: list[Looking] = []
    monkeypatch.setattr(contexts, "open_engine", open_one)
    monkeypatch.setattr(evaluate, "open_collector", corridor)
    acting = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), agent=AgentSettings(grammar="uitars15"))
    num = {"eval_per_task": NUM_OF["eval"], "holdout_per_task": NUM_OF["holdout"]}
    settings = EvaluationSettings(**num, playwright_share=playwright_share)
    request = EvaluateRequest(
        iteration="0002", stage="evaluation", checkpoints=ROLES, splits=ON, seed=0, acting=acting, evaluation=settings
    )
    try:
        result = evaluate.run(request, context)
    finally:
        assert all(policy.is_closed for policy in policies)
    return result, opened, context


def test_each_policy_plays_its_splits_once_and_each_role_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, opened, context = evaluated_in_a_corridor(tmp_path, monkeypatch)
    assert [folder.name for folder in opened] == ["policy-sft", "policy-best"], "what two roles share is run once"
    expected = {
        (role, split, name): (ROLES[role], TASKS[name].task_id, "pointing", len(seeds), sum(seed % 2 for seed in seeds), 0)
        for role, splits in ON.items()
        for split in splits
        for name, seeds in seeds_of(split).items()
    }
    columns = ("checkpoint_id", "task_id", "domain", "num_episodes", "num_success", "num_crashed")
    stored = context.warehouse.read("evaluations", iteration="0002", stage="evaluation").to_pylist()
    assert {(row["checkpoint_role"], row["split"], row["task_name"]): tuple(row[name] for name in columns) for row in stored} == expected
    assert len(stored) == len(expected) and 0 < sum(row["num_success"] for row in stored) < sum(row["num_episodes"] for row in stored)
    rates = {split: [sum(seed % 2 for seed in seeds) / len(seeds) for seeds in seeds_of(split).values()] for split in NUM_OF}
    means = {split: pytest.approx(sum(each) / len(each)) for split, each in rates.items()}
    assert result.metrics == {f"{split}/{role}": means[split] for role, splits in ON.items() for split in splits}
    num = {split: sum(map(len, seeds_of(split).values())) for split in NUM_OF}
    assert result.counts["episodes"] == len(context.warehouse.read("episodes")) == num["eval"] + 2 * num["holdout"]
    assert result.counts["steps"] == len(context.warehouse.read("steps")) == result.counts["episodes"], "one step each, which is stored"
    assert result.table_versions["evaluations"] == context.warehouse.version("evaluations") and "episodes" in result.table_versions
    assert (context.folder / "episodes").exists(), "until the result is stored: a worker that is killed before plays nothing again"
    _, opened_again, _ = evaluated_in_a_corridor(tmp_path, monkeypatch)
    assert opened_again == []
    context.clean_up()
    assert not (context.folder / "episodes").exists(), "what the warehouse has is not kept twice"


def test_an_evaluation_goes_on_where_it_was_cut_off_and_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="diverged"):
        evaluated_in_a_corridor(tmp_path, monkeypatch, fails="policy-best")
    result, opened, context = evaluated_in_a_corridor(tmp_path, monkeypatch)
    assert [folder.name for folder in opened] == ["policy-best"], "the other one had played all"
    said = progress.read(context.folder)
    assert said is not None and (said.done, said.total, said.unit) == (result.counts["episodes"], result.counts["episodes"], "episodes")
    seeds = [seed for split in NUM_OF for of_task in seeds_of(split).values() for seed in of_task]
    assert said.metrics == {"success": pytest.approx(sum(seed % 2 for seed in seeds) / len(seeds))}, "of the policy that came last"


def test_a_policy_that_sees_is_evaluated_with_its_eyes_open(place: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Looking()
    evaluated(place, policy, monkeypatch)
    assert policy.seen and set(policy.seen) == {1} and policy.is_closed
    with connect(place.warehouse) as con:
        absent = con.sql("select count(*) from steps anti join screenshots using (screenshot_id)").fetchall()
    assert absent == [(0,)]


def test_a_share_of_the_holdout_is_played_again_by_the_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, opened, context = evaluated_in_a_corridor(tmp_path, monkeypatch, playwright_share=0.5)
    assert [folder.name for folder in opened] == ["policy-sft", "policy-best", "policy-best"]
    holdout = sum(map(len, seeds_of("holdout").values()))
    assert result.metrics["playwright/agree"] == 1.0
    assert result.metrics["playwright/success here"] == result.metrics["playwright/success there"]
    with connect(context.warehouse) as con:
        again = "from episodes where purpose = 'second_browser'"
        assert con.sql(f"select distinct policy_id, split {again}").fetchall() == [("policy-best", "holdout")]
        ((num,),) = con.sql(f"select count(*) {again}").fetchall()
        ((num_counted,),) = con.sql("select sum(num_episodes)::int from evaluations where split = 'holdout'").fetchall()
    assert (num, num_counted) == (-(-holdout // 2), 3 * holdout), "no figure counts them"


@pytest.mark.slow
def test_what_is_played_again_is_played_in_full_chromium(place: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Looking()
    result = evaluated(place, policy, monkeypatch, role="merged_policy", playwright_share=1.0)
    assert result.metrics["playwright/agree"] == 1.0 and set(policy.seen) == {1}
    with connect(place.warehouse) as con:
        environments = dict(
            con.sql("select purpose, any_value(environment) from episodes where outcome <> 'crashed' group by 1").fetchall()
        )
        assert run_invariant(con, AGREE, "0001").passed
    assert set(environments) == {"evaluation", "second_browser"} and len(set(environments.values())) == 2


@pytest.mark.slow
def test_an_engine_that_fails_in_an_evaluation_is_closed_and_the_next_runs_only_what_is_missing(
    place: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Looking(fails_at=4)
    with pytest.raises(ModelError, match="diverged"):
        evaluated(place, policy, monkeypatch)
    assert policy.is_closed
    (lines,) = (place.folder / "episodes").glob("*.jsonl")
    num_kept = len(lines.read_bytes().splitlines())
    assert 0 < num_kept <= len(policy.seen)
    with lines.open("ab") as file:
        file.write(b'{"request": {"purp')  # as a kill leaves it

    after = Looking()
    result = evaluated(place, after, monkeypatch)
    num_tasks = place.warehouse.read("evaluations").num_rows
    num_left, num_cut_off = num_tasks * NUM - num_kept, len(policy.seen) - num_kept
    assert 0 < num_left - num_cut_off <= len(after.seen) <= num_left, "an answer that was recorded is not requested again"
    assert result.counts["episodes"] == place.warehouse.read("episodes").num_rows == num_tasks * NUM
    assert set(place.warehouse.read("evaluations")["num_episodes"].to_pylist()) == {NUM}
    with connect(place.warehouse) as con:
        assert con.sql("select count(*) from steps anti join screenshots using (screenshot_id)").fetchall() == [(0,)]
        assert con.sql("select distinct temperature, split from episodes").fetchall() == [(0.0, "eval")]
    place.clean_up()
    assert not (place.folder / "episodes").exists(), "what the warehouse has is not kept twice"


@pytest.mark.parametrize(
    ("agent", "shows"), [({}, False), ({"grammar": "uitars15"}, True), ({"grammar": "uitars15", "max_screenshots": 0}, False)]
)
def test_greedy_requests_ask_for_screens_where_prompts_show_them(agent: dict[str, object], shows: bool) -> None:
    acting = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), agent=AgentSettings.model_validate(agent))
    requests = evaluate.greedy_requests(acting, "policy-looking", Split.EVAL, 1)
    assert requests and {request.screenshots for request in requests} == {shows}


def test_an_evaluation_is_greedy_and_plays_each_instance_of_its_split_once() -> None:
    acting = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms")))
    for split in (Split.EVAL, Split.HOLDOUT):
        requests = evaluate.greedy_requests(acting, "policy-looking", split, 3)
        assert {(one.split, one.temperature, one.attempt, one.purpose) for one in requests} == {(split, 0.0, 0, "evaluation")}
        assert len(requests) == len({(one.task.task_id, one.seed) for one in requests}) == 9, "two of five have one prompt each"
    chosen_by = evaluate.requests_to_choose(acting, "policy-looking", 3)
    assert chosen_by == evaluate.greedy_requests(acting, "policy-looking", Split.EVAL, 3)


def test_an_episode_that_crashed_is_neither_solved_nor_failed() -> None:
    acting = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)))
    first, second, third, *_ = (one for one in evaluate.greedy_requests(acting, "p", Split.EVAL, 3) if one.task.name == "click-button")
    of = {first: (Outcome.SUCCESS, 1.0), second: (Outcome.FAILURE, 0.0), third: (Outcome.CRASHED, None)}
    episodes = [
        Episode(request=one, instruction=None, steps=(), outcome=outcome, reward=reward, duration_ms=1.0, environment="test")
        for one, (outcome, reward) in of.items()
    ]
    assert evaluate.task_counts(episodes) == [TaskCount(task="click-button", num_success=1, num_episodes=2)]
    (row,) = evaluate.evaluation_rows("merged_policy", episodes)
    assert (row["num_success"], row["num_episodes"], row["num_crashed"]) == (1, 2, 1)
    assert evaluate.task_counts(episodes[2:]) == [], "a task of which no episode counts has no rate"
    (alone,) = evaluate.evaluation_rows("merged_policy", episodes[:1])
    named = {"checkpoint_id": "p", "checkpoint_role": "merged_policy", "task_id": first.task.task_id, "task_name": "click-button"}
    assert alone == named | {"domain": "pointing", "split": "eval", "num_episodes": 1, "num_success": 1, "num_crashed": 0}


def test_a_games_points_are_averaged_and_an_episode_without_a_verdict_scores_nothing() -> None:
    task = next(iter(games("scored").values()))
    ends = [(Outcome.SUCCESS, 1.0, 90.0), (Outcome.FAILURE, 0.3, 30.0), (Outcome.INVALID_ACTION, 0.0, None), (Outcome.CRASHED, None, None)]
    episodes = [
        Episode(
            request=EpisodeRequest(purpose="evaluation", task=task, seed=seed, policy_id="p"),
            instruction=None,
            steps=(),
            outcome=outcome,
            reward=reward,
            points=points,
            duration_ms=1.0,
            environment="test",
        )
        for seed, (outcome, reward, points) in zip(task.seeds(Split.EVAL, len(ends)), ends, strict=True)
    ]
    (row,) = evaluate.evaluation_rows("merged_policy", episodes)
    assert (row["num_episodes"], row["num_success"], row["mean_points"]) == (3, 1, 40.0)
    assert row["points_deviation"] == pytest.approx(45.826, abs=1e-3)
    (row,) = evaluate.evaluation_rows("merged_policy", episodes[:1])
    assert (row["mean_points"], row["points_deviation"]) == (90.0, None)
    assert "mean_points" not in evaluate.evaluation_rows("merged_policy", episodes[2:])[0], "nothing says that it is a game"


def test_success_is_reported_with_intervals_that_know_how_few_the_episodes_are() -> None:
    counts = [TaskCount(task="always", num_success=1, num_episodes=1), TaskCount(task="never", num_success=0, num_episodes=2)]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(success_by_task(counts, "policy-1 on eval"))
    said = console.export_text()
    assert "0.207 – 1.000" in said and "0.000 – 0.658" in said and "1 of 3" in said and "±" not in said
    reported = success_figures(counts)
    assert reported["success"]["mean"] == 0.5 and [row["task"] for row in reported["tasks"]] == ["always", "never"]
    assert reported["tasks"][0]["high"] == 1.0 and reported["tasks"][0]["low"] == pytest.approx(0.207, abs=1e-3)
