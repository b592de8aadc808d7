"""WebPageSession: a browser page on an application that somebody else runs (web_page_source.py). The page reaches that application's host
and port, wherever they are, and of other hosts those that the task names.

Rewards are paid at the end: the step that ends the episode pays 1 where `verifier` is content. Sessions on one host and port take turns,
over all processes of the machine: what one changes another would find.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sandbox import actions
from sandbox.actions import Action
from sandbox.adapters.page_view import NotThere, PageView
from sandbox.adapters.web_page_task import VERSION, PageInstance, Start, WebPageTask
from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.hybrid.jailed_page import EpisodePage, JailedPageSession
from sandbox.session import Observation, Transition, Verdict
from sandbox.tasks.hitting import on_element
from sandbox.tasks.page_task import PageSettings, PageStepContext, Progress, Surroundings, WebSettings, WebStepContext, first_status
from sandbox.tasks.task import Task
from sandbox.turns import turn_at
from warehouse.core.errors import SandboxError, SandboxTimeout
from warehouse.core.locks import FileLock

T = TypeVar("T")
CONNECT_S = 15.0
CALL_S = 60.0
"""What a function of the task may take."""


@dataclass(slots=True, kw_only=True)
class _Episode:
    task: Task
    instance: PageInstance
    turn: FileLock | None
    answer: str | None = None
    context: WebStepContext | None = None
    """Of the last look."""
    is_over: bool = False
    verdict: Verdict | None = None
    """The last word, once the episode is over."""
    surroundings: Surroundings = field(default_factory=Surroundings)

    def leave_turn_to(self, late: Future[Any]) -> None:
        """A `reset` that goes on keeps the turn until it is done."""
        turn, self.turn = self.turn, None
        if turn is not None:
            late.add_done_callback(lambda _: turn.release())

    async def close(self) -> None:
        if self.turn is not None:
            self.turn.release()


class WebPageSession(JailedPageSession[PageInstance, _Episode]):
    """Runs task instances one after another. `instance` raises TaskError for a task that is not the source's."""

    reset_timeout_s = CALL_S

    def __init__(
        self, open_page: OpenPage, instance: Callable[[Task, int], PageInstance], *, limits: Limits | None = None, screenshots: bool = True
    ) -> None:
        site = _Site()
        self._instance_of = instance
        self._seed = 0
        super().__init__(PageSession(open_page, _Only(site), limits=limits, screenshots=screenshots), site)

    @property
    def environment(self) -> str:
        return self._page.environment

    def _instance(self, task: Task, seed: int) -> PageInstance:
        self._seed = seed
        return self._instance_of(task, seed)

    async def _begin(self, task: Task, instance: PageInstance) -> _Episode:
        host, _, port = instance.task.origin.rpartition(":")
        episode = _Episode(task=task, instance=instance, turn=None if instance.task.is_shared else await turn_at(host, int(port)))
        try:
            await _check(instance.task)
            if (reset := instance.task.reset) is not None:
                start = Start(task=task.name, seed=self._seed, facts=instance.content, database=instance.task.database)
                try:
                    await _in_thread(lambda: reset(start), f"`reset` of {task.name}", on_late=episode.leave_turn_to)
                except SandboxError:
                    raise
                except Exception as error:
                    raise SandboxError(f"`reset` of {task.name} failed: {type(error).__name__}: {error}") from error
        except BaseException:
            await episode.close()
            raise
        return episode

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises as JailedPageSession does, and SandboxError where the page does not open."""
        observation = await super().reset(task, seed)
        episode = self._running()
        status = first_status(episode.context.sent if episode.context else ())
        if status is None or status >= 400:
            await self._end_episode()
            raise SandboxError(f"The start page of {task.name} did not open: {episode.instance.url} answered {status or 'nothing'}.")
        return observation

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if not episode.is_over and isinstance(action, actions.Finished):
            episode.answer = action.answer
        transition = await self._page.step(action)
        ends, episode.is_over = not episode.is_over and transition.terminated, transition.terminated or transition.truncated
        return replace(transition, reward=float((await self.evaluate()).success) if ends else 0.0)

    async def evaluate(self) -> Verdict:
        """Where the episode is over, the same however often it is asked."""
        episode = self._running()
        if episode.verdict is not None:
            return episode.verdict
        if episode.context is None:
            raise SandboxError("The page was not looked at yet.")
        await _check(episode.instance.task)
        view = PageView(episode.context, facts=episode.instance.content, answer=episode.answer, database=episode.instance.task.database)
        verdict = await _verified(episode.instance, view)
        episode.verdict = verdict if episode.is_over else None
        return verdict


async def _verified(instance: PageInstance, view: PageView) -> Verdict:
    try:
        said = await _in_thread(lambda: instance.task.verifier(view), f"`verifier` of {instance.task.name}")
    except SandboxError:  # it took too long, or asks elsewhere
        raise
    except Exception as error:
        return _verdict(False, f"verifier failed: {type(error).__name__}: {str(error)[:200]}")
    if isinstance(said, Verdict):
        return said
    if not isinstance(said, bool):
        raise SandboxError(f"`verifier` of {instance.task.name} returned {said!r}: it returns True, False or a Verdict.")
    return _verdict(said, "" if said else "the verifier says no")


def _verdict(is_solved: bool, reason: str) -> Verdict:
    return Verdict(origin="verifier", score=float(is_solved), threshold=1.0, reasons=(reason,) if reason else ())


class _Only(dict[str, Any]):
    """Whatever the task's source, the page is this session's own."""

    def __init__(self, site: _Site) -> None:
        super().__init__()
        self._site = site

    def __missing__(self, source: str) -> _Site:
        return self._site


class _Site(EpisodePage[_Episode]):
    """What the page of an episode shows, and what it says of itself."""

    root = Path(__file__).with_name("pages")
    ready_script = "document.readyState === 'complete'"

    @property
    def environment(self) -> str:
        return f"web page {VERSION}"

    def settings(self, task: Task) -> PageSettings:
        page = self.running().instance.task
        web = WebSettings(network="allowed", allowed_hosts=page.hosts, named=(page.origin,))
        return PageSettings(
            viewport_px=page.size_px, area_px=page.size_px, step_time_ms=100.0, frame_time_ms=50.0, web=web, real_time=page.real_time
        )

    def url(self, task: Task) -> str:
        return self.running().instance.url

    def start_script(self, task: Task, seed: int) -> str:
        return "null"

    async def progress(self, context: WebStepContext) -> Progress:
        episode = self.running()
        episode.context = context
        return Progress(instruction=episode.instance.instruction, reward=0.0, done=False)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        episode = self.running()
        oracle = episode.instance.task.oracle
        if oracle is None or episode.context is None:
            return None
        view = PageView(
            episode.context,
            facts=episode.instance.content,
            answer=episode.answer,
            database=episode.instance.task.database,
            observation=context.observation,
        )
        try:
            return on_element(await _in_thread(lambda: oracle(view), f"`oracle` of {episode.task.name}"), context.observation)
        except NotThere:  # it does not know this page
            return None


async def _check(task: WebPageTask) -> None:
    """Raises SandboxError where nothing listens: what the browser shows then is our proxy's answer."""
    host, _, port = task.origin.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError) as error:
        raise SandboxError(f"Nothing answers at {task.origin}, where {task.name} is: start the application, or correct `url`.") from error
    writer.close()


async def _in_thread(call: Callable[[], T], what: str, on_late: Callable[[Future[Any]], None] | None = None) -> T:
    """In a daemon thread: a function that never ends keeps no process alive. `on_late` is given what goes on after the wait is over. Raises
    SandboxTimeout."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except StopIteration as error:  # which no future takes
            done.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name=what, daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), CALL_S)
    except TimeoutError as error:
        if done.done():
            raise
        raise SandboxTimeout(f"{what} took longer than {CALL_S:g} s.") from error
    finally:
        if on_late is not None and not done.done():
            on_late(done)
