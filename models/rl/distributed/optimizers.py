"""What steps a module: an optimizer that each process has whole, or one that the processes share out by DeepSpeed's ZeRO.

`WholeOptimizer` is plain torch, its gradients summed by process_group.py. `ZeroOptimizer` (Rajbhandari et al. 2020, arXiv 1910.02054)
shares out the optimizer's state (stage 1), gradients too (2), weights too (3). Both have one interface, and either reads what any number of
processes wrote of either for a killed run (models/rl/state.py has the files): of parameter i, by its number among the trained ones, `i.KEY`
is the whole tensor, `i.KEY@START` a piece of it, flattened, from START on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.rl.distributed.process_group import ProcessGroup
from models.training.adapters import trained_parameters
from models.training.zero import prepare_deepspeed, share_out_weights, use_timeout

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
WEIGHT = "weight"
"""Key of a parameter itself among what is kept of it."""
PERSISTENT = 2048
"""At stage 3 smaller parameters stay whole in every process: norms and biases."""
AT_ONCE = 2**23
"""Elements that are summed, gathered or stepped at once, each with copies of its own; DeepSpeed's own choice is up to a billion."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a file holds of parameter `index`; `start` is None where it is the whole tensor."""

    index: int
    key: str
    start: int | None
    tensor: Tensor

    @classmethod
    def named(cls, name: str, tensor: Tensor) -> Piece:
        index, rest = name.split(".", maxsplit=1)
        key, is_part, start = rest.partition("@")
        return cls(int(index), key, int(start) if is_part else None, tensor)

    def put_into(self, whole: Tensor) -> None:
        """Write it where it belongs in the parameter's (or its state's) whole tensor."""
        if self.start is None:
            whole.copy_(self.tensor)
        else:
            whole.view(-1)[self.start : self.start + self.tensor.numel()] = self.tensor


class WholeOptimizer:
    """All of the optimizer in each process of the group, or in a single one. `module` is what is called and trained."""

    is_lockstep = False
    """Whether all processes have to make the same number of passes, because each needs the others."""
    part: tuple[int, int] | None = None
    """Which of how many parts of the state it has; None: all."""

    def __init__(self, module: nn.Module, make: MakeOptimizer, group: ProcessGroup) -> None:
        self.module, self._group = module, group
        self._parameters = trained_parameters(module)
        self.inner = make(self._parameters)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def checking_a_pass(self) -> AbstractContextManager[None]:
        """Within, one process may find that its pass has no finite loss, which all then hear."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's part of the loss; the parts are summed."""
        loss.backward()

    def step(self, max_norm: float, rate: float | None = None) -> float:
        """One step along the gradient, cut to `max_norm`, at a learning rate; the norm before. No step is made along one that is not
        finite."""
        self._group.sum_gradients(self._parameters)
        norm = float(nn.utils.clip_grad_norm_(self._parameters, max_norm))
        if math.isfinite(norm):
            _set_rate(self.inner, rate)
            self.inner.step()
        return norm

    def snapshot(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._tensors()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Weights and state as `snapshot` found them."""
        pieces = [Piece.named(name, tensor) for name, tensor in saved.items()]
        with torch.no_grad():
            for piece in pieces:
                if piece.key == WEIGHT:
                    piece.put_into(self._parameters[piece.index])
        self.fill(pieces)

    def pieces(self) -> dict[str, Tensor]:
        """Of the state alone: the weights are kept with the module."""
        return {name: tensor for name, tensor in self._tensors() if not name.endswith(f".{WEIGHT}")}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for index, parameter in enumerate(self._parameters):
            yield f"{index}.{WEIGHT}", parameter.detach()
        for index, slots in self.inner.state_dict()["state"].items():
            yield from ((f"{index}.{key}", torch.as_tensor(value).contiguous()) for key, value in slots.items())

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Take the state from all its pieces."""
        state: dict[int, dict[str, Tensor]] = {}
        for piece in pieces:
            if piece.key == WEIGHT:
                continue
            if piece.start is None:
                state.setdefault(piece.index, {})[piece.key] = piece.tensor
            else:
                parameter = self._parameters[piece.index]
                piece.put_into(state.setdefault(piece.index, {}).setdefault(piece.key, torch.zeros_like(parameter)))
        self.inner.load_state_dict({"state": state, "param_groups": self.inner.state_dict()["param_groups"]})


class ZeroOptimizer:
    """One process's part, at a stage from 1 to 3. Every process of the group makes one, at once, and calls it as often as the others do.
    `module` is what to call; the one that it was made of has empty weights at stage 3."""

    is_lockstep = True

    def __init__(
        self,
        module: nn.Module,
        make: MakeOptimizer,
        group: ProcessGroup,
        *,
        stage: int,
        max_norm: float,
        device: str | torch.device | None = None,
    ) -> None:
        """`device`: where this process computes, unless the parameters say so. At stage 3 all but the leader's may be without values."""
        self._group, self._stage = group, stage
        self._parameters = trained_parameters(module)
        self.part = (group.rank, group.size)
        settings = _settings(stage, max_norm, group.size)
        device = torch.device(device) if device is not None else self._parameters[0].device
        prepare_deepspeed(device)
        import deepspeed

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            deepspeed.init_distributed(dist_init_required=False)
            if stage == 3:
                share_out_weights(module, settings, device)
            self.module, self._zero, _, _ = deepspeed.initialize(
                model=module, optimizer=make(self._parameters), config=settings, dist_init_required=False
            )
        use_timeout(group.timeout)
        self._places = list(self._found_places())

    def zero_grad(self) -> None:
        """Drop what was added since the last step."""
        self._zero.zero_grad()
        for gradients in () if self._stage == 3 else (self._zero.averaged_gradients, self._zero.all_grad_tensors):
            for index in gradients:
                gradients[index] = None

    def checking_a_pass(self) -> AbstractContextManager[None]:
        return self._group.raising_together()

    def backward(self, loss: Tensor) -> None:
        self.module.backward(loss * self._group.size)  # DeepSpeed takes the mean over processes

    def step(self, max_norm: float, rate: float | None = None) -> float:
        """`max_norm` is the one that it was made with."""
        _set_rate(self._zero, rate)
        self.module.step()
        return float("nan") if self._zero.overflow else float(self._zero._global_grad_norm)

    def snapshot(self) -> dict[str, Tensor]:
        return self.pieces()

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        pieces = [Piece.named(name, tensor) for name, tensor in saved.items()]
        self._inner.state.clear()
        self.fill(pieces)
        starts = {(piece.index, piece.start): piece.tensor for piece in pieces if piece.key == WEIGHT}
        for place in self._places:
            place.of(place.flat.detach()).copy_(starts[place.index, place.start])
        self._publish()

    def pieces(self) -> dict[str, Tensor]:
        """Copies of what this process has of weights and state."""
        found: dict[str, Tensor] = {}
        for place in self._places:
            found[place.named(WEIGHT)] = place.of(place.flat.detach()).clone()
            for key, value in self._inner.state.get(place.flat, {}).items():
                if value.dim() == 0:  # the number of steps
                    found[f"{place.index}.{key}"] = value.clone()
                else:
                    found[place.named(key)] = place.of(value).clone()
        return found

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Take this process's part of the state from all its pieces. Weights are taken before, by the module."""
        places: dict[int, list[_Place]] = {}
        for place in self._places:
            places.setdefault(place.index, []).append(place)
        for piece in pieces:
            for place in places.get(piece.index, ()) if piece.key != WEIGHT else ():
                self._fill(place, piece)

    def _fill(self, place: _Place, piece: Piece) -> None:
        slots = self._inner.state[place.flat]
        if piece.tensor.dim() == 0:
            slots[piece.key] = piece.tensor.clone()
            return
        whole = slots.setdefault(piece.key, torch.zeros_like(place.flat))
        theirs, start = piece.tensor.reshape(-1), piece.start or 0
        first, end = max(start, place.start), min(start + theirs.numel(), place.start + place.size)
        if first < end:
            place.of(whole)[first - place.start : end - place.start] = theirs[first - start : end - start]

    @property
    def _inner(self) -> torch.optim.Optimizer:
        return self._zero.optimizer  # type: ignore[no-any-return]

    @torch.no_grad()
    def _publish(self) -> None:
        """Have all processes compute with the float32 weights as they are now."""
        if self._stage < 3:
            self._zero.update_lp_params()
            return
        self._zero._partition_all_parameters()
        for index in range(len(self._zero.fp32_partitioned_groups_flat)):
            self._zero._reassign_or_swap_out_partitioned_parameters(index)
        if kept := self._zero.persistent_parameters:
            kept[0].all_gather(kept)

    def _found_places(self) -> Iterator[_Place]:
        for index, parameter in enumerate(self._parameters):
            found: Any = parameter
            if self._stage == 3:
                group, first, _ = self._zero.grad_position[self._zero.get_param_id(found)]
                start = found.partition_numel() * self._group.rank
                size = min(found.partition_numel(), found.ds_numel - start)
                if size > 0:
                    yield _Place(index, start, size, self._zero.fp32_partitioned_groups_flat[group], first)
            elif found._hp_mapping is not None:
                mine, theirs = found._hp_mapping.lp_fragment_address, found._hp_mapping.hp_fragment_address
                yield _Place(index, mine.start, mine.numel, self._zero.single_partition_of_fp32_groups[0], theirs.start)


Optimizer = WholeOptimizer | ZeroOptimizer


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """`size` elements of parameter `index`, from its element `start` on, lie in a flat tensor from `first` on."""

    index: int
    start: int
    size: int
    flat: Tensor
    first: int

    def named(self, key: str) -> str:
        return f"{self.index}.{key}@{self.start}"

    def of(self, flat: Tensor) -> Tensor:
        """Those elements of the flat tensor, or of one like it."""
        return flat[self.first : self.first + self.size]


def _set_rate(optimizer: Any, rate: float | None) -> None:
    for group in optimizer.param_groups if rate is not None else ():
        group["lr"] = rate


def _settings(stage: int, max_norm: float, size: int) -> dict[str, Any]:
    return {
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            "reduce_bucket_size": AT_ONCE,
            "allgather_bucket_size": AT_ONCE,
            "sub_group_size": AT_ONCE,
            "stage3_prefetch_bucket_size": AT_ONCE,
            "stage3_max_live_parameters": AT_ONCE,
            "stage3_max_reuse_distance": AT_ONCE,
            "stage3_param_persistence_threshold": PERSISTENT,
        },
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": size,
        "managed_gradient_accumulation": False,  # as many passes a step as there are, known when they are done
        "gradient_clipping": max_norm,
        "zero_allow_untested_optimizer": True,  # torch's own Adam: DeepSpeed's would be compiled first
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
