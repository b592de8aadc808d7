"""Where a round's time went: a policy that measures, readings of the clocks, and figures of the time between them. docs/streaming.md lists
what is logged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.episode.collector import LeaseUse
from agent.policy.policy import Policy, Prompt, Response, is_continuous
from models.rl.rollouts.pool import RolloutPool


class MeteredPolicy:
    """Passes prompts on and measures. `version` counts the updates of the weights that answer now: a response of an engine that counts none
    itself is marked with the version that its prompt was asked at, which is never too new."""

    def __init__(self, policy: Policy, *, version: int) -> None:
        self._policy = policy
        self.version = version
        self.num_tokens = 0
        self._num_asked, self._since_s, self._busy_s = 0, 0.0, 0.0

    @property
    def policy_id(self) -> str:
        return self._policy.policy_id

    @property
    def is_continuous(self) -> bool:
        return is_continuous(self._policy)

    @property
    def busy_s(self) -> float:
        """Seconds so far in which at least one prompt waited for its answer."""
        return self._busy_s + (time.perf_counter() - self._since_s if self._num_asked else 0.0)

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        version = self.version
        if not self._num_asked:
            self._since_s = time.perf_counter()
        self._num_asked += 1
        try:
            responses = await self._policy.act(prompts)
        finally:
            self._num_asked -= 1
            if not self._num_asked:
                self._busy_s += time.perf_counter() - self._since_s
        self.num_tokens += sum(len(response.token_ids) for response in responses)
        return [response if response.versions else _versioned(response, version) for response in responses]


def _versioned(response: Response, version: int) -> Response:
    return replace(response, versions=(version,) * len(response.token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The clocks at one moment: wall and process, seconds of generation, environment steps, use of the leases."""

    wall_s: float
    cpu_s: float
    gen_s: float
    num_tokens: int
    num_steps: int
    leases: LeaseUse | None

    @classmethod
    def of(cls, rollout_pool: RolloutPool, policy: MeteredPolicy) -> Reading:
        return cls(
            wall_s=time.perf_counter(),
            cpu_s=time.process_time(),
            gen_s=policy.busy_s,
            num_tokens=policy.num_tokens,
            num_steps=rollout_pool.num_env_steps,
            leases=rollout_pool.lease_use,
        )


def times(start: Reading, collected: Reading, end: Reading, update_cpu_s: float, *, is_streaming: bool) -> dict[str, float]:
    """Where a round's time went. `wait_s`: until the batch was complete; `round_s`: all of it; `gen_s`: some prompt waited for its answer;
    `env_s`: rollouts could go on and none did; `overlap_share`: of the time that learning took, generation had; `env_steps_per_s` and
    `gen_tokens_per_s`: over the whole round; `lease_busy_share`: of the time of all the pool's sessions, an unfinished episode
    held them; left out where the pool does not know how many it has."""
    wait_s, round_s, gen_s = collected.wall_s - start.wall_s, end.wall_s - start.wall_s, end.gen_s - start.gen_s
    learning_s = end.wall_s - collected.wall_s
    found = {
        "wait_s": wait_s,
        "round_s": round_s,
        "gen_s": gen_s,
        "env_s": max(0.0, (round_s if is_streaming else wait_s) - gen_s),
        "collect_cpu_s": max(0.0, end.cpu_s - start.cpu_s - update_cpu_s),
        "overlap_share": min(1.0, (end.gen_s - collected.gen_s) / max(learning_s, 1e-9)),
        "env_steps_per_s": (end.num_steps - start.num_steps) / round_s,
        "gen_tokens_per_s": (end.num_tokens - start.num_tokens) / round_s,
    }
    if start.leases is not None and end.leases is not None and end.leases.num_sessions:
        found["lease_busy_share"] = (end.leases.leased_s - start.leases.leased_s) / (end.leases.num_sessions * round_s)
    return found
