"""The games in live browsers: one schema, the same pixels for the same seed and inputs, goals that oracles reach and idlers do not."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from playwright.async_api import async_playwright

from sandbox import actions
from sandbox.actions import Action, InvalidAction
from sandbox.browser.chromium import find_chromium
from sandbox.browser.page_session import PageSession
from sandbox.pool.pool import SessionPool
from sandbox.session import Element
from sandbox.tasks.games import versions
from sandbox.tasks.games.source import ELEMENTS_SUFFIX, GamesSource, entry_of, load_tasks, task_file
from sandbox.tasks.games.state import GameState, schema_json
from sandbox.tasks.games.versions import PAGES, VERSIONS_FILE, game_names
from sandbox.tasks.prove import Attempt, attempt, proving_seeds
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, TaskError

NUM_SEEDS = 3
TASKS = list(load_tasks("all"))
SMALL = list(load_tasks("small"))
FIRST_TASKS = {entry.game: name for name, entry in reversed(task_file().tasks.items())}
"""A task of each game: its first, which is the easiest."""
LAST_TASKS = {entry.game: name for name, entry in task_file().tasks.items()}
FEW = game_names()[::4]
"""Games that stand for the others; `make test-long` tries them all."""
IDLE = [FIRST_TASKS[game] for game in FEW]


def how_long(name: str, quick: Collection[str], slow: Collection[str]) -> Any:
    return name if name in quick else pytest.param(name, marks=pytest.mark.slow if name in slow else pytest.mark.long)


@pytest.fixture(scope="module")
def two_browsers(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool({"games": GamesSource()}, kind="beginframe", size=2, num_browsers=2)) as live:
        yield live


async def state_of(session: PageSession) -> GameState:
    assert session._page is not None
    return GameState.model_validate(await session._page.evaluate("game.state()"))


def test_versions_stand_for_the_files_as_they_are() -> None:
    assert versions.unraised() == [], "a game changed: raise its version, then run python -m sandbox.tasks.games.versions"


def test_a_changed_game_needs_another_version(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    for path in PAGES.iterdir():
        (pages / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(versions, "PAGES", pages)
    monkeypatch.setattr(versions, "VERSIONS_FILE", tmp_path / "versions.json")
    versions.recorded_versions.cache_clear()
    try:
        assert versions.main([]) == 0 and versions.unraised() == []
        script = pages / "snake.js"
        script.write_text(script.read_text().replace("APPLE_SCORE = 10", "APPLE_SCORE = 11"))
        assert versions.unraised() == ["snake"]
        assert versions.main([]) == 1 and versions.unraised() == ["snake"]
        script.write_text(re.sub(r"    version: \d+,", "    version: 999,", script.read_text()))
        assert versions.main([]) == 0 and versions.unraised() == []
        assert json.loads((tmp_path / "versions.json").read_text())["snake"]["version"].startswith("999.")
    finally:
        versions.recorded_versions.cache_clear()


def test_the_schema_file_is_the_model() -> None:
    assert VERSIONS_FILE.with_name("schema.json").read_text(encoding="utf-8") == schema_json()


def test_every_game_has_tasks_and_a_line_in_the_index() -> None:
    assert set(FIRST_TASKS) == set(game_names())
    linked = set(re.findall(r'href="([\w-]+)\.html"', (PAGES / "index.html").read_text(encoding="utf-8")))
    assert linked == set(game_names())


def test_no_game_reads_a_clock_or_chance_of_its_own() -> None:
    forbidden = re.compile(r"Math\.random|\bDate\b|performance\.now|setTimeout|setInterval|fetch\(|XMLHttp|https?:")
    assert [path.name for path in PAGES.iterdir() if forbidden.search(path.read_text(encoding="utf-8"))] == []


def test_groups_name_tasks_with_and_without_elements() -> None:
    assert list(load_tasks("small-elements")) == [name + ELEMENTS_SUFFIX for name in SMALL]
    named = {**load_tasks("all"), **load_tasks("generated"), **load_tasks("generated-small")}
    assert len(load_tasks()) == 2 * len(named) and set(named) < set(load_tasks())
    assert {entry_of(task).game for task in load_tasks("small").values()} == set(game_names())
    with pytest.raises(ConfigError, match="no task group 'tiny'"):
        load_tasks("tiny")
    with pytest.raises(TaskError, match="cannot run task games/chess"):
        GamesSource().url(Task(source="games", name="chess", domain="games", max_steps=1))


@pytest.mark.parametrize("game", game_names())
def test_a_state_fits_the_schema_and_says_what_was_started(two_browsers: Any, game: str) -> None:
    task = load_tasks()[FIRST_TASKS[game]]
    entry = entry_of(task)

    async def use(pool: SessionPool) -> None:
        async with pool.lease(task) as session:
            observation = await session.reset(task, 7)
            state = await state_of(session)
            transition = await session.step(InvalidAction(text="", reason="test"))
            assert session._page is not None
            names = await session._page.evaluate(
                "(() => { const frame = document.createElement('iframe'); document.body.append(frame);"
                " const known = new Set(Object.getOwnPropertyNames(frame.contentWindow)); frame.remove();"
                " return Object.getOwnPropertyNames(window).filter((name) => !known.has(name) && !(Number(name) >= 0)); })()"
            )
        assert names == ["game"]
        recorded = versions.recorded_versions()[game]
        assert (state.game, state.version, state.checksum) == (game, recorded.version, recorded.checksum)
        assert (state.seed, state.level, state.goal, state.target) == (7, entry.level, entry.goal, entry.target)
        assert (state.reference_score, state.steps, state.reward) == (entry.reference, 0, 0)
        assert not (state.over or state.won or state.done or state.reason or state.elements or observation.elements)
        assert state.progress < state.target and state.metadata
        assert observation.instruction == state.instruction
        assert (observation.width_px, observation.height_px) == (320, 360)
        assert GameState.model_validate(transition.info["game"] | {"instruction": "…", "elements": []}).version == recorded.version

    two_browsers.run(use)


Trace = list[tuple[str | None, tuple[Element, ...], float, bool]]


async def oracle_trace(session: PageSession, task: Task, seed: int, num_steps: int) -> Trace:
    observation = await session.reset(task, seed)
    trace: Trace = [(observation.screenshot_id, observation.elements, 0.0, False)]
    while len(trace) <= num_steps and (action := await session.oracle_action()) is not None:
        transition = await session.step(action)
        seen = transition.observation
        trace.append((seen.screenshot_id, seen.elements, transition.reward, transition.terminated))
        if transition.terminated or transition.truncated:
            break
    return trace


@pytest.mark.parametrize("game", [game if game in FEW[::2] else pytest.param(game, marks=pytest.mark.slow) for game in game_names()])
def test_the_same_seed_and_actions_give_the_same_pixels(two_browsers: Any, game: str) -> None:
    """In two browsers at once, on fresh and on used pages, in another order of seeds."""
    task = load_tasks()[FIRST_TASKS[game] + ELEMENTS_SUFFIX]

    async def use(pool: SessionPool) -> None:
        async def several(seeds: list[int]) -> dict[int, Trace]:
            async with pool.lease() as session:
                return {seed: await oracle_trace(session, task, seed, 12) for seed in seeds}

        first, second = await asyncio.gather(several([1, 2]), several([2, 1]))
        assert first == second
        assert first[1] != first[2]
        assert len({shot for shot, *_ in first[1]}) > 2

    two_browsers.run(use)


def random_action(generator: random.Random) -> Action:
    """Anything a poor policy might do."""
    point = {"x": generator.randrange(320), "y": generator.randrange(40, 360)}
    other = {"to_x": generator.randrange(320), "to_y": generator.randrange(40, 360)}
    key = generator.choice(["left", "right", "up", "down", "space", "enter", "backspace", "r", "z", "x"])
    return generator.choice(
        [
            actions.Hotkey(keys=(key,)),
            actions.Click(**point),
            actions.Click(**point, button="right"),
            actions.Drag(**point, **other),
            actions.MoveTo(**point),
            actions.MouseDown(**point),
            actions.MouseUp(),
            actions.KeyDown(key="left"),
            actions.KeyUp(key="left"),
            actions.LongPress(**point),
            actions.TypeText(text="ad1\n"),
            actions.Wait(seconds=generator.choice([0.05, 0.07, 0.333, 1])),
        ]
    )


@pytest.mark.long
@pytest.mark.parametrize("game", game_names())
def test_whatever_is_done_gives_the_same_pixels(two_browsers: Any, game: str) -> None:
    """Random actions and the oracle's, on the game's last task, which is the hardest; no error in the page, every state in the schema."""
    task = load_tasks()[LAST_TASKS[game] + ELEMENTS_SUFFIX]

    async def one(session: PageSession, seed: int) -> Trace:
        generator = random.Random(seed)
        observation = await session.reset(task, seed)
        trace: Trace = [(observation.screenshot_id, observation.elements, 0.0, False)]
        for _ in range(60):
            hinted = await session.oracle_action() if generator.random() < 0.5 else None
            transition = await session.step(hinted or random_action(generator))
            seen = transition.observation
            trace.append((seen.screenshot_id, seen.elements, transition.reward, transition.terminated))
            await state_of(session)
            if transition.terminated or transition.truncated:
                break
        return trace

    async def use(pool: SessionPool) -> None:
        async def several(seeds: list[int]) -> dict[int, Trace]:
            async with pool.lease() as session:
                return {seed: await one(session, seed) for seed in seeds}

        first, second = await asyncio.gather(several([1, 2, 3]), several([3, 1, 2]))
        assert first == second

    two_browsers.run(use)


@pytest.mark.parametrize("name", [how_long(name, SMALL[::8], SMALL) for name in TASKS])
def test_the_oracle_reaches_the_goal(two_browsers: Any, name: str) -> None:
    """Through real input events, on three seeds; and its mean score is the task's reference."""
    task = load_tasks()[name]

    async def use(pool: SessionPool) -> None:
        async def one(seed: int) -> Attempt:
            async with pool.lease(task, screenshots=False) as session:
                return await attempt(session, task, seed)

        attempts = await asyncio.gather(*(one(seed) for seed in proving_seeds(task, NUM_SEEDS)))
        assert all(each.is_success for each in attempts), attempts
        assert all(1 < each.num_steps <= (20 if name in SMALL else task.max_steps) for each in attempts), attempts
        assert statistics.mean(each.score for each in attempts) == pytest.approx(entry_of(task).reference, abs=1)

    two_browsers.run(use)


@pytest.mark.parametrize("name", [name if name in IDLE else pytest.param(name, marks=pytest.mark.long) for name in TASKS])
def test_doing_nothing_reaches_no_goal(two_browsers: Any, name: str) -> None:
    task = load_tasks()[name]

    async def use(pool: SessionPool) -> None:
        async with pool.lease(task, screenshots=False) as session:
            await session.reset(task, proving_seeds(task, 1)[0])
            is_over = False
            while not is_over:
                transition = await session.step(InvalidAction(text="", reason="idle"))
                is_over = transition.terminated or transition.truncated
            verdict = await session.evaluate()
            assert not verdict.success and transition.reward <= 0.9
            assert transition.info["game"]["steps"] == 0

    two_browsers.run(use)


OTHERS = [pytest.param(game, marks=pytest.mark.slow if game in FEW else pytest.mark.long) for game in game_names() if game != FEW[0]]


@pytest.mark.parametrize("game", [FEW[0], *OTHERS])
def test_elements_lie_on_the_board_and_belong_to_the_state(two_browsers: Any, game: str) -> None:
    """With elements the same instance looks the same; what they say follows the state: equal states, equal elements."""
    name = FIRST_TASKS[game]
    seen, unseen = load_tasks()[name + ELEMENTS_SUFFIX], load_tasks()[name]

    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            plain = await oracle_trace(session, unseen, 3, 5)
        async with pool.lease() as session:
            listed = await oracle_trace(session, seen, 3, 5)
            state = await state_of(session)
            again = (await session.step(InvalidAction(text="", reason="look again"))).observation if not state.done else None
        assert [(shot, reward) for shot, _, reward, _ in plain] == [(shot, reward) for shot, _, reward, _ in listed]
        assert not any(elements for _, elements, _, _ in plain)
        assert len({elements for _, elements, _, _ in listed}) > 1
        for _, elements, _, _ in listed:
            assert elements
            assert all(0 <= each.x_px < 320 and 0 <= each.y_px < 360 and each.width_px > 0 and each.height_px > 0 for each in elements)
        assert [each.text for each in state.elements] == [each.text for each in listed[-1][1]]
        assert again is None or again.elements

    two_browsers.run(use)


@pytest.mark.slow
def test_a_person_can_play_from_a_file() -> None:
    """Opened without anything from us, in real time: seed and level of the address, keys and pointer as the browser sends them."""

    async def use() -> dict[str, Any]:
        states = {}
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium().path), args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 900, "height": 800})
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            for game in game_names():
                await page.goto(f"{PAGES.as_uri()}/{game}.html?seed=5&level=2")
                await page.keyboard.press("ArrowLeft")
                await page.mouse.click(450, 450)
                await page.wait_for_function("game.state().time_ms > 0")
                states[game] = await page.evaluate("game.state()")
                assert errors == []
            await browser.close()
        return states

    for game, value in asyncio.run(use()).items():
        state = GameState.model_validate(value)
        assert (state.game, state.seed, state.level, state.goal, state.checksum, state.reward) == (game, 5, 2, "", "", 0)
