"""HybridSession: a browser page and tools on one workspace. GUI actions go to the page, tool calls to the tools, Finished ends the episode.

Files that the browser downloads appear in the workspace, files of the workspace can be uploaded, and what listens in the terminal is
reached by this session's page, and no other, as http://localhost:PORT/. The page is a PageSession in a browser of the pool; the jail is
made for the episode and dies with it.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.hybrid.source import PAGE, PAGES, SETTINGS, SOURCE, VERSION, hybrid_instance
from sandbox.hybrid.tasks import HybridInstance, HybridMoment, next_step
from sandbox.page_task import PageMoment, PageSettings, PageState, Progress, Surroundings, WebMoment
from sandbox.session import Observation, Transition, Verdict
from sandbox.task import Task
from sandbox.terminal.bubblewrap import find_bubblewrap, version
from sandbox.terminal.config import machine_settings
from sandbox.terminal.session import RESET_TIMEOUT_S, open_tools, verdict_of, way_to_start
from sandbox.terminal.tasks import Probe
from sandbox.terminal.tools import Tools, ToolSettings
from warehouse.errors import SandboxError, SandboxTimeout

ACCEPTED_SCRIPT = "location.protocol === 'file:' && state().accepted"
"""No page that the agent serves or writes has that protocol, and no page can say that it has: `location` cannot be replaced."""
TOOL_PAGE_TIME_S = 0.1
"""Page time that passes while a tool works."""


@dataclass(slots=True, kw_only=True)
class _Episode:
    """The task instance that runs now."""

    task: Task
    instance: HybridInstance
    tools: Tools
    workspace_fd: int
    """Of the folder that the page shares."""
    actions: list[Action] = field(default_factory=list)
    answer: str | None = None
    output: str = ""
    is_accepted: bool = False
    is_over: bool = False
    verdict: Verdict | None = None
    """The last word, once the episode is over."""
    observation: Observation | None = None


class HybridSession:
    """Runs task instances one after another. Without `settings` the machine's are used (sandbox/terminal/config.py)."""

    def __init__(
        self, open_page: OpenPage, *, limits: Limits | None = None, settings: ToolSettings | None = None, screenshots: bool = True
    ) -> None:
        self._desk = _Desk()
        self._page = PageSession(open_page, {SOURCE: self._desk}, limits=limits, screenshots=screenshots)
        self._settings = settings or machine_settings()
        self._is_closed = False
        self.num_resets = 0

    @property
    def screenshots(self) -> bool:
        return self._page.screenshots

    @screenshots.setter
    def screenshots(self, are_taken: bool) -> None:
        self._page.screenshots = are_taken

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        return f"{self._page.environment}; {version(find_bubblewrap())}" if self._page.environment else ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown source or task, SandboxErrors."""
        if self._is_closed:
            raise SandboxError("The session is closed; lease another one.")
        instance = hybrid_instance(task, seed)
        self.num_resets += 1
        await self._end_episode()
        try:
            async with asyncio.timeout(RESET_TIMEOUT_S):
                tools = await open_tools(self._settings, instance.work)
        except TimeoutError as error:
            raise SandboxTimeout(f"Starting {task.name} took longer than {RESET_TIMEOUT_S:g} s. Is the machine overloaded?") from error
        workspace_fd = tools.jail.workspace.duplicate()
        self._desk.episode = _Episode(task=task, instance=instance, tools=tools, workspace_fd=workspace_fd)
        self._page.surroundings = Surroundings(workspace=Path(f"/proc/self/fd/{workspace_fd}"), connect=tools.jail.connect)
        try:
            return self._seen(self._desk.episode, await self._page.reset(task, seed))
        except BaseException:
            await self._end_episode()
            raise

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if not episode.is_over:
            episode.actions.append(action)
        match action:
            case actions.ToolCall() if not episode.is_over:
                episode.output = await episode.tools.call(action)
                transition = await self._page.step(actions.Wait(seconds=TOOL_PAGE_TIME_S))
            case actions.Finished(answer=answer) if not episode.is_over:
                episode.answer = answer
                transition = await self._page.step(action)
            case _:
                transition = await self._page.step(action)
        ends, episode.is_over = not episode.is_over and transition.terminated, transition.terminated or transition.truncated
        reward = (await self.evaluate()).score if ends else 0.0
        return replace(transition, observation=self._seen(episode, transition.observation), reward=reward)

    @staticmethod
    def _seen(episode: _Episode, observation: Observation) -> Observation:
        """The page, with what the last tool call printed and then what the browser says."""
        output = "\n".join(part for part in (episode.output, observation.output) if part)
        episode.observation = replace(observation, instruction=episode.instance.work.instruction, output=output)
        return episode.observation

    async def evaluate(self) -> Verdict:
        """Every goal of the workspace is met, and the page has accepted what it expects. Where the episode is over this ends what the agent
        left running, and says the same however often it is asked."""
        episode = self._running()
        if episode.verdict is not None:
            return episode.verdict
        verdict = await verdict_of(episode.instance.work, Probe(episode.tools.jail, episode.answer), is_over=episode.is_over)
        if episode.instance.needs_page and not episode.is_accepted:
            reasons = (*(verdict.reasons if not verdict.success else ()), "the page has not accepted what it expects")
            verdict = Verdict(origin="verifier", score=0.0, threshold=1.0, reasons=reasons)
        episode.verdict = verdict if episode.is_over else None
        return verdict

    async def hint(self) -> Action | None:
        episode = self._running()
        if episode.is_over:
            return None
        return way_to_start(episode.tools) or await self._page.hint()

    def _running(self) -> _Episode:
        if self._is_closed:
            raise SandboxError("The session is closed; lease another one.")
        if self._desk.episode is None:
            raise SandboxError("No task runs in this session: call reset(task, seed) first, and again after an error.")
        return self._desk.episode

    async def _end_episode(self) -> None:
        """The page first: as long as it lives, it may read and write the episode's files."""
        episode, self._desk.episode = self._desk.episode, None
        try:
            await self._page.leave()
        finally:
            if episode is not None:
                try:
                    await episode.tools.close()
                finally:
                    os.close(episode.workspace_fd)

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._end_episode()
        finally:
            await self._page.close()


class _Desk:
    """The page side of one session's episodes. Satisfies PageTask and WebTask; unlike those of other sources it is one session's own,
    because what it says depends on the episode's files."""

    root = PAGES
    ready_script = "typeof start === 'function'"
    state_script = "null"
    environment = f"hybrid tasks {VERSION}"

    def __init__(self) -> None:
        self.episode: _Episode | None = None

    def settings(self, task: Task) -> PageSettings:
        return SETTINGS

    def url(self, task: Task) -> str:
        return (self.root / PAGE).as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        return f"start({json.dumps(hybrid_instance(task, seed).page)})"

    def needs_fresh_page(self, task: Task) -> bool:
        return True

    async def progress(self, moment: WebMoment) -> Progress:
        """Whether the page has accepted; as last seen where another page is shown, whose word counts for nothing."""
        episode = self._episode()
        if moment.url == PAGE:
            episode.is_accepted = await moment.evaluate(ACCEPTED_SCRIPT) is True
        return Progress(instruction=episode.instance.work.instruction, reward=float(episode.is_accepted), done=False)

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward, threshold=1.0)

    async def hint(self, moment: PageMoment) -> Action | None:
        episode = self._episode()
        return await next_step(
            HybridMoment(
                instance=episode.instance, observation=moment.observation, actions=episode.actions, probe=Probe(episode.tools.jail),
                evaluate=moment.evaluate, is_accepted=episode.is_accepted,
            )
        )  # fmt: skip

    def _episode(self) -> _Episode:
        if self.episode is None:
            raise SandboxError("No task runs in this session.")
        return self.episode
