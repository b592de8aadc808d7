"""The screen on the annotator's page: where its pixels are, and what is on it."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page


async def screen_point(page: Page, x: int, y: int) -> tuple[float, float]:
    """Where a pixel of the screen is on the page, once the layout stands still."""
    frame, before = await page.locator("#frame").bounding_box(), None
    while frame != before:
        await page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        frame, before = await page.locator("#frame").bounding_box(), frame
    shown = await page.locator("#screen").evaluate("canvas => canvas.width")
    assert frame is not None
    scale = frame["width"] / shown
    return frame["x"] + (x + 0.5) * scale, frame["y"] + (y + 0.5) * scale


async def point_at(page: Page, x: int, y: int) -> None:
    """Moves the pointer to a pixel of the screen, until the page itself says that it is there: layout may move beneath a hand."""
    said = ""
    for _ in range(40):
        where = await screen_point(page, x, y)
        await page.mouse.move(where[0], where[1] + 1)
        await page.mouse.move(*where)
        said = await page.locator("#pointer").inner_text()
        if said.split(" · ")[0].split(" → ")[-1] == f"{x}, {y}":
            return
    shown = {place: await page.locator(place).inner_text() for place in ("#phase", "#waiting", "body")}
    raise AssertionError(f"the pointer does not come to {x}, {y} of the screen; the page says {said!r} and shows {shown}")


async def boxes(page: Page) -> list[dict[str, Any]]:
    """The elements of the screen, as the server told them last."""
    state = await page.evaluate(
        "fetch('/api/v1/work').then(r => r.json()).then(w => fetch('/api/v1/runs/' + w.held.run_id)).then(r => r.json())"
    )
    return list(state["screen"]["elements"])
