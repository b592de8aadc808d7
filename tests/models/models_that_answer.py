"""Tiny real models that have learned one answer by heart, for tests in which a model has to say something of use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from agent.policy.policy import Message
from models.checkpoints.checkpoint import save
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.families.tokenizer import WordCodec, build_tokenizer, equivalent_characters

MAX_ROUNDS = 150


def learn_by_heart(folder: Path, chats: Sequence[tuple[str, str]], answer: str) -> Path:
    """A checkpoint that gives `answer` to each (instructions, text). A second or two for prompts of a hundred words."""
    texts = [answer, *(text for chat in chats for text in chat)]
    tokenizer = build_tokenizer(sorted({word for text in texts for word in re.findall(r"[A-Za-z0-9]+", text)}))
    config = tiny_config(
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=8,
        intermediate_size=64,
    )
    model = ShiftQwen3ForCausalLM(config)
    initialise(model, 0, equivalents=equivalent_characters(tokenizer))
    codec = WordCodec(tokenizer)
    encoded = []
    for instructions, text in chats:
        messages = [Message(role="system", content=instructions), Message(role="user", content=text)]
        chat = codec.encode([*messages, Message(role="assistant", content=answer, loss=1.0)], prompt_loss_weight=0.0)
        encoded.append((torch.tensor([chat.token_ids]), next(at for at, weight in enumerate(chat.loss_weights) if weight) - 1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(MAX_ROUNDS):
        num_wrong = 0
        for ids, start in encoded:
            logits, wanted = model(input_ids=ids).logits[0, start:-1], ids[0, start + 1 :]
            num_wrong += int((logits.argmax(-1) != wanted).sum())
            optimiser.zero_grad()
            cross_entropy(logits, wanted).backward()
            optimiser.step()
        if not num_wrong:
            break
    else:
        raise AssertionError(f"{num_wrong} tokens are not learned")
    save(folder, model.eval(), tokenizer, stage="seed_policy", iteration="0000")
    return folder
