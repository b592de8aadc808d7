"""verl's functions under the invariants of reinforcement learning. Runs in its own venv.

Its GAE returns whitened advantages; what is compared are those before: returns minus values.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl
from verl.trainer.ppo import core_algos, rollout_corr_helper

from benchmarks.invariants.library import Library, LossCase, Missing, Spans

NO_CUT = "compute_gae_advantage_return has no argument for a cut-off episode's last value"
MODES = {"token": "token-mean", "episode_mean": "seq-mean-token-mean"}


def tensor(array: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


class ActorSettings(SimpleNamespace):
    """What compute_policy_loss_vanilla reads of an actor's configuration."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


class Verl(Library):
    name = "verl"
    version = verl.__version__
    functions = {  # noqa: RUF012
        "gae": "core_algos.compute_gae_advantage_return",
        "returns": "core_algos.compute_reinforce_plus_plus_outcome_advantage",
        "group": "core_algos.compute_grpo_outcome_advantage",
        "policy_loss": "core_algos.compute_policy_loss_vanilla",
        "kl_k3": "core_algos.kl_penalty",
        "correction": "rollout_corr_helper.compute_rollout_correction_weights, compute_rollout_rejection_mask",
        "value_loss": "core_algos.compute_value_loss",
    }
    notes = {  # noqa: RUF012
        "reward_on_a_masked_last_token_counts": "verl's own callers put the score on the last response token",
        "reward_on_an_observation_token_counts": "verl's own callers put the score on the last response token",
        "a_lonely_episode_gives_nothing": "by design: a group of one keeps its score as advantage",
    }

    def gae(self, spans: Spans, *, gamma: float, lambda_: float) -> tuple[Any, Any]:
        if any(spans.after(row) is not None for row in range(len(spans.mask_BT))):
            raise Missing(NO_CUT)
        # Whitening wants two response tokens or more: two rows of nothing but these are added, and left out again.
        rewards_BT, values_BT = (torch.cat([tensor(m), torch.zeros(2, m.shape[1]).double()]) for m in (spans.rewards_BT, spans.values_BT))
        mask_BT = torch.cat([tensor(spans.mask_BT), torch.ones(2, spans.mask_BT.shape[1]).double()])
        _, returns_BT = core_algos.compute_gae_advantage_return(rewards_BT, values_BT, mask_BT, gamma, lambda_)
        return (returns_BT - values_BT)[:-2].numpy(), returns_BT[:-2].numpy()

    def returns(self, spans: Spans, *, gamma: float) -> tuple[Any, Any]:
        advantages_BT, returns_BT = core_algos.compute_reinforce_plus_plus_outcome_advantage(
            tensor(spans.rewards_BT), tensor(spans.mask_BT), config=SimpleNamespace(gamma=gamma)
        )
        return advantages_BT.numpy(), returns_BT.numpy()

    def group(self, rewards_E: Any, groups_E: Sequence[str], *, normalise_std: bool) -> Any:
        advantages, _ = core_algos.compute_grpo_outcome_advantage(
            tensor(rewards_E)[:, None].clone(),
            torch.ones(len(rewards_E), 1, dtype=torch.float64),
            np.array(groups_E, dtype=object),
            norm_adv_by_std_in_grpo=normalise_std,
        )
        return advantages[:, 0].numpy()

    def policy_loss(self, case: LossCase, *, aggregation: str, parts: Sequence[Sequence[int]] | None = None) -> Any:
        info = {"batch_num_tokens": int(case.mask.sum()), "global_batch_size": len(case.mask)}
        settings = ActorSettings(
            clip_ratio=case.clip_low,
            clip_ratio_low=case.clip_low,
            clip_ratio_high=case.clip_high,
            clip_ratio_c=case.dual_clip or 1e9,
            global_batch_info=info,
        )
        total: Any = 0.0
        for rows in parts or [list(range(len(case.mask)))]:
            chosen = list(rows)
            total = (
                total
                + core_algos.compute_policy_loss_vanilla(
                    case.old_logprobs[chosen],
                    case.logprobs[chosen],
                    case.advantages[chosen],
                    case.mask[chosen].to(case.logprobs.dtype),
                    loss_agg_mode=MODES[aggregation],
                    config=settings,
                )[0]
            )
        return total

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        return core_algos.kl_penalty(logprobs, reference, "k3")

    def correction(self, proximal: Any, behaviour: Any, mask: Any, *, kind: str) -> Any:
        log_ratio, mask = proximal - behaviour, mask.double()
        if kind == "sequence_mask":
            return rollout_corr_helper.compute_rollout_rejection_mask(log_ratio, mask, "seq_mean_k1", "0.99_1.01")[0]
        threshold = {"tis": 2.0, "icepop": "0.5_5.0"}[kind]
        return rollout_corr_helper.compute_rollout_correction_weights(log_ratio, mask, "token", threshold)[0]

    def value_loss(self, values: Any, old_values: Any, targets: Any, mask: Any, *, clip: float) -> Any:
        return core_algos.compute_value_loss(values, targets, old_values, mask.double(), clip)[0]


LIBRARY = Verl()
