"""Downloads of one web session: from the browser into a staging folder, and once complete, and only then, into the workspace.

How files come into the workspace safely is workspace_files.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from sandbox.browser.browser import Browser
from sandbox.browser.cdp import Params
from sandbox.browser.workspace_files import Refused, put_download
from warehouse.errors import SandboxError

MIB = 1024 * 1024


class Downloads:
    """`await start()`, ask for what `came`, `await close()`. Without a workspace every download is refused."""

    def __init__(self, browser: Browser, context_id: str, *, workspace: Path | None, staging: Path, max_mib: float) -> None:
        self._browser, self._context_id = browser, context_id
        self._workspace, self._staging, self._max_bytes = workspace, staging, max_mib * MIB
        self._names: dict[str, str] = {}
        self._running: set[str] = set()
        self._saving: set[asyncio.Task[None]] = set()
        self._session_id = ""
        self._news: list[str] = []

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
        return news

    def _on_begin(self, event: Params) -> None:
        name = str(event["suggestedFilename"])
        if self._workspace is None:
            self._news.append(f"download of {name!r} refused: this session has no workspace")
        else:
            self._names[event["guid"]] = name
            self._running.add(event["guid"])

    def _on_progress(self, event: Params) -> None:
        guid, state = str(event["guid"]), event["state"]
        if guid not in self._running:
            return
        name = self._names[guid]
        too_large = max(event.get("receivedBytes", 0), event.get("totalBytes", 0)) > self._max_bytes
        if too_large or state == "canceled":
            self._running.discard(guid)
            reason = f"it is larger than {self._max_bytes / MIB:g} MiB" if too_large else "it broke off"
            self._news.append(f"download of {name!r} failed: {reason}")
            if state == "inProgress":
                self._browser.connection.send(
                    "Browser.cancelDownload", {"guid": guid, "browserContextId": self._context_id}, self._session_id
                )
            else:
                (self._staging / guid).unlink(missing_ok=True)
        elif state == "completed":
            self._running.discard(guid)
            task = asyncio.ensure_future(self._save(guid, name))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    async def _save(self, guid: str, name: str) -> None:
        staged = self._staging / guid
        try:
            if self._workspace is not None:
                saved = await asyncio.to_thread(put_download, self._workspace, staged, name)
                self._news.append(f"downloaded {saved}")
        except (Refused, OSError) as error:
            self._news.append(f"download of {name!r} failed: {error}")
        finally:
            with suppress(OSError):
                staged.unlink()

    async def close(self) -> None:
        await asyncio.gather(*self._saving, return_exceptions=True)
        if self._session_id and self._browser.is_alive:
            with suppress(SandboxError):
                await self._browser.connection.send("Target.detachFromTarget", {"sessionId": self._session_id})
        self._browser.connection.forget(self._session_id)
