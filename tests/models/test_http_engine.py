"""The HTTP engine against our own server: what it tells is what the embedded engine says, weights are handed over, whoever leaves disturbs
nobody. Servers of other kinds: test_http_dialects.py; what fails: test_http_failures.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.policy.policy import Message, Prompt, Sampling
from models.checkpoints.checkpoint import read_card
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_policy
from models.http.engine import HttpEngine
from models.server.settings import ServerSettings
from tests.models.policy_servers import TOKEN_VARIABLE, OurServer, act, config, our_server, prompt
from warehouse.core.errors import ConfigError, EngineUnreachable, ModelError

pytestmark = pytest.mark.usefixtures("engine_token")


@pytest.fixture(scope="module")
def server(roots: Path) -> Iterator[OurServer]:
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as running:
        yield running


@pytest.mark.parametrize("send", ["messages", "token_ids"])
def test_our_server_answers_as_the_embedded_engine(server: OurServer, roots: Path, send: Any) -> None:
    asked = [prompt(temperature=t, top_p=p, seed=s) for s, (t, p) in enumerate(((0, 1), (1, 1), (0.7, 1), (1, 0.8), (1.3, 0.5)))]
    embedded, http = EmbeddedEngine.from_checkpoint(roots / "a"), HttpEngine.of_checkpoint(config(server.url, send=send), roots / "a")
    try:
        assert http.policy_id == embedded.policy_id
        for here, there in zip(act(embedded, *asked), act(http, *asked), strict=True):
            assert (there.prompt_token_ids, there.token_ids, there.text) == (here.prompt_token_ids, here.token_ids, here.text)
            assert (there.versions, there.policy_id) == (here.versions, here.policy_id)
            assert there.logprobs == pytest.approx(here.logprobs, abs=1e-5)
            assert len(there.logprobs) == len(there.token_ids) > 0
        gives = http.capabilities()
        assert (gives.server, gives.max_context, gives.loads) == ("flywheel", 2048, "checkpoints")
        http.require_learnable(0.7, 0.5)
    finally:
        embedded.close()
        http.close()


def test_a_conversation_reaches_the_engine_that_keeps_its_beginning(server: OurServer, roots: Path) -> None:
    engine = HttpEngine.of_checkpoint(config(server.url), roots / "a")
    text = "Find Ok then see Submit hello " * 3
    counts = server.engine._engine.counts
    for turn in range(1, 4):
        reused = counts.tokens_reused
        message = Message(role="user", content=text * turn)
        act(engine, Prompt(messages=(message,), sampling=Sampling(max_new_tokens=4), conversation="episode-1"))
        assert (counts.tokens_reused > reused) == (turn > 1)
    engine.close()


def test_a_prompt_without_room_gets_no_tokens_and_disturbs_nobody(server: OurServer) -> None:
    engine = HttpEngine(config(server.url))
    long, short = act(engine, prompt("see " * 3000), prompt())
    assert (long.text, long.token_ids, long.logprobs) == ("", (), ())
    assert short.token_ids
    engine.close()


def test_weights_are_loaded_and_handed_over(roots: Path, tmp_path: Path) -> None:
    ids = {name: read_card(roots / name).checkpoint_id for name in "ab"}
    settings = ServerSettings(weight_roots=(roots, tmp_path))
    with our_server(roots / "a", settings) as server:
        engine = HttpEngine.of_checkpoint(config(server.url, exchange=str(tmp_path)), roots / "b")
        assert engine.policy_id == ids["b"] == server.engine.policy_id
        embedded = EmbeddedEngine.from_checkpoint(roots / "b")
        assert act(engine, prompt())[0].token_ids == act(embedded, prompt())[0].token_ids
        engine.load_weights(load_policy(roots / "a").state_dict(), "checkpoint-learning", version=3)
        answer = act(engine, prompt())[0]
        assert (engine.policy_id, answer.policy_id) == ("checkpoint-learning", "checkpoint-learning")
        assert answer.versions == (3,) * len(answer.token_ids)
        embedded.load_weights(load_policy(roots / "a").state_dict(), "a")
        assert answer.token_ids == act(embedded, prompt())[0].token_ids
        assert list(tmp_path.iterdir()) == [], "what was handed over is taken away again"
        engine.require_updatable()
        elsewhere = HttpEngine.of_checkpoint(config(server.url, exchange=str(tmp_path.parent / "elsewhere")), roots / "b")
        with pytest.raises(ModelError, match=r"may not load from .*elsewhere.*--weights-root"):
            elsewhere.require_updatable()
        elsewhere.close()
        engine.load_checkpoint(roots / "b", ids["b"])
        with pytest.raises(ModelError, match="not loaded from there"):
            engine.load_checkpoint(Path("/etc"), "checkpoint-x")
        engine.close()
        embedded.close()
    with our_server(roots / "a") as server:
        with pytest.raises(ModelError, match="it loads nothing"):
            HttpEngine.of_checkpoint(config(server.url), roots / "b")
        unshared = HttpEngine.of_checkpoint(config(server.url), roots / "a")
        with pytest.raises(ModelError, match="exchange"):
            unshared.load_weights({}, "checkpoint-learning", version=1)
        with pytest.raises(ModelError, match="exchange"):
            unshared.require_updatable()
        unshared.close()


def test_weights_that_another_client_loads_are_noticed(roots: Path) -> None:
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as server:
        whatever, mine = HttpEngine(config(server.url)), HttpEngine.of_checkpoint(config(server.url), roots / "a")
        assert act(mine, prompt())[0].policy_id == mine.policy_id
        other = HttpEngine.of_checkpoint(config(server.url), roots / "b")
        with pytest.raises(ModelError, match="another client has loaded it"):
            act(mine, prompt())
        assert act(whatever, prompt())[0].policy_id == act(other, prompt())[0].policy_id == other.policy_id
        for engine in (whatever, mine, other):
            engine.close()


def test_a_server_that_was_started_again_is_not_taken_for_one_that_others_use(roots: Path) -> None:
    """Where connections were lost, the stage is run again and hands it its weights."""
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as server:
        engine = HttpEngine.of_checkpoint(config(server.url), roots / "b")
        HttpEngine.of_checkpoint(config(server.url), roots / "a").close()  # what it was started with
        engine._replicas._every[0].client.num_lost += 1  # as its end shows
        with pytest.raises(EngineUnreachable, match=f"answered with {read_card(roots / 'a').checkpoint_id}.*restarted"):
            act(engine, prompt())
        engine.load_checkpoint(roots / "b", engine.policy_id)
        assert act(engine, prompt())[0].policy_id == engine.policy_id
        engine.close()


def test_a_server_that_goes_away_is_an_error(roots: Path) -> None:
    with our_server(roots / "a") as server:
        engine = HttpEngine(config(server.url))
        assert act(engine, prompt())[0].token_ids
    with pytest.raises(EngineUnreachable, match="failed 3 times"):
        act(engine, prompt(), prompt())
    assert engine.num_retries >= 2
    with pytest.raises(EngineUnreachable):
        HttpEngine(config(server.url))
    engine.close()
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        act(engine, prompt())


def test_a_wrong_or_missing_token_is_reported(server: OurServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no token was sent"):
        HttpEngine(config(server.url, token_env=None))
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-altogether")
    with pytest.raises(ModelError, match=f"the token in {TOKEN_VARIABLE} is not accepted"):
        HttpEngine(config(server.url))
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}, which is not set"):
        HttpEngine(config(server.url))


def test_requests_under_way_are_bounded_and_may_come_from_several_loops(server: OurServer) -> None:
    engine = HttpEngine(config(server.url, max_concurrency=2))
    asked = [prompt(seed=seed, temperature=1.0) for seed in range(6)]
    together = act(engine, *asked)
    assert [act(engine, one)[0].token_ids for one in asked] == [answer.token_ids for answer in together]
    engine.close()


def test_who_is_cancelled_takes_its_prompts_back(server: OurServer) -> None:
    engine, running = HttpEngine(config(server.url)), server.engine._engine

    async def give_up() -> None:
        task = asyncio.create_task(engine.act([prompt(max_new_tokens=1900)] * 3))
        while not running._answers:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    end_s, written = time.monotonic() + 60, running.counts.tokens_written
    while running._answers:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert running.counts.tokens_written - written < 3 * 1000, "they did not go on to their end"
    engine.close()


def test_an_engine_that_is_closed_under_an_answer_says_so(server: OurServer) -> None:
    engine = HttpEngine(config(server.url))

    async def close_under_it() -> None:
        task = asyncio.create_task(engine.act([prompt(max_new_tokens=1900)]))
        while not server.engine._engine._answers:
            await asyncio.sleep(0.005)
        engine.close()
        with pytest.raises(ModelError, match="closed during a request"):
            await task

    asyncio.run(close_under_it())
