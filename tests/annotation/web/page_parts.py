"""An annotation server with everything real behind it, and a browser before it: for tests of the pages, and for their pictures."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, async_playwright
from playwright.async_api import Error as PlaywrightError
from sqlalchemy import select

from agent.policy.policy import Prompt, Response
from annotation.service.access.accounts import Accounts
from annotation.service.campaigns.campaigns import Campaigns, CampaignSpec
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.migrating import open_database
from annotation.storage.schema import Run, RunStep
from annotation.web.app import create_app
from annotation.web.serve import serving
from sandbox.browser.chromium import find_chromium
from sandbox.pool.pool import SessionPool
from sandbox.pool.pool_protocol import SessionPoolProtocol
from tests.annotation import fresh
from tests.annotation.service.live_parts import OneSource, Reader

PASSWORD = "three words of mine"
WAIT_MS = 30_000
SMALL: ViewportSize = {"width": 1280, "height": 720}
LARGE: ViewportSize = {"width": 1920, "height": 1080}
EXPECTED = ("ERR_INTERNET_DISCONNECTED", "ERR_CONNECTION_RESET", "status of 422")
"""What the browser says while its line is cut on purpose, or something wrong is asked for."""
EVIL = "<img src=x onerror='window.evil=1'>"


class Colleague(Reader):
    """Reads MiniWoB's forms as Reader does, and knows how hybrid tasks with a file and a field begin. The thought of its second candidate
    is markup, unless it is told another."""

    def __init__(self, aside: str = EVIL) -> None:
        super().__init__("policy-3f2a91c04d77")
        self.aside = aside

    def _response(self, prompt: Prompt, kind: int) -> Response:
        asked = prompt.messages[-1].content
        found = re.search(r"in the file (\S+?\.txt)", asked)
        if found is None:
            return super()._response(prompt, kind)
        if f'run "cat {found[1]}"' in asked:
            texts = (
                "Thought The field comes next. Action triple_click [2]",
                f'Thought {self.aside} Action run "ls -la"',
                "Thought Now send it. Action click [3]",
            )
        else:
            texts = (
                f'Thought The word is in the file. Action run "cat {found[1]}"',
                f'Thought {self.aside} Action run "ls -la"',
                "fly there",
            )
        return Response(text=texts[kind], prompt_token_ids=(1,), token_ids=(2, 3), logprobs=(-0.1 - kind,) * 2, policy_id=self.policy_id)


@dataclass(slots=True, kw_only=True)
class Site:
    """A running server."""

    url: str
    database: Database
    accounts: Accounts
    campaigns: Campaigns
    runs: LiveRuns | None
    policy: Reader
    said: list[str] = field(default_factory=list)
    """What the browser complained about."""

    async def add_person(self, name: str, role: str = "annotator") -> None:
        secret, _ = await self.accounts.invite(role, by=None)
        await self.accounts.accept(secret, name, PASSWORD, "test")

    async def add_campaign(self, *tasks: str, **more: Any) -> str:
        spec = CampaignSpec.model_validate(
            {
                "name": tasks[0],
                "tasks": tasks,
                "guidelines": f"Prefer the shortest way. {EVIL}",
                "num_candidates": 3,
                "double_share": 0.0,
                **more,
            }
        )
        return (await self.campaigns.create(spec, by=None)).campaign_id

    def steps(self, *, kept: bool = True) -> list[RunStep]:
        """Decided steps of all runs, in order."""
        with self.database.read() as session:
            found = session.scalars(select(RunStep).where(RunStep.decision.is_not(None)).order_by(RunStep.asked_at_s)).all()
        return [step for step in found if not kept or step.superseded_at_s is None]

    def finished(self) -> Sequence[Run]:
        with self.database.read() as session:
            return session.scalars(select(Run).where(Run.state == "finished").order_by(Run.started_at_s)).all()


@asynccontextmanager
async def site(
    folder: Path, policy: Reader | None = None, *, pool: SessionPoolProtocol | None = None, size: int = 1
) -> AsyncIterator[Site]:
    """A server on a free port; its pool is made here unless it is given."""
    policy = policy or Colleague()
    database = open_database(fresh.sqlite_url(folder))
    try:
        async with SessionPool(size=size) as own:
            runs = LiveRuns(database, Blobs(folder / "screens"), pool or own, OneSource(policy))
            priorities = TaskPriorityReader(None)
            app = create_app(database, Blobs(folder / "screens"), runs, priorities)
            async with serving(app) as url:
                yield Site(
                    url=url,
                    database=database,
                    accounts=Accounts(database),
                    campaigns=Campaigns(database, priorities),
                    runs=runs,
                    policy=policy,
                )
    finally:
        database.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium().path), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


async def new_page(browser: Browser, here: Site, *, size: ViewportSize = SMALL, context: BrowserContext | None = None) -> Page:
    """A page that tells `here.said` what its console and its scripts complained about."""
    context = context or await browser.new_context(viewport=size, base_url=here.url, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    page.on("console", lambda message: here.said.append(message.text) if _is_complaint(message) else None)
    page.on("pageerror", lambda error: here.said.append(f"thrown: {error}"))
    return page


def _is_complaint(message: ConsoleMessage) -> bool:
    return message.type in ("error", "warning") and not any(expected in message.text for expected in EXPECTED)


async def log_in(page: Page, name: str) -> None:
    await page.goto("/login")
    await page.fill("#name", name)
    await page.fill("#password", PASSWORD)
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".bar nav")


async def deciding(page: Page, step: int | None = None) -> None:
    """Until the page waits for a decision (at a step, counted from 1)."""
    where = f" step {step} of" if step is not None else " step "
    try:
        await page.wait_for_function(
            "where => document.getElementById('phase')?.textContent === 'your turn' "
            "&& document.getElementById('task-name').textContent.includes(where) "
            "&& document.body.dataset.ready === 'true'",
            arg=where,
        )
    except PlaywrightError as error:
        shown = {place: await page.locator(place).inner_text() for place in ("#task-head", "#waiting", "#editor", "body")}
        raise AssertionError(f"the page does not wait for a decision at{where}: {shown}") from error
