"""Several servers behind one HTTP engine: conversations stay with the one that has them, all have new weights before any answers with them,
and one that dies is done without until it is back."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.policy.policy import Message, Prompt, Response, Sampling
from models.checkpoints.checkpoint import read_card
from models.families.registry import load_policy
from models.http import replicas
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from models.server.settings import ServerSettings
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, OurServer, act, config, our_server, prompt
from warehouse.core.errors import ConfigError, EngineUnreachable

pytestmark = pytest.mark.usefixtures("engine_token")


@pytest.fixture
def pair(roots: Path, tmp_path: Path) -> Iterator[tuple[OurServer, OurServer]]:
    settings = ServerSettings(weight_roots=(roots, tmp_path))
    with our_server(roots / "a", settings) as one, our_server(roots / "a", settings) as two:
        yield one, two


def turn(conversation: int, number: int, max_new_tokens: int = 4) -> Prompt:
    message = Message(role="user", content="Find Ok then see Submit hello " * 3 * number)
    return Prompt(messages=(message,), sampling=Sampling(max_new_tokens=max_new_tokens), conversation=f"episode-{conversation}")


def test_a_conversation_stays_where_its_beginning_is(pair: tuple[OurServer, OurServer]) -> None:
    one, two = pair
    engine = HttpEngine(config(one.url, replicas=(two.url,)))
    num_turns, num_conversations = 3, 8
    for number in range(1, num_turns + 1):
        act(engine, *(turn(index, number) for index in range(num_conversations)))
    counts = [server.engine._engine.counts for server in pair]
    assert all(count.tokens_reused > 0 for count in counts)
    alone = HttpEngine(config(one.url))
    reused = sum(count.tokens_reused for count in counts)
    before = counts[0].tokens_reused
    for number in range(1, num_turns + 1):
        act(alone, *(turn(100 + index, number) for index in range(num_conversations)))
    assert counts[0].tokens_reused - before == reused, "as much as one server alone reuses"
    for each in (engine, alone):
        each.close()


def test_all_have_new_weights_before_any_answers_with_them(pair: tuple[OurServer, OurServer], roots: Path, tmp_path: Path) -> None:
    """The second server takes its time; what the first says meanwhile is not handed on."""
    one, two = pair
    engine = HttpEngine.of_checkpoint(config(one.url, replicas=(two.url,), exchange=str(tmp_path)), roots / "a")
    load, seen, is_loaded = two.engine.load, list[str](), threading.Event()

    def slow(*arguments: object) -> None:
        time.sleep(0.5)
        load(*arguments)  # type: ignore[arg-type]
        is_loaded.set()

    two.engine.load = slow  # type: ignore[method-assign]

    async def run() -> None:
        loading = asyncio.ensure_future(asyncio.to_thread(engine.load_weights, load_policy(roots / "b").state_dict(), "checkpoint-2", 2))
        while not loading.done():
            for answer in await engine.act([turn(index, 1) for index in range(4)]):
                seen.append(answer.policy_id)
                assert answer.policy_id != "checkpoint-2" or is_loaded.is_set()
        await loading
        answers = await engine.act([turn(index, 1) for index in range(4)])
        assert {answer.policy_id for answer in answers} == {"checkpoint-2"} and {v for a in answers for v in a.versions} == {2}

    asyncio.run(run())
    assert {one.engine.policy_id, two.engine.policy_id} == {"checkpoint-2"} and seen
    engine.close()


def test_servers_that_differ_are_refused(pair: tuple[OurServer, OurServer], roots: Path) -> None:
    from models.engine.settings import EngineSettings

    with our_server(roots / "a", engine_settings=EngineSettings(max_context=100)) as short:
        with pytest.raises(ConfigError, match="max_context: 2048 and 100"):
            HttpEngine(config(pair[0].url, replicas=(short.url,)))
        url = short.url
    with pytest.raises(EngineUnreachable):
        HttpEngine(config(pair[0].url, replicas=(url,), retries=0))
    with pytest.raises(ValidationError, match="a server twice"):
        HttpEngineConfig(base_url="http://host:1/v1", replicas=("http://host:1",))


@contextmanager
def serving(folder: Path, home: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "pipelines.cli", "policy", "serve", str(folder), "--port", str(port), "--token-env", TOKEN_VARIABLE]
    command += ["--home", str(home), "--weights-root", str(folder.parent)]
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None
            yield address[0], process
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_server_costs_no_answer_and_comes_back_with_the_weights(
    roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.2)
    ids = {name: read_card(roots / name).checkpoint_id for name in "ab"}
    with serving(roots / "a", tmp_path / "1") as (one, _), serving(roots / "a", tmp_path / "2") as (two, killed):
        engine = HttpEngine.of_checkpoint(config(one, replicas=(two,)), roots / "b")
        (expected,) = act(engine, prompt())

        begun = asyncio.Event()

        async def conversation(index: int, num_turns: int) -> list[Response]:
            found = []
            for number in range(1, num_turns + 1):
                found += await engine.act([turn(index, 1 + number % 3, 24)])
                begun.set()
            return found

        async def clients() -> list[Response]:
            under_way = [asyncio.ensure_future(conversation(index, 12)) for index in range(6)]
            await begun.wait()
            killed.kill()
            return [answer for found in await asyncio.gather(*under_way) for answer in found]

        answers = asyncio.run(clients())
        assert len(answers) == 72 and {answer.policy_id for answer in answers} == {ids["b"]}
        assert all(answer.token_ids for answer in answers)
        port = int(two.rsplit(":", 1)[1])
        killed.wait()
        with serving(roots / "a", tmp_path / "3", port):
            lost = next(each for each in engine._replicas._every if each.config.base_url == two)

            def is_back() -> bool:
                act(engine, turn(50, 1))
                return lost.down_s is None

            assert lost.down_s is not None
            until(is_back)
            answers = act(engine, *(turn(60 + index, 1) for index in range(8)))
            assert {answer.policy_id for answer in answers} == {ids["b"]}, "it was started on `a`, and handed `b` before it answered"
            assert act(engine, prompt())[0].token_ids == expected.token_ids
        engine.close()
