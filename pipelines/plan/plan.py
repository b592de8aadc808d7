"""The plan of a profile and its sums: what each stage takes of time, memory and disk, what the stages take together. Estimates, which
planner.py makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assets.settings.plan import NodeKind
from assets.settings.profile import Profile
from models.families.shapes import ModelShape
from pipelines.plan.workload import Measured
from warehouse.core.stages import is_rl

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to work with."""

    num_cores: int
    num_gpus: int
    gpu_memory_bytes: float
    gpu_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage of the plan. `memory` is of one GPU where it uses any, else of one process; `disk` stays behind."""

    stage: str
    amount: str
    num_processes: int
    num_gpus: int
    tokens: float
    memory_bytes: float
    memory_parts: str
    server_bytes: float
    """of each GPU of the policy server."""
    disk_bytes: float
    network_parts: Mapping[str, float]
    """bytes between machines, by what they are (network.py)."""
    nodes: Mapping[NodeKind, int]
    """machines that it uses, by kind (cost.py)."""
    passing_bytes: float
    """disk that is free again when the stage is done: what a killed run resumes from."""
    seconds: float

    @property
    def network_bytes(self) -> float:
        return sum(self.network_parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profile: Profile
    shape: ModelShape
    machine: Machine
    measured: Measured
    seed: tuple[StagePlan, ...]
    first: tuple[StagePlan, ...]
    later: tuple[StagePlan, ...]
    """an iteration that continues from a trained policy."""
    demonstrated_steps: float
    sample_tokens: float
    """of a training sample, on average."""

    def tokens(self, stage: str) -> float:
        """What a stage of the first iteration reads or learns from; 0 for one that it has not."""
        return next((found.tokens for found in self.first if found.stage == stage), 0.0)

    def seconds(self, num_iterations: int) -> float:
        """Of the seed and so many iterations; specialists train beside each other as far as the machine has room."""
        later = self.elapsed(self.later) * max(0, num_iterations - 1)
        return self.elapsed(self.seed) + self.elapsed(self.first) + later

    def elapsed(self, stages: Sequence[StagePlan]) -> float:
        """Wall time of these stages: specialists side by side, the longest first, all else one after the other."""
        slots = [0.0] * self.at_once
        for seconds in sorted((stage.seconds for stage in stages if is_rl(stage.stage)), reverse=True):
            slots[slots.index(min(slots))] += seconds
        return max(slots) + sum(stage.seconds for stage in stages if not is_rl(stage.stage))

    @property
    def at_once(self) -> int:
        """Specialists that train at the same time: as many as the profile allows, and as have a GPU where they want one. A policy server
        answers with the weights of one."""
        if self.profile.engine.kind == "http":
            return 1
        most = self.profile.max_parallel
        needed = max((stage.num_gpus for stage in self.first if is_rl(stage.stage)), default=0)
        return max(1, min(most, (self.machine.num_gpus - self.profile.plan.server_gpus) // needed)) if needed else most

    def disk_bytes(self, num_iterations: int) -> float:
        later = max(0, num_iterations - 1) * sum(stage.disk_bytes for stage in self.later)
        at_first = (*self.seed, *self.first)
        return sum(stage.disk_bytes for stage in at_first) + later + max(stage.passing_bytes for stage in at_first)

    def network_bytes(self, num_iterations: int) -> float:
        later = max(0, num_iterations - 1) * sum(stage.network_bytes for stage in self.later)
        return sum(stage.network_bytes for stage in (*self.seed, *self.first)) + later

    @property
    def answers_on_gpus(self) -> bool:
        """Whether policies are asked on GPUs, a server's or the embedded engine's."""
        return answers_on_gpus(self.profile, self.machine)

    @property
    def gpus_needed(self) -> int:
        return self.profile.plan.server_gpus + max(stage.num_gpus for stage in (*self.seed, *self.first, *self.later))

    @property
    def gpus_here(self) -> int:
        """Of these, those of this machine, where several hosts train."""
        at_most = self.gpus_needed - self.profile.plan.server_gpus
        return self.profile.plan.server_gpus + math.ceil(at_most / max(1, len(self.profile.training.hosts)))


def answers_on_gpus(profile: Profile, machine: Machine) -> bool:
    """Whether policies are asked on GPUs: a server has its own, the embedded engine may be set to stay off this machine's."""
    return profile.engine.kind == "http" or (machine.num_gpus > 0 and profile.engine.device != "cpu")


def gpus_of_servers(profile: Profile, machine: Machine) -> int:
    """GPUs of the servers that a stage starts, where the profile puts them beside the one that trains (`device: cuda:1`)."""
    choice = profile.engine
    is_aside = choice.kind == "served" and choice.device.startswith("cuda:") and choice.device != "cuda:0"
    return choice.replicas if is_aside and machine.num_gpus else 0


def in_bytes(size: float) -> str:
    """3.4 GiB, 120 MiB."""
    return f"{size / GIB:.1f} GiB" if size >= 0.95 * GIB else f"{size / 1024**2:.0f} MiB"
