"""The HTTP engine: a Policy on one or several OpenAI-compatible servers (vLLM, SGLang, llama.cpp, TGI, `transformers serve`, our own).

Here: prompts in, responses out, new weights handed over. Which of several servers is asked is models/http/replicas.py, one server
models/http/replica.py, connections and repeats models/http/client.py, the routes of each kind of server models/http/routes.py and kinds.py,
finding out what a server gives models/http/probe.py.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent.policy.policy import Prompt, Response
from models.checkpoints.checkpoint import read_card, write
from models.checkpoints.model_files import ADAPTER_CONFIG_FILE, SINGLE_FILE, companions
from models.families.chat import ChatCodec
from models.http.client import Refused, token_in
from models.http.config import Capabilities, HttpEngineConfig
from models.http.dialects import Answer, Ask
from models.http.replicas import Replicas, Weights
from models.http.servers import OwnServers
from sandbox.loop_thread import LoopThread
from warehouse.core.errors import ConfigError, EngineUnreachable, ModelError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
TOO_LONG_CODE = "context_length_exceeded"
TOO_LONG = re.compile(r"context (length|window|size)|maximum context|max_model_len|longer than the model|too many tokens", re.I)
NO_EXCHANGE = (
    "a learner sends weights to a server through a folder that both can read: set `exchange` to it, and create the engine with the "
    "checkpoint that learning started from"
)


class HttpEngine:
    """A Policy on a server. Its connections live in a thread of its own, so that it may be asked from any event loop; close it.

    A response has token ids and log-probabilities where the server gives them, and log-probabilities only where they are of the
    distribution that was sampled from: see `capabilities`; learning refuses a response without them. Versions are the server's
    where it returns them, else those of the weights that it had when the prompt was sent, which are never newer than the true ones.
    """

    is_continuous = True

    def __init__(
        self,
        config: HttpEngineConfig,
        *,
        folder: Path | None = None,
        codec: ChatCodec | None = None,
        wants: str | None = None,
        servers: OwnServers | None = None,
    ) -> None:
        """Queries the server's capabilities. `codec` encodes messages and decodes token ids; without one the server does. `folder` is the
        checkpoint whose configuration and tokenizer are sent with a learner's weights. With `wants`, an answer of other weights than that
        checkpoint, or than those loaded later, is an error; with None any weights will do. `servers` are of this engine alone,
        and end with it. Raises ConfigError for a missing token or model, EngineUnreachable, ModelError."""
        if config.send == "token_ids" and codec is None:
            raise ConfigError("`send: token_ids` needs a codec: create the engine with HttpEngine.of_checkpoint")
        self._config, self._codec, self._folder, self._servers = config, codec, folder, servers
        self._running = set[asyncio.Future[Response]]()
        self._adapter: Path | None = None
        self._loop, self._is_closed = LoopThread("http-engine"), False
        self._replicas = Replicas(config, own_model=f"policy-{secrets.token_hex(4)}", token=self.token)
        self._weights = Weights("")
        try:
            self._weights = self._loop.run(self._replicas.open(codec))
        except BaseException:
            self.close()
            raise
        self._asked_for = set[str]() if wants is None else {wants}
        """Weights that this engine wanted, now or before; empty: whatever the server has."""

    @classmethod
    def of_checkpoint(cls, config: HttpEngineConfig, folder: Path, *, servers: OwnServers | None = None) -> HttpEngine:
        """An engine whose server answers with a checkpoint, which it is made to load where it does not yet. Raises CheckpointError for a
        folder that is not whole, ModelError for a server that cannot load it."""
        from models.families.registry import load_codec

        checkpoint_id = read_card(folder).checkpoint_id
        engine = cls(config, folder=folder, codec=load_codec(folder), wants=checkpoint_id, servers=servers)
        try:
            if engine._replicas.policy_ids() != {checkpoint_id}:
                engine.load_checkpoint(folder, checkpoint_id)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def policy_id(self) -> str:
        return self._weights.policy_id

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return (self._config.base_url, *self._config.replicas)

    @property
    def token(self) -> str | None:
        """The servers' token. Raises ConfigError for a variable that is not set."""
        if self._servers is not None:
            return self._servers.token
        return None if self._config.token_env is None else token_in(self._config.token_env)

    @property
    def own_pids(self) -> list[int | None]:
        """Processes of the servers that were started for this engine."""
        return [] if self._servers is None else self._servers.pids

    @property
    def num_retries(self) -> int:
        """Retries so far."""
        return self._replicas.num_retries

    def capabilities(self) -> Capabilities:
        """The server's capabilities, as found when the engine was created; of several, what all of them give."""
        return self._replicas.gives

    def require_learnable(self, temperature: float = 1.0, top_p: float = 1.0) -> None:
        """Raises ModelError, which says what is missing, where answers sampled so cannot be learned from."""
        if (reason := self.capabilities().why_not_learnable(temperature, top_p)) is not None:
            raise ModelError(f"{self._config.base_url} cannot be used for RL: {reason}. docs/serving.md lists the servers that can")

    @property
    def takes_adapters(self) -> bool:
        """Whether the server loads adapters, and nothing else."""
        return self.capabilities().loads == "adapters"

    def require_updatable(self, *, adapters: bool = False) -> None:
        """Raises ModelError, which says what is missing, where the server could not load a learner's weights; `adapters`: the learner
        trains adapters only."""
        if self.capabilities().weights == "transfer":
            return
        if self._config.exchange is None or self._folder is None:
            raise ModelError(NO_EXCHANGE)
        if adapters and self.takes_adapters:
            return
        self._require_loading("a learner's weights", "checkpoints")
        exchange = Path(self._config.exchange).absolute()
        if closed := self._run(self._replicas.closed_to(exchange)):
            raise ModelError(
                f"{', '.join(closed)} may not load from {exchange}, where a learner writes its weights: start the server with "
                f"--weights-root {exchange}"
            )

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        """One response per prompt, in order; a prompt with no room left for an answer gets a Response without tokens."""
        answers, task = asyncio.wrap_future(self._submit(self._all(prompts))), asyncio.current_task()
        try:
            return await answers
        except asyncio.CancelledError:
            if self._is_closed and not (task and task.cancelling()):
                raise ModelError(f"the engine of {self.policy_id} was closed during a request") from None
            raise

    async def _all(self, prompts: Sequence[Prompt]) -> list[Response]:
        tasks = [asyncio.ensure_future(self._one(prompt)) for prompt in prompts]
        self._running.update(tasks)
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            self._running.difference_update(tasks)
            for task in tasks:  # where one fails, nobody waits for the others
                task.cancel()

    async def _one(self, prompt: Prompt) -> Response:
        ids = tuple(self._codec.encode(prompt.messages).token_ids) if self._codec and self._config.send == "token_ids" else None
        ask = Ask(
            model="",
            messages=prompt.messages,
            images=prompt.images,
            token_ids=ids,
            sampling=prompt.sampling,
            stop=self._config.stop,
            extras={},
            conversation=prompt.conversation,
        )
        await self._replicas.none_is_loading()
        weights = self._weights
        try:
            answer = await self._replicas.ask(ask, self._asked_for)
        except Refused as error:
            if error.code == TOO_LONG_CODE or (error.status in (400, 413, 422) and TOO_LONG.search(str(error))):
                return Response(text="", prompt_token_ids=ids or (), token_ids=(), logprobs=(), policy_id=weights.policy_id)
            raise
        except EngineUnreachable:
            self._check_servers()
            raise
        await self._replicas.none_is_loading()
        return self._response(answer, ids, prompt, weights)

    def _response(self, answer: Answer, sent_ids: tuple[int, ...] | None, prompt: Prompt, weights: Weights) -> Response:
        if answer.policy_id is not None and self._asked_for and answer.policy_id not in self._asked_for:
            raise ModelError(
                f"{self._config.base_url} answered with {answer.policy_id}, not with {self.policy_id}: another client has loaded it. Use "
                "one server per stage that runs at the same time, or run the stages one after the other (max_parallel: 1)"
            )
        token_ids, sampling = answer.token_ids or (), prompt.sampling
        is_of_sampling = self.capabilities().gives_logprobs(sampling.temperature, sampling.top_p)
        text = answer.text if self._codec is None or not token_ids else self._until_stop(self._codec.decode(token_ids))
        by_counting = () if weights.version is None else (weights.version,) * len(token_ids)
        return Response(
            text=text,
            prompt_token_ids=sent_ids or answer.prompt_token_ids or (),
            token_ids=token_ids,
            logprobs=(answer.logprobs or ()) if is_of_sampling and token_ids else (),
            policy_id=answer.policy_id or weights.policy_id,
            versions=answer.versions or by_counting,
        )

    def _until_stop(self, text: str) -> str:
        ends = [place for stop in self._config.stop if (place := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    def has_lost_weights(self) -> bool:
        """Asks whether a server has other weights than it was handed, as one does that was restarted."""
        return self._run(self._replicas.have_lost_them())

    def load_checkpoint(self, folder: Path, checkpoint_id: str, version: int | None = None) -> None:
        """Answer with the weights in a folder that the server sees under the same path; returns when it does. Raises ModelError where
        the server cannot."""
        if (folder / ADAPTER_CONFIG_FILE).is_file():
            self._require_loading(f"an adapter, {checkpoint_id}", "adapters")
        else:
            self._require_loading(f"a whole checkpoint, {checkpoint_id} in {folder.absolute()}", "checkpoints")
        self._load(folder, checkpoint_id, version)

    def _require_loading(self, what: str, kind: str) -> None:
        gives = self.capabilities()
        if gives.loads != kind:
            raise ModelError(
                f"{self._config.base_url} ({gives.server}) answers with {self.policy_id} and cannot load {what}: it loads "
                f"{gives.loads}. Start it on the checkpoint you want, or use a server that loads checkpoints (flywheel policy serve, "
                "SGLang, vLLM in its development mode: docs/serving.md)"
            )

    def _load(self, source: Path | Mapping[str, torch.Tensor], checkpoint_id: str, version: int | None) -> None:
        self._asked_for = (self._asked_for or {self.policy_id}) | {checkpoint_id}
        weights = Weights(checkpoint_id, version if version is not None else self._weights.version, is_named=True)

        def loaded() -> None:
            self._weights = weights

        try:
            self._run(self._replicas.load(source, weights, loaded))
        except EngineUnreachable:
            self._check_servers()
            raise

    def _check_servers(self) -> None:
        """Raises EngineUnreachable, which says so, where a server of this engine's own has ended."""
        if self._servers is not None:
            self._servers.check()

    def load_weights(self, state: Mapping[str, torch.Tensor], checkpoint_id: str, version: int = 0) -> None:
        """Answer with a learner's weights: they are written to the `exchange` folder, beside the configuration and tokenizer of the
        checkpoint that the engine was opened with, and the server loads them; or they are sent to it. Raises ModelError where it cannot."""
        if self.capabilities().weights == "transfer":
            self._load(_untied(state), checkpoint_id, version)
            return
        if self._config.exchange is None or self._folder is None:
            raise ModelError(NO_EXCHANGE)
        base = self._folder

        def fill(aside: Path) -> None:
            from safetensors.torch import save_file

            for file in companions(base, code=True):
                shutil.copyfile(file, aside / file.name)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _untied(state).items()}
            save_file(tensors, aside / SINGLE_FILE, metadata={"format": "pt"})

        handed_over = Path(self._config.exchange).absolute() / checkpoint_id
        write(handed_over, fill, stage="exchange", iteration=read_card(base).iteration, parents=(read_card(base).checkpoint_id,))
        try:
            self.load_checkpoint(handed_over, checkpoint_id, version)
        finally:
            shutil.rmtree(handed_over, ignore_errors=True)

    def load_adapter(self, save: Callable[[Path], None], checkpoint_id: str, version: int = 0) -> None:
        """Answer with a learner's adapter on the weights that the server was started on: `save` writes it, as peft reads it, and the server
        loads it from the `exchange` folder. There it stays until the next one is loaded, for a server may read it again. Raises
        ModelError where it cannot."""
        if self._config.exchange is None:
            raise ModelError(NO_EXCHANGE)
        folder = Path(self._config.exchange).absolute() / checkpoint_id
        shutil.rmtree(folder, ignore_errors=True)
        save(folder)
        try:
            self.load_checkpoint(folder, checkpoint_id, version)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._drop_adapter()
        self._adapter = folder

    def _drop_adapter(self) -> None:
        if self._adapter is not None:
            shutil.rmtree(self._adapter, ignore_errors=True)

    def close(self) -> None:
        """Unload what the server added for this engine, and end the connections, the thread, and the servers that are the engine's own;
        answers under way end in ModelError. May be called twice."""
        self._is_closed = True
        if not self._loop.is_closed:
            self._loop.run(self._end())
            self._loop.close()
        self._drop_adapter()
        if self._servers is not None:
            self._servers.close()

    async def _end(self) -> None:
        """Answers first: one whose connection is closed under it would be requested again."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._replicas.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_closed:
            work.close()
            raise ModelError(f"the engine of {self.policy_id} is closed: create another HttpEngine")
        return self._loop.submit(work)


def _untied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tied weights once, by their first name."""
    names = {state[name].data_ptr(): name for name in reversed(list(state))}
    return {name: state[name] for name in reversed(list(names.values()))}
