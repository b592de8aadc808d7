"""The waiting sessions of benchmarks/nodes.py in OpenEnv's way: one HTTP server with all the environments, a client with a WebSocket each.
Runs in OpenEnv's venv; the standard library and OpenEnv only.

    openenv_waiting.py serve ADDRESS STEP_MS STEPS SESSIONS
    openenv_waiting.py play ADDRESS STEP_MS STEPS SESSIONS EPISODES_A_SESSION PIDS_OF_NODE

`play` wants the server up and prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from waiting_episodes import print_measured

PORT = 8422
ROLE, ADDRESS = sys.argv[1:3]
STEP_MS, STEPS, SESSIONS = float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])


class Click(Action):
    x: int = 1
    y: int = 1


class Seen(Observation):
    text: str = ""


class Waiting(Environment):  # type: ignore[misc, type-arg]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def reset(self, *_: Any, **__: Any) -> Seen:
        self.count = 0
        return Seen(text="count 0")

    def step(self, action: Click, *_: Any, **__: Any) -> Seen:  # type: ignore[override]
        raise NotImplementedError("the server calls step_async")

    async def step_async(self, action: Click, *_: Any, **__: Any) -> Seen:  # type: ignore[override]
        await asyncio.sleep(STEP_MS / 1000)
        self.count += 1
        return Seen(text=f"count {self.count}", done=self.count >= STEPS, reward=float(self.count >= STEPS))

    @property
    def state(self) -> State:
        return State(step_count=self.count)


async def _episodes(num: int) -> list[float]:
    """When each was done."""
    done_s = []
    for _ in range(num):  # a session of its own for each episode, as a lease is
        async with GenericEnvClient(base_url=f"http://{ADDRESS}:{PORT}") as env:
            result = await env.reset()
            while not result.done:
                result = await env.step({"x": 1, "y": 1})
            assert result.reward == 1.0, "an episode failed"
        done_s.append(time.monotonic())
    return done_s


async def _play(num: int) -> list[float]:
    found = await asyncio.gather(*(_episodes(num // SESSIONS) for _ in range(SESSIONS)))
    return [at_s for each in found for at_s in each]


if ROLE == "serve":
    app = create_fastapi_app(Waiting, Click, Seen, max_concurrent_envs=2 * SESSIONS)
    uvicorn.run(app, host=ADDRESS, port=PORT, log_level="warning")
else:
    pids = [int(pid) for pid in sys.argv[7].split(",")]
    asyncio.run(print_measured(_play, SESSIONS, int(sys.argv[6]), STEPS, pids, []))
