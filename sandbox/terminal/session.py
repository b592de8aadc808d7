"""TerminalSession: the Session protocol over a terminal and tools, without any screen. Each episode gets a jail of its own, so nothing of
one is there in the next. Instances come from the tasks' sources; what they are made of is tasks.py.

Rewards are paid at the end: the step that ends the episode pays 1 where every goal is met, every other one 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox import actions
from sandbox.actions import Action
from sandbox.session import FileEntry, Observation, Transition, Verdict, require_open, require_running
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import InstanceSource, instance_of
from sandbox.terminal.bubblewrap import HOME, find_bubblewrap, version
from sandbox.terminal.config import machine_settings
from sandbox.terminal.looking import list_files, read_text
from sandbox.terminal.search import LocalLibrary
from sandbox.terminal.tasks import Instance, Probe, next_step, prepare, unmet_at_end, unmet_goals
from sandbox.terminal.tools import Tools, ToolSettings
from warehouse.core.errors import SandboxTimeout

SIZE_PX = (640, 400)
"""There is no screen; grammars want a size all the same."""
RESET_TIMEOUT_S = 60.0
MAX_WAIT_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Episode:
    """The task instance that runs now."""

    task: Task
    instance: Instance
    tools: Tools
    start_s: float
    actions: list[Action] = field(default_factory=list)
    answer: str | None = None
    output: str = ""
    is_over: bool = False
    verdict: Verdict | None = None
    """The last word, once the episode is over."""


class TerminalSession:
    """Runs task instances one after another. `screenshots` is there because every session has it: none are ever taken. Without `settings`
    the machine's are used (config.py)."""

    def __init__(
        self, sources: Mapping[str, InstanceSource] = SOURCES, *, settings: ToolSettings | None = None, screenshots: bool = True
    ) -> None:
        self.screenshots = screenshots
        self._sources = sources
        self._settings = settings or machine_settings()
        self._episode: _Episode | None = None
        self._is_closed = False
        self.num_resets = 0

    @property
    def environment(self) -> str:
        """Versions that behaviour depends on; empty before the first reset."""
        if self._episode is None:
            return ""
        return "; ".join([self._sources[self._episode.task.source].environment, version(find_bubblewrap())])

    @property
    def tools(self) -> Tools | None:
        """Of the episode that runs."""
        return None if self._episode is None else self._episode.tools

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown source or task, SandboxErrors."""
        require_open(self._is_closed)
        instance = instance_of(self._sources, task, seed, Instance)
        self.num_resets += 1
        await self._end_episode()
        try:
            async with asyncio.timeout(RESET_TIMEOUT_S):
                tools = await open_tools(self._settings, instance)
        except TimeoutError as error:
            raise SandboxTimeout(f"Starting {task.name} took longer than {RESET_TIMEOUT_S:g} s. Is the machine overloaded?") from error
        self._episode = _Episode(task=task, instance=instance, tools=tools, start_s=time.monotonic())
        return self._observe(self._episode)

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if episode.is_over:
            info = {"ignored": "the episode is over"}
            return Transition(observation=self._observe(episode), reward=0.0, terminated=True, truncated=False, info=info)
        info = await self._act(episode, action)
        episode.actions.append(action)
        terminated = isinstance(action, actions.Finished | actions.CallUser)
        truncated = not terminated and len(episode.actions) >= episode.task.max_steps
        episode.is_over = terminated or truncated
        reward = (await self.evaluate()).score if terminated else 0.0
        return Transition(observation=self._observe(episode), reward=reward, terminated=terminated, truncated=truncated, info=info)

    @staticmethod
    async def _act(episode: _Episode, action: Action) -> dict[str, Any]:
        """Carry out an action; returns what to say about it beside the observation."""
        match action:
            case actions.ToolCall():
                episode.output = await episode.tools.call(action)
                return {}
            case actions.InvalidAction(reason=reason):
                return {"invalid": reason}
            case actions.Finished(answer=answer):
                episode.answer = answer
                return {}
            case actions.CallUser():
                return {}
            case actions.Wait(seconds=seconds):
                await asyncio.sleep(min(seconds, MAX_WAIT_S))
                return {}
            case _:
                return {"ignored": f"{action.kind} is not possible: this session has a terminal and tools, and no screen"}

    @staticmethod
    def _observe(episode: _Episode) -> Observation:
        return Observation(
            instruction=episode.instance.instruction,
            elements=(),
            screenshot=None,
            width_px=SIZE_PX[0],
            height_px=SIZE_PX[1],
            time_ms=round((time.monotonic() - episode.start_s) * 1000, 3) if episode.actions else 0.0,
            output=episode.output,
        )

    async def evaluate(self) -> Verdict:
        """Where the episode is over this ends what the agent left running, and says the same however often it is asked."""
        episode = self._running()
        if episode.verdict is not None:
            return episode.verdict
        verdict = await verdict_of(episode.instance, Probe(episode.tools.jail, episode.answer), is_over=episode.is_over)
        episode.verdict = verdict if episode.is_over else None
        return verdict

    async def oracle_action(self) -> Action | None:
        episode = self._running()
        if episode.is_over:
            return None
        if way_back := way_to_start(episode.tools):
            return way_back
        return await next_step(episode.instance, episode.actions, Probe(episode.tools.jail))

    async def files(self) -> tuple[FileEntry, ...] | None:
        return list_files(self._running().tools.jail.workspace)

    async def read_file(self, path: str) -> str | None:
        return read_text(self._running().tools.jail.workspace, path)

    def _running(self) -> _Episode:
        require_open(self._is_closed)
        return require_running(self._episode)

    async def _end_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.tools.close()

    async def close(self) -> None:
        self._is_closed = True
        await self._end_episode()


async def open_tools(settings: ToolSettings, instance: Instance) -> Tools:
    """Tools on a workspace that holds an instance's files. Raises SandboxError, TaskError."""
    if instance.documents:
        settings = replace(settings, library=LocalLibrary(instance.documents))
    tools = await Tools.open(settings, links=instance.links)
    try:
        await prepare(tools.jail, instance)
    except BaseException:
        await tools.close()
        raise
    return tools


async def verdict_of(instance: Instance, probe: Probe, *, is_over: bool) -> Verdict:
    """Success is that every goal is met. Raises JailCrashed, SandboxTimeout: what a jail left that has gone says nothing about
    the agent."""
    await probe.jail.check()
    unmet = await (unmet_at_end if is_over else unmet_goals)(instance.goals, probe)
    reasons = tuple(unmet) or ("every goal is met",)
    return Verdict(origin="verifier", score=0.0 if unmet else 1.0, threshold=1.0, reasons=reasons)


def way_to_start(tools: Tools) -> Action | None:
    """What an oracle does first where the terminal is busy or elsewhere: its commands are written for the home folder."""
    if tools.terminal.is_running:
        return actions.ToolCall(name="execute_bash", arguments={"command": "C-c"})
    if tools.terminal.cwd != HOME:
        return actions.ToolCall(name="execute_bash", arguments={"command": "cd"})
    return None
