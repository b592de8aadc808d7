"""TRL's SFTTrainer as a peer of benchmarks/sft_throughput.py, padded or packed. Runs in a venv of its own and
knows nothing of this project.

    python trl_sft.py FOLDER MODE SETTINGS.json    MODE: padded, packed, or batches (write what `packed` will read at each step)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Clock(TrainerCallback):
    """CPU and wall time at the end of each step, and its loss."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.points.append({"loss": float(logs["loss"]), "cpu_s": time.process_time(), "wall_s": time.perf_counter()})


def trainer_of(folder: Path, mode: str, settings: dict[str, Any], clock: Clock) -> SFTTrainer:
    is_packed = mode != "padded"
    samples = json.loads((folder / "samples.json").read_text())
    rows = settings["rows_per_step"] if not is_packed else settings["packed_rows_per_step"]
    arguments = SFTConfig(
        output_dir=str(folder / "trl"),
        max_steps=settings["steps"],
        per_device_train_batch_size=rows,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="cosine",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta2=settings["adam_beta2"],
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        packing=is_packed,
        packing_strategy="bfd",
        max_length=settings["max_length"],
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        logging_first_step=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
    )
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa"),
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        train_dataset=Dataset.from_list(samples),
        callbacks=[clock],
    )


def batches_of(trainer: SFTTrainer, settings: dict[str, Any]) -> list[list[dict[str, list[int]]]]:
    """The samples that each step reads, taken out of the packed rows again."""
    per_step, rows = settings["packed_rows_per_step"], trainer.train_dataset
    batches = []
    for step in range(settings["steps"]):
        batch = []
        for row in rows.select(range(step * per_step, (step + 1) * per_step)):
            begin = 0
            for length in row["seq_lengths"]:
                batch.append({name: row[name][begin : begin + length] for name in ("input_ids", "labels")})
                begin += length
        batches.append(batch)
    return batches


def main(folder: Path, mode: str, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    clock = Clock()
    trainer = trainer_of(folder, mode, settings, clock)
    if mode == "batches":
        (folder / "packed.json").write_text(json.dumps(batches_of(trainer, settings)))
        return
    trainer.train()
    print("\n" + json.dumps(clock.points))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text()))
