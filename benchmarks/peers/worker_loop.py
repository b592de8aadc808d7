"""The worker side of benchmarks/env_steps.py: answers requests on standard input, one JSON object a line. Standard library only, since it
runs in the venv of whichever environment is measured. Its arguments: the variant of the environment, and a name of WINDOWS.

    {"do": "load", "task": NAME, "seed": N}                         ->  {"seconds": …}
    {"do": "episodes", "task": NAME, "seed": N, "num": K, "steps": S}
                          ->  {"seconds": all of it, "reset_s": [of each episode], "step_s": of all steps together, "steps": K × S}
    {"do": "end"}

An episode is a reset, which gives an observation, and S steps. A step clicks CLICK_PX, in the instruction's bar, which no task does
anything with, and fetches the observation: screenshot and elements.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, NamedTuple, Protocol

CLICK_PX = (155, 45)


class Window(NamedTuple):
    """Sizes in pixels: of the window, and of what is observed of it."""

    width: int
    height: int
    area_width: int
    area_height: int


WINDOWS = {"task": Window(500, 320, 160, 210), "720p": Window(1280, 720, 1280, 720)}
"""`task`: the part that MiniWoB's tasks take; `720p`: the same pages in a window of that size, all of it observed."""


class Contestant(Protocol):
    """An environment under test."""

    def reset(self, task: str, seed: int) -> None:
        """Start an instance and observe it."""
        ...

    def step(self, x: int, y: int) -> bool:
        """Click and observe; whether the episode has ended. Raises ValueError where the observation lacks screenshot or elements."""
        ...

    def close(self) -> None: ...


def arguments() -> tuple[str, Window]:
    """The variant and the window that this worker was started with."""
    return sys.argv[1], WINDOWS[sys.argv[2]]


def serve(contestant: Contestant) -> None:
    """Answer until asked to end."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with replies
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "end":
            break
        task, seed = request["task"], request["seed"]
        started = time.perf_counter()
        if request["do"] == "load":
            contestant.reset(task, seed)
            reply: dict[str, Any] = {}
        else:
            episodes = [play(contestant, task, seed + number, request["steps"]) for number in range(request["num"])]
            reply = {
                "reset_s": [reset_s for reset_s, _ in episodes],
                "step_s": sum(step_s for _, step_s in episodes),
                "steps": request["num"] * request["steps"],
            }
        reply["seconds"] = time.perf_counter() - started
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    contestant.close()


def play(contestant: Contestant, task: str, seed: int, num_steps: int) -> tuple[float, float]:
    """Seconds that the reset and the steps of one episode took."""
    started = time.perf_counter()
    contestant.reset(task, seed)
    reset_s, step_s = time.perf_counter() - started, 0.0
    for _ in range(num_steps):
        started = time.perf_counter()
        if contestant.step(*CLICK_PX):
            raise ValueError(f"{task} ended by a click beside everything")
        step_s += time.perf_counter() - started
    return reset_s, step_s
