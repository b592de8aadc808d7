"""torchrl's functions under the invariants of reinforcement learning. Runs in its own venv.

Its value functions know the ends of episodes and no mask: they do not take rows with observations inside. Of its GRPO loss the three
parts that a batch goes through are called one after the other, with the log-probabilities that an actor would have given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torchrl
from torchrl.objectives.llm.grpo import GRPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate, td_lambda_return_estimate

from benchmarks.invariants.library import Library, LossCase, Missing, Spans

AGGREGATIONS = {"token": "token_mean", "episode_mean": "prompt_mean"}


class Batch:
    """The few calls that the loss makes to a TensorDict."""

    def __init__(self, **tensors: Any) -> None:
        self._tensors = tensors

    def get(self, key: str, default: Any = None, **_: Any) -> Any:
        return self._tensors.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._tensors[key] = value


def arguments(spans: Spans) -> dict[str, torch.Tensor]:
    """Values, next values, rewards and ends of rows (B, T, 1)."""
    done_BT, terminated_BT = np.zeros(spans.mask_BT.shape, dtype=bool), np.zeros(spans.mask_BT.shape, dtype=bool)
    next_BT = np.pad(spans.values_BT, ((0, 0), (0, 1)))[:, 1:].copy()
    for row, mask in enumerate(spans.mask_BT):
        first, last = np.flatnonzero(mask)[[0, -1]]
        if not mask[first : last + 1].all() or spans.rewards_BT[row, last + 1 :].any():
            raise Missing("the value functions have no mask")
        after = spans.after(row)
        done_BT[row, last], terminated_BT[row, last] = True, after is None
        if after is not None:
            next_BT[row, last] = after
    arrays = {"state_value": spans.values_BT, "next_state_value": next_BT, "reward": spans.rewards_BT}
    tensors = {name: torch.tensor(array, dtype=torch.float64)[..., None] for name, array in arrays.items()}
    return tensors | {"done": torch.tensor(done_BT)[..., None], "terminated": torch.tensor(terminated_BT)[..., None]}


class TorchRl(Library):
    name = "torchrl"
    version = torchrl.__version__
    functions = {  # noqa: RUF012
        "gae": "objectives.value.functional.generalized_advantage_estimate",
        "decoupled_gae": "generalized_advantage_estimate with td_lambda_return_estimate",
        "policy_loss": "objectives.llm.grpo.GRPOLoss (_log_weight, _compute_policy_objective, _aggregate_loss_value)",
        "kl_k3": "objectives.llm.grpo.GRPOLoss._kl_to_ref",
    }
    notes = {  # noqa: RUF012
        "micro_batches_change_no_token_mean": "the loss has no argument for the tokens of the whole minibatch",
        "micro_batches_change_no_episode_mean": "the loss has no argument for the episodes of the whole minibatch",
    }

    def gae(self, spans: Spans, *, gamma: float, lambda_: float) -> tuple[Any, Any]:
        advantages, targets = generalized_advantage_estimate(gamma, lambda_, **arguments(spans))
        return advantages[..., 0].numpy(), targets[..., 0].numpy()

    def decoupled_gae(self, spans: Spans, *, gamma: float, lambda_policy: float, lambda_critic: float) -> tuple[Any, Any]:
        given = arguments(spans)
        advantages, _ = generalized_advantage_estimate(gamma, lambda_policy, **given)
        given.pop("state_value")
        targets = td_lambda_return_estimate(gamma, lambda_critic, **given)
        return advantages[..., 0].numpy(), targets[..., 0].numpy()

    def policy_loss(self, case: LossCase, *, aggregation: str, parts: Sequence[Sequence[int]] | None = None) -> Any:
        if case.dual_clip is not None:
            raise Missing("no dual clip")
        groups = [list(rows) for rows in parts or [list(range(len(case.mask)))]]
        return sum(self._loss(case, rows, AGGREGATIONS[aggregation]) / len(groups) for rows in groups)

    def _loss(self, case: LossCase, rows: list[int], aggregation: str) -> Any:
        distribution = SimpleNamespace(mask=case.mask[rows])
        loss = SimpleNamespace(
            tensor_keys=SimpleNamespace(sample_log_prob="old"),
            _get_cur_log_prob=lambda _: (case.logprobs[rows], distribution, False),
            _clip_bounds=(math.log1p(-case.clip_low), math.log1p(case.clip_high)),
            aggregation=aggregation,
            reduction="mean",
            use_prioritized_weights=False,
        )
        loss._expand_loss_mask = GRPOLoss._expand_loss_mask
        loss._reduce_loss = functools.partial(GRPOLoss._reduce_loss, loss)
        log_weight, _, _, mask = GRPOLoss._log_weight(loss, Batch(old=case.old_logprobs[rows]), case.mask[rows].shape)
        objective, _ = GRPOLoss._compute_policy_objective(loss, log_weight, case.advantages[rows][..., None])
        return GRPOLoss._aggregate_loss_value(loss, objective, mask, tensordict=None).sum()

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        found = torch.zeros_like(logprobs)
        for place in np.ndindex(tuple(logprobs.shape)):
            batch = Batch(_cur_log_prob=logprobs[place].reshape(1, 1), reference=reference[place].reshape(1, 1))
            settings = SimpleNamespace(ref_log_prob_padding_side="left", ref_log_prob_padding_value=0.0)
            found[place] = GRPOLoss._kl_to_ref(settings, batch, key="reference", coeff=1.0)[1]
        return found


LIBRARY = TorchRl()
