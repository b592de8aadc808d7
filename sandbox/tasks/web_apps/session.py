"""WebAppSession: a browser page and, in a jail of its own, the application that it shows. The agent has the page alone.

The application is started for the episode with fresh data, is reached as http://localhost:8001/ by this session's page and by no other, and
is gone with it. Verdicts are about its database, which is read from outside of the jail; what a page shows or a script says counts for
nothing. Rewards are paid at the end: the step that ends the episode pays 1 where the state differs from the start by just what was asked,
and the answer is right where one was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.hybrid.jailed_page import EpisodePage, JailedPageSession
from sandbox.session import Transition, Verdict
from sandbox.tasks.hitting import on_element
from sandbox.tasks.page_task import PageSettings, PageStepContext, Progress, Surroundings, WebSettings, WebStepContext
from sandbox.tasks.task import Task
from sandbox.tasks.web_apps.apps import CLOCK_VERSION, PORT
from sandbox.tasks.web_apps.oracle import Oracle
from sandbox.tasks.web_apps.running import RunningApp, prepare
from sandbox.tasks.web_apps.seeds import SOURCE, VERSION, web_instance
from sandbox.tasks.web_apps.state import State, difference
from sandbox.tasks.web_apps.tasks import WebInstance, reasons_against
from warehouse.core.errors import WebAppCrashed, WebAppSpoiled

PAGES = Path(__file__).with_name("pages")
"""What a page may open beside its application: a blank one."""
SIZE_PX = (800, 640)
SETTINGS = PageSettings(viewport_px=SIZE_PX, area_px=SIZE_PX, step_time_ms=100.0, frame_time_ms=50.0, web=WebSettings())


@dataclass(slots=True, kw_only=True)
class _Episode:
    """The task instance that runs now."""

    task: Task
    instance: WebInstance
    running: RunningApp
    before: State
    actions: list[Action] = field(default_factory=list)
    answer: str | None = None
    is_over: bool = False

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(connect=self.running.jail.connect)

    async def close(self) -> None:
        await self.running.close()


class WebAppSession(JailedPageSession[WebInstance, _Episode]):
    """Runs task instances one after another."""

    reset_timeout_s = 60.0

    def __init__(self, open_page: OpenPage, *, limits: Limits | None = None, screenshots: bool = True) -> None:
        site = _Site()
        super().__init__(PageSession(open_page, {SOURCE: site}, limits=limits, screenshots=screenshots), site)

    def _instance(self, task: Task, seed: int) -> WebInstance:
        return web_instance(task, seed)

    async def _begin(self, task: Task, instance: WebInstance) -> _Episode:
        """Raises WebAppMissing, WebAppCrashed and other SandboxErrors."""
        await prepare(instance.app)  # the first time takes longer than a start may
        running = await self._in_time(RunningApp.start(instance.app), instance.app.name)
        try:
            return _Episode(task=task, instance=instance, running=running, before=await running.state())
        except BaseException:
            await running.close()
            raise

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
        try:
            await episode.running.check()
            unmet = reasons_against(episode.instance, episode.before, await episode.running.state(), episode.answer)
        except WebAppCrashed as error:  # it ran, and could be read, when the episode began, and its jail is well
            unmet = [str(error)]
        reasons = tuple(unmet) or ("the application is as it was asked for",)
        return Verdict(origin="verifier", score=0.0 if unmet else 1.0, threshold=1.0, reasons=reasons)


class _Site(EpisodePage[_Episode]):
    """What the page of an episode shows, and what it says of itself."""

    root = PAGES
    ready_script = "document.readyState === 'complete'"

    @property
    def environment(self) -> str:
        app = self.running().instance.app
        return f"web tasks {VERSION}; {app.name} {app.version}, {app.world_id}, clock {CLOCK_VERSION}"

    def settings(self, task: Task) -> PageSettings:
        return SETTINGS

    def url(self, task: Task) -> str:
        return f"http://localhost:{PORT}{self.running().instance.start}"

    def start_script(self, task: Task, seed: int) -> str:
        return "null"

    async def progress(self, context: WebStepContext) -> Progress:
        return Progress(instruction=self.running().instance.instruction, reward=0.0, done=False)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        episode = self.running()
        last = episode.actions[-1] if episode.actions else None
        try:
            found = difference(episode.before, await episode.running.state())
        except WebAppSpoiled:
            return None
        action = await Oracle(instance=episode.instance, found=found, last=last, evaluate=context.evaluate).next_action()
        return on_element(action, context.observation)
