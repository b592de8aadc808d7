"""What programs say of themselves, by a helper process under the Python of the distribution (inside/reader.py): focus as it changes, and
the elements that show. Where the helper cannot run nothing is known, and the recorder says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from annotation.recordings.bundle import Box, ScreenElement

READER = Path(__file__).with_name("inside") / "reader.py"
ROOT = Path(__file__).parents[3]
PYTHON = "/usr/bin/python3"
START_LIMIT_S, CALL_LIMIT_S = 15.0, 6.0
FOCUS_KEPT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """What had the keyboard from `time_s` on. `tail` is what stands before the cursor of a terminal."""

    time_s: float
    pid: int = 0
    role: str = ""
    name: str = ""
    tail: str = ""
    is_password: bool = False
    box: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenElement:
    """An element as its program reports it, with its text as it is: not yet private."""

    node: int
    pid: int
    name: str
    is_password: bool
    element: ScreenElement


class Accessibility:
    """The helper process. `is_available` turns false when it goes away; then calls give nothing."""

    def __init__(self) -> None:
        self.is_available = False
        self._focus: deque[Focus] = deque(maxlen=FOCUS_KEPT)
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._writing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.reason = "there is no accessibility bus on this system"

    def start(self) -> None:
        """Start the helper, or learn the `reason` why it cannot be."""
        if shutil.which(PYTHON) is None:
            self.reason = f"there is no {PYTHON}"
            return
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [PYTHON, "-I", str(READER), str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(ready,), name="accessibility", daemon=True)
        self._thread.start()
        ready.wait(START_LIMIT_S)
        if not self.is_available:
            self.reason = "its reader did not start: python3-gi, gir1.2-atspi-2.0 and at-spi2-core are needed"

    def stop(self) -> None:
        self.is_available = False
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._thread.join(5.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def focus_between(self, start_s: float, end_s: float) -> list[Focus]:
        """What had the keyboard in a stretch of time: what had it when that began, and every change in it."""
        known = list(self._focus)
        before = [focus for focus in known if focus.time_s <= start_s]
        return [*before[-1:], *(focus for focus in known if start_s < focus.time_s <= end_s)]

    def ask_focus(self) -> None:
        """Have what has the keyboard read again; focus_between knows the answer once it has come."""
        self._send("focus", then=self._receive_focus)

    def elements(self) -> tuple[list[SeenElement], bool]:
        """What shows, and whether that is all. Empty where nothing is known."""
        found = self._call("elements")
        if found is None:
            return [], False
        seen = []
        for one in found["elements"]:
            x, y, width, height = one["box"]
            element = ScreenElement(
                role=one["role"], text=one["text"][:2000], states=tuple(one["states"]), box=Box(x=x, y=y, width=width, height=height)
            )
            seen.append(SeenElement(node=one["node"], pid=one["pid"], name=one["name"], is_password=one["is_password"], element=element))
        return seen, bool(found["is_whole"])

    def extents(self, node: int, start: int, end: int) -> list[Box]:
        """Where a stretch of an element's text stands, one box a line; empty where its program does not say."""
        rows = self._call("extents", node=node, start=start, end=end) or []
        return [Box(x=x, y=y, width=width, height=height) for x, y, width, height in rows]

    def _call(self, method: str, **arguments: Any) -> Any:
        answer = self._send(method, **arguments)
        if answer is None:
            return None
        with suppress(Exception):  # it hangs, or went away: then nothing is known
            return answer.result(CALL_LIMIT_S)
        return None

    def _send(self, method: str, *, then: Any = None, **arguments: Any) -> Future[Any] | None:
        process = self._process
        if not self.is_available or process is None or process.stdin is None:
            return None
        number, answer = next(self._numbers), Future[Any]()
        if then is not None:
            answer.add_done_callback(then)
        self._waiting[number] = answer
        try:
            with self._writing:
                process.stdin.write(json.dumps({"id": number, "method": method, **arguments}).encode() + b"\n")
                process.stdin.flush()
        except OSError:
            self.is_available = False
            return None
        return answer

    def _listen(self, ready: threading.Event) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        for line in process.stdout:
            with suppress(ValueError, KeyError, TypeError):
                self._take(json.loads(line), ready)
        self.is_available = False
        ready.set()
        for answer in list(self._waiting.values()):
            answer.cancel()

    def _take(self, message: dict[str, Any], ready: threading.Event) -> None:
        if "ready" in message:
            self.is_available = True
            ready.set()
        elif "focus" in message:
            self._focus.append(_focus(message["focus"], message["time_s"]))
        else:
            answer = self._waiting.pop(message["id"])
            if "error" in message:
                answer.set_result(None)
            else:
                answer.set_result(message["result"])

    def _receive_focus(self, answer: Future[Any]) -> None:
        if not answer.cancelled() and answer.result() is not None:
            self._focus.append(_focus(answer.result(), time.monotonic()))


def _focus(message: dict[str, Any] | None, time_s: float) -> Focus:
    if message is None:
        return Focus(time_s=time_s)
    box = message["box"]
    return Focus(
        time_s=time_s,
        pid=message["pid"],
        role=message["role"],
        name=message["name"],
        tail=message["tail"],
        is_password=message["is_password"],
        box=Box(x=box[0], y=box[1], width=box[2], height=box[3]) if box else None,
    )
