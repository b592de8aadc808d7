"""Servers that an engine starts for itself: processes that answer as the engine in this process does, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.policy.policy import Prompt, Response
from models.engine.choice import EngineChoice
from models.engine.settings import EngineSettings
from models.families.registry import load_policy
from models.http.config import HttpEngineConfig
from models.http.servers import devices_of
from pipelines.stages.engines import open_engine, open_servers
from tests.models.policy_servers import act, prompt
from warehouse.core.errors import CheckpointError, EngineUnreachable

ASKS = [prompt(text, temperature=1.0, seed=seed, max_new_tokens=20) for seed, text in enumerate(['Find "Ok" then see', "see Submit"] * 3)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"of {pids} some are left"
        time.sleep(0.05)


def said(answers: list[Response]) -> list[tuple[object, ...]]:
    return [(answer.text, answer.prompt_token_ids, answer.token_ids, answer.versions, answer.policy_id) for answer in answers]


def answers_of(engine: object, asks: list[Prompt] = ASKS) -> list[Response]:
    return [act(engine, ask)[0] for ask in asks]  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_servers_answer_as_the_engine_in_this_process_and_end_with_it(roots: Path, tmp_path: Path) -> None:
    settings = EngineSettings(max_context=300)
    embedded = open_engine(roots / "a", EngineChoice(device="cpu", settings=settings))
    expected = answers_of(embedded)
    served = open_servers(
        roots / "a", EngineChoice(kind="served", replicas=2, device="cpu", settings=settings), exchange=tmp_path / "exchange"
    )
    try:
        pids = [pid for pid in served.own_pids if pid is not None]
        assert len(set(pids)) == 2 and all(map(is_alive, pids)) and os.getpid() not in pids
        assert served.capabilities().max_context == 300, "the profile's settings of the engine are the servers'"
        found = answers_of(served)
        assert said(found) == said(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        served.require_learnable()
        served.require_updatable()
        state = load_policy(roots / "b").state_dict()
        for engine in (embedded, served):
            engine.load_weights(state, "checkpoint-2", version=1)  # type: ignore[attr-defined]
        assert said(answers_of(served)) == said(answers_of(embedded))
    finally:
        served.close()
        embedded.close()
    until_gone(pids)
    assert not (tmp_path / "exchange").exists()
    served.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_end_of_a_server_is_named_and_worth_another_try(roots: Path, tmp_path: Path) -> None:
    engine = open_servers(roots / "a", EngineChoice(kind="served", device="cpu"), exchange=tmp_path / "exchange")
    (pid,) = engine.own_pids
    assert pid is not None and act(engine, prompt())[0].token_ids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineUnreachable, match="was ended by SIGKILL: run the stage again") as raised:
        act(engine, prompt())
    assert raised.value.is_retryable
    with pytest.raises(EngineUnreachable, match="was ended by SIGKILL"):
        engine.load_weights(load_policy(roots / "b").state_dict(), "checkpoint-2", version=1)
    engine.close()


PROGRAM = """
import sys
from pathlib import Path

from models.engine.choice import EngineChoice
from pipelines.stages.engines import open_engine

engine = open_engine(Path(sys.argv[1]), EngineChoice(kind="served", replicas=2, device="cpu"))
print(*engine.own_pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_servers_end_with_a_process_that_is_killed(roots: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(roots / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        process.kill()
    until_gone(pids)


@pytest.mark.slow
def test_what_a_server_cannot_open_is_said_here(roots: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in (roots / "a").iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_engine(damaged, EngineChoice(kind="served", device="cpu"))


def test_settings_of_one_kind_are_refused_for_another() -> None:
    with pytest.raises(ValidationError, match=r"only kind served starts servers"):
        EngineChoice(replicas=2)
    with pytest.raises(ValidationError, match="give `http` if and only if kind is http"):
        EngineChoice(kind="served", http=HttpEngineConfig(base_url="http://host:1"))
    assert "replicas" not in EngineChoice().model_dump(), "what was made before is not made again"
    assert devices_of("cuda:1", 2) == ["cuda:1", "cuda:2"] and devices_of("cpu", 2) == ["cpu", "cpu"]
