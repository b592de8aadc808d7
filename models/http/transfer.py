"""Weights over the network: a learner's tensors are broadcast to all workers of one server, by gloo, without a folder that both see.

The requests are vLLM's for reinforcement learning (vllm/entrypoints/rl): the group is made once, then every hand-over is start, update,
finish. Of the transports that vLLM 0.32.0 has itself, NCCL and CUDA IPC need GPUs on both sides. Gloo is ours, runs anywhere, and is the
worker's half of this file: models/http/vllm_gloo.py, which a server is started with.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from models.http.client import HttpClient
from warehouse.core.errors import ModelError

if TYPE_CHECKING:
    import torch

INIT, WORLD_SIZE = "/init_weight_transfer_engine", "/get_world_size"
REFUSED_S = 1.0
"""A server that was not started for this says so at once; one that was waits for us to join."""
T = TypeVar("T")


class WeightSender:
    """Rank 0 of a group whose other members are the workers of one server."""

    def __init__(self, client: HttpClient, base_url: str, *, timeout_s: float) -> None:
        self._client, self._url, self._timeout = client, base_url, timedelta(seconds=timeout_s)
        self._group: Any = None
        self._store: Any = None

    async def open(self) -> None:
        """Have the workers join; once. Raises ModelError where the server was not started for it."""
        if self._group is not None:
            return
        import torch.distributed

        torch_distributed: Any = torch.distributed  # whose stubs export neither stores nor gloo
        address = await asyncio.to_thread(_own_address, self._url)
        world_size = 1 + int((await self._client.get(WORLD_SIZE))["world_size"])
        self._store = torch_distributed.TCPStore(address, 0, world_size, is_master=True, timeout=self._timeout, wait_for_workers=False)
        where = {"master_address": address, "master_port": self._store.port, "rank_offset": 1, "world_size": world_size}
        asking = asyncio.ensure_future(self._client.command(INIT, {"init_info": where}, retries=0))
        await asyncio.wait({asking}, timeout=REFUSED_S)
        joining = _aside(_join, self._store, world_size, address, self._timeout) if not asking.done() else None
        try:
            await asking
        except ModelError as error:
            self.close()
            raise ModelError(
                f"{self._url} takes no weights over the network: {error}. Start vLLM with --weight-transfer-config "
                '\'{"backend": "gloo"}\' --worker-extension-cls models.http.vllm_gloo.Gloo (docs/serving.md)'
            ) from error
        if joining is None:
            raise ModelError(f"{self._url} says that its workers joined before anybody was there to join")
        self._group = await joining

    async def send(self, path: str, state: Mapping[str, torch.Tensor]) -> None:
        """Broadcast all tensors, by their names in a checkpoint; returns when every worker has loaded them."""
        described = {
            "names": list(state),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in state.values()],
            "shapes": [list(tensor.shape) for tensor in state.values()],
        }
        sending = _aside(self._broadcast, list(state.values()))
        try:
            await self._client.command(path, {"update_info": described}, retries=0)
        except ModelError:
            self.close()  # a group with a lost member is of no further use
            raise
        await sending

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.detach().cpu().contiguous(), root=0).wait()

    def close(self) -> None:
        self._group = self._store = None


def _aside(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """The result of what may wait for a peer that is gone, in a thread that keeps no process alive."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not found.done():
            set_it(value)

    def run() -> None:
        settled: tuple[Callable[[Any], None], Any]
        try:
            settled = (found.set_result, work(*arguments))
        except Exception as error:  # passed to the waiting callers
            settled = (found.set_exception, ModelError(f"weights could not be sent: {error}"))
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return found


def _join(store: Any, world_size: int, address: str, timeout: timedelta) -> Any:
    """Rank 0 of a group of its own, beside those that torch.distributed may already have."""
    import torch.distributed

    torch_distributed: Any = torch.distributed
    gloo = torch_distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(hostname=address)], timeout
    return gloo(torch_distributed.PrefixStore("weights", store), 0, world_size, options)


def _own_address(url: str) -> str:
    """The address of this host that the server's host reaches."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return str(asking.getsockname()[0])
