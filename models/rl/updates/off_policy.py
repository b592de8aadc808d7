"""Tokens that other weights than the learner's sampled: their staleness, and what weight each keeps in the policy loss.

Three policies: the sampler (mu, whose log-probabilities were stored with the tokens), the proximal one (the learner at the start of an
update, which the ratio is clipped against), and the one being updated. The weight of a token is proximal / sampler, constant through an
update; 0 takes a token out of the policy loss. Such a token stays part of GAE and of the value targets.

What is logged of staleness is a batch's matter (models/rl/metrics.py). Shape suffixes: N tokens; T response tokens of one episode.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.rl.config import PpoConfig
from models.rl.updates.advantages import Floats
from models.rl.updates.buffer import Trajectory
from models.rl.updates.losses import log_ratio

Counts = NDArray[np.int64]
OUTLIER_RATIOS = (1e-4, 100.0)
"""A single token outside this drops its episode under sequence_mask (SkyRL)."""


def staleness(item: Trajectory, version: int) -> Counts:
    """How many updates older than the learner (`version`) the weights behind each response token were; 0 where nothing was recorded."""
    versions = [v for step in item.steps for v in (step.versions or (version,) * len(step.response_ids))]
    return np.maximum(version - np.array(versions, dtype=np.int64), 0)


def loglinear_proximal(logprobs_N: Tensor, behaviour_N: Tensor, staleness_N: Tensor) -> Tensor:
    """log proximal = log mu + a (log theta - log mu), a = (v_proximal - v_mu) / (v_theta - v_mu): by token version, without a forward pass.

    Source: A-3PO, as AReaL documents it ("Proximal log-probability approximation"). theta is one update ahead of proximal, so
    a = s / (s + 1) at staleness s: a fresh token keeps the sampler's. No gradient."""
    a_N = staleness_N / (staleness_N + 1.0)
    return (behaviour_N + a_N * (logprobs_N - behaviour_N)).detach()


def token_correction(proximal_N: Tensor, behaviour_N: Tensor, config: PpoConfig) -> Tensor:
    """The weight of each token in the policy loss, from log-probabilities; w = proximal / sampler.

    tis: min(w, tis_cap), truncated importance sampling (verl's and SkyRL's rollout correction; Ionides 2008). decoupled: w, or 0 above
    decoupled_cap (AReaL, arXiv 2505.24298, and its behave_imp_weight_cap). icepop: w inside [icepop_low, icepop_high], else 0 (IcePop,
    arXiv 2510.18855). sequence_mask: 1; its mask is of whole episodes (`sequence_kept`). none: 1.
    """
    weights_N = torch.exp(log_ratio(proximal_N, behaviour_N))
    if config.off_policy == "tis":
        return weights_N.clamp(max=config.tis_cap)
    if config.off_policy == "decoupled":
        return weights_N if config.decoupled_cap is None else torch.where(weights_N > config.decoupled_cap, 0.0, weights_N)
    if config.off_policy == "icepop":
        return torch.where((weights_N < config.icepop_low) | (weights_N > config.icepop_high), 0.0, weights_N)
    return torch.ones_like(weights_N)


def sequence_kept(proximal_T: Floats, behaviour_T: Floats, config: PpoConfig) -> bool:
    """Whether an episode's tokens stay in the policy loss under sequence_mask: the geometric mean of its weights lies in the band, and no
    single one is absurd (SkyRL's geometric sequence mask)."""
    log_weights_T = proximal_T - behaviour_T
    lowest, highest = np.log(OUTLIER_RATIOS)
    has_outlier = bool(((log_weights_T < lowest) | (log_weights_T > highest)).any())
    least, most = np.log([config.sequence_mask_low, config.sequence_mask_high])
    return bool(least <= log_weights_T.mean() <= most) and not has_outlier


def episode_correction(item: Trajectory, proximal_T: Floats | None, version: int, config: PpoConfig) -> Floats:
    """The weight of each response token of an episode. Without proximal log-probabilities (off_policy none, or loglinear, whose weight
    depends on the policy as it moves) only `max_staleness` speaks."""
    behaviour_T = np.array([x for step in item.steps for x in step.logprobs])
    weights_T = np.ones(item.num_response_tokens)
    if proximal_T is not None:
        weights_T = token_correction(torch.from_numpy(proximal_T), torch.from_numpy(behaviour_T), config).numpy()
        if config.off_policy == "sequence_mask" and not sequence_kept(proximal_T, behaviour_T, config):
            weights_T = np.zeros_like(weights_T)
    if config.max_staleness is not None:
        weights_T = np.where(staleness(item, version) > config.max_staleness, 0.0, weights_T)
    return weights_T
