"""A leased session over HTTP, for a program that drives it: a terminal, a desktop, a page. JSON in the form of sandbox/wire.py.

    GET  SESSION          → the observation
    POST SESSION/step     an action → {"observation": …, "terminated": …, "truncated": …}

SESSION is the address with a path that nobody guesses. Rewards and a transition's info are left out: a policy never sees them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.harness.driven import DrivenSession
from sandbox import wire
from sandbox.http.serving import Server, on_free_port
from sandbox.session import Observation, Transition
from warehouse.core.errors import SandboxError

JSON_TYPE = "application/json"
MAX_ACTION_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """What a step led to, as far as a policy may know."""

    observation: Observation
    terminated: bool
    truncated: bool


LED: wire.Codec[Led] = wire.Codec("step's outcome", Led)


def _led(led: Transition) -> bytes:
    return LED.to_json(Led(observation=led.observation, terminated=led.terminated, truncated=led.truncated))


@asynccontextmanager
async def open_endpoint(session: DrivenSession) -> AsyncIterator[str]:
    """The session's address, for as long as the block lasts."""
    path = f"/{secrets.token_urlsafe(16)}"

    async def observation(request: Request) -> Response:
        return await _said(session.look, lambda led: wire.OBSERVATION.to_json(led.observation))

    async def step(request: Request) -> Response:
        text = await _read(request)
        if text is None:
            return JSONResponse({"error": f"the action is larger than {MAX_ACTION_BYTES} bytes"}, status_code=413)
        try:
            action = wire.ACTION.from_json(text)
        except SandboxError as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        if action is None:
            return JSONResponse({"error": 'null is not an action: send one, e.g. {"kind": "wait"}'}, status_code=422)
        return await _said(lambda: session.step(action), _led)

    routes = [Route(path, observation), Route(f"{path}/step", step, methods=["POST"])]
    async with on_free_port(Server(Starlette(routes=routes), grace_s=1, lifespan="off")) as url:
        yield url + path


async def _read(request: Request) -> bytes | None:
    """The body; None for one that is too large, of which no more is read."""
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > MAX_ACTION_BYTES:
            return None
    return text


async def _said(act: Callable[[], Awaitable[Transition]], write: Callable[[Transition], bytes]) -> Response:
    """The runner replaces a lost session; the program gets the error."""
    try:
        return Response(write(await act()), media_type=JSON_TYPE)
    except SandboxError as error:
        return JSONResponse({"error": str(error)}, status_code=503)
