"""What every use of DeepSpeed needs, supervised or RL: how it is set up before it is imported, how long it waits for a process, and weights
whose pieces lie in several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def prepare_deepspeed(device: torch.device | None = None) -> None:
    """Settle before DeepSpeed looks: which accelerator there is, and that its shared-memory collectives are not compiled, which takes
    minutes; gloo does without. Where no launcher has said so, `device` says which GPU is this process's."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if device is not None:
        os.environ["LOCAL_RANK"] = str(device.index or 0)  # it reads no more than this
    import deepspeed.ops

    compatible: dict[str, Any] = deepspeed.ops.__compatible_ops__
    compatible["deepspeed_shm_comm"] = False


def use_timeout(timeout: timedelta) -> None:
    """Have the group of all processes, and the one that DeepSpeed makes for itself, wait so long for a process. torch gives every new group
    half an hour, and transformers leaves out its `ddp_timeout` on a CPU."""
    import torch.distributed.distributed_c10d as c10d

    c10d._set_pg_timeout(timeout, c10d._get_default_group())
    if _uses_deepspeed():
        from deepspeed.utils import groups

        c10d._set_pg_timeout(timeout, groups._clone_world_group())


def leave_group() -> None:
    """End this process's membership in the group, and what DeepSpeed remembers of it."""
    import torch.distributed as dist

    if _uses_deepspeed():
        sys.modules["deepspeed.comm"].destroy_process_group()
        os.environ.pop("LOCAL_RANK", None)  # to accelerate it would say that this process has others beside it
        _number_from_zero()
    else:
        dist.destroy_process_group()


def _uses_deepspeed() -> bool:
    return "deepspeed.comm" in sys.modules and bool(sys.modules["deepspeed.comm"].is_initialized())


def _number_from_zero() -> None:
    """DeepSpeed numbers modules and parameters through the life of a process, and checks at stage 3 that all processes have the same."""
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init

    counted: Any = DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__
    counted[0][0] = Init.param_id = 0


def share_out_weights(module: nn.Module, settings: Mapping[str, Any], device: torch.device) -> None:
    """Give each process its piece of every parameter (ZeRO-3), with the first process's values, one parameter after the other. In the
    others they may be without values, on torch's `meta` device: then none of these has more than one of them whole, on `device`. All
    processes call this at once, after `prepare_deepspeed`."""
    import torch
    from deepspeed import zero

    class OneByOne(torch.nn.Module):
        def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
            for parameter in module.parameters(recurse):
                if parameter.is_meta:
                    found = torch.nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=parameter.requires_grad)
                    torch.utils.swap_tensors(parameter, found)
                yield parameter

    zero.Init(module=OneByOne(), config_dict_or_path=dict(settings), dtype=torch.float32)
    for buffer in module.buffers():
        torch.distributed.broadcast(buffer, 0)


def is_shared_out(parameter: Tensor) -> bool:
    """Whether each process has a piece of the parameter (ZeRO-3)."""
    return hasattr(parameter, "ds_tensor")


def num_elements(parameter: Tensor) -> int:
    """Of the whole of it, also where this process has a piece."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def num_dims(parameter: Tensor) -> int:
    """Of the whole of it, also where this process has a piece, which is flat."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def gathered(parameters: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Within, these parameters are whole in every process, also where they are shared out; all processes enter together."""
    if not any(is_shared_out(parameter) for parameter in parameters):
        return nullcontext()
    from deepspeed import zero

    return zero.GatheredParameters(parameters)  # type: ignore[no-any-return]
