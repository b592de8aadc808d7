"""The batcher: when batches go off, what they hold, errors, cancellation, one prompt at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agent.policy.batcher import Batcher
from agent.policy.policy import Message, Prompt, Response, Sampling
from warehouse.core.errors import ModelError


class Echo:
    """A policy that says which batch answered."""

    policy_id = "policy-echo"

    def __init__(self, delay_s: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self.delay_s = delay_s
        self.num_under_way = 0

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        self.num_under_way += 1
        assert self.num_under_way == 1
        self.batches.append([prompt.messages[0].content for prompt in prompts])
        await asyncio.sleep(self.delay_s)
        self.num_under_way -= 1
        if "bad" in self.batches[-1]:
            raise ModelError("broken engine")
        return [
            Response(text=prompt.messages[0].content.upper(), prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=self.policy_id)
            for prompt in prompts
        ]


def prompt(text: str) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),), sampling=Sampling())


def test_a_batch_goes_off_when_all_live_episodes_wait() -> None:
    async def main() -> None:
        policy = Echo()
        batcher = Batcher(policy, max_wait_ms=10_000)
        with batcher.live(), batcher.live(), batcher.live():
            answers = await asyncio.gather(*(batcher.act(prompt(text)) for text in "abc"))
        assert [answer.text for answer in answers] == ["A", "B", "C"]
        assert policy.batches == [["a", "b", "c"]]
        assert (batcher.num_batches, batcher.num_prompts) == (1, 3)

    asyncio.run(main())


def test_an_episode_that_ends_lets_the_others_go() -> None:
    async def main() -> None:
        policy = Echo()
        batcher = Batcher(policy, max_wait_ms=10_000)
        with batcher.live():
            with batcher.live():
                answer = asyncio.create_task(batcher.act(prompt("a")))
                await asyncio.sleep(0.01)
                assert policy.batches == []
            assert (await answer).text == "A"

    asyncio.run(main())


def test_nobody_waits_longer_than_the_limit() -> None:
    async def main() -> None:
        policy = Echo()
        batcher = Batcher(policy, max_wait_ms=5)
        with batcher.live(), batcher.live():
            assert (await asyncio.wait_for(batcher.act(prompt("a")), timeout=5)).text == "A"

    asyncio.run(main())


def test_batches_are_capped_and_one_at_a_time() -> None:
    async def main() -> None:
        policy = Echo(delay_s=0.005)
        batcher = Batcher(policy, max_batch=2, max_wait_ms=1)
        await asyncio.gather(*(batcher.act(prompt(text)) for text in "abcde"))
        assert all(len(batch) <= 2 for batch in policy.batches)
        assert sorted(text for batch in policy.batches for text in batch) == list("abcde")

    asyncio.run(main())


def test_fixed_batch_asks_one_at_a_time_in_order() -> None:
    async def main() -> None:
        policy = Echo(delay_s=0.001)
        batcher = Batcher(policy, fixed_batch=True)
        await asyncio.gather(*(batcher.act(prompt(text)) for text in "abcd"))
        assert policy.batches == [["a"], ["b"], ["c"], ["d"]]

    asyncio.run(main())


def test_an_engines_error_reaches_everyone_in_the_batch_and_nobody_else() -> None:
    async def main() -> None:
        batcher = Batcher(Echo(), max_batch=2, max_wait_ms=1)
        with batcher.live(), batcher.live():
            results = await asyncio.gather(batcher.act(prompt("bad")), batcher.act(prompt("x")), return_exceptions=True)
        assert [type(result) for result in results] == [ModelError, ModelError]
        assert (await batcher.act(prompt("ok"))).text == "OK"

    asyncio.run(main())


def test_a_cancelled_caller_takes_its_prompt_back() -> None:
    async def main() -> None:
        policy = Echo(delay_s=0.01)
        batcher = Batcher(policy, max_wait_ms=10_000)
        with batcher.live():
            with batcher.live(), batcher.live():
                gone = asyncio.create_task(batcher.act(prompt("gone")))
                stays = asyncio.create_task(batcher.act(prompt("stays")))
                await asyncio.sleep(0)
                gone.cancel()
                await asyncio.wait([gone])
                assert gone.cancelled()
            assert (await stays).text == "STAYS"
            in_flight = asyncio.create_task(batcher.act(prompt("flying")))
            await asyncio.sleep(0.002)
            in_flight.cancel()
            assert (await batcher.act(prompt("next"))).text == "NEXT"
        assert policy.batches == [["stays"], ["flying"], ["next"]]

    asyncio.run(main())


def test_nonsense_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="max_batch must be at least 1"):
        Batcher(Echo(), max_batch=0)


def test_a_policy_that_batches_continuously_is_asked_at_once() -> None:
    class Slow(Echo):
        is_continuous = True

        def __init__(self) -> None:
            super().__init__()
            self.is_released = asyncio.Event()

        async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
            self.batches.append([prompt.messages[0].content for prompt in prompts])
            if self.batches[-1] == ["long"]:
                await self.is_released.wait()
            return [Response(text="ok", prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=self.policy_id) for _ in prompts]

    async def main() -> None:
        policy = Slow()
        batcher = Batcher(policy, max_wait_ms=10_000)
        with batcher.live(), batcher.live(), batcher.live():
            long = asyncio.create_task(batcher.act(prompt("long")))
            await asyncio.gather(batcher.act(prompt("a")), batcher.act(prompt("b")))  # neither waits for the long answer
            policy.is_released.set()
            await long
        assert sorted(policy.batches) == [["a"], ["b"], ["long"]] and (batcher.num_batches, batcher.num_prompts) == (3, 3)
        calm = Batcher(policy, fixed_batch=True)
        assert [(await calm.act(prompt("c"))).text] == ["ok"]

    asyncio.run(main())
