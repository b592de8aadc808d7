"""Which instances of the tasks each stage uses. Every stage of every iteration has its own part of the train split, so no
two ever see the same instance; `eval` and `holdout` instances never change.

An iteration's block is cut into the parts of FIRST_IN_BLOCK; the seed's, which is block 0, is all demonstrations. A profile that asks for
more than a part holds is refused (assets/settings/profile.py).
"""

from __future__ import annotations

from typing import Literal

from assets.iterations.keys import iteration_number
from warehouse.core.errors import ConfigError
from warehouse.core.stages import SEED_ITERATION

TrainPurpose = Literal["demonstration", "rollout", "annotation", "rl"]

BLOCK = 1_000
"""Train instances of one task that one iteration may use."""
FIRST_IN_BLOCK: dict[TrainPurpose, int] = {"demonstration": 0, "rollout": 0, "annotation": 200, "rl": 400}
SEED_STRIDE = 40
"""Different profile seeds demonstrate different instances."""


def max_instances(purpose: TrainPurpose, seed: int = 0) -> int:
    """Train instances of one task that this stage of one iteration may use."""
    if purpose == "demonstration":
        return BLOCK - first_instance("demonstration", SEED_ITERATION, seed)
    first = FIRST_IN_BLOCK[purpose]
    return min((other for other in FIRST_IN_BLOCK.values() if other > first), default=BLOCK) - first


def first_instance(purpose: TrainPurpose, iteration: str, seed: int = 0) -> int:
    """How many train instances of a task come before the ones this stage uses."""
    number = iteration_number(iteration)
    if purpose == "demonstration":
        if number != 0:
            raise ConfigError(f"demonstrations belong to iteration 0000, not {iteration}")
        return (seed * SEED_STRIDE) % BLOCK
    return number * BLOCK + FIRST_IN_BLOCK[purpose]
