"""The Prefect flow of a collection, with a real server and browser, in a process of its own: Prefect reads its environment once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.episode.episode import Episode, EpisodeRequest
from agent.policy.policy import Prompt, Response
from assets.profile import ActingSettings, SandboxSettings, TaskSettings
from pipelines.orchestration import prefect_server
from pipelines.orchestration.progress import Progress
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import EpisodeService
from sandbox.tasks.task import Split
from warehouse.core.errors import BrowserCrashed
from warehouse.core.home import Home

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = (
    "Action press ctrl a",
    'Action type "a b"',
    "Action click 4 60",
    "Action scroll down 4 60",
    "Action drag 4 60 8 80",
    "Action wait",
    "Action fly",
    'Action finished "done"',
)


class Pressing:
    """Answers with one kind of action after the other, whatever it sees."""

    policy_id = "policy-pressing"

    def __init__(self) -> None:
        self._turns = count()

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        texts = [ANSWERS[next(self._turns) % len(ANSWERS)] for _ in prompts]
        return [Response(text=text, prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.1,), policy_id=self.policy_id) for text in texts]


def collect(root: Path) -> None:
    home = Home(root)
    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("forms",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1))
    requests = requests_for(tasks, purpose="rollout", policy_id=Pressing.policy_id, split=Split.TRAIN, num=4, temperature=1.0)
    with prefect_server.prefect_server(home) as url:
        os.environ.update(prefect_server.client_environment(home, url))
        from pipelines.orchestration.collection import run_collection

        with EpisodeService(acting, Pressing(), home.spool / "screenshots") as service:
            progress = Progress(home.work, iteration="0001", stage="rollouts", log=print)
            episodes = run_collection(service, requests, num_at_once=2, max_retries=0, progress=progress)
    assert [episode.episode_id for episode in episodes] == [request.episode_id for request in requests]
    assert {step.action.kind for episode in episodes for step in episode.steps} >= {"hotkey", "type", "click", "scroll", "invalid"}
    assert not any(episode.outcome == "crashed" for episode in episodes)


class Interrupted(EpisodeService):
    """Of each episode the first runs fail: none of the first request's, one of the second's, and so on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._left: dict[str, int] = {}

    def submit(self, request: EpisodeRequest) -> Future[Episode]:
        left = self._left.setdefault(request.episode_id, len(self._left))
        if not left:
            return super().submit(request)
        self._left[request.episode_id] = left - 1
        failed: Future[Episode] = Future()
        failed.set_exception(BrowserCrashed("the browser went away, as planned"))
        return failed


def collect_interrupted(root: Path) -> None:
    home = Home(root)
    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("forms",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1))
    requests = requests_for(tasks, purpose="rollout", policy_id=Pressing.policy_id, split=Split.TRAIN, num=4, temperature=1.0)[:4]
    with prefect_server.prefect_server(home) as url:
        os.environ.update(prefect_server.client_environment(home, url))
        from pipelines.orchestration.collection import run_collection

        progress = Progress(home.work, iteration="0001", stage="rollouts", log=print)
        with Interrupted(acting, Pressing(), home.spool / "screenshots") as service:
            episodes = run_collection(service, requests, num_at_once=1, max_retries=2, progress=progress)
            again = run_collection(service, requests[:3], num_at_once=1, max_retries=2, progress=progress)
    assert [(episode.num_retries, episode.outcome == "crashed") for episode in episodes] == [(0, False), (1, False), (2, False), (2, True)]
    assert [episode.num_retries for episode in again] == [0, 1, 2], "kept with the result"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_retried_says_how_often(tmp_path: Path) -> None:
    run_apart("collect_interrupted", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_episodes_with_actions_of_every_kind_come_back_in_the_order_of_their_requests(tmp_path: Path):
    run_apart("collect", tmp_path)


def run_apart(name: str, root: Path) -> None:
    """One of the functions above, in a process of its own."""
    program = f"import sys, test_collection; test_collection.{name}(test_collection.Path(sys.argv[1]))"
    command, paths = [sys.executable, "-c", program, str(root)], f"{ROOT}:{Path(__file__).parent}"
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
