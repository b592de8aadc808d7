"""Our supervised training as a contestant of benchmarks/sft_throughput.py: rows of the very samples that the peer reads at each step.

python -m benchmarks.ours.sft_steps FOLDER BATCHES.json SETTINGS.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from models.supervised.config import SupervisedConfig
from models.supervised.fitting import fit
from models.training.batching import EncodedSample
from models.training.metrics import Progress


def main(folder: Path, batches: list[list[dict[str, list[int]]]], settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    samples, plan = [], []
    for batch in batches:
        plan.append(list(range(len(samples), len(samples) + len(batch))))
        for sample in batch:
            weights = [float(label != -100) for label in sample["labels"]]
            samples.append(EncodedSample(token_ids=sample["input_ids"], loss_weights=weights))
    config = SupervisedConfig(
        steps=settings["steps"],
        learning_rate=settings["learning_rate"],
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        adam_beta2=settings["adam_beta2"],
        packing=settings["packing"],
        log_every=1,
        save_every=1_000_000,
    )
    points: list[dict[str, float]] = []

    def clock(progress: Progress) -> None:
        points.append({"loss": progress.metrics["loss"], "cpu_s": time.process_time(), "wall_s": time.perf_counter()})

    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    with TemporaryDirectory() as run_folder:
        fit(model, samples, config, Path(run_folder), clock, plan=plan)
    print("\n" + json.dumps(points))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), json.loads(Path(sys.argv[3]).read_text()))
