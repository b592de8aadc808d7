"""Hybrid sessions: a page, a terminal and files on one workspace. Real Chromium, real jails; oracles that go to and fro between them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Action, Click, Finished, Navigate, ToolCall, TypeText
from sandbox.browser.backend import launch
from sandbox.hybrid.session import HybridSession
from sandbox.session import Observation, Session
from sandbox.tasks.hybrid.source import KINDS, hybrid_instance, load_tasks, task_file
from tests.sandbox.one_session import in_one_browser
from tests.sandbox.tool_sessions import bash, fail, follow
from warehouse.core.errors import ConfigError, SandboxError, TaskError

Use = Callable[[HybridSession], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def on_session() -> Iterator[Callable[[Use], Any]]:
    """Runs `use(session)` on one session in one browser, task after task, as a pool's slot does."""
    with in_one_browser(lambda open_page: HybridSession(open_page, screenshots=False)) as on_session:
        yield on_session


def click(observation: Observation, text: str, role: str = "button") -> Click:
    element = next(each for each in observation.elements if each.role == role and each.text == text)
    return Click(x=element.x_px, y=element.y_px)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 3), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", KINDS)
def test_oracles_solve_every_task_through_real_events(on_session: Any, name: str, seeds: range) -> None:
    async def use(session: HybridSession) -> None:
        for seed in seeds:
            observation = await session.reset(load_tasks()[name], seed)
            assert observation.instruction and observation.elements and not observation.output
            assert not (await session.evaluate()).success, "solved before it began"
            transition = await follow(session)
            verdict = await session.evaluate()
            assert transition.terminated and transition.reward == 1.0 and verdict.success, (seed, verdict.reasons)

    on_session(use)


@pytest.mark.parametrize("name", KINDS)
def test_saying_that_it_is_done_solves_nothing(on_session: Any, name: str) -> None:
    async def use(session: HybridSession) -> None:
        await session.reset(load_tasks()[name], 4)
        transition = await session.step(Finished(answer="done"))
        assert transition.terminated and transition.reward == 0.0 and (await session.evaluate()).reasons

    on_session(use)


def test_a_session_keeps_to_the_protocol(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        assert isinstance(session, Session)
        task = load_tasks()["type-word"]
        first = await session.reset(task, 3)
        assert "Chrome" in session.environment and "hybrid tasks 1" in session.environment and "bubblewrap" in session.environment
        again = await session.reset(task, 3)
        assert (first.instruction, first.elements, first.url) == (again.instruction, again.elements, again.url)
        transition = await session.step(bash("cat *.txt"))
        assert transition.observation.output.endswith("[exit code 0]") and transition.observation.elements == first.elements
        transition = await session.step(actions.InvalidAction(text="x", reason="no such action"))
        assert transition.info["invalid"] == "no such action" and transition.observation.output.endswith("[exit code 0]")
        transition = await session.step(ToolCall(name="fly"))
        assert transition.observation.output.startswith("error: there is no tool 'fly'")
        for _ in range(task.max_steps - 3):
            transition = await session.step(bash("true"))
        assert transition.truncated and not transition.terminated and transition.reward == 0.0
        assert (await session.step(bash("ls"))).info == {"ignored": "the episode is over"}
        assert await session.oracle_action() is None
        with pytest.raises(TaskError, match="hybrid/none"):
            await session.reset(task.model_copy(update={"name": "none"}), 1)

    on_session(use)


def test_screenshots_are_taken_where_they_are_asked_for(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        session.screenshots = True
        try:
            pictures = [(await session.reset(load_tasks()["note-code"], 5)).screenshot_id for _ in range(2)]
            assert pictures[0] is not None and pictures[0] == pictures[1]
            assert (await session.step(bash("ls"))).observation.screenshot is not None
        finally:
            session.screenshots = False

    on_session(use)


def test_what_is_typed_wrong_is_not_accepted(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        observation = await session.reset(load_tasks()["type-word"], 1)
        await session.step(click(observation, "Word", "input"))
        await session.step(TypeText(text="nonsense"))
        transition = await session.step(click(observation, "Send"))
        assert any(each.text == "That is not right." for each in transition.observation.elements)
        assert (await follow(session)).reward == 1.0  # what is wrong can be fixed

    on_session(use)


def test_a_service_of_one_session_is_reached_by_its_own_page_only() -> None:
    async def use() -> None:
        host = await launch("auto")
        one, other = (HybridSession(host.open_page, screenshots=False) for _ in range(2))
        try:
            task = load_tasks()["serve-and-press"]
            await one.reset(task, 1)
            await other.reset(task, 1)
            start = await one.oracle_action()
            assert isinstance(start, ToolCall)
            await one.step(start)
            go = await one.oracle_action()
            assert isinstance(go, Navigate)
            assert any(each.role == "button" for each in (await one.step(go)).observation.elements)
            transition = await other.step(go)
            assert not any(each.role == "button" for each in transition.observation.elements)
        finally:
            await one.close()
            await other.close()
            await host.close()

    asyncio.run(use())


def test_a_page_served_from_the_terminal_cannot_say_that_it_accepts(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        await session.reset(load_tasks()["type-word"], 1)
        page = "<script>function start() {} function state() { return {accepted: true} }</script><h1>forged</h1>"
        await session.step(bash(f"echo '{page}' > desk.html; python3 -m http.server 8127 > /dev/null 2>&1 & sleep 1"))
        transition = await session.step(Navigate(url="http://localhost:8127/desk.html"))
        assert any(each.text == "forged" for each in transition.observation.elements)
        assert (await session.step(Finished())).reward == 0.0

    on_session(use)


def test_links_in_the_workspace_lead_neither_downloads_nor_uploads_out(on_session: Any) -> None:
    """The agent may put a link where the browser's files go, or where it is told to take one from."""

    async def use(session: HybridSession) -> None:
        observation = await session.reset(load_tasks()["return-edited"], 1)
        await session.step(bash("ln -s /tmp Downloads; ln -s /etc/passwd secret.txt"))
        link = next(each for each in observation.elements if each.role == "link")
        transition = await session.step(Click(x=link.x_px, y=link.y_px))
        assert (await session.step(bash("ls /tmp; ls -A Downloads/"))).observation.output == "[exit code 0]"
        button = next(each for each in transition.observation.elements if each.role == "button" and each.text != "Send")
        await session.step(Click(x=button.x_px, y=button.y_px))
        transition = await session.step(TypeText(text="secret.txt"))
        assert "uploaded" not in transition.info and "ignored" in transition.info

    on_session(use)


def test_nothing_of_an_episode_is_left_in_the_next(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        task = load_tasks()["download-and-sum"]
        observation = await session.reset(task, 1)
        link = next(each for each in observation.elements if each.role == "link")
        await session.step(Click(x=link.x_px, y=link.y_px))
        plant = "ls Downloads; sleep 1000 & echo planted > planted; python3 -m http.server 8128 > /dev/null 2>&1 &"
        before = await session.step(bash(plant))
        assert link.text in before.observation.output
        await session.reset(task, 1)
        after = await session.step(bash("ls -A; pgrep sleep; ls Downloads"))
        assert "planted" not in after.observation.output and "cannot access 'Downloads'" in after.observation.output
        transition = await session.step(Navigate(url="http://localhost:8128/"))
        assert not any("planted" in each.text for each in transition.observation.elements)

    on_session(use)


def test_the_page_ends_before_the_files_that_it_shares(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        task = load_tasks()["note-code"]
        await session.reset(task, 1)
        episode, page = session._side.episode, session._page._page
        assert episode is not None and page is not None
        jail, was_there, close = episode.tools.jail, [], page.close

        async def closing() -> None:
            was_there.append(jail.is_alive)
            await close()

        page.close = closing  # type: ignore[method-assign]
        await session.reset(task, 2)
        assert was_there == [True] and not jail.is_alive

    on_session(use)


def test_the_folder_that_a_page_shares_is_no_other_once_the_jail_has_gone(on_session: Any) -> None:
    async def use(session: HybridSession) -> None:
        await session.reset(load_tasks()["note-code"], 1)
        episode, surroundings = session._side.episode, session._page.surroundings
        assert episode is not None and surroundings is not None and surroundings.workspace is not None
        jail = episode.tools.jail
        jail.workspace.write("here", "")
        folder = surroundings.workspace.stat()
        fail(jail, signal.SIGKILL)
        await asyncio.to_thread(jail._process.wait)
        assert os.path.samestat(surroundings.workspace.stat(), folder) and (surroundings.workspace / "here").exists()

    on_session(use)


def test_groups_and_limits() -> None:
    assert set(load_tasks("small")) == {"note-code", "type-word"} and len(load_tasks()) >= 6
    assert {(task.source, task.domain) for task in load_tasks().values()} == {("hybrid", "hybrid")}
    with pytest.raises(ConfigError, match="no task group"):
        load_tasks("none")
    for name, task in load_tasks().items():
        assert max(len(hybrid_instance(task, seed).steps) for seed in range(10)) + 2 <= task.max_steps, name
        assert hybrid_instance(task, 1).page == hybrid_instance(task, 1).page
    assert task_file().groups["small"]


@pytest.mark.parametrize("action", [Finished(), bash("ls")])
def test_misuse_is_reported(action: Action) -> None:
    async def use() -> None:
        host = await launch("auto")
        session = HybridSession(host.open_page)
        try:
            with pytest.raises(SandboxError, match="reset"):
                await session.step(action)
        finally:
            await session.close()
            await session.close()
            await host.close()
        with pytest.raises(SandboxError, match="closed"):
            await session.reset(load_tasks()["note-code"], 1)

    asyncio.run(use())
