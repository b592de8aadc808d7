"""TRL's GRPOTrainer as a peer of benchmarks/rl_beside_trl.py. Runs in a venv of its own and knows nothing of this project but the file of
the model class.

    python trl_grpo.py SETTINGS.json

Speaks JSON lines, one object each, over stdin and stdout: says {"round": N} when it wants a batch; answers {"prompts": [ids, …]} with
{"answers": [{"ids": …, "logprobs": …}, …]} as often as it is asked; takes {"rows": [{"prompt_ids": …, "completion_ids": …, "logprobs": …,
"reward": …}, …]} as the batch, group by group; and says {"done": …} when its weights are saved. A reward of null is an attempt that nobody
could judge.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

WIRE = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what libraries print must not come between our lines


def say(message: dict[str, Any]) -> None:
    WIRE.write(json.dumps(message) + "\n")
    WIRE.flush()


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the other end is gone")
    return dict(json.loads(line))


def import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


@torch.no_grad()
def sample(trainer: GRPOTrainer, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """One completion a prompt from the whole distribution at temperature 1, cut after its end token."""
    tokenizer, width = trainer.processing_class, max(map(len, prompts))
    ids_BT = torch.tensor([[tokenizer.pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts])
    mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    trainer.model.eval()
    made = trainer.model.generate(
        input_ids=ids_BT,
        attention_mask=mask_BT,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=trainer.args.max_completion_length,
        return_dict_in_generate=True,
        output_logits=True,
    )
    trainer.model.train()
    written_BT = made.sequences[:, width:]
    logprobs_BT = torch.stack(made.logits, dim=1).float().log_softmax(-1).gather(2, written_BT[..., None])[..., 0]
    answers = []
    for ids, logprobs in zip(written_BT.tolist(), logprobs_BT.tolist(), strict=True):
        length = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        answers.append({"ids": ids[:length], "logprobs": logprobs[:length]})
    return answers


def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
    """TRL's RolloutFunc: `prompts` only say how many attempts are due; what is asked comes from the pages."""
    say({"round": len(prompts)})
    while "rows" not in (message := hear()):
        say({"answers": sample(trainer, message["prompts"])})
    rows = message["rows"]
    if len(rows) != len(prompts):
        raise SystemExit(f"asked for {len(prompts)} attempts and got {len(rows)}")
    return {key: [row[key] for row in rows] for key in ("prompt_ids", "completion_ids", "logprobs", "reward")}


def rewards(completions: list[Any], reward: list[float | None], **_: Any) -> list[float | None]:
    return reward


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    import_file(Path(settings["model_class"]))
    num_parts = settings["round_episodes"] // settings["minibatch_episodes"]
    arguments = GRPOConfig(
        output_dir=settings["output"],
        seed=settings["seed"],
        max_steps=settings["rounds"] * num_parts * settings["epochs"],
        per_device_train_batch_size=settings["minibatch_episodes"],
        gradient_accumulation_steps=1,
        steps_per_generation=num_parts,
        num_generations=settings["group_size"],
        num_iterations=settings["epochs"],
        max_completion_length=settings["max_new_tokens"],
        temperature=1.0,
        loss_type="grpo",
        scale_rewards="group",
        beta=0.0,
        epsilon=settings["clip_low"],
        epsilon_high=settings["clip_high"],
        max_grad_norm=settings["max_grad_norm"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings["warmup_steps"],
        optim="adamw_torch",
        weight_decay=0.0,
        adam_beta1=settings["adam_beta1"],
        adam_beta2=settings["adam_beta2"],
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["start"], dtype=torch.float32),
        reward_funcs=rewards,
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(settings["start"]),
        rollout_func=rollout,
        train_dataset=Dataset.from_dict({"prompt": ["a page"] * (settings["round_episodes"] // settings["group_size"])}),
    )
    started_cpu_s = time.process_time()
    trainer.train()
    cpu_s = time.process_time() - started_cpu_s
    trainer.model.save_pretrained(settings["output"])
    say({"done": {"cpu_s": cpu_s, "updates": trainer.state.global_step}})


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
