"""BrowserGym's MiniWoB as a worker of benchmarks/env_steps.py: argument `delay` keeps its half-second sleep before every observation,
`no-delay` takes it out. Runs in its own venv.

It pins a Playwright that expects a Chromium of its own and starts a second one for its chat: both are given the system's instead.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import browsergym.miniwob  # noqa: F401  (registers its environments)
import gymnasium
from browsergym.core.action.highlevel import HighLevelActionSet
from playwright.sync_api import BrowserType
from worker_loop import WINDOWS, Window, arguments, serve


class BrowserGym:
    def __init__(self, window: Window, *, delay_s: float) -> None:
        self._delay_s = delay_s
        # its own window is a little larger than a task's part of the page
        self._viewport = None if window == WINDOWS["task"] else {"width": window.width, "height": window.height}
        self._env: Any = None
        self._task = ""

    def reset(self, task: str, seed: int) -> None:
        if task != self._task:
            self.close()
            mapping = HighLevelActionSet(subsets=["coord"], multiaction=False).to_python_code
            self._env = gymnasium.make(
                f"browsergym/miniwob.{task}",
                action_mapping=mapping,
                pre_observation_delay=self._delay_s,
                viewport=self._viewport,
                timeout=60_000,  # its five seconds are not enough on a busy machine
            )
            self._task = task
        self._env.reset(seed=seed)

    def step(self, x: int, y: int) -> bool:
        observation, _, terminated, truncated, _ = self._env.step(f"mouse_click({x}, {y})")
        if observation["screenshot"].size == 0 or not observation["axtree_object"]:
            raise ValueError("step without screenshot or elements")
        if observation["last_action_error"]:
            raise ValueError(observation["last_action_error"])
        return terminated or truncated

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


if __name__ == "__main__":
    launch = BrowserType.launch
    BrowserType.launch = functools.partialmethod(launch, executable_path=os.environ["BENCH_CHROMIUM"])  # type: ignore[method-assign]
    variant, window = arguments()
    serve(BrowserGym(window, delay_s=0.5 if variant == "delay" else 0.0))
