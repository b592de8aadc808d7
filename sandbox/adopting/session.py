"""AdoptedSession: an adopted task in full Chromium, against the application as it runs. Each episode has a browser context of its own, with
the cookies of the log-in where there is one; the application is the same for all, unless a command resets it before each episode.

The episode ends, paid, in the moment in which all checks hold; a task that asks for an answer ends with the answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandbox.actions import Action, Click, Finished, Hotkey, Navigate, Scroll, SelectOption, TypeText, Wait
from sandbox.adopting.checks import Rows, added, find, holds, read_rows
from sandbox.adopting.login import log_in_again
from sandbox.adopting.records import AdoptedTask, Folder, Site, Step, origin_of, page_key
from sandbox.adopting.site_browser import SiteBrowser, shared_browser
from sandbox.adopting.window import SETTINGS, SiteWindow
from sandbox.browser.page import Page
from sandbox.browser.page_session import Limits, PageSession
from sandbox.session import Observation, Transition, Verdict, require_open
from sandbox.tasks.hitting import on_element
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext, Progress, Surroundings, WebStepContext, first_status
from sandbox.tasks.task import Task
from sandbox.turns import turn_at
from warehouse.core.errors import SandboxError, SandboxTimeout
from warehouse.core.locks import FileLock

VERSION = "1"
RESET_LIMIT_S = 120.0
ANSWER_LIMIT_S = 30.0
TURN_LIMIT_S = 600.0
FADE_S = 0.6
SELECT_ALL = Hotkey(keys=("ctrl", "a"))
FindTask = Callable[[Task, int], AdoptedTask]
"""Raises TaskError for an unknown task or seed."""


class AdoptedSession:
    """Runs adopted tasks one after another."""

    def __init__(self, folder: Folder, site: Site, find_task: FindTask, *, limits: Limits | None = None) -> None:
        self._folder, self.site, self._find_task = folder, site, find_task
        self._side = _Side(site)
        self._page = PageSession(self._open, {site.name: self._side}, limits=limits)
        self._browser: SiteBrowser | None = None
        self._turn: FileLock | None = None
        self._is_closed = False
        self.num_resets = 0

    async def _open(self, settings: PageSettings, root: Path, surroundings: Surroundings | None) -> Page:
        self._browser = shared_browser(self.site, self._folder.login if self.site.has_login else None)
        self._side.window = await self._browser.open()
        return self._side.window

    @property
    def screenshots(self) -> bool:
        return self._page.screenshots

    @screenshots.setter
    def screenshots(self, are_taken: bool) -> None:
        self._page.screenshots = are_taken

    @property
    def environment(self) -> str:
        return self._page.environment

    @property
    def window(self) -> SiteWindow | None:
        return self._side.window

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError, and SandboxErrors where the application does not answer, or its reset fails."""
        require_open(self._is_closed)
        adopted = self._find_task(task, seed)
        self.num_resets += 1
        await self._end()
        if self.site.allow_writes:
            self._turn = await turn_at(self.site.host, self.site.port, limit_s=TURN_LIMIT_S)
        try:
            if self.site.reset:
                await run_reset(self.site)
            self._side.start(adopted, read_rows(self.site.database))
            observation = await self._page.begin(task, seed)
            if self.site.has_login and self._is_logged_out(adopted) and self._browser is not None:
                await self._page.leave()
                await log_in_again(self._folder, self.site, self._browser)
                self._side.start(adopted, read_rows(self.site.database))
                observation = await self._page.begin(task, seed)
            self._check_start(adopted)
            return observation
        except BaseException:
            await self._end()
            raise

    def _is_logged_out(self, adopted: AdoptedTask) -> bool:
        window = self._side.window
        return window is not None and (first_status(window.sent) in (401, 403) or window.asks_to_log_in(adopted.start))

    def _check_start(self, adopted: AdoptedTask) -> None:
        """Raises SandboxError where the application does not show the page that the task starts on: it is down, or a log-in has expired."""
        window, url = self._side.window, self.site.origin + adopted.start
        status = first_status(window.sent) if window is not None else None
        if window is None or status is None or status >= 400:
            raise SandboxError(f"The start page {url} did not open: it answered {status or 'nothing'}. Is the application running there?")
        if origin_of(window.full_url) != self.site.origin or page_key(window.full_url) != adopted.start:
            hint = f" Delete {self._folder.login} to log in again." if self.site.has_login else ""
            raise SandboxError(f"The start page {url} led to {window.full_url}. Is the application as it was crawled?{hint}")

    async def step(self, action: Action) -> Transition:
        return await self._page.step(action)

    async def evaluate(self) -> Verdict:
        return await self._page.evaluate()

    async def oracle_action(self) -> Action | None:
        return await self._page.oracle_action()

    async def oracle_action_for(self, other: AdoptedTask) -> Action | None:
        """What another task's oracle would do here."""
        with self._side.following(other):
            return await self._page.oracle_action()

    def new_rows(self) -> Rows:
        """What the database has that it had not when the episode began."""
        return self._side.new_rows()

    async def _end(self) -> None:
        try:
            await self._page.leave()
        finally:
            self._side.window = None
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.release()

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._end()
        finally:
            await self._page.close()


async def run_reset(site: Site) -> None:
    """Run the command, and wait until the application answers: the command may have started it again. What it leaves running in the
    background goes on. Raises SandboxError where it fails."""
    said = " ".join(site.reset)
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *site.reset, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, cwd=site.reset_folder, start_new_session=True
            )
        except OSError as error:
            raise SandboxError(f"--reset {said!r} could not be started: {error}. Give a command that runs here.") from error
        try:
            async with asyncio.timeout(RESET_LIMIT_S):
                await process.wait()
        except TimeoutError as error:
            raise SandboxTimeout(f"--reset {said!r} took longer than {RESET_LIMIT_S:g} s.") from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        output.seek(0)
        if process.returncode:
            tail = output.read()[-300:].decode("utf-8", "replace").strip()
            raise SandboxError(f"--reset {said!r} ended with status {process.returncode}: {tail}")
    until_s = time.monotonic() + ANSWER_LIMIT_S
    while True:
        try:
            _, writer = await asyncio.open_connection(site.host, site.port)
        except OSError as error:
            if time.monotonic() > until_s:
                raise SandboxError(f"After --reset {said!r} nothing answers at {site.origin} for {ANSWER_LIMIT_S:g} s.") from error
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


class _Side:
    """What one session's page is and says: a PageTask and WebTask."""

    root = Path(__file__).resolve().parent
    ready_script = "document.readyState === 'complete'"
    state_script = "null"
    environment = f"adopted site {VERSION}"

    def __init__(self, site: Site) -> None:
        self._site = site
        self.window: SiteWindow | None = None
        self._task: AdoptedTask | None = None
        self._followed: AdoptedTask | None = None
        self._before: Rows = {}

    def start(self, task: AdoptedTask, before: Rows) -> None:
        self._task, self._before = task, before

    @contextmanager
    def following(self, other: AdoptedTask) -> Iterator[None]:
        """The oracle is another task's for as long as the block lasts."""
        self._followed = other
        try:
            yield
        finally:
            self._followed = None

    @property
    def task(self) -> AdoptedTask:
        if self._task is None:
            raise SandboxError("No task runs in this session: call reset(task, seed) first.")
        return self._task

    def settings(self, task: Task) -> PageSettings:
        return SETTINGS

    def url(self, task: Task) -> str:
        return self._site.origin + self.task.start

    def start_script(self, task: Task, seed: int) -> str:
        return "null"

    def needs_fresh_page(self, task: Task) -> bool:
        return True

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward, threshold=1.0)

    async def progress(self, context: WebStepContext) -> Progress:
        last = context.actions[-1] if context.actions else None
        answer = last.answer if isinstance(last, Finished) else None
        url = self.window.full_url if self.window is not None else ""
        sent = self.window.traffic.sent if self.window is not None else []
        is_met = True
        for check in self.task.checks:
            is_met = is_met and await holds(
                check, origin=self._site.origin, url=url, answer=answer, sent=sent, evaluate=context.evaluate, new_rows=self.new_rows
            )
        return Progress(instruction=self.task.instruction, reward=float(is_met), done=is_met)

    def new_rows(self) -> Rows:
        return added(self._before, read_rows(self._site.database))

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        url = self.window.full_url if self.window is not None else ""
        key = page_key(url) if origin_of(url) == self._site.origin else ""
        return await next_action(self._followed or self.task, self._site, key, context)


async def next_action(task: AdoptedTask, site: Site, key: str, context: PageStepContext) -> Action | None:
    """The first step of the recorded way that is not done on the page that is shown. On another page the way begins again; None where the
    page has not what it had."""
    here = [step for step in task.steps if step.key == key]
    if not here:
        return Navigate(url=site.origin + task.start) if key != page_key(task.start) else None
    for step in here:
        found = await find(context.evaluate, step.at)
        if found is None:
            return None
        if is_done(step, found):
            continue
        if found["where"] in ("above", "below"):
            return Scroll(direction="up" if found["where"] == "above" else "down")
        if step.do == "read":
            return Finished(answer=task.answer)
        if task.family == "press-button" and context.actions and isinstance(context.actions[-1], Click):
            return Wait(seconds=FADE_S)  # what it brings up fades in: a second click may close it again
        x, y = max(0, found["x"]), max(0, found["y"])
        if step.do == "choose":
            return on_element(SelectOption(x=x, y=y, option=step.value), context.observation)
        if step.do == "type" and found["isFocused"]:
            if normal_line(found["state"]) == normal_line(step.value):
                return Hotkey(keys=("enter",))
            if found["state"] and (not context.actions or context.actions[-1] != SELECT_ALL):
                return SELECT_ALL
            return TypeText(text=step.value + ("\n" if step.enter else ""))
        return on_element(Click(x=x, y=y), context.observation)
    return Finished(answer=task.answer)


def normal_line(text: str) -> str:
    return " ".join(str(text).split())


def is_done(step: Step, found: object) -> bool:
    """Whether a step shows on the page as done. A click that leads away never does, nor does reading."""
    state = str(found["state"]) if isinstance(found, dict) else ""
    if step.do in ("type", "choose"):
        return normal_line(state) == normal_line(step.value) and not step.enter
    return step.do == "set" and state == step.value
