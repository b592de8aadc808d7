"""The Dagster instance of a FLYWHEEL_HOME: made from the project's dagster.yaml, kept under the home, never beside the code."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

import yaml

from pipelines.orchestration.shipped import shipped
from warehouse.core.disk import storage_full
from warehouse.core.errors import ConfigError, missing_extra
from warehouse.core.home import HOME_VARIABLE, Home, atomic_write

if TYPE_CHECKING:
    import dagster as dg

CONFIG = "dagster.yaml"
POSTGRES_VARIABLE = "FLYWHEEL_POSTGRES_URL"
DRIVER = "postgresql+psycopg2"
LAUNCHER = "pipelines.orchestration.runs.launcher"
NEEDED_MIB = 256


def prepare(home: Home) -> dict[str, str]:
    """Write the configuration of the home's instance into it; returns the environment that every Dagster process needs.

    Raises ConfigError when dagster.yaml is missing, or Postgres is asked for and its package is not installed.
    """
    config = yaml.safe_load(shipped(CONFIG).read_text())
    config["storage"] = {"sqlite": {"base_dir": str(home.dagster)}}
    for kept in ("local_artifact_storage", "compute_logs"):
        config[kept]["config"]["base_dir"] = str(home.dagster)
    config["run_launcher"]["module"] = LAUNCHER
    postgres = _postgres_url()
    if postgres is not None:
        config["storage"] = {"postgres": {"postgres_url": {"env": POSTGRES_VARIABLE}}}
    written, wanted = home.dagster / CONFIG, yaml.safe_dump(config, sort_keys=False).encode()
    if not written.is_file() or written.read_bytes() != wanted:  # what only looks can then look at a full or read-only disk
        atomic_write(written, wanted)
    own = {"DAGSTER_HOME": str(home.dagster), HOME_VARIABLE: str(home.root), "DAGSTER_DISABLE_TELEMETRY": "1"}
    return own | ({POSTGRES_VARIABLE: postgres} if postgres is not None else {})


def _postgres_url() -> str | None:
    """The address of Dagster's Postgres with the driver that its storage is written for: without one SQLAlchemy takes another, whose
    connections close with the first statement. Raises ConfigError."""
    url = os.environ.get(POSTGRES_VARIABLE)
    if not url:
        return None
    if find_spec("dagster_postgres") is None:
        raise ConfigError(f"{POSTGRES_VARIABLE} is set. {missing_extra('dagster-postgres', 'postgres')}. Or unset the variable")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgres", "postgresql", DRIVER):
        raise ConfigError(f"{POSTGRES_VARIABLE} begins with {scheme[:20]!r}: allowed is postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return f"{DRIVER}://{rest}"


def is_known(home: Home) -> bool:
    """Whether Dagster was ever started for a home: its history is there, or its configuration names Postgres. A home that is not there is
    not made by the question."""
    return (home.root / "dagster" / "history").is_dir() or _is_on_postgres(home)


def check_named(home: Home) -> None:
    """Raises ConfigError where the home's history is in a Postgres that is not named here: `open_instance` would begin another."""
    if _is_on_postgres(home) and not os.environ.get(POSTGRES_VARIABLE):
        raise ConfigError(
            f"the Dagster of {home.root} keeps its history in Postgres, and {POSTGRES_VARIABLE} is not set: set it to that database"
        )


def _is_on_postgres(home: Home) -> bool:
    try:
        config = yaml.safe_load((home.root / "dagster" / CONFIG).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return False
    return isinstance(config, dict) and "postgres" in config.get("storage", {})


def check_disk_space(home: Home) -> None:
    """Raises StorageFull when the disk of a home could not even take the records of an iteration: better said before it begins."""
    free_mib = shutil.disk_usage(home.dagster).free / 2**20
    if free_mib < NEEDED_MIB:
        then = f"give the command again; or set {HOME_VARIABLE} to a folder on another disk"
        raise storage_full("an iteration", home.root, wanted_bytes=NEEDED_MIB * 2**20, then=then)


def open_instance(home: Home) -> dg.DagsterInstance:
    """The instance, with this process's environment set for it."""
    os.environ.update(prepare(home))
    import dagster as dg

    return dg.DagsterInstance.get()


def open_known(home: Home) -> dg.DagsterInstance:
    """As `open_instance`, and never another history than the home's. Raises ConfigError."""
    check_named(home)
    return open_instance(home)
