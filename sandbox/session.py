"""The Session protocol and the values that cross it: Element, Observation, Transition, Verdict. Implementations live beside it.

A session is one live environment that runs one task instance at a time. What the policy does wrong comes back as a Transition or
a Verdict; what the infrastructure does wrong is a SandboxError (warehouse/core/errors.py), and the caller retries the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from sandbox.actions import Action
from sandbox.tasks.reserved import screen_content
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError
from warehouse.core.identity import bytes_id

T = TypeVar("T")
FileKind = Literal["file", "folder"]
VerdictOrigin = Literal["verifier", "judge", "orm", "human", "scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A visible thing on the screen. `role` is one word (button, link, text, input, checkbox, …); the point is where a click hits it."""

    role: str
    text: str
    states: tuple[str, ...] = ()
    x_px: int
    y_px: int
    width_px: int
    height_px: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """From what a page's script or a desktop reports: role, text, states, x, y, width, height, in pixels. Raises KeyError, TypeError or
        ValueError for anything else."""
        return cls(
            role=str(value["role"]),
            text=str(value["text"]),
            states=tuple(str(state) for state in value["states"]),
            x_px=round(value["x"]),
            y_px=round(value["y"]),
            width_px=round(value["width"]),
            height_px=round(value["height"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the agent sees before one step. `screenshot` is PNG bytes, or None where the session was asked not to take any."""

    instruction: str
    elements: tuple[Element, ...]
    screenshot: bytes | None
    width_px: int
    height_px: int
    time_ms: float
    url: str = ""
    output: str = ""
    """What the last tool call printed (terminal, file editor, search …), cut to the session's limit."""

    @property
    def screenshot_id(self) -> str | None:
        return None if self.screenshot is None else bytes_id("screen", self.screenshot)


def first_content(observation: Observation) -> str:
    """Id of what an episode's first observation says (reserved.py)."""
    elements = ((element.role, element.text, element.states) for element in observation.elements)
    return screen_content(observation.instruction, elements, observation.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What a step led to. `terminated`: the environment ended the episode; `truncated`: a limit of the session cut it off. A step after
    the end changes nothing and is `terminated`, whatever the end was."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """V(s): did the episode succeed, who says so, and on what ground. `success` is `score >= threshold`."""

    origin: VerdictOrigin
    score: float
    threshold: float
    reasons: tuple[str, ...] = ()
    points: float | None = None
    """The score in the environment's own points, where it counts any (games)."""

    @property
    def success(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file or folder of a session's workspace; `path` is below the workspace."""

    path: str
    kind: FileKind
    num_bytes: int


@runtime_checkable
class Session(Protocol):
    """One live environment. All methods may raise a SandboxError; none raises for what a policy did."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start an instance of a task. The same task and seed give the same observation, to the pixel."""
        ...

    async def step(self, action: Action) -> Transition:
        """Carry out one action and observe. An InvalidAction changes nothing but the page's clock."""
        ...

    async def evaluate(self) -> Verdict:
        """The verifier's verdict on the state as it is now."""
        ...

    async def oracle_action(self) -> Action | None:
        """What the task's own oracle would do in the state as it is now; None where it has none or the state is beyond repair. For
        demonstrations, annotation and proofs that a task can be solved; a policy never sees it."""
        ...

    async def close(self) -> None:
        """Release the environment; may be called twice."""
        ...


@runtime_checkable
class HasFiles(Protocol):
    """A session whose workspace people may look at beside the agent: looking changes nothing and counts as no step."""

    async def files(self) -> tuple[FileEntry, ...] | None:
        """What lies in the workspace, in order, as far as it is shown; None where the session has none."""
        ...

    async def read_file(self, path: str) -> str | None:
        """The text of a file; None where there is no such text file, or it is too long to be shown."""
        ...


@runtime_checkable
class Outside(Protocol):
    """A session that a program beside us may drive by another way than `step`."""

    async def devtools(self) -> str | None:
        """The address of its browser for the DevTools protocol, from a reset to the next; None where the pool's browsers have none."""
        ...

    async def look(self) -> Transition:
        """What is so now: no action and no step. Once the environment has ended the episode nothing changes any more."""
        ...


def require_open(is_closed: bool) -> None:
    """Raises SandboxError for a session that was closed."""
    if is_closed:
        raise SandboxError("The session is closed; lease another one.")


def require_running(episode: T | None) -> T:
    """The episode of a session. Raises SandboxError where none runs."""
    if episode is None:
        raise SandboxError("No task runs in this session: call reset(task, seed) first, and again after an error.")
    return episode
