"""Generation without an engine: one scheduler over both backends, on tiny models. Every answer is held to the model's own forward pass."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from models.generation.arena import Snapshot
from models.generation.backend import Backend, load_whole
from models.generation.conversations import Conversations
from models.generation.hf_backend import HuggingFaceBackend
from models.generation.linear import SMALLEST_WORK, Weight, has_onednn, pack_linears
from models.generation.rows import Request, Row
from models.generation.sampling import choose, nucleus
from models.generation.scheduler import Scheduler
from models.generation.settings import EngineSettings
from models.generation.shift_backend import ShiftBackend
from warehouse.errors import ModelError

VOCABULARY, EOS, IMAGE = 120, 2, 110
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": EOS,
}  # fmt: skip
KINDS = ("shift, fast", "shift, general", "llama", "sliding window")


@pytest.fixture(scope="module")
def models(make_model: Callable[..., Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    shift, _ = make_model()
    return {
        "shift, fast": shift, "shift, general": shift, "llama": LlamaForCausalLM(LlamaConfig(**TEXT)).eval(),
        "sliding window": MistralForCausalLM(MistralConfig(**TEXT, sliding_window=8)).eval(),
    }  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def backend_of(models: dict[str, Any], kind: str) -> Backend:
    return (ShiftBackend if kind == "shift, fast" else HuggingFaceBackend)(models[kind], frozenset([EOS]))


def scheduler_of(backend: Backend, **settings: Any) -> Scheduler:
    return Scheduler(backend, EngineSettings(**settings), policy_id="checkpoint-a", version=1)


def requests(num: int, *, seed: int = 0, **changes: Any) -> list[Request]:
    rng = random.Random(seed)
    made = [
        Request(
            prompt=tuple(rng.randrange(3, 100) for _ in range(rng.randint(1, 40))), temperature=0.0, seed=index,
            max_new_tokens=rng.randint(1, 12),
        )
        for index in range(num)
    ]  # fmt: skip
    return [replace(request, **changes) for request in made]


def run(scheduler: Scheduler, asked: list[Request]) -> list[Row]:
    rows = [scheduler.backend.open(request) for request in asked]
    for row in rows:
        scheduler.add(row)
    while not scheduler.is_idle:
        scheduler.step()
    return rows


def reference(model: Any, row: Row, never: tuple[int, ...] = (), **inputs: Any) -> list[float]:
    """Log-probabilities of a row's answer, from one forward pass, written out plainly."""
    start, request = len(row.request.prompt), row.request
    ids = torch.tensor([row.tokens])
    if "image_grid_thw" in inputs:
        inputs["mm_token_type_ids"] = (ids == IMAGE).int()
    with torch.no_grad():
        logits = model(ids, **inputs).logits[0, start - 1 : -1].double().numpy()
    found = []
    for number, token in enumerate(row.answer):
        logits[number, list(never)] = -np.inf
        probabilities = np.exp((logits[number] - logits[number].max()) / (request.temperature or 1.0))
        probabilities /= probabilities.sum()
        if request.temperature > 0 and request.top_p < 1:
            kept, total = [], 0.0
            for likeliest in np.argsort(-probabilities, kind="stable"):
                kept.append(likeliest)
                total += probabilities[likeliest]
                if total >= request.top_p:
                    break
            inside = np.zeros_like(probabilities)
            inside[kept] = probabilities[kept]
            probabilities = inside / inside.sum()
        if request.temperature == 0:
            assert probabilities.argmax() == token
        found.append(float(np.log(probabilities[token])))
    return found


def test_log_probabilities_are_those_that_were_sampled_from(models: dict[str, Any], kind: str) -> None:
    asked = [
        *requests(6), *requests(6, seed=1, temperature=1.0), *requests(6, seed=2, temperature=0.7, top_p=0.8),
        *requests(4, seed=3, temperature=1.3, top_p=0.3), *requests(2, seed=4, temperature=0.0, top_p=0.5),
    ]  # fmt: skip
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


def snapshot(num_tokens: int) -> Snapshot:
    return Snapshot([torch.zeros(2, num_tokens, 4)], [torch.zeros(2, num_tokens, 4)])


def test_conversations_are_bounded_least_recently_used_first_out() -> None:
    per_token = snapshot(1).num_bytes
    kept = Conversations(100 * per_token)
    for name in ("a", "b", "c"):
        kept.keep(name, range(40), snapshot(40))
        assert kept.num_bytes <= 100 * per_token
    assert kept.find("a", range(50)) is None
    assert kept.find("b", [*range(30), 7, 8]) is not None
    kept.keep("d", range(50), snapshot(50))
    assert kept.find("c", range(50)) is None, "b was used after it"
    found = kept.find("b", [*range(30), 7, 8])
    assert found is not None
    assert found[1] == 30
    same = kept.find("b", range(40))
    assert same is not None
    assert same[1] == 39, "the last token of a prompt is always read"
    assert kept.find("b", [5, *range(40)]) is None
    kept.keep("b", range(101), snapshot(101))
    assert kept.find("b", range(101)) is None, "one that is too large is not kept, and its old beginning is gone"
    assert (len(kept), kept.num_bytes) == (1, 50 * per_token)
    kept.clear()
    assert (len(kept), kept.num_bytes) == (0, 0)


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
        assert narrow.backend.arena.num_bytes < 1.2 * 2**20, "slots are added in steps, so a little more than asked for"
    assert 0 < sum(bool(row.logprobs) for row in long) < 20
    for row in long:
        narrow.cancel(row)
    [row] = run(narrow, requests(1))
    assert (row.is_done, narrow.backend.arena.num_bytes) == (True, 0), "a burst does not hold its memory for ever"


@pytest.mark.parametrize("running_rows", ["recompute", "continue"])
def test_weights_change_between_two_tokens(make_model: Callable[..., Any], running_rows: str) -> None:
    first, second = make_model()[0], make_model(seed=1)[0]
    for backend in (ShiftBackend(make_model()[0], frozenset([EOS])), HuggingFaceBackend(make_model()[0], frozenset([EOS]))):
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


def test_logits_that_are_no_numbers_are_an_error(models: dict[str, Any]) -> None:
    row = Row.of(requests(1, temperature=1.0)[0])
    with pytest.raises(ModelError, match="weights have diverged"):
        choose(torch.full((1, VOCABULARY), torch.nan), [row])
    ids, logprobs = choose(torch.zeros(1, 4), [row], never=(0, 1, 3))
    assert (ids, logprobs) == ([2], [0.0])


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logprobs = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log().repeat(4, 1)
    kept = nucleus(logprobs, torch.tensor([0.45, 0.65, 0.95, 1.0])).exp()
    expected = torch.tensor([[1.0, 0, 0, 0], [5 / 7, 2 / 7, 0, 0], [0.5, 0.2, 0.2, 0.1], [0.5, 0.2, 0.2, 0.1]])
    torch.testing.assert_close(kept, expected)
    assert torch.equal(nucleus(logprobs, torch.ones(4)), logprobs)


def test_large_products_give_the_same_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(80, 64, generator=generator), torch.randn(3, SMALLEST_WORK // 80 // 64, 64, generator=generator)
    for pack in (True, False):
        torch.testing.assert_close(Weight(matrix, pack=pack)(x), x @ matrix.T, atol=1e-4, rtol=1e-4)
        assert torch.equal(Weight(matrix, pack=pack)(x[:, :1]), torch.nn.functional.linear(x[:, :1], matrix))
    assert not has_onednn(matrix.bfloat16())
    model = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 8, bias=False))
    expected, names = model(x), list(model.state_dict())
    for _ in range(2):  # again, as after a change of weights
        pack_linears(model)
        torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)
    assert list(model.state_dict()) == names


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


def qwen() -> tuple[Any, Callable[[int], tuple[dict[str, torch.Tensor], list[int]]], int]:
    vision = {
        "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, image_token_id=IMAGE, video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2, vision_end_token_id=IMAGE + 3,
    )  # fmt: skip

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        height, width = [(4, 4), (4, 8), (6, 4)][seed % 3]
        pixels = torch.randn(height * width, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(seed))
        tokens = [IMAGE + 2, *[IMAGE] * (height * width // 4), IMAGE + 3]
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}, tokens

    return Qwen2VLForConditionalGeneration(config).eval(), image, 0


def idefics() -> tuple[Any, Callable[[int], tuple[dict[str, torch.Tensor], list[int]]], int]:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    text = {"model_type": "llama", **TEXT}
    config = Idefics3Config(text_config=text, vision_config=vision, image_token_id=IMAGE, scale_factor=2)

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        pixels = torch.randn(1, 1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        tensors = {"pixel_values": pixels, "pixel_attention_mask": torch.ones(1, 1, 16, 16, dtype=torch.long)}
        return tensors, [108, *[IMAGE] * 4, 109]

    return Idefics3ForConditionalGeneration(config).eval(), image, 1


@pytest.mark.parametrize("family", [qwen, idefics])
def test_images_are_seen_once_and_never_mistaken(family: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, image, joined_in = family()
    scheduler = scheduler_of(HuggingFaceBackend(model, frozenset([EOS])))
    rng, seeds = random.Random(0), count()
    sessions: list[tuple[list[int], list[dict[str, torch.Tensor]]]] = [([], []) for _ in range(3)]
    for turn in range(3):
        asked = []
        for number, (ids, images) in enumerate(sessions):
            ids += [rng.randrange(3, 100) for _ in range(9)]
            if turn != 1 or number:
                tensors, tokens = image(next(seeds))
                images.append(tensors)
                ids += [*tokens, rng.randrange(3, 100)]
            vision = {name: torch.cat([one[name] for one in images], dim=joined_in) for name in images[0]}
            temperature = float(number == 2)
            asked.append(
                Request(
                    prompt=tuple(ids), temperature=temperature, max_new_tokens=5, seed=turn, conversation=str(number), vision=vision
                )
            )
        for row, (ids, _) in zip(run(scheduler, asked), sessions, strict=True):
            assert row.logprobs == pytest.approx(reference(model, row, scheduler.backend.never_token_ids, **row.request.vision), abs=5e-5)
            assert IMAGE not in row.answer
            ids += row.answer
    reused = scheduler.counts.tokens_reused
    assert reused > 100
    # The same tokens, another first image: nothing after it may be taken from what was kept.
    images = [image(34)[0], *sessions[1][1][1:]]
    other = {name: torch.cat([one[name] for one in images], dim=joined_in) for name in images[0]}
    [row] = run(scheduler, [replace(asked[1], vision=other)])
    assert row.logprobs == pytest.approx(reference(model, row, scheduler.backend.never_token_ids, **other), abs=5e-5)
    assert scheduler.counts.tokens_reused - reused < 12


def test_images_that_do_not_fit_their_tokens_are_refused() -> None:
    model, image, _ = qwen()
    backend = HuggingFaceBackend(model, frozenset([EOS]))
    tensors, tokens = image(0)
    request = Request(prompt=(5, *tokens), temperature=0.0, max_new_tokens=3, seed=0, vision=tensors)
    with pytest.raises(ModelError, match=r"5 image tokens and its images take 4"):
        backend.open(replace(request, prompt=(5, IMAGE, *tokens)))
    with pytest.raises(ModelError, match="0 image tokens"):
        backend.open(replace(request, prompt=(5, 6)))
    with pytest.raises(ModelError, match="no image_token_id"):
        HuggingFaceBackend(LlamaForCausalLM(LlamaConfig(**TEXT)), frozenset([EOS])).open(request)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_on_an_accelerator_as_on_the_cpu(models: dict[str, Any], kind: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(models[kind]).to("cuda", dtype)
    there = scheduler_of((ShiftBackend if kind == "shift, fast" else HuggingFaceBackend)(model, frozenset([EOS])))
    here = models[kind]
    for turn in range(2):
        asked = [replace(request, conversation=str(index)) for index, request in enumerate(requests(12, seed=turn // 2, temperature=1.0))]
        for row in run(there, asked):
            assert row.logprobs == pytest.approx(reference(here, row), abs=1e-3 if dtype == torch.float32 else 0.5)
    assert there.counts.tokens_reused > 0
