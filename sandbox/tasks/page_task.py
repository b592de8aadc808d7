"""PageTask: how the tasks of one source live in a web page. The seam between task sources (sandbox/miniwob) and browser sessions
(sandbox/browser), which know nothing of each other. No browser and no task is named here.

A session is given a literal dict of these, keyed by `Task.source`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sandbox.actions import Action
from sandbox.session import Element, Observation, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError


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
                elements=tuple(Element.from_json(item) for item in value["elements"]),
                reward=float(value["reward"]),
                done=bool(value["done"]),
                info=dict(value.get("info", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SandboxError(
                f"The page's state is not usable ({error!r}): got {str(value)[:200]!r}, expected an object with instruction, elements, "
                "reward and done. Fix the task source's state_script."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A folder of static files that a session shows as `https://host/` and `http://host/`, without any network."""

    host: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What a task may do beyond its one page: a browser window of tabs, with navigation, popups, downloads and uploads, in a browser
    context that is made for the episode and thrown away after it. Pages below the task's root may be opened in any case."""

    network: Literal["none", "allowed", "open"] = "none"
    """Beside `sites` and `http://localhost:PORT/`, which is the session's own terminal: nothing, `allowed_hosts`, or every host that is
    not on this machine nor in a private network."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, each with an optional port ("example.org", "example.org:8080"); "*.example.org" is every name below it."""
    named: tuple[str, ...] = ()
    """HOST:PORT of what the task is about, reached wherever it is, on this machine and in a private network, too; nothing else there is."""
    sites: tuple[Site, ...] = ()
    dialogs: Literal["accept", "dismiss", "ask"] = "accept"
    """What answers confirm and prompt: at once, or the agent ("ask"), who sees the dialog as elements and answers by a click on its
    buttons, enter or escape, and by typing into a prompt. An alert is always accepted."""
    settle_limit_s: float = 10.0
    """Wall-clock time that an observation waits at most for navigations and files that the page has asked for."""
    still_frames: bool = False
    """An observation also waits for two equal frames in a row."""
    max_download_mib: float = 64.0
    """A larger download is cancelled."""
    max_downloads_mib: float = 256.0
    """All downloads of an episode together; how many there may be, and at once, is the session's business (downloads.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """The window a page is seen in, how its time passes, and what it may do. A page is opened with them and kept while they stay equal.

    Without `web` the task lives in one page: it may load files below its root, navigation and downloads are refused, popups closed,
    dialogs accepted, and there is no network.
    """

    viewport_px: tuple[int, int]
    """Width and height of the window that the page is laid out for."""
    area_px: tuple[int, int]
    """Width and height of the part, from the top left corner, that is observed; screenshots are cropped to it."""
    step_time_ms: float
    """Page time that passes after an action, before it is observed."""
    frame_time_ms: float
    """Page time between two frames, where frames are under control: 1000 / 60 for pages whose motion counts, longer (and cheaper) for
    pages that stand still between actions. Timers fire at their time either way."""
    action_times_ms: tuple[tuple[str, float], ...] = ()
    """Kinds of action ("click", "type", …) that more or less page time passes after than `step_time_ms`."""
    images: tuple[str, ...] = ()
    """Pictures that the page may come to show, by their paths below the root. They are loaded with the page: one that had to be fetched
    first would be in the screenshot or not by chance."""
    web: WebSettings | None = None
    """A web session instead of one page."""
    real_time: bool = False
    """The page's time is the wall clock's, for pages that need it; nothing is reproducible then."""


Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to a port of the session's terminal. Raises OSError where nothing listens there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a web session shares with the rest of its episode. Given to the session, not to the task: PageSession.surroundings."""

    workspace: Path | None = None
    """The session's folder: files to upload are named relative to it, downloads go into its folder `Downloads`. Without one, downloads
    and uploads are refused."""
    connect: Connect | None = None
    """What `http://localhost:PORT/` in the page reaches. Without it such requests are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStepContext:
    """What an oracle may look at: the last observation, every action so far (oldest first), and the page itself."""

    task: Task
    seed: int
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
        """A second start in the same document would not give the same instance: load the page again before each."""
        ...

    def verdict(self, state: PageState) -> Verdict:
        """The verifier's verdict on a state."""
        ...

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        """What the task's oracle would do now: an action for `Session.step`. None where it has none, or no idea."""
        ...


@dataclass(slots=True, kw_only=True)
class SentRequest:
    """A request that a window's pages made, workers' aside. `kind` as the browser calls it: document, xhr, fetch, script, …; `status` is
    None until it is answered. `body` as text, None where it has none or more than MAX_BODY_CHARS."""

    method: str
    url: str
    kind: str
    body: str | None = None
    status: int | None = None


def first_status(sent: Sequence[SentRequest]) -> int | None:
    """What the page that was asked for was answered with, after redirects; None where it was not answered."""
    documents = (each.status for each in sent if each.kind == "document")
    return next((status for status in documents if status is None or not 300 <= status < 400), None)


MAX_SENT = 5_000
"""Requests of an episode that are kept, and one more."""
MAX_BODY_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebStepContext:
    """What a web task may look at to say how its episode stands."""

    task: Task
    seed: int
    actions: Sequence[Action]
    """Every action so far, oldest first; the one whose outcome is asked about is the last."""
    url: str
    """Address of the active tab."""
    evaluate: Callable[[str], Awaitable[Any]]
    """Value of a JavaScript expression in the active tab's main frame."""
    inspect: Callable[..., Awaitable[Any]]
    """(function, *arguments) → value of a JavaScript function there, called with JSON where the page's scripts cannot meddle. Raises
    SandboxError where it throws."""
    sent: Sequence[SentRequest]
    """What the window's pages have asked for, oldest first."""
    workspace: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How an episode stands."""

    instruction: str
    reward: float
    done: bool


@runtime_checkable
class WebTask(Protocol):
    """What a PageTask may have besides, for tasks with PageSettings.web: its state does not lie in one page. Elements are then read by
    the session from whatever the active tab shows. `url` may be any address that the settings allow; `state_script` is not used."""

    async def progress(self, context: WebStepContext) -> Progress:
        """How the episode stands now. Whatever page is shown, so a script that fails in it is not an error."""
        ...


PageTasks = Mapping[str, PageTask]
"""Sources by `Task.source`."""
