"""Games that are dragged, drawn in WebGL, or run by the clock: what their input, pixels and elements promise beyond test_games.py."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from PIL import Image

from benchmarks.game_frames import SmoothGames, measure
from sandbox.actions import Action, Click, Drag, Hotkey, InvalidAction, KeyDown, KeyUp, Wait
from sandbox.browser.page_session import PageSession
from sandbox.pool.pool import SessionPool
from sandbox.session import Element, Observation, Transition
from sandbox.tasks.games.source import ELEMENTS_SUFFIX, GamesSource, load_tasks
from sandbox.tasks.page_task import PageStepContext

IDLE = InvalidAction(text="", reason="idle")


@pytest.fixture(scope="module")
def two_browsers(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool({"games": GamesSource()}, kind="beginframe", size=2, num_browsers=2)) as live:
        yield live


def board_of(transition: Transition) -> dict[str, Any]:
    metadata: dict[str, Any] = transition.info["game"]["metadata"]
    return metadata


async def play_on(session: PageSession, max_steps: int = 300) -> float:
    """The oracle from the state as it is; the score of the verdict."""
    for _ in range(max_steps):
        if (action := await session.oracle_action()) is None:
            break
        if (await session.step(action)).terminated:
            break
    return (await session.evaluate()).score


def run_with(two_browsers: Any, name: str, seed: int, use: Callable[[PageSession, Observation], Any]) -> Any:
    async def lease(pool: SessionPool) -> Any:
        async with pool.lease(load_tasks()[name]) as session:
            assert isinstance(session, PageSession)
            return await use(session, await session.reset(load_tasks()[name], seed))

    return two_browsers.run(lease)


@pytest.mark.parametrize(("name", "num_steps"), [pytest.param("catch-25", 40, marks=pytest.mark.slow), ("laser-hard", 6)])
def test_webgl_gives_the_same_pixels_in_two_browsers(two_browsers: Any, name: str, num_steps: int) -> None:
    """While things fall, spin and burst: at every step, not only at rest."""
    task = load_tasks()[name]

    async def screens(pool: SessionPool, seeds: Sequence[int]) -> dict[int, list[str | None]]:
        shots: dict[int, list[str | None]] = {}
        async with pool.lease() as session:
            for seed in seeds:
                shots[seed] = [(await session.reset(task, seed)).screenshot_id]
                while len(shots[seed]) < num_steps and (action := await session.oracle_action()) is not None:
                    shots[seed].append((await session.step(action)).observation.screenshot_id)
        return shots

    async def use(pool: SessionPool) -> tuple[dict[int, list[str | None]], ...]:
        return await asyncio.gather(screens(pool, [1, 2]), screens(pool, [2, 1]))

    first, second = two_browsers.run(use)
    assert first == second
    assert len(set(first[1])) == len(first[1])


def test_webgl_really_draws(two_browsers: Any) -> None:
    """The beam's colour is on the screen, and more colours than flat shapes have."""

    async def use(session: PageSession, observation: Observation) -> tuple[Image.Image, str]:
        assert session._page is not None and observation.screenshot is not None
        version = await session._page.evaluate(
            "(() => { const gl = document.querySelector('canvas.back').getContext('webgl'); return gl.getParameter(gl.VERSION); })()"
        )
        return Image.open(io.BytesIO(observation.screenshot)).convert("RGB"), version

    image, version = run_with(two_browsers, "laser-easy", 1, use)
    assert version.startswith("WebGL 1.0")
    colours = image.getcolors(maxcolors=320 * 360) or []
    assert len(colours) > 1000
    assert any(red > 220 and green < 120 and blue < 140 for _, (red, green, blue) in colours)


@pytest.mark.parametrize("name", ["wood-lines-2", "hex-lines-4"])
def test_pieces_are_placed_by_drag_and_by_clicks_alike(two_browsers: Any, name: str) -> None:
    async def placed(session: PageSession, actions: Sequence[Action]) -> dict[str, Any]:
        for action in actions:
            transition = await session.step(action)
        return board_of(transition)

    async def use(session: PageSession, observation: Observation) -> None:
        piece = next(each for each in observation.elements if each.role == "piece")
        chosen = (await session.step(Click(x=piece.x_px, y=piece.y_px))).observation
        assert next(each for each in chosen.elements if each.role == "piece").states == ("selected",)
        cell = next(each for each in chosen.elements if each.states == ("fits",))
        by_clicks = await placed(session, [Click(x=cell.x_px, y=cell.y_px)])
        await session.reset(load_tasks()[name + ELEMENTS_SUFFIX], 4)
        by_drag = await placed(session, [Drag(x=piece.x_px, y=piece.y_px, to_x=cell.x_px, to_y=cell.y_px)])
        assert by_clicks == by_drag and by_drag["placed"] == 1
        # where it does not fit nothing happens
        again = await placed(session, [Drag(x=160, y=311, to_x=cell.x_px, to_y=cell.y_px)])
        assert again["placed"] == 1 and again["board"] == by_drag["board"]

    run_with(two_browsers, name + ELEMENTS_SUFFIX, 4, use)


@pytest.mark.parametrize("corner", [0, *(pytest.param(corner, marks=pytest.mark.slow) for corner in (1, 2, 3))])
def test_the_first_cell_is_safe_and_logic_opens_the_rest(two_browsers: Any, corner: int) -> None:
    """Wherever one begins: mines are laid around the first click."""

    async def use(session: PageSession, observation: Observation) -> float:
        cells = [each for each in observation.elements if each.role == "cell"]
        first = [cells[0], cells[7], cells[56], cells[63]][corner]
        transition = await session.step(Click(x=first.x_px, y=first.y_px))
        assert not transition.terminated and board_of(transition)["open"] > 1
        return await play_on(session)

    for seed in (2, 3):
        assert run_with(two_browsers, "mines-medium" + ELEMENTS_SUFFIX, seed, use) == 1


def test_a_flag_keeps_a_cell_closed(two_browsers: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        cell = observation.elements[0]
        for action in (Click(x=cell.x_px, y=cell.y_px, button="right"), Click(x=cell.x_px, y=cell.y_px)):
            assert board_of(await session.step(action))["cells"][0] == "flag"
        await session.step(Hotkey(keys=("f",)))
        assert board_of(await session.step(Click(x=cell.x_px, y=cell.y_px)))["cells"][0] == "hidden"
        assert await play_on(session) == 1

    run_with(two_browsers, "mines-easy" + ELEMENTS_SUFFIX, 1, use)


def test_digging_up_a_mine_ends_the_game(two_browsers: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        cells = [each for each in observation.elements if each.role == "cell"]
        for cell in cells:
            transition = await session.step(Click(x=cell.x_px, y=cell.y_px))
            if transition.terminated:
                break
        game = transition.info["game"]
        assert (game["over"], game["won"], game["lives"], game["reason"]) == (True, False, 0, "dug up a mine")
        assert 0 < transition.reward <= 0.9 and not (await session.evaluate()).success

    run_with(two_browsers, "mines-hard" + ELEMENTS_SUFFIX, 5, use)


def follow(elements: Sequence[Element]) -> Action:
    """A policy that reads two of the elements: the lowest star's column and the dish's."""
    words = [each.text.split() for each in elements]
    star = next(int(text[1]) for text in words if text[0] == "star")
    paddle = next(int(text[1]) for text in words if text[0] == "paddle")
    return IDLE if star == paddle else Hotkey(keys=("left" if star < paddle else "right",))


@pytest.mark.parametrize("name", ["catch-4", "catch-6-on-5"])
def test_a_policy_that_reads_elements_catches_all(two_browsers: Any, name: str) -> None:
    async def use(session: PageSession, observation: Observation) -> Transition:
        while True:
            transition = await session.step(follow(observation.elements))
            if transition.terminated or transition.truncated:
                return transition
            observation = transition.observation
            assert len(observation.elements) <= 3

    transition = run_with(two_browsers, name + ELEMENTS_SUFFIX, 3, use)
    assert transition.reward == 1 and board_of(transition)["missed"] == 0


def test_a_row_passes_with_each_step(two_browsers: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> list[str]:
        texts = [observation.elements[0].text]
        for _ in range(3):
            texts.append((await session.step(IDLE)).observation.elements[0].text)
        return texts

    texts = run_with(two_browsers, "catch-4" + ELEMENTS_SUFFIX, 2, use)
    assert [text.split()[3] for text in texts] == ["1", "2", "3", "4"]


def test_a_key_held_down_moves_the_dish_on_until_it_is_let_go(two_browsers: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> list[int]:
        places = []
        for action in (KeyDown(key="left"), Wait(seconds=0.3), KeyUp(key="left"), Hotkey(keys=("right",)), IDLE):
            places.append(board_of(await session.step(action))["paddle"])
        return places

    first, held, let_go, right, after = run_with(two_browsers, "catch-25", 1, use)
    assert first == 3 and held == 0 and let_go == 0 and right == after == 1


@pytest.mark.slow
def test_the_oracle_goes_on_from_where_others_left_the_board(two_browsers: Any) -> None:
    """Mirrors turned at random, numbers dropped anywhere, shapes let go at the wrong outline and turned too far."""

    async def stray(session: PageSession, observation: Observation) -> float:
        elements = [each for each in observation.elements if each.role in ("mirror", "column", "shape")]
        for each in elements[:6]:
            await session.step(Click(x=each.x_px, y=each.y_px))
        if elements[0].role == "shape":
            last, hole = elements[-1], observation.elements[0]
            await session.step(Drag(x=last.x_px, y=last.y_px, to_x=hole.x_px, to_y=hole.y_px))
        return await play_on(session)

    for name in ("laser-medium", "merge-tile-16", "shapes-turned-12"):
        assert run_with(two_browsers, name + ELEMENTS_SUFFIX, 6, stray) == 1, name


def test_a_shape_fits_its_own_outline_only(two_browsers: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        shape = next(each for each in observation.elements if each.role == "shape")
        wrong = next(each for each in observation.elements if each.role == "outline" and each.text != shape.text)
        right = next(each for each in observation.elements if each.role == "outline" and each.text == shape.text)
        for hole, placed, mistakes in ((wrong, 0, 1), (right, 1, 1)):
            transition = await session.step(Drag(x=shape.x_px, y=shape.y_px, to_x=hole.x_px + 6, to_y=hole.y_px - 5))
            assert (board_of(transition)["placed"], board_of(transition)["mistakes"]) == (placed, mistakes)
        assert len([each for each in transition.observation.elements if each.role == "shape"]) == 5

    run_with(two_browsers, "shapes-6" + ELEMENTS_SUFFIX, 2, use)


class SlowOracle(SmoothGames):
    """An oracle that thinks while the page goes on."""

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        await asyncio.sleep(0.3)
        return await super().oracle_action(context)


@pytest.mark.slow
def test_frames_of_real_time_are_those_of_steps_alone() -> None:
    """What the page draws while the oracle thinks is neither frames nor time of a step: a screen's 60 a second are the most."""

    async def use() -> None:
        async with SessionPool({"games": SlowOracle()}, kind="plain", size=1) as pool:
            figure = await measure(pool, load_tasks()["catch-4"], 1.0)
        assert 0 < figure.frames_per_s < 66 and 0 < figure.frames_seen <= figure.frames_asked * 1.1

    asyncio.run(use())


@pytest.mark.slow
def test_frames_under_the_virtual_clock_are_those_that_were_asked_for() -> None:
    async def use() -> None:
        async with SessionPool({"games": SmoothGames()}, kind="beginframe", size=1) as pool:
            assert (await measure(pool, load_tasks()["catch-4"], 1.0)).is_exact

    asyncio.run(use())
