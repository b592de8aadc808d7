"""One policy server: gets answers from it, has it load weights. Which of several is asked is models/http/engine.py's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoints.model_files import CONFIG_FILE
from models.families.chat import ChatCodec
from models.http.client import HttpClient, Refused
from models.http.config import Capabilities, HttpEngineConfig
from models.http.dialects import Answer, Ask, Loading, Request
from models.http.kinds import KINDS, MODELS, SERVER_INFO
from models.http.probe import Probed, is_unnamed, may_load_from, probe
from warehouse.core.errors import ModelError

if TYPE_CHECKING:
    import torch

    from models.http.transfer import WeightSender


RELEASE_RETRIES = 2
"""Where weights could not be loaded, perhaps because the server is gone."""


class Replica:
    """Lives in the loop of its engine. `open` it before anything else; `down_s` is the time at which it stopped answering, `why_down` how.
    Who loads weights holds `loading_lock`."""

    def __init__(self, config: HttpEngineConfig, own_model: str, token: str | None = None) -> None:
        """`own_model` is the name under which the server adds an adapter that it loads, where it does."""
        self.config, self.client, self._own_model = config, HttpClient(config, token), own_model
        self.num_running = 0
        self.down_s: float | None = None
        self.why_down = ""
        self.loading_lock = asyncio.Lock()
        self._probed: Probed | None = None
        self._sender: WeightSender | None = None
        self._has_own_model = self._is_held = False
        self._num_lost = self._num_lost_before = 0
        """The client's, when the server was last asked whose weights it has, and when it last was opened or handed some."""

    @property
    def gives(self) -> Capabilities:
        return self.found.gives

    @property
    def loading(self) -> Loading | None:
        """The way by which it takes weights."""
        return None if self.gives.weights is None else KINDS[self.gives.server].ways[self.gives.weights]

    @property
    def found(self) -> Probed:
        if self._probed is None:
            raise ModelError(f"{self.config.base_url} was not asked yet what it gives")
        return self._probed

    @property
    def has_lost_connections(self) -> bool:
        """Since it was opened or handed weights: it may have been restarted."""
        return self.client.num_lost != self._num_lost_before

    async def open(self, codec: ChatCodec | None) -> None:
        self._leave_group_if_lost()
        self._probed = await probe(self.client, self.config, codec)
        self._num_lost_before = self.client.num_lost

    async def ask(self, ask: Ask, *, waits_for_lost: bool = True, has_named_weights: bool = False) -> Answer:
        """`waits_for_lost`: try again where it does not answer at all. `has_named_weights`: it was handed weights, so that after a lost
        connection it is asked whether it still has them, where answers do not say. What a server says of its weights is about those
        beneath an adapter, where it has ours."""
        found = self.found
        model = self._own_model if self._has_own_model else found.gives.model
        body = found.dialect.body(replace(ask, model=model, extras=found.extras))
        self.num_running += 1
        try:
            data = await self.client.post(found.dialect.path, body, found.dialect.is_broken_off, waits_for_lost=waits_for_lost)
        finally:
            self.num_running -= 1
        answer = found.dialect.read(data)
        if self._has_own_model:
            return replace(answer, versions=(), policy_id=None, is_unnamed=False)
        num_lost = self.client.num_lost
        if has_named_weights and num_lost != self._num_lost and not found.gives.versions and self.loading is not None:
            if await is_unnamed(self.client, self.loading):
                return replace(answer, is_unnamed=True)
            self._num_lost = num_lost
        return answer

    async def check_alive(self) -> None:
        await self.client.check_alive(MODELS)

    async def may_load_from(self, folder: Path) -> bool:
        return await may_load_from(self.client, self.gives, folder)

    async def load(self, source: Path | Mapping[str, torch.Tensor], checkpoint_id: str, version: int) -> None:
        """Answer with other weights; returns when it does. Raises ModelError where it cannot."""
        loading = self.loading
        if loading is None:
            raise ModelError(f"{self.config.base_url} loads nothing")
        if loading.is_sent:
            self._leave_group_if_lost()
            await self._opened_sender().open()
        if loading.keeps_tied_head_on_cpu and isinstance(source, Path):
            await self._refuse_tied_head(source)
        holds = loading.holds_when_finished if self.config.under_way == "finish" else loading.holds
        if holds is not None:
            self._is_held = True  # also where the answer to this request is lost
        try:
            if holds is not None:
                await self.client.command(holds, {}, retries=0)
            await self._change(loading, source, checkpoint_id, version)
        except BaseException:
            with suppress(ModelError):
                await self.release(retries=RELEASE_RETRIES)
            raise
        await self.release()
        self._has_own_model, self._num_lost_before = loading.adds_model, self.client.num_lost

    async def release(self, *, retries: int | None = None) -> None:
        """Have it generate again, where it was stopped for loading and did not confirm that it goes on."""
        if self._is_held and self.loading is not None and self.loading.releases is not None:
            await self.client.command(self.loading.releases, {}, retries=retries)
        self._is_held = False

    async def _change(self, loading: Loading, source: Path | Mapping[str, torch.Tensor], checkpoint_id: str, version: int) -> None:
        try:
            await self._tell(loading.before)
            await self._hand_over(loading, source, checkpoint_id, version)
            await self._tell(loading.after(checkpoint_id, version))
        except ModelError:
            with suppress(ModelError):
                await self._tell(loading.if_lost)
            raise

    async def _hand_over(self, loading: Loading, source: Path | Mapping[str, torch.Tensor], checkpoint_id: str, version: int) -> None:
        if loading.is_sent:
            await self._opened_sender().send(loading.path, _tensors(source))
            return
        if not isinstance(source, Path):
            raise ModelError(f"{self.config.base_url} loads from folders")
        body = loading.body(str(source.absolute()), checkpoint_id, version, self._own_model)
        if loading.confirmed_by is None:
            await self.client.command(loading.path, body, retries=None if loading.holds is None else 0)
        elif not (done := await self.client.post(loading.path, body)).get(loading.confirmed_by):
            raise ModelError(f"{self.config.base_url} did not load the weights of {checkpoint_id}: {done.get('message')}")

    async def _refuse_tied_head(self, folder: Path) -> None:
        """vLLM 0.32.0 computes the output layer of a CPU with a copy that it packed at its start, and packs it again only where the file
        has weights of its own for it."""
        described = json.loads((folder / CONFIG_FILE).read_bytes())
        is_tied = described.get("tie_word_embeddings") or (described.get("text_config") or {}).get("tie_word_embeddings")
        with suppress(Refused):
            if is_tied and "device_config=cpu" in str((await self.client.get(SERVER_INFO)).get("vllm_config")):
                raise ModelError(
                    f"{self.config.base_url} would answer with the output layer that it was started with: vLLM on a CPU does not reload "
                    f"one that is the embedding, as {folder / CONFIG_FILE} says by tie_word_embeddings. Use `weights: transfer` "
                    "(docs/serving.md), start it again on the checkpoint, or untie the two"
                )

    async def _tell(self, requests: Sequence[Request]) -> None:
        for path, body in requests:
            await self.client.command(path, body, retries=0)

    def _leave_group_if_lost(self) -> None:
        """A server that was restarted is in no group: another is made before weights are sent."""
        if self._sender is not None and self.has_lost_connections:
            self._sender.close()

    def _opened_sender(self) -> WeightSender:
        if self._sender is None:
            from models.http.transfer import WeightSender

            self._sender = WeightSender(self.client, self.config.base_url, timeout_s=self.config.timeout_s)
        return self._sender

    async def close(self) -> None:
        """Have the server forget what it added for this engine. One that is gone, or does not know it any more, needs nothing."""
        loading = None if self._probed is None else self.loading
        if self._has_own_model and loading is not None and loading.unload_path is not None:
            with suppress(ModelError):
                await self.client.command(loading.unload_path, loading.unload_body(self._own_model), retries=0)
        if self._sender is not None:
            self._sender.close()
        await self.client.close()


def _tensors(source: Path | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Of a checkpoint's folder, its weights."""
    if not isinstance(source, Path):
        return source
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(source.glob("*.safetensors")) for name, tensor in load_file(file).items()}
