"""Gymnasium environments as a task source:

    SOURCE = gymnasium_source("lake", [GymTask(env="FrozenLake-v1", instruction="Walk to the goal.", success_at=1.0,
                                               actions={"left": 0, "down": 1, "right": 2, "up": 3})])

An environment renders as text (`ansi`) where it can, else as a picture (`rgb_array`); its observation goes along as text where it has no
text of its own and is small. Environments run in a thread of their own, one for each session.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from sandbox.adapters.adapted_session import AdaptedSession, AdaptedTask, BadAction, ByName, Seen
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id

T = TypeVar("T")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "default", "default")
_COLOURED = re.compile(r"\x1b\[(?:\d+;)*(?P<code>[349][0-7]|10[0-7])(?:;\d+)*m(?P<text>[^\x1b]*)\x1b\[0?m")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
CLOSE_TIMEOUT_S = 5.0
MODES = ("ansi", "rgb_array")
"""Ways of rendering, the preferred one first."""
MAX_NAMED = 64
"""Actions of a discrete space that get a name, and a button, by themselves."""
SMALL = 64
"""Numbers of an observation that are shown as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymTask:
    """One environment as a task.

    `success_at`: the sum of rewards from which on it is solved. `actions`: the environment's actions by the words that an agent uses; of a
    discrete space, by default, its numbers. `oracle`: from the environment (unwrapped) to the action that solves it from here, or None.
    `render`: a render mode of it, or None; auto takes the first of MODES that it has. `make`: instead of gymnasium.make, e.g. to wrap it;
    it is handed `options` and render_mode.
    """

    env: str
    instruction: str
    success_at: float
    name: str = ""
    domain: str = "games"
    max_steps: int = 100
    actions: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    oracle: Callable[[Any], Any | None] | None = None
    render: str | None = "auto"
    make: Callable[..., Any] = gymnasium.make

    @property
    def task_name(self) -> str:
        return self.name or re.sub(r"[^a-z0-9]+", "-", self.env.lower()).strip("-")


def gymnasium_source(name: str, tasks: Sequence[GymTask], *, has_one_instance: bool = False, **more: Any) -> TaskSource:
    """`has_one_instance`: a reset with another seed gives the same instance, e.g. a fixed map. `more`: other parts of the TaskSource, such
    as `licence`. Raises ConfigError for two tasks of one name."""
    by_name = {each.task_name: each for each in tasks}
    if len(by_name) != len(tasks):
        raise ConfigError(f"The source {name!r} has two tasks of one name: {[each.task_name for each in tasks]}. Give them a `name`.")

    def load_tasks(group: str | None = None) -> dict[str, Task]:
        if group is not None:
            raise ConfigError(f"The source {name!r} has no task group {group!r}; it has no groups.")
        return {
            key: Task(source=name, name=key, domain=each.domain, max_steps=each.max_steps, version=_version(each))
            for key, each in by_name.items()
        }

    adapted = {
        key: AdaptedTask(instruction=each.instruction, success_at=each.success_at, make=_maker(each), has_one_instance=has_one_instance)
        for key, each in by_name.items()
    }
    find = ByName(name, adapted)
    return TaskSource(
        name=name,
        kind="own",
        load_tasks=load_tasks,
        open_session=lambda open_page, limits: AdaptedSession(find),
        environment=f"gymnasium {version('gymnasium')}",
        description=lambda task: by_name[task.name].instruction,
        has_oracle=lambda task: by_name[task.name].oracle is not None,
        has_one_instance=has_one_instance,
        **more,
    )


def _version(task: GymTask) -> str:
    """Part of the task's identity: all that decides what is asked, and when it is solved. Raises ConfigError for what is not JSON, of which
    nobody can tell whether it is the same in another process."""
    parts = [dict(task.options), dict(task.actions), task.success_at, task.instruction]
    try:
        text = json.dumps(parts, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"{task.env}: {error}. What is not JSON goes into a function of yours, given as `make`.") from error
    return f"{task.env} {content_id('gymnasium', text)}"


def _maker(task: GymTask) -> Callable[[], Any]:
    async def make() -> GymEnvironment:
        environment = GymEnvironment(task)
        await environment.start()
        return environment

    return make


class GymEnvironment:
    """Satisfies Adapted. Everything that touches the environment runs in its thread."""

    def __init__(self, task: GymTask) -> None:
        self._task = task
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gymnasium")
        self._env: Any = None
        self.named: Mapping[str, Any] = task.actions

    @property
    def version(self) -> str:
        return f"{self._task.env}; gymnasium {version('gymnasium')}"

    async def start(self) -> None:
        try:
            await self._in_thread(self._start)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    def _start(self) -> None:
        make = partial(self._task.make, self._task.env, **self._task.options)
        self._env = make()
        modes = self._env.metadata.get("render_modes", [])
        mode = self._task.render if self._task.render != "auto" else next((mode for mode in MODES if mode in modes), None)
        if mode is not None:
            self._env.close()
            self._env = make(render_mode=mode)
        space = self._env.action_space
        if not self.named and isinstance(space, spaces.Discrete) and space.n <= MAX_NAMED:
            self.named = {str(number): number for number in range(int(space.start), int(space.start + space.n))}

    async def reset(self, seed: int) -> Seen:
        return await self._in_thread(self._reset, seed)

    def _reset(self, seed: int) -> Seen:
        observation, _ = self._env.reset(seed=seed % 2**31)
        return self._seen(observation)

    async def step(self, action: Any) -> Seen:
        return await self._in_thread(self._step, action)

    def _step(self, action: Any) -> Seen:
        observation, reward, is_over, is_cut_off, _ = self._env.step(self._fitting(action))
        return self._seen(observation, reward=float(reward), is_over=bool(is_over), is_cut_off=bool(is_cut_off))

    def _fitting(self, action: Any) -> Any:
        """What the space holds of JSON: numbers and lists become arrays of its type."""
        space = self._env.action_space
        try:
            fitting = np.asarray(action, dtype=space.dtype).reshape(space.shape) if isinstance(space, spaces.Box) else action
            if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
                fitting = np.asarray(action, dtype=space.dtype)
            holds = not isinstance(fitting, bool) and space.contains(fitting)
        except (TypeError, ValueError):
            holds = False
        if not holds:
            raise BadAction(f"{action!r} is no action of {self._task.env}, whose actions are {space}")
        return fitting

    def _seen(self, observation: Any, **more: Any) -> Seen:
        rendered = self._env.render() if self._env.render_mode is not None else None
        if isinstance(rendered, str):
            return Seen(text=_without_colours(rendered), **more)
        picture = rendered if isinstance(rendered, np.ndarray) and rendered.ndim == 3 else None
        return Seen(text=_as_text(observation), picture=picture, **more)

    async def oracle(self) -> Any | None:
        oracle = self._task.oracle
        return None if oracle is None else await self._in_thread(lambda: oracle(self._env.unwrapped))

    async def close(self) -> None:
        """A step that hangs is left behind with its thread: nothing can end it."""
        try:
            if self._env is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._in_thread(self._env.close)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)


def _without_colours(text: str) -> str:
    """A terminal's colours as words: what is highlighted, often where the player stands, becomes `[red:S]`."""
    marked = _COLOURED.sub(lambda found: f"[{COLOURS[int(found['code']) % 10]}:{found['text']}]", text)
    return _ESCAPE.sub("", marked)


def _as_text(observation: Any) -> str:
    """An observation in words where it is small; pictures are shown, not written."""
    if isinstance(observation, str):
        return observation
    numbers = np.asarray(observation) if not isinstance(observation, dict | tuple) else None
    if numbers is not None and numbers.dtype != object and numbers.size <= SMALL:
        return np.array2string(numbers, precision=3, separator=", ")
    return str(observation)[:1000] if isinstance(observation, dict | tuple) else ""
