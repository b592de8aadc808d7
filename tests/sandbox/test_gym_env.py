"""The Gymnasium environment: Gymnasium's own checker, seeds, oracles through the action space, several side by side, a remote one."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sandbox import actions
from sandbox.gym.env import KEYS, KINDS, FlywheelEnv, env_id, from_action, register_envs, to_action
from sandbox.http.tokens import Tokens
from sandbox.loop_thread import LoopThread
from sandbox.pool.pool import SessionPool
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import find_task
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import TaskError

TOKEN = "token-of-an-environment"
CLICK_BUTTON, LOGIN = "flywheel/miniwob-click-button-v0", "flywheel/miniwob-login-user-v0"


@pytest.fixture(scope="module")
def env() -> Iterator[gymnasium.Env[Any, Any]]:
    register_envs()
    env = gymnasium.make(LOGIN, render_mode="rgb_array")
    yield env
    env.close()
    env.close()


@pytest.mark.parametrize(
    "source",
    [
        "miniwob",
        *(pytest.param(source, marks=pytest.mark.slow) for source in ("games", "terminal", "hybrid")),
        pytest.param("browsing", marks=pytest.mark.long),
    ],
)
def test_gymnasium_finds_nothing_to_say(source: str) -> None:
    register_envs()
    task = next(iter(SOURCES[source].load_tasks().values()))
    env = gymnasium.make(env_id(task), render_mode="rgb_array")
    try:
        check_env(env.unwrapped, skip_render_check=True)
        assert env.unwrapped.seen is not None
    finally:
        env.close()


def test_every_task_is_registered() -> None:
    register_envs()
    ids = {name for name in gymnasium.registry if name.startswith("flywheel/")}
    assert {env_id(task) for source in SOURCES.values() for task in source.load_tasks().values()} == ids and CLICK_BUTTON in ids


def test_the_same_seed_gives_the_same_instance(env: gymnasium.Env[Any, Any]) -> None:
    task = find_task("miniwob/login-user")
    first, info = env.reset(seed=7)
    assert task.split(info["instance"]) is Split.TRAIN
    other, _ = env.reset()
    again, _ = env.reset(seed=7)
    wanted, named = env.reset(options={"instance": info["instance"]})
    assert named["instance"] == info["instance"]
    for key in first:
        assert np.array_equal(first[key], again[key]) and np.array_equal(first[key], wanted[key])
    assert other["instruction"] != first["instruction"]
    assert first["screenshot"].shape == (210, 160, 3) and len(np.unique(first["screenshot"])) > 20
    assert np.array_equal(env.render(), first["screenshot"])
    assert "input" in first["elements"] and first["boxes"][0].min() >= 0 and first["boxes"][-1].max() == -1


def test_the_oracle_solves_a_task_through_the_action_space(env: gymnasium.Env[Any, Any]) -> None:
    for seed in range(2):
        env.reset(seed=seed)
        is_over, reward = False, 0.0
        while not is_over:
            action = env.unwrapped.oracle_action()
            assert action is not None and env.action_space.contains(action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert env.observation_space.contains(observation) and "action" in info
            is_over = terminated or truncated
        assert reward == 1.0


def test_an_episode_ends_after_the_tasks_steps(env: gymnasium.Env[Any, Any]) -> None:
    env.reset(seed=1)
    wait = from_action(actions.Wait())
    ends = [env.step(wait)[2:4] for _ in range(find_task("miniwob/login-user").max_steps)]
    assert ends[-1] == (False, True) and set(ends[:-1]) == {(False, False)}


def test_actions_survive_the_space(env: gymnasium.Env[Any, Any]) -> None:
    env.action_space.seed(3)
    kinds = set()
    for _ in range(300):
        sample = env.action_space.sample()
        action = to_action(sample)
        kinds.add(KINDS[int(sample["kind"])])
        written = from_action(action)
        assert written is not None and env.action_space.contains(written) and to_action(written) == action
    assert kinds == set(KINDS)
    assert all(to_action(from_action(actions.Hotkey(keys=keys)) or {}) == actions.Hotkey(keys=keys) for keys in KEYS)
    assert from_action(actions.Hotkey(keys=("ctrl", "q"))) is None and from_action(actions.TypeText(text="漢")) is None


@pytest.mark.parametrize("kind", [gymnasium.vector.SyncVectorEnv, pytest.param(gymnasium.vector.AsyncVectorEnv, marks=pytest.mark.slow)])
def test_several_side_by_side(kind: Any) -> None:
    vector = kind([_make_click_button] * 2)
    try:
        first, _ = vector.reset(seed=[1, 2])
        assert first["screenshot"].shape == (2, 210, 160, 3) and len(first["instruction"]) == 2
        vector.action_space.seed(1)
        _, rewards, _, _, _ = vector.step(vector.action_space.sample())
        again, _ = vector.reset(seed=[1, 2])
        assert rewards.shape == (2,) and np.array_equal(first["screenshot"], again["screenshot"])
        assert first["instruction"] == again["instruction"]
    finally:
        vector.close()


def _make_click_button() -> gymnasium.Env[Any, Any]:
    return gymnasium.make(f"sandbox.gym.ids:{CLICK_BUTTON}")


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    async with SessionPool(size=1) as pool, serving(pool, Tokens({"ann": TOKEN}), ServerSettings(oracles=True)) as url:
        yield url


def test_an_environment_on_a_server(env: gymnasium.Env[Any, Any]) -> None:
    thread, server = LoopThread("server"), served()
    url = thread.run(server.__aenter__())
    remote = FlywheelEnv("miniwob/login-user", make_pool=lambda: SandboxClient(url, TOKEN))
    try:
        (here, _), (there, _) = env.reset(seed=7), remote.reset(seed=7)
        assert np.array_equal(here["screenshot"], there["screenshot"]) and here["instruction"] == there["instruction"]
        action = remote.oracle_action()
        assert action is not None and not remote.step(action)[2]
    finally:
        remote.close()
        thread.run(server.__aexit__(None, None, None))
        thread.close()


@pytest.mark.parametrize(
    ("task", "screen_px"),
    [
        (Task(source="nowhere", name="nothing", domain="games", max_steps=1), (64, 64)),  # no lease, at the first reset
        (Task(source="nowhere", name="nothing", domain="games", max_steps=1), None),  # no lease, when the size is asked for
        (Task(source="terminal", name="nothing", domain="terminal", max_steps=1), None),  # a lease and no instance
    ],
)
def test_what_fails_leaves_no_pool_behind(task: Task, screen_px: tuple[int, int] | None) -> None:
    opened: list[WatchedPool] = []

    def make_pool() -> WatchedPool:
        opened.append(WatchedPool(size=1))
        return opened[-1]

    before = num_threads()
    with pytest.raises(TaskError):
        env = FlywheelEnv(task, screen_px=screen_px, make_pool=make_pool)
        try:
            env.reset(seed=1)
        finally:
            assert [pool.num_closed for pool in opened] == [1], "before the environment is closed, which may be long after"
            env.close()
    assert [pool.num_closed for pool in opened] == [1] and num_threads() == before


def num_threads() -> int:
    """Of environments."""
    return [thread.name for thread in threading.enumerate()].count("flywheel environment")


class WatchedPool(SessionPool):
    num_closed = 0

    async def close(self) -> None:
        self.num_closed += 1
        await super().close()


def test_misuse_is_reported() -> None:
    with pytest.raises(TaskError, match="source/name"):
        FlywheelEnv("miniwob/no-such-task")
    with pytest.raises(ValueError, match="rgb_array"):
        FlywheelEnv("miniwob/click-button", render_mode="human")
    env = FlywheelEnv("miniwob/click-button")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
    env.close()
    held_out = next(task for task in SOURCES["miniwob"].load_tasks().values() if task.held_out)
    with pytest.raises(TaskError, match="held out"):
        FlywheelEnv(held_out).reset()
