"""BrowserGym's tasks as a task source: MiniWoB by its own environment, in a Python environment of its own, as the document shows."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from benchmarks.common.venv import python_of
from sandbox.actions import Action, ToolCall, TypeText
from sandbox.browser.chromium import find_chromium
from sandbox.tasks.registry import SOURCES
from tests.sandbox.other_servers import other_server
from tests.sandbox.own_source import ADAPTERS, ROOT, write_files_of

BROWSERGYM = ("browsergym-miniwob==0.14.3", "openenv-core==0.3.0")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """With the Chromium that is here where Playwright of BrowserGym's version looks for its own."""
    python = python_of(ROOT / ".bench" / "browsergym", BROWSERGYM)
    (browsers,) = python.parents[1].glob("lib/*/site-packages/playwright/driver/package/browsers.json")
    (revision,) = [each["revision"] for each in json.loads(browsers.read_text())["browsers"] if each["name"] == "chromium"]
    link = tmp_path / "browsers" / f"chromium-{revision}" / "chrome-linux" / "chrome"
    link.parent.mkdir(parents=True)
    link.symlink_to(find_chromium(headless_shell=False).path)
    pages = Path(str(resources.files("miniwob"))) / "html" / "miniwob"
    environment = {"PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "browsers"), "MINIWOB_URL": f"{pages.as_uri()}/"}
    with other_server([python, tmp_path / "browsergym_server.py", "miniwob.click-test-2"], environment) as url:
        yield url


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_files_of("adapters.md", tmp_path, ADAPTERS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_miniwob_is_played_through_browsergym(served: str, tmp_path: Path) -> None:
    text = (tmp_path / "browsing.py").read_text()
    (tmp_path / "there.py").write_text(text.replace("http://localhost:8000", served).replace('"browsergym"', '"there"'))
    SOURCES.use("there.py:SOURCE", tmp_path)
    source = SOURCES["there"]

    async def play() -> None:
        (task,) = source.load_tasks().values()
        assert source.open_session is not None
        session = source.open_session(None, None)
        try:
            for seed in task.seeds("train", 2):
                seen = await session.reset(task, seed)
                assert seen.output.startswith("Click button ONE.") and seen.screenshot is not None and seen.width_px == 498
                odd: Action = TypeText(text="click('none')")
                answer = await session.step(odd)
                assert 'Could not find element with bid "none"' in answer.observation.output and not answer.terminated
                for _ in range(5):  # BrowserGym gives a click half a second, and a busy machine takes more
                    action = await session.oracle_action()
                    assert isinstance(action, ToolCall)
                    last = await session.step(action)
                    if last.terminated:
                        break
                assert (last.terminated, last.reward) == (True, 1.0), last.observation.output
        finally:
            await session.close()

    asyncio.run(play())
