"""`flywheel gateway serve` as a process: killed with -9 in the middle of conversations and restarted, it has lost nothing that a client
was answered. And what was served is what training reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from agent.episode.rows import rows
from agent.gateway.episodes import finished
from agent.gateway.log import read_calls
from agent.policy.policy import Message
from models.checkpoints.checkpoint import save
from models.families.registry import load_codec
from models.gateway.serve import Address
from models.supervised.training_set import encode_samples
from pipelines.cli.app import app
from pipelines.cli.policies.gateway import UPSTREAM_TOKEN, project_tokens
from pipelines.stages.supervised import DatasetSamples
from tests.models.conftest import small_model
from tests.models.gateways import PROJECTS, asked, gateway, user
from tests.models.policy_servers import TOKEN, our_server
from tests.models.served_models import save_chat_model
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.routing.samples import sample_row
from warehouse.storage.tables import Warehouse

CHAT = "/v1/chat/completions"
CLIENTS = 4


@contextmanager
def process(home: Path, upstream: str, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway as a process, and its address."""
    tokens = home / "tokens"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in PROJECTS.items()))
    tokens.chmod(0o600)
    options = ["--upstream", upstream, "--port", str(port), "--tokens", str(tokens), "--home", str(home)]
    command = [sys.executable, "-m", "pipelines.cli", "gateway", "serve", *options]
    environment = os.environ | {UPSTREAM_TOKEN: TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2]) as started:
        try:
            assert started.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
            assert address is not None
            yield started, address[0]
        finally:
            started.kill()


class Talker(threading.Thread):
    """A client that talks until the gateway goes; `answers` are the answers that it was given whole, `messages` its conversation."""

    def __init__(self, url: str, enough: threading.Semaphore, *, stream: bool, messages: list[dict[str, Any]] | None = None) -> None:
        super().__init__()
        self._url, self._enough, self._stream = url, enough, stream
        self.messages = messages or [user("Open the page")]
        self.answers: list[str] = []

    def run(self) -> None:
        headers = {"authorization": f"Bearer {PROJECTS['alpha']}"}
        with httpx.Client(base_url=self._url, headers=headers, timeout=60, trust_env=False) as client:
            while len(self.answers) < 40:
                try:
                    response = client.post(CHAT, json=asked(*self.messages, stream=self._stream, seed=len(self.answers), max_tokens=4))
                except httpx.TransportError:
                    return
                if self._stream and not response.text.endswith("data: [DONE]\n\n"):
                    return
                text = said(response, stream=self._stream)
                self.answers.append(text)
                self.messages += [{"role": "assistant", "content": text}, user(f"hello {len(self.answers)}")]
                self._enough.release()


def said(response: httpx.Response, *, stream: bool) -> str:
    if not stream:
        return str(response.json()["choices"][0]["message"]["content"])
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.slow
def test_what_clients_were_answered_survives_a_kill(tmp_path: Path) -> None:
    save_chat_model(tmp_path / "model")
    home = tmp_path / "home"
    home.mkdir()
    with our_server(tmp_path / "model") as server:
        enough = threading.Semaphore(0)
        with process(home, server.url, 0) as (first, url):
            talkers = [Talker(url, enough, stream=bool(number % 2)) for number in range(CLIENTS)]
            for talker in talkers:
                talker.start()
            for _ in range(3 * CLIENTS):
                assert enough.acquire(timeout=120)
            first.kill()
            for talker in talkers:
                talker.join(60)
        kept = [call.answer.text for call in read_calls(Home(home))]
        for answer in (text for talker in talkers for text in talker.answers):
            kept.remove(answer)  # raises where one is missing
        assert len(kept) <= CLIENTS, "at most the answers that were on their way"
        with process(home, server.url, 0) as (_, url):
            more = [Talker(url, threading.Semaphore(0), stream=False, messages=talker.messages) for talker in talkers]
            with httpx.Client(
                base_url=url, headers={"authorization": f"Bearer {PROJECTS['alpha']}"}, timeout=60, trust_env=False
            ) as client:
                for talker in more:
                    assert client.post(CHAT, json=asked(*talker.messages, max_tokens=4)).status_code == 200
    calls = list(read_calls(Home(home)))
    after = calls[-CLIENTS:]
    assert all(call.place.parent is not None and len(call.messages) == 1 for call in after), "each goes on where it was"
    assert len({call.place.episode for call in calls}) == CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["gateway_episodes", "rollouts"])
def test_what_was_served_is_what_training_reads(tmp_path: Path, stage: str) -> None:
    home, folder = Home(tmp_path), tmp_path / "checkpoints" / "small"
    model, tokenizer = small_model()
    card = save(folder, model, tokenizer, stage="seed_policy", iteration="0000")
    warehouse = Warehouse(home)
    place = {"iteration": "0000", "stage": "seed_policy", "checkpoint_id": card.checkpoint_id, "folder": folder}
    registry.register(warehouse, **place, parents=(), datasets=(), config={}, metrics={})
    with (
        our_server(folder) as server,
        gateway(tmp_path, Address(url=server.url, token=TOKEN)) as running,
        running.client(name="one") as client,
    ):
        answer = client.post(CHAT, json=asked(user("Find Ok  then   see"), return_token_ids=True)).json()
        client.post("/episodes/one/outcome", json={"value": 1, "by": "test"})
    (taken,) = finished(home)
    found = rows([taken.episode])
    (step,) = found["steps"]
    warehouse.replace_partition("steps", found["steps"], iteration="0001", stage=stage)
    sample = sample_row(
        "sft",
        origin="gateway",
        domain="gateway",
        messages=step["messages"],
        response=step["response"],
        episode_id=step["episode_id"],
        step_index=0,
        verdict=True,
    )
    warehouse.replace_partition("sft_samples", [sample], iteration="0001", stage="routing")
    row = {"dataset_id": "d", "kind": "sft", "sample_id": sample["sample_id"], "component": "gateway", "weight": 1.0}
    warehouse.replace_partition("datasets", [row], iteration="0001", stage="sft_dataset")

    prompt, written = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    assert (step["prompt_token_ids"], step["response_token_ids"]) == (prompt, written)
    (read,) = encode_samples(load_codec(folder), DatasetSamples(warehouse, "d", ["sft"], init=folder), 0.0, max_tokens=500)
    assert list(read.token_ids) == [*prompt, *written]
    assert list(read.loss_weights) == [0.0] * len(prompt) + [1.0] * len(written)
    (texts,) = DatasetSamples(warehouse, "d", ["sft"])
    assert not texts.token_ids and texts.messages[0] == Message(role="user", content="Find Ok  then   see"), "of another tokenizer"


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    made, _ = project_tokens(Home(tmp_path), None)
    assert list(made) == ["default"] and (tmp_path / "gateway" / "token").stat().st_mode & 0o077 == 0
    result = CliRunner().invoke(app, ["gateway", "serve", "--dtype", "int4", "--home", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
