"""Memory of a training process by ZeRO stage: the most that it held while it started and in its steps, beside what the formula says that
`flywheel run --dry-run` uses (models/training/estimates.py), and how long a step took. Stage 0 is models/rl/distributed/process_group.py's;
beside it, `deepspeed-0`, stands what DeepSpeed does at that stage, which RL does not use.

A Llama with random weights in float32, on the CPU over gloo, by what steps RL's policy (models/rl/distributed/optimizers.py): two passes
and a step of Adam, several times. Processes are forks of one that has imported everything; what counts is the resident memory beyond what
each had then. Kept under .bench/zero_memory, a file a stage; interrupted, it goes on with those that are missing. Remove that folder to
measure again.

    python -m benchmarks.zero_memory --publish
    python -m benchmarks.zero_memory --loading --processes 4 --publish

With `--loading` such a model is read from a checkpoint and shared out at stage 3 in each of the ways of LOADINGS, and the leader's memory
stands apart from that of the other that held most: until the model is loaded, until all is ready, and in the steps.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import statistics
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from models.checkpoints.checkpoint import write
from models.families.registry import load_policy, policy_without_weights
from models.families.shapes import ModelShape, shape_of
from models.rl.distributed.optimizers import MakeOptimizer, Optimizer, WholeOptimizer, ZeroOptimizer
from models.rl.distributed.process_group import ProcessGroup
from models.supervised.config import SupervisedConfig
from models.supervised.fitting import training_arguments
from models.training.estimates import FLOAT32, FLOAT32_IN_ZERO, training_memory
from models.training.forward import LogitsWhere
from models.training.zero import prepare_deepspeed
from warehouse.core.home import atomic_write

ROOT = Path(".bench/zero_memory")
SIZES = {"2M": (128, 4, 4096), "50M": (576, 10, 8192), "100M": (768, 12, 16384)}
"""Hidden size, layers, vocabulary."""
STAGES = ("0", "deepspeed-0", "1", "2", "3")
NUM_TOKENS, PASSES, STEPS, MAX_NORM = 16, 2, 2, 1.0
MIB = 2**20
LOADINGS = ("whole", "sft", "rl")
"""Each process reads all the weights, and they are shared out when all have them; CT's and SFT's way (models/supervised/process.py): the
leader reads a tensor, and all take their pieces of it; RL's (models/rl/learner.py): the leader reads all, then hands on one after the
other."""
M_MMAP_THRESHOLD = -3
"""glibc's number of the size from which memory is mapped by itself."""


def config_of(size: str) -> LlamaConfig:
    hidden, layers, vocabulary = SIZES[size]
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )


class DeepSpeedWhole:
    """Everything in each process, by DeepSpeed; called as WholeOptimizer is."""

    def __init__(self, module: LogitsWhere, make: MakeOptimizer, size: int) -> None:
        prepare_deepspeed(torch.device("cpu"))
        import deepspeed

        settings = {
            "zero_optimization": {"stage": 0},
            "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": size,
            "managed_gradient_accumulation": False,
            "gradient_clipping": MAX_NORM,
            "zero_allow_untested_optimizer": True,
            "steps_per_print": None,
        }
        optimizer = make(list(module.parameters()))
        self._size = size
        self.module, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings, dist_init_required=False)

    def zero_grad(self) -> None:
        self.module.zero_grad()

    def backward(self, loss: Tensor) -> None:
        self.module.backward(loss * self._size)

    def step(self, _max_norm: float) -> None:
        self.module.step()


def estimated_mib(shape: ModelShape, stage: int, num_processes: int) -> float:
    memory = training_memory(
        shape,
        stage=stage,
        num_processes=num_processes,
        num_tokens=NUM_TOKENS,
        num_learned=NUM_TOKENS - 1,
        checkpointing=False,
        bytes_each=FLOAT32_IN_ZERO if stage else FLOAT32,
        compute_bytes=4,
    )
    return memory.total / MIB


def measure(size: str, stage: str, num_processes: int) -> Row:
    """Of the processes, the most that one held."""
    config = config_of(size)
    store, folder = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), ROOT / f"{size}-{stage}-{num_processes}"
    folder.mkdir(parents=True, exist_ok=True)
    pids = [_forked(partial(_train, config, stage, rank, num_processes, store.port, folder)) for rank in range(num_processes)]
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit(f"a process of stage {stage} failed: see what it said above")
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_processes)]
    shape = shape_of(config.to_dict())
    return {
        "parameters": shape.num_parameters,
        "start_mib": max(each["start_mib"] for each in found),
        "steps_mib": max(each["steps_mib"] for each in found),
        "estimated_mib": round(estimated_mib(shape, int(stage[-1]), num_processes), 1),
        "step_s": round(statistics.median(each["step_s"] for each in found), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def measure_loading(size: str, how: str, num_processes: int, stored: str) -> Row:
    folder = ROOT / f"{size}-loading-{how}-{num_processes}-{stored}"
    folder.mkdir(parents=True, exist_ok=True)
    config, checkpoint = config_of(size), ROOT / f"{size}-checkpoint-{stored}"
    if not checkpoint.exists():
        _finished([_forked(partial(_write_checkpoint, config, checkpoint, stored))])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(num_processes)}
    work = partial(_load_and_train, config, checkpoint, how, store.port, folder)
    _finished([_forked(partial(work, rank, {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)})) for rank in range(num_processes)])
    leader, *others = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_processes))
    figures = {f"leader_{name}": value for name, value in leader.items()}
    figures |= {f"others_{name}": max(each[name] for each in others) for name in leader}
    return {"parameters": shape_of(config.to_dict()).num_parameters, **figures}


def _write_checkpoint(config: LlamaConfig, folder: Path, stored: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(getattr(torch, stored))
    write(folder, model.save_pretrained, stage="zero_memory", iteration="0000")


def _load_and_train(
    config: LlamaConfig, checkpoint: Path, how: str, port: int, folder: Path, rank: int, environment: dict[str, str]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(environment)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)
    group = ProcessGroup(rank, int(environment["WORLD_SIZE"]), timedelta(minutes=30))
    group.join(TCPStore("127.0.0.1", port, is_master=False), "127.0.0.1", on_gpu=False)
    settings, arguments = SupervisedConfig(num_processes=group.size, deepspeed_stage=3), None
    before = _peak_again()
    if how == "sft":
        arguments = training_arguments(settings, folder / "run")
    model = policy_without_weights(checkpoint) if how == "rl" and rank else load_policy(checkpoint)
    found = {"loaded_mib": (_status("VmHWM") - before) / MIB}
    optimizer = _optimizer(LogitsWhere(model), "3", group)
    found["ready_mib"] = (_status("VmHWM") - before) / MIB
    _peak_again()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        _step(optimizer, config.vocab_size, generator)
    found["steps_mib"] = (_status("VmHWM") - before) / MIB
    atomic_write(folder / f"{rank}.json", json.dumps({name: round(value, 1) for name, value in found.items()}).encode())
    del arguments
    group.leave()


def _finished(pids: list[int]) -> None:
    if sum(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit("a process failed: see what it said above")


def _forked(work: Any) -> int:
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _train(config: LlamaConfig, stage: str, rank: int, num_processes: int, port: int, folder: Path) -> None:
    import time

    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)  # what is freed is given back at once, so that the peak is of what is in use
    group = ProcessGroup(rank, num_processes, timedelta(minutes=30))
    group.join(TCPStore("127.0.0.1", port, is_master=False), "127.0.0.1", on_gpu=False)
    before = _peak_again()
    torch.manual_seed(0)
    optimizer = _optimizer(LogitsWhere(LlamaForCausalLM(config)), stage, group)
    start_mib, times = (_status("VmHWM") - before) / MIB, []
    _peak_again()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        started = time.perf_counter()
        _step(optimizer, config.vocab_size, generator)
        times.append(time.perf_counter() - started)
    steps_mib = (_status("VmHWM") - before) / MIB
    found = {"start_mib": round(start_mib, 1), "steps_mib": round(steps_mib, 1), "step_s": statistics.median(times)}
    atomic_write(folder / f"{rank}.json", json.dumps(found).encode())
    group.leave()


def _optimizer(module: LogitsWhere, stage: str, group: ProcessGroup) -> Optimizer | DeepSpeedWhole:
    make = partial(torch.optim.Adam, lr=1e-4)
    if stage == "deepspeed-0":
        return DeepSpeedWhole(module, make, group.size)
    if stage == "0":
        return WholeOptimizer(module, make, group)
    return ZeroOptimizer(module, make, group, stage=int(stage), max_norm=MAX_NORM, device="cpu")


def _step(optimizer: Optimizer | DeepSpeedWhole, vocabulary: int, generator: torch.Generator) -> None:
    optimizer.zero_grad()
    for _ in range(PASSES):
        ids = torch.randint(3, vocabulary, (1, NUM_TOKENS), generator=generator)
        wanted = torch.ones_like(ids, dtype=torch.bool)
        wanted[:, -1] = False
        loss = torch.nn.functional.cross_entropy(optimizer.module(ids, wanted).float(), ids[0, 1:])
        optimizer.backward(loss / PASSES)
    optimizer.step(MAX_NORM)


def _peak_again() -> int:
    """Have the kernel measure the peak from here on; what is resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def table(rows: list[Row]) -> Table:
    drawn = Table(title=f"MiB a process, {rows[0]['parameters'] / 1e6:.0f} M parameters, {rows[0]['processes']} processes")
    for column in ("stage", "start", "steps", "formula", "a step, s"):
        drawn.add_column(column, justify="right")
    for row in rows:
        drawn.add_row(*(str(row[name]) for name in ("stage", "start_mib", "steps_mib", "estimated_mib", "step_s")))
    return drawn


def loading_table(rows: list[Row]) -> Table:
    drawn = Table(title=f"MiB a process at stage 3, {rows[0]['parameters'] / 1e6:.0f} M parameters, {rows[0]['processes']} processes")
    names = [f"{who}_{what}_mib" for who in ("leader", "others") for what in ("loaded", "ready", "steps")]
    for column in ("loading", *(name.removesuffix("_mib").replace("_", " ") for name in names)):
        drawn.add_column(column, justify="right")
    for row in rows:
        drawn.add_row(row["loading"], *(str(row[name]) for name in names))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="50M", help="parameters, about (default: 50M)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="which (default: all)")
    parser.add_argument("--processes", type=int, default=2, help="that train together (default: 2)")
    parser.add_argument("--loading", action="store_true", help="measure how weights are read at stage 3, and no stages")
    parser.add_argument("--stored", choices=("bfloat16", "float32"), default="bfloat16", help="what the checkpoint that is read is in")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured")
    arguments = parser.parse_args()
    prepare_deepspeed()
    import deepspeed  # noqa: F401  before the processes are forked

    recipe = fingerprint(SIZES[arguments.size], NUM_TOKENS, PASSES, STEPS, arguments.processes)
    rows = dict[str, Row]()
    for how in LOADINGS if arguments.loading else ():
        names = {"size": arguments.size, "loading": how, "processes": arguments.processes, "stored": arguments.stored}
        name = f"{arguments.size}-loading-{how}-{arguments.processes}-{arguments.stored}"
        work = partial(measure_loading, arguments.size, how, arguments.processes, arguments.stored)
        rows[name] = kept_row(ROOT / f"{name}.json", recipe, names, work)
    for stage in () if arguments.loading else arguments.stages:
        names = {"size": arguments.size, "stage": stage, "processes": arguments.processes}
        name = f"{arguments.size}-{stage}-{arguments.processes}"
        rows[name] = kept_row(ROOT / f"{name}.json", recipe, names, partial(measure, arguments.size, stage, arguments.processes))
    drawn = loading_table if arguments.loading else table
    Console().print(drawn(list(rows.values())))
    if arguments.json:
        atomic_write(arguments.json, json.dumps(rows, indent=1).encode())
    if arguments.publish:
        publish_rows("zero_loading" if arguments.loading else "zero_memory", rows)


if __name__ == "__main__":
    main()
