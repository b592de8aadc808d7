"""Dialogs of a web session: answered at once by policy, or kept open for the agent, who sees one drawn over the last screenshot and listed
as elements, and answers it by a click, a key or text. How one is opened and closed in the browser is tabs.py.
"""

from __future__ import annotations

import asyncio
import io
import textwrap
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from PIL import Image, ImageDraw, ImageFont

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.cdp.connection import Params
from sandbox.session import Element
from warehouse.storage.screenshots import pictures

LINE_PX, MARGIN_PX, BUTTON_PX, WIDTH_PX, CHAR_PX = 16, 12, (64, 22), 300, 6
MAX_LINES = 8
Box = tuple[int, int, int, int]
T = TypeVar("T")


class Answerable(Protocol):
    """A tab with a dialog."""

    def answer_dialog(self, *, accept: bool, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a dialog is answered."""

    accept: bool
    text: str


@dataclass(slots=True, kw_only=True)
class Dialog:
    """One that is open. `text` is what a prompt's field holds."""

    kind: str
    message: str
    text: str
    area_px: tuple[int, int]

    def take(self, action: Action) -> Reply | str | None:
        """What an action means to it: the reply, None for a change of its field, or why it means nothing."""
        match action:
            case actions.Hotkey(keys=(key,)) if key.lower() in {"enter", "return"}:
                return Reply(accept=True, text=self.text)
            case actions.Hotkey(keys=(key,)) if key.lower() in {"escape", "esc"}:
                return Reply(accept=False, text=self.text)
            case actions.TypeText(text=text) if self.kind == "prompt":
                self.text = text.rstrip("\n")
                return Reply(accept=True, text=self.text) if text.endswith("\n") else None
            case actions.Click(x=x, y=y):
                boxes = self._boxes()
                hit = next((name for name in ("OK", "Cancel") if _holds(boxes[name], x, y)), None)
                if hit is not None:
                    return Reply(accept=hit == "OK", text=self.text)
                if "field" in boxes and _holds(boxes["field"], x, y):
                    return None
        return f"a {self.kind} dialog is open: answer it first, by a click on OK or Cancel, enter, escape, or text for a prompt"

    def elements(self) -> tuple[Element, ...]:
        boxes = self._boxes()
        listed = [_element("text", self.message, boxes["message"])]
        if "field" in boxes:
            listed.append(_element("input", self.text, boxes["field"], "focused"))
        return (*listed, _element("button", "OK", boxes["OK"]), _element("button", "Cancel", boxes["Cancel"]))

    def draw(self, png: bytes | None) -> bytes:
        """The last screenshot, or a white one, with the dialog over it."""
        image = pictures.decoded(png) if png else Image.new("RGB", self.area_px, "white")
        pen, font = ImageDraw.Draw(image), ImageFont.load_default()
        boxes = self._boxes()
        pen.rectangle(boxes["frame"], fill="white", outline="black")
        for number, line in enumerate(self._lines()):
            pen.text((boxes["message"][0], boxes["message"][1] + number * LINE_PX), line, fill="black", font=font)
        if "field" in boxes:
            pen.rectangle(boxes["field"], fill="white", outline="grey")
            pen.text((boxes["field"][0] + 4, boxes["field"][1] + 4), self.text, fill="black", font=font)
        for name in ("OK", "Cancel"):
            pen.rectangle(boxes[name], fill="#e0e0e0", outline="black")
            pen.text((boxes[name][0] + 8, boxes[name][1] + 5), name, fill="black", font=font)
        out = io.BytesIO()
        image.save(out, format="PNG", compress_level=1)
        return out.getvalue()

    def _lines(self) -> list[str]:
        chars = max((self._width() - 2 * MARGIN_PX) // CHAR_PX, 8)
        wrapped = [line for part in self.message.splitlines() for line in textwrap.wrap(part, chars) or [""]]
        return wrapped[:MAX_LINES]

    def _width(self) -> int:
        return min(WIDTH_PX, self.area_px[0] - 8)

    def _boxes(self) -> dict[str, Box]:
        """(left, top, right, bottom) of its parts."""
        width, height = self._width(), len(self._lines()) * LINE_PX + BUTTON_PX[1] + 3 * MARGIN_PX
        if self.kind == "prompt":
            height += BUTTON_PX[1] + MARGIN_PX
        left, top = (self.area_px[0] - width) // 2, max((self.area_px[1] - height) // 3, 0)
        right, bottom = left + width, top + height
        y = bottom - MARGIN_PX - BUTTON_PX[1]
        boxes = {
            "frame": (left, top, right, bottom),
            "message": (left + MARGIN_PX, top + MARGIN_PX, right - MARGIN_PX, top + MARGIN_PX + max(len(self._lines()), 1) * LINE_PX),
            "OK": (right - 2 * (MARGIN_PX + BUTTON_PX[0]), y, right - 2 * MARGIN_PX - BUTTON_PX[0], y + BUTTON_PX[1]),
            "Cancel": (right - MARGIN_PX - BUTTON_PX[0], y, right - MARGIN_PX, y + BUTTON_PX[1]),
        }
        if self.kind == "prompt":
            boxes["field"] = (left + MARGIN_PX, y - MARGIN_PX - BUTTON_PX[1], right - MARGIN_PX, y - MARGIN_PX)
        return boxes


class Dialogs:
    """The dialogs of one window, of which at most one waits. While it does its page stands still, and so does what we were doing in the
    page: that goes on when the dialog is answered."""

    def __init__(self, policy: Literal["accept", "dismiss", "ask"], area_px: tuple[int, int]) -> None:
        self._policy, self._area_px = policy, area_px
        self._tab: Answerable | None = None
        self._has_opened = asyncio.Event()
        self._suspended: asyncio.Task[Any] | None = None
        self.current: Dialog | None = None

    def opened(self, tab: Answerable, event: Params, *, is_awaited: bool) -> None:
        """Answer it, unless it is the agent's to answer; never keep one open while the whole browser waits for the page."""
        kind, text = str(event["type"]), str(event.get("defaultPrompt", ""))
        if self._policy != "ask" or kind == "alert" or is_awaited or self.current is not None:
            tab.answer_dialog(accept=kind == "alert" or self._policy != "dismiss", text=text)
            return
        self._tab = tab
        self.current = Dialog(kind=kind, message=str(event["message"]), text=text, area_px=self._area_px)
        self._has_opened.set()

    async def unless_one_opens(self, work: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Do it; where a dialog opens meanwhile, leave it to go on once that is answered."""
        return await self._follow(asyncio.ensure_future(work), otherwise)

    async def _follow(self, task: asyncio.Task[T], otherwise: T) -> T:
        opened = asyncio.ensure_future(self._has_opened.wait())
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
            if self.current is None or task.done():
                return await task
            self._suspended = task
            return otherwise
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            opened.cancel()

    async def take(self, action: Action) -> dict[str, Any]:
        """What an action means to the open dialog, for Transition.info."""
        reply = self.current.take(action) if self.current is not None else None
        if isinstance(reply, str):
            return {"ignored": reply}
        if reply is None or self._tab is None:
            return {}
        self._tab.answer_dialog(accept=reply.accept, text=reply.text)
        self._forget()
        task, self._suspended = self._suspended, None
        if task is not None:
            await self._follow(task, None)
        return {}

    def tab_closed(self, tab: Answerable) -> None:
        if tab is self._tab:
            self._forget()

    def _forget(self) -> None:
        self._tab = self.current = None
        self._has_opened.clear()

    def close(self) -> None:
        if self._suspended is not None:
            self._suspended.cancel()


def _holds(box: Box, x: int, y: int) -> bool:
    return box[0] <= x < box[2] and box[1] <= y < box[3]


def _element(role: str, text: str, box: Box, *states: str) -> Element:
    left, top, right, bottom = box
    return Element(
        role=role,
        text=text,
        states=states,
        x_px=(left + right) // 2,
        y_px=(top + bottom) // 2,
        width_px=right - left,
        height_px=bottom - top,
    )
