"""A web task of our own and what drives it: two small sites served by the session, and one browser for the tests of a module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.backend import BrowserBackend, Kind, launch
from sandbox.browser.page_session import PageSession
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.page_task import (
    Connect,
    PageSettings,
    PageState,
    PageStepContext,
    Progress,
    Site,
    Surroundings,
    WebSettings,
    WebStepContext,
)
from sandbox.tasks.task import Task

SITES = Path(__file__).with_name("sites")
SHOP, OTHER = Site(host="shop.test", folder=SITES / "shop"), Site(host="other.test", folder=SITES / "other")
TASK = Task(source="web", name="shop", domain="hybrid", max_steps=100)
T = TypeVar("T")


@dataclass(kw_only=True)
class WebSource:
    """The shop's front page. The episode succeeds when the second page is shown."""

    web: WebSettings
    address: str = "https://shop.test/"
    root: Path = SITES
    real_time: bool = False
    ready_script: str = "document.readyState === 'complete'"
    state_script: str = "null"
    environment: str = "shop 1"

    def settings(self, task: Task) -> PageSettings:
        return PageSettings(
            viewport_px=(500, 240), area_px=(500, 240), step_time_ms=100.0, frame_time_ms=50.0, web=self.web, real_time=self.real_time
        )

    def url(self, task: Task) -> str:
        return self.address

    def start_script(self, task: Task, seed: int) -> str:
        return "0"

    def needs_fresh_page(self, task: Task) -> bool:
        return False

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward, threshold=1.0)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        return None

    async def progress(self, context: WebStepContext) -> Progress:
        state = await context.evaluate("typeof state === 'function' ? state() : null")
        noted = state["instruction"] if state else ""
        return Progress(instruction=noted, reward=float(bool(state and state["reward"])), done=bool(state and state["reward"]))


@dataclass(kw_only=True)
class Bench:
    """One browser in an event loop of its own."""

    runner: asyncio.Runner
    host: BrowserBackend
    kind: str
    sessions: list[PageSession] = field(default_factory=list)

    def session(
        self,
        *,
        workspace: Path | None = None,
        connect: Connect | None = None,
        sites: tuple[Site, ...] = (SHOP, OTHER),
        address: str = "https://shop.test/",
        real_time: bool = False,
        **web: Any,
    ) -> PageSession:
        source = WebSource(web=WebSettings(sites=sites, **web), address=address, real_time=real_time)
        session = PageSession(self.host.open_page, {"web": source})
        session.surroundings = Surroundings(workspace=workspace, connect=connect)
        self.sessions.append(session)
        return session

    def run(self, use: Callable[[PageSession, Observation], Coroutine[Any, Any, T]], **settings: Any) -> T:
        """What `await use(session, first observation)` gives."""

        async def used() -> T:
            session = self.session(**settings)
            try:
                return await use(session, await session.reset(TASK, 1))
            finally:
                await session.close()

        return self.runner.run(used())


@contextmanager
def bench(kind: Kind) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        host = runner.run(launch(kind))
        try:
            yield Bench(runner=runner, host=host, kind=kind)
        finally:
            runner.run(host.close())


def find(observation: Observation, text: str) -> Element:
    found = [element for element in observation.elements if element.text == text]
    assert found, f"no element {text!r} among {[element.text for element in observation.elements]}"
    return found[0]


def click(observation: Observation, text: str, **more: Any) -> Action:
    element = find(observation, text)
    return actions.Click(x=element.x_px, y=element.y_px, **more)


def keys(*names: str) -> Action:
    return actions.Hotkey(keys=names)


def noted(transition: Transition) -> list[str]:
    """What the shop's page noted."""
    return [entry for entry in transition.observation.instruction.split("; ") if entry]


async def page_value(session: PageSession, expression: str) -> Any:
    """Value of an expression in the session's active tab."""
    page = session._page
    assert page is not None
    return await page.evaluate(expression)
