"""Servers of ours that are asked: the gateway's interfaces, the annotation server, a policy server and a sandbox server."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import fuzz_imports
from benchmarks.doors.inputs import picture
from benchmarks.doors.player import Player
from benchmarks.doors.requests import OTHER, SECRET, TOKEN, Door, authorised, files_of, local_client, remote_client, routes_in
from sandbox.actions import Action, Wait
from sandbox.http.hosts import KnownHosts
from sandbox.session import Observation, Transition
from sandbox.tasks.task import Task
from tests.sandbox.counting import CountingPool, CountingSession
from warehouse.core.home import Home

PLAIN = {"model": "policy", "messages": [{"role": "user", "content": "Press Ok."}], "max_tokens": 2}
ROUTES: Mapping[str, Sequence[str]] = {
    "gateway chat": ("/v1/chat/completions",),
    "gateway responses": ("/v1/responses",),
    "gateway messages": ("/v1/messages",),
    "gateway spans": ("/v1/traces",),
    "gateway outcomes": ("/episodes", "/outcomes"),
}


def chat() -> dict[str, Any]:
    shown = [{"type": "text", "text": "Press Ok."}, {"type": "image_url", "image_url": {"url": picture(fuzz_imports.good_picture(0))}}]
    tool = {"type": "function", "function": {"name": "press", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    return {"model": "policy", "messages": [{"role": "user", "content": shown}], "max_tokens": 4, "tools": [tool], "temperature": 0}


def upstream() -> Starlette:
    """A policy server that gives everybody the same answer, at once."""
    message = {"index": 0, "message": {"role": "assistant", "content": "click"}, "finish_reason": "stop"}

    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "owned_by": "fuzz"}]})

    async def answer(request: Request) -> Response:
        asked = await request.json()
        indices = range(asked.get("n") or 1)
        if not asked.get("stream"):
            return JSONResponse({"choices": [message | {"index": index} for index in indices]})
        chunks = [{"choices": [{"index": index, "delta": {"content": "click"}, "finish_reason": "stop"}]} for index in indices]
        text = "".join(f"data: {line}\n\n" for line in (*map(json.dumps, chunks), "[DONE]"))
        return Response(text, media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", answer, methods=["POST"])])


def _examples() -> dict[str, Any]:
    seen = [{"type": "input_text", "text": "Press Ok."}, {"type": "input_image", "image_url": picture(fuzz_imports.good_picture(1))}]
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(fuzz_imports.good_picture(2)).decode()}
    shown = [{"type": "text", "text": "Press Ok."}, {"type": "image", "source": source}]
    return {
        "/v1/chat/completions": chat(),
        "/v1/responses": {"model": "policy", "input": [{"role": "user", "content": seen}], "max_output_tokens": 4},
        "/v1/messages": {"model": "policy", "max_tokens": 4, "messages": [{"role": "user", "content": shown}]},
        "/v1/traces": fuzz_imports.valid("otel-genai", 1),
        "/episodes/{name}/outcome": {"value": 1, "by": "checker", "reasons": ["it is there"]},
    }


@asynccontextmanager
async def gateway(folder: Path, which: str) -> AsyncIterator[Player]:
    from agent.gateway.intake import Intake
    from agent.gateway.log import GatewayLog
    from models.gateway.app import create_app
    from models.gateway.recorder import Recorder
    from models.gateway.settings import GatewaySettings
    from models.gateway.upstream import Upstream
    from models.gateway.upstreams import Upstreams
    from models.server.metrics import Metrics
    from sandbox.http.serving import Server, on_free_port

    home = Home(folder / "home")
    home.make()
    log = GatewayLog(home)
    settings = GatewaySettings()
    try:
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(on_free_port(Server(upstream(), grace_s=1, lifespan="off")))
            live = Upstreams([Upstream(there, None, timeout_s=settings.timeout_s)])
            await live.open()
            stack.push_async_callback(live.close)
            recorder = Recorder(log, live, None, settings, None)
            stack.push_async_callback(recorder.settle)
            app = create_app(recorder, {"ours": TOKEN, "theirs": OTHER}, Metrics(), Intake(home))
            url = await stack.enter_async_context(on_free_port(Server(app, grace_s=1, lifespan="off")))
            local = await stack.enter_async_context(local_client(KnownHosts(app), url))
            remote = await stack.enter_async_context(remote_client(url))
            described = (await local.get("/openapi.json", headers=authorised())).json()
            (
                await local.post("/v1/chat/completions", json=PLAIN, headers=authorised(OTHER) | {"x-flywheel-episode": SECRET})
            ).raise_for_status()

            async def whole() -> httpx.Response:
                return await remote.post("/v1/chat/completions", json=PLAIN, headers=authorised())

            yield Door(
                name=which,
                local=local,
                remote=remote,
                routes=routes_in(described, ROUTES[which]),
                schemas=described["components"]["schemas"],
                stored=partial(files_of, home.root / "gateway", home.root / "logs"),
                whole=whole,
                examples=_examples(),
                names=lambda: ("run-1",),
            ).player()
    finally:
        log.close()


@asynccontextmanager
async def annotation_server(folder: Path) -> AsyncIterator[Player]:
    from sqlalchemy import func, select, union_all

    from annotation.storage.schema import Base
    from annotation.web.settings import WebSettings
    from tests.annotation.web.web_parts import site

    async with site(folder, settings=WebSettings(burst=10**6, requests_per_s=10**6)) as there:
        ours, _ = await there.accounts.add_program("ours", "annotator", "fuzz")
        theirs, _ = await there.accounts.add_program("theirs", "annotator", SECRET)
        async with local_client(KnownHosts(there.guard), there.address) as local, remote_client(there.address) as remote:
            described = (await local.get("/api/v1/openapi.json", headers=authorised(ours))).json()
            named = Base.metadata.tables.items()
            kept = [table for name, table in named if not any(word in name for word in ("attempt", "login", "audit"))]
            counting = union_all(*(select(func.count()).select_from(table) for table in kept))

            def stored() -> object:
                with there.database.engine.connect() as con:
                    return con.execute(counting).scalars().all(), files_of(folder / "screens", folder / "parts")

            async def whole() -> httpx.Response:
                return await remote.get("/api/v1/me", headers=authorised(ours))

            yield Door(
                name="annotation server",
                local=local,
                remote=remote,
                routes=[route for route in routes_in(described) if route[1] != "/api/v1/logout"],  # it ends the token
                schemas=described["components"]["schemas"],
                stored=stored,
                whole=whole,
                open_paths=("/api/v1/login", "/api/v1/join", "/health", "/login", "/join", "/pages", "/api/v1/logout"),
                token=ours,
                other=theirs,
                names=lambda: ("run-1", "recording-1"),
            ).player()


@asynccontextmanager
async def policy_server(folder: Path) -> AsyncIterator[Player]:
    """Two checkpoints of a tiny transformer below the only folder that weights are loaded from."""
    from models.checkpoints.checkpoint import save
    from models.server.app import create_app
    from models.server.backend import ServedEngine
    from models.server.settings import ServerSettings
    from sandbox.http.serving import Server, on_free_port
    from tests.models.conftest import small_model

    for number, name in enumerate("ab"):
        save(folder / "weights" / name, *small_model(number), stage="seed_policy", iteration="0000")
    (folder / SECRET).mkdir()
    engine = ServedEngine.open(folder / "weights" / "a")
    settings = ServerSettings(weight_roots=(folder / "weights",), max_tokens=8, default_max_tokens=2)
    try:
        app, _ = create_app(engine, TOKEN, settings)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(on_free_port(Server(app, grace_s=1, lifespan="off")))
            local = await stack.enter_async_context(local_client(KnownHosts(app), url))
            remote = await stack.enter_async_context(remote_client(url))
            described = (await local.get("/openapi.json", headers=authorised())).json()

            def weights(dice: random.Random) -> dict[str, Any]:
                given = dice.choice(("weights/a", "weights/b", "weights", SECRET, "weights/../" + SECRET, "weights/a/config.json", "none"))
                return {"folder": str(folder / given), "version": dice.randrange(3)}

            async def whole() -> httpx.Response:
                return await remote.post("/v1/chat/completions", json=PLAIN, headers=authorised())

            yield Door(
                name="policy server",
                local=local,
                remote=remote,
                routes=routes_in(described),
                schemas=described["components"]["schemas"],
                stored=lambda: (engine.policy_id, engine.version, files_of(folder)),
                whole=whole,
                examples={
                    "/v1/chat/completions": chat() | {"model": None},
                    "/v1/completions": {"prompt": "Press Ok.", "max_tokens": 3, "temperature": 0},
                    "/v1/weights": weights,
                },
                names=lambda: ("policy",),
                secrets=tuple,
            ).player()
    finally:
        engine.close()


class QuickSession(CountingSession):
    """Plays any task, and waits for nothing."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.count, self.seed = 0, seed
        return self._observe()

    async def step(self, action: Action) -> Transition:
        if isinstance(action, Wait):
            return Transition(observation=self._observe(), reward=0.0, terminated=False, truncated=False)
        return await super().step(action)


def quick_pool(size: int) -> CountingPool:
    pool = CountingPool(size)
    pool.free = [QuickSession(pool) for _ in range(size)]
    return pool


MAX_LEASES = 4


@asynccontextmanager
async def sandbox_server(folder: Path) -> AsyncIterator[Player]:
    """Sessions that count clicks. One is another client's."""
    from sandbox.http.serving import Server, on_free_port
    from sandbox.http.tokens import Tokens
    from sandbox.server.app import create_app
    from sandbox.server.settings import ServerSettings

    settings = ServerSettings(max_wait_s=5, ttl_s=600, max_sessions_per_client=2 * MAX_LEASES)
    app, leases = create_app(quick_pool(3 * MAX_LEASES), Tokens({"ours": TOKEN, "theirs": OTHER}), settings)
    task = {"source": "counting", "name": "count", "domain": "pointing", "max_steps": 100}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(on_free_port(Server(app, grace_s=1, socket_bytes=1 << 20)))
        local = await stack.enter_async_context(local_client(KnownHosts(app), url))
        remote = await stack.enter_async_context(remote_client(url))
        described = (await local.get("/openapi.json", headers=authorised())).json()

        async def lease(token: str) -> httpx.Response:
            return await local.post("/v1/sessions", json={"task": task, "seed": 1, "ttl_s": 600}, headers=authorised(token))

        other = (await lease(OTHER)).raise_for_status().json()["session_id"]

        async def prepare() -> None:
            for one in leases.of("ours")[MAX_LEASES:]:
                one.release("released")
                await one.ended()
            if not leases.of("ours"):
                (await lease(TOKEN)).raise_for_status()
            for each in (*leases.of("ours"), *leases.of("theirs")):
                each.touch()

        def states(client: str) -> list[Any]:
            return [(each.session_id, each.journal.num_steps, each.end) for each in leases.of(client)]

        def session(dice: random.Random) -> str:
            return dice.choice((leases.of("ours")[0].session_id, other, "session-0"))

        async def whole() -> httpx.Response:
            await prepare()
            step = {"action": {"kind": "click", "x": 1, "y": 1}}
            await remote.post(f"/v1/sessions/{leases.of('ours')[0].session_id}/reset", json={"task": task, "seed": 2}, headers=authorised())
            return await remote.post(f"/v1/sessions/{leases.of('ours')[0].session_id}/step", json=step, headers=authorised())

        yield Door(
            name="sandbox server",
            local=local,
            remote=remote,
            routes=routes_in(described),
            schemas=described["components"]["schemas"],
            stored=lambda: states("ours"),
            whole=whole,
            examples={
                "/v1/sessions": {"task": task, "seed": 1, "key": "once"},
                "/v1/sessions/{session_id}/reset": {"task": task, "seed": 3},
                "/v1/sessions/{session_id}/step": {"action": {"kind": "type", "text": "a"}},
                "/v1/step": lambda dice: {"steps": [{"session_id": session(dice), "action": {"kind": "click", "x": 1, "y": 2}}]},
                "/v1/heartbeat": lambda dice: {"sessions": [session(dice)]},
            },
            names=lambda: [each.session_id for each in leases.of("ours")],
            secrets=lambda: (other,),
            untouched=lambda: states("theirs"),
            prepare=prepare,
            allowed=(502, 503),  # a session that has no task yet
        ).player()
