"""What a page cannot do, tried: reach a port of this machine, a file beside its own, or another session; and what an episode cannot leave
to the next one in the same slot, planted and looked for. docs/isolation.md is the table of these.

Stand-ins listen on this machine's loopback and on the loopback inside the browser's own network: neither may hear a word.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.scratch import browser_user, readable_root
from sandbox.browser.page_session import PageSession
from sandbox.browser.window.workspace_files import Refused, put_download, safe_name, stage_upload
from sandbox.session import Observation
from sandbox.tasks.page_task import PageSettings
from tests.sandbox.web_pages import SHOP, TASK, Bench, bench, click, keys, page_value

PAGES = Path(__file__).with_name("pages")


@pytest.fixture(scope="module", params=["beginframe", pytest.param("plain", marks=pytest.mark.long)])
def web(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param) as opened:
        yield opened


class Ears:
    """Stand-ins for services: TCP and UDP at one port of our loopback, TCP at one of the browser's."""

    def __init__(self, browser_pid: int) -> None:
        self.heard: list[str] = []
        self._inner = namespace.listener(browser_pid)
        self.inner_port = int(self._inner.getsockname()[1])
        self._tcp = namespace.listener(os.getpid())
        self.port = int(self._tcp.getsockname()[1])
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._udp.setblocking(False)

    async def listen(self) -> None:
        def note(where: str) -> Any:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self.heard.append(f"{where}: {(await reader.read(200))!r}")
                writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nhi")
                writer.close()

            return serve

        self._servers = [
            await asyncio.start_server(note("ours"), sock=self._tcp),
            await asyncio.start_server(note("browser's"), sock=self._inner),
        ]
        asyncio.get_running_loop().add_reader(self._udp, lambda: self.heard.append(f"udp: {self._udp.recv(200)!r}"))

    async def can_hear(self) -> bool:
        """The control: a word from this process is heard."""
        self.heard.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"control")
        await writer.drain()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"control", ("127.0.0.1", self.port))
        for _ in range(100):
            if len(self.heard) == 2:
                break
            await asyncio.sleep(0.02)
        writer.close()
        return len(self.heard) == 2

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._udp)
        self._udp.close()
        for server in self._servers:
            server.close()


async def try_to_escape(session_page: Any, ears: Ears) -> dict[str, str]:
    """What came of every attempt, to both loopbacks."""
    came: dict[str, str] = {}
    for port in dict.fromkeys([ears.port, ears.inner_port]):
        await session_page.evaluate(f"void tryAll({port}, {ears.port})")
        for _ in range(200):
            await session_page.settle(100, screenshot=False)
            results = await session_page.evaluate("results")
            if results.get("done"):
                break
            await asyncio.sleep(0.02)
        assert results.pop("done", False), results
        came |= {f"{name} at {port}": value for name, value in results.items()}
    return came


@pytest.mark.parametrize("real_time", [False, True])
@pytest.mark.slow
def test_a_task_page_reaches_nothing(web: Bench, real_time: bool) -> None:
    async def use() -> None:
        ears = Ears(web.host.pid)
        await ears.listen()
        root = readable_root(PAGES)
        settings = PageSettings(viewport_px=(320, 320), area_px=(320, 320), step_time_ms=50.0, frame_time_ms=50.0, real_time=real_time)
        page = await web.host.open_page(settings, root)
        try:
            await page.load((root / "escapes.html").as_uri())
            assert set((await try_to_escape(page, ears)).values()) <= {"refused", "no answer"}
            assert not ears.heard
            assert await page.evaluate("document.title") == "escapes" and await ears.can_hear()
        finally:
            await page.close()
            ears.close()

    web.runner.run(use())


@pytest.mark.parametrize("network", ["none", "open"])
def test_a_web_session_reaches_no_port_of_this_machine(web: Bench, network: str) -> None:
    async def use() -> None:
        ears = Ears(web.host.pid)
        await ears.listen()
        root = readable_root(PAGES)
        settings = web.session(network=network)._sources["web"].settings(TASK)
        page = await web.host.open_page(replace(settings), root)
        try:
            await page.load((root / "escapes.html").as_uri())
            opener = page.active  # type: ignore[attr-defined]
            came = await try_to_escape(_Pinned(page, opener), ears)
            # An open session asks names and addresses of nobody here: only that the proxy says no takes a connection to it.
            assert set(came.values()) <= {"refused", "no answer"} or _all_by_proxy(came, ears)
            assert not ears.heard
            assert page.notes.blocked
        finally:
            await page.close()
            ears.close()

    web.runner.run(use())


class _Pinned:
    """A window whose first tab stays the one that is asked, whatever it opened."""

    def __init__(self, window: Any, tab: Any) -> None:
        self._window, self._tab = window, tab

    async def evaluate(self, expression: str) -> Any:
        return await self._tab.evaluate(expression)

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        while self._window.active is not self._tab:
            await self._window.act(keys("ctrl", "w"))
        return await self._window.settle(ms, screenshot=screenshot)  # type: ignore[no-any-return]


def _all_by_proxy(came: dict[str, str], ears: Ears) -> bool:
    """With no-cors a page cannot tell the proxy's refusal from an answer; that nobody heard it is what counts."""
    return all(value in {"refused", "no answer"} or name.startswith(("fetch ", "worker", "https")) for name, value in came.items())


SERVED = {
    b"/": (b"text/html", b"<!doctype html><title>served</title><input id='second' placeholder='second'>"),
    b"/sw.js": (b"text/javascript", (SHOP.folder / "sw.js").read_bytes()),
    b"/cached": (b"text/plain", b"hi"),
}


class Terminal:
    """A stand-in for a session's terminal with a web server at every port. Notes what it was asked for."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        kind, body = SERVED.get(head.split(b" ")[1], (b"text/plain", b"nothing"))
        headers = b"Cache-Control: max-age=9999\r\nETag: x\r\nContent-Type: %s\r\nContent-Length: %d" % (kind, len(body))
        writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (headers, body))
        await writer.drain()
        writer.close()

    async def connect(self, port: int) -> Any:
        return await asyncio.open_connection("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def terminal(web: Bench) -> Iterator[Terminal]:
    made = Terminal()
    web.runner.run(made.start())
    yield made
    made.close()


def test_a_service_worker_is_held_to_the_same_policy(web: Bench, terminal: Terminal) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        ears = Ears(web.host.pid)
        await ears.listen()
        try:
            script = (
                "navigator.serviceWorker.register('sw.js').then(() => navigator.serviceWorker.ready).then((ready) => {"
                " navigator.serviceWorker.onmessage = (event) => { globalThis.said = event.data; };"
                " ready.active.postMessage('http://10.0.0.1/'); }, (error) => { globalThis.said = String(error); }); 0"
            )
            assert await awaited(session, script, "said") == "refused" and not ears.heard
        finally:
            ears.close()

    web.run(use, connect=terminal.connect, address="http://localhost:5000/")


PLANT = """(async () => {
  document.cookie = "planted=1; max-age=10000; path=/";
  localStorage.setItem("planted", "1");
  sessionStorage.setItem("planted", "1");
  window.name = "planted";
  await (await caches.open("planted")).put("/planted", new Response("1"));
  await new Promise((resolve) => { const asked = indexedDB.open("planted"); asked.onsuccess = resolve; });
  const root = await navigator.storage.getDirectory();
  await root.getFileHandle("planted", { create: true });
  await navigator.serviceWorker.register("sw.js").then(() => navigator.serviceWorker.ready);
  history.pushState({}, "", "/planted");
})().then(() => { globalThis.planted = true; }, (error) => { globalThis.planted = String(error); }); 0"""

LOOK = """(async () => ({
  cookie: document.cookie, local: localStorage.length, session: sessionStorage.length, name: window.name, caches: await caches.keys(),
  databases: (await indexedDB.databases()).length, workers: (await navigator.serviceWorker.getRegistrations()).length,
  files: await Array.fromAsync((await navigator.storage.getDirectory()).keys()), history: history.length,
  clipboard: (await navigator.permissions.query({ name: "clipboard-read" })).state,
  notifications: (await navigator.permissions.query({ name: "notifications" })).state,
}))().then((seen) => { globalThis.seen = seen; }, (error) => { globalThis.seen = String(error); }); 0"""


async def awaited(session: PageSession, script: str, name: str) -> Any:
    await page_value(session, f"globalThis.{name} = null; {script}")
    for _ in range(60):
        await session.step(actions.Wait(seconds=0.1))
        if (value := await page_value(session, f"globalThis.{name} ?? null")) is not None:
            return value
    raise AssertionError(f"{name} never came")


def test_nothing_crosses_from_one_web_episode_to_the_next(web: Bench, terminal: Terminal) -> None:
    where: dict[str, Any] = {"connect": terminal.connect, "address": "http://localhost:5000/"}

    async def use(session: PageSession, first: Observation) -> None:
        clean = await awaited(session, LOOK, "seen")
        assert clean["local"] == 0 and clean["clipboard"] == "denied"
        for _ in range(2):
            await awaited(session, "fetch('/cached').then(() => { globalThis.fetched = true; }); 0", "fetched")
        await session.step(click(first, "second"))
        for action in (actions.TypeText(text="planted"), keys("ctrl", "a"), keys("ctrl", "c")):
            await session.step(action)
        assert await awaited(session, PLANT, "planted") is True
        dirty = await awaited(session, LOOK, "seen")
        assert dirty["local"] == dirty["session"] == dirty["databases"] == dirty["workers"] == 1 and dirty["cookie"] and dirty["files"]
        for again in (session, web.session(**where)):  # the same slot, and another of the same browser
            second = await again.reset(TASK, 2)
            assert await awaited(again, LOOK, "seen") == clean
            await awaited(again, "fetch('/cached').then(() => { globalThis.fetched = true; }); 0", "fetched")
            await again.step(click(second, "second"))
            await again.step(keys("ctrl", "v"))
            await again.step(click(second, "second", button="middle"))
            assert await page_value(again, "second.value") == ""
            if again is not session:
                await again.close()
        assert sum(b"GET /cached" in request for request in terminal.requests) == 3  # once an episode: cached in it, not after it
        assert not any(b"If-None-Match" in request or b"Cookie" in request for request in terminal.requests if b"/cached" in request)

    web.run(use, **where)


def test_a_restart_in_the_same_document_keeps_no_name(web: Bench, html_task: Any, html_source: Any) -> None:
    """Storage and the clipboard: test_episode_isolation.py."""

    async def use() -> None:
        session = PageSession(web.host.open_page, {"html": html_source()})
        try:
            await session.reset(html_task(), 1)
            await page_value(session, "window.mark = window.name = 'planted'")
            await session.reset(html_task(), 2)
            assert await page_value(session, "[window.mark, window.name]") == ["planted", ""]
        finally:
            await session.close()

    web.runner.run(use())


@pytest.mark.parametrize(
    ("suggested", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("..\\..\\a.exe", "a.exe"),
        ("/etc/shadow", "shadow"),
        (".bashrc", "bashrc"),
        ("..", "download"),
        ("", "download"),
        ("a\x00\nb.txt", "ab.txt"),
        ("x" * 300 + ".pdf", "x" * 196 + ".pdf"),
    ],
)
def test_a_downloads_name_is_only_a_name(suggested: str, name: str, tmp_path: Path) -> None:
    workspace, staged = tmp_path / "workspace", tmp_path / "staged"
    workspace.mkdir()
    staged.write_text("x")
    assert safe_name(suggested) == name
    assert put_download(workspace, staged, suggested) == f"Downloads/{name}"
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file() and path != staged] == [
        f"workspace/Downloads/{name}"
    ]


def test_links_in_the_workspace_lead_nowhere(tmp_path: Path) -> None:
    workspace, outside, staged = tmp_path / "workspace", tmp_path / "outside", tmp_path / "staged"
    for folder in (workspace, outside):
        folder.mkdir()
    staged.write_text("x")
    (outside / "secret").write_text("secret")
    (workspace / "Downloads").symlink_to(outside)
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "folder").symlink_to(outside)
    os.mkfifo(workspace / "pipe")
    with pytest.raises(Refused, match="could not be saved"):
        put_download(workspace, staged, "a")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    for path in ("link", "folder/secret", "../outside/secret", "/etc/passwd", "pipe", "folder/../../outside/secret", "a\0b", "a\0/b", ""):
        with pytest.raises(Refused):
            stage_upload(workspace, path, tmp_path)
    (workspace / "Downloads").unlink()
    (workspace / "Downloads").mkdir()
    (workspace / "Downloads" / "a").symlink_to(outside / "secret")
    assert put_download(workspace, staged, "a") == "Downloads/a (1)"
    assert (outside / "secret").read_text() == "secret"


def test_a_file_outside_the_workspace_is_not_uploaded(web: Bench, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")

    async def use(session: PageSession, first: Observation) -> None:
        for path in ("/etc/hostname", "../../../etc/hostname", "link"):
            await session.step(click(first, "file field"))
            assert "ignored" in (await session.step(actions.TypeText(text=path))).info
            await session.step(keys("escape"))
        assert await page_value(session, "file.files.length") == 0

    web.run(use, workspace=tmp_path)


@pytest.mark.skipif(not namespace.wrapper(), reason="a network of its own takes root")
def test_a_browser_has_a_network_of_its_own_and_no_privileges(web: Bench) -> None:
    pid = web.host.pid
    assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert int(status["Uid"].split()[0]) == browser_user().uid != 0 and int(status["CapEff"], 16) == 0


def test_sessions_of_one_browser_do_not_share_a_process(web: Bench) -> None:
    """However few processes a browser may have, two sessions never meet in one."""

    async def use(session: PageSession, first: Observation) -> None:
        other = web.session()
        await other.reset(TASK, 2)
        renderers = [path for path in Path("/proc").glob("[0-9]*") if _is_renderer_of(path, web.host.pid)]
        assert len(renderers) >= 2
        await page_value(session, "globalThis.mark = 1; 0")
        assert await page_value(other, "globalThis.mark ?? null") is None
        await other.close()

    web.run(use)


def _is_renderer_of(folder: Path, pgid: int) -> bool:
    try:
        group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
        return group == pgid and b"--type=renderer" in (folder / "cmdline").read_bytes()
    except (OSError, IndexError, ValueError):
        return False
