"""A browser's DevTools address for a program beside us: agents that are given a browser connect to it there, and drive a leased page.

The browser listens in its own network (sandbox/browser/isolation/namespace.py), where no program is but the browser. Here is a port of this
machine's loopback whose connections are carried there. Every program that reaches it can drive the browser: it is for programs of this
machine's own users.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import suppress
from urllib.parse import urlsplit

from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Params
from sandbox.browser.cdp.plain import LivePage
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.policy import file_answer
from warehouse.core.errors import ConfigError

BLOCK_BYTES = 2**16
HOST = "task.test"
"""Under which the page's files are shown: agents refuse addresses of files."""


class DrivenPage(LivePage):
    """A page that a program beside us drives, too."""

    _devtools: DevTools | None = None
    _is_gone = False

    def _set_up(self) -> list[asyncio.Future[Params]]:
        self.browser.when_gone(self._session_id, self._on_gone)
        return super()._set_up()

    def _on_gone(self) -> None:
        self._is_gone = True
        self.browser.connection.end(self._session_id, "The page was closed.")

    async def devtools(self) -> str:
        """The address, until the page is closed; see HasDevTools (sandbox/browser/page.py)."""
        if self._devtools is None:
            self._devtools = await DevTools.open(self.browser)
        return self._devtools.url

    async def load(self, url: str) -> None:
        root = f"{self._root.as_uri()}/"
        await super().load(f"http://{HOST}/{url.removeprefix(root)}" if url.startswith(root) else url)

    def _on_request(self, event: Params, session_id: str | None = None) -> None:
        parts = urlsplit(str(event["request"]["url"]))
        is_left = event.get("resourceType") == "Document" and event.get("frameId") == self._target_id and not self._loading
        if parts.scheme != "http" or parts.hostname != HOST or is_left:
            super()._on_request(event, session_id)
            return
        answer = file_answer(self._root, parts.path)
        response = {"requestId": event["requestId"], "responseCode": answer.status, "body": b64encode(answer.body).decode()}
        headers = [{"name": "Content-Type", "value": answer.content_type}]
        self.browser.connection.send("Fetch.fulfillRequest", {**response, "responseHeaders": headers}, session_id or self._session_id)

    async def is_reusable(self) -> bool:
        """Who drove it may have left anything in it."""
        return self._devtools is None and await super().is_reusable()

    async def is_to_blame(self) -> bool:
        """As in Untrusted: of what a program does by the address it closes the page or the browser, hangs or crashes the page."""
        if self._devtools is None:
            return False
        if not self.browser.is_alive:
            return await self.browser.was_asked_to_close()
        return self._is_gone or await self.browser.is_well() or await self.browser.is_busy()

    def end_pages(self) -> None:
        if not self._is_gone:
            self.browser.crash_page(self._session_id)

    async def close(self) -> None:
        if self._devtools is not None:
            await self._devtools.close()
        await super().close()


class DevTools:
    """Of one browser, which was launched with DEVTOOLS_FLAG, for one program. `await DevTools.open(…)`, then `close()`."""

    def __init__(self, browser: Browser) -> None:
        self._browser, self._port = browser, 0
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, browser: Browser) -> DevTools:
        """Raises ConfigError for a browser that has no such address."""
        devtools = cls(browser)
        devtools._port = await devtools._found_port()
        devtools._server = await asyncio.start_server(devtools._carry, "127.0.0.1", 0)
        return devtools

    async def _found_port(self) -> int:
        for _ in range(100):
            with suppress(OSError, ValueError, IndexError):
                return self._browser.process.devtools_port()
            await asyncio.sleep(0.05)
        raise ConfigError(f"{self._browser.version} gives no DevTools port: open the pool with kind 'devtools'")

    @property
    def url(self) -> str:
        """e.g. http://127.0.0.1:41234, as Playwright's connect_over_cdp and its like take it."""
        if self._server is None:
            raise ConfigError("the DevTools address is closed")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
        with suppress(OSError):
            made = await asyncio.to_thread(namespace.connection, self._browser.process.pid, self._port)
            made.setblocking(False)
            there_reader, there_writer = await asyncio.open_connection(sock=made)
            ways = [asyncio.ensure_future(_pump(reader, there_writer)), asyncio.ensure_future(_pump(there_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                there_writer.close()
        writer.close()

    async def close(self) -> None:
        """Ends every connection; may be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
