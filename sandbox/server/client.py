"""The client of a sandbox server (sandbox/server): a pool of remote sessions, each of which is a Session like any other.

    async with SandboxClient("http://127.0.0.1:8421") as client:
        async with client.lease(task) as session:
            observation = await session.reset(task, seed)

It sends signs of life in the background, and sends a call again when the connection broke: calls are numbered, so nothing is done twice.
A client belongs to the event loop that first uses it; for code without one there is sandbox/server/client_sync.py.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgpack
from pydantic import ValidationError

from sandbox import wire
from sandbox.actions import ACTION, Action
from sandbox.http.certificates import rejection, verification
from sandbox.http.tokens import sendable
from sandbox.server.bodies import STARTED, ServerStatus
from sandbox.server.problems import error_of
from sandbox.server.tokens import client_token
from sandbox.session import FileEntry, Observation, Transition, Verdict, require_open
from sandbox.tasks.task import Task
from sandbox.wire import MSGPACK_TYPE, Codec
from warehouse.core.errors import FlywheelError, SandboxBusy, SandboxError, ServerUnreachable

T = TypeVar("T")
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 300.0
RELEASE_RETRY_S = 3.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
SERVER_WAIT_S = 20.0
"""How long one request for a session waits at the server before the client retries."""
HEARTBEATS_PER_TTL = 4


class RemoteSession:
    """A session on a server. `screenshots` may be set before a reset."""

    def __init__(self, client: SandboxClient, session_id: str, *, screenshots: bool) -> None:
        self.session_id, self.screenshots = session_id, screenshots
        self._client, self._environment = client, ""
        self._num_calls: int | None = 0
        """None where an error left it open whether the server has counted the last call."""
        self._lost: FlywheelError | None = None
        self._is_closed = False

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        return self._environment

    async def reset(self, task: Task, seed: int) -> Observation:
        body = {"task": wire.TASK.to_plain(task), "seed": seed, "screenshots": self.screenshots}
        started = await self._numbered_call("reset", STARTED, body)
        self._environment = started.environment
        if started.observation is None:
            raise SandboxError("The server answered a reset without an observation.")
        return started.observation

    async def step(self, action: Action) -> Transition:
        return await self._numbered_call("step", wire.TRANSITION, {"action": ACTION.dump_python(action, mode="json")})

    async def evaluate(self) -> Verdict:
        return await self._call("evaluate", wire.VERDICT)

    async def oracle_action(self) -> Action | None:
        """Raises AccessDenied where the server was started without oracles."""
        return await self._call("hint", wire.ACTION)

    async def files(self) -> tuple[FileEntry, ...] | None:
        return await self._call("files", wire.FILES, method="GET")

    async def read_file(self, path: str) -> str | None:
        return await self._call("files/text", wire.TEXT, method="GET", params={"path": path})

    async def observe(self) -> Observation:
        """The last observation again."""
        return await self._call("observation", wire.OBSERVATION, method="GET")

    async def close(self) -> None:
        """Release the session; may be called twice."""
        await self._release(failed=False)

    def _lose(self, error: FlywheelError) -> None:
        """Every later call raises `error`."""
        self._lost = error

    async def _next(self) -> int:
        """The number of the next call; nothing is known of it any more until that has been answered."""
        num_calls, self._num_calls = self._num_calls, None
        if num_calls is None:
            status = await self._client._send("GET", f"/v1/sessions/{self.session_id}")
            num_calls = int(status.json()["num_calls"])
        return num_calls + 1

    async def _numbered_call(self, name: str, codec: Codec[T], body: dict[str, Any]) -> T:
        require_open(self._is_closed)
        number = await self._next()
        begun_s = time.monotonic()
        answer = await self._call(name, codec, {**body, "number": number})
        self._num_calls = number
        if name == "step" and self._client.on_step is not None:
            self._client.on_step(time.monotonic() - begun_s)
        return answer

    async def _call(
        self, name: str, codec: Codec[T], body: dict[str, Any] | None = None, *, method: str = "POST", params: dict[str, Any] | None = None
    ) -> T:
        require_open(self._is_closed)
        if self._lost is not None:
            raise self._lost
        return await self._client._call(method, f"/v1/sessions/{self.session_id}/{name}", codec, body, params)

    async def _release(self, *, failed: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._client._forget(self)
        if self._lost is not None:
            self._client._left_behind.append(self.session_id)
            return
        # Where it cannot be released, because it is gone or the server is, the server reclaims it.
        try:
            await self._client._send("DELETE", f"/v1/sessions/{self.session_id}", params={"failed": failed}, retry_s=RELEASE_RETRY_S)
        except ServerUnreachable:
            self._client._left_behind.append(self.session_id)
        except FlywheelError:
            pass


class SandboxClient:
    """Leases sessions of one server. Is a pool, as collectors need one."""

    def __init__(
        self, url: str, token: str | None = None, *, wait_s: float = 600.0, retry_s: float = 30.0, ttl_s: float | None = None
    ) -> None:
        """`token`: default the one of the environment or the home. `wait_s`: longest wait for a session, `retry_s`: for a server that
        does not answer. `ttl_s`: a session is reclaimed so long after this process fell silent; default is the server's. Raises
        ConfigError without a token, and for one that cannot be sent."""
        self._url = url.rstrip("/")
        self._token = client_token() if token is None else sendable(token, f"the call for the sandbox server {self._url}")
        self._wait_s, self._retry_s, self._ttl_s = wait_s, retry_s, ttl_s
        self._held: dict[str, RemoteSession] = {}
        self._left_behind: list[str] = []
        """Sessions that were given up while the server did not answer; it may still hold them."""
        self._given_up: asyncio.Future[FlywheelError] | None = None
        self._http: httpx.AsyncClient | None = None
        self._heart: asyncio.Task[None] | None = None
        self._is_closed = False
        self.on_step: Callable[[float], None] | None = None
        """Called after each step with the seconds until its answer."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(
        self, task: Task | None = None, *, screenshots: bool = True, wait_s: float | None = None
    ) -> AsyncIterator[RemoteSession]:
        """A session that is the caller's until the block ends. Raises SandboxBusy when none comes free, ServerUnreachable, AccessDenied."""
        session = await self.open(task, screenshots=screenshots, wait_s=wait_s)
        failed = True
        try:
            yield session
            failed = False
        finally:
            await asyncio.shield(session._release(failed=failed))

    async def open(self, task: Task | None = None, *, screenshots: bool = True, wait_s: float | None = None) -> RemoteSession:
        """The same without a block: the caller closes the session."""
        wait_s = self._wait_s if wait_s is None else wait_s
        body: dict[str, Any] = {"screenshots": screenshots, "key": secrets.token_hex(16), "wait_s": min(wait_s, SERVER_WAIT_S)}
        if task is not None:
            body["task"] = wire.TASK.to_plain(task)
        if self._ttl_s is not None:
            body["ttl_s"] = self._ttl_s
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                started = await self._call("POST", "/v1/sessions", STARTED, body)
                break
            except SandboxBusy:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.2)
        session = RemoteSession(self, started.session_id, screenshots=screenshots)
        session._num_calls = started.num_calls
        self._held[session.session_id] = session
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat(started.ttl_s / HEARTBEATS_PER_TTL), name="heartbeats")
        return session

    async def sessions(self) -> list[dict[str, Any]]:
        """What the server says of this client's sessions, all holders' leases."""
        found: list[dict[str, Any]] = (await self._send("GET", "/v1/sessions")).json()
        return found

    async def status(self, *, timeout_s: float | None = None) -> ServerStatus:
        """What the server is and has free. `timeout_s`: ask once, and wait so long for the answer. Raises ServerUnreachable, AccessDenied,
        and SandboxError where what answers is not a sandbox server of this release or a later one."""
        response = await self._send("GET", "/v1/status", retry_s=None if timeout_s is None else 0.0, timeout_s=timeout_s)
        return _status(response)

    async def drain(self, is_draining: bool = True) -> ServerStatus:
        """Have the server grant no new sessions, or grant them again. Raises AccessDenied."""
        return _status(await self._send("POST", "/v1/drain", {"is_draining": is_draining}))

    def give_up(self, error: FlywheelError) -> None:
        """For callers that know the server is gone: calls under way, and every later one on a session that is held now, raise `error`."""
        for session in self._held.values():
            session._lose(error)
        if self._given_up is not None:
            self._given_up.set_result(error)
            self._given_up = None

    async def release_left_behind(self, *, timeout_s: float) -> None:
        """Once the server answers again: release what was given up, which it would else keep until its time to live ends. What it does not
        answer in time for, or is given up for, is left for another call."""
        for session_id in list(self._left_behind):
            with suppress(FlywheelError):
                try:
                    await self._send("DELETE", f"/v1/sessions/{session_id}", params={"failed": True}, retry_s=0.0, timeout_s=timeout_s)
                except ServerUnreachable:
                    return
            self._left_behind.remove(session_id)

    async def tasks(self, selection: str | None = None) -> list[Task]:
        """Tasks that the server's sessions can run: all, or `source` or `source:group`."""
        params = {} if selection is None else {"select": selection}
        return [wire.TASK.from_plain(task) for task in (await self._send("GET", "/v1/tasks", params=params)).json()]

    async def close(self) -> None:
        """Release every session that is still held; may be called twice."""
        if self._is_closed:
            return
        await asyncio.gather(*(session._release(failed=True) for session in list(self._held.values())))
        self._is_closed = True
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait({self._heart})
        if self._http is not None:
            await self._http.aclose()

    def _forget(self, session: RemoteSession) -> None:
        self._held.pop(session.session_id, None)

    async def _beat(self, every_s: float) -> None:
        """Signs of life for as long as a session is held."""
        while self._held:
            await asyncio.sleep(every_s)
            if not self._held:
                return
            # If the server does not answer, the next call reports it.
            with suppress(FlywheelError):
                await self._send("POST", "/v1/heartbeat", {"sessions": list(self._held)}, retry_s=every_s, timeout_s=every_s)

    async def _call(
        self, method: str, path: str, codec: Codec[T], body: dict[str, Any] | None = None, params: dict[str, Any] | None = None
    ) -> T:
        response = await self._send(method, path, body, params=params)
        return codec.from_plain(msgpack.unpackb(response.content))

    async def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, Any] | None = None,
        retry_s: float | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """An answer that is not an error. Sends the request again while the connection fails, at most for `retry_s`. `timeout_s`: longest
        wait for one answer."""
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s, pool=None)
        deadline_s = time.monotonic() + (self._retry_s if retry_s is None else retry_s)
        pause_s = FIRST_PAUSE_S
        if self._given_up is None:
            self._given_up = asyncio.get_running_loop().create_future()
        given_up = self._given_up
        while True:
            try:
                response = await _unless(given_up, self._client().request(method, path, json=body, params=params, timeout=timeout))
            except httpx.TransportError as error:
                if untrusted := rejection(error):
                    refused = ServerUnreachable(f"The sandbox server at {self._url} cannot be spoken to: {untrusted}.")
                    refused.is_retryable = False
                    raise refused from None
                if time.monotonic() + pause_s > deadline_s:
                    quotes_us = isinstance(error, httpx.LocalProtocolError)  # it quotes the header that it rejects, the token too
                    why = type(error).__name__ + ("" if quotes_us else f": {error}")
                    raise ServerUnreachable(
                        f"The sandbox server at {self._url} does not answer ({why}). "
                        "Is it running (`flywheel sandbox serve`), and is this its address?"
                    ) from (None if quotes_us else error)
                await _unless(given_up, asyncio.sleep(pause_s))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            if response.is_success:
                return response
            raise _error(response)

    def _client(self) -> httpx.AsyncClient:
        if self._is_closed:
            raise SandboxError("The client is closed; make another one.")
        if self._http is None:
            self._http = httpx.AsyncClient(
                base_url=self._url,
                headers={"Authorization": f"Bearer {self._token}", "Accept": f"{MSGPACK_TYPE}, application/json"},
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                trust_env=False,  # no proxy may see the token
                verify=verification(self._url),
            )
        return self._http


async def _unless(given_up: asyncio.Future[FlywheelError], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; raises the error that `given_up` gets before."""
    task = asyncio.ensure_future(work)
    try:
        either: set[asyncio.Future[Any]] = {task, given_up}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise given_up.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _status(response: httpx.Response) -> ServerStatus:
    try:
        return ServerStatus.model_validate_json(response.content)
    except ValidationError as error:
        raise SandboxError(
            f"What the server at {response.url.netloc.decode()} says of itself is not understood: {error.errors()[0]['msg']}"
        ) from error


def _error(response: httpx.Response) -> FlywheelError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    return error_of(problem, response.status_code)
