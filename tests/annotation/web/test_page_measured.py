"""What takes long: how soon a decision is seen on the screen, a server that is restarted, and what the accessibility checker axe finds
on every page."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import tarfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from annotation.service.access.accounts import Accounts
from annotation.service.campaigns.campaigns import Campaigns
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.migrating import open_database
from annotation.web.app import create_app
from sandbox.http.serving import Server, address_of, bind, running
from sandbox.pool.pool import SessionPool
from tests.annotation.service.live_parts import OneSource
from tests.annotation.web.page_parts import Colleague, Site, chromium, deciding, log_in, new_page, site
from tests.annotation.web.page_samples import answer_with_samples

pytestmark = pytest.mark.slow
MOST_MS = 300
"""From a decision to the next picture, on loopback."""
AXE = "axe-core@4.10.3"


def test_a_decision_is_seen_within_300_ms(tmp_path: Path) -> None:
    measured: list[int] = []

    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ann")
            await here.add_campaign("miniwob/enter-text")
            page = await new_page(browser, here)
            await log_in(page, "ann")
            await page.goto("/work")
            for _ in range(6):
                await deciding(page, 1)
                for step in (2, 3):
                    await page.keyboard.press("1")
                    await deciding(page, step)
                    measured.append(int(await page.evaluate("document.body.dataset.latency_ms")))
                await page.keyboard.press("f")
                await expect(page.locator("dialog[open]")).to_be_visible()
                await page.keyboard.press("n")
                await expect(page.locator("dialog[open]")).to_be_hidden()
                await page.locator("#next").click()

    asyncio.run(main())
    print(f"decision to picture: median {statistics.median(measured):.0f} ms, all {sorted(measured)}")
    assert statistics.median(measured) <= MOST_MS, measured


def test_work_goes_on_when_the_server_is_started_again(tmp_path: Path) -> None:
    """A decision that is taken while there is no server is carried out by the next one, once."""

    async def main() -> None:
        database = open_database(f"sqlite:///{tmp_path}/annotation.db")
        async with SessionPool(size=1) as pool, chromium() as browser:

            def server(listener: socket.socket) -> AbstractAsyncContextManager[object]:
                runs = LiveRuns(database, Blobs(tmp_path / "screens"), pool, OneSource(Colleague()))
                app = create_app(database, Blobs(tmp_path / "screens"), runs, TaskPriorityReader(None))
                return running(Server(app, grace_s=1, lifespan="on"), listener)

            listener = bind("127.0.0.1", 0)
            url, port = address_of(listener), listener.getsockname()[1]
            here = Site(
                url=url,
                database=database,
                accounts=Accounts(database),
                campaigns=Campaigns(database, TaskPriorityReader(None)),
                runs=None,
                policy=Colleague(),
            )
            await here.add_person("ann")
            await here.add_campaign("miniwob/enter-text")
            page = await new_page(browser, here)
            async with server(listener):
                await log_in(page, "ann")
                await page.goto("/work")
                await deciding(page, 1)
                await page.keyboard.press("1")
                await deciding(page, 2)
            await expect(page.locator("#offline")).to_be_visible(timeout=30_000)
            await page.keyboard.press("1")
            await expect(page.locator("#waiting")).to_have_text("decision queued")
            async with server(bind("127.0.0.1", port)):
                await deciding(page, 3)
                await expect(page.locator("#offline")).to_be_hidden()
                assert [step.decision for step in here.steps()] == ["accept", "accept"]
                assert len(here.steps(kept=False)) == 2
        database.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def axe_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    try:
        packed = subprocess.run(["npm", "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot fetch {AXE}: {error}")
    archive = next(folder.glob("*.tgz"), None)
    if archive is None:
        pytest.skip(f"npm cannot fetch {AXE}: {packed.stderr[-200:]}")
    with tarfile.open(archive) as members:
        script = members.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


async def complaints(page: Page, script: str) -> list[str]:
    """What breaks WCAG 2.1 A or AA, as `rule: element`."""
    await page.evaluate(script)
    found: dict[str, Any] = await page.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] })")
    return [
        f"{rule['id']}: {node['html'][:160]} {json.dumps(node['any'][:1])[:300]}" for rule in found["violations"] for node in rule["nodes"]
    ]


def test_axe_finds_nothing_on_any_page(tmp_path: Path, axe_script: str) -> None:
    found: dict[str, list[str]] = {}

    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ada", "admin")
            await here.add_campaign("hybrid/type-word")
            for scheme in ("light", "dark"):
                page = await new_page(browser, here)
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                await page.goto("/login")
                found[f"login {scheme}"] = await complaints(page, axe_script)
                await log_in(page, "ada")
                await page.goto("/work")
                await deciding(page)
                found[f"work {scheme}"] = await complaints(page, axe_script)
                for key in ("e", "?", "f", "/"):
                    await page.keyboard.press(key)
                    await page.wait_for_timeout(400)
                    found[f"work {key} {scheme}"] = await complaints(page, axe_script)
                    await page.keyboard.press("Escape")
                    await page.keyboard.press("Escape")
                await answer_with_samples(page)
                for address in ("/", "/campaigns", "/people", "/runs", "/review", "/quality", "/recordings", "/design"):
                    await page.goto(address)
                    await expect(page.locator("#main")).not_to_have_attribute("inert", "")
                    await page.wait_for_timeout(400)
                    found[f"{address} {scheme}"] = await complaints(page, axe_script)
                    if address in ("/runs", "/review", "/recordings"):
                        await page.locator(".opens").nth(0 if address == "/recordings" else 1).click()
                        await page.wait_for_timeout(400)
                        found[f"{address} opened {scheme}"] = await complaints(page, axe_script)
                        await page.keyboard.press("z")
                        found[f"{address} enlarged {scheme}"] = await complaints(page, axe_script)
                await page.goto("/nowhere")
                found[f"nowhere {scheme}"] = await complaints(page, axe_script)
                await page.context.close()

    asyncio.run(main())
    assert {name: said for name, said in found.items() if said} == {}
