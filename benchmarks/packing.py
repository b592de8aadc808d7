"""What packing is worth: attention over packed rows in several ways, and the quickstart's model trained on padded and on packed batches.

Attention (forward and backward, 8 heads of 32, sequences of log-normal lengths): a dense block mask, which is what transformers makes of
position ids; all sequences as one padded grid; groups of similar length, which is what models/training/packing.py does; every sequence
alone. Nested tensors have no causal attention on a CPU, and flex attention no backward pass there (torch 2.13).

Learning: continual training on tutorials, same steps, same budget of tokens a step, loss on the same held-out samples. Padded batches hold
samples of similar length; packed ones hold samples as they are drawn. CPU seconds of one thread.

    python -m benchmarks.packing --json .bench/packing.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from models.checkpoints.checkpoint import save
from models.families.seed_policy import seed_policy
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from models.training import packing

HEADS, SIZE = 8, 32
ROUNDS = 8


def lengths_of(num_tokens: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    lengths: list[int] = []
    while sum(lengths) < num_tokens:
        lengths.append(min(num_tokens - sum(lengths), max(16, int(rng.lognormvariate(5.0, 0.8)))))
    return lengths


def in_groups(shortest_share: float) -> Callable[[list[int]], Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """models.training.packing's attention with groups as wide as that: 0 is one grid, above 1 every sequence alone."""

    def prepare(lengths: list[int]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        before, packing.SHORTEST_SHARE = packing.SHORTEST_SHARE, shortest_share
        layout = packing.segments(lengths)
        packing.SHORTEST_SHARE = before
        return lambda query, key, value: packing.attend(query, key, value, layout, None)

    return prepare


def with_dense_mask(lengths: list[int]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    sequence = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    place = torch.arange(len(sequence))
    mask = (sequence.unsqueeze(1) == sequence) & (place.unsqueeze(1) >= place)
    return lambda *qkv: scaled_dot_product_attention(*(x.transpose(0, 1).unsqueeze(0) for x in qkv), attn_mask=mask)


WAYS = {
    "dense mask": with_dense_mask,
    "one grid": in_groups(0.0),
    "groups": in_groups(packing.SHORTEST_SHARE),
    "each alone": in_groups(2.0),
}


def attention(num_tokens: int, repeats: int) -> dict[str, float]:
    """CPU milliseconds of a forward and backward pass, by way: medians over interleaved repeats, each over several rows."""
    measured: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(repeats):
        for name, prepare in WAYS.items():
            spent = 0.0
            for row in range(ROUNDS):
                attend = prepare(lengths_of(num_tokens, ROUNDS * repeat + row))
                query, key, value = torch.randn(3, num_tokens, HEADS, SIZE).requires_grad_().unbind(0)
                started = time.process_time()
                attend(query, key, value).sum().backward()
                spent += time.process_time() - started
            measured[name].append(1000 * spent / ROUNDS)
    return {name: statistics.median(values) for name, values in measured.items()}


def learning(packed: bool, seed: int, steps: int) -> dict[str, Any]:
    """Held-out loss at the end of a run of `steps`, and tokens a CPU second."""
    with TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        save(start, *seed_policy(words("web"), 0), stage="seed_policy", iteration="0000")
        config = SupervisedConfig(
            steps=steps, seed=seed, packing="packed" if packed else "padded", eval_fraction=0.08, eval_every=steps, save_every=steps + 1
        )
        samples = [TrainingSample(messages=messages) for messages in tutorials(8000, 0)]
        card = train_supervised(config, samples, init=start, output=Path(folder) / "end", stage="ct_model", iteration="0001")
    figures = card.metrics
    return {
        "packing": config.packing,
        "seed": seed,
        "steps": steps,
        "held_out_loss": figures["eval_loss"],
        "tokens_per_cpu_s": figures["tokens"] / figures["cpu_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="training steps of a run (default: 300)")
    parser.add_argument("--seeds", type=int, default=2, help="training runs of each kind (default: 2)")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats of attention (default: 3)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    ways = {num_tokens: attention(num_tokens, arguments.repeats) for num_tokens in (1024, 4096)}
    table = Table("attention, CPU ms", *WAYS)
    for num_tokens, figures in ways.items():
        table.add_row(f"{num_tokens:,} tokens", *(f"{figures[name]:.1f}" for name in WAYS))
    console.print(table)
    runs = [learning(packed, seed, arguments.steps) for seed in range(arguments.seeds) for packed in (False, True)]
    table = Table("batches", "seed", "held-out loss", "tokens/CPU-s")
    for run in runs:
        table.add_row(run["packing"], str(run["seed"]), f"{run['held_out_loss']:.4f}", f"{run['tokens_per_cpu_s']:,.0f}")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"attention_cpu_ms": ways, "learning": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
