"""One conformance test for every kind of browser session: what an agent does on a page must mean the same, whatever drives the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.page_session import PageSession
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.pool import SessionPool
from sandbox.session import Element, Observation, Session, Transition
from sandbox.tasks.miniwob.source import load_tasks
from tests.sandbox.html_pages import PAGE_SOURCES, page_sources
from warehouse.core.errors import SandboxError, TaskError

Run = Callable[..., Any]


ALSO = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("playwright", "remote", "fleet")]


@pytest.fixture(scope="module", params=["beginframe", "plain", *ALSO])
def live(request: pytest.FixtureRequest, live_pool: Any) -> Iterator[Any]:
    """The kinds of browser in a pool of this process; and begin-frame sessions behind a server, and in a worker of a fleet."""
    pool: SessionPool | Fleet
    if request.param == "fleet":
        pool = Fleet(FleetSettings(kind="beginframe", max_workers=1, sessions_per_worker=1, page_sources=PAGE_SOURCES))
    else:
        pool = SessionPool(page_sources(), kind="beginframe" if request.param == "remote" else request.param, size=1)
    with live_pool(pool, remote=request.param == "remote") as live:
        yield live


@pytest.fixture
def on_page(live: Any, html_task: Any) -> Run:
    """Runs `use(session, first observation)` on the page with one of everything."""

    def run(use: Callable[[PageSession, Observation], Any], *, seed: int = 2, max_steps: int = 100, screenshots: bool = False) -> Any:
        async def leased(pool: SessionPool) -> Any:
            async with pool.lease(screenshots=screenshots) as session:
                return await use(session, await session.reset(html_task(max_steps=max_steps), seed))

        return live.run(leased)

    return run


def find(observation: Observation, role: str) -> Element:
    return next(element for element in observation.elements if element.role == role)


def at(observation: Observation, role: str, dx: int = 0) -> dict[str, int]:
    element = find(observation, role)
    return {"x": element.x_px + dx, "y": element.y_px}


def log(observation: Observation) -> list[str]:
    """What the page noted."""
    return [entry for entry in observation.instruction.partition(": ")[2].split("; ") if entry]


def do(on_page: Run, *makers: Callable[[Observation], Action]) -> Transition:
    """The transition after the last of some actions."""

    async def use(session: PageSession, observation: Observation) -> Transition:
        for maker in makers:
            transition = await session.step(maker(observation))
        return transition

    return on_page(use)


def click(role: str, dx: int = 0, **more: Any) -> Callable[[Observation], Action]:
    return lambda observation: actions.Click(**at(observation, role, dx), **more)


def keys(*names: str) -> Callable[[Observation], Action]:
    return lambda _: actions.Hotkey(keys=names)


def text(characters: str) -> Callable[[Observation], Action]:
    return lambda _: actions.TypeText(text=characters)


def test_a_reset_shows_the_instance(on_page: Run, html_task: Any) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        assert isinstance(session, Session)
        assert observation.instruction == "seed 3: " and find(observation, "field").text == "seed 3"
        assert (observation.width_px, observation.height_px, observation.url) == (240, 300, "kitchen.html")
        assert observation.screenshot is not None
        with Image.open(io.BytesIO(observation.screenshot)) as image:
            assert image.format == "PNG" and image.size == (240, 300)
            assert len(image.convert("RGB").getcolors(100_000) or []) > 10
        assert "test pages" in session.environment and "Chrome" in session.environment
        assert (await session.reset(html_task(), 2)).instruction == "seed 2: "

    on_page(use, seed=3, screenshots=True)


def test_screenshots_can_be_left_out(on_page: Run) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        assert observation.screenshot is None and observation.screenshot_id is None

    on_page(use)


@pytest.mark.parametrize(
    ("makers", "expected"),
    [
        ([click("press")], ["over", "click 1"]),
        ([click("press", count=2)], ["over", "click 1", "click 2", "dblclick"]),
        ([click("press", button="right")], ["over", "contextmenu"]),
        ([lambda o: actions.MoveTo(**at(o, "press"))], ["over"]),
        ([lambda o: actions.MouseDown(**at(o, "press")), lambda o: actions.MouseUp()], ["over", "click 1"]),
        ([lambda o: actions.LongPress(**at(o, "press"))], ["over", "click 1"]),
        ([click("field"), text("a B")], ["key a", "input a", "key  ", "input a ", "key B", "input a B"]),
        ([click("field"), text("x\n")], ["key x", "input x", "key Enter"]),
        ([click("field"), text("é→")], ["input é→"]),
        ([click("field"), text("ab"), keys("ctrl", "a"), text("c")], ["key ctrl+Control", "key ctrl+a", "key c", "input c"]),
        ([click("field"), text("\tq")], ["key Tab"]),
        (
            [click("typed"), lambda o: actions.KeyDown(key="shift"), text("a"), lambda o: actions.KeyUp(key="shift"), text("a")],
            ["typed Shift", "typed A", "typed a"],
        ),
        ([click("check")], ["checked true"]),
        ([lambda o: actions.SelectOption(**at(o, "list"), option="two words")], ["chose two words"]),
        ([click("list"), keys("down")], ["chose two words"]),
        ([lambda o: actions.Scroll(direction="down", **at(o, "scroll"))], ["scrolled"]),
        ([lambda o: actions.Drag(**at(o, "drag"), to_x=200, to_y=250)], ["grab", "drop 165 240"]),
        ([click("later"), lambda o: actions.Wait(seconds=0.5)], ["later"]),
        ([click("alert")], ["after alert"]),
        ([click("confirm")], ["confirmed true"]),
        ([click("outside")], ["refused"]),
    ],
)
def test_actions_reach_the_page(on_page: Run, makers: list[Callable[[Observation], Action]], expected: list[str]) -> None:
    async def use(session: PageSession, observation: Observation) -> list[str]:
        for maker in makers:
            await session.step(maker(observation))
        for _ in range(20):  # in real time some events come a little after the action that caused them
            noted = [entry.strip() for entry in log((await session.step(actions.Wait(seconds=0.1))).observation)[-len(expected) :]]
            if noted == [entry.strip() for entry in expected]:
                break
        return noted

    assert on_page(use) == [entry.strip() for entry in expected]


def test_tab_moves_the_focus(on_page: Run) -> None:
    observation = do(on_page, click("field"), text("one\ttwo")).observation
    assert find(observation, "field").text == "one" and find(observation, "area").text == "two"
    assert "focused" in find(observation, "area").states


def test_a_date_is_typed_into_its_field(on_page: Run) -> None:
    assert find(do(on_page, click("day", dx=-28), text("03042020")).observation, "day").text == "2020-03-04"


@pytest.mark.parametrize("role", ["list", "day", "colour", "upload"])
def test_native_popups_stay_shut(on_page: Run, role: str) -> None:
    """A popup would swallow the click that follows."""
    dx = 28 if role == "day" else 0
    assert log(do(on_page, click(role, dx), keys("space"), keys("alt", "down"), click("press")).observation)[-1] == "click 1"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda o: actions.SelectOption(**at(o, "list"), option="nine"), "no option"),
        (lambda o: actions.SelectOption(**at(o, "press"), option="one"), "no drop-down"),
        (lambda o: actions.Click(x=900, y=10), "outside"),
        (lambda o: actions.Drag(**at(o, "drag"), to_x=-3, to_y=10), "outside"),
        (lambda o: actions.Hotkey(keys=("hyper", "a")), "unknown key"),
        (lambda o: actions.Navigate(url="http://127.0.0.1/"), "not possible"),
        (lambda o: actions.PressHome(), "not possible"),
        (lambda o: actions.ToolCall(name="shell"), "not possible"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(on_page: Run, action: Callable[[Observation], Action], said: str) -> None:
    transition = do(on_page, action)
    assert said in transition.info["ignored"] and not log(transition.observation)
    assert not transition.terminated and transition.reward == 0.0


def test_an_invalid_action_lets_time_pass_and_nothing_else(on_page: Run) -> None:
    transition = do(on_page, lambda _: actions.InvalidAction(text="jump", reason="no such action"))
    assert transition.info == {"invalid": "no such action"} and transition.observation.time_ms > 50
    assert not log(transition.observation)


@pytest.mark.parametrize("role", ["leave", "reload"])
def test_navigation_is_refused_and_the_page_stays(on_page: Run, role: str) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        blocked = (await session.step(click(role)(observation))).info.get("blocked")
        transition = await session.step(click("press")(observation))
        blocked = blocked or transition.info.get("blocked")
        assert blocked and len(blocked) == 1 and log(transition.observation)[-1] == "click 1"

    on_page(use)


def test_popups_are_closed_and_dialogs_reported(on_page: Run) -> None:
    assert do(on_page, click("alert")).info == {"dialogs": ["hello"]}
    assert log(do(on_page, click("popup"), click("press")).observation)[-1] == "click 1"


def test_leaving_the_page_ends_the_episode(on_page: Run) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        transition = await session.step(click("blank")(observation))
        if not transition.terminated:  # in real time the page may take a step to go
            transition = await session.step(actions.Wait(seconds=0.2))
        assert transition.terminated and transition.info["left_for"] == "about:blank"
        assert not (await session.evaluate()).success

    on_page(use)
    assert log(do(on_page, click("press")).observation)[-1] == "click 1"


def test_the_reward_comes_with_the_end(on_page: Run) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        assert not (await session.evaluate()).success
        transition = await session.step(click("win")(observation))
        assert (transition.reward, transition.terminated, transition.truncated) == (1.0, True, False)
        assert (await session.evaluate()).success
        assert (await session.step(click("press")(observation))).info == {"ignored": "the episode is over"}

    on_page(use)


@pytest.mark.parametrize("action", [actions.Finished(answer="done"), actions.CallUser()])
def test_the_agent_may_end_the_episode(on_page: Run, action: Action) -> None:
    transition = do(on_page, lambda _: action)
    assert transition.terminated and transition.reward == 0.0


def test_too_many_steps_truncate(on_page: Run) -> None:
    async def use(session: PageSession, observation: Observation) -> None:
        first, second = [await session.step(click("press")(observation)) for _ in range(2)]
        assert not first.truncated and second.truncated and not second.terminated

    on_page(use, max_steps=2)


def test_an_episode_leaves_nothing_behind(on_page: Run, html_task: Any) -> None:
    """Held keys and buttons, focus, selection and the pointer's place do not reach the next instance."""

    async def use(session: PageSession, observation: Observation) -> None:
        for action in (
            click("field")(observation),
            actions.TypeText(text="abc"),
            actions.Hotkey(keys=("ctrl", "a")),
            actions.KeyDown(key="shift"),
            actions.MouseDown(**at(observation, "press")),
        ):
            await session.step(action)
        again = await session.reset(html_task(), 2)
        assert [(e.role, e.text, e.states) for e in again.elements] == [(e.role, e.text, e.states) for e in observation.elements]
        assert not log(again)
        await session.step(click("typed")(again))
        assert log((await session.step(actions.TypeText(text="a"))).observation) == ["typed a"]

    on_page(use)


def test_clicks_while_the_page_drags_are_taken(on_page: Run, html_task: Any) -> None:
    """A drag that the browser itself ended raced with a second click, which it refused."""

    async def use(session: PageSession, observation: Observation) -> None:
        for seed in range(2, 12, 2):
            beside = actions.Click(**at(observation, "native", dx=25), count=3)
            for action in (actions.MouseDown(**at(observation, "native")), actions.MoveTo(**at(observation, "native", dx=20)), beside):
                await session.step(action)
            assert log((await session.step(click("press")(observation))).observation)[-1] == "click 1"
            observation = await session.reset(html_task(), seed)

    on_page(use)


@pytest.mark.parametrize("ending", ["reset", "clicks"])
def test_a_drag_is_over_when_the_button_was_let_go(ending: str, on_page: Run, html_task: Any) -> None:
    """By the next episode, or by clicks that came before the page knew that it drags."""

    async def use(session: PageSession, observation: Observation) -> None:
        await session.step(actions.MouseDown(**at(observation, "native")))
        if ending == "reset":
            await session.step(actions.MoveTo(**at(observation, "native", dx=20)))
            observation = await session.reset(html_task(), 2)
        else:
            await session.step(actions.Click(**at(observation, "native", dx=25), count=2))
        assert log((await session.step(click("press")(observation))).observation)[-1] == "click 1"

    on_page(use)


def test_misuse_is_reported(live: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            fresh = PageSession(session._open_page, session._sources) if isinstance(session, PageSession) else session
            with pytest.raises(SandboxError, match="reset"):
                await fresh.step(actions.Wait(seconds=1))
            with pytest.raises(TaskError, match="source 'nowhere'"):
                await fresh.reset(html_task().model_copy(update={"source": "nowhere"}), 1)
            await fresh.close()
            await fresh.close()
            with pytest.raises(SandboxError, match="closed"):
                await fresh.reset(html_task(), 1)

    live.run(use)


@pytest.mark.parametrize("name", ["click-button", "enter-text", "choose-list", "click-checkboxes"])
def test_oracles_solve_real_tasks_on_every_session(live: Any, name: str) -> None:
    task = load_tasks()[name]

    async def use(pool: SessionPool) -> list[bool]:
        solved = []
        async with pool.lease(task, screenshots=False) as session:
            for seed in range(2):
                done = False
                await session.reset(task, seed)
                while not done:
                    action = await session.oracle_action()
                    assert action is not None
                    transition = await session.step(action)
                    done = transition.terminated or transition.truncated
                solved.append((await session.evaluate()).success)
        return solved

    assert live.run(use) == [True, True]
