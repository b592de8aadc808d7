"""`flywheel adopt`: a running web application becomes a task source, and a policy a specialist for it. Its parts
are pipelines/adopting's."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.markup import escape

from pipelines.cli.options import SetOption, console, home_of, overrides
from sandbox.adopting.records import PASSWORD
from sandbox.browser.isolation.policy import is_this_machine
from warehouse.core.errors import ConfigError
from warehouse.core.locks import FileLock

if TYPE_CHECKING:
    from sandbox.adopting.records import Folder, Site
    from warehouse.core.home import Home

MADE = ("crawl", "tasks", "proof", "wording", "source")
"""Parts that make the tasks."""
PARTS = (*MADE, "train", "report")
LLM_KEY = "FLYWHEEL_ADOPT_LLM_KEY"


def adopt(
    url: Annotated[str, typer.Argument(help="Where the application runs, e.g. http://127.0.0.1:8001/ or a page of it to start from.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for what is made \\[default: adopted/HOST-PORT].", show_default=False)
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help=f"Only these parts, with commas between: {', '.join(PARTS)}. Each goes on from what lies in --output."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the task source \\[default: that of the folder].")] = None,
    pages: Annotated[int, typer.Option(min=1, max=2000, help="Pages to crawl.")] = 60,
    depth: Annotated[int, typer.Option(min=0, max=20, help="Links from the first page that are followed.")] = 3,
    tasks: Annotated[int, typer.Option(min=1, max=5000, help="Candidate tasks to prove.")] = 200,
    delay: Annotated[float, typer.Option(min=0, max=60, help="Seconds between two pages of the crawl; robots.txt may ask for more.")] = 0.2,
    sessions: Annotated[int, typer.Option(min=1, max=32, help="Episodes that run at once; one where they write.")] = 2,
    login_path: Annotated[
        str | None, typer.Option(help=f"Page with the log-in form, e.g. /login; the password is read from {PASSWORD} and not stored.")
    ] = None,
    user: Annotated[str, typer.Option(help="Name to log in with.")] = "",
    writes: Annotated[
        bool, typer.Option("--writes", help="Let requests through that WRITE to the application, and make tasks of its forms.")
    ] = False,
    reset: Annotated[
        str | None,
        typer.Option(
            help="Command, without a shell, that sets the application back; run here before each episode, e.g. 'cp seed.db app.db'."
        ),
    ] = None,
    database: Annotated[
        Path | None, typer.Option(help="With --writes: the application's SQLite file, which verifiers of forms then read, too.")
    ] = None,
    ignore_robots: Annotated[bool, typer.Option("--ignore-robots", help="Also pages that robots.txt forbids: of your own site.")] = False,
    llm: Annotated[
        str | None,
        typer.Option(
            help="OpenAI-compatible address of a language model that words training tasks in other ways, e.g. http://127.0.0.1:8000/v1; "
            f"its key, if it wants one, in {LLM_KEY}. It is sent their instructions."
        ),
    ] = None,
    llm_model: Annotated[str, typer.Option(help="With --llm: the name of the model there.")] = "",
    iterations: Annotated[int, typer.Option(min=1, help="Train until this many iterations on the site are complete.")] = 1,
    set_: SetOption = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home", envvar="FLYWHEEL_HOME", help="Its newest release is what training starts from, if it has one \\[default: .flywheel]."
        ),
    ] = None,
) -> None:
    """Make tasks of a running web application, prove them, train a specialist on them, and report its success on held-out ones.

    flywheel adopt http://127.0.0.1:8001/

    flywheel adopt http://127.0.0.1:8001/ --only crawl,tasks      see what tasks there would be, and stop

    flywheel adopt http://127.0.0.1:8001/ --only train,report --iterations 2      go on with training

    The application is only read unless --writes is given: requests by other methods than GET and HEAD are refused, and so is every request
    to another address. After an interruption the same command resumes. See docs/adopt.md.
    """
    from sandbox.adopting.adopt import open_site
    from sandbox.adopting.records import Folder

    wanted = parts(only)
    check_llm(llm, llm_model, only)
    folder = Folder((output or Path("adopted") / default_name(url)).absolute())
    site = site_of(url, name or slug(folder.root.name), writes, reset, database, login_path, user, delay, not ignore_robots)
    warn(site)
    with held(folder):
        open_site(folder, site)
        if {*MADE} & {*wanted}:
            from pipelines.adopting.making import LanguageModel, Login, make_tasks

            login = None if login_path is None else Login(path=login_path, user=user, password=password)
            model = None if llm is None else LanguageModel(address=llm, name=llm_model, key=os.environ.get(LLM_KEY, ""))
            make_tasks(folder, site, wanted, console, pages=pages, depth=depth, tasks=tasks, sessions=sessions, login=login, llm=model)
        if "train" in wanted:
            train_specialist(folder, site, home_of(home), iterations, sessions, set_)
        if "report" in wanted:
            from pipelines.adopting.report import report

            report(folder, site, console)


def train_specialist(folder: Folder, site: Site, entered: Home, iterations: int, sessions: int, set_: list[str] | None) -> None:
    from pipelines.adopting.training import train

    num_sessions = 1 if site.allow_writes else sessions
    found = train(folder, site, entered, iterations=iterations, num_sessions=num_sessions, overrides=overrides(set_), console=console)
    console.print(f"train: {found['iterations']} iterations in {found['home']}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def held(folder: Folder) -> Iterator[None]:
    """Nobody else works in the folder. Raises ConfigError where somebody does."""
    lock = FileLock(folder.path("adopt.lock"))
    if not lock.acquire():
        raise ConfigError(f"Another `flywheel adopt` is at work in {folder.root}: wait for its end, or give another --output.")
    try:
        yield
    finally:
        lock.release()


def parts(only: str | None) -> tuple[str, ...]:
    """Raises ConfigError for an unknown part."""
    if only is None:
        return PARTS
    asked = [part.strip() for part in only.split(",") if part.strip()]
    if not asked or (unknown := [part for part in asked if part not in PARTS]):
        raise ConfigError(f"--only {only!r}: {unknown[0] if asked else 'nothing'} is not a part; parts are {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in asked)


def slug(text: str) -> str:
    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (made if made[:1].isalpha() else f"site-{made}")[:40].strip("-")


def default_name(url: str) -> str:
    return slug(urlsplit(url).netloc)


def site_of(
    url: str,
    name: str,
    writes: bool,
    reset: str | None,
    database: Path | None,
    login_path: str | None,
    user: str,
    delay: float,
    obeys_robots: bool,
) -> Site:
    """Raises ConfigError for an address that is none, and for options that do not go together."""
    from sandbox.adopting.records import Site, origin_of, page_key

    try:
        parsed = urlsplit(url)
        is_address = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or parsed.username or parsed.password:
        raise ConfigError(f"{url!r} is not an address to adopt: give one like http://127.0.0.1:8001/, without a name or a password in it")
    if database is not None and not writes:
        raise ConfigError("--database goes with --writes: only forms that write are verified by it")
    if database is not None and not database.is_file():
        raise ConfigError(f"--database {database}: there is no such file; name the SQLite file that the application writes to")
    try:
        command = tuple(shlex.split(reset)) if reset else ()
    except ValueError as error:
        raise ConfigError(f"--reset {reset!r} cannot be read as a command: {error}") from error
    if login_path is not None and not login_path.startswith("/"):
        raise ConfigError(f"--login-path {login_path!r}: give the path of the page with the log-in form, e.g. /login")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
        raise ConfigError(f"--name {name!r}: give lower-case letters, digits and -, e.g. {slug(name)}")
    return Site(
        name=name,
        origin=origin_of(url),
        start=page_key(url),
        allow_writes=writes,
        reset=command,
        reset_folder=str(Path.cwd()) if command else None,
        database=None if database is None else str(database.absolute()),
        has_login=login_path is not None,
        login_path=login_path,
        user=user,
        delay_s=delay,
        obeys_robots=obeys_robots,
    )


def warn(site: Site) -> None:
    if not is_this_machine(site.host):
        console.print(f"[yellow]{escape(site.origin)} is not on this machine: crawl and train only where you may.[/]", soft_wrap=True)
    if site.allow_writes:
        how = f"before each episode `{' '.join(site.reset)}` runs" if site.reset else "nothing sets it back: give --reset, or use a copy"
        console.print(f"[bold red]--writes: episodes WRITE to {escape(site.origin)}; {escape(how)}.[/]", soft_wrap=True)


def check_llm(llm: str | None, llm_model: str, only: str | None) -> None:
    """Raises ConfigError for options that do not go together."""
    if bool(llm) != bool(llm_model):
        raise ConfigError("--llm and --llm-model go together: the address of a language model, and its name there")
    if llm is None and only is not None and "wording" in parts(only):
        raise ConfigError("--only wording needs --llm and --llm-model: without a language model tasks keep the words that they have")


def password() -> str:
    """Raises ConfigError where none is given."""
    if not (found := os.environ.get(PASSWORD)):
        raise ConfigError(f"--login-path needs a password: set {PASSWORD}, which is not stored")
    return found
