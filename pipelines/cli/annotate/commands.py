"""`flywheel annotate …`: people who correct the policy in live environments. The server is annotation/web, put together in
pipelines/annotation_server/server.py; campaigns.py has the commands of campaigns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from pipelines.cli.annotate.campaigns import campaign
from pipelines.cli.annotate.options import DatabaseOption, opened, server_of, url_of, with_accounts
from pipelines.cli.annotate.recordings import list_recordings
from pipelines.cli.annotate.runs import list_runs
from pipelines.cli.options import HomeOption, ProfileOption, SetOption, console, home_of, profile_of
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from annotation.service.access.accounts import Accounts
    from annotation.storage.schema import User
    from warehouse.core.home import Home

DEFAULT_PORT = 8441
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

annotate = typer.Typer(no_args_is_help=True, help="People correct the policy in live environments: pages, accounts, campaigns.")
users = typer.Typer(help="Accounts of people and programs; without a command, a list of them.")
annotate.add_typer(users, name="users")
annotate.add_typer(campaign, name="campaign")
annotate.command("runs")(list_runs)
annotate.command("recordings")(list_recordings)
NameArgument = Annotated[str, typer.Argument(help="Name of the account.")]
RoleOption = Annotated[str, typer.Option(help="annotator, reviewer (also reviews), or admin (also runs it all).")]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Address that people reach the server at \\[default: that of the server on this home].")
]


@annotate.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --allow-remote.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    sandbox: Annotated[
        str | None,
        typer.Option(
            "--sandbox",
            help="Address of a sandbox server that lends the sessions \\[default: those of the profile, else sessions of its own].",
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions of its own, at once: one for each person at work.")] = 8,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that they live in \\[default: one a core].")] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen where other machines can connect, though traffic is not encrypted.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that requests may ask for, beside loopback names, IP addresses and --host; may repeat.")
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine ends TLS: believe its X-Forwarded-For and X-Forwarded-Proto.")
    ] = False,
    public_url: Annotated[
        str | None, typer.Option("--url", help="Address that people reach it at: of the first link, and a host that it answers for.")
    ] = None,
    database: DatabaseOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Serve the pages that people annotate in.

    The home's newest release proposes, in this process, or on the server that the profile names; a release that comes while people work is
    picked up with the next episode. Accounts are made by invitation; the first link is printed at the first start.

        flywheel annotate serve

        flywheel annotate campaign create forms --tasks miniwob:quickstart --target 200

        flywheel annotate invite --role annotator

    It may be killed at any time: what was decided is kept, and the next server goes on where people were.
    """
    from pipelines import profiles
    from pipelines.annotation_server.server import ServerPlan, check_host, serve_annotation

    check_host(host, allow_remote=allow_remote)
    place = home_of(home)
    settings = profiles.load(*profile_of(place, profile, set_))
    plan = ServerPlan(
        host=host,
        port=port,
        url=url_of(place, database),
        sandbox=sandbox,
        num_sessions=sessions,
        num_workers=workers,
        behind_proxy=behind_proxy,
        public_url=public_url.rstrip("/") if public_url else None,
        allowed_hosts=tuple(allow_host or []),
    )
    serve_annotation(place, settings.acting, plan)


@annotate.command()
def invite(
    role: RoleOption = "annotator",
    for_: Annotated[str | None, typer.Option("--for", help="Instead: a new password for this account.")] = None,
    days: Annotated[int, typer.Option(min=1, max=30, help="How long the link may be used.")] = 7,
    url: UrlOption = None,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Print a link that makes one account, or gives an account a new password. It works once; only its digest is kept."""

    async def work(accounts: Accounts) -> str:
        user_id = (await _named(accounts, for_)).user_id if for_ is not None else None
        secret, _ = await accounts.invite(role, by=None, ttl_s=days * 86400.0, for_user=user_id)
        return secret

    place = home_of(home)
    secret = with_accounts(place, database, work)
    typer.echo(f"{_address(place, database, url)}/join#{secret}")


@annotate.command()
def withdraw(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Runs and recordings, by id.")] = None,
    of: Annotated[str | None, typer.Option("--of", help="Everything from this account.")] = None,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit log.")] = "from the command line",
    erase: Annotated[bool, typer.Option("--erase", help="Then remove what withdrawn recordings hold from the server's disk.")] = False,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Take back what people annotated or recorded: no dataset made from now on holds it.

    `flywheel annotate runs` and `flywheel annotate recordings` list the ids. The next iteration begins with it. After that
    `flywheel withdraw --purge` erases samples and decisions in older versions of the tables, and of recordings the words and pictures of
    their episode and what the server holds, too. The steps and pictures of an annotated run stay, for lineage, and nothing learns from
    them.
    """
    from pipelines.annotation_server.withdrawal import erase_withdrawn, withdraw_given
    from pipelines.orchestration.reported_changes import report_taken_back

    place = home_of(home)
    with opened(place, database) as found:
        num = withdraw_given(found, ids or [], of, reason)
        console.print(f"withdrawn: {num}", highlight=False)
        if erase:
            console.print(f"parts of recordings erased: {erase_withdrawn(found, place)}", highlight=False)
    report_taken_back(place, num, console)


@annotate.command()
def migrate(database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Bring the tables of the annotation database to those of this release. Stop its servers, and keep a copy."""
    from annotation.storage import migrating
    from annotation.storage.database import Database

    found = Database(url_of(home_of(home), database))
    try:
        before, after = migrating.migrate(found)
    finally:
        found.close()
    console.print(f"the tables are those of version {after}; before they were those of {before or 'none'}", highlight=False)


@users.callback(invoke_without_command=True)
def users_alone(context: typer.Context, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Accounts of people and programs; without a command, a list of them."""
    if context.invoked_subcommand is None:
        list_users(database=database, home=home)
    elif given := [name for name in ("database", "home") if "COMMANDLINE" in str(context.get_parameter_source(name))]:
        raise ConfigError(f"--{given[0]} belongs after the command: flywheel annotate users {context.invoked_subcommand} --{given[0]} …")


@users.command("list")
def list_users(database: DatabaseOption = None, home: HomeOption = None) -> None:
    """All accounts."""
    from annotation.storage import accounts as stored

    with opened(home_of(home), database) as found, found.read() as session:
        people = stored.users(session)
    table = RichTable("name", "role", "since", "state")
    for user in people:
        kind = "program" if user.password_hash is None else "person"
        state = f"{kind}, barred since {_day(user.disabled_at_s)}" if user.disabled_at_s is not None else kind
        table.add_row(user.name, user.role, _day(user.created_at_s), state)
    console.print(table)


@users.command()
def role(
    name: NameArgument,
    role: Annotated[str, typer.Argument(help="annotator, reviewer or admin.")],
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Give an account another role, from its next request on."""

    async def work(accounts: Accounts) -> None:
        await accounts.set_role((await _named(accounts, name)).user_id, role, by=None)

    with_accounts(home_of(home), database, work)


@users.command()
def disable(name: NameArgument, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Bar an account; its logins and tokens end at once. What it annotated stays."""

    async def work(accounts: Accounts) -> None:
        await accounts.set_disabled((await _named(accounts, name)).user_id, True, by=None)

    with_accounts(home_of(home), database, work)


@users.command()
def enable(name: NameArgument, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Let a barred account log in again."""

    async def work(accounts: Accounts) -> None:
        await accounts.set_disabled((await _named(accounts, name)).user_id, False, by=None)

    with_accounts(home_of(home), database, work)


@users.command()
def program(
    name: NameArgument,
    role: RoleOption = "annotator",
    label: Annotated[str, typer.Option(help="What the token is for.")] = "from the command line",
    days: Annotated[int, typer.Option(min=1, max=366, help="How long it lasts.")] = 90,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Print a token of a program's account, which is made if it is missing: `Authorization: Bearer TOKEN`. It is shown once."""

    async def work(accounts: Accounts) -> str:
        secret, _ = await accounts.add_program(name, role, label, ttl_s=days * 86400.0)
        return secret

    typer.echo(with_accounts(home_of(home), database, work))


def _address(home: Home, database: str | None, given: str | None) -> str:
    """What is given, else the address of the server on the home; where none runs, what it would have, and a word about that."""
    if given is not None:
        return given.rstrip("/")
    if (server := server_of(home, database)) is not None:
        return server.address
    typer.echo(f"no annotation server runs on {home.root}: this is the address of `flywheel annotate serve` as it comes", err=True)
    return DEFAULT_URL


async def _named(accounts: Accounts, name: str) -> User:
    from annotation.storage import accounts as stored

    return await accounts.database.reading(stored.named, name)


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))
