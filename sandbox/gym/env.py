"""FlywheelEnv: any task of the sandbox as a synchronous Gymnasium environment. Ids are registered by `register_envs`, or by importing
flywheel.sandbox.gym.ids: `gymnasium.make("flywheel.sandbox.gym.ids:flywheel/miniwob-click-button-v0")`.

An environment has an event loop in a thread of its own, and in it one session: of a pool of its own, or of any pool that it is handed, a
remote one too. Everything the policy may see is in the observation; what the session said besides is in `info`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

from sandbox import actions
from sandbox.actions import Action
from sandbox.loop_thread import LoopThread
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.session import Element, Observation, Session
from sandbox.tasks.sources import all_tasks, find_task, page_tasks
from sandbox.tasks.task import Split, Task, drawn_seed
from warehouse.core.errors import SandboxError
from warehouse.storage.screenshots import pictures

NAMESPACE, VERSION = "flywheel", 0
MAX_TEXT, MAX_TYPED = 4096, 256
MAX_ELEMENTS = 128
REPLACEMENT = "\ufffd"
CHARACTERS = "".join(map(chr, (10, *range(32, 127), *range(160, 0x250), 0xFFFD)))
"""What the spaces of texts hold: ASCII, Latin, newlines; anything else is the replacement character (`seen` has the text as it was)."""

KINDS = (
    "click",
    "double_click",
    "right_click",
    "move_to",
    "drag",
    "scroll",
    "type",
    "key",
    "wait",
    "long_press",
    "navigate_back",
    "tool",
    "finished",
)
"""What an action's `kind` selects; which other parts count is said in `to_action`."""
KEYS: tuple[tuple[str, ...], ...] = (
    ("enter",),
    ("tab",),
    ("shift", "tab"),
    ("esc",),
    ("space",),
    ("backspace",),
    ("delete",),
    ("up",),
    ("down",),
    ("left",),
    ("right",),
    ("home",),
    ("end",),
    ("pageup",),
    ("pagedown",),
    ("ctrl", "a"),
    ("ctrl", "c"),
    ("ctrl", "v"),
    ("ctrl", "x"),
    ("ctrl", "z"),
)
DIRECTIONS: tuple[actions.Direction, ...] = ("up", "down", "left", "right")


class FlywheelEnv(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """One task; a reset starts an instance of it.

    Observation: `screenshot` (height, width, 3) uint8, smaller screens padded and larger ones cut; `instruction`; `elements`, one line
    each: `[3] button "Ok" focused`; `boxes` (128, 4) int32: x, y, width, height of each element in pixels, x and y where a click hits it,
    -1 where there is none; `output`, what the last tool call printed, its end where it is long.

    Action: see `to_action`. The reward comes with the end of the episode. `reset(seed=s)` gives the same instance for the same s;
    `options={"instance": n}` gives the instance of seed n. Instances are of one split, by default `train`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(
        self,
        task: Task | str,
        *,
        render_mode: str | None = None,
        split: Split | str | None = Split.TRAIN,
        screen_px: tuple[int, int] | None = None,
        make_pool: Callable[[], AbstractAsyncContextManager[SessionPoolProtocol]] | None = None,
    ) -> None:
        """`task`: a task, or `source/name`. `screen_px`: width and height of the observed screen, by default that of the task's pages, else
        of a first instance. `split` None: instances of any split. `make_pool`: default a pool of one local session.

        Raises TaskError for an unknown task, SandboxErrors where no session can be had.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r} is not possible; None and {self.metadata['render_modes']} are.")
        self.render_mode = render_mode
        self.task = task if isinstance(task, Task) else find_task(task)
        self._split = None if split is None else Split(split)
        self._make_pool = make_pool or _local_pool
        self._thread: LoopThread | None = None
        self._opened = AsyncExitStack()
        """The pool and the lease of the session."""
        self._session: Session | None = None
        self._seen: Observation | None = None
        try:
            self._screen_px = screen_px or self._usual_screen_px()
        except BaseException:
            self.close()  # nobody else can: there will be no environment
            raise
        width, height = self._screen_px
        self.observation_space = spaces.Dict(
            {
                "screenshot": spaces.Box(0, 255, (height, width, 3), np.uint8),
                "instruction": _text(MAX_TEXT),
                "elements": _text(MAX_TEXT),
                "boxes": spaces.Box(-100_000, 100_000, (MAX_ELEMENTS, 4), np.int32),
                "output": _text(MAX_TEXT),
            }
        )
        self.action_space = spaces.Dict(
            {
                "kind": spaces.Discrete(len(KINDS)),
                "point": spaces.MultiDiscrete([width, height]),
                "to_point": spaces.MultiDiscrete([width, height]),
                "direction": spaces.Discrete(len(DIRECTIONS)),
                "key": spaces.Discrete(len(KEYS)),
                "text": _text(MAX_TYPED),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        instance = self._instance_seed((options or {}).get("instance"))
        if self._session is None:
            self._session = self._open()
        try:
            self._seen = self._run(self._session.reset(self.task, instance))
        except SandboxError:
            self._close_session()
            raise
        return self._observation(self._seen), {"instance": instance}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Raises a SandboxError where the infrastructure failed: the next reset then has a new session."""
        if self._session is None or self._seen is None:
            raise gymnasium.error.ResetNeeded("Call reset before step, also after an error.")
        chosen = to_action(action)
        try:
            transition = self._run(self._session.step(chosen))
        except SandboxError:
            self._close_session()
            raise
        self._seen = transition.observation
        info = {**transition.info, "action": chosen}
        return self._observation(self._seen), float(transition.reward), transition.terminated, transition.truncated, info

    @property
    def seen(self) -> Observation | None:
        """The last observation as the session gave it. Not in `info`, which is the same for the same seed and actions: real time is not."""
        return self._seen

    def oracle_action(self) -> dict[str, Any] | None:
        """What the task's oracle would do now, as an action of this space; None where it has no idea or the space cannot say it."""
        if self._session is None:
            raise gymnasium.error.ResetNeeded("Call reset before oracle_action.")
        action = self._run(self._session.oracle_action())
        return None if action is None else from_action(action)

    def render(self) -> Any:
        if self.render_mode is None or self._seen is None:
            return None
        return self._pixels(self._seen)

    def close(self) -> None:
        """May be called twice."""
        if self._thread is not None:
            try:
                self._close_session()
            finally:
                self._thread.close()
                self._thread = None

    def _usual_screen_px(self) -> tuple[int, int]:
        pages = page_tasks().get(self.task.source)
        if pages is not None:
            return pages.settings(self.task).area_px
        self._session = self._open()
        first = self._run(self._session.reset(self.task, 0))
        return first.width_px, first.height_px

    def _instance_seed(self, wanted: Any) -> int:
        return int(wanted) if wanted is not None else drawn_seed(self.task, self._split, lambda below: int(self.np_random.integers(below)))

    def _open(self) -> Session:
        """A session of a pool of its own; without a session there is no pool either."""
        try:
            pool = self._run(self._opened.enter_async_context(self._make_pool()))
            session: Session = self._run(self._opened.enter_async_context(pool.lease(self.task)))
        except BaseException:
            self._close_session()
            raise
        return session

    def _close_session(self) -> None:
        self._session, self._seen = None, None
        self._run(self._opened.aclose())

    def _run(self, work: Any) -> Any:
        if self._thread is None:
            self._thread = LoopThread("flywheel environment")
        return self._thread.run(work)

    def _observation(self, seen: Observation) -> dict[str, Any]:
        boxes = np.full((MAX_ELEMENTS, 4), -1, np.int32)
        for index, element in enumerate(seen.elements[:MAX_ELEMENTS]):
            boxes[index] = (element.x_px, element.y_px, element.width_px, element.height_px)
        lines = "\n".join(_line(index, element) for index, element in enumerate(seen.elements, start=1))
        return {
            "screenshot": self._pixels(seen),
            "instruction": _fitting(seen.instruction, MAX_TEXT),
            "elements": _fitting(lines, MAX_TEXT),
            "boxes": boxes,
            "output": _fitting(seen.output[-MAX_TEXT:], MAX_TEXT),
        }

    def _pixels(self, seen: Observation) -> np.ndarray[Any, np.dtype[np.uint8]]:
        width, height = self._screen_px
        pixels = np.zeros((height, width, 3), np.uint8)
        if seen.screenshot is not None:
            screen = np.asarray(pictures.decoded(seen.screenshot))[:height, :width]
            pixels[: screen.shape[0], : screen.shape[1]] = screen
        return pixels


def to_action(action: dict[str, Any]) -> Action:
    """The action that an element of the action space stands for. `kind` indexes KINDS; what else counts:

    click, double_click, right_click, move_to, long_press: `point`; drag: `point` to `to_point`; scroll: `point` and `direction` (of
    DIRECTIONS); type: `text`; key: `key` (of KEYS); tool: `text` as a shell command; finished: `text` as the answer; wait (1 s) and
    navigate_back: nothing. Raises ValueError for an unknown kind.
    """
    kind = KINDS[int(action["kind"])]
    x, y = (int(part) for part in action["point"])
    text = str(action["text"])
    match kind:
        case "click" | "double_click" | "right_click":
            button: Any = "right" if kind == "right_click" else "left"
            return actions.Click(x=x, y=y, button=button, count=2 if kind == "double_click" else 1)
        case "move_to":
            return actions.MoveTo(x=x, y=y)
        case "long_press":
            return actions.LongPress(x=x, y=y)
        case "drag":
            to_x, to_y = (int(part) for part in action["to_point"])
            return actions.Drag(x=x, y=y, to_x=to_x, to_y=to_y)
        case "scroll":
            return actions.Scroll(direction=DIRECTIONS[int(action["direction"])], x=x, y=y)
        case "type":
            return actions.TypeText(text=text)
        case "key":
            return actions.Hotkey(keys=KEYS[int(action["key"])])
        case "tool":
            return actions.ToolCall(name="execute_bash", arguments={"command": text})
        case "wait":
            return actions.Wait(seconds=1.0)
        case "navigate_back":
            return actions.NavigateBack()
        case _:
            return actions.Finished(answer=text)


def from_action(action: Action) -> dict[str, Any] | None:
    """The element of the action space that stands for an action; None where there is none."""
    parts: dict[str, Any]
    match action:
        case actions.Click(button="left", count=1 | 2 as count):
            parts = {"kind": "double_click" if count == 2 else "click", "point": (action.x, action.y)}
        case actions.Click(button="right", count=1):
            parts = {"kind": "right_click", "point": (action.x, action.y)}
        case actions.MoveTo(x=x, y=y) | actions.LongPress(x=x, y=y):
            parts = {"kind": action.kind, "point": (x, y)}
        case actions.Drag():
            parts = {"kind": "drag", "point": (action.x, action.y), "to_point": (action.to_x, action.to_y)}
        case actions.Scroll(direction=direction, x=int(x), y=int(y)):
            parts = {"kind": "scroll", "point": (x, y), "direction": np.int64(DIRECTIONS.index(direction))}
        case actions.TypeText(text=text) if _fitting(text, MAX_TYPED) == text:
            parts = {"kind": "type", "text": text}
        case actions.Hotkey(keys=keys) if keys in KEYS:
            parts = {"kind": "key", "key": np.int64(KEYS.index(keys))}
        case actions.ToolCall(name="execute_bash", arguments={"command": str(command)}) if _fitting(command, MAX_TYPED) == command:
            parts = {"kind": "tool", "text": command}
        case actions.Finished(answer=answer) if _fitting(answer, MAX_TYPED) == answer:
            parts = {"kind": "finished", "text": answer}
        case actions.Wait() | actions.NavigateBack():
            parts = {"kind": action.kind}
        case _:
            return None
    nothing = {"point": (0, 0), "to_point": (0, 0), "direction": np.int64(0), "key": np.int64(0), "text": ""}
    whole = {**nothing, **parts, "kind": np.int64(KINDS.index(parts["kind"]))}
    return {**whole, "point": np.array(whole["point"]), "to_point": np.array(whole["to_point"])}


def env_id(task: Task) -> str:
    return f"{NAMESPACE}/{task.source}-{task.name}-v{VERSION}"


def register_envs() -> None:
    """Register every task of every source with Gymnasium; what is registered already stays."""
    for task in all_tasks():
        if env_id(task) not in registry:
            # Truncation is the session's: it counts what it was asked to do, not what a wrapper saw.
            kwargs = {"task": f"{task.source}/{task.name}", "split": Split.EVAL.value if task.held_out else Split.TRAIN.value}
            register(id=env_id(task), entry_point="sandbox.gym.env:FlywheelEnv", kwargs=kwargs)


def _local_pool() -> AbstractAsyncContextManager[SessionPoolProtocol]:
    from sandbox.pool.pool import SessionPool

    return SessionPool(size=1)


def _text(max_length: int) -> spaces.Text:
    return spaces.Text(max_length=max_length, min_length=0, charset=CHARACTERS)


_ALLOWED = frozenset(CHARACTERS)


def _fitting(text: str, max_length: int) -> str:
    return "".join(character if character in _ALLOWED else REPLACEMENT for character in text[:max_length])


def _line(index: int, element: Element) -> str:
    return f'[{index}] {element.role} "{element.text}" {" ".join(element.states)}'.rstrip()
