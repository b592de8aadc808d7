"""The HTTP engine on `transformers serve`, as a process of its own with a tiny Llama: what it gives, and that it says what it does not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.policy.policy import Message, Prompt, Sampling
from benchmarks.common.server_process import ServerProcess, free_port, server_process
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from warehouse.core.errors import EngineUnreachable, ModelError

pytestmark = pytest.mark.long

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
START_S = 120.0


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; its generation_config samples, for the server takes greedy or sampling from there."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("llama")
    pieces = ["<unk>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE, **special).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(pieces), max_position_embeddings=256, eos_token_id=1, pad_token_id=1, **sizes))
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=1, pad_token_id=1, max_new_tokens=8)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[ServerProcess]:
    port, program = free_port(), Path(sys.executable).with_name("transformers")
    command = [program, "serve", tiny_llama, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    with server_process(command, port, tiny_llama / "serve.log", environment=environment, start_s=START_S) as running:
        yield running


def ask(engine: HttpEngine, **sampling: Any) -> Any:
    prompt = Prompt(messages=(Message(role="user", content="hello"),), sampling=Sampling(**({"max_new_tokens": 6} | sampling)))
    return asyncio.run(engine.act([prompt] * 3))


def test_it_answers_with_text_and_nothing_to_learn_from(server: ServerProcess, tiny_llama: Path) -> None:
    engine = HttpEngine(HttpEngineConfig(base_url=server.url, model=str(tiny_llama), retries=1, backoff_s=0.0, stop=("never said",)))
    gives = engine.capabilities()
    assert (gives.server, gives.token_ids, gives.logprobs, gives.loads) == ("openai", False, False, "nothing")
    greedy = ask(engine)
    assert greedy[0].text and len({answer.text for answer in greedy}) == 1
    assert (greedy[0].token_ids, greedy[0].logprobs, greedy[0].prompt_token_ids) == ((), (), ())
    texts = {answer.text for seed in range(4) for answer in ask(engine, temperature=1.5, seed=seed)}
    assert len(texts) > 1, "it samples"
    with pytest.raises(ModelError, match="no token ids of the prompt"):
        engine.require_learnable()
    server.process.kill()
    server.process.wait()
    with pytest.raises(EngineUnreachable):
        ask(engine)
    engine.close()
