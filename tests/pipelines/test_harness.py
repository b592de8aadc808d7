"""A harness that collects: a program of one's own drives leased Chromium pages by their DevTools address, our policy answers it behind the
gateway, and what it did is stored, routed and learned from by the very ids that were served."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.gateway.log import read_calls
from agent.harness.registry import HARNESSES
from assets.settings.agent import HarnessSettings, LearnerHarnessSettings
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, CollectionSettings, TaskSettings
from assets.stages.requests import CollectRequest
from pipelines import profiles
from pipelines.stages.collect import policy_of
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.harness import HarnessService, open_harness_collector
from sandbox.tasks.task import Split
from tests.agent.conftest import ReadingPolicy
from tests.models.policy_servers import played_server
from tests.models.served_models import save_chat_model
from warehouse.core.errors import ConfigError, ModelError
from warehouse.core.home import Home

PROGRAM = """
import json, os, re, urllib.request

from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    page = playwright.chromium.connect_over_cdp(os.environ["FLYWHEEL_DEVTOOLS"]).contexts[0].pages[0]
    asked = {"messages": [{"role": "user", "content": "see " + page.title()}], "max_tokens": 4, "temperature": 1.0, "seed": 3}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers)).read()
    name = re.search(r'"(.*)" button', os.environ["FLYWHEEL_INSTRUCTION"])[1]
    page.get_by_role("button", name=name, exact=True).first.click()
"""
HARNESS = """
import asyncio
import sys
from pathlib import Path

from agent.harness.harness import Command

HARNESS = Command((sys.executable, str(Path(__file__).with_name("program.py"))))
"""

SHELL = """
import re

import httpx

from agent.harness.harness import Assignment


async def harness(assignment: Assignment) -> None:
    word, file = re.search(r"Write the word (\\w+) into the file (\\S+)\\.$", assignment.instruction).groups()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        asked = {"messages": [{"role": "user", "content": assignment.instruction}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {assignment.key}"}
        (await http.post(f"{assignment.openai_url}/chat/completions", headers=headers, json=asked)).raise_for_status()
        action = {"kind": "tool", "name": "execute_bash", "arguments": {"command": f"echo {word} > {file}; cat {file}"}}
        led = (await http.post(f"{assignment.session_url}/step", json=action)).json()
        assert word in led["observation"]["output"], led
"""


PRESS = """
import re

import httpx

from agent.harness.harness import Assignment


async def harness(assignment: Assignment) -> None:
    assert assignment.devtools_url is None
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        asked = {"messages": [{"role": "user", "content": assignment.instruction}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {assignment.key}"}
        (await http.post(f"{assignment.openai_url}/chat/completions", headers=headers, json=asked)).raise_for_status()
        shown = (await http.get(assignment.session_url)).json()["elements"]
        wanted = re.search(r'"(.*)" button', assignment.instruction)[1].lower()
        there = next(one for one in shown if one["role"] == "button" and one["text"].lower() == wanted)
        led = await http.post(f"{assignment.session_url}/step", json={"kind": "click", "x": there["x_px"], "y": there["y_px"]})
        assert led.json()["terminated"] is True
"""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mine.py").write_text(HARNESS)
    monkeypatch.setenv("FLYWHEEL_HARNESSES", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    HARNESSES.use({"mine": "mine.py:HARNESS"}, tmp_path)
    return "mine"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_program_that_drives_leased_pages_collects(harness: str, tmp_path: Path) -> None:
    save_chat_model(tmp_path / "policy")
    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=2, episode_timeout_s=60))
    requests = requests_for(tasks, purpose="gateway", policy_id="policy", split=Split.TRAIN, num=2)
    requests = [request for request in requests if request.task.name == "click-button"]
    log = EpisodeLog(tmp_path / "episodes")
    with HarnessService(acting, HarnessSettings(name=harness), tmp_path / "policy", log, tmp_path / "harness") as service:
        played = [future.result() for future in [service.submit(request) for request in requests]]
    assert [episode.outcome for episode in played] == [Outcome.SUCCESS] * 2
    assert {episode.episode_id for episode in log.episodes()} == {request.episode_id for request in requests}
    calls = {call.prompt_token_ids: call for call in read_calls(Home(tmp_path / "harness"))}
    for episode in played:
        assert_is_as_served(episode)
        (step,) = episode.steps
        assert calls[step.prompt_token_ids].response_logprobs == step.response_logprobs


def assert_is_as_served(episode: Episode) -> None:
    (step,) = episode.steps
    assert step.messages[0].content == "see Click Button Task" and "click" in (episode.instruction or "").lower()
    assert step.prompt_token_ids and 0 < len(step.response_token_ids) == len(step.response_logprobs) <= 5
    assert episode.environment.endswith("; DevTools; harness mine") and episode.content_id is not None


def test_a_profile_names_a_harness_that_there_is(harness: str, tmp_path: Path) -> None:
    assert profiles.load("smoke", {"collection.harness.name": harness}).collection.harness == HarnessSettings(name="mine")
    assert "harness" not in profiles.load("smoke").collection.model_dump()
    with pytest.raises(ConfigError, match=r"collection.harness.name of the profile smoke with .* is 'other'; known are mine"):
        profiles.load("smoke", {"collection.harness.name": "other"})
    with pytest.raises(ConfigError, match=r"a program that drives sessions of this machine: leave out sandbox.servers"):
        profiles.load("smoke", {"collection.harness.name": harness, "sandbox.servers": ["http://127.0.0.1:1"]})
    with pytest.raises(ConfigError, match=r"rl_harness.name of the profile smoke with .* is 'other'"):
        profiles.load("smoke", {"rl_harness.name": "other"})
    with pytest.raises(ConfigError, match=r"rl_harness asks the policy that learns"):
        profiles.load("smoke", {"rl_harness.name": harness, "rl_harness.upstream": "http://127.0.0.1:1"})


def test_a_collection_that_goes_on_asks_the_model_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = WorkerContext(folder=tmp_path, home=Home(tmp_path), iteration="0001", stage="rollouts", log=print)
    listed = ["teacher-7b"]
    with played_server(lambda *asked: (200, {}, {"data": [{"id": listed[0]}]})) as server:
        harness = HarnessSettings(name="mine", upstream=server.url, token_env="TEACHER_TOKEN")
        request = CollectRequest(
            iteration="0001",
            stage="rollouts",
            seed=0,
            checkpoint_id="policy",
            first_instance=0,
            acting=ActingSettings(tasks=TaskSettings(lists=("miniwob:smoke",), domains=("pointing",))),
            collection=CollectionSettings(instances_per_task=1, harness=harness),
        )
        with pytest.raises(ConfigError, match="token_env names TEACHER_TOKEN, which is not set"):
            policy_of(request, context)
        monkeypatch.setenv("TEACHER_TOKEN", "0123456789-a-token")
        assert [policy_of(request, context) for _ in range(2)] == ["teacher-7b"] * 2
        listed[0] = "teacher-8b"
        with pytest.raises(ModelError, match="answers with teacher-8b, and this stage began with teacher-7b"):
            policy_of(request, context)


async def collected(
    acting: ActingSettings, name: str, requests: list[EpisodeRequest], folder: Path, *, devtools: bool = False
) -> list[Episode]:
    """As RL collects."""
    settings = LearnerHarnessSettings(name=name, devtools=devtools)
    async with open_harness_collector(acting, settings, temperature=1.0, folder=folder) as collector:
        return [episode async for episode in collector.collect(ReadingPolicy(), requests)]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_policy_that_learns_answers_a_program_on_a_leased_page(harness: str, tmp_path: Path) -> None:
    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1, episode_timeout_s=60))
    requests = requests_for(tasks, purpose="rl", policy_id="policy", split=Split.TRAIN, num=1, temperature=1.0)
    requests = [request for request in requests if request.task.name == "click-button"]

    (episode,) = asyncio.run(collected(acting, harness, requests, tmp_path / "logs", devtools=True))
    assert episode.is_success and episode.request.purpose == "rl"
    (step,) = episode.steps
    assert (step.policy_id, step.response_token_ids, step.response_logprobs) == (ReadingPolicy.policy_id, (3, 4), (-0.1, -0.2))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_program_of_rl_gets_no_devtools_address_unless_asked_for(harness: str, tmp_path: Path) -> None:
    (tmp_path / "press.py").write_text(PRESS)
    HARNESSES.use({"press": "press.py:harness"}, tmp_path)
    asked = profiles.load("smoke", {"rl_harness.name": "press"}).rl_harness
    assert asked == LearnerHarnessSettings(name="press", devtools=False)
    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1, episode_timeout_s=60))
    requests = requests_for(tasks, purpose="rl", policy_id="policy", split=Split.TRAIN, num=1, temperature=1.0)
    requests = [request for request in requests if request.task.name == "click-button"]

    (episode,) = asyncio.run(collected(acting, "press", requests, tmp_path / "logs"))
    assert (episode.outcome, episode.error) == (Outcome.SUCCESS, None) and "DevTools" not in episode.environment


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_function_drives_a_terminal(harness: str, tmp_path: Path) -> None:
    (tmp_path / "shell.py").write_text(SHELL)
    HARNESSES.use({"shell": "shell.py:harness"}, tmp_path)
    tasks = TaskSettings(lists=("terminal",), domains=("terminal",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1, episode_timeout_s=60))
    requests = requests_for(tasks, purpose="rl", policy_id="policy", split=Split.TRAIN, num=1, temperature=1.0)
    requests = [request for request in requests if request.task.name == "write-word"]

    (episode,) = asyncio.run(collected(acting, "shell", requests, tmp_path / "logs"))
    assert (episode.outcome, episode.error, len(episode.steps)) == (Outcome.SUCCESS, None, 1)
