"""Generation without an engine: one scheduler over both backends, on tiny models. Every answer is held to the model's own forward pass.
With images: test_generation_images.py; the parts by themselves: test_generation_parts.py."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from models.engine.backend import Backend, load_whole
from models.engine.decoder_backend import DecoderBackend, runs_fast
from models.engine.hf_backend import HuggingFaceBackend
from tests.models.generation_helpers import EOS, TEXT, VOCABULARY, reference, requests, run, scheduler_of
from warehouse.core.errors import ModelError

KINDS = ("shift, fast", "llama, fast", "qwen2, fast", "qwen3, fast", "shift, general", "llama", "sliding window")


@pytest.fixture(scope="module")
def models(make_model: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    shift, llama = make_model()[0], unlike(LlamaForCausalLM(LlamaConfig(**TEXT)))
    return {
        "shift, fast": shift,
        "shift, general": copy.deepcopy(shift),
        "llama, fast": llama,
        "llama": copy.deepcopy(llama),
        "qwen2, fast": unlike(Qwen2ForCausalLM(Qwen2Config(**TEXT, tie_word_embeddings=True))),
        "qwen3, fast": unlike(Qwen3ForCausalLM(Qwen3Config(**TEXT, head_dim=12))),
        "sliding window": MistralForCausalLM(MistralConfig(**TEXT, sliding_window=8)).eval(),
    }


def unlike(model: Any) -> PreTrainedModel:
    """Norm weights and biases begin as ones and zeros, which hide where they are left out."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.normal_(0.7, 0.3)
    model.eval()
    return cast(PreTrainedModel, model)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def backend_of(models: dict[str, Any], kind: str) -> Backend:
    return (DecoderBackend if kind.endswith(", fast") else HuggingFaceBackend)(models[kind], frozenset([EOS]))


def test_log_probabilities_are_those_that_were_sampled_from(models: dict[str, Any], kind: str) -> None:
    asked = [
        *requests(6),
        *requests(6, seed=1, temperature=1.0),
        *requests(6, seed=2, temperature=0.7, top_p=0.8),
        *requests(4, seed=3, temperature=1.3, top_p=0.3),
        *requests(2, seed=4, temperature=0.0, top_p=0.5),
    ]
    for row in run(scheduler_of(backend_of(models, kind)), asked):
        assert row.logprobs == pytest.approx(reference(models[kind], row), abs=3e-5)
        assert len(row.answer) == len(row.versions) <= row.request.max_new_tokens


def test_rows_that_come_and_go_change_no_answer(models: dict[str, Any], kind: str) -> None:
    asked = [*requests(8), *requests(6, seed=1, temperature=1.0)]
    alone = [run(scheduler_of(backend_of(models, kind)), [request])[0] for request in asked]
    scheduler = scheduler_of(backend_of(models, kind), max_rows=5)
    rows = [scheduler.backend.open(request) for request in asked]
    waiting, rng = list(rows), random.Random(0)
    while waiting or not scheduler.is_idle:
        for _ in range(min(len(waiting), rng.randint(0, 3))):
            scheduler.add(waiting.pop())
        scheduler.step()
    for together, single in zip(rows, alone, strict=True):
        assert together.answer == single.answer
        assert together.logprobs == pytest.approx(single.logprobs, abs=2e-5)


def test_what_a_conversation_kept_changes_no_answer(models: dict[str, Any], kind: str) -> None:
    keeps = scheduler_of(backend_of(models, kind))
    forgets = scheduler_of(backend_of(models, kind), conversations_mib=0)
    rng = random.Random(1)
    asked = requests(5, max_new_tokens=6)
    for turn in range(4):
        asked = [replace(request, conversation=f"episode-{index}", temperature=float(turn % 2)) for index, request in enumerate(asked)]
        found, expected = run(keeps, asked), run(forgets, asked)
        for row, fresh in zip(found, expected, strict=True):
            assert row.answer == fresh.answer
            assert row.logprobs == pytest.approx(fresh.logprobs, abs=3e-5)
        more = [[rng.randrange(3, 100) for _ in range(rng.randint(1, 25))] for _ in found]
        # The next prompt goes on, goes on from before the last answer's end, is the same again, or begins differently.
        nexts = [row.tokens[: len(row.tokens) - index * 2] + tail for index, (row, tail) in enumerate(zip(found, more, strict=True))]
        nexts[3], nexts[4] = list(found[3].request.prompt), more[4] + list(found[4].request.prompt)
        asked = [replace(request, prompt=tuple(prompt)) for request, prompt in zip(asked, nexts, strict=True)]
    assert keeps.counts.tokens_reused > 100
    assert forgets.counts.tokens_reused == 0
    again = 6  # prompts that were kept but for their last token: it is read like one that was written
    assert 0 <= forgets.counts.tokens_read - keeps.counts.tokens_read - keeps.counts.tokens_reused <= again


@pytest.mark.parametrize("backend_class", [DecoderBackend, HuggingFaceBackend])
def test_rows_of_very_different_lengths_share_a_step(backend_class: Any) -> None:
    """Attention kernels work in blocks of keys: whole blocks are hidden from the short rows."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**TEXT, "max_position_embeddings": 1024})).eval()
    scheduler = scheduler_of(backend_class(copy.deepcopy(model), frozenset([EOS])))
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(3, 100) for _ in range(length)) for length in (1, 5, 520, 900)]
    for turn in range(2):
        asked = [
            replace(request, prompt=prompt, conversation=str(index))
            for index, (request, prompt) in enumerate(zip(requests(4, max_new_tokens=4, temperature=1.0, seed=turn), prompts, strict=True))
        ]
        rows = run(scheduler, asked)
        for row in rows:
            assert row.logprobs == pytest.approx(reference(model, row), abs=3e-5)
        prompts = [(*row.tokens, 7, 8, 9) for row in rows]


def test_little_room_means_waiting_not_failing(models: dict[str, Any]) -> None:
    asked = requests(7, max_new_tokens=10)
    expected = [row.answer for row in run(scheduler_of(backend_of(models, "llama")), asked)]
    scheduler = scheduler_of(backend_of(models, "llama"), running_mib=1, max_rows=2)
    assert [row.answer for row in run(scheduler, asked)] == expected
    narrow = scheduler_of(backend_of(models, "llama"), running_mib=1)
    long = [narrow.backend.open(request) for request in requests(20, seed=5, max_new_tokens=200)]
    for row in long:
        narrow.add(row)
    for _ in range(5):
        narrow.step()
        assert narrow.backend.kv_cache.num_bytes < 1.2 * 2**20, "slots are added in steps, so a little more than asked for"
    assert 0 < sum(bool(row.logprobs) for row in long) < 20
    for row in long:
        narrow.cancel(row)
    [row] = run(narrow, requests(1))
    assert (row.is_done, narrow.backend.kv_cache.num_bytes) == (True, 0), "a burst does not hold its memory for ever"


def test_a_conversation_goes_on_after_a_burst_gave_its_memory_back(models: dict[str, Any], kind: str) -> None:
    keeps, forgets = (scheduler_of(backend_of(models, kind), running_mib=1, conversations_mib=mib) for mib in (8, 0))
    asked = [replace(request, conversation=f"episode-{index}") for index, request in enumerate(requests(20, max_new_tokens=150))]
    first = run(keeps, asked)
    assert keeps.backend.kv_cache.num_bytes == 0 and len(keeps.conversations) == 20
    nexts = [replace(request, prompt=(*row.tokens, 7, 8), max_new_tokens=5) for request, row in zip(asked, first, strict=True)]
    assert [row.answer for row in run(keeps, nexts)] == [row.answer for row in run(forgets, nexts)]
    assert keeps.counts.tokens_reused > 0


@pytest.mark.parametrize("running_rows", ["recompute", "continue"])
def test_weights_change_between_two_tokens(make_model: Callable[..., Any], running_rows: str) -> None:
    first, second = make_model()[0], make_model(seed=1)[0]
    for backend in (DecoderBackend(make_model()[0], frozenset([EOS])), HuggingFaceBackend(make_model()[0], frozenset([EOS]))):
        scheduler = scheduler_of(backend, running_rows=running_rows)
        asked = requests(4, max_new_tokens=12, temperature=1.0)
        rows = [backend.open(replace(request, conversation=f"episode-{index}")) for index, request in enumerate(asked)]
        for row in rows:
            scheduler.add(row)
        for _ in range(3):
            scheduler.step()
        scheduler.swap(second.state_dict(), policy_id="checkpoint-b", version=7)
        late = backend.open(requests(1, seed=9, conversation="late", max_new_tokens=8)[0])
        scheduler.add(late)
        while not scheduler.is_idle:
            scheduler.step()
        assert (late.policy_id, set(late.versions)) == ("checkpoint-b", {7})
        assert late.logprobs == pytest.approx(reference(second, late), abs=3e-5)
        crossing = [row for row in rows if len(row.answer) > 4]
        assert crossing
        for row in crossing:
            assert row.policy_id == "checkpoint-a"
            assert row.versions == [1] * 4 + [7] * (len(row.answer) - 4)
            assert row.logprobs[:4] == pytest.approx(reference(first, row)[:4], abs=3e-5)
            after = pytest.approx(reference(second, row)[4:], abs=3e-5)
            assert (row.logprobs[4:] == after) == (running_rows == "recompute")
            kept = scheduler.conversations.find(str(row.request.conversation), row.tokens)
            assert (kept is not None) == (running_rows == "recompute"), "what two sets of weights wrote is not kept"


def test_weights_fit_whole_or_not_at_all(models: dict[str, Any]) -> None:
    model = LlamaForCausalLM(LlamaConfig(**TEXT, tie_word_embeddings=True))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: torch.zeros_like(tensor) for name, tensor in before.items() if name != "lm_head.weight"}
    for wrong, message in (
        ({**state, "model.norm.weight": torch.zeros(3)}, r"shape \(3,\), not \(32,\)"),
        ({**state, "extra": torch.zeros(1)}, "extra is unknown"),
        ({name: tensor for name, tensor in state.items() if "norm" not in name}, "norm.weight is missing"),
    ):
        with pytest.raises(ModelError, match=message):
            load_whole(model, wrong)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    load_whole(model, state)
    assert not any(tensor.any() for tensor in model.state_dict().values()), "tied weights may be given once"


def test_refuses_models_whose_past_is_no_list_of_keys() -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1)
    with pytest.raises(ModelError, match="not MambaForCausalLM with layers"):
        HuggingFaceBackend(MambaForCausalLM(config), frozenset([EOS]))


def test_the_fast_backend_is_given_what_it_can_run(models: dict[str, Any]) -> None:
    assert all(runs_fast(models[kind]) for kind in ("shift, fast", "llama, fast", "qwen2, fast", "qwen3, fast"))
    assert not runs_fast(models["sliding window"])
    assert not runs_fast(copy.deepcopy(models["llama, fast"]).to(torch.bfloat16)), "its rounding would be another's"
    assert not runs_fast(LlamaForCausalLM(LlamaConfig(**TEXT, hidden_act="gelu")))
    stretched = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert not runs_fast(LlamaForCausalLM(LlamaConfig(**TEXT, rope_parameters=stretched)))
    adapted = LlamaForCausalLM(LlamaConfig(**TEXT))
    adapted.add_adapter(LoraConfig(target_modules=["q_proj"]))
    assert not runs_fast(adapted), "an adapter is not part of its layer's matrix"


@pytest.mark.parametrize("kind", ["llama"])
def test_runs_in_bfloat16(models: dict[str, Any], kind: str) -> None:
    model = LlamaForCausalLM(LlamaConfig(**TEXT)).eval()
    model.load_state_dict(models[kind].state_dict())
    model = model.to(torch.bfloat16)
    scheduler = scheduler_of(HuggingFaceBackend(model, frozenset([EOS])))
    for turn in range(2):
        for row in run(scheduler, requests(4, conversation="episode", max_new_tokens=6, temperature=1.0, seed=turn)):
            assert row.logprobs == pytest.approx(reference(model.float(), row), abs=0.5)
            model.to(torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_on_an_accelerator_as_on_the_cpu(models: dict[str, Any], kind: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(models[kind]).to("cuda", dtype)
    there = scheduler_of(backend_of({kind: model}, kind))
    here = models[kind]
    for turn in range(2):
        asked = [replace(request, conversation=str(index)) for index, request in enumerate(requests(12, seed=turn // 2, temperature=1.0))]
        for row in run(there, asked):
            assert row.logprobs == pytest.approx(reference(here, row), abs=1e-3 if dtype == torch.float32 else 0.5)
    assert there.counts.tokens_reused > 0
