"""Requests to a server of ours. Nine in ten go to its application as it is, in this process; the tenth goes through a socket and what reads
it there."""

from __future__ import annotations

import asyncio
import copy
import random
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks.doors.inputs import NO_OBJECTS, PATHS, as_text, bomb, changed, sample
from benchmarks.doors.player import SLOWEST_S, Player, nothing

TOKEN, OTHER, SECRET = "fuzz-0123456789-token", "other-0123456789-token", "kept-by-the-other-project"
SOCKET_EVERY = 10
ENDLESS = ("/events", "/stream")
"""Ends of paths whose answers come to no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A server. `local` asks its application, `remote` its socket. `routes` are method, path and the schema of its body; `whole` is a
    request that it takes at any time. `stored` returns what is stored, in any form that shows a change, `untouched` what no request of ours
    may change; `secrets` are names of what is another client's. `names` stand in paths beside PATHS; `open_paths` need no token.
    `prepare` brings back what a case may have ended. `examples`: bodies by path, or functions that make one."""

    name: str
    local: httpx.AsyncClient
    remote: httpx.AsyncClient
    routes: Sequence[tuple[str, str, Any]]
    schemas: Mapping[str, Any]
    stored: Callable[[], object]
    whole: Callable[[], Awaitable[httpx.Response]]
    examples: Mapping[str, Any] = field(default_factory=dict)
    open_paths: Sequence[str] = ()
    token: str = TOKEN
    other: str = OTHER
    names: Callable[[], Sequence[str]] = tuple
    secrets: Callable[[], Sequence[str]] = lambda: (SECRET,)
    untouched: Callable[[], object] = lambda: None
    prepare: Callable[[], Awaitable[None]] = nothing
    allowed: Sequence[int] = (503,)
    """Statuses from 500 on that are a refusal here."""

    def player(self) -> Player:
        async def after() -> None:
            answer = await self.whole()
            if answer.status_code >= 400:
                raise AssertionError(f"{self.name}: a plain request is answered with {answer.status_code} {answer.text[:300]}")

        return Player(_Requests(self).play, after)


def routes_in(described: Mapping[str, Any], prefix: Sequence[str] = ("",)) -> list[tuple[str, str, Any]]:
    """Method, path and schema of the body of every route that OpenAPI describes and that comes to an end."""
    found = []
    for path, methods in described["paths"].items():
        for method, each in methods.items():
            content = each.get("requestBody", {}).get("content", {})
            schema = next(iter(content.values()), {}).get("schema")
            if path.startswith(tuple(prefix)) and not path.endswith(ENDLESS):
                found.append((method.upper(), path.replace(":path}", "}"), schema))
    return found


def authorised(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def local_client(app: Any, url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("127.0.0.1", 50_000)), base_url=url, timeout=SLOWEST_S)


def remote_client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=SLOWEST_S, trust_env=False, verify=False)


def files_of(*folders: Path) -> object:
    return [(str(path), path.stat().st_size) for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def place_of(door: Door, dice: random.Random, path: str) -> str:
    """A path with its fields filled: with a name that there may be, or one that leads elsewhere."""
    while "{" in path:
        start, _, rest = path.partition("{")
        named = quote(dice.choice((*door.names(), *door.secrets(), *PATHS[:3]))) if dice.random() < 0.6 else dice.choice(PATHS)
        path = start + named + rest.partition("}")[2]
    if dice.random() < 0.03:
        path += "?" + dice.choice(("path=../../etc/passwd", "a=%00", "select=" + "x" * 3000, "limit=-1", "limit=1e9"))
    return path


def body_of(door: Door, dice: random.Random, path: str, schema: Any) -> bytes:
    match dice.randrange(20):
        case 0:
            return bomb(dice)
        case 1:
            return dice.choice(NO_OBJECTS).encode()
    if path in door.examples and dice.random() < 0.8:
        example = door.examples[path]
        body = example(dice) if callable(example) else copy.deepcopy(example)
    else:
        body = sample(dice, schema, door.schemas)
    return as_text(dice, changed(dice, body)).encode()


def headers_of(door: Door, dice: random.Random) -> tuple[dict[str, str], bool]:
    """And whether they are those of a client that is let in."""
    headers = {
        "content-type": dice.choice(
            ("application/json",) * 12 + ("text/plain", "application/msgpack", "multipart/form-data; boundary=x", "")
        )
    }
    if dice.random() < 0.03:
        headers["content-encoding"] = dice.choice(("gzip", "br", "x"))
    if dice.random() < 0.1:
        headers["x-flywheel-episode"] = dice.choice(("../x", "e" * 3000, "a/b", "anna@example.org", "run-1", "%0d%0a"))
    if dice.random() < 0.05:
        headers["host"] = dice.choice(("evil.example", "127.0.0.1@evil.example", "localhost:1"))
    match dice.randrange(10):
        case 0:
            return headers, False
        case 1:
            wrong = (
                f"Bearer {door.token[:-1]}",
                f"Bearer {door.token}x",
                "Bearer",
                "Basic eDp5",
                f"bearer  {door.token[::-1]}",
                "Bearer " + "t" * 9000,
            )
            return headers | {"authorization": dice.choice(wrong)}, False
    return headers | {"authorization": f"Bearer {door.token}"}, True


class _Requests:
    def __init__(self, door: Door) -> None:
        self._door, self._stored = door, door.stored()

    async def play(self, number: int) -> str:
        door, dice = self._door, random.Random(f"{self._door.name} {number}")
        await door.prepare()
        method, path, schema = dice.choice(door.routes)
        place = place_of(door, dice, path)
        headers, is_let_in = headers_of(door, dice)
        body = body_of(door, dice, path, schema) if method in ("POST", "PUT", "PATCH") else None
        if dice.random() < 0.02:
            method = dice.choice(("PUT", "DELETE", "PATCH", "OPTIONS"))
        said = f"{door.name} {number}: {method} {place[:120]} {(body or b'')[:300]!r}"
        client = door.local if number % SOCKET_EVERY else door.remote
        self._stored, untouched = door.stored(), door.untouched()
        try:
            request = client.build_request(method, place, content=body, headers=headers)
            answer = await asyncio.wait_for(client.send(request), SLOWEST_S)
        except TimeoutError:
            raise AssertionError(f"{said}: no answer in {SLOWEST_S:g} s") from None
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError):
            return "not sent"  # no client sends such a header or address
        except httpx.TransportError:
            # The server let go of it: on purpose, or by an error of its own, which its log has then. That it lives, a plain request shows.
            return "closed"
        except Exception:  # the application's own, which a server would log and answer with 500
            raise AssertionError(f"{said}: {traceback.format_exc()[-2500:]}") from None
        self._check(said, answer, place, f"{place} {headers}", body or b"", is_let_in)
        if door.untouched() != untouched:
            raise AssertionError(f"{said}: {answer.status_code}, and what is another client's was changed: {answer.text[:300]}")
        if answer.status_code >= 400 and door.stored() != self._stored:
            raise AssertionError(f"{said}: {answer.status_code} and yet something was stored: {answer.text[:300]}")
        return "answered" if answer.status_code < 400 else "refused"

    def _check(self, said: str, answer: httpx.Response, place: str, asked: str, body: bytes, is_let_in: bool) -> None:
        """Raises AssertionError."""
        door, status, text = self._door, answer.status_code, answer.text
        if status >= 500 and status not in door.allowed:
            raise AssertionError(f"{said}: {status} {text[:500]}")
        if status >= 400 and answer.request.method != "HEAD" and not text.strip():
            raise AssertionError(f"{said}: {status} without a word")
        leaked = [secret for secret in door.secrets() if secret in text and secret not in asked and secret.encode() not in body]
        if leaked or "Traceback (most recent call last)" in text or "root:x:0" in text:
            raise AssertionError(f"{said}: {status} reveals too much: {text[:500]}")
        if status < 400 and any(secret in place.partition("?")[0] for secret in door.secrets()):
            raise AssertionError(f"{said}: {status} for what is another client's: {text[:300]}")
        if status < 400 and not is_let_in and not place.startswith(tuple(door.open_paths)):
            raise AssertionError(f"{said}: {status} without the token: {text[:300]}")
