"""The live view: the pages under live/ and the events that they show. Reads journals; changes nothing.

Events are server-sent: one way, plain HTTP, with the cookie of the login; a browser reconnects by itself. A slow viewer misses states in
between, never the newest one. What a model wrote goes out as JSON and is set as text, never as markup.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse

from sandbox.server.access import AllLeases, Client, OwnLease
from sandbox.server.calls import status_of
from sandbox.server.lease import EXPLANATIONS, Lease
from sandbox.server.leases import Leases
from warehouse.core.errors import LeaseLost

FOLDER = Path(__file__).with_name("live")
FILES = {"live.js": "text/javascript", "live.css": "text/css", "icon.svg": "image/svg+xml"}
KEEP_ALIVE_S = 15.0
LIST_EVERY_S, SCREEN_EVERY_S = 0.5, 0.04
"""Shortest time between two events of a stream."""


def add_to(app: FastAPI) -> None:
    """The live view's routes."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response((FOLDER / "index.html").read_bytes(), media_type="text/html; charset=utf-8")

    @app.get("/live/files/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in FILES:
            return Response(status_code=404)
        return Response((FOLDER / name).read_bytes(), media_type=FILES[name], headers={"Cache-Control": "private, no-cache"})

    @app.get("/live/events", include_in_schema=False)
    async def list_events(client: Client, leases: AllLeases) -> Response:
        return _stream(_list_events(leases, client))

    @app.get("/live/sessions/{session_id}/events", include_in_schema=False)
    async def session_events(lease: OwnLease, leases: AllLeases) -> Response:
        return _stream(_session_events(leases, lease))

    @app.get("/live/sessions/{session_id}/screens/{screenshot_id}", include_in_schema=False)
    async def screen(lease: OwnLease, screenshot_id: str) -> Response:
        data = lease.journal.screen(screenshot_id)
        if data is None:
            raise LeaseLost(f"The screen {screenshot_id} is no longer the session's newest.")
        return Response(data, media_type="image/png", headers={"Cache-Control": "private, max-age=600, immutable"})


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, default=str).encode() + b"\n\n"


async def _list_events(leases: Leases, client: str) -> AsyncIterator[bytes]:
    """The client's sessions, whenever something about them changed."""
    sent: list[Any] | None = None
    quiet_s = 0.0
    while not leases.is_closing:
        sessions = [_summary(lease) for lease in leases.of(client)]
        if sessions != sent:
            yield _event({"sessions": sessions})
            sent, quiet_s = sessions, 0.0
        elif quiet_s >= KEEP_ALIVE_S:
            yield b": still here\n\n"
            quiet_s = 0.0
        await asyncio.sleep(LIST_EVERY_S)
        quiet_s += LIST_EVERY_S
    yield _event({"closing": True})


def _summary(lease: Lease) -> dict[str, Any]:
    status = status_of(lease).model_dump(mode="json", exclude={"age_s", "left_s", "num_calls"})
    return {**status, "ttl_s": lease.ttl_s, "has_output": bool(lease.journal.output)}


async def _session_events(leases: Leases, lease: Lease) -> AsyncIterator[bytes]:
    """What is on a session's screen, whenever it changed, until the lease ends."""
    version = -1
    while lease.end is None and not leases.is_closing:
        if version == lease.journal.version:
            if not await lease.journal.change(version, KEEP_ALIVE_S):
                yield b": still here\n\n"
            continue
        version = lease.journal.version
        yield _event(_detail(lease))
        await asyncio.sleep(SCREEN_EVERY_S)
    yield _event({"ended": EXPLANATIONS[lease.end] if lease.end is not None else EXPLANATIONS["shutdown"]})


def _detail(lease: Lease) -> dict[str, Any]:
    journal, seen = lease.journal, lease.journal.observation
    screen: dict[str, Any] | None = None
    if seen is not None:
        screen = {
            "width_px": seen.width_px,
            "height_px": seen.height_px,
            "url": seen.url,
            "time_ms": seen.time_ms,
            "elements": [asdict(element) for element in seen.elements],
        }
    return {**_summary(lease), "screen": screen, "steps": [asdict(step) for step in journal.steps], "output": journal.output}
