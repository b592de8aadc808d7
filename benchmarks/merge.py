"""Merging checkpoints beside mergekit: processor seconds, wall time, peak memory, and whether the bytes are the same.

Three specialists of one base, llama-shaped, bf16, three shards each, are made once under --root. Then, interleaved and repeated: our
command, mergekit's, and the floor (`cp` of an output with a sync). Each is a process of its own, start-up included; its figures are the
kernel's own of that process. The results are compared element by element. mergekit runs in a venv of its own under
.bench/, made on first use, with the torch of this one's version for the CPU.

    python -m benchmarks.merge --json .bench/merge.json
    python -m benchmarks.merge --root DISK_FOLDER --methods linear      # where the disk binds
    python -m benchmarks.merge --layers 90 --methods linear --repeats 1  # about 2 GB each
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.common.venv import python_of
from models.checkpoints import checkpoint

WEIGHTS = (0.5, 0.3, 0.2)
VOCABULARY, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 32_000, 1024, 16, 4, 2752
NUM_SHARDS = 3
DENSITY = 0.5
MERGEKIT = "mergekit==0.1.5"
OURS, FUSED, THEIRS, FLOOR = "flywheel", "flywheel --fused", "mergekit", "cp, sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process: processor seconds of user and kernel, wall seconds, peak resident MB."""

    cpu_s: float
    wall_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Medians over the repeats. `ratio` is a contestant's processor seconds to ours, the median of the repeats' ratios."""

    method: str
    name: str
    cpu_s: float
    wall_s: float
    peak_mb: float
    ratio: float
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Elements that differ between two results."""

    method: str
    name: str
    num_different: int
    num_elements: int


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a llama with tied embeddings."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(layers):
        of_layer = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def make_family(root: Path, layers: int) -> tuple[Path, list[Path]]:
    """The base and its specialists, made shard by shard where they are not there yet."""
    base, parents = root / f"base-{layers}", [root / f"p{k}-{layers}" for k in range(len(WEIGHTS))]
    if not base.exists():
        write_member(base, None, layers, seed=0, parents=())
    mother = checkpoint.read_card(base).checkpoint_id
    for k, parent in enumerate(parents):
        if not parent.exists():
            write_member(parent, base, layers, seed=k + 1, parents=(mother,))
    return base, parents


def write_member(folder: Path, base: Path | None, layers: int, *, seed: int, parents: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    wanted = shapes(layers)
    names = list(wanted)
    files = [f"model-{place * NUM_SHARDS // len(names) + 1:05d}-of-{NUM_SHARDS:05d}.safetensors" for place in range(len(names))]
    shard_of = dict(zip(names, files, strict=True))

    def fill(aside: Path) -> None:
        (aside / "config.json").write_text(json.dumps(config(layers)))
        for file in sorted(set(shard_of.values())):
            tensors = {}
            for name in (name for name in names if shard_of[name] == file):
                noise = torch.randn(wanted[name], generator=generator) * 0.02
                tensors[name] = (noise if base is None else read(base, name).float() + noise * 0.05).bfloat16()
            save_file(tensors, aside / file, metadata={"format": "pt"})
        (aside / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))

    checkpoint.write(folder, fill, stage=folder.name, iteration="0001", parents=parents)


def config(layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def read(folder: Path, name: str) -> torch.Tensor:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            if name in opened.keys():  # noqa: SIM118  not a mapping
                tensor: torch.Tensor = opened.get_tensor(name)
                return tensor
    raise KeyError(f"{name} is in no shard of {folder}")


WAITER = """
import json, os, subprocess, sys, time
started_s = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, usage = os.wait4(process.pid, 0)
figures = {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.monotonic() - started_s, "peak_mb": usage.ru_maxrss / 1024}
print(json.dumps(figures))
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""
"""Waits for a command and prints its figures. A process of its own, because a child's peak memory is never below that of who forked it."""


def measured(command: Sequence[str | Path]) -> Run:
    """Run a command to its end; ends the benchmark with what it said when it fails."""
    ran = subprocess.run([sys.executable, "-S", "-c", WAITER, *map(str, command)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stderr[-2000:]}")
    return Run(**json.loads(ran.stdout.splitlines()[-1]))


def mergekit_in(root: Path) -> Path:
    """mergekit's command."""
    return python_of(root / "mergekit", (MERGEKIT, f"torch=={version('torch')}")).with_name("mergekit-yaml")


def our_command(method: str, base: Path, parents: Sequence[Path], output: Path, *more: str) -> list[str | Path]:
    weights = ",".join(str(weight) for weight in WEIGHTS)
    command = [Path(sys.executable).with_name("flywheel"), "merge", *parents, "-o", output, "--method", method, "--weights", weights]
    return [*command, *(("--base", base, "--density", str(DENSITY)) if method != "linear" else ()), *more]


def write_recipe(path: Path, method: str, base: Path, parents: Sequence[Path]) -> None:
    """What mergekit is to do. Task vectors are taken in float32, as ours are; its linear merge always accumulates in float32."""
    lines = [f"merge_method: {method}", "models:"]
    for parent, weight in zip(parents, WEIGHTS, strict=True):
        lines += [f"  - model: {parent}", "    parameters:", f"      weight: {weight}"]
        lines += [f"      density: {DENSITY}"] if method != "linear" else []
    lines += [f"base_model: {base}", "dtype: float32", "out_dtype: bfloat16"] if method != "linear" else []
    path.write_text("\n".join(lines) + "\n")


def contestants(method: str, base: Path, parents: Sequence[Path], root: Path, mergekit: Path | None) -> dict[str, list[str | Path]]:
    outputs = {name: root / f"out-{place}-{method}" for place, name in enumerate((OURS, FUSED, THEIRS, FLOOR))}
    found = {OURS: our_command(method, base, parents, outputs[OURS])}
    if method == "linear":
        found[FUSED] = our_command(method, base, parents, outputs[FUSED], "--fused")
    if mergekit is not None:
        recipe = root / f"{method}.yml"
        write_recipe(recipe, method, base, parents)
        found[THEIRS] = [mergekit, recipe, outputs[THEIRS]]
    found[FLOOR] = ["sh", "-c", f"rm -rf '{outputs[FLOOR]}' && cp -r '{parents[0]}' '{outputs[FLOOR]}' && sync -f '{outputs[FLOOR]}'"]
    return found


def compare(method: str, name: str, ours: Path, other: Path) -> Agreement:
    num_different = num_elements = 0
    for file in sorted(ours.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for tensor_name in opened.keys():  # noqa: SIM118  not a mapping
                a, b = (tensor.view(torch.int16) for tensor in (opened.get_tensor(tensor_name), read(other, tensor_name)))
                num_different += int((a != b).count_nonzero())
                num_elements += a.numel()
    return Agreement(method=method, name=name, num_different=num_different, num_elements=num_elements)


def measure(
    method: str, base: Path, parents: Sequence[Path], root: Path, mergekit: Path | None, repeats: int, console: Console
) -> tuple[list[Figure], list[Agreement]]:
    commands = contestants(method, base, parents, root, mergekit)
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for repeat in range(repeats):
        names = list(commands)
        for place in range(len(names)):
            name = names[(place + repeat) % len(names)]
            runs[name].append(measured(commands[name]))
            console.print(f"  {method}, repeat {repeat + 1}: {name} {runs[name][-1].cpu_s:.2f} s", highlight=False)
    figures = [
        Figure(
            method=method,
            name=name,
            runs=tuple(of),
            cpu_s=statistics.median(run.cpu_s for run in of),
            wall_s=statistics.median(run.wall_s for run in of),
            peak_mb=max(run.peak_mb for run in of),
            ratio=statistics.median(one.cpu_s / ours.cpu_s for one, ours in zip(of, runs[OURS], strict=True)),
        )
        for name, of in runs.items()
    ]
    agreements = []
    if mergekit is not None:
        theirs = Path(str(commands[THEIRS][-1]))
        outputs = {name: Path(str(command[command.index("-o") + 1])) for name, command in commands.items() if "-o" in command}
        agreements = [compare(method, name, output, theirs) for name, output in outputs.items()]
    for folder in root.glob("out-*"):
        shutil.rmtree(folder)
    return figures, agreements


def show(figures: Sequence[Figure], agreements: Sequence[Agreement], size_gb: float, console: Console) -> None:
    table = Table(title=f"merging {len(WEIGHTS)} checkpoints of {size_gb:.2f} GB, start-up included")
    for column in ("method", "", "CPU s", "× ours", "wall s", "peak MB"):
        table.add_column(column, justify="left" if column in ("method", "") else "right")
    for figure in figures:
        table.add_row(
            figure.method, figure.name, f"{figure.cpu_s:.2f}", f"{figure.ratio:.1f}", f"{figure.wall_s:.2f}", f"{figure.peak_mb:.0f}"
        )
    console.print(table)
    for one in agreements:
        share = one.num_different / one.num_elements
        console.print(
            f"{one.method}: {one.name} and mergekit differ in {one.num_different} of {one.num_elements} elements ({share:.3%})",
            highlight=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/dev/shm/flywheel-merge"), help="where checkpoints are made (default: memory)")
    parser.add_argument("--venvs", type=Path, default=Path(".bench"), help="where mergekit's venv is (default: .bench)")
    parser.add_argument("--layers", type=int, default=17, help="17 make 0.44 GB, 90 make 2 GB")
    parser.add_argument("--methods", nargs="+", default=["linear", "ties"], choices=["linear", "ties", "task_arithmetic"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="without mergekit")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints for another run")
    parser.add_argument("--json", type=Path, help="write the figures for a machine")
    options = parser.parse_args()
    console = Console()
    options.root.mkdir(parents=True, exist_ok=True)
    base, parents = make_family(options.root, options.layers)
    size_gb = sum(path.stat().st_size for path in parents[0].glob("*.safetensors")) / 1e9
    mergekit = None if options.no_peer else mergekit_in(options.venvs.absolute())
    figures: list[Figure] = []
    agreements: list[Agreement] = []
    for method in options.methods:
        of_method = measure(method, base, parents, options.root, mergekit, options.repeats, console)
        figures += of_method[0]
        agreements += of_method[1]
    show(figures, agreements, size_gb, console)
    if options.json is not None:
        found = {"size_gb": size_gb, "figures": [asdict(one) for one in figures], "agreement": [asdict(one) for one in agreements]}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if not options.keep:
        shutil.rmtree(options.root)


if __name__ == "__main__":
    main()
