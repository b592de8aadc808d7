"""What `flywheel doctor` says of the web applications."""

from __future__ import annotations

import asyncio
import time

from sandbox.tasks.web_apps.apps import APPS, WebApp
from sandbox.tasks.web_apps.install import is_installed
from sandbox.tasks.web_apps.running import RunningApp, prepare
from warehouse.core.checks import Check
from warehouse.core.errors import FlywheelError


def check_web_apps() -> Check:
    """Which web applications are installed, each started once in its jail. What is missing is installed when a task first needs it."""
    missing = [app.name for app in APPS.values() if not is_installed(app.name, app.pins)]
    present = [app for app in APPS.values() if app.name not in missing]
    try:
        took = [f"{app.name} {app.version} in {asyncio.run(_start_s(app)):.1f} s" for app in present]
    except (FlywheelError, OSError) as error:
        return Check(name="web apps", status="warn", found=f"{type(error).__name__}: {error}", fix="Fix `terminal` first, if it fails")
    started = f"{', '.join(took)} started" if took else "none installed"
    if missing:
        fix = "Installed from the package registry when a task first needs them, or now: python -m sandbox.tasks.web_apps.install"
        return Check(name="web apps", status="warn", found=f"{started}; not installed: {', '.join(missing)}", fix=fix)
    return Check(name="web apps", status="ok", found=started)


async def _start_s(app: WebApp) -> float:
    """Seconds that a start takes, with its data made before."""
    await prepare(app)
    begin_s = time.monotonic()
    running = await RunningApp.start(app)
    took_s = time.monotonic() - begin_s
    await running.close()
    return took_s
