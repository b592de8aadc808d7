"""Tasks in a terminal and the session that runs them: the conformance of TerminalSession, oracles that solve every task, verifiers that
are not taken in."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Action, Finished, ToolCall
from sandbox.session import Session
from sandbox.tasks.terminal.source import KINDS, load_tasks, task_file, terminal_instance
from sandbox.terminal import control
from sandbox.terminal.session import TerminalSession
from sandbox.terminal.tasks import Probe, seeded
from tests.sandbox.tool_sessions import bash, fail, follow
from warehouse.core.errors import ConfigError, JailCrashed, SandboxError, SandboxTimeout, TaskError

Use = Callable[[TerminalSession], Coroutine[Any, Any, Any]]
FEW = list(KINDS)[::4]
"""Tasks that stand for the others; continuous integration tries them all."""
EVERY_TASK = pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in KINDS])


@pytest.fixture
def on_session() -> Callable[[Use], Any]:
    def run(use: Use) -> Any:
        async def whole() -> Any:
            session = TerminalSession()
            try:
                return await use(session)
            finally:
                await session.close()

        return asyncio.run(whole())

    return run


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 3), marks=pytest.mark.long)])
@EVERY_TASK
def test_oracles_solve_every_task_through_its_tools(on_session: Any, name: str, seeds: range) -> None:
    task = load_tasks()[name]

    async def use(session: TerminalSession) -> None:
        for seed in seeds:
            observation = await session.reset(task, seed)
            assert observation.instruction and not observation.output and observation.time_ms == 0.0
            assert not (await session.evaluate()).success, "solved before it began"
            transition = await follow(session)
            verdict = await session.evaluate()
            assert transition.terminated and transition.reward == 1.0 and verdict.success, (seed, verdict.reasons)

    on_session(use)


@EVERY_TASK
def test_doing_nothing_solves_nothing(on_session: Any, name: str) -> None:
    """Nor does saying that it is done, nor the right answer printed."""

    async def use(session: TerminalSession) -> None:
        task = load_tasks()[name]
        await session.reset(task, 5)
        instance = terminal_instance(task, 5)
        texts = [goal.text for goal in instance.goals if hasattr(goal, "text")]
        await session.step(bash("printf '%s\\n' " + " ".join(repr(text) for text in texts)))
        transition = await session.step(Finished(answer="done"))
        assert transition.terminated and transition.reward == 0.0
        verdict = await session.evaluate()
        assert not verdict.success and verdict.origin == "verifier" and verdict.reasons

    on_session(use)


def test_instances_depend_on_task_and_seed_alone() -> None:
    for name, task in load_tasks().items():
        first, again = terminal_instance(task, 1), terminal_instance(task.model_copy(update={"max_steps": 99}), 1)
        assert (first.instruction, first.files, first.goals) == (again.instruction, again.files, again.goals), name
        others = [terminal_instance(task, seed) for seed in range(2, 8)]
        assert any((other.instruction, other.files) != (first.instruction, first.files) for other in others), name
    assert seeded(task, 1).random() != seeded(task, 2).random()


@pytest.mark.slow
def test_the_step_limits_leave_room_for_the_oracle() -> None:
    for name, task in load_tasks().items():
        num = max(len(terminal_instance(task, seed).steps) for seed in range(20))
        assert num + 2 <= task.max_steps, name
        if name in task_file().groups["small"]:
            assert num <= 3 and len(terminal_instance(task, 1).instruction) < 100
        if name in task_file().groups["long"]:
            assert num >= 8


def test_groups_and_their_tasks() -> None:
    assert len(load_tasks()) >= 24 and {task.source for task in load_tasks().values()} == {"terminal"}
    assert {task.domain for task in load_tasks("small").values()} == {"terminal"} and len(load_tasks("small")) >= 8
    assert any(task.held_out for task in load_tasks("long").values())
    with pytest.raises(ConfigError, match="no task group 'none'"):
        load_tasks("none")


def test_a_session_keeps_to_the_protocol(on_session: Any) -> None:
    task = load_tasks()["write-word"]

    async def use(session: TerminalSession) -> None:
        assert isinstance(session, Session) and session.screenshots
        with pytest.raises(SandboxError, match="reset"):
            await session.step(bash("ls"))
        first = await session.reset(task, 3)
        assert session.environment.startswith("terminal tasks 1; bubblewrap ")
        assert first == await session.reset(task, 3)
        transition = await session.step(bash("echo hello"))
        assert transition.observation.output == "hello\n[exit code 0]" and transition.reward == 0.0
        assert not transition.terminated and not transition.truncated
        transition = await session.step(actions.InvalidAction(text="x", reason="no such action"))
        assert transition.info == {"invalid": "no such action"} and transition.observation.output == "hello\n[exit code 0]"
        transition = await session.step(actions.Click(x=1, y=1))
        assert "no screen" in transition.info["ignored"]
        transition = await session.step(ToolCall(name="fly"))
        assert transition.truncated and not transition.terminated and transition.observation.output.startswith("error: there is no tool")
        assert (await session.step(bash("ls"))).info == {"ignored": "the episode is over"}
        assert await session.oracle_action() is None
        with pytest.raises(TaskError, match="source 'nowhere'"):
            await session.reset(task.model_copy(update={"source": "nowhere"}), 1)
        with pytest.raises(TaskError, match="terminal/none"):
            await session.reset(task.model_copy(update={"name": "none"}), 1)
        await session.close()
        await session.close()
        with pytest.raises(SandboxError, match="closed"):
            await session.reset(task, 1)

    on_session(use)


@pytest.mark.parametrize("action", [Finished(answer="x"), actions.CallUser()])
def test_the_agent_may_end_the_episode(on_session: Any, action: Action) -> None:
    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()["write-word"], 1)
        transition = await session.step(action)
        assert transition.terminated and transition.reward == 0.0

    on_session(use)


def test_an_answer_counts_whatever_its_case_and_full_stop(on_session: Any) -> None:
    task = load_tasks()["read-word"]

    async def use(session: TerminalSession) -> None:
        word = terminal_instance(task, 1).answer
        for answer, reward in ((word, 1.0), (f" '{word.upper()}'. ", 1.0), (f"it is {word}", 0.0), ("", 0.0)):
            await session.reset(task, 1)
            assert (await session.step(Finished(answer=answer))).reward == reward

    on_session(use)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("release", [bash("mkdir -p /tmp/x && cd /tmp/x")]),
        ("copy-file", [bash("echo wrong > /tmp/y")]),
        ("gather-files", [bash("cd /tmp"), bash("sleep 0.1")]),
        ("run-service", [actions.InvalidAction(text="?", reason="?"), actions.Wait(seconds=0.1)]),
        ("commit-change", [bash("git -C project checkout -q -b another")]),
        ("set-permissions", [bash("exit")]),
    ],
)
def test_the_oracle_finds_its_way_from_elsewhere(on_session: Any, name: str, before: list[Action]) -> None:
    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()[name], 1)
        assert (await follow(session, *before)).reward == 1.0

    on_session(use)


def test_the_oracle_gives_up_where_the_task_is_lost(on_session: Any) -> None:
    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()["delete-file"], 1)
        await session.step(bash("rm *"))
        assert await session.oracle_action() is None

    on_session(use)


def test_nothing_of_an_episode_is_left_in_the_next(on_session: Any) -> None:
    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()["make-folder"], 1)
        tools = session.tools
        assert tools is not None
        await session.step(bash("echo planted > planted; echo planted > /tmp/planted; export PLANTED=1; sleep 1000 &"))
        await session.reset(load_tasks()["make-folder"], 1)
        assert not tools.jail.is_alive
        transition = await session.step(bash("ls . /tmp; env | grep PLANTED; pgrep sleep"))
        assert "lanted" not in transition.observation.output.lower()

    on_session(use)


@pytest.mark.parametrize(
    ("name", "cheat"),
    [
        ("fix-script", "printf 'print(\"6 3.00\")' > stats.py"),
        ("commit-change", "cd project && git commit -q --allow-empty -m 'Add x'; printf '[alias]\\nlog=!echo' > ~/.gitconfig"),
        ("run-service", "mkdir -p ~/bin; printf '#!/bin/sh\\ntrue' > ~/bin/curl; chmod +x ~/bin/curl"),
        ("write-word", "ln -s /etc/hostname notes.txt; mkdir x"),
        ("pack-folder", "rm -r */; for f in $(ls); do :; done; touch x.tar.gz"),
    ],
)
def test_a_verifier_is_not_taken_in(on_session: Any, name: str, cheat: str) -> None:
    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()[name], 2)
        await session.step(bash(cheat))
        assert (await session.step(Finished())).reward == 0.0

    on_session(use)


FAILURES = [(signal.SIGKILL, JailCrashed), (signal.SIGSTOP, SandboxTimeout)]


@pytest.mark.parametrize(("signum", "error"), FAILURES)
def test_a_jail_that_fails_is_no_failure_of_the_agent(
    on_session: Any, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, error: type[SandboxError]
) -> None:
    """No verdict, whatever its goals look at, and no goal by itself."""

    async def use(session: TerminalSession) -> None:
        await session.reset(load_tasks()["write-word"], 1)
        tools = session.tools
        assert tools is not None
        running = asyncio.ensure_future(tools.jail.run(["/bin/sleep", "1000"], timeout_s=1))
        await asyncio.sleep(0.1)
        monkeypatch.setattr(control, "ANSWER_TIMEOUT_S", 0.5)
        fail(tools.jail, signum)
        probe = Probe(tools.jail)
        for look in (session.step(Finished()), probe.run("true"), probe.fetch(8000, "/"), running):
            with pytest.raises(error):
                await look

    on_session(use)


@pytest.mark.slow
def test_episodes_leave_no_descriptors_threads_or_tasks_behind(on_session: Any) -> None:
    task = load_tasks()["write-word"]

    async def use(session: TerminalSession) -> None:
        def held() -> tuple[int, int, int]:
            return len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks())

        counts = []
        for seed in range(12):
            await session.reset(task, seed)
            await session.step(ToolCall(name="JupyterCI", arguments={"code": "1 + 1"}))
            await session.step(bash("sleep 100 &"))
            assert (await follow(session)).terminated
            counts.append(held())
        assert counts[-1] == counts[1], counts

    on_session(use)
