"""WebAppSession: a browser page and, in a jail of its own, the application that it shows. The agent has the page alone.

The application is started for the episode with fresh data, is reached as http://localhost:8001/ by this session's page and by no other, and
is gone with it. Verdicts are about its database, which is read from outside of the jail; what a page shows or a script says counts for
nothing. Rewards are paid at the end: the step that ends the episode pays 1 where the state differs from the start by just what was asked,
and the answer is right where one was asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.page_task import PageMoment, PageSettings, PageState, Progress, Surroundings, WebMoment
from sandbox.session import Observation, Transition, Verdict
from sandbox.task import Task
from sandbox.terminal.bubblewrap import find_bubblewrap, version
from sandbox.web_apps.apps import CLOCK_VERSION, PORT
from sandbox.web_apps.oracle import Oracle
from sandbox.web_apps.running import RunningApp, prepare
from sandbox.web_apps.source import PAGES, SETTINGS, SOURCE, VERSION, Reworder, keeps_values, web_instance
from sandbox.web_apps.state import State, difference
from sandbox.web_apps.tasks import WebInstance, reasons_against
from warehouse.errors import SandboxError, SandboxTimeout, WebAppSpoiled

RESET_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Episode:
    """The task instance that runs now."""

    task: Task
    instance: WebInstance
    instruction: str
    running: RunningApp
    before: State
    actions: list[Action] = field(default_factory=list)
    answer: str | None = None
    is_over: bool = False


class WebAppSession:
    """Runs task instances one after another. With a `reworder` instructions are said in its words."""

    def __init__(
        self, open_page: OpenPage, *, limits: Limits | None = None, screenshots: bool = True, reworder: Reworder | None = None
    ) -> None:
        self._site = _Site()
        self._page = PageSession(open_page, {SOURCE: self._site}, limits=limits, screenshots=screenshots)
        self._reworder = reworder
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
        """Raises TaskError for an unknown source or task, WebAppMissing, WebAppCrashed and other SandboxErrors."""
        if self._is_closed:
            raise SandboxError("The session is closed; lease another one.")
        instance = web_instance(task, seed)
        self.num_resets += 1
        await self._end_episode()
        await prepare(instance.app)  # the first time takes longer than a start may
        try:
            async with asyncio.timeout(RESET_TIMEOUT_S):
                running = await RunningApp.start(instance.app)
        except TimeoutError as error:
            raise SandboxTimeout(
                f"Starting {instance.app.name} took longer than {RESET_TIMEOUT_S:g} s. Is the machine overloaded?"
            ) from error
        try:
            self._site.episode = _Episode(
                task=task, instance=instance, instruction=self._told(instance), running=running, before=running.state()
            )
        except BaseException:
            await running.close()
            raise
        self._page.surroundings = Surroundings(connect=running.jail.connect)
        try:
            return await self._page.reset(task, seed)
        except BaseException:
            await self._end_episode()
            raise

    def _told(self, instance: WebInstance) -> str:
        if self._reworder is None:
            return instance.instruction
        reworded = self._reworder.reword(instance.instruction)
        return reworded if keeps_values(instance.instruction, reworded) else instance.instruction

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if not episode.is_over:
            episode.actions.append(action)
            if isinstance(action, actions.Finished):
                episode.answer = action.answer
        transition = await self._page.step(action)
        reward = 0.0
        if transition.terminated and not episode.is_over:
            reward = (await self.evaluate()).score
        episode.is_over = transition.terminated or transition.truncated
        return replace(transition, reward=reward)

    async def evaluate(self) -> Verdict:
        episode = self._running()
        await episode.running.check()
        try:
            unmet = reasons_against(episode.instance, episode.before, episode.running.state(), episode.answer)
        except WebAppSpoiled as error:  # it could be read when the episode began
            unmet = [str(error)]
        reasons = tuple(unmet) or ("the application is as it was asked for",)
        return Verdict(origin="verifier", score=0.0 if unmet else 1.0, threshold=1.0, reasons=reasons)

    async def hint(self) -> Action | None:
        episode = self._running()
        return None if episode.is_over else await self._page.hint()

    def _running(self) -> _Episode:
        if self._is_closed:
            raise SandboxError("The session is closed; lease another one.")
        if self._site.episode is None:
            raise SandboxError("No task runs in this session: call reset(task, seed) first, and again after an error.")
        return self._site.episode

    async def _end_episode(self) -> None:
        """The page first: as long as it lives, it may ask the application."""
        episode, self._site.episode = self._site.episode, None
        try:
            await self._page.leave()
        finally:
            if episode is not None:
                await episode.running.close()

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._end_episode()
        finally:
            await self._page.close()


class _Site:
    """The page side of one session's episodes. Satisfies PageTask and WebTask; it is one session's own, because what it says depends on the
    episode's application."""

    root = PAGES
    ready_script = "document.readyState === 'complete'"
    state_script = "null"

    def __init__(self) -> None:
        self.episode: _Episode | None = None

    @property
    def environment(self) -> str:
        app = self._episode().instance.app
        return f"web tasks {VERSION}; {app.name} {app.version}, {app.world_id}, clock {CLOCK_VERSION}"

    def settings(self, task: Task) -> PageSettings:
        return SETTINGS

    def url(self, task: Task) -> str:
        return f"http://localhost:{PORT}{self._episode().instance.start}"

    def start_script(self, task: Task, seed: int) -> str:
        return "null"

    def needs_fresh_page(self, task: Task) -> bool:
        return True

    async def progress(self, moment: WebMoment) -> Progress:
        return Progress(instruction=self._episode().instruction, reward=0.0, done=False)

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward, threshold=1.0)

    async def hint(self, moment: PageMoment) -> Action | None:
        episode = self._episode()
        last = episode.actions[-1] if episode.actions else None
        try:
            found = difference(episode.before, episode.running.state())
        except WebAppSpoiled:
            return None
        return await Oracle(instance=episode.instance, found=found, last=last, evaluate=moment.evaluate).next_action()

    def _episode(self) -> _Episode:
        if self.episode is None:
            raise SandboxError("No task runs in this session.")
        return self.episode
