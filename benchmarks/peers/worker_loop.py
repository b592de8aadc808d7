"""The worker side of benchmarks/env_steps.py: answers requests on standard input, one JSON object a line. Standard library only, since it
runs in the venv of whichever environment is measured.

    {"do": "reset", "task": NAME, "seed": N}   ->  {"seconds": …}
    {"do": "steps", "num": N}                  ->  {"seconds": …, "steps": N}   a new instance, when one ends, is not counted
    {"do": "end"}

A step clicks CLICK_PX, in the instruction's bar, which no task does anything with, and fetches the observation: screenshot and elements.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

CLICK_PX = (155, 45)
AREA_PX = (160, 210)


class Contestant(Protocol):
    """An environment under test."""

    def reset(self, task: str, seed: int) -> None: ...

    def step(self, x: int, y: int) -> bool:
        """Click and observe; whether the episode has ended. Raises ValueError where the observation lacks screenshot or elements."""
        ...

    def close(self) -> None: ...


def serve(contestant: Contestant) -> None:
    """Answer until told to end."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with replies
    task, seed = "", 0
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "end":
            break
        if request["do"] == "reset":
            task, seed = request["task"], request["seed"]
            started = time.perf_counter()
            contestant.reset(task, seed)
            reply: dict[str, Any] = {"seconds": time.perf_counter() - started}
        else:
            seconds = 0.0
            for _ in range(request["num"]):
                started = time.perf_counter()
                has_ended = contestant.step(*CLICK_PX)
                seconds += time.perf_counter() - started
                if has_ended:
                    contestant.reset(task, seed)
            reply = {"seconds": seconds, "steps": request["num"]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    contestant.close()
