"""DesktopSession: the Session protocol over any Desktop. Where desktops come from is a Desktops' business (local.py, qemu.py).

An episode gets a desktop that nobody has used, with the task's files and programs. It ends when the agent says so, or, where the instance
says `ends_when_solved`, as soon as the verifier is content; then the step pays the verifier's score, every other step 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop.desktop import Desktop, Desktops
from sandbox.desktop.instance import DesktopStepContext, Instance, Launch
from sandbox.desktop.launching import start
from sandbox.session import Observation, Transition, Verdict, require_open, require_running
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import InstanceSource, instance_of
from warehouse.core.errors import DesktopMissing, SandboxError, SandboxTimeout, TaskError

WINDOW_LIMIT_S = 90.0
"""LibreOffice and Wine take some seconds to their first window on a quiet machine."""
WAITING_LIMIT_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Episode:
    """The task instance that runs now."""

    task: Task
    instance: Instance
    desktop: Desktop
    started_s: float
    observation: Observation | None = None
    done: list[Action] = field(default_factory=list)
    is_over: bool = False
    lost: str | None = None
    """Why the desktop cannot be used any more; then the episode is over, and failed."""


class DesktopSession:
    """Desktops that run task instances, one after another. `screenshots` may be set before a reset: without them a step is cheaper."""

    def __init__(
        self,
        desktops: Desktops,
        sources: Mapping[str, InstanceSource] = SOURCES,
        *,
        screenshots: bool = True,
        window_s: float = WINDOW_LIMIT_S,
    ) -> None:
        """`window_s` is how long a task's program may take to its first window; an emulated machine needs more than this one."""
        self.screenshots = screenshots
        self._window_s = window_s
        self._desktops = desktops
        self._sources = sources
        self._episode: _Episode | None = None
        self._is_closed = False

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        if self._episode is None:
            return ""
        return f"{self._episode.desktop.environment}, {self._sources[self._episode.task.source].environment}"

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for a task of another source, DesktopMissing where a program is not installed, and other SandboxErrors."""
        require_open(self._is_closed)
        instance = instance_of(self._sources, task, seed, Instance)
        self._episode = None
        desktop = await self._desktops.fresh()
        for path, content in instance.files.items():
            await desktop.put_file(path, content)
        for launch in instance.launches:
            await start(desktop, launch, self._window_s)
        if instance.prepare is not None:
            await instance.prepare(desktop, self._window_s)
        await desktop.settle()
        self._episode = _Episode(task=task, instance=instance, desktop=desktop, started_s=time.monotonic())
        return await self._observe(self._episode)

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if episode.lost is None:
            try:
                return await self._step(episode, action)
            except SandboxError as error:
                await self._blame(episode, error)
        if episode.observation is None:
            raise SandboxError("Nothing was observed before the desktop was lost.")
        info = {"ignored": "the episode is over"} if episode.is_over else {"lost": episode.lost}
        episode.is_over = True
        return Transition(observation=episode.observation, reward=0.0, terminated=True, truncated=False, info=info)

    async def _blame(self, episode: _Episode, error: SandboxError) -> None:
        """An agent may end everything on a desktop, its own screen too: where others run on this machine, that was it. Else raises the
        error again."""
        if not episode.done or not await self._desktops.is_well():
            raise error
        episode.lost = f"the desktop cannot be used any more: {error}"

    async def _step(self, episode: _Episode, action: Action) -> Transition:
        if episode.is_over:
            observation = await self._observe(episode)
            ignored = {"ignored": "the episode is over"}
            return Transition(observation=observation, reward=0.0, terminated=True, truncated=False, info=ignored)
        info = await self._act(episode, action)
        episode.done.append(action)
        if not await episode.desktop.settle():
            info["unsettled"] = True
        observation = await self._observe(episode)
        says_done = isinstance(action, actions.Finished | actions.CallUser)
        verdict = await self.evaluate() if says_done or episode.instance.ends_when_solved else None
        terminated = says_done or (verdict is not None and verdict.success)
        truncated = not terminated and len(episode.done) >= episode.task.max_steps
        episode.is_over = terminated or truncated
        reward = verdict.score if terminated and verdict is not None else 0.0
        return Transition(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)

    async def _act(self, episode: _Episode, action: Action) -> dict[str, Any]:
        """Carry out an action; returns what to say about it beside the observation."""
        desktop = episode.desktop
        match action:
            case actions.InvalidAction(reason=reason):
                return {"invalid": reason}
            case actions.Finished() | actions.CallUser():
                return {}
            case actions.OpenApp() if not episode.instance.opens_apps:
                return {"ignored": "this task is done in the windows that are open; no other application can be opened"}
            case actions.OpenApp(name=name):
                try:
                    await start(desktop, Launch(app=name), limit_s=WAITING_LIMIT_S)
                except (TaskError, DesktopMissing) as error:
                    return {"ignored": str(error)}
                except SandboxTimeout:
                    return {}  # it comes when it comes: the agent sees that it has not yet
                return {}
            case _:
                phases = gestures(action, desktop.size_px, "desktop")
                if isinstance(phases, Refusal):
                    return {"ignored": phases.reason}
                await desktop.perform(phases)
                return {}

    async def _observe(self, episode: _Episode) -> Observation:
        desktop = episode.desktop
        screenshot = await desktop.screenshot() if self.screenshots else None
        width_px, height_px = desktop.size_px
        episode.observation = Observation(
            instruction=episode.instance.instruction,
            elements=await desktop.elements(),
            screenshot=screenshot,
            width_px=width_px,
            height_px=height_px,
            time_ms=round((time.monotonic() - episode.started_s) * 1000, 3),
        )
        return episode.observation

    async def evaluate(self) -> Verdict:
        episode = self._running()
        if episode.lost is None:
            try:
                return await self._verdict(episode)
            except SandboxError as error:
                await self._blame(episode, error)
        return Verdict(origin="verifier", score=0.0, threshold=1.0, reasons=(str(episode.lost),))

    @staticmethod
    async def _verdict(episode: _Episode) -> Verdict:
        problems, well = await episode.instance.verify(episode.desktop), "the desktop's state is as the task asks"
        if episode.instance.cannot_be_done:
            well = "the task cannot be done, and the agent said so"
            has_given_up = bool(episode.done) and isinstance(episode.done[-1], actions.CallUser)
            problems += [] if has_given_up else ["the task cannot be done, and the agent did not end by saying so"]
        reasons = tuple(problems) or (well,)
        return Verdict(origin="verifier", score=0.0 if problems else 1.0, threshold=1.0, reasons=reasons)

    async def oracle_action(self) -> Action | None:
        """The oracle looks at the last observation; where the task is done, there is only that to say."""
        episode = self._running()
        if episode.is_over or episode.lost is not None or episode.observation is None or not episode.instance.has_oracle:
            return None
        if (await self.evaluate()).success:
            return actions.Finished()
        windows = await episode.desktop.windows()
        return episode.instance.oracle(DesktopStepContext(observation=episode.observation, windows=windows, actions=tuple(episode.done)))

    def _running(self) -> _Episode:
        require_open(self._is_closed)
        return require_running(self._episode)

    async def close(self) -> None:
        self._is_closed = True
        self._episode = None
        await self._desktops.close()
