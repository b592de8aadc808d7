"""Our own functions under the invariants of reinforcement learning (benchmarks/invariants/library.py).

Rows of masked tokens are made into trajectories first, as episodes arrive: a step for each run of response tokens, and what the environment
paid between the end of a response and the next one belongs to that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.invariants.library import Library, LossCase, Spans
from models.ppo.advantages import batch_advantages, decoupled_gae, explained_variance, group_advantages, length_adaptive_lambda
from models.ppo.buffer import Trajectory, TrajectoryStep
from models.ppo.config import PpoConfig
from models.ppo.critic import rewards_per_value
from models.ppo.losses import Aggregation, LossSettings, kl_k3, policy_loss, token_weights, value_loss
from models.ppo.off_policy import sequence_kept, token_correction

Floats = NDArray[np.float64]


def trajectories(spans: Spans) -> list[Trajectory]:
    """Each row as an episode."""
    items = []
    for row, mask in enumerate(spans.mask_BT):
        starts = [t for t in np.flatnonzero(mask) if t == 0 or not mask[t - 1]]
        steps = []
        for start, until in zip(starts, [*starts[1:], len(mask)], strict=True):
            length = int(mask[start:until].sum())
            paid = [float(reward) for reward in spans.rewards_BT[row, start:until]]
            step = TrajectoryStep(
                prompt_ids=(1,),
                response_ids=(2,) * length,
                logprobs=(0.0,) * length,
                reward=sum(paid[length - 1 :]),
                token_rewards=(*paid[: length - 1], 0.0),
            )
            steps.append(step)
        total = float(spans.rewards_BT[row].sum())
        after = spans.after(row)
        items.append(
            Trajectory(episode_id=str(row), task_name="t", steps=tuple(steps), reward=total, is_truncated=after is not None)
        )  # fmt: skip
    return items


class Ours(Library):
    name = "Flywheel"
    functions = {  # noqa: RUF012
        "gae": "models.ppo.advantages.decoupled_gae",
        "decoupled_gae": "models.ppo.advantages.decoupled_gae",
        "length_lambda": "models.ppo.advantages.length_adaptive_lambda",
        "returns": "models.ppo.advantages.batch_advantages",
        "group": "models.ppo.advantages.group_advantages",
        "policy_loss": "models.ppo.losses.policy_loss",
        "kl_k3": "models.ppo.losses.kl_k3",
        "correction": "models.ppo.off_policy.token_correction",
        "value_loss": "models.ppo.losses.value_loss",
        "explained_variance": "models.ppo.advantages.explained_variance",
    }

    def gae(self, spans: Spans, *, gamma: float, lambda_: float) -> tuple[Floats, Floats]:
        return self.decoupled_gae(spans, gamma=gamma, lambda_policy=lambda_, lambda_critic=lambda_)

    def decoupled_gae(self, spans: Spans, *, gamma: float, lambda_policy: float, lambda_critic: float) -> tuple[Floats, Floats]:
        advantages_BT, targets_BT = np.zeros(spans.mask_BT.shape), np.zeros(spans.mask_BT.shape)
        for row, item in enumerate(trajectories(spans)):
            result = decoupled_gae(
                rewards_per_value(item, "token"), spans.values_BT[row][spans.mask_BT[row]], gamma=gamma,
                lambda_policy=lambda_policy, lambda_critic=lambda_critic, bootstrap_value=spans.after(row) or 0.0,
            )  # fmt: skip
            advantages_BT[row, spans.mask_BT[row]] = result.advantages_T
            targets_BT[row, spans.mask_BT[row]] = result.targets_T
        return advantages_BT, targets_BT

    def length_lambda(self, num_tokens: int, *, alpha: float) -> float:
        return length_adaptive_lambda(num_tokens, alpha=alpha, floor=0.0)

    def returns(self, spans: Spans, *, gamma: float) -> tuple[Floats, Floats]:
        rewards = [rewards_per_value(item, "token") for item in trajectories(spans)]
        advantages_BT = np.zeros(spans.mask_BT.shape)
        for row, values in enumerate(batch_advantages(rewards, gamma=gamma)):
            advantages_BT[row, spans.mask_BT[row]] = values
        zero = Spans(
            mask_BT=spans.mask_BT, rewards_BT=spans.rewards_BT, values_BT=np.zeros(spans.mask_BT.shape), after_B=spans.after_B
        )  # fmt: skip
        return advantages_BT, self.gae(zero, gamma=gamma, lambda_=1.0)[0]

    def group(self, rewards_E: Floats, groups_E: Sequence[str], *, normalise_std: bool) -> Floats:
        return group_advantages(rewards_E, groups_E, normalise_std=normalise_std)

    def policy_loss(self, case: LossCase, *, aggregation: Aggregation, parts: Sequence[Sequence[int]] | None = None) -> Any:  # type: ignore[override]
        """Masked tokens are no tokens here: only the response tokens of each row are laid end to end."""
        num_tokens, num_rows = int(case.mask.sum()), len(case.mask)
        total: Any = 0.0
        for rows in parts or [list(range(num_rows))]:
            chosen = case.mask[list(rows)]
            logprobs_N = case.logprobs[list(rows)][chosen]
            step_N = chosen.nonzero()[:, 0]
            weights_N = token_weights(
                step_N, aggregation=aggregation, num_episodes=num_rows, num_steps=num_rows, num_tokens=num_tokens, episode_scale=1.0,
                episode_tokens_N=chosen.sum(1)[step_N].to(logprobs_N.dtype),
            )  # fmt: skip
            # The vocabulary is the sampled token and one that takes the rest of the probability.
            rest_N = torch.log1p(-logprobs_N.exp().clamp(max=1 - 1e-6))
            total = total + policy_loss(
                torch.stack([logprobs_N, rest_N], dim=1), torch.zeros_like(step_N), case.old_logprobs[list(rows)][chosen],
                case.advantages[list(rows)][chosen], weights_N,
                LossSettings(
                    clip_low=case.clip_low, clip_high=case.clip_high, dual_clip=case.dual_clip, objective="clip", kl_coefficient=0.0,
                    entropy_coefficient=0.0,
                ),
            ).loss  # fmt: skip
        return total

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        return kl_k3(reference, logprobs)

    def correction(self, proximal: Any, behaviour: Any, mask: Any, *, kind: str) -> Any:
        config = PpoConfig(off_policy=kind)  # type: ignore[arg-type]
        if kind != "sequence_mask":
            return torch.where(mask, token_correction(proximal.detach(), behaviour, config), 0.0)
        kept = [sequence_kept(proximal[i][mask[i]].numpy(), behaviour[i][mask[i]].numpy(), config) for i in range(len(mask))]
        return torch.tensor(kept, dtype=torch.float64)[:, None] * mask

    def value_loss(self, values: Any, old_values: Any, targets: Any, mask: Any, *, clip: float) -> Any:
        return value_loss(values[mask], targets[mask], old_values_N=old_values[mask], clip=clip)

    def explained_variance(self, values: Floats, returns: Floats) -> float:
        return explained_variance(values, returns)


LIBRARY = Ours()
