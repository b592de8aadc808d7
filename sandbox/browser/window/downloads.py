"""Downloads of one web session: from the browser into a staging folder, and once complete, and only then, into the workspace.

A page starts as many as it likes, so one, those at once and all of an episode are limited; what is refused leaves nothing on the disk.
How files come into the workspace safely is workspace_files.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Params
from sandbox.browser.window.workspace_files import Refused, put_download
from sandbox.tasks.page_task import WebSettings
from warehouse.core.errors import SandboxError

MIB = 1024 * 1024
MAX_AT_ONCE = 4
MAX_DOWNLOADS = 100
"""In an episode."""
MAX_NEWS = 20
"""Lines between two looks; how many more there were is one more."""


@dataclass(slots=True, kw_only=True)
class _Running:
    name: str
    num_bytes: int = 0


class Downloads:
    """`await start()`, ask for what `came`, `await close()`. Without a workspace every download is refused."""

    def __init__(self, browser: Browser, context_id: str, web: WebSettings, *, workspace: Path | None, staging: Path) -> None:
        self._browser, self._context_id, self._web = browser, context_id, web
        self._workspace, self._staging = workspace, staging
        self._running: dict[str, _Running] = {}
        self._saving: set[asyncio.Task[None]] = set()
        self._num_begun = self._kept_bytes = 0
        self._session_id = ""
        self._news: list[str] = []
        self._num_unsaid = 0

    async def start(self) -> None:
        """Through a debugging session of its own, so that other sessions' downloads are not heard of."""
        connection = self._browser.connection
        self._session_id = str((await connection.send("Target.attachToBrowserTarget"))["sessionId"])
        connection.listen(self._session_id, "Browser.downloadWillBegin", self._on_begin)
        connection.listen(self._session_id, "Browser.downloadProgress", self._on_progress)
        behaviour: Params = {"behavior": "deny", "browserContextId": self._context_id, "eventsEnabled": True}
        if self._workspace is not None:
            behaviour |= {"behavior": "allowAndName", "downloadPath": str(self._staging)}
        await connection.send("Browser.setDownloadBehavior", behaviour, self._session_id)

    @property
    def is_pending(self) -> bool:
        return bool(self._running or self._saving)

    def came(self) -> list[str]:
        """What came of downloads since this was last asked, a line each."""
        news, self._news = self._news, []
        if self._num_unsaid:
            news.append(f"and {self._num_unsaid} more lines about downloads")
            self._num_unsaid = 0
        return news

    def _say(self, line: str) -> None:
        if len(self._news) < MAX_NEWS:
            self._news.append(line)
        else:
            self._num_unsaid += 1

    def _on_begin(self, event: Params) -> None:
        guid, name = str(event["guid"]), str(event["suggestedFilename"])
        refusal = self._refusal()
        if refusal:
            self._say(f"download of {name!r} refused: {refusal}")
            self._cancel(guid)
        else:
            self._num_begun += 1
            self._running[guid] = _Running(name=name)

    def _refusal(self) -> str:
        if self._workspace is None:
            return "this session has no workspace"
        if len(self._running) + len(self._saving) >= MAX_AT_ONCE:
            return f"{MAX_AT_ONCE} others are under way"
        if self._num_begun >= MAX_DOWNLOADS:
            return f"there were {MAX_DOWNLOADS} in this episode"
        return ""

    def _cancel(self, guid: str) -> None:
        """The browser removes what it wrote of it."""
        self._browser.connection.send("Browser.cancelDownload", {"guid": guid, "browserContextId": self._context_id}, self._session_id)

    def _on_progress(self, event: Params) -> None:
        guid, state = str(event["guid"]), event["state"]
        running = self._running.get(guid)
        if running is None:
            if state == "inProgress":
                self._cancel(guid)
            elif state == "completed":  # faster than its cancellation
                (self._staging / guid).unlink(missing_ok=True)
            return
        running.num_bytes = int(max(event.get("receivedBytes", 0), event.get("totalBytes", 0)))
        if reason := "it broke off" if state == "canceled" else self._excess(running):
            del self._running[guid]
            self._say(f"download of {running.name!r} failed: {reason}")
            if state == "inProgress":
                self._cancel(guid)
            else:
                (self._staging / guid).unlink(missing_ok=True)
        elif state == "completed":
            del self._running[guid]
            self._kept_bytes += running.num_bytes
            task = asyncio.ensure_future(self._save(guid, running.name))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    def _excess(self, running: _Running) -> str:
        """The limit that a download goes beyond, or "". Where several do so together, the one that reports progress goes first."""
        if running.num_bytes > self._web.max_download_mib * MIB:
            return f"it is larger than {self._web.max_download_mib:g} MiB"
        if self._kept_bytes + sum(each.num_bytes for each in self._running.values()) > self._web.max_downloads_mib * MIB:
            return f"the downloads of an episode may have {self._web.max_downloads_mib:g} MiB together"
        return ""

    async def _save(self, guid: str, name: str) -> None:
        staged = self._staging / guid
        try:
            if self._workspace is not None:
                saved = await asyncio.to_thread(put_download, self._workspace, staged, name)
                self._say(f"downloaded {saved}")
        except (Refused, OSError) as error:
            self._say(f"download of {name!r} failed: {error}")
        finally:
            with suppress(OSError):
                staged.unlink()

    async def close(self) -> None:
        await asyncio.gather(*self._saving, return_exceptions=True)
        if self._session_id and self._browser.is_alive:
            with suppress(SandboxError):
                await self._browser.connection.send("Target.detachFromTarget", {"sessionId": self._session_id})
        self._browser.connection.forget(self._session_id)
