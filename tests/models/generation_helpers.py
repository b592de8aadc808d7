"""Tiny models' measures, requests, a scheduler's run, and what a row's answer is held to: for the tests of generation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from models.engine.backend import Backend
from models.engine.rows import Request, Row
from models.engine.scheduler import Scheduler
from models.engine.settings import EngineSettings

VOCABULARY, EOS, IMAGE = 120, 2, 110
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def scheduler_of(backend: Backend, **settings: Any) -> Scheduler:
    return Scheduler(backend, EngineSettings(**settings), policy_id="checkpoint-a", version=1)


def requests(num: int, *, seed: int = 0, **changes: Any) -> list[Request]:
    rng = random.Random(seed)
    made = [
        Request(
            prompt=tuple(rng.randrange(3, 100) for _ in range(rng.randint(1, 40))),
            temperature=0.0,
            seed=index,
            max_new_tokens=rng.randint(1, 12),
        )
        for index in range(num)
    ]
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
