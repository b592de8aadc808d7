"""The pictures of docs/dagster.md: Dagster's page of a home with finished iterations, in a browser, and beside them which assets it drew.

    flywheel run --iterations 1 --profile smoke --home HOME
    python scripts/dagster_pictures.py HOME docs

tests/architecture/test_dagster_pictures.py fails when the graph is another than the one drawn: make them again then.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from sandbox.browser.chromium import find_chromium

DRAWN = "dagster-pictures.json"
PROFILE = "smoke"
NUM_COLOURS = 32
START_TIMEOUT_S = 300
PAGE_TIMEOUT_MS = 60_000
SETTLE_MS = 3000
"""After the last request a page still fades and counts."""
NAVIGATION_PX, HEADER_PX = 242, 112
"""What stands left of the graph, and above it."""
GROUPS = ("seed", "datasets", "training", "release", "collection", "routing")


@contextmanager
def served(home: Path) -> Iterator[str]:
    """The address of `flywheel ui` on a home, as long as the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pipelines.cli", "ui", "--port", str(port), "--profile", PROFILE, "--home", str(home.absolute())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"{url}/server_info"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"flywheel ui did not come up on {home}; see {home}/dagster/ui.log")
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except OSError:
        return False


def lineage(page: Page, url: str) -> None:
    """The whole graph, every group open. The window is as high as Dagster needs to fit it in."""
    page.goto(f"{url}/asset-groups?expanded={','.join(f'global@global:{group}' for group in GROUPS)}")
    for group in GROUPS:
        expect(page.get_by_title(group, exact=True).first).to_be_visible()
    page.locator("[aria-label=panel_show_right]").last.click()  # the list beside the graph
    page.mouse.dblclick(NAVIGATION_PX + 20, page.viewport_size["height"] - 50)  # on nothing: the graph is fitted in


def launchpad(page: Page, url: str) -> None:
    """Settings of one run, with the words for an unknown key."""
    page.goto(f"{url}/locations/pipelines.definitions/jobs/rl")
    expect(page.get_by_text(re.compile("^Materialize")).first).to_be_visible()
    page.locator("button:right-of(:text('Materialize'))").first.click()
    page.get_by_text("Open launchpad").click()
    pad = page.get_by_role("dialog")
    pad.get_by_placeholder("Partition").click()
    page.locator("li:visible", has_text="0001").first.click()
    pad.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("resources:\n  profile:\n    config:\n      rl:\n        rounds: 8\n        learning_rat: 0.0001\n")
    expect(pad.get_by_text("Received unexpected config entry")).to_be_visible()


def asset(page: Page, url: str) -> None:
    """What an asset shows of itself."""
    page.goto(f"{url}/assets/routes")
    for words in ("Row count", "Freshness policy", "Made from verdicts.judge"):
        expect(page.get_by_text(words).first).to_be_visible()


def automation(page: Page, url: str) -> None:
    page.goto(f"{url}/automation")
    expect(page.get_by_text("recurring_retraining")).to_be_visible()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture: what leads to the page, and the window, px. `is_whole` is one with Dagster's own navigation."""

    lead: Callable[[Page, str], None]
    width: int
    height: int
    scale: float = 1.0
    is_whole: bool = True


PICTURES = {
    "dagster-lineage": Picture(lead=lineage, width=1700, height=2500, scale=1.2, is_whole=False),
    "dagster-launchpad": Picture(lead=launchpad, width=1300, height=820),
    "dagster-asset": Picture(lead=asset, width=1300, height=900),
    "dagster-automation": Picture(lead=automation, width=1300, height=700),
}


def draw(url: str, folder: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(find_chromium().path))
        for name, picture in PICTURES.items():
            window = {"width": picture.width, "height": picture.height}
            page = browser.new_page(viewport=window, device_scale_factor=picture.scale, timezone_id="UTC", locale="en-US")
            page.set_default_timeout(PAGE_TIMEOUT_MS)
            expect.set_options(timeout=PAGE_TIMEOUT_MS)
            picture.lead(page, url)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(SETTLE_MS)
            left, top = (0, 0) if picture.is_whole else (NAVIGATION_PX, HEADER_PX)
            clip = {"x": left, "y": top, "width": picture.width - left, "height": picture.height - top}
            with Image.open(io.BytesIO(page.screenshot(clip=clip))) as shot:
                shot.convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(folder / f"{name}.png", optimize=True)
            page.close()
        browser.close()


GRAPH = "{ assetNodes { assetKey { path } dependencyKeys { path } } }"


def graph(url: str) -> dict[str, list[str]]:
    """What each asset on the page depends on, by key."""
    body = json.dumps({"query": GRAPH}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})) as answer:
        nodes: list[dict[str, Any]] = json.load(answer)["data"]["assetNodes"]
    found = {"/".join(node["assetKey"]["path"]): sorted("/".join(key["path"]) for key in node["dependencyKeys"]) for node in nodes}
    return dict(sorted(found.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python scripts/dagster_pictures.py", description="Draw Dagster's page for docs/dagster.md.")
    parser.add_argument("home", type=Path, help=f"a home with finished iterations of the profile {PROFILE}")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args(arguments)
    with served(options.home) as url:
        draw(url, options.folder)
        drawn = {"profile": PROFILE, "assets": graph(url)}
    (options.folder / DRAWN).write_text(json.dumps(drawn, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
