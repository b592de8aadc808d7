"""How a session of each kind is made: one literal table. What a kind needs is imported when the first session of it is made.

Which kind a task needs is said in sources.py; who may use a session, and for how long, by the pools.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.session import Session
from sandbox.tasks.page_task import PageTasks
from sandbox.tasks.sources import SessionKind
from warehouse.core.errors import ConfigError


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
class Parts:
    """What a session may be made of: pages in a browser of the pool, the sources that live in pages, limits of wall-clock time."""

    open_page: OpenPage
    page_tasks: PageTasks
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """`max_at_once`: how many sessions of the kind one pool has, unless it is told otherwise; None: as many as it has seats, or, of
    desktops, as the machine's own file says. `is_kept`: a session that is free is kept for the next lease, because it has what costs
    time to make; else it ends with the lease. `needs_browser`: it opens pages in a browser of the pool. `needs_jail`: it
    cannot be without bubblewrap."""

    make: Callable[[Parts], Awaitable[PooledSession]]
    max_at_once: int | None = None
    is_kept: bool = True
    needs_browser: bool = False
    needs_jail: bool = False


async def _page(parts: Parts) -> PooledSession:
    return PageSession(parts.open_page, parts.page_tasks, limits=parts.limits)


async def _terminal(parts: Parts) -> PooledSession:
    from sandbox.tasks.imported.sessions import terminal_sources
    from sandbox.tasks.terminal.source import terminal_tasks
    from sandbox.terminal.session import TerminalSession

    return TerminalSession({**terminal_tasks(), **terminal_sources()})


async def _hybrid(parts: Parts) -> PooledSession:
    from sandbox.hybrid.session import HybridSession

    return HybridSession(parts.open_page, limits=parts.limits)


async def _web(parts: Parts) -> PooledSession:
    from sandbox.tasks.web_apps.session import WebAppSession

    return WebAppSession(parts.open_page, limits=parts.limits)


async def _desktop(parts: Parts) -> PooledSession:
    """From where the machine's own file says (FLYWHEEL_DESKTOPS). Raises ConfigError."""
    from sandbox.desktop.config import machine_provider

    return machine_provider().session()


async def _android(parts: Parts) -> PooledSession:
    """On the device and by the server that adb itself would take: ANDROID_SERIAL, ANDROID_ADB_SERVER_PORT. Raises DeviceMissing or
    ConfigError."""
    from sandbox.android.device import AndroidDevice
    from sandbox.android.session import AndroidSession
    from sandbox.tasks.android.source import SOURCE, make_instance
    from sandbox.tasks.imported.sessions import android_instance
    from sandbox.tasks.imported.source import SOURCE as IMPORTED

    port = os.environ.get("ANDROID_ADB_SERVER_PORT", "5037")
    if not port.isdecimal():
        raise ConfigError(f"ANDROID_ADB_SERVER_PORT is {port!r}, expected a port number, e.g. 5037; or unset it.")
    device = await AndroidDevice.open(os.environ.get("ANDROID_SERIAL"), port=int(port))
    return AndroidSession(device, {SOURCE: make_instance, IMPORTED: android_instance})


MAKERS: Mapping[SessionKind, Maker] = {
    "page": Maker(make=_page, needs_browser=True),
    "terminal": Maker(make=_terminal, is_kept=False, needs_jail=True),
    "hybrid": Maker(make=_hybrid, is_kept=False, needs_browser=True, needs_jail=True),
    "web": Maker(make=_web, is_kept=False, needs_browser=True, needs_jail=True),
    "desktop": Maker(make=_desktop),
    "android": Maker(make=_android, max_at_once=1),
}


def limits_at_once(wanted: Mapping[SessionKind, int] | None = None) -> dict[SessionKind, int]:
    """How many sessions of a kind there may be at once: as wanted, else as the table says. Kinds without a limit are not named. Raises
    ConfigError for a malformed file of desktops."""
    from sandbox.desktop.config import machine_provider

    limits = {kind: maker.max_at_once for kind, maker in MAKERS.items() if maker.max_at_once is not None}
    return limits | {"desktop": machine_provider().at_once} | dict(wanted or {})
