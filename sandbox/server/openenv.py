"""OpenEnv's protocol at a sandbox server: each task is an environment at /openenv/SOURCE/TASK, and a WebSocket to its `/ws` is a lease that
ends with the connection. Spoken as by openenv-core 0.3: messages `reset`, `step`, `state` and `close`, each with `data`.

Its clients send no headers of their own, so the guard takes the token as a password too: `http://any:TOKEN@HOST:PORT/openenv/SOURCE/TASK`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, WebSocket
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from sandbox import wire
from sandbox.actions import ACTION
from sandbox.server import calls
from sandbox.server.bodies import LARGEST
from sandbox.server.lease import Lease
from sandbox.server.leases import Leases
from sandbox.server.metrics import Metrics
from sandbox.session import Observation
from sandbox.tasks.sources import find_task
from sandbox.tasks.task import Split, Task, drawn_seed
from warehouse.core.errors import ConfigError, FlywheelError, SandboxBusy, TaskError

PREFIX = "/openenv/"
ENVIRONMENT = PREFIX + "{source}/{task}"
Code = Literal["INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"]


class ResetData(BaseModel):
    """What a reset may say. Other arguments are for other environments, and ignored, as OpenEnv's own servers do."""

    model_config = ConfigDict(frozen=True)

    seed: Annotated[int | None, Field(ge=0, le=LARGEST, description="the same seed draws the same instance; none draws any")] = None
    episode_id: Annotated[str | None, Field(max_length=255)] = None
    split: Annotated[Split | None, Field(description="of which an instance is drawn; null: of `train`, of a held-out task `eval`")] = None
    screenshots: Annotated[bool, Field(description="for clients that pass an observation on as text, false")] = True
    instance: Annotated[int | None, Field(ge=0, le=LARGEST, description="this one, instead of a draw")] = None

    def instance_of(self, task: Task) -> int:
        if self.instance is not None:
            return self.instance
        split = self.split or (Split.EVAL if task.held_out else Split.TRAIN)
        return drawn_seed(task, split, random.Random(self.seed).randrange)


class _Problem(Exception):
    """An answer of type `error`."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


def add_to(app: FastAPI) -> None:
    @app.get(ENVIRONMENT + "/health", tags=["openenv"], summary="Whether it answers")
    async def health(source: str, task: str) -> dict[str, str]:
        find_task(f"{source}/{task}")
        return {"status": "healthy"}

    @app.get(ENVIRONMENT + "/metadata", tags=["openenv"], summary="What the environment is")
    async def metadata(source: str, task: str) -> dict[str, str]:
        found = find_task(f"{source}/{task}")
        return {"name": f"{source}/{task}", "description": f"Flywheel's task {task}, domain {found.domain}.", "version": found.version}

    @app.get(ENVIRONMENT + "/schema", tags=["openenv"], summary="JSON schemas of actions and observations")
    async def schema(source: str, task: str) -> dict[str, Any]:
        find_task(f"{source}/{task}")
        return {"action": ACTION.json_schema(), "observation": TypeAdapter(Observation).json_schema(), "state": STATE_SCHEMA}

    @app.websocket(ENVIRONMENT + "/ws")
    async def play(socket: WebSocket, source: str, task: str) -> None:
        await socket.accept()
        try:
            await _play(socket, source, task)
            await socket.close()
        except WebSocketDisconnect:
            pass


STATE_SCHEMA = {"type": "object", "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}}


async def _play(socket: WebSocket, source: str, name: str) -> None:
    """Until the client closes; where no session is to be had, until it got that error. Raises WebSocketDisconnect."""
    app = socket.app
    try:
        task = find_task(f"{source}/{name}")
        async with _leased(app.state.leases, str(socket.scope["client_name"]), task) as lease:
            await _Episodes(lease, app.state.metrics, task).answer(socket)
    except FlywheelError as error:
        await _heard(socket)  # what is said to nobody's question is not read
        await _say(socket, _error("CAPACITY_REACHED" if isinstance(error, SandboxBusy) else "SESSION_ERROR", str(error)))


@asynccontextmanager
async def _leased(leases: Leases, client: str, task: Task) -> AsyncIterator[Lease]:
    """A lease that is kept alive: the connection is its sign of life, and who thinks for long sends nothing."""
    lease = await leases.create(client, task, screenshots=True, ttl_s=None, wait_s=None)

    async def keep_alive() -> None:
        while True:
            lease.touch()
            await asyncio.sleep(lease.ttl_s / 3)

    keeper = asyncio.create_task(keep_alive())
    try:
        yield lease
    finally:
        keeper.cancel()
        lease.release("released")
        await lease.ended()


class _Episodes:
    """What is said on one connection."""

    def __init__(self, lease: Lease, metrics: Metrics, task: Task) -> None:
        self._lease, self._metrics, self._task = lease, metrics, task
        self._episode_id: str | None = None
        self._handlers: dict[str, Callable[[Any], Any]] = {"reset": self._reset, "step": self._step, "state": self._state}

    async def answer(self, socket: WebSocket) -> None:
        """Message by message, until the lease ends. An error is an answer, and the next message may do better. The next one is awaited
        while the last is carried out: only so are a client's pings answered meanwhile."""
        coming = asyncio.ensure_future(_heard(socket))
        try:
            while True:
                text = await coming
                coming = asyncio.ensure_future(_heard(socket))
                if (said := await self._answer_to(text)) is None:
                    return
                await _say(socket, said)
                if self._lease.end is not None:
                    return
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _answer_to(self, text: str | None) -> dict[str, Any] | None:
        """None for the client's farewell."""
        try:
            message = _message(text)
            kind = message["type"]
            if kind == "close":
                return None
            data = await self._handlers[kind](message.get("data") or {})
        except _Problem as problem:
            return _error(problem.code, str(problem))
        return {"type": "state" if kind == "state" else "observation", "data": data}

    async def _reset(self, data: Any) -> dict[str, Any]:
        try:
            wanted = ResetData.model_validate(data)
            instance = wanted.instance_of(self._task)
        except (ValidationError, TaskError) as error:
            raise _Problem("VALIDATION_ERROR", f"This is not a reset: {error}") from error
        started = await self._asked(
            calls.reset(self._lease, self._metrics, self._task, instance, screenshots=wanted.screenshots, number=None)
        )
        self._episode_id = wanted.episode_id or f"{self._lease.session_id}:{instance}"
        return _result(started.observation, None, False, {"instance": instance})

    async def _step(self, data: Any) -> dict[str, Any]:
        try:
            # Typed clients send the `metadata` that every action of theirs has.
            said = {key: value for key, value in data.items() if key != "metadata"} if isinstance(data, dict) else data
            action = ACTION.validate_python(said)
        except ValidationError as error:
            raise _Problem("VALIDATION_ERROR", f"This is not an action, see schema: {error}") from error
        transition = await self._asked(calls.step(self._lease, self._metrics, action, number=None))
        metadata = {"info": transition.info, "truncated": transition.truncated}
        return _result(transition.observation, transition.reward, transition.terminated or transition.truncated, metadata)

    async def _state(self, data: Any) -> dict[str, Any]:
        return {"episode_id": self._episode_id, "step_count": self._lease.journal.num_steps}

    async def _asked(self, call: Any) -> Any:
        try:
            return await call
        except (ConfigError, TaskError) as error:
            raise _Problem("VALIDATION_ERROR", str(error)) from error
        except FlywheelError as error:
            raise _Problem("EXECUTION_ERROR" if self._lease.end is None else "SESSION_ERROR", str(error)) from error


async def _heard(socket: WebSocket) -> str | None:
    """The next message; None where it is bytes. Raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    text: str | None = message.get("text")
    return text


def _message(text: str | None) -> dict[str, Any]:
    """Raises _Problem."""
    if text is None:
        raise _Problem("INVALID_JSON", "The message is bytes: send JSON as text.")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Problem("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(message, dict) or message.get("type") not in ("reset", "step", "state", "close"):
        said = message.get("type") if isinstance(message, dict) else message
        raise _Problem("UNKNOWN_TYPE", f"The message is of type {str(said)[:80]!r}; types are reset, step, state, close.")
    return message


def _result(seen: Observation | None, reward: float | None, is_done: bool, metadata: dict[str, Any]) -> dict[str, Any]:
    """As the clients' `_parse_result` reads it. The screenshot is PNG in base64 as it is usual, not in the URL-safe one of /v1."""
    plain: dict[str, Any] = {}
    if seen is not None:
        plain = json.loads(wire.OBSERVATION.to_json(replace(seen, screenshot=None)))
        plain["screenshot"] = None if seen.screenshot is None else base64.b64encode(seen.screenshot).decode()
    return {"observation": plain, "reward": reward, "done": is_done, "metadata": metadata}


def _error(code: Code, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


async def _say(socket: WebSocket, message: dict[str, Any]) -> None:
    await socket.send_text(json.dumps(message, default=str))
