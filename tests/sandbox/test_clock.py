"""Page time under begin-frame control: every clock a page has goes by it, to the frame, as fast as the machine can, and stands still
between our calls. And real time, for pages that ask for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.browser.backend import launch
from sandbox.browser.cdp.beginframe import FramedPage
from sandbox.browser.isolation.scratch import readable_root
from sandbox.browser.page_session import PageSession
from sandbox.tasks.page_task import PageSettings
from sandbox.tasks.task import Task
from tests.sandbox.html_pages import HtmlSource

SETTINGS = PageSettings(viewport_px=(320, 320), area_px=(320, 320), step_time_ms=50.0, frame_time_ms=1000 / 60)
FRAME_MS = 1000 / 60
READ = "read()"

CLOCKS = """<!doctype html><style>
  @keyframes slide { to { transform: translateX(200px); } }
  #css { width: 10px; height: 10px; animation: slide 10s linear infinite; }
</style><div id="css"></div><canvas id="gl" width="64" height="64"></canvas><script>
  let raf = 0, interval = 0, timeout = 0, stamp = 0;
  const context = gl.getContext("webgl", { preserveDrawingBuffer: true });
  (function frame(now) {
    if (now !== undefined) { raf++; stamp = now; }
    if (context) { context.clearColor((raf % 60) / 60, 0, 0, 1); context.clear(context.COLOR_BUFFER_BIT); }
    requestAnimationFrame(frame);
  })();
  setInterval(() => interval++, 100);
  (function again() { setTimeout(() => { timeout++; again(); }, 50); })();
  const web = document.body.animate([{ opacity: 1 }, { opacity: 0.5 }], { duration: 20000 });
  function read() {
    const pixel = new Uint8Array(4);
    if (context) context.readPixels(1, 1, 1, 1, context.RGBA, context.UNSIGNED_BYTE, pixel);
    return {
      raf, interval, timeout, stamp, date: Date.now(), now: performance.now(), origin: performance.timeOrigin,
      css: new DOMMatrix(getComputedStyle(css).transform).m41, web: web.currentTime, timeline: document.timeline.currentTime, gl: pixel[0],
    };
  }
</script>"""


@pytest.fixture
def on_clocks(tmp_path: Path) -> Callable[..., Any]:
    """Runs `use(page)` on a page with one of every clock."""
    (tmp_path / "clocks.html").write_text(CLOCKS)

    def run(use: Callable[[FramedPage], Awaitable[Any]], kind: Any = "beginframe", **more: Any) -> Any:
        async def opened() -> Any:
            host = await launch(kind)
            try:
                root = readable_root(tmp_path)
                page = await host.open_page(replace(SETTINGS, **more), root)
                await page.load((root / "clocks.html").as_uri())
                return await use(page)  # type: ignore[arg-type]
            finally:
                await host.close()

        return asyncio.run(opened())

    return run


@pytest.mark.slow
def test_ten_seconds_are_six_hundred_frames_by_every_clock(on_clocks: Any) -> None:
    async def use(page: FramedPage) -> None:
        before, start_ms = await page.evaluate(READ), page.time_ms
        began_s = time.monotonic()
        await page.run_to(start_ms + 10_000)
        took_s = time.monotonic() - began_s
        after = await page.evaluate(READ)
        gone = {name: after[name] - before[name] for name in after}
        assert (gone["raf"], gone["interval"]) == (600, 100)
        assert gone["timeout"] in {199, 200}  # each starts when the one before it fired: where the first began decides
        assert gone["date"] == pytest.approx(10_000, abs=1) and gone["now"] == pytest.approx(10_000, abs=0.2)
        assert gone["web"] == pytest.approx(10_000, abs=0.2) and gone["timeline"] == pytest.approx(10_000, abs=0.2)
        assert after["origin"] + after["now"] == pytest.approx(after["date"], abs=1.1)
        assert after["stamp"] == pytest.approx(after["now"], abs=0.2)  # the last frame was drawn at this very instant
        assert after["css"] % 200 == pytest.approx((before["css"] + 200) % 200, abs=0.1)  # a whole turn: the same place
        assert after["gl"] == round((after["raf"] % 60) / 60 * 255)
        assert took_s < 60

    on_clocks(use)


def test_an_animation_is_where_the_time_says(on_clocks: Any) -> None:
    async def use(page: FramedPage) -> None:
        before = (await page.evaluate(READ))["css"]
        await page.run_to(page.time_ms + 2500)
        assert (await page.evaluate(READ))["css"] - before == pytest.approx(50.0, abs=0.01)

    on_clocks(use)


def test_time_can_be_skipped_without_frames(on_clocks: Any) -> None:
    async def use(page: FramedPage) -> None:
        before = await page.evaluate(READ)
        began_s = time.monotonic()
        await page.run_to(page.time_ms + 60_000, draw=False)
        after = await page.evaluate(READ)
        assert after["raf"] - before["raf"] == 1 and after["interval"] - before["interval"] == 600
        assert time.monotonic() - began_s < 20

    on_clocks(use)


def test_nothing_moves_between_our_calls(on_clocks: Any) -> None:
    async def use(page: FramedPage) -> None:
        before = await page.evaluate(READ)
        await asyncio.sleep(0.4)
        assert await page.evaluate(READ) == before

    on_clocks(use)


def test_the_same_calls_give_the_same_clocks_and_pixels(on_clocks: Any) -> None:
    async def use(page: FramedPage) -> tuple[Any, bytes | None]:
        """To a thousandth of a millisecond; the origin's tenth depends on when the browser was started."""
        await page.run_to(page.time_ms + 777)
        clocks = await page.evaluate(READ)
        del clocks["origin"]
        return {name: round(value, 3) for name, value in clocks.items()}, await page.settle(100, screenshot=True)

    assert on_clocks(use) == on_clocks(use)


@pytest.mark.parametrize("kind", ["beginframe", "plain"])
def test_a_page_may_ask_for_real_time(on_clocks: Any, kind: str) -> None:
    async def use(page: FramedPage) -> None:
        before, began_s = await page.evaluate(READ), time.monotonic()
        assert await page.settle(500, screenshot=True) is not None
        after, took_ms = await page.evaluate(READ), (time.monotonic() - began_s) * 1000
        assert 450 <= after["now"] - before["now"] <= took_ms + 100
        assert after["raf"] > before["raf"] and after["interval"] - before["interval"] >= 4
        assert abs(after["date"] - time.time() * 1000) < 10_000

    on_clocks(use, kind, real_time=True)


def test_an_action_may_take_its_own_time() -> None:
    class Slow(HtmlSource):
        def settings(self, task: Task) -> PageSettings:
            return replace(super().settings(task), action_times_ms=(("click", 400.0),))

    async def use() -> list[float]:
        host = await launch("beginframe")
        try:
            session = PageSession(host.open_page, {"html": Slow()})
            first = await session.reset(Task(source="html", name="kitchen", domain="pointing", max_steps=9), 1)
            click, wait = actions.Click(x=200, y=280), actions.InvalidAction(text="", reason="")
            times = [first.time_ms, *[(await session.step(action)).observation.time_ms for action in (wait, click, wait)]]
            await session.close()
            return [round(later - sooner, 1) for sooner, later in pairwise(times)]
        finally:
            await host.close()

    assert asyncio.run(use()) == [50.0, 400.0, 50.0]
