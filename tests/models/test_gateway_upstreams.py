"""Several policy servers behind one gateway: an episode stays with one of them, and one that dies costs no call."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.checkpoints.checkpoint import read_card
from models.gateway.serve import Address
from models.http.affinity import Affinity
from tests.models.gateways import Gateway, asked, gateway, user
from tests.models.policy_servers import TOKEN, OurServer, our_server
from warehouse.core.errors import ConfigError

NUM_EPISODES, NUM_TURNS = 8, 3


@pytest.fixture
def pair(roots: Path) -> Iterator[tuple[OurServer, OurServer]]:
    with our_server(roots / "a") as one, our_server(roots / "a") as two:
        yield one, two


def play(running: Gateway, name: str, num_turns: int = NUM_TURNS, **fields: Any) -> None:
    """Each turn repeats what was said."""
    said = []
    with running.client(name=name) as client:
        for turn in range(num_turns):
            said.append(user(f"Find Ok then see Submit {turn}"))
            response = client.post("/v1/chat/completions", json=asked(*said, **fields))
            assert response.status_code == httpx.codes.OK, response.text
            if not fields:
                said.append(response.json()["choices"][0]["message"])


@pytest.mark.timeout(120)
def test_an_episode_stays_with_one_server_and_all_have_some(pair: tuple[OurServer, OurServer], roots: Path, tmp_path: Path) -> None:
    one, two = pair
    with gateway(tmp_path, Address(url=one.url, replicas=(two.url,), token=TOKEN)) as running:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda index: play(running, f"run-{index}"), range(NUM_EPISODES)))
        calls = running.calls()
    counts = [server.engine._engine.counts for server in pair]
    assert len(calls) == NUM_EPISODES * NUM_TURNS and all(count.tokens_reused > 0 for count in counts)
    with our_server(roots / "a") as alone, gateway(tmp_path / "alone", Address(url=alone.url, token=TOKEN)) as running:
        for index in range(NUM_EPISODES):
            play(running, f"run-{index}")
        assert alone.engine._engine.counts.tokens_reused == sum(count.tokens_reused for count in counts), "as much as one alone reuses"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_is_gone_costs_no_call(pair: tuple[OurServer, OurServer], tmp_path: Path, stream: bool) -> None:
    one, two = pair
    fields = {"stream": True} if stream else {}
    with gateway(tmp_path, Address(url=one.url, replicas=(two.url,), token=TOKEN)) as running:
        for index in range(4):
            play(running, f"run-{index}", 1, **fields)
        two.end()
        for index in range(8):
            play(running, f"run-{index}", 2, **fields)
        one.end()
        with running.client(name="run-1") as client:
            response = client.post("/v1/chat/completions", json=asked(user("see Ok"), **fields))
        assert response.status_code in (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE), response.text
        assert len(running.calls()) == 4 + 16


def test_servers_of_other_weights_are_refused(roots: Path, tmp_path: Path) -> None:
    with our_server(roots / "a") as one, our_server(roots / "b") as two:
        ids = [read_card(roots / name).checkpoint_id for name in "ab"]
        with (
            pytest.raises(ConfigError, match=f"do not serve the same: .* weights {ids[0]} and {ids[1]}"),
            gateway(tmp_path, Address(url=one.url, replicas=(two.url,), token=TOKEN)),
        ):
            pass


class Server:
    def __init__(self) -> None:
        self.num_running = 0


def test_a_conversation_stays_and_a_new_one_goes_where_least_is_under_way() -> None:
    affinity, one, two = Affinity[Server](), Server(), Server()
    both = [one, two]
    assert [affinity.choose(name, both) for name in "abab"] == [one, two, one, two]
    one.num_running = 3
    assert affinity.choose("a", both) is one and affinity.choose("c", both) is two and affinity.choose(None, both) is two
    assert affinity.choose("a", [two]) is two and affinity.choose("a", both) is two, "once it moved it stays there"
