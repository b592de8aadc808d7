"""What a web session's network lets through: the policy's decisions, the proxy that enforces them, and a whole session behind it. Every
stand-in service listens on loopback; no test reaches further."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.policy import NetworkPolicy, Way, is_below, is_public, relative_urls
from sandbox.browser.isolation.proxy import Outside, Proxy, Stream
from sandbox.browser.page_session import PageSession
from sandbox.session import Observation
from sandbox.tasks.page_task import Site, WebSettings
from tests.sandbox.web_pages import SHOP, Bench, bench, click, page_value


@pytest.mark.parametrize(
    ("web", "host", "port", "way"),
    [
        (WebSettings(), "example.org", 443, Way.REFUSED),
        (WebSettings(sites=(SHOP,)), "shop.test", 443, Way.SITE),
        (WebSettings(sites=(SHOP,)), "SHOP.test.", 80, Way.SITE),
        (WebSettings(network="allowed", allowed_hosts=("example.org",)), "example.org", 443, Way.OUTSIDE),
        (WebSettings(network="allowed", allowed_hosts=("example.org",)), "www.example.org", 443, Way.REFUSED),
        (WebSettings(network="allowed", allowed_hosts=("*.example.org",)), "www.example.org", 443, Way.OUTSIDE),
        (WebSettings(network="allowed", allowed_hosts=("example.org:8080",)), "example.org", 443, Way.REFUSED),
        (WebSettings(network="allowed", allowed_hosts=("example.org:8080",)), "example.org", 8080, Way.OUTSIDE),
        (WebSettings(network="none", allowed_hosts=("example.org",)), "example.org", 443, Way.REFUSED),
        (WebSettings(network="open"), "example.org", 443, Way.OUTSIDE),
        (WebSettings(network="open"), "localhost", 8022, Way.TERMINAL),
        (WebSettings(network="open"), "localhost", 6000, Way.REFUSED),  # Chromium would load nothing, and never say so
        (WebSettings(network="open"), "example.org", 22, Way.REFUSED),
        (WebSettings(network="open"), "a.localhost", 8022, Way.TERMINAL),
        (WebSettings(network="open"), "127.1.2.3", 8022, Way.TERMINAL),
        (WebSettings(network="open"), "0.0.0.0", 8022, Way.TERMINAL),
        (WebSettings(network="open"), "[::1]", 8022, Way.TERMINAL),
        (WebSettings(network="open"), "::ffff:127.0.0.1", 8022, Way.TERMINAL),
    ],
)
def test_the_policy_says_where_a_request_goes(web: WebSettings, host: str, port: int, way: Way) -> None:
    assert NetworkPolicy(web, has_terminal=True).way(host, port) is way
    if way is Way.TERMINAL:
        assert NetworkPolicy(web, has_terminal=False).way(host, port) is Way.REFUSED


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "224.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "not an address",
    ],
)
def test_no_address_of_this_machine_or_a_private_network_is_public(address: str) -> None:
    assert not is_public(address)
    assert is_public("93.184.216.34") and is_public("2606:2800:220:1::")


def test_a_page_reads_files_below_its_root_only() -> None:
    root = Path("/srv/pages")
    assert is_below("file:///srv/pages/a.html", root) and is_below("data:text/plain,x", root)
    for url in (
        "file:///etc/passwd",
        "file:///srv/pages/../x",
        "file:///srv/pages/%2e%2e/x",
        "file:///srv/pagesx",
        "file://host/srv/pages/a",
        "http://srv/pages/a",
        "filesystem:file:///srv/pages/a",
        "file://[x",
        "foo://[",
    ):
        assert not is_below(url, root)


def test_files_are_reported_by_their_path_from_the_root() -> None:
    root = Path("/srv/a b/pages")
    assert relative_urls("file:///srv/a%20b/pages/x/y.html#z", root) == "x/y.html#z"
    assert relative_urls("at file:///srv/a%20b/pages/x.html:1:2, file:///srv/a%20b/o.png", root) == "at x.html:1:2, ../o.png"
    for other in ("https://shop.test/a", "about:blank", "data:,x", "file:///etc/passwd"):
        assert relative_urls(other, root) == other


def test_a_site_serves_nothing_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("home")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    policy = NetworkPolicy(WebSettings(sites=(Site(host="a.test", folder=folder),)), has_terminal=False)
    assert policy.site_answer("https://a.test/").body == b"home" and policy.site_answer("https://a.test").status == 200
    for path in ("/../secret", "/%2e%2e/secret", "/link", "/..%2fsecret", "//etc/passwd", "/a%00b", "/nothing"):
        assert policy.site_answer(f"https://a.test{path}").status == 404


class FakeOutside(Outside):
    """Names and addresses of our own; every address leads to one stand-in on loopback."""

    def __init__(self, names: dict[str, list[str]], port: int) -> None:
        self.names, self.port, self.dialled = names, port, list[tuple[str, int]]()

    async def resolve(self, host: str, port: int) -> list[str]:
        if host[0].isdigit():
            return [host]
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def dial(self, address: str, port: int) -> Stream:
        self.dialled.append((address, port))
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def stand_in(answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A service on loopback that notes what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()


async def through(proxy: Proxy, request: str, *, credentials: str | None = None) -> bytes:
    """What the proxy answers to a request line and its host."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    header = proxy.credentials.header if credentials is None else credentials
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {header}\r\nCookie: a=b\r\n\r\n".encode())
    await writer.drain()
    answer = b""
    while not answer.endswith(b"hi") and (part := await asyncio.wait_for(reader.read(4096), 20)):
        answer += part
        if b"407 Proxy" in answer:
            break
    writer.close()
    return answer


async def smuggled(proxy: Proxy, *requests: str) -> bytes:
    """What comes of several requests written at once into one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    header = f"HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {proxy.credentials.header}\r\n\r\n"
    writer.write("".join(f"{request} {header}" for request in requests).encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


def test_the_proxy_enforces_the_policy() -> None:
    async def use() -> None:
        async with stand_in() as (port, heard):
            names = {
                "good.example": ["93.184.216.34"],
                "rebound.example": ["127.0.0.1"],
                "mixed.example": ["93.184.216.34", "10.0.0.1"],
                "meta.example": ["169.254.169.254"],
            }
            outside, refused = FakeOutside(names, port), list[str]()

            async def connect(at: int) -> Stream:
                if at != 8000:
                    raise ConnectionRefusedError("nothing listens")
                return await asyncio.open_connection("127.0.0.1", port)

            proxy = Proxy(
                NetworkPolicy(WebSettings(network="open"), has_terminal=True), connect=connect, on_refused=refused.append, outside=outside
            )
            await proxy.start(namespace.listener(os.getpid()))
            try:
                assert b"hi" in await through(proxy, "GET http://good.example/path?q=1")
                assert outside.dialled == [("93.184.216.34", 80)]
                sent = heard[-1].decode()
                assert sent.startswith("GET /path?q=1 HTTP/1.1\r\n") and "Cookie: a=b" in sent and "roxy" not in sent
                assert b"hi" in await through(proxy, "GET http://localhost:8000/") and b"hi" in await through(
                    proxy, "GET http://127.0.0.1:8000/"
                )
                assert b"502" in await through(proxy, "GET http://localhost:9000/")
                heard.clear()
                for target in ("rebound.example", "mixed.example", "meta.example", "10.0.0.1", "192.168.0.1:8080", "169.254.169.254"):
                    assert b"403" in await through(proxy, f"GET http://{target}/")
                    assert b"403" in await through(proxy, f"CONNECT {target.partition(':')[0]}:{port}")
                assert b"502" in await through(proxy, "GET http://unknown.example/")
                assert len(refused) == 12 and not heard and len(outside.dialled) == 1
                assert (await smuggled(proxy, "GET http://good.example/one", "GET http://10.0.0.1/two")).count(b"200 OK") == 1
                assert [request.split(b" ")[1] for request in heard] == [b"/one"]
                heard.clear()
                for malformed in ("GET /", "GET ftp://good.example/", "CONNECT good.example:99999", "GET http://"):
                    assert b"400" in await through(proxy, malformed)
                for wrong in ("", "Basic AAAA", proxy.credentials.header + "x"):
                    assert b"407" in await through(proxy, "GET http://good.example/", credentials=wrong)
                assert not heard
            finally:
                await proxy.close()

    asyncio.run(use())


@pytest.fixture(scope="module", params=["beginframe", pytest.param("plain", marks=pytest.mark.long)])
def web(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param) as opened:
        yield opened


def test_localhost_is_the_sessions_own_terminal(web: Bench) -> None:
    """Several services at ports of the session, over HTTP and WebSocket alike; the machine's own ports are not among them."""
    page = b"<!doctype html><title>served</title><h1>from the terminal</h1>"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    asked: list[int] = []

    async def served(session: PageSession, first: Observation) -> None:
        transition = await session.step(actions.Navigate(url="localhost:5000/x"))
        assert transition.observation.url == "http://localhost:5000/x"
        assert [element.text for element in transition.observation.elements] == ["from the terminal"]
        assert 5000 in asked

    async def connect(port: int) -> Stream:
        asked.append(port)
        return await asyncio.open_connection("127.0.0.1", services[0])

    services: list[int] = []

    async def start() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.3)  # page time waits for a slow service
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        services.append(server.sockets[0].getsockname()[1])
        return server

    server = web.runner.run(start())
    try:
        web.run(served, connect=connect)
    finally:
        server.close()


def test_an_allowed_host_is_reached_and_no_other(web: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in: the name resolves to a public address, and that is dialled on loopback."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async def start() -> Any:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    server = web.runner.run(start())
    outside = FakeOutside({"api.example": ["93.184.216.34"], "evil.example": ["93.184.216.35"]}, server.sockets[0].getsockname()[1])
    monkeypatch.setattr("sandbox.browser.window.window.Outside", lambda: outside)

    async def use(session: PageSession, first: Observation) -> None:
        fetching = "fetch({!r}).then((answer) => answer.text()).catch(() => 'refused').then((text) => globalThis.got = text); 0"
        await page_value(session, fetching.format("http://api.example/data"))
        await session.step(actions.Wait(seconds=0.2))
        assert await page_value(session, "got") == "hello" and outside.dialled == [("93.184.216.34", 80)]
        await page_value(session, fetching.format("http://evil.example/data"))
        transition = await session.step(actions.Wait(seconds=0.2))
        assert await page_value(session, "got") == "refused" and len(outside.dialled) == 1
        assert transition.info["blocked"] == ["http://evil.example/data"]
        assert "ignored" in (await session.step(actions.Navigate(url="http://a%zz/"))).info
        transition = await session.step(actions.Navigate(url="http://api.example/data"))
        assert transition.observation.url == "http://api.example/data"

    try:
        web.run(use, sites=(), address=SHOP_FILE, network="allowed", allowed_hosts=("api.example", "a%zz"))
    finally:
        server.close()


def test_a_redirection_leads_no_further_than_a_link(web: Bench) -> None:
    """From the session's own terminal, as a page, a frame and a request."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        if asked[-1] == b"/":
            body = b"<!doctype html><title>home</title><a href='/away'>away</a>"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        else:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def start() -> Any:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect(port: int) -> Stream:
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "away"))
        assert b"/away" in asked and transition.info["blocked"] == ["http://169.254.169.254/latest"]
        assert transition.observation.url == "http://localhost:5000/"
        await page_value(session, "fetch('/away').then(() => 'reached', () => 'refused').then((said) => globalThis.said = said); 0")
        transition = await session.step(actions.Wait(seconds=0.2))
        assert await page_value(session, "said") == "refused" and "http://169.254.169.254/latest" in transition.info["blocked"]

    server = web.runner.run(start())
    try:
        web.run(use, connect=connect, address="http://localhost:5000/")
    finally:
        server.close()


SHOP_FILE = (SHOP.folder / "index.html").as_uri()


def test_a_server_that_never_answers_does_not_hold_a_step_for_ever(web: Bench) -> None:
    async def connect(port: int) -> Stream:
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

    async def start() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the browser gives up
            writer.close()

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def use(session: PageSession, first: Observation) -> None:
        await page_value(session, "fetch('http://localhost:80/hangs').catch(() => 0); 0")
        transition = await session.step(actions.Wait(seconds=0.1))
        assert "request" in transition.info["unsettled"]

    server = web.runner.run(start())
    try:
        web.run(use, connect=connect, settle_limit_s=1.0, sites=(), address=SHOP_FILE)
    finally:
        server.close()


NO_ANSWERS = {
    "/garbage": b"\0\xff nonsense\r\n\r\n",
    "/loop": b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n",
    "/elsewhere": b"HTTP/1.1 302 Found\r\nLocation: chrome://crash\r\nContent-Length: 0\r\n\r\n",
}


def test_an_answer_that_is_none_leads_to_an_error_page_and_back(web: Bench) -> None:
    """The error page has a process of its own, which begins in real time; page time has outrun that by then."""

    async def connect(port: int) -> Stream:
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

    async def start() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 8\r\n\r\n<p>home!"
            writer.write(NO_ANSWERS.get(path, page))
            writer.close()

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def use(session: PageSession, first: Observation) -> None:
        for path in NO_ANSWERS:
            await session.step(actions.Wait(seconds=3))
            transition = await session.step(actions.Navigate(url=f"http://localhost:5000{path}"))
            assert "net::ERR_" in transition.info["ignored"] and transition.observation.screenshot and not transition.terminated
            transition = await session.step(actions.NavigateBack())
            assert transition.observation.url == "http://localhost:5000/" and "lost" not in transition.info

    server = web.runner.run(start())
    try:
        web.run(use, connect=connect, sites=(), address="http://localhost:5000/")
    finally:
        server.close()
