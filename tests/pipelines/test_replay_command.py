"""`flywheel replay`: exit statuses, the page (text escaped, nothing loaded, keys), the films."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from agent.episode.episode import EpisodeRequest
from agent.episode.pool_collector import PoolCollector
from agent.episode.replay import load_episode
from agent.episode.rows import rows
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from pipelines.cli import app as cli
from pipelines.replay.film import write_webp
from pipelines.replay.marks import Mark, details_of, mark_of
from sandbox import actions
from sandbox.browser.chromium import find_chromium
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

EVIL = "</pre><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A home with an oracle's episode, the same with a wrong reward, and one with a wrong screen and a thought that is markup."""
    root = tmp_path_factory.mktemp("home")
    warehouse = Warehouse(Home(root))
    task = load_tasks()["login-user"]

    async def play() -> Any:
        async with SessionPool(size=1) as pool:
            requests = [EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle") for seed in (1, 2, 3)]
            player = PoolCollector(pool, PromptBuilder("compact")).play(OracleActionSource(grammar_named("compact")), requests)
            return {episode.request.seed: episode async for episode in player}

    played = asyncio.run(play())
    made = rows(played.values())
    ids = [played[seed].episode_id for seed in (1, 2, 3)]
    next(row for row in made["episodes"] if row["episode_id"] == ids[1])["reward"] = 0.5
    step = next(row for row in made["steps"] if row["episode_id"] == ids[2] and row["step_index"] == 1)
    step["thought"] = step["response"] = EVIL
    step["screenshot_id"] = played[1].steps[0].screenshot_id
    warehouse.replace_partition("tasks", [{**task.model_dump(mode="json"), "task_id": task.task_id}], iteration="0000", stage="tasks")
    warehouse.add_screenshots(made["screenshots"])
    for table in ("steps", "episodes"):
        warehouse.replace_partition(table, made[table], iteration="0000", stage="seed_demonstrations")
    yield root, ids


def run(home: Path, *arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["replay", *arguments, "--home", str(home)])


@pytest.mark.slow
def test_the_exit_status_tells(home: tuple[Path, list[str]]) -> None:
    root, (same, other_reward, other_screen) = home
    reported = run(root, same)
    assert reported.exit_code == 0 and "as recorded" in reported.output and "identical at all 5 screens" in reported.output, reported.output
    reported = run(root, other_reward, "--json")
    assert reported.exit_code == 4
    summary = json.loads(reported.output)
    assert (summary["reward"], summary["recorded_reward"], summary["same_pixels"], summary["success"]) == (1.0, 0.5, True, True)
    reported = run(root, other_screen)
    assert reported.exit_code == 3 and "first difference: before step 2 of 5" in reported.output and "pixels, in the box" in reported.output
    assert run(root, "episode-nothing").exit_code == 1
    assert run(root, same, "--no-run").exit_code == 1


@pytest.mark.slow
def test_films(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, (same, *_) = home
    for options, num_frames in ((("--no-run",), 5), ((), 6)):
        film = tmp_path / f"{num_frames}.webp"
        assert run(root, same, "--webp", str(film), *options).exit_code == 0
        with Image.open(film) as image:
            assert image.format == "WEBP" and image.n_frames == num_frames and image.width == 480
    reported = run(root, same, "--no-run", "--mp4", str(tmp_path / "film.mp4"))
    if shutil.which("ffmpeg"):
        assert reported.exit_code == 0, reported.output
        assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"
    else:
        assert reported.exit_code == 1 and "ffmpeg" in str(reported.exception)


@pytest.mark.slow
def test_the_page_is_whole_and_shut(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, (*_, evil) = home
    page = tmp_path / "episode.html"
    assert run(root, evil, "--html", str(page)).exit_code == 3
    text = page.read_text(encoding="utf-8")
    assert "<script>window" not in text and "&lt;script&gt;window.evil" in text
    assert "http:" not in text and "https:" not in text, "nothing outside itself is named"
    seen = look_at(page, [["End"], ["Home"], ["ArrowRight"], ["ArrowRight", "k"], ["a"]])
    assert [place["place"] for place in seen[:4]] == ["6 of 6", "1 of 6", "2 of 6", "2 of 6"]
    assert [place["shown"] for place in seen] == [1, 1, 1, 1, 6]
    assert not any(place["evil"] for place in seen)


def look_at(page: Path, presses: list[list[str]]) -> list[dict[str, Any]]:
    """What a real browser shows after each group of keys; fails where the page's policy stopped something of its own."""
    program = """
import json, sys
from playwright.sync_api import sync_playwright
path, executable, presses = json.loads(sys.argv[1])
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
    tab = browser.new_page()
    said = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto("file://" + path)
    seen = []
    for group in presses:
        for key in group:
            tab.keyboard.press(key)
        seen.append(tab.evaluate('''() => ({
            place: document.getElementById("place").textContent, evil: Boolean(window.evil),
            shown: [...document.querySelectorAll(".frame")].filter((frame) => frame.offsetParent !== null).length,
        })'''))
    browser.close()
print(json.dumps([seen, said]))
"""
    arguments = json.dumps([str(page), str(find_chromium().path), presses])
    ran = subprocess.run([sys.executable, "-c", program, arguments], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    seen, said = json.loads(ran.stdout)
    assert said == []
    return seen


@pytest.mark.parametrize(
    ("action", "mark"),
    [
        (actions.Click(x=3, y=4, count=2), Mark(label="double click", point=(3, 4))),
        (actions.Click(x=3, y=4, button="right"), Mark(label="right click", point=(3, 4))),
        (actions.Drag(x=1, y=2, to_x=3, to_y=4), Mark(label="drag", point=(1, 2), to_point=(3, 4))),
        (actions.TypeText(text="a\n" * 80), Mark(label="type “" + "a " * 26 + "a…")),
        (actions.Hotkey(keys=("ctrl", "c")), Mark(label="ctrl + c")),
        (actions.Scroll(direction="down"), Mark(label="scroll down")),
        (actions.ToolCall(name="execute_bash", arguments={"command": "ls"}), Mark(label="$ ls")),
        (actions.InvalidAction(text="fly", reason="unknown"), Mark(label="no action: unknown")),
        (actions.PressHome(), Mark(label="press home")),
    ],
)
def test_marks(action: actions.Action, mark: Mark) -> None:
    assert mark_of(action) == mark


def test_details_name_every_part() -> None:
    assert details_of(actions.Drag(x=1, y=2, to_x=3, to_y=4)) == '"x": 1, "y": 2, "to_x": 3, "to_y": 4'
    assert details_of(actions.NavigateBack()) == ""


def test_a_film_needs_screens(home: tuple[Path, list[str]]) -> None:
    root, (same, *_) = home
    with connect(Warehouse(Home(root))) as con:
        episode = load_episode(con, same)
    bare = replace(episode, steps=tuple(replace(step, screenshot=None, screenshot_id=None) for step in episode.steps))
    with pytest.raises(ConfigError, match="no screenshots to make a film of: replay it"):
        write_webp(bare, None, root / "no.webp")
