"""What programs of peers share that play waiting episodes for benchmarks/nodes.py: when each episode was done, and the processor time of
it. Runs in a peer's venv; the standard library only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

Play = Callable[[int], Awaitable[list[float]]]
"""Plays so many episodes, as many at once as there are sessions; when each was done."""


async def print_measured(
    play: Play, sessions: int, episodes_per_session: int, steps: int, nodes: Sequence[int], head: Sequence[int]
) -> None:
    """A line of JSON, with the processor time of this process and of those of `nodes` and `head`. One episode a session comes first, for
    connections and imports."""
    await play(sessions)
    num_steps = sessions * episodes_per_session * steps
    before, started_s = [_cpu_s(nodes), time.process_time(), _cpu_s(head)], time.monotonic()
    done_s = await play(sessions * episodes_per_session)
    after = [_cpu_s(nodes), time.process_time(), _cpu_s(head)]
    costs = [1000 * (end - start) / num_steps for start, end in zip(before, after, strict=True)]
    cpu = dict(zip(("node_cpu_ms", "stage_cpu_ms", "head_cpu_ms"), costs, strict=True))
    print(json.dumps({"started_s": started_s, "done_s": sorted(done_s), **cpu}))


def _cpu_s(pids: Sequence[int]) -> float:
    """Up to now, in user and system mode."""
    found = 0.0
    for pid in pids:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    return found
