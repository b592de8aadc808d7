"""The HTTP interface of a sandbox server: /v1 for programs, /metrics, /health, /openapi.json, and the live view for people (live.py).

Values are JSON, or MessagePack where the request accepts it: then a screenshot travels as the bytes it is, in the same answer. A second
request for it would double the time of a step, and base64 costs a third more bytes and the time to write and read them. Whoever only
wants to look at a screen gets it by itself under its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import msgpack
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp

from sandbox import wire
from sandbox.actions import Action
from sandbox.http import problems
from sandbox.http.problems import PROBLEMS, shared_routes
from sandbox.http.serving import api_version, unless_gone
from sandbox.http.tokens import Tokens
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server import bodies, calls, live, openenv
from sandbox.server.access import AllLeases, Client, OwnLease
from sandbox.server.bodies import STARTED, STEPPED
from sandbox.server.guard import BodyLimits, Guard
from sandbox.server.leases import Leases
from sandbox.server.metrics import MEDIA_TYPE as METRICS_TYPE
from sandbox.server.metrics import Metrics
from sandbox.server.problems import BUSY, RETRY_AFTER_S, OutOfOrder, problem_of
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import ADMIN_CLIENT, DEFAULT_CLIENT
from sandbox.session import FileEntry, Observation, Transition, Verdict
from sandbox.tasks.sources import all_tasks, tasks_of
from sandbox.tasks.task import Task
from sandbox.wire import MSGPACK_TYPE, Codec
from warehouse.core.errors import AccessDenied, ConfigError, FlywheelError, SandboxBusy

T = TypeVar("T")
DESCRIPTION = """Sessions of a sandbox on lease. Every request needs `Authorization: Bearer TOKEN`.

`POST /v1/sessions` leases a session; reset, step and evaluate it; send a sign of life at least once in its time to live; delete it.
A session that stays silent is reclaimed. Resets and steps carry a number, so that a request whose answer was lost can be sent again.
Errors are `application/problem+json`; `error` names their kind. With `Accept: application/msgpack` screenshots are bytes, in JSON base64.
"""


def create_app(session_pool: SessionPoolProtocol, tokens: Tokens, settings: ServerSettings | None = None) -> tuple[ASGIApp, Leases]:
    """The ASGI application of a server over a pool that has been entered, and its leases. The application's end releases them all."""
    settings = settings or ServerSettings()
    metrics = Metrics(session_pool)
    leases = Leases(session_pool, settings, metrics)
    metrics.watch("flywheel_sessions_live", "Leases that live.", lambda: leases.num_live)
    metrics.watch("flywheel_sessions_waiting", "Requests for a lease that wait.", lambda: leases.num_waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await leases.close()

    app = FastAPI(
        title="Flywheel sandbox",
        version=api_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.state.leases, app.state.metrics, app.state.settings = leases, metrics, settings
    app.add_exception_handler(FlywheelError, _problem)
    app.add_exception_handler(RequestValidationError, _wrong_request)
    app.router.routes.extend(shared_routes(_add_sessions, _add_calls, _add_server, live.add_to, openenv.add_to))
    limits = BodyLimits(max_bytes=settings.max_body_mib << 20, max_s=settings.max_request_s)
    return Guard(app, tokens, metrics, limits), leases


def _add_sessions(app: FastAPI) -> None:
    @app.post("/v1/sessions", status_code=201, tags=["sessions"], summary="Lease a session", response_model=bodies.Started)
    async def create(body: bodies.CreateSession, request: Request, client: Client, leases: AllLeases) -> Response:
        """Waits while none is free, then 503 with Retry-After."""
        if body.seed is not None and body.task is None:
            raise ConfigError("A seed without a task starts nothing: send both, a task alone, or neither.")
        lease = await unless_gone(
            request,
            leases.create(client, body.task, screenshots=body.screenshots, ttl_s=body.ttl_s, wait_s=body.wait_s, key=body.key),
            SandboxBusy("The client went away while it waited."),
        )
        if body.task is None or body.seed is None:
            return answer(request, STARTED, calls.started(lease, await lease.granted()), 201)
        try:
            started = await calls.reset(lease, request.app.state.metrics, body.task, body.seed, screenshots=body.screenshots, number=1)
        except OutOfOrder:  # the key's session has gone on since: it stays with the client that has it
            raise
        except BaseException:  # no client knows of the lease
            lease.release("failed", distrusted=True)
            raise
        return answer(request, STARTED, started, 201)

    @app.get("/v1/sessions", tags=["sessions"], summary="Your sessions")
    async def sessions(client: Client, leases: AllLeases) -> list[bodies.SessionStatus]:
        return [calls.status_of(lease) for lease in leases.of(client)]

    @app.get("/v1/sessions/{session_id}", tags=["sessions"], summary="One of your sessions")
    async def session(lease: OwnLease) -> bodies.SessionStatus:
        return calls.status_of(lease)

    @app.delete("/v1/sessions/{session_id}", status_code=204, tags=["sessions"], summary="Release a session")
    async def release(lease: OwnLease, failed: bool = False) -> Response:
        """Answers when the session is back in the pool. `failed`: do not hand its page to the next client."""
        lease.release("released", distrusted=failed)
        await lease.ended()
        return Response(status_code=204)

    @app.post("/v1/sessions/{session_id}/heartbeat", status_code=204, tags=["sessions"], summary="A sign of life")
    async def heartbeat(lease: OwnLease) -> Response:
        lease.touch()
        return Response(status_code=204)

    @app.post("/v1/heartbeat", tags=["sessions"], summary="A sign of life of several sessions")
    async def heartbeats(body: bodies.Heartbeat, client: Client, leases: AllLeases) -> bodies.HeartbeatAnswer:
        own = {lease.session_id: lease for lease in leases.of(client)}
        for session_id in body.sessions:
            if session_id in own:
                own[session_id].touch()
        alive = tuple(name for name in body.sessions if name in own)
        return bodies.HeartbeatAnswer(alive=alive, gone=tuple(name for name in body.sessions if name not in own))


def _add_calls(app: FastAPI) -> None:
    @app.post("/v1/sessions/{session_id}/reset", tags=["calls"], summary="Start an instance of a task", response_model=bodies.Started)
    async def reset(lease: OwnLease, body: bodies.ResetSession, request: Request) -> Response:
        started = await calls.reset(
            lease, request.app.state.metrics, body.task, body.seed, screenshots=body.screenshots, number=body.number
        )
        return answer(request, STARTED, started)

    @app.post("/v1/sessions/{session_id}/step", tags=["calls"], summary="Carry out one action", response_model=Transition)
    async def step(lease: OwnLease, body: bodies.StepSession, request: Request) -> Response:
        return answer(request, wire.TRANSITION, await calls.step(lease, request.app.state.metrics, body.action, number=body.number))

    @app.post("/v1/step", tags=["calls"], summary="One action in each of several sessions", response_model=list[bodies.SteppedSession])
    async def steps(body: bodies.StepSessions, client: Client, leases: AllLeases, request: Request) -> Response:
        """Side by side; the answers are in the order of the request, each a transition or a problem."""
        one_by_one = (calls.one_of_many(leases, client, request.app.state.metrics, one) for one in body.steps)
        return answer(request, STEPPED, tuple(await asyncio.gather(*one_by_one)))

    @app.post("/v1/sessions/{session_id}/evaluate", tags=["calls"], summary="The verifier's verdict", response_model=Verdict)
    async def evaluate(lease: OwnLease, request: Request) -> Response:
        """`reasons` are there only where the server was started with oracles allowed: they say what the task hides."""
        return answer(request, wire.VERDICT, await calls.evaluate(lease, request.app.state.metrics, request.app.state.settings))

    @app.post("/v1/sessions/{session_id}/hint", tags=["calls"], summary="What the task's oracle would do", response_model=Action | None)
    async def oracle_action(lease: OwnLease, request: Request) -> Response:
        """Only where the server was started with oracles allowed."""
        return answer(request, wire.ACTION, await calls.oracle_action(lease, request.app.state.metrics, request.app.state.settings))

    @app.get("/v1/sessions/{session_id}/files", tags=["calls"], summary="Files of the workspace", response_model=list[FileEntry] | None)
    async def files(lease: OwnLease, request: Request) -> Response:
        """What a person may look at beside the agent; null where the session has no workspace."""
        return answer(request, wire.FILES, await calls.files(lease, request.app.state.metrics))

    @app.get("/v1/sessions/{session_id}/files/text", tags=["calls"], summary="One file's text", response_model=str | None)
    async def file_text(lease: OwnLease, path: Annotated[str, Query(max_length=4096)], request: Request) -> Response:
        """Null where there is no such text file, or it is too long to be shown."""
        return answer(request, wire.TEXT, await calls.read_file(lease, request.app.state.metrics, path))

    @app.get("/v1/sessions/{session_id}/observation", tags=["calls"], summary="The last observation again", response_model=Observation)
    async def observation(lease: OwnLease, request: Request) -> Response:
        lease.touch()
        return answer(request, wire.OBSERVATION, calls.last_observation(lease))

    @app.get("/v1/sessions/{session_id}/screenshot", tags=["calls"], summary="The last screen as PNG", response_class=Response)
    async def screenshot(lease: OwnLease, request: Request) -> Response:
        """ETag is the screenshot's id; 304 where the client has it."""
        lease.touch()
        seen = calls.last_observation(lease)
        if seen.screenshot is None:
            raise ConfigError("This session takes no screenshots: reset it with screenshots.")
        headers = {"ETag": f'"{seen.screenshot_id}"', "Cache-Control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(seen.screenshot, media_type="image/png", headers=headers)


def _add_server(app: FastAPI) -> None:
    @app.get("/health", tags=["server"], summary="Whether the server takes requests")
    async def health(leases: AllLeases) -> bodies.Health:
        return bodies.Health(
            status="closing" if leases.is_closing else "ok",
            version=api_version(),
            num_sessions=leases.num_live,
            num_waiting=leases.num_waiting,
        )

    @app.get("/v1/status", tags=["server"], summary="What the server is and what it has free")
    async def status(client: Client, leases: AllLeases) -> bodies.ServerStatus:
        return calls.server_status(client, leases)

    @app.post("/v1/drain", tags=["server"], summary="Grant no new sessions")
    async def drain(body: bodies.DrainServer, client: Client, leases: AllLeases) -> bodies.ServerStatus:
        """Sessions on lease go on to their end. Of several clients only the one named `admin` may."""
        if client not in (DEFAULT_CLIENT, ADMIN_CLIENT):
            raise AccessDenied(f"Only the server's own token, or that of the client {ADMIN_CLIENT!r}, may drain it; this is {client!r}'s.")
        leases.drain(body.is_draining)
        return calls.server_status(client, leases)

    @app.get("/v1/tasks", tags=["server"], summary="Tasks that sessions can run")
    async def tasks(select: str | None = None) -> list[Task]:
        """All, or those that `source` or `source:group` selects."""
        return list(all_tasks() if select is None else tasks_of(select))

    @app.get("/metrics", tags=["server"], summary="Counters for Prometheus", response_class=Response)
    async def metrics(request: Request) -> Response:
        # In the loop: what it reads changes there.
        return Response(request.app.state.metrics.render(), media_type=METRICS_TYPE)


def answer(request: Request, codec: Codec[T], value: T, status: int = 200) -> Response:
    """A value as the request wants it."""
    if MSGPACK_TYPE in request.headers.get("accept", ""):
        return Response(msgpack.packb(codec.to_plain(value), default=str), status, media_type=MSGPACK_TYPE)
    return Response(codec.to_json(value), status, media_type="application/json")


async def _problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, FlywheelError):
        raise error
    problem = problem_of(error)
    return problems.answer(problem, {"Retry-After": str(RETRY_AFTER_S)} if problem["status"] == BUSY else None)


async def _wrong_request(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return await _problem(request, ConfigError(f"{problems.unusable(error, shows_texts=True)} See /openapi.json."))
