"""Playwright, used directly, as a worker of benchmarks/env_steps.py: its mouse, its screenshots, and the same script for the elements. Its
browser, headless, is the one that the other peers get."""

from __future__ import annotations

import os

from playwright.sync_api import sync_playwright

from benchmarks.peers.worker_loop import Window, arguments, serve
from sandbox.tasks.miniwob.source import MiniWobSource, load_tasks


class Bare:
    def __init__(self, window: Window) -> None:
        self._driver = sync_playwright().start()
        self._browser = self._driver.chromium.launch(executable_path=os.environ["BENCH_CHROMIUM"])
        self._page = self._browser.new_page(viewport={"width": window.width, "height": window.height})
        self._clip = {"x": 0, "y": 0, "width": window.area_width, "height": window.area_height}
        self._source, self._tasks, self._loaded = MiniWobSource(), load_tasks(), ""

    def reset(self, task: str, seed: int) -> None:
        if self._loaded != task:
            self._page.goto(self._source.url(self._tasks[task]))
            self._page.wait_for_function(self._source.ready_script)
            self._loaded = task
        self._page.evaluate(f"void ({self._source.start_script(self._tasks[task], seed)})")
        self._look()

    def step(self, x: int, y: int) -> bool:
        self._page.mouse.click(x, y)
        return self._look()

    def _look(self) -> bool:
        screenshot, state = self._page.screenshot(clip=self._clip), self._page.evaluate(self._source.state_script)  # type: ignore[arg-type]
        if not screenshot or not state["elements"]:
            raise ValueError("an observation without screenshot or elements")
        return bool(state["done"])

    def close(self) -> None:
        self._browser.close()
        self._driver.stop()


if __name__ == "__main__":
    serve(Bare(arguments()[1]))
