"""The live view in a real browser: login, screens, actions drawn on them, tool output; what a model wrote stays text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from sandbox.actions import Click, Drag, ToolCall, TypeText
from sandbox.browser.chromium import find_chromium
from sandbox.http.tokens import Tokens
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from tests.sandbox.counting import TASK, CountingPool

TOKEN = "token-of-a-viewer-01"
WAIT_MS = 30_000
EVIL = "<img src=x onerror='window.evil = 1'><script>window.evil = 1</script>"


async def log_in(page: Page, url: str) -> None:
    await page.goto(url)
    await page.fill("#token", "wrong-token")
    await page.click("button")
    assert await page.title() == "Flywheel sandbox: token"
    await page.fill("#token", TOKEN)
    await page.click("button")
    await page.wait_for_selector(".session")
    assert TOKEN not in page.url and page.url == f"{url}/"


async def watch(page: Page, client: SandboxClient, said: list[str]) -> None:
    session = await client.open(TASK)
    await session.reset(TASK.model_copy(update={"name": EVIL}), 3)
    await expect(page.locator("#instruction")).to_have_text("seed 3, count 0", timeout=WAIT_MS)
    await session.step(Click(x=12, y=40))
    await expect(page.locator("#overlay circle")).to_have_count(3, timeout=WAIT_MS)
    assert await page.text_content("#overlay text") == "click"
    await session.step(Drag(x=1, y=2, to_x=30, to_y=40))
    await page.wait_for_selector("#overlay line", state="attached")
    await page.check("#show-elements")
    assert await page.locator("#overlay rect.element").count() == 1
    frame = await page.locator("#frame").bounding_box()
    assert frame is not None
    await page.mouse.move(frame["x"] + frame["width"] * 10 / 160, frame["y"] + frame["height"] * 10 / 210)
    assert "button “<b>more</b>”" in (await page.text_content("#hovered") or "")
    await session.step(TypeText(text=EVIL))
    await session.step(ToolCall(name="execute_bash", arguments={"command": EVIL}))
    await expect(page.locator("#terminal")).to_contain_text("onerror", timeout=WAIT_MS)
    assert "one\ntwo" in (await page.text_content("#terminal") or "")
    assert EVIL[:40] in (await page.text_content("#steps") or "")
    assert not await page.evaluate("Boolean(window.evil) || document.querySelectorAll('main script, main img[onerror]').length")
    await session.close()
    await expect(page.locator("#verdict")).to_have_text("ended: it was released", timeout=WAIT_MS)
    assert said == []


@pytest.mark.slow
def test_a_person_watches_an_episode() -> None:
    async def main() -> None:
        async with (
            serving(CountingPool(2), Tokens({"ann": TOKEN, "bob": "token-of-somebody-else"})) as url,
            SandboxClient(url, TOKEN) as client,
            SandboxClient(url, "token-of-somebody-else") as other,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=str(find_chromium().path), args=["--no-sandbox"])
            page: Any = await browser.new_page()
            first = await client.open()
            await other.open()
            await log_in(page, url)
            assert await page.locator(".session").count() == 1, "the other client's session is not there"
            await first.close()
            await expect(page.locator(".session")).to_have_count(0, timeout=WAIT_MS)
            said: list[str] = []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            await watch(page, client, said)
            await browser.close()

    asyncio.run(main())
