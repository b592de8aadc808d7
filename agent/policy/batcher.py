"""The batcher: prompts of many concurrent episodes gathered into batches for one policy. What is in a prompt is prompt.py's business.

A batch is sent when every live episode waits for an answer, when it is full, or when its first prompt has waited long enough. One batch is
in flight at a time. With a policy that batches continuously each prompt is sent at once instead. The policy must not block the event loop
(the embedded engine works in a thread of its own).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.policy.policy import Policy, Prompt, Response, is_continuous


@dataclass(slots=True)
class _Waiting:
    prompt: Prompt
    answer: asyncio.Future[Response]


class Batcher:
    """`await act(prompt)` from any number of tasks of one event loop.

    `fixed_batch` asks one prompt at a time, in the order they came: floating-point sums then do not depend on which prompts happened to
    share a batch, so equal seeds give equal answers to the bit, whatever the concurrency. For the same reason they name no conversation:
    whether an engine still has the beginning of one depends on what else it was asked.
    """

    def __init__(self, policy: Policy, *, max_batch: int = 64, max_wait_ms: float = 50.0, fixed_batch: bool = False) -> None:
        if max_batch < 1 or max_wait_ms < 0:
            raise ValueError(f"max_batch must be at least 1 and max_wait_ms at least 0, not {max_batch} and {max_wait_ms}")
        self._policy = policy
        self._max_batch = 1 if fixed_batch else max_batch
        self._fixed_batch = fixed_batch
        self._asks_at_once = is_continuous(policy) and not fixed_batch
        self._max_wait_s = max_wait_ms / 1000
        self._queue: list[_Waiting] = []
        self._num_live = 0
        self._under_way: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.num_batches = 0
        self.num_prompts = 0

    @property
    def policy_id(self) -> str:
        return self._policy.policy_id

    @contextmanager
    def live(self) -> Iterator[None]:
        """Counts one episode as live: batches wait for its next prompt, up to `max_wait_ms`."""
        self._num_live += 1
        try:
            yield
        finally:
            self._num_live -= 1
            self._send_if_due()

    async def act(self, prompt: Prompt) -> Response:
        """The policy's response. Raises what the policy raises; a caller that is cancelled takes its prompt back."""
        if self._asks_at_once:
            self.num_batches += 1
            self.num_prompts += 1
            return (await self._policy.act([prompt]))[0]
        if self._fixed_batch:
            prompt = replace(prompt, conversation=None)
        waiting = _Waiting(prompt, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._send_if_due()
        try:
            return await waiting.answer
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)
                self._send_if_due()

    def _send_if_due(self, *, waited: bool = False) -> None:
        if self._under_way is not None or not self._queue:
            return
        if waited or len(self._queue) >= min(self._max_batch, max(1, self._num_live)):
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait_s, self._waited)

    def _waited(self) -> None:
        self._timer = None
        self._send_if_due(waited=True)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
        self._under_way = asyncio.get_running_loop().create_task(self._ask(batch), name="batcher")

    async def _ask(self, batch: Sequence[_Waiting]) -> None:
        self.num_batches += 1
        self.num_prompts += len(batch)
        try:
            responses = await self._policy.act([waiting.prompt for waiting in batch])
            for waiting, response in zip(batch, responses, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(response)
        except Exception as error:
            # Every caller of the batch gets the policy's error; none waits for ever.
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
        finally:
            self._under_way = None
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.cancel()
            self._send_if_due()
