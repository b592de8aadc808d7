"""`flywheel sandbox …`: a server of sessions, and a look at one that runs. The server itself is sandbox/server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.cli.options import SourceOption, SourcesOfOption, console, use_sources
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home

if TYPE_CHECKING:
    from sandbox.server.settings import ServerSettings

DEFAULT_PORT = 8421
URL_VARIABLE = "FLYWHEEL_SANDBOX_URL"

sandbox = typer.Typer(no_args_is_help=True, help="Sessions over HTTP: serve them, and see what a server has.")
HomeOption = Annotated[Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="Where the token lies \\[default: .flywheel].")]
UrlOption = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, help="Address of the server.")]


@sandbox.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; traffic is not encrypted: better use a tunnel.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    size: Annotated[int, typer.Option(min=1, help="Sessions that run at once.")] = 4,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes they live in \\[default: one a core].")] = None,
    max_sessions: Annotated[int | None, typer.Option(min=1, help="Leases at once, of all clients \\[default: as many as --size].")] = None,
    per_client: Annotated[int | None, typer.Option(min=1, help="Leases at once, of one client \\[default: as many as --size].")] = None,
    ttl: Annotated[float, typer.Option(min=1, help="Seconds after its last sign of life when a session is reclaimed.")] = 60.0,
    lifetime: Annotated[float, typer.Option(min=1, help="Seconds after which a session is reclaimed, alive or not.")] = 7200.0,
    max_wait: Annotated[float, typer.Option(min=0, help="Seconds that a request for a session waits, then 503.")] = 30.0,
    min_free_disk: Annotated[
        float, typer.Option(min=0, help="MiB of its temporary folder that must be free for a new session; below a quarter, calls fail.")
    ] = 256.0,
    oracles: Annotated[bool, typer.Option("--oracles", help="Let clients ask for the oracle's hint and the verifier's reasons.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name that the server answers for, beside loopback names and addresses; repeatable.")
    ] = None,
    source: SourceOption = None,
    profile: SourcesOfOption = None,
    home: HomeOption = None,
) -> None:
    """Lend sessions to clients, with a live view in the browser.

    Every request needs a token: of the file that FLYWHEEL_SANDBOX_TOKENS_FILE names (lines `name token`, one a client), of the variable
    FLYWHEEL_SANDBOX_TOKEN, or of a file in the home that is made at the first start.
    """
    from sandbox.server.settings import ServerSettings

    use_sources(source, profile)
    try:
        settings = ServerSettings(
            max_sessions=max_sessions or size,
            max_sessions_per_client=per_client or max_sessions or size,
            max_wait_s=max_wait,
            ttl_s=ttl,
            max_ttl_s=max(600.0, ttl),
            max_lifetime_s=lifetime,
            oracles=oracles,
            min_free_disk_mib=min_free_disk,
            allowed_hosts=(host, *(allow_host or [])),
        )
    except ValidationError as error:
        raise ConfigError(f"Invalid limits: {error.errors()[0]['msg']}") from error
    asyncio.run(_serve(Home(home.absolute()) if home is not None else Home.from_env(), host, port, size, workers, settings))


async def _serve(home: Home, host: str, port: int, size: int, workers: int | None, settings: ServerSettings) -> None:
    from sandbox.fleet.manager import Fleet
    from sandbox.fleet.settings import FleetSettings
    from sandbox.http.serving import address_of, bind, is_loopback
    from sandbox.server.serve import serve as run_server
    from sandbox.server.tokens import server_tokens

    tokens, place = server_tokens(home)
    workers = min(workers or os.cpu_count() or 1, size)
    # Who falls silent is the server's business: it hears the clients, the fleet does not.
    fleet = FleetSettings(max_workers=workers, sessions_per_worker=-(-size // workers), lease_ttl_s=settings.max_lifetime_s)
    with bind(host, port) as listener:

        def ready() -> None:
            console.print(f"sandbox server: {address_of(listener)}", soft_wrap=True)
            console.print(f"token: in {place}", soft_wrap=True, highlight=False)
            if not is_loopback(host):
                console.print(f"[yellow]{host} can be reached from other machines, and traffic is not encrypted.[/]")
            sys.stdout.flush()

        async with Fleet(fleet) as pool:
            await run_server(pool, tokens, settings, listener, ready)
    console.print("every session is released")


@sandbox.command()
def drain(
    url: UrlOption = f"http://127.0.0.1:{DEFAULT_PORT}",
    undo: Annotated[bool, typer.Option("--undo", help="Grant sessions again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return once no session is on lease, so that the server can be ended.")] = False,
    home: HomeOption = None,
) -> None:
    """Have a server grant no new session and let those on lease end; pools of several servers go to the others."""
    from sandbox.server.client import SandboxClient
    from sandbox.server.tokens import client_token

    async def drained() -> int:
        async with SandboxClient(url, client_token(Home(home.absolute()) if home is not None else None), retry_s=2.0) as client:
            status = await client.drain(not undo)
            while wait and status.num_leased and not undo:
                await asyncio.sleep(0.5)
                status = await client.status()
            return status.num_leased

    num_leased = asyncio.run(drained())
    state = "grants sessions again" if undo else "is draining"
    console.print(f"{url} {state}; {num_leased} sessions are on lease", soft_wrap=True, highlight=False)


@sandbox.command("sessions")
def list_sessions(url: UrlOption = f"http://127.0.0.1:{DEFAULT_PORT}", home: HomeOption = None) -> None:
    """The sessions that this token's client has on a server."""
    from sandbox.server.client_sync import SyncSandbox
    from sandbox.server.tokens import client_token

    token = client_token(Home(home.absolute()) if home is not None else None)
    with SyncSandbox(url, token, retry_s=2.0) as server:
        found = server.sessions()
    if not found:
        console.print("no sessions")
        return
    table = RichTable("session", "task", "seed", "step", "age", "reclaimed in")
    for session in found:
        task = session["task"]["name"] if session["task"] else ""
        seed = "" if session["seed"] is None else str(session["seed"])
        age, left = f"{session['age_s']:.0f} s", f"{session['left_s']:.0f} s"
        table.add_row(session["session_id"], escape(task), seed, str(session["num_steps"]), age, left)
    console.print(table)
