"""Runs of verifiers through a gateway: each rollout is one episode, and its reward becomes the episode's V."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.gateway.episodes import finished
from benchmarks.common.venv import python_of
from models.gateway.serve import Address
from models.gateway.settings import GatewaySettings
from models.gateway.verifiers_traces import post_outcomes, read_traces
from models.server.settings import ServerSettings
from pipelines.cli.app import app
from tests.models.gateways import PROJECTS, Gateway, asked, gateway, user
from tests.models.policy_servers import TOKEN, OurServer, our_server
from tests.models.served_models import save_chat_model
from tests.sandbox.own_source import ROOT
from tests.sandbox.test_verifiers import VERIFIERS
from warehouse.core.errors import ConfigError, EngineUnreachable

CHAT = "/v1/chat/completions"
TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    pays: float

class Pays(vf.Task[Data]):
    @vf.reward
    async def scored(self, trace: vf.Trace) -> float:
        return self.data.pays

class Taskset(vf.Taskset[Pays]):
    def load(self):
        for pays in (1.0, 0.0):
            yield Pays(Data(name=f"pays {pays:g}", prompt="see the screen", pays=pays), self.config.task)

__all__ = ["Taskset"]
"""
CONFIG = """
model = "policy"
push = false
[env.taskset]
id = "pays"
[env.agent.harness]
id = "null"
[env.agent.runtime]
type = "subprocess"
[client]
base_url = "{url}/v1"
api_key_var = "GATEWAY_KEY"
headers = {{X-Flywheel-Task = "pays"}}
[sampling]
max_tokens = 8
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    folder = tmp_path_factory.mktemp("served") / "chat"
    save_chat_model(folder)
    with our_server(folder, ServerSettings(max_tokens=400)) as running:
        yield running


@pytest.fixture
def running(server: OurServer, tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path / "home", Address(url=server.url, token=TOKEN), GatewaySettings(episode_header="X-Session-ID")) as opened:
        yield opened


def trace(name: str, **rewards: float | None) -> dict[str, Any]:
    scored = {key: None if score is None else {"score": score, "weight": 0.5} for key, score in rewards.items()}
    return {"id": name, "rewards": scored, "ok": True, "is_completed": True, "task": {"type": "T", "data": {}}}


def outcomes(running: Gateway) -> dict[str, tuple[int, str] | None]:
    with running.client() as client:
        found = client.get("/episodes").json()
    return {one["name"]: one["outcome"] and (one["outcome"]["value"], one["outcome"]["by"]) for one in found}


def test_rewards_become_outcomes_of_the_sessions_that_were_recorded(running: Gateway, tmp_path: Path) -> None:
    for session in ("a", "b", "a", "failed", "unscored"):
        with running.client(**{"x-session-id": session}) as client:
            assert client.post(CHAT, json=asked(user("see the screen"))).status_code == 200
    rows: list[dict[str, Any]] = [
        {"traces": [trace("a", right=1.0, short=1.0), trace("b", right=1.0, short=0.0)]},
        trace("elsewhere", right=2.0),
        trace("failed", right=2.0) | {"ok": False},
        trace("unscored", right=None),
    ]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        posted = post_outcomes(tmp_path, running.url, PROJECTS["alpha"], success_at=1.0, by="verifiers")
        assert posted.counts == {"solved": 1, "not solved": 1, "not of this gateway": 1, "without a reward": 2} and not posted.problems
    assert outcomes(running) == {"a": (1, "verifiers"), "b": (0, "verifiers"), "failed": None, "unscored": None}
    assert [(len(one.episode.steps), one.episode.reward) for one in finished(running.home)] == [(2, 1.0), (1, 0.0)]

    posted = post_outcomes(tmp_path, running.url, PROJECTS["alpha"], success_at=0.5, by="verifiers")
    assert posted.counts["refused"] == 1 and "b: the episode has its outcome, 0 by verifiers" in posted.problems[0]


def test_weights_that_make_up_the_threshold_solve(tmp_path: Path) -> None:
    rewards = {name: {"score": 1.0, "weight": weight} for name, weight in (("a", 0.7), ("b", 0.2), ("c", 0.1))}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace("x") | {"rewards": rewards}))
    (found,) = read_traces(tmp_path)
    assert found.reward is not None and found.reward < 1.0 and found.solves(1.0)


def test_the_command_fails_where_an_episode_was_not_recorded(running: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running.client(**{"x-session-id": "a"}) as client:
        client.post(CHAT, json=asked(user("see the screen")))
    monkeypatch.setenv("GATEWAY_KEY", PROJECTS["alpha"])
    arguments = ["gateway", "outcomes", str(tmp_path), "--url", running.url, "--token-env", "GATEWAY_KEY"]
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace("a", right=2.0)))
    assert CliRunner().invoke(app, arguments).output == "outcomes: 1 solved\n"
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace("other", right=2.0)))
    result = CliRunner().invoke(app, arguments)
    assert result.output == "outcomes: 1 not of this gateway\n" and isinstance(result.exception, ConfigError)


def test_the_header_names_episodes_only_where_it_is_asked_for(server: OurServer, tmp_path: Path) -> None:
    with gateway(tmp_path, Address(url=server.url, token=TOKEN)) as plain:
        with plain.client(**{"x-session-id": "a"}) as client:
            client.post(CHAT, json=asked(user("see the screen")))
        assert list(outcomes(plain)) == [None]


def test_a_name_of_the_gateways_own_comes_before_the_sessions(running: Gateway) -> None:
    with running.client(name="mine", **{"x-session-id": "theirs"}) as client:
        client.post(CHAT, json=asked(user("see the screen")))
    assert list(outcomes(running)) == ["mine"]


@pytest.mark.parametrize("line", ["{", "[]", '{"id": ""}', '{"traces": 1}', '{"id": "a", "rewards": {"x": {"score": NaN}}}', "[" * 100_000])
def test_what_is_no_trace_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace("a")) + "\n\n" + line)
    with pytest.raises(ConfigError, match=r"traces.jsonl, line 3 is not a trace of verifiers"):
        list(read_traces(tmp_path))


def test_a_run_or_a_gateway_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the folder that `vf-eval` wrote"):
        list(read_traces(tmp_path / "none"))
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace("a", right=1.0)))
    with pytest.raises(EngineUnreachable, match="is `flywheel gateway serve` running"):
        post_outcomes(tmp_path, "http://127.0.0.1:9", PROJECTS["alpha"], success_at=1.0, by="verifiers")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_verifiers_own_evaluation_becomes_episodes(running: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_of(ROOT / ".bench" / "verifiers", VERIFIERS)
    (tmp_path / "pays.py").write_text(TASKSET)
    (tmp_path / "eval.toml").write_text(CONFIG.format(url=running.url))
    key = {"GATEWAY_KEY": PROJECTS["alpha"]}
    environment = os.environ | key | {"PYTHONPATH": str(tmp_path), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    command = [str(python.with_name("vf-eval")), "@", "eval.toml", "--no-rich", "-c", "1", "-o", "out"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    ((run,),) = [list((tmp_path / "out").glob("*/traces.jsonl"))]

    monkeypatch.setenv("GATEWAY_KEY", PROJECTS["alpha"])
    arguments = ["gateway", "outcomes", str(run.parent), "--url", running.url, "--token-env", "GATEWAY_KEY"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "1 not solved, 1 solved" in result.output, result.output
    names = {one.id: one.reward for one in read_traces(run)}
    assert outcomes(running) == {name: (int(reward or 0), "verifiers") for name, reward in names.items()}
    found = [one.episode for one in finished(running.home)]
    assert sorted((one.request.task.name, one.reward) for one in found) == [("pays", 0.0), ("pays", 1.0)]
    assert all(step.response_token_ids for one in found for step in one.steps)
