"""PageSession: the Session protocol over any Page and any PageTask. Whatever drives the page, tasks run the same way.

Rewards are paid at the end: a step that ends the episode pays the page's reward, every other one 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.cdp.browser import environment
from sandbox.browser.input import Refusal, gestures
from sandbox.browser.isolation.policy import relative_urls
from sandbox.browser.isolation.scratch import readable_root
from sandbox.browser.page import SELECT_SCRIPT, HasDevTools, Page, PageNotes, Untrusted, WebPage, call, crop_png, time_limit
from sandbox.browser.web_state import read_web_state
from sandbox.session import Observation, Transition, Verdict, first_content, require_open, require_running
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext, PageTask, PageTasks, Surroundings
from sandbox.tasks.reserved import MAX_DRAWS, nothing_left, redrawn_seed, reserved_of
from sandbox.tasks.task import Task
from warehouse.core.errors import PageNotReady, SandboxError, SandboxTimeout, TaskError

T = TypeVar("T")
MORE_S = 5.0
"""A step that is late gets so much longer once the browser is seen to be well."""
OpenPage = Callable[[PageSettings, Path, Surroundings | None], Awaitable[Page]]
"""Opens a blank page; the path is the root of its files as the browser sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Wall-clock limits, in seconds; far above what a healthy machine needs."""

    ready_s: float = 30.0
    step_s: float = 30.0


@dataclass(slots=True, kw_only=True)
class _Instance:
    """The task instance that runs now."""

    task: Task
    seed: int
    source: PageTask
    settings: PageSettings
    root: Path
    """Of its files, as the browser sees them."""
    page: Page
    web: WebPage | None
    """The page, where it is a web session's."""
    start_ms: float
    actions: list[Action] = field(default_factory=list)
    is_over: bool = False
    state: PageState | None = None
    observation: Observation | None = None
    lost: str | None = None
    """Why what is shown cannot be used any more; then the episode is over, and failed."""


class PageSession:
    """One page that runs task instances, one after another. `screenshots` may be set before a reset: without them a step is cheaper. So
    may `surroundings`: what a web session shares with its episode's files and terminal."""

    def __init__(self, open_page: OpenPage, sources: PageTasks, *, limits: Limits | None = None, screenshots: bool = True) -> None:
        self.screenshots = screenshots
        self.surroundings: Surroundings | None = None
        self._open_page = open_page
        self._sources = sources
        self._limits = limits or Limits()
        self._page: Page | None = None
        self._page_key: tuple[str, str] | None = None
        self._page_window: tuple[PageSettings, Path] | None = None
        self._instance: _Instance | None = None
        self._is_closed = False
        self.num_resets = 0
        self.num_refused = 0
        """Instances that were started and not shown, because their content is reserved."""

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        if self._instance is None:
            return ""
        return environment(self._instance.page.browser_version, self._instance.source.environment)

    @property
    def loaded_task(self) -> tuple[str, str] | None:
        """(source, name) of the task whose page is loaded: the next reset to it is the cheapest."""
        return self._page_key

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown source, PageNotReady and other SandboxErrors.

        Where the content of the instance is reserved for another split, another is drawn in its place, always the same one: so whoever
        asks for a train instance is never shown what is evaluated on."""
        source = self._source(task)
        require_open(self._is_closed)
        self.num_resets += 1
        reserved = reserved_of(task.source, task.name)
        if reserved is None:
            return await self._begin(source, task, seed)
        split = task.split(seed)
        for draw in range(MAX_DRAWS):
            observation = await self._begin(source, task, redrawn_seed(task.source, task.name, seed, draw))
            if not reserved.refuses(seed, split, first_content(observation)):
                return observation
            self.num_refused += 1
        raise nothing_left(task.name, seed)

    async def begin(self, task: Task, seed: int) -> Observation:
        """Start an instance whatever it shows. Only for the program that makes the index of what is reserved; raises as `reset`."""
        require_open(self._is_closed)
        return await self._begin(self._source(task), task, seed)

    async def _begin(self, source: PageTask, task: Task, seed: int) -> Observation:
        instance, self._instance = self._instance, None
        key = (task.source, task.name)
        has_stayed = instance is not None and instance.page.notes.left_for is None and self._page_key == key
        try:
            async with time_limit(self._limits.ready_s, f"Starting {task.name}"):
                root, settings = readable_root(source.root), source.settings(task)
                fresh = source.needs_fresh_page(task) or settings.web is not None
                await self._drop_unless_reusable((settings, root))
                if self._page is None or not has_stayed or fresh:
                    page = await self._load(task, source, (settings, root))
                    if not fresh:
                        await self._start(page, source, task, seed)
                        await page.settle(0, screenshot=False)
                else:
                    page = self._page
                await self._start(page, source, task, seed)
                self._page_key = key
                web = page if settings.web is not None and isinstance(page, WebPage) else None
                self._instance = _Instance(
                    task=task, seed=seed, source=source, settings=settings, root=root, page=page, web=web, start_ms=page.time_ms
                )
                return await self._observe(self._instance)
        except SandboxTimeout as error:
            self._page_key = None
            raise PageNotReady(f"{error} Page: {relative_urls(source.url(task), source.root)}") from error
        except BaseException:
            self._page_key = None
            raise

    async def _drop_unless_reusable(self, window: tuple[PageSettings, Path]) -> None:
        """Close the page we have where the next episode needs another window or other files, where the last one did not end well, or where
        it left something in the browser context."""
        page = self._page
        if page is None or (self._page_key is not None and self._page_window == window and await page.is_reusable()):
            return
        self._page = None
        await page.close()

    @staticmethod
    async def _start(page: Page, source: PageTask, task: Task, seed: int) -> None:
        """Start an instance. The first start in a document lays some pages out a pixel apart from every later one, so a page that is
        started again and again is started twice at first."""
        await page.rest()
        await page.evaluate(f"void ({source.start_script(task, seed)})")

    def _source(self, task: Task) -> PageTask:
        try:
            return self._sources[task.source]
        except KeyError as error:
            raise TaskError(
                f"Task {task.name!r} is of source {task.source!r}, which this session does not have; it has {sorted(self._sources)}."
            ) from error

    async def _load(self, task: Task, source: PageTask, window: tuple[PageSettings, Path]) -> Page:
        """The task's page, loaded and ready, in the page we have or a new one."""
        settings, root = window
        if self._page is None:
            self._page, self._page_window = await self._open_page(settings, root, self.surroundings), window
        self._page_key = None
        address = source.url(task)
        await self._page.load((root / _relative(source, task)).as_uri() if address.startswith("file:") else address)
        deadline = time.monotonic() + self._limits.ready_s * 0.8
        while not await self._page.evaluate(f"Boolean({source.ready_script})"):
            if time.monotonic() > deadline:
                raise PageNotReady(
                    f"The page of {task.name} ({relative_urls(address, source.root)}) loaded, but was not ready within "
                    f"{self._limits.ready_s * 0.8:g} s: {source.ready_script!r} stayed false."
                )
            await self._page.settle(settings.step_time_ms, screenshot=False)
            await asyncio.sleep(0)
        return self._page

    async def step(self, action: Action) -> Transition:
        instance = self._running()
        if instance.is_over and instance.lost is None:
            async with time_limit(self._limits.step_s, f"A look at {instance.task.name}"):
                observation = await self._observe(instance)
            info = {"ignored": "the episode is over"}
            return Transition(observation=observation, reward=0.0, terminated=True, truncated=False, info=info)
        if instance.lost is None:
            stepping = self._act_and_look(instance, action)
            try:
                info, observation = await self._in_time(instance, stepping, action)
            except SandboxError as error:
                await _lose(instance, error)
        if instance.lost is not None:
            return _end_of_lost(instance)
        return self._transition(instance, info, observation, is_end=isinstance(action, actions.Finished | actions.CallUser))

    @staticmethod
    def _transition(instance: _Instance, info: dict[str, Any], observation: Observation, *, is_end: bool = False) -> Transition:
        """What a look found. `is_end`: the agent said that it is done."""
        info |= _noted(instance.page.notes, instance.root)
        info |= instance.state.info if instance.state is not None else {}
        info |= instance.web.status() if instance.web is not None else {}
        has_left = instance.page.notes.left_for is not None
        is_done = instance.state is not None and instance.state.done
        terminated = is_done or has_left or is_end
        truncated = not terminated and len(instance.actions) >= instance.task.max_steps
        instance.is_over = terminated or truncated
        reward = instance.state.reward if terminated and instance.state is not None else 0.0
        return Transition(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)

    async def devtools(self) -> str | None:
        """As in Outside."""
        page = self._running().page
        return await page.devtools() if isinstance(page, HasDevTools) else None

    async def look(self) -> Transition:
        """As in Outside."""
        instance = self._running()
        if instance.is_over and instance.observation is not None:
            return Transition(observation=instance.observation, reward=0.0, terminated=True, truncated=False)
        try:
            async with time_limit(self._limits.step_s, f"A look at {instance.task.name}"):
                return self._transition(instance, {}, await self._observe(instance))
        except SandboxError as error:
            await _lose(instance, error)
            return _end_of_lost(instance)

    async def _act_and_look(self, instance: _Instance, action: Action) -> tuple[dict[str, Any], Observation]:
        info = await self._act(instance, action)
        instance.actions.append(action)  # before the look: a web task judges by it
        return info, await self._observe(instance, dict(instance.settings.action_times_ms).get(action.kind))

    async def _in_time(self, instance: _Instance, stepping: Coroutine[Any, Any, T], action: Action) -> T:
        """Raises SandboxTimeout. What a web session shows may be of the agent's choosing, so its time is up only where the browser is well
        and the step does not end then either; else the machine was busy or asleep."""
        limit_s = self._limits.step_s + (action.seconds if isinstance(action, actions.Wait) else 0.0)
        what = f"A step of {instance.task.name}"
        task = asyncio.ensure_future(stepping)
        try:
            await asyncio.wait([task], timeout=limit_s)
            if not task.done() and instance.web is not None and await instance.web.is_to_blame():
                await asyncio.wait([task], timeout=MORE_S)
            if not task.done():
                raise SandboxTimeout(f"{what} took longer than {limit_s:g} s; the browser hangs or the machine is overloaded.")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _act(self, instance: _Instance, action: Action) -> dict[str, Any]:
        """Carry out an action; returns what to say about it beside the observation."""
        match action:
            case actions.InvalidAction(reason=reason):
                return {"invalid": reason}
            case actions.Finished() | actions.CallUser():
                return {}
            case _ if instance.web is not None and (done := await instance.web.act(action)) is not None:
                return done
            case actions.Navigate() | actions.NavigateBack():
                return {"ignored": f"{action.kind} is not possible in this page: the task lives in one page"}
            case actions.SelectOption(x=x, y=y, option=option):
                reason = await instance.page.evaluate(call(SELECT_SCRIPT, x, y, option))
                return {"ignored": reason} if reason else {}
            case _:
                phases = gestures(action, instance.settings.area_px)
                if isinstance(phases, Refusal):
                    return {"ignored": phases.reason}
                await instance.page.perform(phases)
                return {}

    async def _observe(self, instance: _Instance, time_ms: float | None = None) -> Observation:
        """Let the step's time pass, then look: screenshot and elements of the same moment."""
        page, source, settings = instance.page, instance.source, instance.settings
        png = await page.settle(settings.step_time_ms if time_ms is None else time_ms, screenshot=self.screenshots)
        reading = asyncio.ensure_future(self._read_web_state(instance) if instance.web is not None else self._read_state(page, source))
        await asyncio.sleep(0)  # the page answers while we crop
        png = None if png is None else crop_png(png, settings.area_px)
        instance.state = await reading
        width, height = settings.area_px
        instance.observation = Observation(
            instruction=instance.state.instruction if instance.state else "",
            elements=instance.state.elements if instance.state else (),
            screenshot=png,
            width_px=width,
            height_px=height,
            time_ms=round(page.time_ms - instance.start_ms, 3),
            url=instance.web.url if instance.web is not None else _relative(source, instance.task),
            output="\n".join(instance.web.news()) if instance.web is not None else "",
        )
        return instance.observation

    async def _read_web_state(self, instance: _Instance) -> PageState | None:
        if instance.web is None:
            return None
        workspace = self.surroundings.workspace if self.surroundings is not None else None
        return await read_web_state(
            instance.page, instance.web, instance.source, instance.task, instance.seed, instance.actions, workspace, instance.state
        )

    @staticmethod
    async def _read_state(page: Page, source: PageTask) -> PageState | None:
        """The page's state; None where the page was left for another, which may show only in that the script fails there."""
        if page.notes.left_for is not None:
            return None
        try:
            return PageState.from_json(await page.evaluate(source.state_script))
        except SandboxError:
            if not await page.evaluate(f"Boolean({source.ready_script})"):
                page.notes.left_for = str(await page.evaluate("location.href"))
                return None
            raise

    async def evaluate(self) -> Verdict:
        instance = self._running()
        if instance.lost is not None:
            return Verdict(origin="verifier", score=0.0, threshold=1.0, reasons=(instance.lost,))
        if instance.state is None:
            reason = f"the page was left for {relative_urls(str(instance.page.notes.left_for), instance.root)}"
            return Verdict(origin="verifier", score=0.0, threshold=1.0, reasons=(reason,))
        return instance.source.verdict(instance.state)

    async def oracle_action(self) -> Action | None:
        instance = self._running()
        if instance.state is None or instance.observation is None or instance.lost is not None:
            return None
        async with time_limit(self._limits.step_s, f"The oracle of {instance.task.name}"):
            return await instance.source.oracle_action(
                PageStepContext(
                    task=instance.task,
                    seed=instance.seed,
                    observation=instance.observation,
                    actions=instance.actions,
                    evaluate=instance.page.evaluate,
                )
            )

    def _running(self) -> _Instance:
        require_open(self._is_closed)
        return require_running(self._instance)

    async def leave(self) -> None:
        """Close the page; the next reset opens another. For who ends what the page shares with an episode."""
        self._instance = None
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    async def close(self) -> None:
        self._is_closed = True
        await self.leave()


def _relative(source: PageTask, task: Task) -> str:
    """The page's path below its source's root: the same on every machine."""
    path = Path(unquote(urlsplit(source.url(task)).path))
    try:
        return path.relative_to(source.root).as_posix()
    except ValueError as error:
        where = relative_urls(source.url(task), source.root)
        raise TaskError(f"The page of {task.name} is {where}, which is not below its source's root; put it there.") from error


async def _lose(instance: _Instance, error: SandboxError) -> None:
    """The episode has failed, where that is the doing of what is shown or of who drives it. Raises the error where it is not."""
    page = instance.page
    if not isinstance(page, Untrusted) or not await page.is_to_blame():
        raise error
    instance.lost = f"what is shown cannot be used any more: {error}"
    page.end_pages()


def _end_of_lost(instance: _Instance) -> Transition:
    """What was seen last is everything."""
    has_ended, instance.is_over = instance.is_over, True
    observation = instance.observation
    if observation is None:
        raise SandboxError("Nothing was observed before the page was lost.")
    info = {"ignored": "the episode is over"} if has_ended else {"lost": instance.lost}
    return Transition(observation=observation, reward=0.0, terminated=True, truncated=False, info=info)


def _noted(notes: PageNotes, root: Path) -> dict[str, Any]:
    """Takes what was noted since the last step."""
    info: dict[str, Any] = {}
    if notes.dialogs:
        info["dialogs"], notes.dialogs = notes.dialogs, []
    if notes.blocked:
        info["blocked"], notes.blocked = [relative_urls(url, root) for url in notes.blocked], []
    if notes.left_for is not None:
        info["left_for"] = relative_urls(notes.left_for, root)
    return info
