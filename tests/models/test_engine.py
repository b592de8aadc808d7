"""The embedded engine: the same answers alone and in a batch, the model's own log-probabilities, weights that swap, a free event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.policy.policy import Message, Policy, Prompt, Response, Sampling
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM
from warehouse.core.errors import ModelError


@pytest.fixture(scope="module", params=[3, 6], ids=lambda reach: f"shift{reach}")
def parts(make_model: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedEngine, ShiftQwen3ForCausalLM]]:
    model, tokenizer = make_model(token_shift=request.param)
    engine = EmbeddedEngine(model, tokenizer, "checkpoint-a")
    yield engine, model
    engine.close()


def prompts(num: int, temperature: float, *, seed: int = 0, longest: int = 60) -> list[Prompt]:
    rng = random.Random(seed)
    made = []
    for index in range(num):
        text = " ".join(rng.choice(("Find", "see", '"Ok"', "<button>", "[3]", "zK9", "12,")) for _ in range(rng.randint(1, longest)))
        sampling = Sampling(temperature=temperature, max_new_tokens=rng.randint(1, 14), seed=index)
        made.append(Prompt(messages=(Message(role="user", content=text),), sampling=sampling))
    return made


def act(engine: EmbeddedEngine, asked: list[Prompt]) -> list[Response]:
    return asyncio.run(engine.act(asked))


def test_is_a_policy(parts: tuple[EmbeddedEngine, Any]) -> None:
    assert isinstance(parts[0], Policy)
    assert parts[0].policy_id == "checkpoint-a"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_logprobs_are_those_of_a_teacher_forced_pass(parts: tuple[EmbeddedEngine, ShiftQwen3ForCausalLM], temperature: float) -> None:
    engine, model = parts
    for answer in act(engine, prompts(30, temperature)):
        with torch.no_grad():
            logits = model(torch.tensor([answer.prompt_token_ids + answer.token_ids])).logits[0, len(answer.prompt_token_ids) - 1 : -1]
        if temperature == 0:
            assert logits.argmax(dim=-1).tolist() == list(answer.token_ids)
        expected = (logits / (temperature or 1.0)).log_softmax(dim=-1).gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_prompt_alone_is_answered_as_in_a_batch(parts: tuple[EmbeddedEngine, Any], temperature: float) -> None:
    engine, _ = parts
    asked = prompts(EngineSettings().max_rows + 10, temperature)
    for prompt, together in zip(asked, act(engine, asked), strict=True):
        alone = act(engine, [prompt])[0]
        assert alone.token_ids == together.token_ids
        assert alone.prompt_token_ids == together.prompt_token_ids
        assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-5)


def test_each_request_has_its_own_seed_and_limit(parts: tuple[EmbeddedEngine, Any]) -> None:
    engine, _ = parts
    message = (Message(role="user", content="Find"),)
    seeds = [Prompt(messages=message, sampling=Sampling(temperature=1.0, max_new_tokens=12, seed=seed)) for seed in (1, 2, 1)]
    first, second, third = act(engine, seeds)
    assert first.token_ids == third.token_ids != second.token_ids
    limited = act(engine, [Prompt(messages=message, sampling=Sampling(max_new_tokens=limit)) for limit in (1, 5)])
    assert [len(answer.token_ids) for answer in limited] == [1, 5]


@pytest.mark.slow
def test_sampling_follows_the_distribution(parts: tuple[EmbeddedEngine, ShiftQwen3ForCausalLM]) -> None:
    engine, model = parts
    message = (Message(role="user", content="see"),)
    samplings = [Sampling(temperature=0.5, max_new_tokens=1, seed=seed) for seed in range(3000)]
    answers = act(engine, [Prompt(messages=message, sampling=sampling) for sampling in samplings])
    with torch.no_grad():
        expected = (model(torch.tensor([answers[0].prompt_token_ids])).logits[0, -1] / 0.5).softmax(dim=-1)
    counts = torch.bincount(torch.tensor([answer.token_ids[0] for answer in answers]), minlength=len(expected)) / len(answers)
    assert float((counts - expected).abs().max()) < 0.03


def test_ends_with_the_end_token_and_does_not_say_it(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model(seed=3)
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.eos_token_id] *= 20  # likely at every other step
    engine = EmbeddedEngine(model, tokenizer, "checkpoint-e")
    answers = act(engine, prompts(20, 1.0))
    ended = [answer for answer in answers if tokenizer.eos_token_id in answer.token_ids]
    assert ended
    assert all(answer.token_ids.index(tokenizer.eos_token_id) == len(answer.token_ids) - 1 for answer in ended)
    assert all("<eos>" not in answer.text for answer in ended)
    engine.close()


def test_a_prompt_that_is_too_long_gets_no_tokens_and_disturbs_nobody(parts: tuple[EmbeddedEngine, Any]) -> None:
    engine, _ = parts
    fits = prompts(1, 0.0)[0]
    long = Prompt(messages=(Message(role="user", content="see " * 3000),), sampling=Sampling())
    answer, empty = act(engine, [fits, long])
    assert (empty.token_ids, empty.logprobs, empty.text) == ((), (), "")
    assert len(empty.prompt_token_ids) > 3000
    assert answer.token_ids == act(engine, [fits])[0].token_ids
    assert act(engine, []) == []


def test_weights_swap_whole_and_only_when_asked(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    other, _ = make_model(seed=1)
    engine, reference = EmbeddedEngine(model, tokenizer, "checkpoint-a"), EmbeddedEngine(other, tokenizer, "checkpoint-b")
    asked = prompts(5, 0.0)
    before = act(engine, asked)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1.0)
    assert act(engine, asked) == before, "training the model leaves the engine alone"
    engine.load_weights(other.state_dict(), "checkpoint-b")
    assert act(engine, asked) == act(reference, asked)
    assert engine.policy_id == "checkpoint-b"
    wide, _ = make_model(hidden_size=64)
    with pytest.raises(ModelError, match="checkpoint-c do not fit"):
        engine.load_weights(wide.state_dict(), "checkpoint-c")
    assert act(engine, asked) == act(reference, asked)
    engine.close()
    reference.close()
    reference.close()


def test_the_event_loop_stays_free(parts: tuple[EmbeddedEngine, Any]) -> None:
    engine, _ = parts

    async def count_while_generating() -> int:
        generating = asyncio.create_task(engine.act(prompts(64, 1.0, longest=300)))
        ticks = 0
        while not generating.done():
            await asyncio.sleep(0)
            ticks += 1
        return ticks

    assert asyncio.run(count_while_generating()) > 10


def test_opens_a_checkpoint(seed_checkpoint: Path) -> None:
    engine = EmbeddedEngine.from_checkpoint(seed_checkpoint)
    assert act(engine, prompts(2, 0.0))[0].policy_id.startswith("checkpoint-")
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        act(engine, prompts(1, 0.0))
