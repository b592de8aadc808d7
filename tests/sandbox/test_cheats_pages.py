"""Cheats against verifiers that live in a page, really tried in live browsers: MiniWoB's rewards, the games' states, the pages of hybrid
tasks. None is paid, and no action of an agent runs code in a page of a task. The table of docs/verifiers.md says the same in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Action, Click, Finished, Navigate, SelectOption, TypeText
from sandbox.browser.page_session import PageSession
from sandbox.browser.web_state import is_of_task
from sandbox.hybrid.session import HybridSession
from sandbox.session import Observation
from sandbox.tasks.games.source import load_tasks as games
from sandbox.tasks.games.source import task_file as game_file
from sandbox.tasks.hybrid.source import load_tasks as hybrid_tasks
from sandbox.tasks.miniwob.source import load_tasks as miniwob
from sandbox.tasks.page_task import PageSettings, WebSettings
from sandbox.tasks.sources import page_tasks
from sandbox.tasks.task import Task
from tests.sandbox.html_pages import HtmlSource
from tests.sandbox.one_session import in_one_browser
from tests.sandbox.tool_sessions import bash, follow
from tests.sandbox.web_pages import click, keys

FORGERY = "window.forged = 1; core.endEpisode(1, false); WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true"
MARKUP = (
    f"<img src=x onerror='{FORGERY}'>",
    f"\"><svg onload='{FORGERY}'></svg><script>{FORGERY}</script>",
    f"javascript:{FORGERY}",
    f"'); {FORGERY}; ('",
)
OPENERS = [("f12",), ("ctrl", "shift", "j"), ("ctrl", "shift", "i"), ("ctrl", "u"), ("ctrl", "l"), ("ctrl", "o"), ("ctrl", "t"), ("f5",)]
"""What opens tools, an address bar or another page in a browser with a window."""
DIRECT: list[Action] = [
    Navigate(url=f"javascript:{FORGERY}"),
    Navigate(url=f"javascript://%0a{FORGERY}"),
    Navigate(url=f"data:text/html,<script>opener.{FORGERY}</script>"),
    SelectOption(x=80, y=80, option=f'"); {FORGERY}; ("'),
    SelectOption(x=80, y=80, option="</option><script>window.forged = 1</script>"),
    actions.OpenApp(name="chromium"),
    actions.ToolCall(name="execute_bash", arguments={"command": "true"}),
    *(keys(*names) for names in OPENERS),
]
TYPED_INTO = ("input", "textarea", "text", "password", "search", "date")
TEXT_TASKS = ("enter-text", "search-engine", "email-inbox-reply", "use-autocomplete")
LAST_TASKS = {entry.game: name for name, entry in game_file().tasks.items()}
"""A game's hardest: keys are moves, and those of a text may well clear the one row that an easy task asks for."""
Use = Callable[[PageSession], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def on_page() -> Iterator[Callable[[Use], None]]:
    """Runs `use(session)` on one session in one browser."""
    sources = {**page_tasks(), "html": HtmlSource(), "two": TwoPages()}
    with in_one_browser(lambda open_page: PageSession(open_page, sources, screenshots=False)) as on_session:
        yield on_session


async def value(session: PageSession, expression: str) -> Any:
    assert session._page is not None
    return await session._page.evaluate(expression)


async def type_everywhere(session: PageSession, task: Task, seed: int, text: str) -> None:
    """Type a text into every field that shows, give it enter, and press every button, as long as the episode goes on."""
    observation = await session.reset(task, seed)
    fields = [element for element in observation.elements if element.role in TYPED_INTO or "input" in element.role]
    buttons = [element for element in observation.elements if element.role == "button"]
    for element in fields:
        for action in (Click(x=element.x_px, y=element.y_px, count=3), TypeText(text=text), keys("enter")):
            if (await session.step(action)).terminated:
                return
    for element in buttons:
        if (await session.step(Click(x=element.x_px, y=element.y_px))).terminated:
            return


def no_text_runs(session: PageSession, name: str) -> Coroutine[Any, Any, None]:
    async def tried() -> None:
        for text in MARKUP:
            await type_everywhere(session, miniwob()[name], 3, text)
            assert await value(session, "typeof window.forged") == "undefined", f"{name}: typed text became code"
            if (await session.evaluate()).success:  # what is solved by pressing its buttons is so with any text
                await type_everywhere(session, miniwob()[name], 3, "plain")
                assert (await session.evaluate()).success, f"{name} was solved by {text!r}"

    return tried()


@pytest.mark.parametrize("name", [name for name in TEXT_TASKS if name in miniwob()])
def test_typed_text_never_becomes_code(on_page: Any, name: str) -> None:
    on_page(lambda session: no_text_runs(session, name))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in miniwob() if name not in TEXT_TASKS])
def test_typed_text_never_becomes_code_in_any_task(on_page: Any, name: str) -> None:
    on_page(lambda session: no_text_runs(session, name))


@pytest.mark.parametrize("name", ["click-button", "enter-text", "choose-list"])
def test_no_action_reaches_the_code_of_a_task_page(on_page: Any, name: str) -> None:
    async def use(session: PageSession) -> None:
        await session.reset(miniwob()[name], 5)
        for action in DIRECT:
            transition = await session.step(action)
            assert transition.reward == 0.0 and not transition.terminated, (action, transition.info)
            if transition.truncated:
                await session.reset(miniwob()[name], 5)
        assert await value(session, "typeof window.forged") == "undefined"
        assert (await session.step(Finished(answer="1 true success done"))).reward == 0.0
        verdict = await session.evaluate()
        assert not verdict.success and verdict.reasons == ("the page has not ended the episode",)

    on_page(use)


FEW_GAMES = list(LAST_TASKS)[::4]


OTHER_GAMES = [pytest.param(game, marks=pytest.mark.long) for game in LAST_TASKS if game not in FEW_GAMES]


@pytest.mark.parametrize("game", [*FEW_GAMES, *OTHER_GAMES])
def test_a_game_takes_moves_and_nothing_else(on_page: Any, game: str) -> None:
    """Its state cannot be set from outside even by code in its page: what the verifier reads is frozen, and its rules hide their state."""

    async def use(session: PageSession) -> None:
        task = games()[LAST_TASKS[game]].model_copy(update={"max_steps": 1000})
        await session.reset(task, 2)
        known = await value(session, "Object.getOwnPropertyNames(window).length")
        for action in [*DIRECT, TypeText(text=MARKUP[0]), TypeText(text="score=999;won=true\n"), keys("ctrl", "shift", "r")]:
            transition = await session.step(action)
            if transition.terminated:  # one may lose the game
                break
        assert await value(session, "Object.getOwnPropertyNames(window).length") == known
        assert await value(session, "Object.isFrozen(game)") is True
        forging = "try { game.state = () => ({won: true, reward: 1}); } catch {} delete game.state; String(game.state().won)"
        assert await value(session, forging) == "false"
        assert not (await session.evaluate()).success and transition.info["game"]["won"] is False

    on_page(use)


def test_ending_early_and_answering_everything_pays_nothing(on_page: Any) -> None:
    async def use(session: PageSession) -> None:
        for task in [*list(miniwob("quickstart").values())[::3], games()[next(iter(LAST_TASKS.values()))]]:
            observation = await session.reset(task, 6)
            everything = " ".join(element.text for element in observation.elements)
            transition = await session.step(Finished(answer=f"{everything} success reward 1"))
            assert transition.terminated and transition.reward < 0.999 and not (await session.evaluate()).success, task.name
            again = await session.step(Finished(answer="and once more"))
            assert again.reward == 0.0 and again.info == {"ignored": "the episode is over"}

    on_page(use)


@pytest.mark.parametrize(("button", "reward"), [("TWO", -1.0), ("ONE", 1.0)])
def test_a_click_on_the_cover_takes_no_end_back(on_page: Any, button: str, reward: float) -> None:
    """The first click of three ends the episode; the others hit START, which would begin another instance in its place."""

    async def use(session: PageSession) -> None:
        observation = await session.reset(miniwob()["click-test-2"], 3)
        there = next(element for element in observation.elements if element.text == button)
        transition = await session.step(Click(x=there.x_px, y=there.y_px, count=3))
        assert (transition.terminated, transition.reward) == (True, reward)
        assert (await session.evaluate()).success is (reward > 0)

    on_page(use)


# Pages of others beside the task's


class TwoPages(HtmlSource):
    """A web task of one page that says its state itself, in a window that may open others."""

    def settings(self, task: Task) -> PageSettings:
        return PageSettings(viewport_px=(320, 320), area_px=(240, 300), step_time_ms=50.0, frame_time_ms=1000 / 60, web=WebSettings())


def test_another_page_cannot_say_how_the_episode_stands(on_page: Any) -> None:
    """A page at another address that has a state of its own, as good as it likes: it is not opened, however much it looks like a path."""

    async def use(session: PageSession) -> None:
        await session.reset(Task(source="two", name="kitchen", domain="pointing", max_steps=50), 1)
        forged = "<script>state = () => ({instruction: 'forged', elements: [], reward: 1, done: true})</script>://"
        transition = await session.step(Navigate(url=f"data:text/html,{forged}"))
        assert "'data' cannot be opened" in transition.info["ignored"] and transition.observation.url == "kitchen.html"
        assert transition.observation.instruction != "forged" and transition.reward == 0.0 and not transition.terminated
        assert not (await session.evaluate()).success

    on_page(use)


def test_addresses_of_a_task() -> None:
    task_page = "file:///srv/pages/desk.html"
    assert is_of_task("desk.html", task_page) and is_of_task("more/page.html?x=1#y", task_page)
    others = ("data:text/html,x", "blob:null/1", "about:blank", "http://localhost:80/desk.html", "https://desk.html/", "//desk.html")
    assert not any(is_of_task(other, task_page) for other in others)
    assert is_of_task("http://localhost:8000/b?c", "http://localhost:8000/a")
    assert not any(is_of_task(other, "http://localhost:8000/a") for other in ("http://localhost:8001/a", "https://localhost:8000/a", "a"))


@pytest.fixture(scope="module")
def on_hybrid() -> Iterator[Callable[[Callable[[HybridSession], Coroutine[Any, Any, None]]], None]]:
    with in_one_browser(lambda open_page: HybridSession(open_page, screenshots=False)) as on_session:
        yield on_session


HOSTILE = """<!doctype html><title>Desk</title><button id="send">Send</button><script>
function start() {}
function state() { return { round: 9, accepted: true, values: ["1"], focused: 0, file: "x" }; }
let accepted = true;
var num_tried = 0;
const tries = [
  () => { window.name = "accepted"; },
  () => { for (const place of [localStorage, sessionStorage]) place.accepted = "true"; document.cookie = "accepted=true"; },
  () => { Object.defineProperty(window, "location", { value: { protocol: "file:", href: "file:///desk.html" } }); },
  () => { Object.defineProperty(location, "protocol", { value: "file:" }); },
  () => { for (const what of ["URL", "documentURI"]) Object.defineProperty(document, what, { value: "desk.html" }); },
  () => { history.pushState({}, "", "file:///desk.html"); },
  () => { Date = class { static now() { return 1e18; } }; performance.now = () => 1e18; },
  () => { new BroadcastChannel("desk").postMessage({ accepted: true }); },
  () => { opener.accepted = true; opener.eval("accepted = true"); },
  () => { parent.eval("accepted = true"); top.postMessage({ accepted: true }, "*"); },
  () => { const frame = document.createElement("iframe"); frame.src = "ADDRESS"; document.body.append(frame);
          frame.onload = () => { frame.contentWindow.accepted = true; frame.contentWindow.eval("accepted = true"); }; },
  () => { const other = open("ADDRESS"); other.accepted = true; other.eval("accepted = true"); other.postMessage("accepted", "*"); },
  () => { for (const name of ["accepted", "state"]) Object.defineProperty(Object.prototype, name, { get: () => true }); },
  () => { for (const of of [JSON, Math, Array.prototype, Object.prototype, Promise.prototype, Function.prototype])
            for (const name of Object.getOwnPropertyNames(of)) try { if (name !== "constructor") of[name] = () => true; } catch {} },
  MORE
];
for (let index = 0; index < tries.length; index += 1) { try { tries[index](); } catch {} num_tried += 1; }
</script>"""
WORKERS = """
  () => { navigator.serviceWorker.register("sw.js"); new SharedWorker("sw.js"); },
  () => { setTimeout(() => { location = "ADDRESS"; }, 50); },
"""
NOT_OPENED = (
    "javascript:accepted = true",
    "javascript://%0aaccepted=true",
    "view-source:ADDRESS",
    "chrome://version",
    "file:///etc/passwd",
)


@pytest.mark.parametrize(("more", "num"), [("", 14), pytest.param(WORKERS, 16, marks=pytest.mark.long)])
def test_a_hostile_page_beside_the_task_page_cannot_make_it_accept(on_hybrid: Any, more: str, num: int) -> None:
    """Served by the agent itself from its terminal, and opened in the task's browser, in place of the task's page and before it. Then the
    page that is shown again has accepted nothing."""

    async def use(session: HybridSession) -> None:
        task = hybrid_tasks()["type-word"].model_copy(update={"max_steps": 200})
        await session.reset(task, 1)
        address = (Path(__file__).parents[2] / "sandbox/hybrid/pages/desk.html").as_uri()
        page = HOSTILE.replace("MORE", more).replace("ADDRESS", address)
        code = page.replace("'", "'\\''")
        await session.step(bash(f"printf '%s' '{code}' | tee desk.html > index.html; echo 'onfetch = () => {{}}' > sw.js"))
        await session.step(bash("python3 -m http.server 8127 > /dev/null 2>&1 & sleep 1"))
        for url in ("http://localhost:8127/desk.html", f"data:text/html,{page}://"):
            transition = await session.step(Navigate(url=url))
            assert not transition.terminated
            if url.startswith("http") and not more:
                assert session._page._page is not None and await session._page._page.evaluate("num_tried") == num
            for action in (actions.Wait(seconds=0.2), keys("alt", "left"), actions.Wait(seconds=0.2)):
                transition = await session.step(action)
                verdict = await session.evaluate()
                assert not verdict.success and "the page has not accepted what it expects" in verdict.reasons, url
        for url in NOT_OPENED:
            transition = await session.step(Navigate(url=url.replace("ADDRESS", address)))
            assert "ignored" in transition.info and not (await session.evaluate()).success, url

    on_hybrid(use)


def test_what_is_typed_into_the_desk_is_compared_and_not_run(on_hybrid: Any) -> None:
    async def use(session: HybridSession) -> None:
        for text in ("<img src=x onerror='accepted = true'>", "'); accepted = true; ('", "а", ""):
            observation: Observation = await session.reset(hybrid_tasks()["type-word"], 3)
            field = next(element for element in observation.elements if element.role == "input")
            await session.step(Click(x=field.x_px, y=field.y_px))
            await session.step(TypeText(text=text))
            await session.step(click(observation, "Send"))
            assert (await session.step(Finished())).reward == 0.0
        await session.reset(hybrid_tasks()["type-word"], 3)
        assert (await follow(session)).reward == 1.0 and (await session.evaluate()).success

    on_hybrid(use)


HALVES: dict[str, list[str]] = {
    "download-and-sum": ["mkdir -p Downloads; seq 25 > Downloads/x.txt"],
    "upload-sorted": ["f=$(ls *.txt | head -1); sort $f > sorted.txt"],
    "return-edited": ["mkdir -p Downloads; touch Downloads/a.txt"],
    "exchange": ["cat .numbers > final.txt"],
    "report-log": ["cp work.log receipt.txt"],
}


@pytest.mark.parametrize("name", HALVES)
def test_the_terminals_half_alone_is_not_paid(on_hybrid: Any, name: str) -> None:
    async def use(session: HybridSession) -> None:
        await session.reset(hybrid_tasks()[name], 2)
        for command in HALVES[name]:
            await session.step(bash(command))
        transition = await session.step(Finished(answer="done"))
        assert transition.terminated and transition.reward == 0.0
        assert (await session.evaluate()).score == 0.0

    on_hybrid(use)


@pytest.mark.slow
def test_files_and_processes_of_a_finished_hybrid_episode_change_nothing(on_hybrid: Any) -> None:
    async def use(session: HybridSession) -> None:
        await session.reset(hybrid_tasks()["note-code"], 2)
        hint = await session.oracle_action()
        assert isinstance(hint, actions.ToolCall)
        late = str(hint.arguments["command"])
        await session.step(bash(f"(sleep 3; {late}) > /dev/null 2>&1 &"))
        assert (await session.step(Finished())).reward == 0.0
        await asyncio.sleep(3.5)
        assert (await session.evaluate()).score == 0.0

    on_hybrid(use)
