"""TRL's GRPO loss under the invariants of reinforcement learning. Runs in its own venv.

TRL has no PPO trainer in this version, and computes group advantages and importance weights inside its trainer's generation; what can be
called by itself is the loss, with the log-probabilities that a model would have given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.invariants.library import Library, LossCase

LOSS_TYPES = {"token": "dapo", "episode_mean": "grpo"}


def loss(
    logprobs: Any, old: Any, advantages: Any, mask: Any, *, loss_type: str, num_parts: int = 1, num_tokens: int = 1, **more: Any
) -> Any:
    """GRPOTrainer._compute_loss on given log-probabilities. `more` are settings of the trainer, or the batch's `ref_per_token_logps`."""
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "num_items_in_batch": torch.tensor(num_tokens),
    }
    if "ref_per_token_logps" in more:
        inputs["ref_per_token_logps"] = more.pop("ref_per_token_logps")
    settings = {
        "_get_per_token_logps_and_entropies": lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=more.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=num_parts),
        "accelerator": SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True),
        "current_gradient_accumulation_steps": num_parts,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "loss_type": loss_type,
        "importance_sampling_level": "token",
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "beta": 0.0,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "_entropy_bonus_enabled": False,
    }
    return GRPOTrainer._compute_loss(SimpleNamespace(**(settings | more)), None, inputs)


class Trl(Library):
    name = "TRL"
    version = trl.__version__
    functions = {"policy_loss": "GRPOTrainer._compute_loss", "kl_k3": "GRPOTrainer._compute_loss (beta)"}  # noqa: RUF012
    notes = {  # noqa: RUF012
        "micro_batches_change_no_episode_mean": "TRL's micro-batches have equal numbers of episodes; these have one and two",
        "dual_clip_bounds_bad_tokens": "`delta` bounds the ratio of all tokens from above, before the clipping",
    }

    def policy_loss(self, case: LossCase, *, aggregation: str, parts: Sequence[Sequence[int]] | None = None) -> Any:
        groups = [list(rows) for rows in parts or [list(range(len(case.mask)))]]
        total: Any = 0.0
        for rows in groups:
            total = total + loss(
                case.logprobs[rows],
                case.old_logprobs[rows],
                case.advantages[rows],
                case.mask[rows],
                loss_type=LOSS_TYPES[aggregation],
                num_parts=len(groups),
                num_tokens=int(case.mask.sum()),
                epsilon_low=case.clip_low,
                epsilon_high=case.clip_high,
                delta=case.dual_clip,
            )
        return total

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        found = torch.zeros_like(logprobs)
        for row in range(logprobs.shape[0]):
            for t in range(logprobs.shape[1]):
                one = logprobs[row : row + 1, t : t + 1]
                found[row, t] = loss(
                    one,
                    one,
                    torch.zeros_like(one),
                    torch.ones(1, 1, dtype=torch.bool),
                    loss_type="grpo",
                    beta=1.0,
                    ref_per_token_logps=reference[row : row + 1, t : t + 1],
                    epsilon_low=0.2,
                    epsilon_high=0.28,
                )
        return found


LIBRARY = Trl()
