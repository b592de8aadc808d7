"""The embedded engine with many callers: one running batch, weights that change under it, callers that go away, weights that are broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent.policy.policy import Message, Prompt, Response, Sampling
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings
from models.families.chat import EncodedChat
from models.families.tokenizer import WordCodec
from models.rl.value.critic import Critic
from warehouse.core.errors import ModelError

NEVER_ENDS = 1 << 30


class EndlessCodec(WordCodec):
    """Answers go on to their limit: no token ends them."""

    eos_token_ids = (NEVER_ENDS,)


class Pace:
    """Lets an engine take one step for each permit."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._permits, self._step, self._is_open, self._waits = threading.Semaphore(0), engine._scheduler.step, False, False
        self._engine = engine
        engine._scheduler.step = self._paced  # type: ignore[method-assign]

    def _paced(self) -> Any:
        if not self._is_open:
            self._waits = True
            self._permits.acquire()
            self._waits = False
        return self._step()

    def has_stopped_after(self, num: int) -> bool:
        """Whether the engine has taken so many steps and waits for a permit: what comes in now stays in its inbox."""
        return self._waits and self._engine.counts.steps == num

    def allow(self, num: int) -> None:
        self._permits.release(num)

    def open(self) -> None:
        self._is_open = True
        self.allow(1)


@pytest.fixture
def endless(make_model: Callable[..., Any]) -> Iterator[EmbeddedEngine]:
    model, tokenizer = make_model()
    engine = EmbeddedEngine(model, EndlessCodec(tokenizer), "checkpoint-a", version=1)
    yield engine
    if isinstance(pace := getattr(engine._scheduler.step, "__self__", None), Pace):
        pace.open()  # a test that failed leaves it waiting for a permit
    engine.close()


def prompt(text: str, num_tokens: int, *, temperature: float = 0.0, conversation: str | None = None) -> Prompt:
    sampling = Sampling(temperature=temperature, max_new_tokens=num_tokens, seed=5)
    return Prompt(messages=(Message(role="user", content=text),), sampling=sampling, conversation=conversation)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scene()

    asyncio.run(bounded())


def answered(engine: EmbeddedEngine, prompts: Sequence[Prompt]) -> list[Response]:
    return asyncio.run(engine.act(prompts))


def test_callers_share_one_running_batch_and_leave_it_at_once(endless: EmbeddedEngine) -> None:
    pace = Pace(endless)

    async def scene() -> None:
        long = asyncio.create_task(endless.act([prompt("see Find", 40)]))
        pace.allow(10)
        await until(lambda: pace.has_stopped_after(10))
        short = asyncio.create_task(endless.act([prompt("hello", 5), prompt("Ok then", 3)]))
        await until(lambda: bool(endless._inbox))
        pace.allow(6)
        assert [len(answer.token_ids) for answer in await short] == [5, 3]
        assert not long.done()
        pace.open()
        assert len((await long)[0].token_ids) == 40
        assert endless.counts.steps == 39, "the first step writes two tokens, and nobody waited for another"

    play(scene)


def test_who_is_cancelled_takes_the_request_back(endless: EmbeddedEngine) -> None:
    pace = Pace(endless)

    async def scene() -> None:
        leaves = asyncio.create_task(endless.act([prompt("see Find", 500), prompt("then", 500)]))
        stays = asyncio.create_task(endless.act([prompt("hello", 20)]))
        pace.allow(3)
        await until(lambda: pace.has_stopped_after(3))
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        pace.open()
        answer = (await stays)[0]
        assert answer.token_ids == (await endless.act([prompt("hello", 20)]))[0].token_ids
        assert endless.counts.tokens_written < 100
        assert not endless._answers

    play(scene)


@pytest.mark.parametrize("running_rows", ["recompute", "continue"])
def test_each_token_knows_the_version_that_wrote_it(make_model: Callable[..., Any], running_rows: Any) -> None:
    model, tokenizer = make_model()
    state = make_model(seed=1)[0].state_dict()
    settings = EngineSettings(running_rows=running_rows)
    engine = EmbeddedEngine(model, EndlessCodec(tokenizer), "checkpoint-a", version=1, settings=settings)
    pace = Pace(engine)

    async def scene() -> None:
        running = asyncio.create_task(engine.act([prompt("see Find", 20), prompt("hello", 20, temperature=1.0)]))
        pace.allow(4)
        await until(lambda: pace.has_stopped_after(4))
        swap = asyncio.create_task(asyncio.to_thread(engine.load_weights, state, "checkpoint-b", 2))
        await until(lambda: bool(engine._inbox))
        pace.open()
        await swap
        answers = await running
        assert [answer.versions for answer in answers] == [(1,) * 6 + (2,) * 14] * 2
        assert {answer.policy_id for answer in answers} == {"checkpoint-a"}
        after = (await engine.act([prompt("see Find", 3)]))[0]
        assert (after.versions, after.policy_id, engine.policy_id) == ((2, 2, 2), "checkpoint-b", "checkpoint-b")

    play(scene)
    engine.close()


def finishing(make_model: Callable[..., Any], **settings: Any) -> EmbeddedEngine:
    """An engine whose answers end with the weights that they began with."""
    model, tokenizer = make_model()
    settings = {"running_rows": "finish"} | settings
    return EmbeddedEngine(model, EndlessCodec(tokenizer), "checkpoint-a", version=1, settings=EngineSettings(**settings))


def test_what_has_begun_finishes_with_its_weights_and_what_comes_waits_for_the_new(make_model: Callable[..., Any]) -> None:
    engine, state = finishing(make_model, max_rows=2), make_model(seed=1)[0].state_dict()
    pace, wide = Pace(engine), make_model(hidden_size=64)[0].state_dict()

    async def scene() -> None:
        asked = [prompt("see Find", 20), prompt("hello", 12, temperature=1.0), prompt("then", 6)]
        running = asyncio.create_task(engine.act(asked))
        pace.allow(4)
        await until(lambda: pace.has_stopped_after(4))
        swap = asyncio.create_task(asyncio.to_thread(engine.load_weights, state, "checkpoint-b", 2))
        await until(lambda: bool(engine._inbox))
        late = asyncio.create_task(engine.act([prompt("see Find", 5)]))
        await until(lambda: len(engine._inbox) == 2)
        misfit = asyncio.create_task(asyncio.to_thread(engine.load_weights, wide, "checkpoint-wide", 3))
        await until(lambda: len(engine._inbox) == 3)
        pace.allow(2)
        await until(lambda: pace.has_stopped_after(6))
        assert not swap.done() and engine.policy_id == "checkpoint-a"
        pace.open()
        answers = await running
        assert [answer.versions for answer in answers] == [(1,) * 20, (1,) * 12, (1,) * 6], "also the one that had to wait for a row"
        await swap
        with pytest.raises(ModelError, match="do not fit"):
            await misfit
        after = (await late)[0]
        assert (after.versions, after.policy_id) == ((2,) * 5, "checkpoint-b")
        assert after.token_ids == (await engine.act([prompt("see Find", 5)]))[0].token_ids
        assert answers[0].token_ids[:5] != after.token_ids, "the two sets of weights answer differently"

    play(scene)
    engine.close()


@pytest.mark.parametrize("end", ["cancelled", "closed"])
def test_new_weights_do_not_wait_for_answers_that_are_taken_back(make_model: Callable[..., Any], end: str) -> None:
    engine, state = finishing(make_model), make_model(seed=1)[0].state_dict()
    pace = Pace(engine)

    async def scene() -> None:
        running = asyncio.create_task(engine.act([prompt("see Find", 500)]))
        pace.allow(2)
        await until(lambda: pace.has_stopped_after(2))
        swap = asyncio.create_task(asyncio.to_thread(engine.load_weights, state, "checkpoint-b", 2))
        await until(lambda: bool(engine._inbox))
        if end == "cancelled":
            running.cancel()
        else:
            closing = asyncio.create_task(asyncio.to_thread(engine.close))
            await until(lambda: engine._is_closed)
        pace.open()
        await swap
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else ModelError):
            await running
        if end == "closed":
            await closing
        else:
            assert (await engine.act([prompt("hello", 2)]))[0].versions == (2, 2)

    play(scene)
    engine.close()


def test_values_are_the_critics(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    critic = Critic.of_policy(model)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    engine = EmbeddedEngine(model, tokenizer, "checkpoint-a", critic=critic)
    asked = [prompt(text, 9, temperature=1.0) for text in ("see", "Find then hello", "Ok")]
    answers = answered(engine, asked)
    for answer in answers:
        ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
        with torch.no_grad():
            hidden = critic.backbone(input_ids=ids).last_hidden_state[0, len(answer.prompt_token_ids) - 1 : -1]
            expected = critic.head(hidden)[:, 0].tolist()
        assert answer.values == pytest.approx(expected, abs=1e-4)
    engine.close()
    plain = EmbeddedEngine(model, tokenizer, "checkpoint-a")
    assert all(answer.values == () for answer in answered(plain, asked))
    plain.close()


def test_a_closed_engine_answers_nobody(endless: EmbeddedEngine) -> None:
    pace = Pace(endless)

    async def scene() -> None:
        running = asyncio.create_task(endless.act([prompt("see", 50)]))
        pace.allow(2)
        await until(lambda: pace.has_stopped_after(2))
        closing = asyncio.create_task(asyncio.to_thread(endless.close))
        await until(lambda: endless._is_closed)
        pace.open()
        with pytest.raises(ModelError, match="closed during a request"):
            await running
        await closing
        with pytest.raises(ModelError, match="is closed"):
            endless.load_weights({}, "checkpoint-b")

    play(scene)


def test_broken_weights_are_an_error_and_good_ones_fix_it(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    engine = EmbeddedEngine(model, tokenizer, "checkpoint-a")
    asked = [prompt("see", 5, conversation="one", temperature=1.0), prompt("Find hello", 5, conversation="two")]
    before = answered(engine, asked)
    state = model.state_dict()
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}
    engine.load_weights(broken, "checkpoint-broken", 1)
    with pytest.raises(ModelError, match="weights have diverged"):
        answered(engine, asked)
    engine.load_weights(state, "checkpoint-a", 0)
    assert answered(engine, asked) == before
    engine.close()


def test_a_message_that_fails_strands_none_of_those_behind_it(
    make_model: Callable[..., Any], endless: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, state = Pace(endless), make_model(seed=1)[0].state_dict()

    def broken(_: object) -> None:
        raise RuntimeError("no memory left to move a row")

    async def scene() -> None:
        leaves, stays = (asyncio.create_task(endless.act([prompt(text, 500)])) for text in ("see Find", "then"))
        pace.allow(2)
        await until(lambda: pace.has_stopped_after(2))
        monkeypatch.setattr(endless._scheduler, "cancel", broken)
        leaves.cancel()
        await until(lambda: len(endless._inbox) == 1)
        swap = asyncio.create_task(asyncio.to_thread(endless.load_weights, state, "checkpoint-b", 2))
        await until(lambda: len(endless._inbox) == 2)
        late = asyncio.create_task(endless.act([prompt("hello", 3)]))
        await until(lambda: len(endless._inbox) == 3)
        pace.open()
        await swap
        assert (await late)[0].versions == (2, 2, 2)
        with pytest.raises(ModelError, match="no memory left to move a row"):
            await stays

    play(scene)


def test_who_has_read_enough_of_an_answer_leaves_the_conversation_as_far_as_it_went(endless: EmbeddedEngine) -> None:
    """A server's stop text ends an answer this way. The next turn reads on from there."""
    pace, text = Pace(endless), "see Find then hello " * 4

    async def scene() -> None:
        running = asyncio.create_task(endless.act([prompt(text, 500, conversation="one")]))
        pace.allow(4)
        await until(lambda: pace.has_stopped_after(4))
        running.cancel()
        await until(lambda: bool(endless._inbox))
        pace.open()
        await until(lambda: endless._scheduler.is_idle)
        again = (await endless.act([prompt(text, 3, conversation="one")]))[0]
        assert endless.counts.tokens_reused == len(again.prompt_token_ids) - 1
        assert again.token_ids == (await endless.act([prompt(text, 3)]))[0].token_ids

    play(scene)


class TouchyCodec(WordCodec):
    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
    ) -> EncodedChat:
        if "image" in messages[0].content:
            raise ModelError("the messages name a screenshot that is missing")
        return super().encode(messages, images, prompt_loss_weight=prompt_loss_weight)


def test_a_prompt_that_cannot_be_read_troubles_nobody_else(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    engine = EmbeddedEngine(model, TouchyCodec(tokenizer), "checkpoint-a")

    async def scene() -> None:
        good = asyncio.create_task(engine.act([prompt("see", 8)]))
        with pytest.raises(ModelError, match="screenshot that is missing"):
            await engine.act([prompt("image", 8), prompt("hello", 8)])
        assert len((await good)[0].token_ids) > 0

    play(scene)
    engine.close()


class IdCodec:
    """Prompts written out as numbers, any of them."""

    eos_token_ids = (2,)
    pad_token_id = 0

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
    ) -> EncodedChat:
        ids = [int(word) for message in messages for word in message.content.split()]
        return EncodedChat(token_ids=ids, loss_weights=[0.0] * len(ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def test_any_decoder_is_run_and_ids_without_meaning_do_no_harm() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    engine = EmbeddedEngine(model, IdCodec(), "checkpoint-llama", settings=EngineSettings(max_context=40))
    answers = answered(
        engine, [prompt("7 8 9", 6), prompt("2 0 1 2 2", 6), prompt("", 6), prompt("7 " * 35, 6), prompt("7 " * 34, 6), prompt("49", 6)]
    )
    assert [bool(answer.token_ids) for answer in answers] == [True, True, False, False, True, True]
    outside: Response | None = None
    with pytest.raises(ModelError, match="token id 1000000 is outside the model's vocabulary of 50"):
        [outside] = answered(engine, [prompt("7 1000000", 6)])
    assert outside is None
    assert answered(engine, [prompt("7 8 9", 6)])[0].token_ids == answers[0].token_ids
    state = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    engine.load_weights(state, "checkpoint-twice", 3)
    assert answered(engine, [prompt("7 8 9", 6)])[0].versions[0] == 3
    engine.close()
