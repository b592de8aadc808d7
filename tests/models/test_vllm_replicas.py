"""Two real vLLM servers behind one HTTP engine, on the CPU as in test_vllm.py: a conversation stays on the one that has its keys and
values, both have new weights before any answers with them, in RL too, and one that is killed is done without until it is back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.policy.policy import Message, Prompt, Response, Sampling
from benchmarks.common.server_process import ServerProcess
from benchmarks.common.tiny_qwen3 import tiny_qwen3_policy
from benchmarks.common.vllm_server import vllm_server
from models.checkpoints.checkpoint import save
from models.families.registry import load_codec, load_policy
from models.http import replicas
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from tests.models.policy_servers import act
from tests.models.test_vllm import RL_OPTIONS, SOURCE, WORDS, check_learned, learned, learning, logprobs_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
GLOO = ("--worker-extension-cls", "models.http.vllm_gloo.Gloo", "--weight-transfer-config", '{"backend": "gloo"}')
BLOCK = ("--block-size", "32", "--enable-prompt-tokens-details")
"""Keys and values are kept by blocks of so many tokens: short ones, so that those of short prompts are kept."""
START_S = 900.0
Pair = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for name, seed in {"a": 0, "b": 1}.items():
        save(root / name, *tiny_qwen3_policy(WORDS, seed), stage="seed_policy", iteration="0000")
    return root


@contextmanager
def started(python: Path, root: Path, port: int = 0) -> Iterator[ServerProcess]:
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": SOURCE}  # else both on one core
    with vllm_server(python, root / "a", root, *RL_OPTIONS, *GLOO, *BLOCK, environment=variables, start_s=START_S, port=port) as server:
        yield server


@pytest.fixture(scope="module")
def pair(vllm_python: Path, checkpoints: Path) -> Iterator[Pair]:
    with ExitStack() as stack, ThreadPoolExecutor(2) as starting:
        starts = [starting.submit(stack.enter_context, started(vllm_python, checkpoints)) for _ in range(2)]
        one, two = (start.result() for start in starts)
        yield one, two


def config(pair: Pair, **fields: Any) -> HttpEngineConfig:
    one, two = pair
    return HttpEngineConfig(**({"base_url": one.url, "replicas": (two.url,), "send": "token_ids", "retries": 1} | fields))


def turn(conversation: int, number: int, **sampling: Any) -> Prompt:
    """Each turn goes on from the one before."""
    words = " ".join(f"{WORDS[(conversation >> bit) % 2]} see then" for bit in range(8))
    message = Message(role="user", content=" ".join([words] * 4 * number))
    return Prompt(messages=(message,), sampling=Sampling(**({"max_new_tokens": 4} | sampling)), conversation=f"episode-{conversation}")


def counted(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=30.0).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))


def weights_of(server: ServerProcess) -> str:
    return httpx.get(f"{server.url}/weight_info", trust_env=False, timeout=30.0).text


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_conversation_stays_where_its_keys_and_values_are(pair: Pair, checkpoints: Path) -> None:
    """Both have some, and together they reuse as many tokens as one alone does of as many other conversations."""
    num_turns, num_conversations = 3, 8

    def reused(engine: HttpEngine, first: int) -> list[float]:
        before = [counted(server, "prefix_cache_hits_total") for server in pair]
        for number in range(1, num_turns + 1):
            act(engine, *(turn(first + index, number) for index in range(num_conversations)))
        return [counted(server, "prefix_cache_hits_total") - had for server, had in zip(pair, before, strict=True)]

    both, alone = (HttpEngine.of_checkpoint(config(pair, **fields), checkpoints / "a") for fields in ({}, {"replicas": ()}))
    by_both, by_one = reused(both, 0), reused(alone, 64)
    assert all(by_both)
    assert by_one[0] == sum(by_both) and not by_one[1]
    for engine in (both, alone):
        engine.close()


@pytest.mark.parametrize("weights", ["disk", "transfer"])
def test_both_have_new_weights_before_any_answers_with_them(pair: Pair, checkpoints: Path, tmp_path: Path, weights: Any) -> None:
    """The second stands still while it is handed them: the first has them long before, and nobody is answered."""
    fields = {"exchange": str(tmp_path)} if weights == "disk" else {}
    engine = HttpEngine.of_checkpoint(config(pair, weights=weights, **fields), checkpoints / "a")
    models = {name: load_policy(checkpoints / name) for name in "ab"}
    engine.load_weights(models["a"].state_dict(), f"{weights}-1", 1)
    old = act(engine, *(turn(index, 1, temperature=1.0, seed=index) for index in range(4)))
    assert {(answer.policy_id, *answer.versions) for answer in old} == {(f"{weights}-1", 1, 1, 1, 1)}

    async def run() -> list[Response]:
        os.killpg(pair[1].process.pid, signal.SIGSTOP)
        try:
            loading = asyncio.ensure_future(asyncio.to_thread(engine.load_weights, models["b"].state_dict(), f"{weights}-2", 2))
            await asyncio.to_thread(until, lambda: f"{weights}-2" in weights_of(pair[0]))
            asking = asyncio.ensure_future(engine.act([turn(index, 1, temperature=1.0, seed=index) for index in range(4)]))
            await asyncio.sleep(2.0)
            assert not loading.done() and not asking.done()
        finally:
            os.killpg(pair[1].process.pid, signal.SIGCONT)
        await loading
        return list(await asking)

    answers = asyncio.run(run())
    assert all(f"{weights}-2" in weights_of(server) for server in pair)
    for answer in answers:
        assert (answer.policy_id, set(answer.versions)) == (f"{weights}-2", {2})
        assert answer.logprobs == pytest.approx(logprobs_of(models["b"], answer), abs=1e-3)
    engine.close()


@pytest.mark.parametrize("weights", ["disk", "transfer"])
def test_rl_learns_through_both(pair: Pair, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Any) -> None:
    """Two rounds. Both servers have the weights of a version before either answers with it."""
    named = set[tuple[int, str]]()

    def watch(engine: HttpEngine) -> None:
        act = engine.act

        async def watched(prompts: Sequence[Prompt]) -> Sequence[Response]:
            answers = await act(prompts)
            newest = max((version for answer in answers for version in answer.versions), default=0)
            named.update([(newest, await asyncio.to_thread(weights_of, server)) for server in pair])
            return answers

        monkeypatch.setattr(engine, "act", watched)

    run = learning(tmp_path, checkpoints / "a", rounds=2, pretraining_rounds=0, gate_explained_variance=-1.0)
    num_answers = [counted(server, "request_success_total") for server in pair]
    result = learned(run, config(pair, weights=weights, exchange=str(tmp_path / "exchange")), watch)
    check_learned(result)
    assert all(counted(server, "request_success_total") > before for server, before in zip(pair, num_answers, strict=True))
    assert {version for version, _ in named} == {0, 1}
    assert all('@1"' in text for version, text in named if version == 1)
    model, codec = load_policy(checkpoints / "a"), load_codec(checkpoints / "a")
    for step in (step for episode in result.rollout_log.episodes() for step in episode.steps):
        assert step.prompt_token_ids == tuple(codec.encode(step.messages).token_ids)
        assert codec.decode(step.response_token_ids) == step.response
        (version,) = set(step.response_versions)
        if version == 0:
            ids = {"prompt_token_ids": step.prompt_token_ids, "token_ids": step.response_token_ids}
            answer = Response(text="", logprobs=(), policy_id="", **ids)
            assert step.response_logprobs == pytest.approx(logprobs_of(model, answer), abs=1e-3)


def test_a_killed_server_costs_no_answer_and_comes_back_with_the_weights(
    vllm_python: Path, pair: Pair, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while both answer, is handed nothing while it is gone, and answers again once it has the next weights."""
    monkeypatch.setattr(replicas, "LOST_S", 0.5)
    models = {name: load_policy(checkpoints / name) for name in "ab"}
    with started(vllm_python, checkpoints) as killed:
        engine = HttpEngine.of_checkpoint(config((pair[0], killed), weights="transfer"), checkpoints / "a")
        engine.load_weights(models["a"].state_dict(), "first", 1)
        begun = asyncio.Event()

        async def conversation(index: int) -> list[Response]:
            found = []
            for number in range(1, 9):
                found += await engine.act([turn(index, 1 + number % 3, temperature=1.0, seed=number, max_new_tokens=24)])
                begun.set()
            return found

        async def clients() -> list[Response]:
            under_way = [asyncio.ensure_future(conversation(index)) for index in range(6)]
            await begun.wait()
            os.killpg(killed.process.pid, signal.SIGKILL)
            return [answer for found in await asyncio.gather(*under_way) for answer in found]

        answers = asyncio.run(clients())
        assert len(answers) == 48 and {answer.policy_id for answer in answers} == {"first"}
        for answer in answers[::6]:
            assert answer.logprobs == pytest.approx(logprobs_of(models["a"], answer), abs=1e-3)
        lost = next(each for each in engine._replicas._every if each.config.base_url == killed.url)
        assert lost.down_s is not None
        engine.load_weights(models["b"].state_dict(), "second", 2)
        assert act(engine, turn(50, 1))[0].policy_id == "second"
    with started(vllm_python, checkpoints, int(killed.url.rsplit(":", 1)[1])) as back:
        engine.load_weights(models["a"].state_dict(), "third", 3)

        def is_back() -> bool:
            act(engine, turn(51, 1))
            return lost.down_s is None

        until(is_back)
        assert "third" in weights_of(back)
        before = counted(back, "request_success_total")
        answers = act(engine, *(turn(60 + index, 1, temperature=1.0, seed=index) for index in range(8)))
        assert counted(back, "request_success_total") > before
        for answer in answers:
            assert (answer.policy_id, set(answer.versions)) == ("third", {3})
            assert answer.logprobs == pytest.approx(logprobs_of(models["a"], answer), abs=1e-3)
        engine.close()
