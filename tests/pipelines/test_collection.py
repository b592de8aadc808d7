"""The Prefect flow of a collection, with a real server and browser, in a process of its own: Prefect reads its environment once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from agent.episode.log import EpisodeLog
from agent.policy.policy import Prompt, Response
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from pipelines.orchestration.services import prefect_server
from pipelines.orchestration.work.progress import Progress
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import PolicyService
from sandbox.tasks.task import Split
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
        from pipelines.orchestration.work.collection import run_collection

        log = EpisodeLog(root / "episodes")
        with PolicyService(acting, Pressing(), log) as service:
            progress = Progress(home.work, iteration="0001", stage="rollouts", log=print)
            run_collection(service, requests, num_at_once=2, progress=progress)
    episodes = list(log.episodes())
    assert {episode.episode_id for episode in episodes} == {request.episode_id for request in requests} and len(episodes) == len(requests)
    assert not list((root / "episodes" / "under_way").iterdir())
    assert {step.action.kind for episode in episodes for step in episode.steps} >= {"hotkey", "type", "click", "scroll", "invalid"}
    assert not any(episode.outcome == "crashed" for episode in episodes)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_episodes_with_actions_of_every_kind_are_collected_each_once(tmp_path: Path):
    run_apart("collect", tmp_path)


def run_apart(name: str, root: Path) -> None:
    """One of the functions above, in a process of its own."""
    program = f"import sys, test_collection; test_collection.{name}(test_collection.Path(sys.argv[1]))"
    command, paths = [sys.executable, "-c", program, str(root)], f"{ROOT}:{Path(__file__).parent}"
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
