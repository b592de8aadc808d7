"""Starting an application on a desktop and waiting for its window, for sessions and for the setup of tasks."""

from __future__ import annotations

import asyncio
import time

from sandbox.desktop.apps import find_app
from sandbox.desktop.desktop import Desktop, Window
from sandbox.desktop.instance import Launch
from warehouse.core.errors import SandboxTimeout

POLL_S = 0.02


async def start(desktop: Desktop, launch: Launch, limit_s: float) -> None:
    """Launch an application and wait until a new window of it has the keyboard. Raises SandboxTimeout."""
    app = find_app(launch.app)
    before = {window.window_id for window in await desktop.windows()}
    await desktop.launch(launch.app, launch.files)
    deadline = time.monotonic() + limit_s
    while not any(_is_of(window, app.window_class) and window.window_id not in before for window in await desktop.windows()):
        if time.monotonic() > deadline:
            raise SandboxTimeout(f"{app.name} was started, but no window of class {app.window_class!r} came up within {limit_s:g} s.")
        await asyncio.sleep(POLL_S)
    await desktop.settle()


def _is_of(window: Window, window_class: str) -> bool:
    return window.window_class.lower() == window_class.lower() and window.is_focused
