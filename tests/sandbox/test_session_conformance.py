"""One conformance test for every kind of session wherever it is: in this process, in a worker of a fleet, behind a server. What only pages
have is in test_sessions.py; Android devices, of which there is seldom one, in test_android_device.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox import actions
from sandbox.desktop.apps import missing_packages
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.pool import SessionPool
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.session import HasFiles, Observation, Session
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import SandboxError

EXAMPLES: dict[SessionKind, tuple[str, str]] = {
    "page": ("miniwob", "login-user"),
    "terminal": ("terminal", "write-word"),
    "hybrid": ("hybrid", "type-word"),
    "web": ("web", "datasette-remove-near"),
    "desktop": ("desktop", "dialog-enter"),
}
"""Source and name of a short task of each kind."""
PLACES = ("local", "fleet", "remote")
LACKING = missing_packages(["form"])
SEED = 3


def case(place: str, kind: SessionKind) -> Any:
    marks: list[pytest.MarkDecorator] = []
    if kind == "desktop":
        marks.append(pytest.mark.skipif(bool(LACKING), reason=f"apt-get install --no-install-recommends {' '.join(LACKING)}"))
    if (place, kind) == ("fleet", "desktop"):  # the dearest, and a desktop behind a server shows the same
        marks.append(pytest.mark.long)
    elif place != "local" and kind not in ("page", "terminal"):  # the same sessions, through the same channel as these
        marks.append(pytest.mark.slow)
    return pytest.param(place, kind, marks=marks, id=f"{place}-{kind}")


everywhere = pytest.mark.parametrize(
    ("live", "kind"), [case(place, kind) for place in PLACES for kind in EXAMPLES], indirect=["live"], scope="module"
)


@pytest.fixture(scope="module")
def live(request: pytest.FixtureRequest, live_pool: Any) -> Iterator[Any]:
    fleet = FleetSettings(max_workers=1, sessions_per_worker=1)
    with live_pool(Fleet(fleet) if request.param == "fleet" else SessionPool(size=1), remote=request.param == "remote") as live:
        yield live


def example(kind: SessionKind) -> Task:
    source, name = EXAMPLES[kind]
    return SOURCES[source].load_tasks()[name]


def shown(observation: Observation) -> Observation:
    """Without the time, which for some kinds is the machine's."""
    return replace(observation, time_ms=0.0)


@everywhere
@pytest.mark.slow
def test_an_episode_means_the_same_everywhere(live: Any, kind: SessionKind) -> None:
    task = example(kind)

    async def use(pool: SessionPoolProtocol) -> None:
        async with pool.lease(task) as session:
            assert isinstance(session, Session)
            first = await session.reset(task, SEED)
            assert first.instruction and shown(await session.reset(task, SEED)) == shown(first)
            assert not (await session.evaluate()).success, "solved before it began"

            transition = await session.step(actions.InvalidAction(text="jump", reason="no such action"))
            assert transition.info["invalid"] == "no such action"
            assert (transition.reward, transition.terminated, transition.truncated) == (0.0, False, False)
            assert (transition.observation.instruction, transition.observation.elements) == (first.instruction, first.elements)

            rewards = [transition.reward]
            while not (transition.terminated or transition.truncated):
                action = await session.oracle_action()
                assert action is not None, f"no hint after {len(rewards)} steps"
                transition = await session.step(action)
                rewards.append(transition.reward)
            verdict = await session.evaluate()
            assert transition.terminated and verdict.success, verdict.reasons
            assert rewards == [0.0] * (len(rewards) - 1) + [1.0]

            after = await session.step(actions.TypeText(text="more"))
            assert after.info == {"ignored": "the episode is over"} and (after.reward, after.terminated) == (0.0, True)
            assert after.observation.elements == transition.observation.elements and (await session.evaluate()).success

    live.run(use)


@everywhere
@pytest.mark.slow
def test_a_closed_session_is_of_no_use_and_no_one_gets_it_next(live: Any, kind: SessionKind) -> None:
    task = example(kind)

    async def use(pool: SessionPoolProtocol) -> None:
        with pytest.raises(SandboxError, match="closed"):
            async with pool.lease(task, screenshots=False) as session:
                assert (await session.reset(task, SEED)).screenshot is None
                await session.close()
                await session.close()
                for call in (session.step(actions.Wait(seconds=1)), session.evaluate(), session.oracle_action()):
                    with pytest.raises(SandboxError, match="closed"):
                        await call
                await session.reset(task, SEED)
        async with pool.lease(task, screenshots=False) as session:
            assert (await session.reset(task, SEED)).instruction

    live.run(use)


@everywhere
def test_people_look_at_the_workspace_without_a_step(live: Any, kind: SessionKind) -> None:
    task = example(kind)

    async def use(pool: SessionPoolProtocol) -> None:
        async with pool.lease(task, screenshots=False) as session:
            first = await session.reset(task, SEED)
            files = await session.files() if isinstance(session, HasFiles) else None
            assert (files is not None) == (kind in ("terminal", "hybrid"))
            if files is None or not isinstance(session, HasFiles):
                return
            write = actions.ToolCall(
                name="execute_bash", arguments={"command": "mkdir -p a && printf 'one\\ntwo' > a/b.txt && printf '\\0' > c"}
            )
            seen = (await session.step(write)).observation
            new = {entry.path: entry for entry in await session.files() or () if entry not in files}
            assert {path: entry.kind for path, entry in new.items()} == {"a": "folder", "a/b.txt": "file", "c": "file"}
            assert new["a/b.txt"].num_bytes == 7 and await session.read_file("a/b.txt") == "one\ntwo"
            for refused in ("c", "a", "nothing", "../etc/passwd", "/etc/passwd", "a\0b"):
                assert await session.read_file(refused) is None, refused
            after = (await session.step(actions.Wait(seconds=0.01))).observation
            assert after.output == seen.output and after.elements == first.elements, "a look is not a step"

    live.run(use)
