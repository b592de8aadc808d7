"""The token-shift model: its state is exact in every way of running it, and a plain Hugging Face round trip keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from assets.settings.agent import TOKEN_SHIFT
from models.families.seed_policy import seed_policy
from models.families.shift_qwen3 import ShiftQwen3Config, ShiftQwen3ForCausalLM, initialise, tiny_config

MakeModel = Callable[..., tuple[ShiftQwen3ForCausalLM, Any]]
PROMPTS = ([5, 9, 30, 7, 61, 12, 80], [44, 45], [8])


def last_logits(model: ShiftQwen3ForCausalLM, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def left_padded(pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    return ids, mask


def test_left_padding_changes_nothing(make_model: MakeModel) -> None:
    model, tokenizer = make_model()
    ids, mask = left_padded(tokenizer.pad_token_id)
    with torch.no_grad():
        padded = model(ids, attention_mask=mask).logits[:, -1]
    for row, prompt in enumerate(PROMPTS):
        torch.testing.assert_close(padded[row], last_logits(model, prompt)[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("token_shift", [3, 6])
def test_generate_with_cache_and_left_padding_equals_full_passes(make_model: MakeModel, token_shift: int) -> None:
    model, tokenizer = make_model(token_shift=token_shift)
    ids, mask = left_padded(tokenizer.pad_token_id)
    made = model.generate(
        ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None, output_logits=True, return_dict_in_generate=True
    )
    for row, prompt in enumerate(PROMPTS):
        full = last_logits(model, prompt + made.sequences[row, ids.shape[1] :].tolist())
        for step, logits in enumerate(made.logits):
            torch.testing.assert_close(logits[row], full[len(prompt) - 1 + step], atol=1e-5, rtol=1e-5)


def test_beam_search_keeps_the_shift_of_each_beam(make_model: MakeModel) -> None:
    model, tokenizer = make_model()
    ids, mask = left_padded(tokenizer.pad_token_id)
    common = {"attention_mask": mask, "max_new_tokens": 5, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, use_cache=True, **common), model.generate(ids, use_cache=False, **common))


@pytest.mark.parametrize("token_shift", [3, 6])
def test_packing_changes_nothing(make_model: MakeModel, token_shift: int) -> None:
    model, _ = make_model(token_shift=token_shift)
    packed = torch.tensor([[token for prompt in PROMPTS for token in prompt]])
    positions = torch.tensor([[place for prompt in PROMPTS for place in range(len(prompt))]])
    with torch.no_grad():
        logits = model(packed, position_ids=positions, use_cache=False).logits[0]
    end = 0
    for prompt in PROMPTS:
        end += len(prompt)
        torch.testing.assert_close(logits[end - len(prompt) : end], last_logits(model, prompt), atol=1e-5, rtol=1e-5)


def test_a_seed_policy_reads_as_far_back_as_asked_and_as_policies_are_set_by_default() -> None:
    reach = {asked: len(seed_policy(("click", "ok"), 0, *asked)[0].model.shift) for asked in ((), (6,))}
    assert reach == {(): TOKEN_SHIFT, (6,): 6}


def test_a_filled_cache_without_the_ids_before_it_is_refused(make_model: MakeModel) -> None:
    model, _ = make_model()
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[3, 4, 5]]), past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="previous_ids"):
        model(torch.tensor([[6]]), past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="input_ids"):
        model(inputs_embeds=torch.zeros(1, 2, model.config.hidden_size))


def test_save_and_open_as_any_hugging_face_model(make_model: MakeModel, tmp_path: Path) -> None:
    model, _ = make_model()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), ShiftQwen3Config)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(opened, ShiftQwen3ForCausalLM)
    assert opened.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, opened.state_dict()[name]) for name, value in model.state_dict().items())
    assert opened.lm_head.weight is opened.model.embed_tokens.weight


def test_initialisation_depends_on_its_seed_alone_and_heads_match_before_training() -> None:
    def fresh(seed: int) -> ShiftQwen3ForCausalLM:
        model = ShiftQwen3ForCausalLM(tiny_config(300, pad_token_id=0, bos_token_id=1, eos_token_id=2))
        initialise(model, seed)
        return model.eval()

    torch.manual_seed(1)
    one = fresh(0)
    torch.manual_seed(2)
    same, other = fresh(0), fresh(1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    # Heads that match: in the first layer, the second head's query at a repeated pair of tokens finds the pair's first occurrence.
    ids = torch.tensor([[11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 14, 15]])
    attention = one.model.layers[0].self_attn
    with torch.no_grad():
        x = one.model.layers[0].input_layernorm(one.model.embed(ids, torch.arange(12).unsqueeze(0)))
        query, key = (projection(x).view(12, 4, 24)[:, 1] for projection in (attention.q_proj, attention.k_proj))
    assert int((query[11] @ key[:10].T).argmax()) == 4


def test_the_golden_logits_of_a_seed_have_not_moved() -> None:
    model = ShiftQwen3ForCausalLM(tiny_config(100, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    initialise(model, 7)
    logits = last_logits(model.eval(), [1, 5, 9, 5, 9, 30])[-1]
    torch.testing.assert_close(logits[[5, 9, 30]], torch.tensor(GOLDEN), atol=2e-3, rtol=1e-3)


GOLDEN = [2.8392, 1.7208, 2.1247]
