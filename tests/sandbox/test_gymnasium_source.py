"""Gymnasium environments as task sources: the package's own, and one with pictures and an oracle, played by clicks, keys and tool calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sandbox.actions import Action, Click, Finished, Hotkey, InvalidAction, ToolCall, TypeText, Wait
from sandbox.adapters.gymnasium_source import GymTask, gymnasium_source
from sandbox.pool.pool import SessionPool
from sandbox.session import Observation, Session
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_source import TaskSource
from tests.sandbox.own_source import ADAPTERS, ROOT, write_files_of
from warehouse.core.conformance import problems
from warehouse.core.errors import ConfigError, SandboxError, TaskError
from warehouse.storage.screenshots import pictures

LAKE = GymTask(
    env="FrozenLake-v1",
    instruction="Walk to the goal G over the ice F; do not fall into a hole H.",
    success_at=1.0,
    actions={"left": 0, "down": 1, "right": 2, "up": 3},
    options={"is_slippery": False},
)
TAXI = GymTask(env="Taxi-v4", instruction="Bring the passenger to the hotel.", success_at=0.0)
SOURCE_FILE = """
from sandbox.adapters.gymnasium_source import GymTask, gymnasium_source
from tests.sandbox.test_gymnasium_source import Colours

TASK = GymTask(
    env="colours", instruction="Name the colour.", success_at=1.0, actions={"red": 0, "green": 1, "blue": 2}, max_steps=4,
    make=Colours, oracle=lambda env: env.colour,
)
SOURCE = gymnasium_source("colours", [TASK])
"""


class Colours(gymnasium.Env[Any, Any]):
    """Shows a red, green or blue screen of some brightness; naming the colour pays 1, another one ends the episode without."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0, 255, (40, 90, 3), np.uint8)

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        self.render_mode, self.colour, self.brightness = render_mode, 0, 255

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.colour, self.brightness = int(self.np_random.integers(3)), int(self.np_random.integers(64, 256))
        return self.render(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.render(), float(action == self.colour), True, False, {}

    def render(self) -> Any:
        screen = np.zeros((40, 90, 3), np.uint8)
        screen[:, :, self.colour] = self.brightness
        return screen


class Failing(Colours):
    def step(self, action: Any) -> Any:
        raise RuntimeError("out of ice")


class Overpaying(Colours):
    def step(self, action: Any) -> Any:
        return self.render(), float("inf"), True, False, {}


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])


def on_session(source: TaskSource, use: Callable[[Session, Task], Coroutine[Any, Any, None]]) -> None:
    """One session of the source's own; its first task."""

    async def run() -> None:
        assert source.open_session is not None
        session = source.open_session(None, None)
        try:
            await use(session, next(iter(source.load_tasks().values())))
        finally:
            await session.close()

    asyncio.run(run())


def button(observation: Observation, name: str) -> Click:
    (found,) = [each for each in observation.elements if each.text == name]
    return Click(x=found.x_px, y=found.y_px)


def test_an_environment_with_text_is_played_by_clicks_keys_and_tool_calls() -> None:
    async def use(session: Session, task: Task) -> None:
        seen = await session.reset(task, 3)
        assert seen.output.split() == ["[red:S]FFF", "FHFH", "FFFH", "HFFG"], "where the player stands is said"
        assert [each.text for each in seen.elements] == ["left", "down", "right", "up"]
        moves: list[Action] = [
            button(seen, "down"),
            Hotkey(keys=("down",)),
            TypeText(text="right"),
            ToolCall(name="act", arguments={"action": 1}),
        ]
        for move in [*moves, button(seen, "right")]:
            transition = await session.step(move)
            assert not transition.terminated and transition.info == {"reward": 0.0}
        transition = await session.step(ToolCall(name="act", arguments={"action": "right"}))
        assert transition.terminated and transition.reward == 1.0 and (await session.evaluate()).success
        assert (await session.step(moves[0])).info == {"ignored": "the episode is over"}

    on_session(gymnasium_source("lake", [LAKE], has_one_instance=True), use)


@pytest.mark.parametrize(
    "action",
    [
        Click(x=399, y=5),
        Hotkey(keys=("enter",)),
        TypeText(text="north"),
        Wait(),
        ToolCall(name="bash", arguments={}),
        *(ToolCall(name="act", arguments={"action": value}) for value in (4, -1, "4", None, True, [1], {"a": 1}, 1e400, "x" * 1000)),
    ],
)
def test_what_is_no_action_changes_nothing_and_says_what_is(action: Action) -> None:
    async def use(session: Session, task: Task) -> None:
        before = await session.reset(task, 1)
        transition = await session.step(action)
        assert transition.observation.output == before.output and transition.reward == 0 and not transition.terminated
        assert "is not an action of" in transition.info["ignored"]
        assert (await session.step(InvalidAction(text="x", reason="y"))).info == {"invalid": "y"}

    on_session(gymnasium_source("lake", [LAKE], has_one_instance=True), use)


def test_saying_that_it_is_done_is_not_enough() -> None:
    async def use(session: Session, task: Task) -> None:
        await session.reset(task, 1)
        transition = await session.step(Finished())
        assert transition.terminated and transition.reward == 0 and not (await session.evaluate()).success

    on_session(gymnasium_source("lake", [LAKE], has_one_instance=True), use)


def test_numbers_name_actions_that_have_no_other_name_and_seeds_are_instances() -> None:
    async def use(session: Session, task: Task) -> None:
        first = [await session.reset(task, seed) for seed in (1, 2, 1)]
        assert [each.text for each in first[0].elements] == ["0", "1", "2", "3", "4", "5"]
        assert first[0].output == first[2].output != first[1].output and "\x1b" not in first[0].output

    on_session(gymnasium_source("taxi", [TAXI]), use)


def test_a_picture_has_its_buttons_below_and_the_oracle_clicks_them() -> None:
    source = gymnasium_source(
        "colours",
        [
            GymTask(
                env="c", instruction="Name it.", success_at=1, actions={"r": 0, "g": 1, "b": 2}, make=Colours, oracle=lambda env: env.colour
            )
        ],
    )

    async def use(session: Session, task: Task) -> None:
        for seed in range(4):
            seen = await session.reset(task, seed)
            assert seen.screenshot is not None and pictures.header(seen.screenshot).width_px == seen.width_px == 90
            assert seen.height_px > 40 and all(each.y_px > 40 for each in seen.elements) and len({e.y_px for e in seen.elements}) == 3
            action = await session.oracle_action()
            assert isinstance(action, Click) and (await session.step(action)).reward == 1.0
            assert await session.oracle_action() is None

    on_session(source, use)


@pytest.mark.parametrize(
    ("make", "problem"),
    [(Failing, "failed at a step of f: RuntimeError: out of ice"), (Overpaying, "of f paid a reward of inf after 0: not a finite sum")],
)
def test_an_environment_that_fails_is_the_infrastructures_failure(make: type[Colours], problem: str) -> None:
    source = gymnasium_source("failing", [GymTask(env="f", instruction="i", success_at=1, make=make)])

    async def use(session: Session, task: Task) -> None:
        seen = await session.reset(task, 0)
        with pytest.raises(SandboxError, match=problem):
            await session.step(button(seen, "1"))

    on_session(source, use)


def test_what_is_not_there_is_named() -> None:
    async def use(session: Session, task: Task) -> None:
        with pytest.raises(SandboxError, match=r"starting no-such-v0: .*NameNotFound"):
            await session.reset(task, 0)
        with pytest.raises(TaskError, match="none of the source 'none', which has no-such-v0"):
            await session.reset(task.model_copy(update={"name": "other"}), 0)

    on_session(gymnasium_source("none", [GymTask(env="no-such-v0", instruction="i", success_at=1)]), use)
    with pytest.raises(ConfigError, match="two tasks of one name"):
        gymnasium_source("twice", [LAKE, LAKE])


@pytest.mark.parametrize("steps", [[Finished()], [Click(x=36, y=54)]])
def test_a_threshold_of_zero_or_less_pays_only_what_the_environment_has_ended(steps: list[Action]) -> None:
    task = GymTask(env="c", instruction="Name it.", success_at=-5.0, make=Colours, max_steps=1)

    async def use(session: Session, task: Task) -> None:
        await session.reset(task, 0)
        transition = await session.step(steps[0])
        assert (transition.reward, (await session.evaluate()).success) == ((0.0, False) if isinstance(steps[0], Finished) else (1.0, True))

    on_session(gymnasium_source("cheap", [task]), use)


def test_no_split_shows_the_start_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    source = gymnasium_source("taxi", [TAXI])

    async def use(session: Session, task: Task) -> None:
        starts = {split: {(await session.reset(task, seed)).output for seed in task.seeds(split, 12)} for split in Split}
        assert all(len(found) > 3 for found in starts.values())
        assert sum(map(len, starts.values())) == len(set().union(*starts.values()))

    on_session(source, use)


def test_an_environment_that_always_starts_alike_says_so() -> None:
    async def use(session: Session, task: Task) -> None:
        refused = []
        for split in Split:
            try:
                await session.reset(task, task.seeds(split, 1)[0])
            except TaskError as error:
                refused.append(str(error))
        assert len(refused) == 3 and all("none of 200 starts belongs to its split" in each for each in refused)
        assert "set has_one_instance" in refused[0]

    on_session(gymnasium_source("lake", [LAKE]), use)


def test_what_decides_success_is_part_of_the_task_and_has_to_be_json() -> None:
    def ids(**changes: Any) -> str:
        made = {"env": "c", "instruction": "i", "success_at": 1.0, "make": Colours} | changes
        return next(iter(gymnasium_source("c", [GymTask(**made)]).load_tasks().values())).task_id

    assert len({ids(), ids(success_at=2.0), ids(instruction="j"), ids(actions={"r": 0}), ids(options={"a": 1})}) == 5 and ids() == ids()
    with pytest.raises(ConfigError, match=r"not JSON serializable\. What is not JSON goes into a function"):
        ids(options={"made": object()})


class FailsToClose(Colours):
    num_made = num_closed = 0

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        super().__init__(name, render_mode)
        type(self).num_made += render_mode is not None

    def reset(self, **_: Any) -> Any:
        raise RuntimeError("no colours")

    def close(self) -> None:
        if self.render_mode is not None:
            type(self).num_closed += 1
            raise RuntimeError("it does not close")


def test_one_that_cannot_be_reset_is_closed_and_what_fails_at_that_is_not_seen() -> None:
    async def use(session: Session, task: Task) -> None:
        for _ in range(2):
            with pytest.raises(SandboxError, match="RuntimeError: no colours"):
                await session.reset(task, 0)

    on_session(gymnasium_source("closing", [GymTask(env="c", instruction="i", success_at=1, make=FailsToClose)]), use)
    assert FailsToClose.num_made == FailsToClose.num_closed == 2


@pytest.mark.slow
def test_the_document_s_lake_keeps_every_promise_and_one_that_hides_its_one_instance_does_not(tmp_path: Path) -> None:
    write_files_of("adapters.md", tmp_path, ADAPTERS)
    SOURCES.use("lake.py:SOURCE", tmp_path)
    assert problems(check_source(SOURCES["lake"])) == []
    text = (tmp_path / "lake.py").read_text()
    (tmp_path / "pond.py").write_text(text.replace(", has_one_instance=True", "").replace('"lake"', '"pond"'))
    SOURCES.use("pond.py:SOURCE", tmp_path)
    assert any("set has_one_instance" in each for each in problems(check_source(SOURCES["pond"])))


@pytest.mark.slow
def test_from_a_users_file_it_keeps_every_promise_and_is_played_in_a_pool(tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text(SOURCE_FILE)
    sys.path.append(str(ROOT))
    SOURCES.use("colours.py:SOURCE", tmp_path)
    assert problems(check_source(SOURCES["colours"])) == []

    async def play() -> None:
        (task,) = SOURCES["colours"].load_tasks().values()
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            await session.reset(task, 5)
            action = await session.oracle_action()
            assert action is not None and (await session.step(action)).reward == 1.0

    asyncio.run(play())
