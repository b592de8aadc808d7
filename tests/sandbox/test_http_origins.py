"""Requests that browsers send for pages of other origins are refused; programs, own pages and links that are followed are let in."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from sandbox.http.origins import OwnPagesOnly

HOST = "127.0.0.1:3000"
FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
PICTURE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
OURS = [
    ("GET", {}),
    ("POST", {}),
    ("POST", {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-origin"}),
    ("POST", {"origin": "http://localhost:3000", "sec-fetch-site": "cross-site"}),
    ("POST", {"origin": "http://[::1]:3000"}),
    ("GET", {"sec-fetch-site": "same-origin", "sec-fetch-dest": "image"}),
    ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}),
    ("GET", LINK),
]
OTHERS = [
    ("POST", {"origin": "http://evil.example"}),
    ("POST", {"origin": "http://evil.example:3000"}),
    ("POST", {"origin": "https://127.0.0.1:3000"}),
    ("POST", {"origin": "http://127.0.0.1:3001"}),
    ("POST", {"origin": "http://127.0.0.1"}),
    ("POST", {"origin": "http://10.1.2.3:3000"}),
    ("POST", {"origin": "http://127.0.0.1.evil.example:3000"}),
    ("POST", {"origin": "http://evil.example@127.0.0.1:3000"}),
    ("POST", {"origin": "null"}),
    ("POST", {"origin": ""}),
    ("POST", {"origin": "http://127.0.0.1:x"}),
    ("POST", {"sec-fetch-site": "same-site"}),
    ("POST", LINK),
    ("GET", FRAME),
    ("GET", PICTURE),
    ("GET", {**PICTURE, "sec-fetch-site": "same-site"}),
]


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(method: str, headers: dict[str, str], host: str = HOST, names: tuple[str, ...] = ()) -> int:
    async def ask() -> int:
        transport = httpx.ASGITransport(OwnPagesOnly(_app, names))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            return (await client.request(method, "/graphql", headers={"host": host, **headers})).status_code

    return asyncio.run(ask())


@pytest.mark.parametrize(("method", "headers"), OURS)
def test_programs_own_pages_and_links_are_let_in(method: str, headers: dict[str, str]) -> None:
    assert status(method, headers) == 200


@pytest.mark.parametrize(("method", "headers"), OTHERS)
def test_pages_of_other_origins_are_not(method: str, headers: dict[str, str]) -> None:
    assert status(method, headers) == 403


def test_a_name_that_another_site_had_resolve_to_this_machine_is_not_answered() -> None:
    """Its page is of one origin with the server, so the browser sends no other."""
    assert status("GET", {"sec-fetch-site": "same-origin"}, "evil.example:3000") == 421
    assert status("POST", {"origin": "http://evil.example:3000", "sec-fetch-site": "same-origin"}, "evil.example:3000") == 403


def test_programs_may_ask_for_a_further_name_and_pages_of_that_name_may_not() -> None:
    assert status("POST", {}, "dagster-webserver:3000", names=("dagster-webserver",)) == 200
    assert status("POST", {"origin": "http://dagster-webserver:3000"}, "dagster-webserver:3000", names=("dagster-webserver",)) == 403


@pytest.mark.parametrize(("origin", "said"), [("http://localhost:3000", "websocket.accept"), ("http://evil.example", "websocket.close")])
def test_websockets_too(origin: str, said: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode()), (b"origin", origin.encode())]
    asyncio.run(OwnPagesOnly(_app)({"type": "websocket", "path": "/graphql", "headers": headers}, receive, send))
    assert [message["type"] for message in sent] == [said]
