"""What viewers of a session get to see: its last observation, its last actions, what its tools printed. Bounded, and only in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sandbox.actions import ACTION, Action, ToolCall
from sandbox.session import Observation, Transition
from sandbox.tasks.task import Task

STEPS_KEPT = 30
OUTPUT_CHARS_KEPT = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedStep:
    """One action and what came of it."""

    index: int
    action: dict[str, Any]
    reward: float
    info: dict[str, Any]
    screenshot_id: str | None
    """Of the screen after it."""


class Journal:
    """Written by one lease, read by any number of viewers; `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self.task: Task | None = None
        self.seed: int | None = None
        self.observation: Observation | None = None
        self.steps: deque[NotedStep] = deque(maxlen=STEPS_KEPT)
        self.num_steps = 0
        self.reward = 0.0
        self.is_over = False
        self.output = ""
        self._screens: deque[tuple[str, bytes]] = deque(maxlen=2)
        self._changed = asyncio.Event()

    def note_reset(self, task: Task, seed: int, observation: Observation) -> None:
        self.task, self.seed = task, seed
        self.steps.clear()
        self.num_steps, self.reward, self.is_over, self.output = 0, 0.0, False, ""
        self._see(observation)

    def note_step(self, action: Action, transition: Transition) -> None:
        self._print(action, transition)
        self.reward += transition.reward
        self.is_over = transition.terminated or transition.truncated
        self.num_steps += 1
        noted = NotedStep(
            index=self.num_steps,
            action=ACTION.dump_python(action, mode="json"),
            reward=transition.reward,
            info=transition.info,
            screenshot_id=transition.observation.screenshot_id,
        )
        self.steps.append(noted)
        self._see(transition.observation)

    def screen(self, screenshot_id: str) -> bytes | None:
        """The last screen or the one before it, by its id."""
        return dict(self._screens).get(screenshot_id)

    async def change(self, version: int, wait_s: float) -> bool:
        """Wait until `version` is no longer the newest; False where nothing changed for `wait_s`."""
        if self.version == version:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True

    def notify(self) -> None:
        """Wake who waits for a change."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _see(self, observation: Observation) -> None:
        self.observation = observation
        if observation.screenshot is not None:
            self._screens.append((str(observation.screenshot_id), observation.screenshot))
        self.notify()

    def _print(self, action: Action, transition: Transition) -> None:
        """A call with all that it printed; after any other action only what is new, for observations keep the last call's output."""
        output = transition.observation.output
        if isinstance(action, ToolCall) and "ignored" not in transition.info:
            said = f"$ {_call_text(action)}\n{output}"
        else:
            before = self.observation.output.splitlines() if self.observation is not None else []
            lines = output.splitlines()
            num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, lines, strict=False)))
            said = "\n".join(lines[num_same:])
        self.output = (self.output + said + ("\n" if said and not said.endswith("\n") else ""))[-OUTPUT_CHARS_KEPT:]


def _call_text(call: ToolCall) -> str:
    """A tool call as a person would write it: the command of a shell, else name and arguments."""
    command = call.arguments.get("command")
    if call.name == "execute_bash" and isinstance(command, str):
        return command
    return call.name + "".join(f" {name}={value!r}" for name, value in call.arguments.items())
