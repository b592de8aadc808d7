"""The official MiniWoB++ environment (gymnasium over selenium) as a worker of benchmarks/env_steps.py. Runs in its own venv.

Its settings are its defaults: headless Chromium, no waiting, screenshot and DOM elements in every observation. The sizes of its window and
of what it observes are constants, which are set for another window.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import miniwob  # noqa: F401  (registers its environments)
from miniwob import selenium_instance
from miniwob.action import ActionTypes
from worker_loop import arguments, serve


class Official:
    def __init__(self) -> None:
        self._envs: dict[str, Any] = {}
        self._env: Any = None

    def reset(self, task: str, seed: int) -> None:
        if task not in self._envs:
            for env in self._envs.values():  # one browser at a time, as everywhere
                env.close()
            self._envs = {task: gymnasium.make(f"miniwob/{task}-v1").unwrapped}
        self._env = self._envs[task]
        self._env.reset(seed=seed)

    def step(self, x: int, y: int) -> bool:
        action = self._env.create_action(ActionTypes.CLICK_COORDS, coords=[x, y])
        observation, _, terminated, truncated, _ = self._env.step(action)
        if not terminated and (observation["screenshot"].size == 0 or not observation["dom_elements"]):
            raise ValueError("step without screenshot or elements")
        return terminated or truncated

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


if __name__ == "__main__":
    window = arguments()[1]
    selenium_instance.WINDOW_WIDTH, selenium_instance.WINDOW_HEIGHT = window.width, window.height
    selenium_instance.TASK_WIDTH, selenium_instance.TASK_HEIGHT = window.area_width, window.area_height
    serve(Official())
