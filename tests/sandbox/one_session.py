"""One session for the tests of a module: in a browser, task after task, as a pool's slot does; and on a desktop, for one use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from sandbox.browser.backend import BrowserBackend, launch
from sandbox.browser.page_session import OpenPage
from sandbox.desktop.local import LocalDesktops
from sandbox.desktop.session import DesktopSession


class Closes(Protocol):
    async def close(self) -> None: ...


S = TypeVar("S", bound=Closes)


@contextmanager
def in_one_browser(make: Callable[[OpenPage], S]) -> Iterator[Callable[[Callable[[S], Coroutine[Any, Any, Any]]], Any]]:
    """What runs `use(session)` and gives what that gives."""
    with asyncio.Runner() as runner:
        host: BrowserBackend = runner.run(launch("auto"))
        session = make(host.open_page)
        yield lambda use: runner.run(use(session))
        runner.run(session.close())
        runner.run(host.close())


def on_desktop(use: Callable[[DesktopSession], Awaitable[Any]], *, screenshots: bool = False) -> Any:
    """What `await use(session)` gives."""

    async def run() -> Any:
        session = DesktopSession(LocalDesktops(), screenshots=screenshots)
        try:
            return await use(session)
        finally:
            await session.close()

    return asyncio.run(run())
