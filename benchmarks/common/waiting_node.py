"""A sandbox server whose sessions only wait: the real server (sandbox/server) over a pool that needs no browser and hardly a processor, so
that one machine can stand for many. A process of its own; the token is that of FLYWHEEL_SANDBOX_TOKEN.

    python -m benchmarks.common.waiting_node --host 127.0.0.1 --port 8421 --size 4 --step-ms 250

An episode is solved by `CLICKS` clicks and `finished`; nothing else than a failure of the infrastructure can make it end otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent.policy.action_source import StepContext
from agent.policy.policy import Prompt, Response
from sandbox.actions import Action, Click, Finished
from sandbox.http.serving import bind
from sandbox.server.serve import serve
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import server_tokens
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.home import Home

CLICKS = 4
TASK = Task(source="waiting", name="wait", domain="pointing", max_steps=CLICKS + 1)
BUTTON = Element(role="button", text="more", x_px=10, y_px=10, width_px=8, height_px=8)


class WaitingSession:
    """Counts clicks, each of which takes its time."""

    environment = "waiting 1"

    def __init__(self, step_s: float) -> None:
        self._step_s, self.screenshots, self._count, self._seed = step_s, False, 0, 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self._count, self._seed = 0, seed
        return self._observe()

    async def step(self, action: Action) -> Transition:
        await asyncio.sleep(self._step_s)
        self._count += isinstance(action, Click)
        is_over = isinstance(action, Finished)
        reward = float(is_over and self._count == CLICKS)
        return Transition(observation=self._observe(), reward=reward, terminated=is_over, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=float(self._count == CLICKS), threshold=1.0)

    async def oracle_action(self) -> Action | None:
        return None

    async def close(self) -> None: ...

    def _observe(self) -> Observation:
        text = f"seed {self._seed}, count {self._count}"
        return Observation(instruction=text, elements=(BUTTON,), screenshot=None, width_px=160, height_px=210, time_ms=float(self._count))


class WaitingPool:
    """So many sessions, each lent to one user at a time."""

    def __init__(self, size: int, step_s: float) -> None:
        self.size, self._step_s, self._free = size, step_s, asyncio.Semaphore(size)

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[WaitingSession]:
        async with self._free:
            yield WaitingSession(self._step_s)

    async def close(self) -> None: ...


class Clicking:
    """What solves it, without a prompt."""

    async def respond(self, context: StepContext) -> Response:
        return Response(text=_answer(context.step_index), prompt_token_ids=(), token_ids=(), logprobs=(), policy_id="clicking")


class ClickingPolicy:
    """The policy that solves it. `asked_s`: when each episode asked."""

    policy_id = "clicking"
    is_continuous = True

    def __init__(self) -> None:
        self.asked_s: defaultdict[str, list[float]] = defaultdict(list)

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: Prompt) -> Response:
        self.asked_s[prompt.conversation or ""].append(time.monotonic())
        text = _answer(sum(message.role == "assistant" for message in prompt.messages))
        return Response(text=text, prompt_token_ids=(1,), token_ids=(1,), logprobs=(0.0,), policy_id=self.policy_id)


def _answer(step_index: int) -> str:
    action = "click(start_box='(1,1)')" if step_index < CLICKS else "finished(content='')"
    return f"Thought: Go on.\nAction: {action}"


async def _serve(host: str, port: int, size: int, step_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokens, _ = server_tokens(Home(Path(folder)), os.environ)
        settings = ServerSettings(max_sessions=size, max_sessions_per_client=size, allowed_hosts=(host,))
        with bind(host, port) as listener:
            address = listener.getsockname()[:2]
            await serve(WaitingPool(size, step_s), tokens, settings, listener, lambda: print("http://{}:{}".format(*address), flush=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=250.0)
    chosen = parser.parse_args()
    asyncio.run(_serve(chosen.host, chosen.port, chosen.size, chosen.step_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
