"""Supervised fine-tuning: real (non-padding) tokens a second beside TRL's SFTTrainer, on the same model, samples and steps.

A Llama of about 8 M parameters with random weights, samples of mixed lengths (log-normal, median 150 tokens, 16 to 1,024) of which a third
is learned. Two pairs, each reading the very same samples at every step with the same optimizer and schedule, so that their loss curves must
agree: TRL padded (eight samples a step, as they come) beside ours packed; TRL packed (best-fit decreasing into rows of 1,024 tokens, one a
step: a longer flattened row only costs it more attention) beside ours packed. TRL runs without gradient checkpointing, in float32, with the
same fused AdamW. One thread each; runs are interleaved, repeat by repeat; the first steps are not counted. CPU seconds depend less on a
busy machine than wall time.

TRL runs in a venv of its own under .bench/trl, made on first use.

    python -m benchmarks.sft_throughput --json .bench/sft.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.common.venv import TRL, python_of

HERE = Path(__file__).resolve().parent
VOCABULARY = 8192
NUM_SAMPLES = 2000
UNCOUNTED_STEPS = 2
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "adam_beta2": 0.98,
    "rows_per_step": 8,
    "packed_rows_per_step": 1,
    "max_length": 1024,
    "packing": "packed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Medians over the repeats of one contestant. `curve_gap`: the largest difference of a step's loss from its peer's."""

    name: str
    batches: str
    tokens_per_cpu_s: float
    tokens_per_s: float
    spread: float
    first_loss: float
    last_loss: float
    curve_gap: float


def make_samples(seed: int) -> list[dict[str, list[int]]]:
    """Token ids and labels (-100: context). An answer repeats what its prompt holds, so there is something to learn."""
    rng = random.Random(seed)
    words = [rng.randrange(3, VOCABULARY) for _ in range(400)]
    made = []
    for _ in range(NUM_SAMPLES):
        length = min(1024, max(16, int(rng.lognormvariate(5.0, 0.8))))
        num_learned = max(4, length // 3)
        prompt = rng.choices(words, k=length - num_learned)
        answer = [prompt[place % len(prompt)] for place in range(num_learned)]
        made.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return made


def prepare(folder: Path, python: Path, settings: dict[str, Any]) -> None:
    """Model, samples, and the batches of both ways of batching."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    model.save_pretrained(folder / "model")
    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    core = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="t3"))
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="t0", bos_token="t1", eos_token="t2").save_pretrained(folder / "model")
    samples, rows = make_samples(0), settings["rows_per_step"]
    (folder / "samples.json").write_text(json.dumps(samples))
    (folder / "settings.json").write_text(json.dumps(settings))
    padded = [samples[step * rows : (step + 1) * rows] for step in range(settings["steps"])]
    (folder / "padded.json").write_text(json.dumps(padded))
    run([str(python), str(HERE / "peers/trl_sft.py"), str(folder), "batches", str(folder / "settings.json")])


def run(command: list[str]) -> str:
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=HERE.parent)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def measure(folder: Path, python: Path, repeats: int, console: Console) -> dict[tuple[str, str], list[list[dict[str, float]]]]:
    """The steps of each contestant (name, batches), one list a repeat."""
    settings = str(folder / "settings.json")
    commands = {
        (name, batches): (
            [str(python), str(HERE / "peers/trl_sft.py"), str(folder), batches, settings]
            if name == "TRL"
            else [sys.executable, "-m", "benchmarks.ours.sft_steps", str(folder), str(folder / f"{batches}.json"), settings]
        )
        for batches in ("padded", "packed")
        for name in ("TRL", "Flywheel")
    }
    measured: dict[tuple[str, str], list[list[dict[str, float]]]] = {key: [] for key in commands}
    for repeat in range(repeats):
        for key, command in commands.items():
            console.print(f"repeat {repeat + 1} of {repeats}: {key[0]} on {key[1]} batches")
            measured[key].append(json.loads(run(command).strip().splitlines()[-1]))
    return measured


def figures(folder: Path, measured: dict[tuple[str, str], list[list[dict[str, float]]]]) -> list[Figure]:
    made = []
    for (name, batches), repeats in measured.items():
        plan = json.loads((folder / f"{batches}.json").read_text())
        tokens = sum(len(sample["input_ids"]) for batch in plan[UNCOUNTED_STEPS:] for sample in batch)
        cpu, wall = (
            [tokens / (points[-1][clock] - points[UNCOUNTED_STEPS - 1][clock]) for points in repeats] for clock in ("cpu_s", "wall_s")
        )
        losses, theirs = ([point["loss"] for point in measured[who, batches][0]] for who in (name, "TRL"))
        gap = max(abs(one - other) for one, other in zip(losses, theirs, strict=True))
        made.append(
            Figure(
                name=name,
                batches=batches,
                tokens_per_cpu_s=statistics.median(cpu),
                tokens_per_s=statistics.median(wall),
                spread=(max(cpu) - min(cpu)) / statistics.median(cpu),
                first_loss=losses[0],
                last_loss=losses[-1],
                curve_gap=gap,
            )
        )
    return made


def show(made: list[Figure], console: Console) -> None:
    table = Table("contestant", "batches", "tokens/CPU-s", "tokens/s", "against TRL", "spread", "loss first → last", "gap of curves")
    base = {figure.batches: figure.tokens_per_cpu_s for figure in made if figure.name == "TRL"}
    for figure in made:
        table.add_row(
            figure.name,
            figure.batches,
            f"{figure.tokens_per_cpu_s:,.0f}",
            f"{figure.tokens_per_s:,.0f}",
            f"{figure.tokens_per_cpu_s / base[figure.batches]:.2f}×",
            f"±{figure.spread / 2:.0%}",
            f"{figure.first_loss:.3f} → {figure.last_loss:.3f}",
            f"{figure.curve_gap:.1e}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of a run (default: 10)")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats; figures are their medians (default: 3)")
    parser.add_argument("--root", type=Path, default=Path(".bench"), help="where TRL's venv and the data are made (default: .bench)")
    parser.add_argument("--json", type=Path, help="write the figures and curves here as well")
    arguments = parser.parse_args()
    console = Console()
    python = python_of(arguments.root.resolve() / "trl", *TRL)
    folder = arguments.root.resolve() / "sft"
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, python, {**SETTINGS, "steps": arguments.steps})
    measured = measure(folder, python, arguments.repeats, console)
    made = figures(folder, measured)
    show(made, console)
    if arguments.json:
        curves = {f"{name} {batches}": [point["loss"] for point in repeats[0]] for (name, batches), repeats in measured.items()}
        arguments.json.write_text(json.dumps({"figures": [asdict(figure) for figure in made], "curves": curves}, indent=1) + "\n")


if __name__ == "__main__":
    main()
