"""The evaluation worker on a live browser: what a policy is shown, and that it is closed whatever becomes of the episodes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from agent.policy import Policy, Prompt, Response
from assets.profile import ActingSettings, AgentSettings, EvaluationSettings, SandboxSettings, TaskSettings
from assets.requests import EvaluateRequest, InitialiseRequest
from models.engine_choice import EngineChoice
from pipelines.evaluate import success_by_task, success_figures
from pipelines.work_folder import work_folder
from pipelines.workers import context as contexts
from pipelines.workers import evaluate, initialise
from pipelines.workers.context import WorkerContext
from sandbox.task import Split
from warehouse import registry
from warehouse.errors import ModelError
from warehouse.home import Home
from warehouse.query import connect
from warehouse.statistics import TaskCount


class Looking:
    """Keeps the pictures that it was shown and says that it is done."""

    policy_id = "policy-looking"

    def __init__(self, error: ModelError | None = None) -> None:
        self.seen: list[int] = []
        self.is_closed, self._error = False, error

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        if self._error is not None:
            raise self._error
        self.seen += [len(prompt.images) for prompt in prompts]
        text = "Thought: Done.\nAction: finished(content='')"
        return [Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=self.policy_id) for _ in prompts]

    def close(self) -> None:
        self.is_closed = True


def evaluated(tmp_path: Path, policy: Looking, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    """One evaluation of a checkpoint for which `policy` answers."""

    def opened(folder: Path, choice: EngineChoice) -> Policy:
        return policy

    monkeypatch.setattr(contexts, "open_engine", opened)
    home = Home(tmp_path / "home")
    places = [WorkerContext(folder=work_folder(home, iteration, stage), home=home, iteration=iteration, stage=stage, log=print)
              for iteration, stage in (("0000", "seed_policy"), ("0001", "evaluations"))]  # fmt: skip
    for place in places:
        place.folder.mkdir(parents=True)
    initialise.run(InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",)), places[0])
    checkpoint_id = registry.made_by(places[0].warehouse, "0000", "seed_policy").checkpoint_id
    request = EvaluateRequest(
        iteration="0001", stage="evaluations", checkpoints={"released": checkpoint_id}, splits={"released": ("eval",)}, seed=0,
        acting=ActingSettings(
            tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), agent=AgentSettings(grammar="uitars15"),
            sandbox=SandboxSettings(num_sessions=2),
        ),
        evaluation=EvaluationSettings(eval_per_task=1, holdout_per_task=1),
    )  # fmt: skip
    evaluate.run(request, places[1])
    return places[1]


def test_a_policy_that_sees_is_evaluated_with_its_eyes_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Looking()
    place = evaluated(tmp_path, policy, monkeypatch)
    assert policy.seen and set(policy.seen) == {1} and policy.is_closed
    with connect(place.warehouse) as con:
        absent = con.sql("select count(*) from steps anti join screenshots using (screenshot_id)").fetchall()
    assert absent == [(0,)]


def test_an_engine_that_fails_in_an_evaluation_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Looking(ModelError("its weights have diverged"))
    with pytest.raises(ModelError, match="diverged"):
        evaluated(tmp_path, policy, monkeypatch)
    assert policy.is_closed


@pytest.mark.parametrize(
    ("agent", "shows"), [({}, False), ({"grammar": "uitars15"}, True), ({"grammar": "uitars15", "max_screenshots": 0}, False)]
)
def test_greedy_requests_ask_for_screens_where_prompts_show_them(agent: dict[str, object], shows: bool) -> None:
    acting = ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",)), agent=AgentSettings.model_validate(agent))
    requests = evaluate.greedy_requests(acting, "policy-looking", Split.EVAL, 1)
    assert requests and {request.screenshots for request in requests} == {shows}


def test_success_is_told_with_intervals_that_know_how_few_the_episodes_are() -> None:
    counts = [TaskCount(task="always", num_success=1, num_episodes=1), TaskCount(task="never", num_success=0, num_episodes=2)]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(success_by_task(counts, "policy-1 on eval"))
    said = console.export_text()
    assert "0.207 – 1.000" in said and "0.000 – 0.658" in said and "1 of 3" in said and "±" not in said
    told = success_figures(counts)
    assert told["success"]["mean"] == 0.5 and [row["task"] for row in told["tasks"]] == ["always", "never"]
    assert told["tasks"][0]["high"] == 1.0 and told["tasks"][0]["low"] == pytest.approx(0.207, abs=1e-3)
