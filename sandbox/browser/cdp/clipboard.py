"""Clipboard: what a session has copied, and the moment in which it is pasted. A browser has one clipboard for all its pages, so each
session keeps its own text and lends it to the browser for the length of one paste, while no other session pastes.

guard.js reports what is copied. Plain text only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from sandbox.browser.cdp.connection import Connection, OnTarget, Params
from sandbox.browser.input import KeyStroke, Phase

MAX_TEXT_CHARS = 1_000_000

_SET = (
    "(() => {{ document.oncopy = (event) => {{ event.clipboardData.setData('text/plain', {text}); event.preventDefault(); }};"
    " return document.execCommand('copy'); }})()"
)
_PASTE_KEYS = {"v", "insert"}


class ClipboardWriter:
    """Writes a browser's clipboard, by a blank page of its own."""

    def __init__(self, connection: Connection, create_context: Callable[[OnTarget], Awaitable[str]], *, begin_frame: bool) -> None:
        self._connection, self._create_context, self._begin_frame = connection, create_context, begin_frame
        self._lock = asyncio.Lock()
        self._session_id = ""

    @asynccontextmanager
    async def lending(self, text: str) -> AsyncIterator[None]:
        """While the body runs, the browser's clipboard holds this text; then nothing."""
        async with self._lock:
            await self._write(text)
            try:
                yield
            finally:
                await self._write("")

    async def _write(self, text: str) -> None:
        if not self._session_id:
            await self._open()
        expression = _SET.format(text=json.dumps(text[:MAX_TEXT_CHARS]))
        await self._connection.send("Runtime.evaluate", {"expression": expression, "userGesture": True}, self._session_id)

    async def _open(self) -> None:
        def on_target(info: Params, session_id: str) -> None:
            self._session_id = session_id
            self._connection.send("Runtime.runIfWaitingForDebugger", None, session_id)

        context_id = await self._create_context(on_target)
        target = {"url": "about:blank", "browserContextId": context_id, "enableBeginFrameControl": self._begin_frame}
        await self._connection.send("Target.createTarget", target)
        await self._connection.send("Emulation.setFocusEmulationEnabled", {"enabled": True}, self._session_id)


def pastes(phases: Sequence[Phase]) -> bool:
    """Whether gestures may paste: the keys that do with a modifier, whichever is held."""
    return any(
        isinstance(gesture, KeyStroke) and gesture.is_down and gesture.name.lower() in _PASTE_KEYS
        for phase in phases
        if isinstance(phase, tuple)
        for gesture in phase
    )
