"""Gymnasium environments as a task source:

    SOURCE = gymnasium_source("lake", [GymTask(env="FrozenLake-v1", instruction="Walk to the goal.", success_at=1.0,
                                               actions={"left": 0, "down": 1, "right": 2, "up": 3})])

An environment renders as text (`ansi`) where it can, else as a picture (`rgb_array`); its observation goes along as text where it has no
text of its own and is small. Environments run in a thread of their own, one for each session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from sandbox.adapters.adapted_session import BadAction, Seen
from sandbox.adapters.adapted_source import Playable, adapted_source, name_of, version_of
from sandbox.tasks.task_source import TaskSource

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


def gymnasium_source(name: str, tasks: Sequence[GymTask], *, has_one_instance: bool = False, **more: Any) -> TaskSource:
    """`has_one_instance`: a reset with another seed gives the same instance, e.g. a fixed map. `more`: other parts of the TaskSource, such
    as `licence`. Raises ConfigError for two tasks of one name."""
    playable = [_playable(each) for each in tasks]
    return adapted_source(name, playable, environment=f"gymnasium {version('gymnasium')}", has_one_instance=has_one_instance, **more)


def _playable(task: GymTask) -> Playable:
    return Playable(
        name=task.name or name_of(task.env),
        instruction=task.instruction,
        success_at=task.success_at,
        version=version_of(task.env, dict(task.options), dict(task.actions), task.success_at, task.instruction),
        make=_maker(task),
        domain=task.domain,
        max_steps=task.max_steps,
        has_oracle=task.oracle is not None,
    )


def _maker(task: GymTask) -> Callable[[], Any]:
    async def make() -> GymEnvironment:
        environment = GymEnvironment(task)
        await environment.start()
        return environment

    return make


class GymEnvironment:
    """Satisfies Adapted. Everything that touches the environment runs in its thread."""

    takes_text = False
    tools: Collection[str] = ()

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
            raise BadAction(f"{action!r} is not an action of {self._task.env}, whose actions are {space}")
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
