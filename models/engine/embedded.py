"""The embedded engine: a Policy in this process. Messages to tokens and back, threads, futures and weight versions; which rows are read
and written when is models/engine/scheduler.py, the tensor work the backends' beside it.

All tensor work and every change of weights run in one worker thread, so the event loop stays free. Any number of `act` calls share one
running batch: a request joins at the next step and is answered as soon as its own answer is written.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agent.policy.policy import Prompt, Response
from models.checkpoints.checkpoint import read_card
from models.engine.backend import Backend
from models.engine.decoder_backend import DecoderBackend, runs_fast
from models.engine.hf_backend import HuggingFaceBackend
from models.engine.rows import Request, Row, Top
from models.engine.scheduler import Counts, Scheduler
from models.engine.settings import EngineSettings
from models.engine.values import response_values
from models.families.chat import ChatCodec
from models.families.registry import load_codec, load_policy
from models.families.tokenizer import WordCodec
from warehouse.core.errors import ModelError

if TYPE_CHECKING:
    from models.rl.value.critic import Critic

OnToken = Callable[[int, float, int, str, Top], None]
"""A token's id, its log-probability, the version of the weights that wrote it, the policy id of those behind the first token, and the
likeliest tokens in its place, where the request asks for them."""


@dataclass(slots=True)
class _Watcher:
    """The callback for a row's tokens, and how many were reported to it."""

    on_token: OnToken
    num_reported: int = 0

    def report(self, row: Row) -> None:
        for index in range(self.num_reported, len(row.logprobs)):
            token_id = row.tokens[len(row.request.prompt) + index]
            top = row.tops[index] if row.tops else ()
            self.on_token(token_id, row.logprobs[index], row.versions[index], row.policy_id, top)
        self.num_reported = len(row.logprobs)


class EmbeddedEngine:
    """A Policy on a model of its own. It answers from a copy of the weights: training the model changes nothing until `load_weights`.

    A response's `versions` are those given to `load_weights` (at first `version`): where weights change in the middle of an answer its
    tokens differ.
    """

    is_continuous = True

    def __init__(
        self,
        model: PreTrainedModel,
        codec: ChatCodec | PreTrainedTokenizerFast,
        checkpoint_id: str,
        *,
        version: int = 0,
        settings: EngineSettings | None = None,
        critic: Critic | None = None,
        dtype: str | None = None,
        device: str | None = None,
        gives_away: bool = False,
    ) -> None:
        """`dtype` and `device` are of the copy; none: the model's own. `gives_away`: nobody else has the model, and no copy is made.
        `critic` is for callers who want values with their tokens: a copy of it estimates, at each, what the episode will still earn
        (`Response.values`). Training does not need it: it estimates values again with its current critic. Raises ModelError for a model
        that no backend can run."""
        own = (model if gives_away else copy.deepcopy(model)).eval()
        if device is not None:
            own = cast("PreTrainedModel", cast("torch.nn.Module", own).to(device))
        if dtype is not None:  # buffers such as the frequencies of rotary positions stay in float32, as from_pretrained leaves them
            for weight in own.parameters():
                weight.data = weight.data.to(getattr(torch, dtype))
        self._codec: ChatCodec = WordCodec(codec) if isinstance(codec, PreTrainedTokenizerFast) else codec
        self._critic = copy.deepcopy(critic).eval() if critic is not None else None
        settings, eos = settings or EngineSettings(), frozenset(self._codec.eos_token_ids)
        backend: Backend
        if settings.quantisation is None and runs_fast(own):
            backend = DecoderBackend(own, eos)
        else:
            backend = HuggingFaceBackend(own, eos, settings.quantisation)
        self._scheduler = Scheduler(backend, settings, policy_id=checkpoint_id, version=version)
        self._answers: dict[Row, Future[Response]] = {}
        self._watchers: dict[Row, _Watcher] = {}
        self._lock = threading.Lock()
        self._inbox: list[Callable[[], None]] = []
        self._is_working = self._is_closed = False
        self._worker = ThreadPoolExecutor(1, "engine", initializer=torch.set_num_threads, initargs=(settings.num_threads,))

    @classmethod
    def from_checkpoint(
        cls,
        folder: Path,
        *,
        dtype: str = "float32",
        device: str | torch.device | None = None,
        settings: EngineSettings | None = None,
        version: int = 0,
    ) -> EmbeddedEngine:
        """Open a checkpoint folder. Raises CheckpointError when it is not whole, ModelError when no backend can run the model."""
        model = load_policy(folder, dtype=dtype, device=device)
        return cls(model, load_codec(folder), read_card(folder).checkpoint_id, version=version, settings=settings, gives_away=True)

    @property
    def policy_id(self) -> str:
        return self._scheduler.policy_id

    @property
    def version(self) -> int:
        """Updates that the weights which answer now had seen."""
        return self._scheduler.version

    @property
    def codec(self) -> ChatCodec:
        return self._codec

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together."""
        return self._scheduler.max_context

    @property
    def vocabulary_size(self) -> int:
        """Token ids that a prompt may hold are below it."""
        return self._scheduler.backend.vocabulary_size

    @property
    def counts(self) -> Counts:
        """What was done so far: steps, tokens written, read and reused."""
        return self._scheduler.counts

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        """One response per prompt, in order; a prompt with no room left for an answer gets a Response without tokens. Who is cancelled
        takes its prompts back. Raises ModelError for a closed engine, a broken model and a prompt that cannot be encoded."""
        answers: list[Future[Response]] = [Future() for _ in prompts]
        self._begin({answer: partial(self._take, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)})
        try:
            return list(await asyncio.gather(*map(asyncio.wrap_future, answers)))
        finally:
            for answer in answers:
                answer.cancel()

    def start(self, request: Request, on_token: OnToken) -> Future[Response]:
        """Begin to answer tokens, for callers that want each as it is written: `on_token` is called in the worker's thread, and must
        neither block nor raise. Cancelling the future takes the request back; one with no room for an answer gets a Response without
        tokens. Raises ModelError for a closed engine."""
        answer: Future[Response] = Future()
        self._begin({answer: partial(self._add, request, answer, on_token)})
        return answer

    def load_weights(self, state: Mapping[str, torch.Tensor], checkpoint_id: str, version: int = 0) -> None:
        """Go on with other weights, from any thread: between two tokens, also of answers under way, or when these have ended
        (EngineSettings.running_rows). Returns when they are in. Raises ModelError, and changes nothing, when they do not fit."""
        done: Future[None] = Future()

        def swap() -> None:
            _settle(done, lambda: self._scheduler.swap(state, policy_id=checkpoint_id, version=version))

        self._post(lambda: self._scheduler.swap_after(swap))
        done.result()

    def close(self) -> None:
        """End the worker thread; answers under way end in ModelError. May be called twice."""
        with self._lock:
            self._is_closed = True
        self._worker.shutdown(wait=True)

    def _begin(self, takes: Mapping[Future[Response], Callable[[], None]]) -> None:
        """Have the worker take requests, all before its next step. What one raises, as a codec may, belongs to its own answer alone."""

        def take_all() -> None:
            for answer, take in takes.items():
                with _failing(answer):
                    take()

        if takes:
            self._post(take_all)
        for answer in takes:
            answer.add_done_callback(self._take_back)

    def _take_back(self, answer: Future[Response]) -> None:
        if answer.cancelled():
            with suppress(ModelError):  # closed meanwhile: there is nothing left to take back
                self._post(self._withdraw)

    def _post(self, message: Callable[[], None]) -> None:
        """Have the worker do something between two steps; it works as long as there is anything to do."""
        with self._lock:
            if self._is_closed:
                raise ModelError(f"the engine of {self.policy_id} is closed: create another with EmbeddedEngine.from_checkpoint")
            self._inbox.append(message)
            if not self._is_working:
                self._is_working = True
                self._worker.submit(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                messages, self._inbox = self._inbox, []
                is_closed = self._is_closed
                if not messages and not self._answers:
                    self._is_working = False
                    return
            for message in messages:
                self._guarded(message)
            if is_closed:
                self._fail(ModelError(f"the engine of {self.policy_id} was closed during a request"))
            elif self._answers:
                self._guarded(self._step)
            self._scheduler.end_swap()

    def _guarded(self, do: Callable[[], None]) -> None:
        """Whatever a tensor library raises: those who are being answered hear of it; what is still in the inbox starts afresh."""
        try:
            do()
        except Exception as error:
            self._fail(error)

    def _take(self, prompt: Prompt, answer: Future[Response]) -> None:
        """Make a row of a prompt, or answer it at once where its answer has no room."""
        if answer.cancelled():
            return
        encoded, asked = self._codec.encode(prompt.messages, prompt.images), prompt.sampling
        request = Request(
            prompt=tuple(encoded.token_ids),
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_new_tokens=asked.max_new_tokens,
            seed=asked.seed,
            conversation=prompt.conversation,
            vision=encoded.vision,
        )
        self._add(request, answer)

    def _add(self, request: Request, answer: Future[Response], on_token: OnToken | None = None) -> None:
        request.check(self._scheduler.backend.vocabulary_size)
        if not self._scheduler.fits(request):
            _settle(answer, partial(self._response, request, Row.of(request), ()))
            return
        row = self._scheduler.backend.open(request)
        self._answers[row] = answer
        if on_token is not None:
            self._watchers[row] = _Watcher(on_token)
        self._scheduler.add(row)

    def _withdraw(self) -> None:
        for row in [row for row, answer in self._answers.items() if answer.cancelled()]:
            del self._answers[row]
            self._watchers.pop(row, None)
            self._scheduler.cancel(row)

    def _step(self) -> None:
        done = []
        for row in self._scheduler.step():
            if row.error is None:
                done.append(row)
            else:
                self._fail_row(row, row.error)
        for row, watcher in self._watchers.items():
            watcher.report(row)
        values = response_values(self._critic, done, self._codec.pad_token_id) if self._critic is not None else [()] * len(done)
        for row, row_values in zip(done, values, strict=True):
            answer = self._answers.pop(row)
            self._watchers.pop(row, None)
            _settle(answer, partial(self._response, row.request, row, row_values))

    def _fail_row(self, row: Row, error: Exception) -> None:
        self._watchers.pop(row, None)
        with suppress(InvalidStateError):
            self._answers.pop(row).set_exception(self._as_model_error(error))

    def _fail(self, error: Exception) -> None:
        """Everyone who waits gets the error; the scheduler forgets what it knew."""
        error = self._as_model_error(error)
        self._scheduler.reset()
        self._watchers.clear()
        answers, self._answers = list(self._answers.values()), {}
        for answer in answers:
            with suppress(InvalidStateError):
                answer.set_exception(error)

    def _as_model_error(self, error: Exception) -> ModelError:
        """The error that callers get: a ModelError."""
        if isinstance(error, ModelError):
            return error
        failure = ModelError(f"the engine of {self.policy_id} failed during generation: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure

    def _response(self, request: Request, row: Row, values: Sequence[float]) -> Response:
        return Response(
            text=self._codec.decode(row.answer),
            prompt_token_ids=tuple(request.prompt),
            token_ids=tuple(row.answer),
            logprobs=tuple(row.logprobs),
            policy_id=row.policy_id or self.policy_id,
            versions=tuple(row.versions),
            values=tuple(values),
        )


def _settle(future: Future[Any], make: Callable[[], Any]) -> None:
    """Give a future what `make` returns or raises; one that was cancelled meanwhile stays so."""
    with _failing(future):
        result = make()
        with suppress(InvalidStateError):
            future.set_result(result)


@contextmanager
def _failing(future: Future[Any]) -> Iterator[None]:
    """What is raised within becomes the future's error; one that was cancelled meanwhile stays so."""
    try:
        yield
    except Exception as error:
        with suppress(InvalidStateError):
            future.set_exception(error)
