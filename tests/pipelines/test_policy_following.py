"""A policy server that follows the live release, through promotions and a rollback, under requests: none fails, each is answered by one set
of weights from its first token to its last and says by which, and what cannot be served leaves the server with what it has."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from models.checkpoints.checkpoint import save
from models.engine.settings import EngineSettings
from models.http.engine import HttpEngine
from models.server.settings import ServerSettings
from pipelines.cli.app import app
from pipelines.cli.policies.policy import TOKEN_VARIABLE
from pipelines.policy_server import following
from pipelines.policy_server.following import Follower, Live, ServersElsewhere, find_live
from tests.models.conftest import small_model
from tests.models.policy_servers import TOKEN, config, our_server
from tests.models.policy_servers import TOKEN_VARIABLE as SERVERS_TOKEN
from warehouse.core.errors import CheckpointError, ConfigError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.releases import promote, rollback
from warehouse.storage.tables import Warehouse

WHO = {"by": "anna", "reason": "because"}
LONGEST = 48
BODY = {"messages": [{"role": "user", "content": "Find Ok then see"}], "temperature": 0, "return_token_ids": True}
ROOT = Path(__file__).parents[2]


def candidate(warehouse: Warehouse, number: int) -> str:
    """A merged policy of an iteration of its own, with weights of its own; its id."""
    folder = warehouse.home.checkpoints / f"{number:04d}" / "merged_policy" / "x"
    card = save(folder, *small_model(seed=number), stage="merged_policy", iteration=f"{number:04d}")
    registry.register(warehouse, iteration=f"{number:04d}", stage="merged_policy", checkpoint_id=card.checkpoint_id, folder=folder)
    return card.checkpoint_id


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A home with three candidates, the first of which is live."""
    found = Warehouse(Home(tmp_path / "home"))
    for number in (1, 2, 3):
        candidate(found, number)
    promote(found, "0001/merged_policy", **WHO)
    return found


@dataclass
class Asked:
    """What the answers to one client were."""

    url: str
    stops: threading.Event
    streams: bool
    answers: list[tuple[str, list[int], list[int]]] = field(default_factory=list)
    """Policy id, versions and ids of tokens."""
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60.0, trust_env=False) as client:
            for length in self._lengths():
                try:
                    self.answers.append(self._ask(client, BODY | {"max_tokens": length}))
                except Exception as error:
                    self.failures.append(repr(error))

    def _lengths(self) -> Iterator[int]:
        while not self.stops.is_set():
            yield from (3, LONGEST, 16)

    def _ask(self, client: httpx.Client, body: Mapping[str, Any]) -> tuple[str, list[int], list[int]]:
        if not self.streams:
            choice = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
            return choice["flywheel"]["policy_id"], choice["flywheel"]["versions"], choice["token_ids"]
        policies, versions, ids = set(), [], []
        with client.stream("POST", "/v1/chat/completions", json=dict(body) | {"stream": True}) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        if choice.get("flywheel"):
                            policies.add(choice["flywheel"]["policy_id"])
                            versions += choice["flywheel"]["versions"]
                            ids += choice["token_ids"]
        (policy,) = policies
        return policy, versions, ids


@contextmanager
def asking(url: str, num: int) -> Iterator[list[Asked]]:
    """Clients that ask one thing after the other for as long as the block lasts, every second of them for a stream."""
    stops = threading.Event()
    clients = [Asked(url, stops, streams=bool(index % 2)) for index in range(num)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        stops.set()
        for thread in threads:
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answered_by(clients: list[Asked], policy_id: str) -> int:
    return sum(answer[0] == policy_id for client in clients for answer in client.answers)


@pytest.mark.slow
def test_no_request_fails_across_a_promotion_a_rollback_and_a_release_that_cannot_be_served(warehouse: Warehouse) -> None:
    one, two, three = (registry.made_by(warehouse, f"000{number}", "merged_policy").checkpoint_id for number in (1, 2, 3))
    damaged = warehouse.home.checkpoints / "0003" / "merged_policy" / "x" / "model.safetensors"
    whole = damaged.read_bytes()
    said: list[str] = []
    follower = Follower(warehouse, said.append, every_s=0.02, again_s=0.2)
    live = find_live(warehouse)
    settings = EngineSettings(max_rows=4, running_rows="finish")
    with (
        our_server(live.policy.folder, engine_settings=settings, version=live.number, beside=follower.follow) as server,
        server.client() as client,
        asking(server.url, num=6) as clients,
    ):

        def health() -> Any:
            return client.get("/health").raise_for_status().json()

        def serves(policy_id: str) -> None:
            until(lambda: health()["policy_id"] == policy_id)
            before = answered_by(clients, policy_id)
            until(lambda: answered_by(clients, policy_id) > before + 6)

        serves(one)
        until(lambda: health()["following"] == {"release": "0001/merged_policy", "policy_id": one, "problem": None})
        promote(warehouse, "0002/merged_policy", **WHO)
        serves(two)
        rollback(warehouse, **WHO)
        serves(one)
        assert health()["version"] == 3, "the number of the change that made it live"

        damaged.write_bytes(whole[: len(whole) // 2])
        promote(warehouse, "0003/merged_policy", **WHO)
        until(lambda: (health()["following"] or {}).get("problem") is not None)
        state = health()
        assert (state["status"], state["policy_id"], state["following"]["policy_id"]) == ("ok", one, three)
        assert "flywheel_policy_behind 1.0" in client.get("/metrics").text
        serves(one)
        assert [line for line in said if "0003/merged_policy" in line and "cannot be served" in line and f"{one} goes on" in line]
        assert len(said) == 3, f"it is tried again and again, and said once: {said}"
        damaged.write_bytes(whole)
        serves(three)
        assert health()["following"]["problem"] is None and "flywheel_policy_behind 0.0" in client.get("/metrics").text

        body = BODY | {"max_tokens": LONGEST}
        refused = client.post("/v1/weights", json={"folder": str(live.policy.folder)})
        assert refused.status_code == 403, "a release is served, and what anybody else would load is not"
        assert client.post("/v1/chat/completions", json=body).json()["choices"][0]["flywheel"]["policy_id"] == three

    assert [failure for client in clients for failure in client.failures] == []
    answers = [answer for client in clients for answer in client.answers]
    assert {policy for policy, _, _ in answers} == {one, two, three}
    longest = {policy: max((ids for by, _, ids in answers if by == policy), key=len) for policy in (one, two, three)}
    assert len({tuple(ids[:3]) for ids in longest.values()}) > 1, "the policies answer differently"
    for policy, versions, ids in answers:
        (version,) = set(versions)
        assert version in {one: {1, 3}, two: {2}, three: {4}}[policy]
        assert ids == longest[policy][: len(ids)], "an answer is of one set of weights from its first token to its last"


def test_what_cannot_be_followed_is_said_at_once(tmp_path: Path, warehouse: Warehouse) -> None:
    empty = tmp_path / "empty"
    Home(empty).make()
    for arguments, kind, words in (
        (["--follow", "--home", str(empty)], CheckpointError, "nothing is released"),
        (["0001/merged_policy", "--follow"], ConfigError, "leave one of the two out"),
        (["--follow", "--weights-root", str(tmp_path)], ConfigError, "leave --weights-root out"),
        ([], ConfigError, "--follow"),
    ):
        ran = CliRunner().invoke(app, ["policy", "serve", *arguments], env={"FLYWHEEL_HOME": str(warehouse.home.root)})
        assert isinstance(ran.exception, kind) and words in str(ran.exception), arguments


@pytest.mark.parametrize("fails", ["find_live", "_versions"])
def test_what_cannot_be_sent_is_asked_again_after_the_wait_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """A home in which nothing is released, and one whose tables cannot be read."""
    warehouse, said, asked = Warehouse(Home(tmp_path)), list[str](), list[float]()

    def find(warehouse: Warehouse) -> Live:
        asked.append(time.monotonic())
        return find_live(warehouse)

    def unreadable(self: Follower) -> tuple[int, ...]:
        asked.append(time.monotonic())
        raise OSError("the disk is away")

    async def follow(again_s: float, is_enough: Callable[[], bool], then_s: float = 0.0) -> None:
        async def has_lost_weights() -> bool:
            return False

        service: Any = SimpleNamespace(policy_id="checkpoint-1", following=None, has_lost_weights=has_lost_weights)
        following = asyncio.ensure_future(Follower(warehouse, said.append, every_s=0.01, again_s=again_s).follow(service))
        await asyncio.to_thread(until, is_enough)
        await asyncio.sleep(then_s)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    if fails == "find_live":
        monkeypatch.setattr(following, "find_live", find)
    else:
        monkeypatch.setattr(Follower, "_versions", unreadable)
    asyncio.run(follow(again_s=60.0, is_enough=lambda: bool(said), then_s=0.3))
    assert len(asked) == 1 and len(said) == 1 and "cannot be read" in said[0]
    asked.clear()
    asyncio.run(follow(again_s=0.1, is_enough=lambda: len(asked) > 2))
    assert all(later - sooner >= 0.1 for sooner, later in pairwise(asked))


def test_a_server_elsewhere_is_handed_the_live_release_and_again_when_it_has_lost_it(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVERS_TOKEN, TOKEN)
    one, two = (registry.made_by(warehouse, f"000{number}", "merged_policy") for number in (1, 2))
    settings = ServerSettings(weight_roots=(warehouse.home.checkpoints,))
    with our_server(two.folder, settings) as server, server.client() as client:
        engine = HttpEngine(config(server.url, under_way="finish"))
        elsewhere, said = ServersElsewhere(engine, every_s=0.05), list[str]()

        async def follow() -> None:
            following = asyncio.ensure_future(Follower(warehouse, said.append, every_s=0.02).follow(elsewhere))
            for number, checkpoint in ((1, one), (2, two)):
                if number > 1:
                    promote(warehouse, f"000{number}/merged_policy", **WHO)
                await asyncio.to_thread(until, lambda wanted=checkpoint: server.engine.policy_id == wanted.checkpoint_id)
            await asyncio.to_thread(until, lambda: len(said) == 2)
            client.post("/v1/weights", json={"folder": str(one.folder)}).raise_for_status()
            await asyncio.to_thread(until, lambda: len(said) == 3 and server.engine.policy_id == two.checkpoint_id)
            following.cancel()

        asyncio.run(follow())
        assert [line.split(" (")[0] for line in said] == [f"serves 000{number}/merged_policy" for number in (1, 2, 2)]
        engine.close()


@pytest.mark.slow
def test_the_command_hands_releases_to_a_server_elsewhere(warehouse: Warehouse) -> None:
    two = registry.made_by(warehouse, "0002", "merged_policy")
    settings = ServerSettings(weight_roots=(warehouse.home.checkpoints,))
    with our_server(registry.made_by(warehouse, "0001", "merged_policy").folder, settings) as server:
        command = [sys.executable, "-m", "pipelines.cli", "policy", "follow", "--server", server.url, "--home", str(warehouse.home.root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {TOKEN_VARIABLE: TOKEN}, cwd=ROOT) as process:
            try:
                assert process.stdout is not None
                assert "flywheel, weights by disk" in process.stdout.readline()
                promote(warehouse, "0002/merged_policy", **WHO)
                assert f"serves 0002/merged_policy ({two.checkpoint_id}) since change 2" in process.stdout.readline()
                assert server.engine.policy_id == two.checkpoint_id
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.slow
def test_the_command_follows_a_promotion_and_ends_when_signalled(warehouse: Warehouse) -> None:
    command = [sys.executable, "-m", "pipelines.cli", "policy", "serve", "--follow", "--port", "0", "--home", str(warehouse.home.root)]
    two = registry.made_by(warehouse, "0002", "merged_policy").checkpoint_id
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert address is not None
            with asking(address[0], num=2) as clients:
                until(lambda: len(clients[0].answers) > 3)
                promote(warehouse, "0002/merged_policy", **WHO)
                until(lambda: answered_by(clients, two) > 3)
            assert [failure for client in clients for failure in client.failures] == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert f"serves 0002/merged_policy ({two}) since change 2" in process.stdout.read()
        finally:
            process.kill()
