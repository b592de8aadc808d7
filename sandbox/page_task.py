"""PageTask: how the tasks of one source live in a web page. The seam between task sources (sandbox/miniwob) and browser sessions
(sandbox/browser), which know nothing of each other. No browser and no task is named here.

A session is given a literal dict of these, keyed by `Task.source`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sandbox.actions import Action
from sandbox.session import Element, Observation, Verdict
from sandbox.task import Task
from warehouse.errors import SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """What a page says about itself at one moment: the value of `PageTask.state_script`."""

    instruction: str
    elements: tuple[Element, ...]
    reward: float
    done: bool
    info: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth recording, as Transition.info; a policy never sees it."""

    @classmethod
    def from_json(cls, value: Any) -> PageState:
        """From the script's value. Raises SandboxError where it is not the agreed shape: the page or its script is broken."""
        try:
            return cls(
                instruction=str(value["instruction"]),
                elements=tuple(_element(item) for item in value["elements"]),
                reward=float(value["reward"]),
                done=bool(value["done"]),
                info=dict(value.get("info", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SandboxError(
                f"The page's state is not usable ({error!r}): got {str(value)[:200]!r}, expected an object with instruction, elements, "
                "reward and done. Mend the task source's state_script."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """The window a page is seen in, and how its time passes. A page is opened with them and kept while they stay equal."""

    viewport_px: tuple[int, int]
    """Width and height of the window that the page is laid out for."""
    area_px: tuple[int, int]
    """Width and height of the part, from the top left corner, that is observed; screenshots are cropped to it."""
    step_time_ms: float
    """Page time that passes after an action, before it is observed."""
    frame_time_ms: float
    """Page time between two frames, where frames are under control: 1000 / 60 for pages whose motion counts, longer (and cheaper) for
    pages that stand still between actions. Timers fire at their time either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMoment:
    """What an oracle may look at: the last observation, every action so far (oldest first), and the page itself."""

    task: Task
    observation: Observation
    actions: Sequence[Action]
    evaluate: Callable[[str], Awaitable[Any]]
    """Value of a JavaScript expression in the page."""


class PageTask(Protocol):
    """Tasks of one source as web pages. Stateless: one object serves every session of a process."""

    @property
    def root(self) -> Path:
        """Folder that holds every file the pages load; `url` points into it. The browser may read nothing else: where its user
        cannot reach the folder, a readable copy serves instead."""
        ...

    @property
    def ready_script(self) -> str:
        """JavaScript expression: true once a loaded page can be started."""
        ...

    @property
    def state_script(self) -> str:
        """One JavaScript expression with the value {"instruction": str, "elements": [{role, text, states, x, y, width, height}],
        "reward": float, "done": bool, "info": {…} (optional)}; x and y are where a click hits the element, in integer pixels of the
        viewport."""
        ...

    @property
    def environment(self) -> str:
        """Version of the pages and their verifiers, e.g. "miniwob 1.1.0"."""
        ...

    def settings(self, task: Task) -> PageSettings:
        """The window that a task is played in, and how its time passes. Raises TaskError for a task that is not this source's."""
        ...

    def url(self, task: Task) -> str:
        """file:// address of the task's page, below `root`. Raises TaskError for a task that is not this source's."""
        ...

    def start_script(self, task: Task, seed: int) -> str:
        """JavaScript expression that starts an instance on a ready page, on top of whatever ran there before."""
        ...

    def needs_fresh_page(self, task: Task) -> bool:
        """A second start in the same document would not give the same instance: load the page anew before each."""
        ...

    def verdict(self, state: PageState) -> Verdict:
        """The verifier's verdict on a state."""
        ...

    async def hint(self, moment: PageMoment) -> Action | None:
        """What the task's oracle would do now: an action for `Session.step`. None where it has none, or no idea."""
        ...


PageTasks = Mapping[str, PageTask]
"""Sources by `Task.source`."""


def _element(item: Mapping[str, Any]) -> Element:
    return Element(
        role=str(item["role"]),
        text=str(item["text"]),
        states=tuple(str(state) for state in item["states"]),
        x_px=int(item["x"]),
        y_px=int(item["y"]),
        width_px=int(item["width"]),
        height_px=int(item["height"]),
    )
