"""vLLM's half of models/http/transfer.py: a transport for weights that needs no GPU. It runs inside vLLM, not here, and imports nothing of
this project:

    vllm serve … --worker-extension-cls models.http.vllm_gloo.Gloo --weight-transfer-config '{"backend": "gloo"}'

with this source on its PYTHONPATH. Written after vLLM 0.32.0's own transports (vllm/distributed/weight_transfer/nccl_engine.py), whose base
class and factory are open to others.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

torch_distributed: Any = torch.distributed  # whose stubs export neither stores nor gloo
BACKEND = "gloo"
TIMEOUT = timedelta(minutes=5)


@dataclass
class InitInfo(WeightTransferInitInfo):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls, update_info_cls = InitInfo, UpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group: Any = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the learner's group; another learner's takes the place of an earlier one's."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        store = torch_distributed.TCPStore(
            init_info.master_address, init_info.master_port, init_info.world_size, is_master=False, timeout=TIMEOUT
        )
        gloo = torch_distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=_address_towards(init_info.master_address, init_info.master_port))]
        options._timeout = TIMEOUT
        self._group = gloo(torch_distributed.PrefixStore("weights", store), rank, init_info.world_size, options)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("no learner has opened a group: post to /init_weight_transfer_engine first")
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            received = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(received, root=0).wait()
            self.model.load_weights([(name, received.to(self.device))])

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._repack_tied_head()

    def _repack_tied_head(self) -> None:
        """On a CPU an output layer that is tied to the embedding computes with a packed copy, which reloading the embedding leaves as it
        was."""
        head = getattr(self.model, "lm_head", None)
        if self.device.type == "cpu" and head is not None and getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        self._group = None


def _address_towards(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))
        return str(asking.getsockname()[0])


class Gloo:
    """Names this module to vLLM: importing it in a worker is all that is wanted."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)
