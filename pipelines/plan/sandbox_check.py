"""What can be checked of a profile's sandbox servers before a run: that each answers, takes the token, runs this code and has the task
sources, and that a session of every kind that the profile's tasks need really starts there. Each session is given back.
"""

from __future__ import annotations

import asyncio

from assets.settings.profile import Profile
from pipelines.stages.context import profile_tasks
from sandbox.server.address import ServerAddress
from sandbox.server.bodies import ServerStatus
from sandbox.server.client import SandboxClient
from sandbox.server.servers_pool import other_code, other_source
from sandbox.tasks.sources import kind_of
from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.checks import Check, Status
from warehouse.core.errors import FlywheelError, SandboxBusy

ANSWER_S, RESET_S = 10.0, 120.0
START = "Start it there (`flywheel sandbox serve --host …`, docs/cluster.md), or take it out of sandbox.servers"


def check_sandboxes(profile: Profile) -> list[Check]:
    """One of each server, and one of all of them together where any can be used."""
    tasks = [task for task in profile_tasks(profile.tasks) if not task.held_out]
    return asyncio.run(_checked(profile, {kind_of(task): task for task in reversed(tasks)}, {task.source for task in tasks}))


async def _checked(profile: Profile, by_kind: dict[SessionKind, Task], sources: set[str]) -> list[Check]:
    servers = profile.sandbox.servers
    found = await asyncio.gather(*(_check(server, by_kind, sorted(sources)) for server in servers))
    checks = [check for check, _ in found]
    sessions = sum(status.num_sessions for check, status in found if status is not None and check.status != "fail")
    if not sessions:
        return checks
    wanted = profile.sandbox.num_sessions
    text = f"{sessions} sessions on {len(servers)} servers, {wanted} wanted at once"
    fix = f"More do not run at once than the servers have: --set sandbox.num_sessions={sessions}, or raise --size there"
    total = Check(name="sandboxes", status="ok" if sessions >= wanted else "warn", found=text, fix="" if sessions >= wanted else fix)
    return [*checks, total]


async def _check(server: ServerAddress, by_kind: dict[SessionKind, Task], sources: list[str]) -> tuple[Check, ServerStatus | None]:
    def said(status: Status, found: str, fix: str = "") -> Check:
        return Check(name="sandbox", status=status, found=f"{server.url}: {found}", fix=fix)

    try:
        async with SandboxClient(server.url, server.token(), retry_s=ANSWER_S) as client:
            status = await client.status(timeout_s=ANSWER_S)
            if other := other_code(status):
                return said(
                    "fail", other, "Install the same release, or check out the same commit, on both and start the server again"
                ), status
            if others := [text for source in sources if (text := other_source(status, source))]:
                return said("fail", "; ".join(others), "Start it with the --source or --profile of this run"), status
            if not status.oracles:
                return said(
                    "fail", "gives no hints, which demonstrations and the scripted annotator need", "Start it with --oracles"
                ), status
            if status.is_draining:
                return said("warn", "is draining", f"flywheel sandbox drain --url {server.url} --undo"), status
            text = (
                f"{status.version}, {status.num_free} of {status.num_sessions} sessions free, {status.free_disk_mib:,.0f} MiB of disk free"
            )
            if status.is_disk_short:
                return said("fail", f"{text}: too little to lend any", "Free some, or start it with a lower --min-free-disk"), status
            if not status.num_free:
                return said("warn", f"{text}; none was tried", "Others use it: a run would wait"), status
            started = [await _start(client, kind, task) for kind, task in by_kind.items()]
            return said("ok", f"{text}; started: {', '.join(started)}"), status
    except SandboxBusy as error:
        return said("warn", str(error), "Others use it: a run would wait"), None
    except TimeoutError:
        return said("fail", f"no session started within {RESET_S:g} s", "Look at its output"), None
    except FlywheelError as error:
        return said("fail", str(error), START), None


async def _start(client: SandboxClient, kind: SessionKind, task: Task) -> str:
    """Start an instance of a task, really. Raises what a session raises, TimeoutError."""
    async with asyncio.timeout(RESET_S), client.lease(task, wait_s=ANSWER_S) as session:
        await session.reset(task, task.seeds(Split.TRAIN, 1)[0])
    return kind
