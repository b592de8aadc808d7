"""HybridSession: a browser page and tools on one workspace. GUI actions go to the page, tool calls to the tools, Finished ends the episode.

Files that the browser downloads appear in the workspace, files of the workspace can be uploaded, and what listens in the terminal is
reached by this session's page, and no other, as http://localhost:PORT/. The page is a PageSession in a browser of the pool; the jail is
made for the episode and dies with it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.hybrid.jailed_page import EpisodePage, JailedPageSession
from sandbox.hybrid.tasks import HybridInstance, HybridStepContext, next_step
from sandbox.session import FileEntry, Observation, Transition, Verdict
from sandbox.tasks.page_task import PageSettings, PageStepContext, PageTask, Progress, Surroundings, WebSettings, WebStepContext
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import InstanceSource, instance_of
from sandbox.terminal.config import machine_settings
from sandbox.terminal.looking import list_files, read_text
from sandbox.terminal.session import RESET_TIMEOUT_S, open_tools, verdict_of, way_to_start
from sandbox.terminal.tasks import Probe
from sandbox.terminal.tools import Tools, ToolSettings

PAGES = Path(__file__).with_name("pages")
PAGE = "desk.html"
SETTINGS = PageSettings(viewport_px=(480, 360), area_px=(480, 360), step_time_ms=100.0, frame_time_ms=50.0, web=WebSettings())
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

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(workspace=Path(f"/proc/self/fd/{self.workspace_fd}"), connect=self.tools.jail.connect)

    async def close(self) -> None:
        try:
            await self.tools.close()
        finally:
            os.close(self.workspace_fd)


class HybridSession(JailedPageSession[HybridInstance, _Episode]):
    """Runs task instances one after another. Without `settings` the machine's are used (sandbox/terminal/config.py)."""

    reset_timeout_s = RESET_TIMEOUT_S

    def __init__(
        self,
        open_page: OpenPage,
        sources: Mapping[str, InstanceSource] = SOURCES,
        *,
        limits: Limits | None = None,
        settings: ToolSettings | None = None,
        screenshots: bool = True,
    ) -> None:
        desk = _Desk(sources)
        pages: defaultdict[str, PageTask] = defaultdict(lambda: desk)  # whatever the task's source, the page is this session's own
        super().__init__(PageSession(open_page, pages, limits=limits, screenshots=screenshots), desk)
        self._sources = sources
        self._settings = settings or machine_settings()

    def _instance(self, task: Task, seed: int) -> HybridInstance:
        return instance_of(self._sources, task, seed, HybridInstance)

    async def _begin(self, task: Task, instance: HybridInstance) -> _Episode:
        tools = await self._in_time(open_tools(self._settings, instance.work), task.name)
        return _Episode(task=task, instance=instance, tools=tools, workspace_fd=tools.jail.workspace.duplicate())

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

    def _seen(self, episode: _Episode, observation: Observation) -> Observation:
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

    async def oracle_action(self) -> Action | None:
        episode = self._running()
        return (None if episode.is_over else way_to_start(episode.tools)) or await super().oracle_action()

    async def files(self) -> tuple[FileEntry, ...] | None:
        return list_files(self._running().tools.jail.workspace)

    async def read_file(self, path: str) -> str | None:
        return read_text(self._running().tools.jail.workspace, path)


class _Desk(EpisodePage[_Episode]):
    """What the page of an episode shows, and what it says of itself."""

    root = PAGES
    ready_script = "typeof start === 'function'"

    def __init__(self, sources: Mapping[str, InstanceSource]) -> None:
        super().__init__()
        self._sources = sources

    @property
    def environment(self) -> str:
        return self._sources[self.running().task.source].environment

    def settings(self, task: Task) -> PageSettings:
        return SETTINGS

    def url(self, task: Task) -> str:
        return (self.root / PAGE).as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        return f"start({json.dumps(self.running().instance.page)})"

    async def progress(self, context: WebStepContext) -> Progress:
        """Whether the page has accepted; as last seen where another page is shown, whose word counts for nothing."""
        episode = self.running()
        if context.url == PAGE:
            episode.is_accepted = await context.evaluate(ACCEPTED_SCRIPT) is True
        return Progress(instruction=episode.instance.work.instruction, reward=float(episode.is_accepted), done=False)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        episode = self.running()
        return await next_step(
            HybridStepContext(
                instance=episode.instance,
                observation=context.observation,
                actions=episode.actions,
                probe=Probe(episode.tools.jail),
                evaluate=context.evaluate,
                is_accepted=episode.is_accepted,
            )
        )
