"""The HTTP engine on llama.cpp's own server, as a process of its own on the CPU (benchmarks/common/llama_cpp_server.py): it says what the
embedded engine says, samples as it was asked to, and hands on no ids where the server leaves tokens out."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.policy.policy import Message, Prompt, Response, Sampling
from benchmarks.common.llama_cpp_server import llama_cpp_python, llama_cpp_server
from benchmarks.common.server_process import ServerProcess
from benchmarks.common.tiny_qwen3 import byte_tokenizer, tiny_qwen3_of
from models.checkpoints.checkpoint import read_card, save
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_policy
from models.http.config import HttpEngineConfig, Send
from models.http.engine import HttpEngine
from tests.models.policy_servers import act
from warehouse.core.errors import EngineUnreachable, ModelError

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
LETTER = ("Ã", "©")
"""The two bytes of é, as byte-level BPE writes them."""
TEXTS = tuple(f"Find Ok {'then see ' * count}" for count in range(1, 6))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer knows ASCII and é, which is two tokens."""
    alphabet = [*string.ascii_letters, *string.digits, *string.punctuation, "Ġ", "Ċ", *LETTER]
    folder = tmp_path_factory.mktemp("checkpoints") / "a"
    policy = tiny_qwen3_of(byte_tokenizer(TEXTS, alphabet=alphabet), 0)
    save(folder, *policy, stage="seed_policy", iteration="0000")
    return folder


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    try:
        python = llama_cpp_python()
    except ConnectionError as error:
        pytest.skip(f"needs llama.cpp's server: {error}")
    with llama_cpp_server(python, checkpoint, tmp_path_factory.mktemp("llama-cpp")) as running:
        yield running


def asked(text: str, **sampling: Any) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),), sampling=Sampling(**({"max_new_tokens": 12} | sampling)))


def opened(server: ServerProcess, checkpoint: Path, **fields: Any) -> HttpEngine:
    return HttpEngine.of_checkpoint(HttpEngineConfig(**({"base_url": server.url, "retries": 1, "backoff_s": 0.0} | fields)), checkpoint)


def sampled(engine: HttpEngine, temperature: float = 1.0) -> list[Response]:
    return act(engine, *(asked(text, temperature=temperature, seed=seed) for seed, text in enumerate(TEXTS * 20)))


@pytest.mark.parametrize("send", ["messages", "token_ids"])
def test_it_answers_as_the_embedded_engine(server: ServerProcess, checkpoint: Path, send: Send) -> None:
    embedded, http, model = EmbeddedEngine.from_checkpoint(checkpoint), opened(server, checkpoint, send=send), load_policy(checkpoint)
    gives = http.capabilities()
    assert (gives.server, gives.policy_id, gives.loads) == ("llama.cpp", read_card(checkpoint).checkpoint_id, "nothing")
    assert (gives.token_ids, gives.prompt_token_ids, gives.logprobs) == (True, send == "token_ids", True)
    assert not gives.logprobs_follow_temperature and not gives.logprobs_follow_top_p
    prompts = {}
    for text, here, there in zip(TEXTS, *(act(engine, *map(asked, TEXTS)) for engine in (embedded, http)), strict=True):
        prompts[text] = here.prompt_token_ids
        assert there.prompt_token_ids == (here.prompt_token_ids if send == "token_ids" else ())
        if len(set("é\ufffd") & set(here.text)) == 0:
            assert (there.text, there.token_ids) == (here.text, here.token_ids)
            assert there.logprobs == pytest.approx(here.logprobs, abs=1e-3)
    answers = sampled(http)
    assert sum(one.text == again.text for one, again in zip(answers, sampled(http), strict=True)) > 95, "sampling follows the seed"
    ranks, ratios, num_left_out = [], [], 0
    for text, answer in zip(TEXTS * 20, answers, strict=True):
        if not answer.token_ids:
            num_left_out += 1
            assert not answer.logprobs
            continue
        with torch.no_grad():
            logits = model(torch.tensor([prompts[text] + answer.token_ids])).logits[0, len(prompts[text]) - 1 : -1]
        chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(answer.token_ids)[:, None])
        assert answer.logprobs == pytest.approx(chosen[:, 0].tolist(), abs=1e-3)
        ranks += (torch.log_softmax(logits, dim=-1) > chosen).sum(dim=-1).tolist()
        ratios += (chosen[:, 0] - torch.log_softmax(logits, dim=-1).amax(dim=-1)).exp().tolist()
    assert max(ranks) > 40 and min(ratios) < 0.05, "of all tokens, not as it samples by itself"
    assert 0 < num_left_out < 50, "it lists no token that ends inside a character"
    cool = sampled(http, temperature=0.7)
    assert any(answer.token_ids for answer in cool) and not any(answer.logprobs for answer in cool)
    (too_long,) = act(http, asked("see " * 2000))
    assert (too_long.text, too_long.token_ids) == ("", ())
    for engine in (embedded, http):
        engine.close()


def test_what_it_lacks_is_said(server: ServerProcess, checkpoint: Path) -> None:
    exact, by_messages = (opened(server, checkpoint, send=send) for send in ("token_ids", "messages"))
    exact.require_learnable()
    with pytest.raises(ModelError, match="temperature"):
        exact.require_learnable(0.7)
    with pytest.raises(ModelError, match="no token ids of the prompt"):
        by_messages.require_learnable()
    with pytest.raises(ModelError, match="loads nothing"):
        exact.load_checkpoint(checkpoint, "checkpoint-b")
    server.process.kill()
    server.process.wait()
    with pytest.raises(EngineUnreachable):
        act(exact, asked("Find Ok"))
    for engine in (exact, by_messages):
        engine.close()
