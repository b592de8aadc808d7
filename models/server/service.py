"""Answers under way: their number, their text as it grows, their end when the server closes or the client goes. No HTTP types but the
errors; routes are app.py's, the engine is behind backend.py."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.engine.grammar import Grammar
from models.engine.rows import Request
from models.families.chat import EncodedChat
from models.server.backend import ServedEngine, TokenStream, Written
from models.server.metrics import Metrics
from models.server.problems import busy, closing, failed, of_engine, refused, too_long, wrong
from models.server.settings import ServerSettings
from models.server.streams import merged
from models.server.text import TextSoFar
from models.server.tools import ToolForm
from models.server.wire import ChatRequest, CompletionRequest, Finish, Following, Usage
from warehouse.core.errors import ModelError, RequestRefused

SEED_BITS = 63


def _signed(seed: int) -> int:
    """A seed that has gone beyond 64 bits, from the other end."""
    return (seed + 2**63) % 2**64 - 2**63


@dataclass(frozen=True, slots=True)
class Part:
    """What a token added to an answer; the last part says how it ended. `text` may lag behind the tokens."""

    text: str
    written: Written
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request that can be carried out: its prompt as tokens, with room left for the answer."""

    requests: Sequence[Request]
    """One for each answer that is asked for; of one prompt."""
    stops: Sequence[str]
    tools: ToolForm | None = None
    """How the answer may call tools; None: it may not."""

    def usage(self, num_written: int) -> Usage:
        num_prompt = len(self.requests[0].prompt)
        return Usage(prompt_tokens=num_prompt, completion_tokens=num_written, total_tokens=num_prompt + num_written)


class Service:
    """One served engine. Lives in one event loop."""

    def __init__(self, engine: ServedEngine, settings: ServerSettings, metrics: Metrics) -> None:
        self.engine, self.settings, self.metrics = engine, settings, metrics
        self.num_running = 0
        self.is_closing = self._has_given_up = False
        self.following: Following | None = None
        """What is to be served and why it is not, of a server that follows a release."""
        self.loading = asyncio.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._streams: set[TokenStream] = set()
        metrics.watch("running", "Answers under way.", lambda: self.num_running)
        metrics.watch("waiting", "Requests that wait for their turn.", lambda: self.num_waiting)
        metrics.watch("version", "Updates that the weights have seen.", lambda: engine.version)
        metrics.watch(
            "behind",
            "1 where it follows the live release and does not serve it.",
            lambda: self.following is not None and self.following.is_behind,
        )

    @property
    def policy_id(self) -> str:
        return self.engine.policy_id

    async def has_lost_weights(self) -> bool:
        """Never: nobody else loads into a server that follows."""
        return False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def load(self, folder: Path, policy_id: str | None, version: int) -> None:
        """Answer with another checkpoint; waits for weights that are being loaded already. Raises ModelError, and changes nothing, for one
        that cannot be served."""
        async with self.loading:
            await asyncio.to_thread(self.engine.load, folder, policy_id, version)
            self.metrics.weight_updates.inc()

    def begin_close(self) -> None:
        """Take no more requests and send away those that wait; answers under way go on."""
        self.is_closing = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(closing())

    def give_up(self) -> None:
        """End the answers under way; their clients get an error."""
        self.begin_close()
        self._has_given_up = True
        for stream in self._streams:
            stream.feed(closing())

    def job(
        self, asked: ChatRequest | CompletionRequest, prompt: EncodedChat, *, grammar: Grammar | None = None, tools: ToolForm | None = None
    ) -> Job:
        """Raises ApiError for a prompt that leaves no room, too large a max_tokens, and invalid values."""
        limit, max_context, num_prompt = asked.limit, self.engine.max_context, len(prompt.token_ids)
        if not num_prompt:
            raise wrong("the prompt has no tokens", param="prompt")
        if limit is None:
            limit = max(1, min(self.settings.default_max_tokens, self.settings.max_tokens, max_context - num_prompt))
        if limit > self.settings.max_tokens:
            raise wrong(f"max_tokens is {limit}; this server allows at most {self.settings.max_tokens}", param="max_tokens")
        if num_prompt + limit > max_context:
            raise too_long(num_prompt, limit, max_context)
        request = Request(
            prompt=prompt.token_ids,
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_new_tokens=limit,
            seed=secrets.randbits(SEED_BITS) if asked.seed is None else asked.seed,
            num_top=asked.num_top,
            frequency_penalty=asked.frequency_penalty,
            presence_penalty=asked.presence_penalty,
            logit_bias=asked.logit_bias,
            grammar=grammar,
            conversation=asked.conversation,
            vision=prompt.vision,
        )
        try:
            request.check(self.engine.vocabulary_size)
        except RequestRefused as error:
            raise refused(error) from error
        requests = [replace(request, seed=_signed(request.seed + index)) for index in range(asked.n)]
        return Job(requests=requests, stops=asked.stops, tools=tools)

    async def enter(self) -> Callable[[], None]:
        """Waits, first come first served, until one more answer may be under way; returns what ends that. Raises ApiError when too many
        wait, or when the server closes."""
        if self.is_closing:
            raise closing()
        if self.num_running >= self.settings.max_concurrency or self._waiting:
            await self._wait_in_line()
        else:
            self.num_running += 1
        return self._pass_on

    async def _wait_in_line(self) -> None:
        if self.num_waiting >= self.settings.max_waiting:
            raise busy(f"{self.num_waiting} requests are waiting", "--max-concurrency")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()  # the turn came in the moment that its request went away
            raise
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _pass_on(self) -> None:
        """A turn is over: the next request that waits takes it."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self.num_running -= 1

    def parts(self, job: Job) -> AsyncGenerator[tuple[int, Part], None]:
        """The answers as they are written, each part with the number of its answer. Raises ApiError when the engine fails or the server
        closes. Closing the generator ends the answers."""
        return merged([self._parts(job, request) for request in job.requests])

    async def _parts(self, job: Job, request: Request) -> AsyncGenerator[Part, None]:
        asked_s, num_written = time.monotonic(), 0
        keeps_special = job.tools is not None and job.tools.is_special
        eos, so_far = (
            self.engine.codec.eos_token_ids,
            TextSoFar(self.engine.decode_whole if keeps_special else self.engine.codec.decode, job.stops),
        )
        if self._has_given_up:  # between its turn and its beginning
            raise closing()
        try:
            stream, cancel = self.engine.start(request)
        except ModelError as error:
            raise of_engine(error) from error
        self._streams.add(stream)
        try:
            async for written in stream:
                if not num_written:
                    self.metrics.first_token_s.observe(time.monotonic() - asked_s)
                num_written += 1
                text, is_end = so_far.add(written.token_id), written.token_id in eos
                is_last = is_end or num_written == request.max_new_tokens
                if is_last:
                    text += so_far.finish()
                if is_last or so_far.is_stopped:
                    yield Part(text, written, "stop" if is_end or so_far.is_stopped else "length")
                    return
                yield Part(text, written)
            raise failed(ModelError("the engine ended an answer before its end"))
        except ModelError as error:
            raise of_engine(error) from error
        finally:
            cancel()
            self._streams.discard(stream)
            self.metrics.prompt_tokens.inc(len(request.prompt))
            self.metrics.tokens.inc(num_written)
            self.metrics.answer_s.observe(time.monotonic() - asked_s)
