"""What commands share: options, the home that they are given, and where they print."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from warehouse.core.errors import ConfigError
from warehouse.core.home import DEFAULT_HOME, HOME_VARIABLE, Home

if TYPE_CHECKING:
    from warehouse.storage.tables import Warehouse

console = Console()

HomeOption = Annotated[
    Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="The folder that holds everything \\[default: .flywheel].")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar="FLYWHEEL_PROFILE",
        help="A profile's name (quickstart, smoke, sandbox, generated, pixels, full-2b, full-7b, cluster, cluster-smoke) or the path of a "
        "YAML file \\[default: the one that this home was last run with, else quickstart].",
    ),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change one setting, e.g. --set seed=1 --set annotation.enabled=false.")]
SourceOption = Annotated[
    list[str] | None, typer.Option("--source", help="A task source of your own, module:attribute or path/to/file.py:attribute; repeatable.")
]
SourcesOfOption = Annotated[
    str | None, typer.Option("--profile", envvar="FLYWHEEL_PROFILE", help="With the task sources of this profile, a name or a YAML file.")
]
AsOfOption = Annotated[str | None, typer.Option("--as-of", help="See the tables as they were after this iteration, e.g. 0002.")]


def use_sources(given: list[str] | None, profile: str | None) -> None:
    """Register the task sources of a profile and those of --source, here and for what this process starts. Raises ConfigError."""
    if profile:
        from pipelines.profiles import load

        load(profile)
    if given:
        from sandbox.tasks.registry import SOURCES

        SOURCES.use(given, Path.cwd(), keep=True)


def warehouse_of(home: Home) -> Warehouse:
    """The tables of a home. What reads them takes half a second to import: only for the commands that do."""
    from warehouse.storage.tables import Warehouse

    return Warehouse(home)


def home_of(path: Path | None) -> Home:
    """The home of --home, else of the environment; it need not be there yet. From here on it is the environment's, for what looks there
    by itself (task sets)."""
    home = Home(path.absolute()) if path is not None else Home.from_env()
    os.environ[HOME_VARIABLE] = str(home.root)
    if home.root.is_dir():
        home.make()
    return home


def made_home(path: Path | None) -> Home:
    """The same, for commands that only read. Raises ConfigError without a home."""
    home = home_of(path)
    home.check_exists()
    return home


def command_in(home: Path, command: str) -> str:
    """The command as a shell of this folder runs it on a home: with --home where it is not the default. A variable does not count, since
    `make run FLYWHEEL_HOME=…` leaves none behind."""
    home = home.absolute()
    if home == Path(DEFAULT_HOME).absolute():
        return command
    return f"{command} --home {shlex.quote(str(home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home))}"


def profile_of(home: Home, given: str | None, set_: list[str] | None) -> tuple[str, dict[str, Any]]:
    """The profile that a command means, and the changes to it. Raises ConfigError."""
    from pipelines.orchestration.runs.kept_profile import chosen

    return chosen(home, given, overrides(set_))


def overrides(items: list[str] | None) -> dict[str, Any]:
    """What --set says, by key; paths of plug-ins count from here. Raises ConfigError."""
    from pipelines.profiles import parse_value
    from warehouse.core.plugins import located_all

    found = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item!r} is not KEY=VALUE, e.g. --set rl.rounds=4")
        found[key] = parse_value(value, f"the value of --set {item!r}")
        if key.split(".")[0] == "plugins":
            found[key] = located_all(found[key], Path.cwd())
    return found
