"""OpenEnv's own server and client, for test_openenv.py. Runs in OpenEnv's venv; the standard library and OpenEnv only.

openenv_peer.py serve PORT      a number to find, by higher and lower
openenv_peer.py play URL        one episode of one click at another's server; prints a line of JSON
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient


class Guess(Action):
    word: str


class Seen(Observation):
    text: str = ""
    low: int = 1
    high: int = 64


class Numbers(Environment):  # type: ignore[misc, type-arg]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        dice = random.Random(seed)
        self.low = dice.randint(1, 1000)
        self.high, self.num_steps = self.low + 63, 0
        self.number = dice.randint(self.low, self.high)
        return self._seen("Find the number.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Seen:  # type: ignore[override]
        self.num_steps += 1
        guess = int(action.word)
        if guess == self.number:
            return self._seen("Found.", done=True, reward=1.0)
        self.low, self.high = (max(self.low, guess + 1), self.high) if guess < self.number else (self.low, min(self.high, guess - 1))
        return self._seen("higher" if guess < self.number else "lower")

    def _seen(self, text: str, **more: Any) -> Seen:
        return Seen(text=f"{text} It is from {self.low} to {self.high}.", low=self.low, high=self.high, **more)

    @property
    def state(self) -> State:
        return State(step_count=self.num_steps)


async def play(url: str) -> None:
    async with GenericEnvClient(base_url=url) as env:
        first = await env.reset(seed=3)
        (button,) = [each for each in first.observation["elements"] if each["role"] == "button"]
        last = await env.step({"kind": "click", "x": button["x_px"], "y": button["y_px"]})
        problem = ""
        try:
            await env.step({"kind": "fly"})
        except RuntimeError as error:
            problem = str(error)
        state = await env.state()
    row = {"instruction": first.observation["instruction"], "reward": last.reward, "done": last.done, "state": state, "problem": problem}
    print(json.dumps({**row, "screenshot": first.observation["screenshot"][:12]}))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        app = create_fastapi_app(Numbers, Guess, Seen, max_concurrent_envs=8)
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
    else:
        asyncio.run(play(sys.argv[2]))
