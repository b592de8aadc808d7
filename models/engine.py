"""The embedded engine: a Policy in this process, answering prompts with the quickstart model in batches. The decoding loop itself is
models/decoder.py; gathering single prompts into batches is agent/batcher.py.

All generation and every change of weights run in one worker thread, in the order they were asked for, so the event loop stays free and a
batch is answered by one set of weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent.policy import Prompt, Response
from models.checkpoint import load_model, load_tokenizer, read_card
from models.decoder import Continuation, Decoder, Request
from models.shift_qwen3 import ShiftQwen3ForCausalLM
from models.tokenizer import decode, encode_chat
from warehouse.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MICRO_BATCH_ROWS = 64


class EmbeddedEngine:
    """A Policy on a ShiftQwen3 model. It answers from a copy of the weights: training the model changes nothing until `load_weights`."""

    def __init__(self, model: ShiftQwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, checkpoint_id: str) -> None:
        self._model = ShiftQwen3ForCausalLM(model.config)
        self._tokenizer = tokenizer
        self._is_closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine", initializer=torch.set_num_threads, initargs=(1,))
        self.load_weights(model.state_dict(), checkpoint_id)

    @classmethod
    def from_checkpoint(cls, folder: Path) -> EmbeddedEngine:
        """Open a checkpoint folder. Raises CheckpointError when it is not whole, ModelError when it is another kind of model."""
        model = load_model(folder)
        if not isinstance(model, ShiftQwen3ForCausalLM):
            raise ModelError(f"{folder} holds a {type(model).__name__}; the embedded engine runs ShiftQwen3ForCausalLM: serve it by HTTP")
        return cls(model, load_tokenizer(folder), read_card(folder).checkpoint_id)

    @property
    def policy_id(self) -> str:
        return self._policy_id

    def load_weights(self, state: Mapping[str, torch.Tensor], checkpoint_id: str, version: int = 0) -> None:
        """Answer with other weights from the next batch on; waits for the batch under way. `version` counts the updates they have seen.
        Raises ModelError when they do not fit."""

        def swap() -> None:
            try:
                self._model.load_state_dict(state)
            except RuntimeError as error:
                raise ModelError(f"weights of {checkpoint_id} do not fit the engine's model: {error}") from error
            self._decoder = Decoder(self._model)
            self._policy_id = checkpoint_id
            self._version = version

        self._worker.submit(swap).result()

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        """One response per prompt, in order; a prompt with no room left for an answer gets a Response without tokens."""
        if self._is_closed:
            raise ModelError(f"the engine of {self._policy_id} is closed: open another with EmbeddedEngine.from_checkpoint")
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.answer, list(prompts))

    def answer(self, prompts: Sequence[Prompt]) -> list[Response]:
        """What `act` does, in the calling thread."""
        encoded = [encode_chat(self._tokenizer, prompt.messages)[0] for prompt in prompts]
        requests = [
            Request(prompt=ids, temperature=asked.temperature, max_new_tokens=asked.max_new_tokens, seed=asked.seed)
            for ids, asked in zip(encoded, (prompt.sampling for prompt in prompts), strict=True)
        ]
        fitting = sorted(
            (row for row, request in enumerate(requests) if len(request.prompt) + request.max_new_tokens <= self._decoder.max_positions),
            key=lambda row: len(requests[row].prompt),
        )
        continuations: dict[int, Continuation] = {}
        for first in range(0, len(fitting), MICRO_BATCH_ROWS):
            rows = fitting[first : first + MICRO_BATCH_ROWS]
            continuations.update(zip(rows, self._decoder.generate([requests[row] for row in rows]), strict=True))
        return [self._response(ids, continuations.get(row)) for row, ids in enumerate(encoded)]

    def _response(self, prompt_token_ids: list[int], continuation: Continuation | None) -> Response:
        token_ids, logprobs = (continuation.token_ids, continuation.logprobs) if continuation else ([], [])
        return Response(
            text=decode(self._tokenizer, token_ids), prompt_token_ids=tuple(prompt_token_ids), token_ids=tuple(token_ids),
            logprobs=tuple(logprobs), policy_id=self._policy_id, versions=(self._version,) * len(token_ids),
        )

    def close(self) -> None:
        """End the worker thread; may be called twice."""
        self._is_closed = True
        self._worker.shutdown(wait=True)
