"""The pictures of docs/annotation.md: each page of an annotation server at two sizes, the annotator's in dark as well.

    python -m tests.annotation.web.take_pictures [--folder docs/annotation]

The annotator's pages, accounts and campaigns are those of a real server with real sandboxes and a policy that reads its prompt. Review,
quality, recordings and task design want weeks of work by many people to look like something: they show samples in the server's own form
(tests/annotation/web/page_samples.py).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, expect

from tests.annotation.web import page_samples
from tests.annotation.web.page_parts import LARGE, SMALL, Colleague, Site, chromium, deciding, log_in, new_page, site

SIZES = (SMALL, LARGE)
QUALITY = 72


class Camera:
    """Takes the page at both sizes, as WebP."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page, self._folder = page, folder

    async def take(self, name: str) -> None:
        for size in SIZES:
            await self._page.set_viewport_size(size)
            await self._page.wait_for_timeout(350)
            picture = Image.open(io.BytesIO(await self._page.screenshot()))
            path = self._folder / f"{name}-{size['width']}.webp"
            picture.convert("RGB").save(path, quality=QUALITY, method=6)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        await self._page.set_viewport_size(SMALL)


async def annotate(page: Page, camera: Camera) -> None:
    """A hybrid task: candidates, history, terminal; then the editor, what a click means, the dialogs."""
    await page.goto("/work")
    await deciding(page, 1)
    await page.keyboard.press("1")
    await deciding(page, 2)
    await page.keyboard.press("2")
    await deciding(page, 3)
    await expect(page.locator("#file-list li").first).to_be_attached()
    await camera.take("work")
    await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    await camera.take("work-dark")
    await page.emulate_media(color_scheme="light", reduced_motion="reduce")
    await page.keyboard.press("o")
    await page.locator("#thought-field").fill("The word is known; the field Word comes next.")
    await page.locator("#action-field").press_sequentially("click ")
    await expect(page.locator("#completions")).to_be_visible()
    await page.keyboard.press("ArrowDown")
    await camera.take("work-editor")
    for _ in range(2):
        await page.keyboard.press("Escape")
    await page.keyboard.press("[")
    await camera.take("work-step-back")
    await page.keyboard.press("Escape")
    await page.keyboard.press("f")
    await camera.take("work-finish")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await camera.take("work-keys")
    await page.keyboard.press("Escape")


async def rest(page: Page, camera: Camera, here: Site) -> None:
    for address, name in (("/", "home"), ("/campaigns", "campaigns"), ("/people", "people")):
        await page.goto(address)
        await camera.take(name)
    page_samples.EVIL = "by the shortest way"  # pictures need no markup
    await page_samples.answer_with_samples(page)
    for name in ("runs", "review", "quality", "recordings", "design"):
        await page.goto(f"/{name}")
        await camera.take(name)
    for address, name in (("/runs", "run"), ("/review", "review-run"), ("/recordings", "recording")):
        await page.goto(address)
        await page.locator(".opens").nth(0 if name == "recording" else 1).click()
        await expect(page.locator("#case")).to_be_visible()
        await camera.take(name)
        if name == "run":
            await page.keyboard.press("z")
            await camera.take("run-enlarged")
    await page.context.clear_cookies()
    await page.goto("/login")
    await camera.take("login")
    secret, _ = await here.accounts.invite("annotator", by=None)
    await page.goto(f"/join#{secret}")
    await camera.take("join")


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        async with site(Path(home), Colleague("See what is there first.")) as here, chromium() as browser:
            await here.add_person("ada", "admin")
            await here.add_person("grace")
            await here.add_campaign(
                "hybrid/type-word",
                name="Files and forms, November",
                guidelines="Prefer the shortest way.\nThink as if somebody looks over your shoulder.",
            )
            page = await new_page(browser, here)
            await log_in(page, "ada")
            camera = Camera(page, folder)
            await annotate(page, camera)
            await rest(page, camera, here)
            if here.said:
                raise SystemExit(f"the browser complained: {here.said}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("docs/annotation"))
    asyncio.run(main(parser.parse_args().folder))
