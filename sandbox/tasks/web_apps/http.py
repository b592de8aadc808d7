"""A small HTTP client over connections into a jail: one request a connection, with cookies, redirects followed within the application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from urllib.parse import urlencode, urljoin, urlsplit

from sandbox.tasks.page_task import Connect
from warehouse.core.errors import SandboxTimeout

TIMEOUT_S = 30.0
MAX_BYTES = 8 << 20
MAX_REDIRECTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`path` is where redirects led to."""

    status: int
    path: str
    content_type: str
    text: str


async def request(
    connect: Connect, port: int, method: str, path: str, *, form: Mapping[str, str] | None = None, cookies: dict[str, str]
) -> Answer:
    """Raises ConnectionRefusedError where nothing listens, SandboxTimeout. `cookies` are sent, and what is set is kept there."""
    for _ in range(MAX_REDIRECTS):
        status, headers, body = await _once(connect, port, method, path, form, cookies)
        for entry in headers.get_all("Set-Cookie") or []:
            name, _, value = entry.partition(";")[0].partition("=")
            cookies[name.strip()] = value.strip()
        target = headers.get("Location")
        if status not in {301, 302, 303, 307, 308} or target is None:
            break
        parts = urlsplit(urljoin(f"http://localhost:{port}{path}", target))
        if parts.port != port:
            break
        method, form = "GET", None
        path = parts.path + (f"?{parts.query}" if parts.query else "")
    return Answer(status=status, path=path, content_type=headers.get_content_type(), text=body.decode(errors="replace"))


async def _once(
    connect: Connect, port: int, method: str, path: str, form: Mapping[str, str] | None, cookies: Mapping[str, str]
) -> tuple[int, HTTPMessage, bytes]:
    body = urlencode(form or {}).encode()
    lines = [f"{method} {path} HTTP/1.0", f"Host: localhost:{port}", "Connection: close", "Accept: text/html"]
    if cookies:
        lines.append("Cookie: " + "; ".join(f"{name}={value}" for name, value in cookies.items()))
    if method == "POST":
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
    reader, writer = await connect(port)
    answer = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write("\r\n".join([*lines, "", ""]).encode() + (body if method == "POST" else b""))
            await writer.drain()
            with suppress(ConnectionResetError):
                while len(answer) < MAX_BYTES and (part := await reader.read(1 << 16)):
                    answer += part
    except TimeoutError as error:
        raise SandboxTimeout(f"{method} {path} was not answered within {TIMEOUT_S:g} s.") from error
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, _, rest = head.partition(b"\r\n")
    words = first.split()
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 502
    return status, parse_headers(BytesIO(rest + b"\r\n\r\n")), body
