"""A request that cannot be answered fails alone: those of the same batch get the tokens that they get without it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.policy.policy import Message, Prompt, Response, Sampling
from models.engine.embedded import EmbeddedEngine
from models.engine.rows import Request, Row
from models.engine.settings import EngineSettings
from tests.models.generation_helpers import requests
from tests.models.vision_models import VISION_MODELS
from warehouse.core.errors import ModelError, RequestRefused

NUM_GOOD = 5


def prompts(num: int = NUM_GOOD) -> list[Prompt]:
    return [
        Prompt(
            messages=(Message(role="user", content="Find then see " * (1 + index)),),
            conversation=f"c{index}",
            sampling=Sampling(temperature=index % 2, max_new_tokens=16, seed=index, top_p=1.0 if index % 3 else 0.9),
        )
        for index in range(num)
    ]


def sampled(**sampling: Any) -> Prompt:
    fields = {"temperature": 1.0, "max_new_tokens": 8} | sampling
    return Prompt(messages=(Message(role="user", content="hello"),), sampling=Sampling(**fields))


async def _together(engine: EmbeddedEngine, asked: Sequence[Prompt]) -> list[Response | BaseException]:
    return list(await asyncio.gather(*(engine.act([one]) for one in asked), return_exceptions=True))  # type: ignore[arg-type]


def beside(engine: EmbeddedEngine, bad: Prompt) -> tuple[list[Any], BaseException]:
    """The answers of good requests that run with a bad one between them, and what the bad one gets."""
    good = prompts()
    *found, failed = asyncio.run(_together(engine, [*good, bad]))
    assert isinstance(failed, BaseException)
    return found, failed


def same(found: Sequence[Any], without: Sequence[Any]) -> bool:
    """Token by token; log-probabilities but for the rounding that another number of rows brings."""
    pairs = [(here[0], there[0]) for here, there in zip(found, without, strict=True)]
    return all(
        here.token_ids == there.token_ids and len(here.token_ids) and here.logprobs == pytest.approx(there.logprobs, abs=1e-5)
        for here, there in pairs
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (sampled(temperature=1e-300), "temperature 1e-300"),
        (sampled(temperature=math.nan), "temperature nan"),
        (sampled(temperature=math.inf), "temperature inf"),
        (sampled(temperature=-1.0), "temperature -1.0"),
        (sampled(top_p=0.0), "top_p 0.0"),
        (sampled(top_p=7.0), "top_p 7.0"),
        (sampled(top_p=math.nan), "top_p nan"),
        (sampled(seed=2**70), f"seed {2**70}"),
        (sampled(max_new_tokens=0), "max_new_tokens 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_fails_its_own_request(make_model: Callable[..., Any], bad: Prompt, message: str) -> None:
    engine = EmbeddedEngine(*make_model(), "checkpoint-a")
    without = asyncio.run(_together(engine, prompts()))
    found, failed = beside(engine, bad)
    assert isinstance(failed, RequestRefused) and message in str(failed)
    assert same(found, without)
    engine.close()


def test_a_top_p_that_is_all_but_nothing_takes_the_likeliest(make_model: Callable[..., Any]) -> None:
    engine = EmbeddedEngine(*make_model(), "checkpoint-a")
    greedy, narrow = asyncio.run(engine.act([sampled(temperature=0.0), sampled(top_p=1e-320)]))
    assert narrow.token_ids == greedy.token_ids
    assert set(narrow.logprobs) == {0.0}
    engine.close()


class _Breaks:
    """A backend's passes, which fail or give NaN for the row of one seed, from its `at`-th token on."""

    def __init__(self, engine: EmbeddedEngine, seed: int, at: int, how: str) -> None:
        self._backend, self._seed, self._at, self._how = engine._scheduler.backend, seed, at, how
        self._read, self._step = self._backend.read, self._backend.step
        self._backend.read, self._backend.step = self.read, self.step  # type: ignore[method-assign]

    def _is_bad(self, row: Row) -> bool:
        return row.request.seed == self._seed and len(row.logprobs) >= self._at

    def read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        return self._spoiled(rows, self._read(rows, places), places)

    def step(self, rows: Sequence[Row]) -> Tensor:
        return self._spoiled(rows, self._step(rows), range(len(rows)))

    def _spoiled(self, rows: Sequence[Row], logits: Tensor, places: Sequence[int]) -> Tensor:
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            if self._is_bad(row):
                if self._how == "raises":
                    raise RuntimeError("the kernel does not like these numbers")
                logits[index] = torch.nan
                for part in (*self._backend.kv_cache._keys, *self._backend.kv_cache._values):
                    part[place] = torch.nan  # as a pass whose numbers overflowed leaves it
        return logits


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("how", ["raises", "NaN"])
def test_a_row_whose_pass_fails_fails_alone(make_model: Callable[..., Any], how: str, at: int) -> None:
    engine = EmbeddedEngine(*make_model(), "checkpoint-a")
    without = asyncio.run(_together(engine, prompts()))
    _Breaks(engine, 99, at, how)
    found, failed = beside(engine, sampled(seed=99))
    assert isinstance(failed, ModelError)
    assert ("does not like" if how == "raises" else "not finite") in str(failed)
    assert same(found, without)
    assert same(asyncio.run(_together(engine, prompts())), without), "what the failed row left behind is in nobody's way"
    assert not engine._answers and engine._scheduler.is_idle
    engine.close()


def test_who_asks_for_more_than_there_is_memory_for_fails_alone(make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EmbeddedEngine(*make_model(), "checkpoint-a")
    without = asyncio.run(_together(engine, prompts()))
    kv_cache = engine._scheduler.backend.kv_cache
    reserve = kv_cache.reserve

    def scarce(num_places: int, num_slots: int) -> None:
        if num_slots > 1500:
            raise RuntimeError("not enough memory: you tried to allocate 99 bytes")
        reserve(num_places, num_slots)

    monkeypatch.setattr(kv_cache, "reserve", scarce)
    found, failed = beside(engine, sampled(max_new_tokens=1900))
    assert isinstance(failed, RequestRefused) and "not enough memory for 19" in str(failed)
    assert same(found, without)
    engine.close()


def test_tokens_that_do_not_fit_the_model_never_reach_it() -> None:
    """Out of the vocabulary; and the place of an image without an image."""
    model, codec = VISION_MODELS["qwen2_vl"]()
    engine = EmbeddedEngine(model, codec, "checkpoint-vision", settings=EngineSettings(max_context=200))
    placeholder = int(model.config.image_token_id)
    good = requests(4)
    without = [engine.start(request, lambda *_: None).result(60).token_ids for request in good]
    bad = [(engine.vocabulary_size, "token id"), (-1, "token id -1"), (2**70, "token id"), (placeholder, "stands for an image")]
    asked = [*good, *(Request(prompt=(3, token, 4), temperature=0.0, max_new_tokens=4, seed=0) for token, _ in bad)]
    answers = [engine.start(request, lambda *_: None) for request in asked]
    assert [answer.result(60).token_ids for answer in answers[: len(good)]] == without
    for answer, (_, message) in zip(answers[len(good) :], bad, strict=True):
        with pytest.raises(RequestRefused, match=message):
            answer.result(60)
    engine.close()
