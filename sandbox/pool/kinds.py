"""How a session of each kind is opened: one literal table. What a kind needs is imported when the first session of it is opened.

Which kind a task needs its source says (sandbox/tasks/task_source.py); who may use a session, and for how long, the pools.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.session import Session
from sandbox.tasks.page_task import PageTasks
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import ConfigError, DeviceMissing, TaskError, missing_extra


class PooledSession(Session, Protocol):
    """What a pool needs of a session beside the protocol."""

    screenshots: bool

    @property
    def environment(self) -> str: ...


@runtime_checkable
class CountsResets(Protocol):
    """A session whose resets wear out a browser."""

    num_resets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What a session may be made of: pages in a browser of the pool, the sources that live in pages, limits of wall-clock time, and the
    task that it is made for, if any."""

    open_page: OpenPage
    page_tasks: PageTasks
    limits: Limits
    task: Task | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFactory:
    """`max_at_once`: how many sessions of the kind one pool has, unless other settings are given; None: as many as it has slots, or, of
    desktops, as the machine's own file says. `is_kept`: a session that is free is kept for the next lease, because it has what costs
    time to make; else it ends with the lease. `needs_browser`: it opens pages in a browser of the pool. `needs_jail`: it
    cannot be without bubblewrap."""

    open: Callable[[SessionContext], Awaitable[PooledSession]]
    max_at_once: int | None = None
    is_kept: bool = True
    needs_browser: bool = False
    needs_jail: bool = False


async def _page(context: SessionContext) -> PooledSession:
    return PageSession(context.open_page, context.page_tasks, limits=context.limits)


async def _terminal(context: SessionContext) -> PooledSession:
    from sandbox.terminal.session import TerminalSession

    return TerminalSession()


async def _hybrid(context: SessionContext) -> PooledSession:
    from sandbox.hybrid.session import HybridSession

    return HybridSession(context.open_page, limits=context.limits)


async def _of_source(context: SessionContext) -> PooledSession:
    """The session is the source's own. Raises TaskError where it has none."""
    open_session = None if context.task is None else SOURCES[context.task.source].open_session
    if open_session is None:
        raise TaskError(f"This session is opened by a task's source (`open_session` of its TaskSource); the task is {context.task!r}.")
    return cast(PooledSession, open_session(context.open_page, context.limits))


async def _desktop(context: SessionContext) -> PooledSession:
    """From where the machine's own file says (FLYWHEEL_DESKTOPS). Raises ConfigError."""
    from sandbox.desktop.config import machine_provider

    return machine_provider().session()


async def _android(context: SessionContext) -> PooledSession:
    """On the device and by the server that adb itself would take: ANDROID_SERIAL, ANDROID_ADB_SERVER_PORT. Raises DeviceMissing or
    ConfigError."""
    try:
        from sandbox.android.device import AndroidDevice
        from sandbox.android.session import AndroidSession
    except ModuleNotFoundError as error:
        raise DeviceMissing(missing_extra(error.name, "android")) from error

    port = os.environ.get("ANDROID_ADB_SERVER_PORT", "5037")
    if not port.isdecimal():
        raise ConfigError(f"ANDROID_ADB_SERVER_PORT is {port!r}, expected a port number, e.g. 5037; or unset it.")
    return AndroidSession(await AndroidDevice.open(os.environ.get("ANDROID_SERIAL"), port=int(port)))


FACTORIES: Mapping[SessionKind, SessionFactory] = {
    "page": SessionFactory(open=_page, needs_browser=True),
    "terminal": SessionFactory(open=_terminal, is_kept=False, needs_jail=True),
    "hybrid": SessionFactory(open=_hybrid, is_kept=False, needs_browser=True, needs_jail=True),
    "web": SessionFactory(open=_of_source, is_kept=False, needs_browser=True, needs_jail=True),
    "desktop": SessionFactory(open=_desktop),
    "android": SessionFactory(open=_android, max_at_once=1),
    "own": SessionFactory(open=_of_source, is_kept=False),
}


def limits_at_once(wanted: Mapping[SessionKind, int] | None = None) -> dict[SessionKind, int]:
    """How many sessions of a kind there may be at once: as wanted, else as the table says. Kinds without a limit are not named. Raises
    ConfigError for a malformed file of desktops."""
    from sandbox.desktop.config import machine_provider

    limits = {kind: factory.max_at_once for kind, factory in FACTORIES.items() if factory.max_at_once is not None}
    return limits | {"desktop": machine_provider().at_once} | dict(wanted or {})
