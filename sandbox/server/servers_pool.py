"""ServersPool: one pool over several sandbox servers, e.g. one on each machine that has processors to spare.

    async with ServersPool([ServerAddress(url="http://10.0.0.2:8421"), …], size=64) as pool:
        async with pool.lease(task) as session: …

A lease goes to the server with the most free sessions. Every server is asked for its status all the time. One that does not answer, drains,
has no disk left, refuses the token, or runs other code or other task sources than this process is named in the log and gets no lease until
its answers say otherwise. One that fell silent loses its sessions: calls on them raise ServerUnreachable at once, so that the caller of the
episode leases again, elsewhere. A lease that one server cannot open goes to another. A server whose steps take much longer than the others'
is named too (sandbox/slowness.py). A pool belongs to the event loop that entered it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from sandbox.http.serving import api_version
from sandbox.server import identity
from sandbox.server.address import ServerAddress
from sandbox.server.bodies import ServerStatus
from sandbox.server.client import RemoteSession, SandboxClient
from sandbox.slowness import Slowness
from sandbox.tasks.task import Task
from warehouse.core.errors import AccessDenied, ConfigError, FlywheelError, SandboxBusy, SandboxError, ServerUnreachable

_LOG = logging.getLogger(__name__)

LONGEST_PAUSE_S = 5.0
"""Between two questions to a server that cannot be used."""
LEASE_WAIT_S = 2.0
"""So long a lease waits at one server before another is looked for."""
START_TICK_S = 0.02
SAY_AGAIN_S = 60.0
"""Between two complaints that no server can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a server may be silent. Seconds."""

    ask_every_s: float = 1.0
    """Between two questions for its status."""
    silent_s: float = 10.0
    """It is taken for dead when nothing answered for so long, not even a refusal: a machine or link is gone."""
    refused_s: float = 2.0
    """The same where the machine refuses connections: the server's process is gone."""
    none_s: float = 600.0
    """A lease waits so long for any server that can be used, then the stage fails."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Server:
    """One server, as it was last heard of."""

    url: str
    client: SandboxClient
    status: ServerStatus | None = None
    trouble: str = "has not answered yet"
    """Why it gets no lease; empty where it does."""
    is_hopeless: bool = False
    """Nobody but a person ends its trouble."""
    is_asked: bool = False
    heard_s: float = field(default_factory=time.monotonic)
    refused_from_s: float | None = None
    pause_s: float = 0.0
    num_held: int = 0
    """Leases of this pool, those that are being opened included."""
    num_held_then: int = 0
    """When `status` came."""
    busy_until_s: float = 0.0
    releasing: asyncio.Task[None] | None = None
    """What was given up."""

    @property
    def num_free(self) -> int:
        """As it said, and as this pool has leased and released since."""
        return 0 if self.status is None else self.status.num_free - (self.num_held - self.num_held_then)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A lease that waits for a server."""

    task: Task | None
    failed: dict[str, SandboxError] = field(default_factory=dict)
    """Servers that could not open a session for it, and why."""
    place: asyncio.Future[_Server] = field(init=False)
    was_served: bool = False
    none_from_s: float | None = None
    """Since when no server could be used."""


class ServersPool:
    """Satisfies SessionPoolProtocol and SizedSessionPool."""

    def __init__(self, servers: Sequence[ServerAddress], *, size: int, timeouts: Timeouts | None = None) -> None:
        """`size`: leases at once, over all servers. Raises ConfigError for no server, or one without a token."""
        if not servers:
            raise ConfigError("A pool of sandbox servers needs at least one address.")
        self._timeouts = timeouts or Timeouts()
        self._servers = [_Server(url=each.url, client=SandboxClient(each.url, each.token())) for each in servers]
        self._slowness = Slowness("The sandbox server", _LOG)
        for each in self._servers:
            each.client.on_step = partial(self._slowness.note, each.url)
        self._size, self._places = size, asyncio.Semaphore(size)
        self._line: list[_Waiter] = []
        self._watches: list[asyncio.Task[None]] = []
        self._said_s = -SAY_AGAIN_S
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Asks the servers, and waits no longer for the others once one can be used. Raises ConfigError where none can be and only a
        person changes that; for servers that do not answer the first lease waits."""
        self._watches = [asyncio.create_task(self._watch(server), name=f"watch of {server.url}") for server in self._servers]
        until_s = time.monotonic() + self._timeouts.ask_every_s
        while not all(server.is_asked for server in self._servers):
            if time.monotonic() > until_s and not all(server.trouble for server in self._servers):
                break
            await asyncio.sleep(START_TICK_S)
        if all(server.is_hopeless for server in self._servers):
            await self.close()
            raise ConfigError(f"No sandbox server can be used: {self._troubles()}.")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def size(self) -> int:
        return self._size

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[RemoteSession]:
        """As SessionPoolProtocol.lease. Waits while every server is full; where none can be used for long, raises ServerUnreachable,
        which is then not to be retried."""
        async with self._places, AsyncExitStack() as stack:
            yield await self._open(stack, task, screenshots)

    def require_one(self) -> None:
        """Raises ServerUnreachable where no server can be used now, with the reasons."""
        if all(server.trouble for server in self._servers):
            raise self._no_server(None)

    def free_by_server(self) -> dict[str, int]:
        """Free sessions by address, of the servers that can be used."""
        return {server.url: server.num_free for server in self._servers if not server.trouble}

    async def close(self) -> None:
        """Release every session; may be called twice."""
        self._is_closed = True
        for task in (tasks := [*self._watches, *(server.releasing for server in self._servers if server.releasing is not None)]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(server.client.close() for server in self._servers))

    async def _open(self, stack: AsyncExitStack, task: Task | None, screenshots: bool) -> RemoteSession:
        waiter = _Waiter(task)
        while True:
            server = await self._place(waiter)
            try:
                return await self._open_on(server, stack, task, screenshots)
            except SandboxBusy:
                server.busy_until_s = time.monotonic() + self._timeouts.ask_every_s
            except ServerUnreachable as error:
                server.busy_until_s = time.monotonic() + self._timeouts.ask_every_s
                _LOG.info("A session could not be leased: %s", error)
            except AccessDenied as error:
                self._note(server, f"refuses the token: {error}", is_hopeless=True)
            except SandboxError as error:
                _LOG.warning("The sandbox server %s could not open a session: %s", server.url, error)
                waiter.failed[server.url] = error
                server.busy_until_s = time.monotonic() + (self._timeouts.ask_every_s if error.is_retryable else SAY_AGAIN_S)

    async def _open_on(self, server: _Server, stack: AsyncExitStack, task: Task | None, screenshots: bool) -> RemoteSession:
        """On a server where this lease has its place. Raises what SandboxClient.open raises. The stack gives session and place back."""
        async with AsyncExitStack() as opened:
            opened.callback(self._put_back, server)
            session = await opened.enter_async_context(server.client.lease(task, screenshots=screenshots, wait_s=LEASE_WAIT_S))
            stack.push_async_exit(opened.pop_all())
        return session

    def _put_back(self, server: _Server) -> None:
        server.num_held -= 1
        self._serve_line()

    async def _place(self, waiter: _Waiter) -> _Server:
        """Wait in line for a server with a free session; it is then counted as leased. One that was turned away stands first."""
        waiter.place = asyncio.get_running_loop().create_future()
        self._line.insert(0 if waiter.was_served else len(self._line), waiter)
        waiter.was_served = True
        try:
            while True:
                self._serve_line()
                if waiter.place.done():
                    return waiter.place.result()
                self._check_hope(waiter)
                await asyncio.wait({waiter.place}, timeout=self._timeouts.ask_every_s)
        except BaseException:
            if waiter in self._line:
                self._line.remove(waiter)
            elif waiter.place.done():
                self._put_back(waiter.place.result())
            raise

    def _serve_line(self) -> None:
        """In the order in which they came; who can use none of the free servers lets the others pass."""
        now_s = time.monotonic()
        for waiter in list(self._line):
            free = [server for server in self._servers if server.num_free > 0 and server.busy_until_s <= now_s and not server.trouble]
            if not free:
                return
            fitting = [each for each in free if each.url not in waiter.failed and not self._trouble_with(each, waiter.task)]
            if fitting:
                server = max(fitting, key=lambda server: (server.num_free, random.random()))
                server.num_held += 1
                self._line.remove(waiter)
                waiter.place.set_result(server)

    def _check_hope(self, waiter: _Waiter) -> None:
        """Raises where waiting is in vain, or has been for too long."""
        if self._is_closed:
            raise SandboxError("The pool of sandbox servers is closed.")
        usable = [server for server in self._servers if not self._trouble_with(server, waiter.task)]
        if usable:
            waiter.none_from_s = None
            if all(server.url in waiter.failed for server in usable):
                raise next(reversed(waiter.failed.values()))
            return
        waiter.none_from_s = waiter.none_from_s or time.monotonic()
        if self._is_in_vain(waiter.task) or time.monotonic() - waiter.none_from_s > self._timeouts.none_s:
            raise self._no_server(waiter.task)
        self._say_none(waiter.task)

    def _trouble_with(self, server: _Server, task: Task | None) -> str:
        """Why the task cannot run there; empty where it can."""
        if server.trouble or task is None or server.status is None:
            return server.trouble
        return other_source(server.status, task.source)

    def _is_in_vain(self, task: Task | None) -> bool:
        """Whether no server can run the task until a person changes something."""
        return all(server.is_hopeless or (not server.trouble and self._trouble_with(server, task)) for server in self._servers)

    async def _watch(self, server: _Server) -> None:
        while True:
            await self._ask(server)
            await asyncio.sleep(max(self._timeouts.ask_every_s, server.pause_s))

    async def _ask(self, server: _Server) -> None:
        """Ask for the status once, and note what follows from the answer."""
        try:
            status = await server.client.status(timeout_s=self._timeouts.silent_s)
        except ServerUnreachable as error:
            self._note_silence(server, error)
        except FlywheelError as error:
            server.heard_s, server.refused_from_s = time.monotonic(), None
            denied = isinstance(error, AccessDenied)
            hopeless = denied or isinstance(error, ConfigError)
            self._note(server, f"refuses the token: {error}" if denied else f"gives no status: {error}", is_hopeless=hopeless)
        else:
            server.heard_s, server.refused_from_s = time.monotonic(), None
            server.status, server.num_held_then = status, server.num_held
            trouble, is_hopeless = self._trouble_in(status)
            self._note(server, trouble, is_hopeless=is_hopeless)
            if server.releasing is None or server.releasing.done():  # apart, so that a silence meanwhile is noticed
                server.releasing = asyncio.create_task(server.client.release_left_behind(timeout_s=self._timeouts.silent_s))
        server.is_asked = True
        self._serve_line()

    @staticmethod
    def _trouble_in(status: ServerStatus) -> tuple[str, bool]:
        """Why a server with this status gets no lease, and whether that stays so."""
        if other := other_code(status):
            return other, True
        if status.is_draining:
            return "is draining", False
        if status.is_disk_short:
            return f"has only {status.free_disk_mib:.0f} MiB of disk left", False
        return "", False

    def _note_silence(self, server: _Server, error: ServerUnreachable) -> None:
        now_s = time.monotonic()
        if not _is_refused(error):
            server.refused_from_s = None
        elif server.refused_from_s is None:
            server.refused_from_s = now_s
        refused_s = 0.0 if server.refused_from_s is None else now_s - server.refused_from_s
        is_new = server.status is None and not server.is_hopeless
        if is_new or now_s - server.heard_s >= self._timeouts.silent_s or refused_s >= self._timeouts.refused_s:
            server.client.give_up(ServerUnreachable(f"The sandbox server {server.url} does not answer any more; its sessions are lost."))
            self._slowness.forget(server.url)
            self._note(server, f"does not answer ({error.__cause__ or error})", is_hopeless=not error.is_retryable)

    def _note(self, server: _Server, trouble: str, *, is_hopeless: bool = False) -> None:
        if trouble and trouble != server.trouble:
            _LOG.warning("The sandbox server %s is not used: it %s", server.url, trouble)
        elif server.trouble and not trouble and server.pause_s:
            _LOG.warning("The sandbox server %s is used again", server.url)
        server.trouble, server.is_hopeless = trouble, is_hopeless
        server.pause_s = min(max(2 * server.pause_s, self._timeouts.ask_every_s), LONGEST_PAUSE_S) if trouble else 0.0

    def _troubles(self, task: Task | None = None) -> str:
        return "; ".join(f"{server.url} {self._trouble_with(server, task)}" for server in self._servers)

    def _say_none(self, task: Task | None) -> None:
        if time.monotonic() - self._said_s >= SAY_AGAIN_S:
            self._said_s = time.monotonic()
            _LOG.warning("No sandbox server can be used; waiting. %s", self._troubles(task))

    def _no_server(self, task: Task | None) -> ServerUnreachable:
        error = ServerUnreachable(f"No sandbox server can be used: {self._troubles(task)}.")
        error.is_retryable = False
        return error


def other_code(status: ServerStatus) -> str:
    """What differs between a server's code and this process's; empty where nothing does."""
    if (status.version, status.code) == (api_version(), identity.code_id()):
        return ""
    return f"runs other code: {status.version} {status.code}, here it is {api_version()} {identity.code_id()}"


def other_source(status: ServerStatus, source: str) -> str:
    """What differs between a server's task source and this process's; empty where nothing does, or this process does not know it."""
    here, there = identity.source_ids().get(source), status.sources.get(source)
    if here == there or here is None:
        return ""
    if there is None:
        return f"does not know the task source {source!r}: start it with --source or --profile"
    return f"has another task source {source!r}: {there}, here it is {here}"


def _is_refused(error: BaseException) -> bool:
    """Whether the machine answered that nothing listens there."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ConnectionRefusedError):
        found = found.__cause__ or found.__context__
    return found is not None
