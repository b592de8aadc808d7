"""AdaptedSession: the Session protocol over an environment that knows neither screens nor elements. Its named actions are buttons below
its picture, so that an agent clicks one or presses a key of that name; an agent with tools calls `act` with the action as JSON, or one of
the environment's own tools. One that takes text gets what an agent types, and the answer that it finishes with.

Rewards are paid at the end: the step that ends the episode pays 1 where the sum of the environment's own rewards reaches the task's
threshold, every other one 0. The environment's own are in `info["reward"]`.
"""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from PIL import Image, ImageDraw

from sandbox import actions
from sandbox.actions import Action, Click, ToolCall
from sandbox.session import Element, Observation, Transition, Verdict, require_open, require_running
from sandbox.tasks.supply import content_split
from sandbox.tasks.task import Task
from sandbox.terminal.output import cut
from warehouse.core.errors import SandboxError, SandboxTimeout, TaskError
from warehouse.core.identity import bytes_id, stable_seed

T = TypeVar("T")
ACT = "act"
"""The tool that takes an action as JSON."""
STRIP_PX, BUTTON_PX = 28, 72
SIZE_PX = (400, 300)
"""Of an environment without a picture."""
TIMEOUT_S = 60.0
MAX_OUTPUT_CHARS = 4000
MAX_DRAWS = 200
"""Starts that are tried for a seed. One in ten belongs to a split that is evaluated on."""


class BadAction(ValueError):
    """The environment has no such action; the message says which it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an environment shows. `picture` is (height, width, 3) uint8, or None; `reward` its own, of this step. Of a start only: `asked`,
    what the instruction goes on with, and `content`, all that makes the instance what it is, as JSON; None: the text and the picture.
    `reason`: why it is not solved, where there is more to say than the rewards; never for the agent."""

    text: str = ""
    picture: Any = None
    asked: str = ""
    content: Any = None
    reward: float = 0.0
    is_over: bool = False
    is_cut_off: bool = False
    reason: str = ""


class Adapted(Protocol):
    """One environment for one task. It may raise anything: an AdaptedSession makes a SandboxError of it, of BadAction a step that did
    nothing."""

    @property
    def version(self) -> str: ...

    @property
    def named(self) -> Mapping[str, Any]:
        """Actions by the words that an agent uses, in the order of their buttons; empty where there are too many to name."""
        ...

    @property
    def takes_text(self) -> bool:
        """Whether a text is an action."""
        ...

    @property
    def tools(self) -> Collection[str]:
        """Names of tools whose calls are actions."""
        ...

    async def reset(self, seed: int) -> Seen: ...

    async def step(self, action: Any) -> Seen:
        """`action` is one of `named`, JSON that an agent wrote, a text, or a ToolCall of one of `tools`. Raises BadAction."""
        ...

    async def oracle(self) -> Any | None:
        """The action that solves it from here, as `step` takes it; None where nobody knows."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Screen:
    """An environment's picture with a button for each named action below it, in rows from the left. Sizes in pixels."""

    picture: Any
    names: tuple[str, ...]

    @property
    def width(self) -> int:
        return SIZE_PX[0] if self.picture is None else int(self.picture.shape[1])

    @property
    def top(self) -> int:
        """Where the buttons begin."""
        return SIZE_PX[1] if self.picture is None else int(self.picture.shape[0])

    @property
    def a_row(self) -> int:
        return max(1, self.width // BUTTON_PX)

    @property
    def height(self) -> int:
        return self.top + STRIP_PX * -(-len(self.names) // self.a_row)

    @property
    def buttons(self) -> tuple[Element, ...]:
        places = [divmod(place, self.a_row) for place in range(len(self.names))]
        return tuple(
            Element(
                role="button",
                text=name,
                x_px=column * BUTTON_PX + BUTTON_PX // 2,
                y_px=self.top + row * STRIP_PX + STRIP_PX // 2,
                width_px=BUTTON_PX - 4,
                height_px=STRIP_PX - 4,
            )
            for name, (row, column) in zip(self.names, places, strict=True)
        )

    def at(self, x: int, y: int) -> str | None:
        """The name of the button at a point."""
        hits = (each for each in self.buttons if abs(x - each.x_px) * 2 <= each.width_px and abs(y - each.y_px) * 2 <= each.height_px)
        return next((each.text for each in hits), None)

    def png(self) -> bytes:
        screen = Image.new("RGB", (self.width, self.height), "white")
        if self.picture is not None:
            screen.paste(Image.fromarray(self.picture), (0, 0))
        draw = ImageDraw.Draw(screen)
        for button in self.buttons:
            left, top = button.x_px - button.width_px // 2, button.y_px - button.height_px // 2
            draw.rectangle((left, top, left + button.width_px, top + button.height_px), outline="black", fill="lightgrey")
            draw.text((left + 4, top + 6), button.text, fill="black")
        data = io.BytesIO()
        screen.save(data, "PNG")
        return data.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedTask:
    """How a task is played. `success_at`: the sum of the environment's rewards from which on it counts as solved; where that is 0 or less,
    only once the environment itself has ended the episode, or doing nothing would be paid. `make` may take long; it is called once for
    each lease. `has_one_instance`: it starts alike for every seed."""

    instruction: str
    success_at: float
    make: Callable[[], Awaitable[Adapted]]
    has_one_instance: bool = False


@dataclass(slots=True, kw_only=True)
class _Episode:
    task: Task
    adapted_task: AdaptedTask
    environment: Adapted
    instruction: str
    started_s: float
    seen: Seen
    num_steps: int = 0
    total: float = 0.0
    is_over: bool = False


class AdaptedSession:
    """Runs instances of adapted tasks one after another. The environment stays from one reset to the next of the same task."""

    def __init__(self, find: Callable[[Task], AdaptedTask], *, screenshots: bool = True) -> None:
        """`find` raises TaskError for a task that is not the source's."""
        self.screenshots = screenshots
        self._find = find
        self._episode: _Episode | None = None
        self._is_closed = False
        self.num_resets = 0

    @property
    def environment(self) -> str:
        return "" if self._episode is None else self._episode.environment.version

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown task, SandboxErrors."""
        require_open(self._is_closed)
        adapted_task = self._find(task)
        self.num_resets += 1
        if self._episode is not None and self._episode.task == task:
            environment = self._episode.environment
        else:
            await self._end()
            environment = await _in_time(adapted_task.make(), f"starting {task.name}")
        try:
            seen = await _drawn(environment, adapted_task, task, seed)
        except BaseException:
            self._episode = None
            await _closed(environment)
            raise
        self._episode = _Episode(
            task=task,
            adapted_task=adapted_task,
            environment=environment,
            instruction=f"{adapted_task.instruction}\n{seen.asked}".strip(),
            started_s=time.monotonic(),
            seen=seen,
            is_over=seen.is_over,
        )
        return self._observe(self._episode)

    async def step(self, action: Action) -> Transition:
        episode = self._running()
        if episode.is_over:
            info: dict[str, Any] = {"ignored": "the episode is over"}
            return Transition(observation=self._observe(episode), reward=0.0, terminated=True, truncated=False, info=info)
        info = await self._act(episode, action)
        episode.num_steps += 1
        terminated = episode.seen.is_over or isinstance(action, actions.Finished | actions.CallUser)
        truncated = not terminated and (episode.seen.is_cut_off or episode.num_steps >= episode.task.max_steps)
        episode.is_over = terminated or truncated
        reward = float((await self.evaluate()).success) if episode.is_over else 0.0
        return Transition(observation=self._observe(episode), reward=reward, terminated=terminated, truncated=truncated, info=info)

    async def _act(self, episode: _Episode, action: Action) -> dict[str, Any]:
        """Carry out an action; returns what to say about it beside the observation."""
        if isinstance(action, actions.InvalidAction):
            return {"invalid": action.reason}
        says_something = isinstance(action, actions.Finished) and action.answer and episode.environment.takes_text
        if isinstance(action, actions.Finished | actions.CallUser) and not says_something:
            return {}
        try:
            wanted = _wanted(action, episode.environment, _screen(episode))
            seen = await _in_time(episode.environment.step(wanted), f"a step of {episode.task.name}")
        except BadAction as error:
            return {"ignored": str(error)}
        total = episode.total + seen.reward
        if not math.isfinite(total):
            raise SandboxError(
                f"The environment of {episode.task.name} paid a reward of {seen.reward} after {episode.total:g}: not a finite sum."
            )
        episode.seen, episode.total = seen, total
        return {"reward": seen.reward}

    async def evaluate(self) -> Verdict:
        episode = self._running()
        threshold, score = episode.adapted_task.success_at, episode.total
        reasons = [f"rewards of {score:g} in {episode.num_steps} steps"]
        if threshold <= 0 and score >= threshold and not episode.seen.is_over:
            score = threshold - 1.0
            reasons.append("the environment has not ended the episode")
        if episode.seen.reason:
            reasons.append(episode.seen.reason)
        return Verdict(origin="verifier", score=score, threshold=threshold, reasons=tuple(reasons))

    async def oracle_action(self) -> Action | None:
        episode = self._running()
        if episode.is_over or (wanted := await _in_time(episode.environment.oracle(), "its oracle")) is None:
            return None
        for button, value in zip(_screen(episode).buttons, episode.environment.named.values(), strict=True):
            if _plain(value) == _plain(wanted):
                return Click(x=button.x_px, y=button.y_px)
        if isinstance(wanted, ToolCall):
            return wanted
        if isinstance(wanted, str) and episode.environment.takes_text:
            return actions.TypeText(text=wanted)
        return ToolCall(name=ACT, arguments={"action": _plain(wanted)})

    def _observe(self, episode: _Episode) -> Observation:
        screen = _screen(episode)
        return Observation(
            instruction=episode.instruction,
            elements=screen.buttons,
            screenshot=screen.png() if self.screenshots else None,
            width_px=screen.width,
            height_px=screen.height,
            time_ms=float(episode.num_steps),  # an environment's time is its steps: the same episode, the same times
            output=cut(episode.seen.text, MAX_OUTPUT_CHARS),
        )

    def _running(self) -> _Episode:
        require_open(self._is_closed)
        return require_running(self._episode)

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await _closed(episode.environment)

    async def close(self) -> None:
        self._is_closed = True
        await self._end()


def _screen(episode: _Episode) -> Screen:
    return Screen(episode.seen.picture, tuple(episode.environment.named))


def _wanted(action: Action, environment: Adapted, screen: Screen) -> Any:
    """The environment's action that an agent means: a name, JSON given to the tool, a text, a call. Raises BadAction."""
    named = environment.named
    match action:
        case ToolCall(name=name) if name in environment.tools:
            return action
        case Click(x=x, y=y):
            said: Any = screen.at(x, y)
        case actions.Hotkey(keys=keys):
            said = "+".join(keys)
        case actions.TypeText(text=text):
            said = text.strip()
        case ToolCall(name=name, arguments=arguments) if name == ACT and "action" in arguments:
            if not isinstance(arguments["action"], str) or arguments["action"] not in named:
                return arguments["action"]
            said = arguments["action"]
        case _:
            said = None
    if said in named:
        return named[said]
    if environment.takes_text and isinstance(action, actions.TypeText | actions.Finished):
        return action.text if isinstance(action, actions.TypeText) else action.answer
    raise BadAction(f"{action.kind} is not an action of this environment: {_possible(environment)}")


def _possible(environment: Adapted) -> str:
    """What an agent may do, in words."""
    ways = [f"click a button or press a key: {', '.join(environment.named)}"] if environment.named else []
    ways += ["type a text"] if environment.takes_text else []
    ways += [f"call a tool: {', '.join(environment.tools)}"] if environment.tools else []
    return "; or ".join(ways) or f"call the tool {ACT} with the argument `action`"


async def _drawn(environment: Adapted, adapted_task: AdaptedTask, task: Task, seed: int) -> Seen:
    """The start of the seed's instance: the first draw whose content is of the seed's split, so that no split shows another's instances.
    Raises TaskError where there is none among MAX_DRAWS."""
    for number in range(MAX_DRAWS):
        seen = await _in_time(environment.reset(stable_seed(task.source, task.name, seed, number)), f"resetting {task.name}")
        if adapted_task.has_one_instance or content_split(task, _content(seen)) is task.split(seed):
            return seen
    raise TaskError(
        f"{task.name} gives no instance for seed {seed}: none of {MAX_DRAWS} starts belongs to its split. Where every reset starts alike, "
        "set has_one_instance."
    )


def _content(seen: Seen) -> Any:
    if seen.content is not None:
        return seen.content
    return [seen.text, None if seen.picture is None else bytes_id("picture", seen.picture.tobytes())]


async def _closed(environment: Adapted) -> None:
    """Close an environment that nobody uses any more; what fails at that is nobody's failure."""
    with suppress(SandboxError):
        await _in_time(environment.close(), "closing")


def _plain(value: Any) -> Any:
    """An action as JSON has it: arrays and numbers of NumPy as lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


async def _in_time(call: Awaitable[T], what: str) -> T:
    """Raises SandboxTimeout, and SandboxError for whatever the environment raises."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise SandboxTimeout(f"The environment took longer than {TIMEOUT_S:g} s for {what}.") from error
    except (BadAction, SandboxError):
        raise
    except Exception as error:
        raise SandboxError(f"The environment failed at {what}: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class ByName:
    """Adapted tasks of one source by name: what an AdaptedSession's `find` asks."""

    source: str
    tasks: dict[str, AdaptedTask] = field(default_factory=dict)

    def __call__(self, task: Task) -> AdaptedTask:
        if task.source != self.source or task.name not in self.tasks:
            raise TaskError(f"Task {task.source}/{task.name} is none of the source {self.source!r}, which has {', '.join(self.tasks)}.")
        return self.tasks[task.name]
