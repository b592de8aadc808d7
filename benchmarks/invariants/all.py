"""All invariants of multi-turn reinforcement learning, those of advantages first."""

from __future__ import annotations

from benchmarks.invariants.advantages import ADVANTAGE_INVARIANTS
from benchmarks.invariants.losses import LOSS_INVARIANTS

INVARIANTS = (*ADVANTAGE_INVARIANTS, *LOSS_INVARIANTS)
