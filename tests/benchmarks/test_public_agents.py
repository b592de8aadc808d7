"""Public agents, unmodified, each in a venv of its own that is made on first use: they drive leased pages through the gateway and solve
tasks with a model that knows them by rules. One drives the browser by its DevTools address, one the session over HTTP with tools."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.runner import EpisodeRunner
from agent.harness.harness import Command
from agent.harness.runner import HarnessRunner
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.kept import fingerprint
from benchmarks.common.screen_teacher import NAME, create
from benchmarks.common.venv import python_of
from benchmarks.harness import BROWSER_USE, Bench
from models.gateway.episode_gateway import EpisodeGateway
from models.gateway.serve import Address
from sandbox.http.serving import Server, on_free_port
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split
from warehouse.core.home import Home

ROOT = Path(__file__).resolve().parents[2]
AGENTS = {"browser_use": BROWSER_USE, "openai_agents": ("openai-agents==0.24.0",)}
TASKS = ("click-button", "enter-text")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", AGENTS)
def test_a_public_agent_solves_tasks_and_is_recorded(name: str, tmp_path: Path) -> None:
    python = python_of(ROOT / ".bench" / name.replace("_", "-"), AGENTS[name])
    command = Command((str(python), str(ROOT / "benchmarks" / "common" / f"{name}_agent.py")))
    for episode in asyncio.run(played(command, tmp_path)):
        assert episode.is_success and episode.steps and {step.policy_id for step in episode.steps} == {NAME}
        assert episode.environment.endswith("; harness public")
        assert any((episode.instruction or "-") in message.content for message in episode.steps[0].messages)


async def played(command: Command, folder: Path) -> list[Episode]:
    tasks = [task for task in tasks_of("miniwob") if task.name in TASKS]
    async with (
        on_free_port(Server(create(), grace_s=1, lifespan="off")) as url,
        EpisodeGateway.open(Home(folder), Address(url=url)) as gateway,
        SessionPool(kind="devtools", size=1) as pool,
    ):
        runner = HarnessRunner(EpisodeRunner(pool, PromptBuilder("compact")), "public", command, gateway, timeout_s=200)
        requests = [
            EpisodeRequest(purpose="gateway", task=task, seed=task.seeds(Split.TRAIN, 1)[0], policy_id=NAME, screenshots=False)
            for task in tasks
        ]
        return [await runner.run(request) for request in requests]


def test_a_policy_that_was_trained_otherwise_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "learned").mkdir()
    asked = argparse.Namespace(root=tmp_path, at_once=1, seed=0, steps=1)
    (tmp_path / "learned.recipe").write_text(fingerprint("other settings"))
    with pytest.raises(SystemExit, match=r"learned is of other settings"):
        Bench(asked).train([])
