"""What every Policy owes whoever asks it, over every implementation: the embedded engine, and the HTTP engine on our server, by messages
and by token ids."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent.policy.policy import Message, Policy, Prompt, Sampling
from models.checkpoints.checkpoint import read_card, save
from models.engine.choice import EngineChoice
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_codec
from models.families.tiny_vision import tiny_vision_policy
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from pipelines.stages.engines import open_engine
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, OurServer, our_server, prompt
from warehouse.core.errors import ModelError

IMPLEMENTATIONS = ("embedded", "http messages", "http token ids")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Any]) -> Path:
    place = tmp_path_factory.mktemp("conformance") / "policy"
    model, tokenizer = make_model()
    save(place, model, tokenizer, stage="seed_policy", iteration="0000")
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[OurServer]:
    with our_server(folder) as running:
        yield running


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def policy(request: pytest.FixtureRequest, folder: Path, server: OurServer) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, TOKEN)
        engine = opened(request.param, folder, server)
        yield engine
        engine.close()


def opened(kind: str, folder: Path, server: OurServer) -> Any:
    """As a stage opens it, by what its profile says."""
    if kind == "embedded":
        return open_engine(folder, EngineChoice())
    http = {"base_url": server.url, "token_env": TOKEN_VARIABLE, "send": kind.removeprefix("http ").replace(" ", "_"), "retries": 0}
    return open_engine(folder, EngineChoice.model_validate({"kind": "http", "http": http}))


def act(policy: Policy, *prompts: Prompt) -> Any:
    return asyncio.run(policy.act(prompts))


def test_it_is_a_policy_and_names_its_weights(policy: Any, folder: Path) -> None:
    assert isinstance(policy, Policy)
    assert policy.policy_id == read_card(folder).checkpoint_id


def test_one_response_per_prompt_in_order(policy: Any) -> None:
    asked = [prompt("see " * (7 - index), max_new_tokens=2 + index, temperature=1.0, seed=index) for index in range(7)]
    for alone, together in zip([act(policy, one)[0] for one in asked], act(policy, *asked), strict=True):
        assert (alone.prompt_token_ids, alone.token_ids) == (together.prompt_token_ids, together.token_ids)
        assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-5)
    assert act(policy) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_response_tells_every_token(policy: Any, folder: Path, temperature: float) -> None:
    codec = load_codec(folder)
    for seed in range(4):
        asked = prompt(temperature=temperature, seed=seed, max_new_tokens=20)
        (answer,) = act(policy, asked)
        assert answer.prompt_token_ids == tuple(codec.encode(asked.messages).token_ids)
        assert 0 < len(answer.token_ids) <= 20
        assert len(answer.logprobs) == len(answer.token_ids) == len(answer.versions)
        assert all(logprob <= 0 for logprob in answer.logprobs)
        assert answer.text == codec.decode(answer.token_ids)
        ends = [token in codec.eos_token_ids for token in answer.token_ids]
        assert not any(ends[:-1]) and (ends[-1] or len(answer.token_ids) == 20)
        assert answer.policy_id == policy.policy_id


def test_a_seed_fixes_an_answer_and_greedy_needs_none(policy: Any) -> None:
    first, again, other = act(policy, *(prompt(temperature=1.0, seed=seed) for seed in (2**62 + 1, 2**62 + 1, 5)))
    assert first.token_ids == again.token_ids != other.token_ids
    greedy = act(policy, prompt(seed=1), prompt(seed=2))
    assert greedy[0].token_ids == greedy[1].token_ids


def test_a_narrow_nucleus_is_greedy(policy: Any) -> None:
    narrow, greedy = act(policy, prompt(temperature=1.0, top_p=1e-6), prompt())
    assert narrow.token_ids == greedy.token_ids
    assert narrow.logprobs == pytest.approx((0.0,) * len(narrow.token_ids), abs=1e-5), "of the distribution sampled from: one token is left"


def test_a_prompt_without_room_gets_no_tokens_and_disturbs_nobody(policy: Any) -> None:
    long, short = act(policy, prompt("see " * 3000), prompt())
    assert (long.text, long.token_ids, long.logprobs, long.policy_id) == ("", (), (), policy.policy_id)
    assert short.token_ids == act(policy, prompt())[0].token_ids


def test_turns_of_a_conversation_are_answered_as_if_alone(policy: Any) -> None:
    messages: list[Message] = []
    for turn in range(3):
        messages += [Message(role="user", content=f"Find see then hello Submit {turn} " * 3)]
        asked = Prompt(messages=tuple(messages), sampling=Sampling(max_new_tokens=6), conversation="episode-7")
        (answer,), (alone,) = act(policy, asked), act(policy, Prompt(messages=asked.messages, sampling=asked.sampling))
        assert answer.token_ids == alone.token_ids
        messages.append(Message(role="assistant", content=answer.text))


def test_the_event_loop_stays_free_and_calls_share_the_policy(policy: Any) -> None:
    async def count() -> tuple[int, list[Any]]:
        calls = [asyncio.create_task(policy.act([prompt(temperature=1.0, seed=seed, max_new_tokens=60)])) for seed in range(8)]
        ticks = 0
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)
            ticks += 1
        return ticks, [(await call)[0].token_ids for call in calls]

    ticks, answers = asyncio.run(count())
    assert ticks > 10
    assert len(set(answers)) == 8


@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
def test_a_closed_policy_says_so(kind: str, folder: Path, server: OurServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    engine = opened(kind, folder, server)
    engine.close()
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        act(engine, prompt())


def test_pictures_are_seen_over_http_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vision-language policy with random weights: another picture, another answer; and the same one on either side."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    model, codec = tiny_vision_policy(("Find", "Ok"), 0)
    save(tmp_path / "vision", model, codec, stage="seed_policy", iteration="0000")
    images = {colour: picture(colour) for colour in ("red", "blue")}
    asked = [
        Prompt(
            messages=(Message(role="user", content="Find Ok", screenshot_id=colour),),
            sampling=Sampling(max_new_tokens=8),
            images={colour: image},
        )
        for colour, image in images.items()
    ]
    embedded = EmbeddedEngine.from_checkpoint(tmp_path / "vision")
    with our_server(tmp_path / "vision") as server:
        http = HttpEngine.of_checkpoint(HttpEngineConfig(base_url=server.url, token_env=TOKEN_VARIABLE), tmp_path / "vision")
        here, there = act(embedded, *asked), act(http, *asked)
        http.close()
    embedded.close()
    for one, other in zip(here, there, strict=True):
        assert (one.prompt_token_ids, one.token_ids, one.text) == (other.prompt_token_ids, other.token_ids, other.text)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert here[0].logprobs != here[1].logprobs


def picture(colour: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(data, "PNG")
    return data.getvalue()
