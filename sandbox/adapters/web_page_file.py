"""Tasks in web pages as a YAML file, which a profile or a command names as it names any task source:

    plugins: {task_sources: {notes: notes.yaml}}

An entry has the fields of a WebPageTask (web_page_source.py). Functions are `path/to/file.py:function` or `module:function`; paths count
from the file's folder. `facts` may also be a list of values for each name, of which each instance takes one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from sandbox.adapters.web_page_source import web_page_source
from sandbox.adapters.web_page_task import WebPageTask
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError
from warehouse.core.plain_yaml import read_yaml
from warehouse.core.plugins import attribute_of, located

WANTED = "expected module:function or path/to/file.py:function, e.g. notes.py:has_note"
Choices = dict[str, list[str | int | FiniteFloat | bool]]


class Entry(BaseModel):
    """One task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    instruction: str
    verifier: str
    facts: str | Choices | None = None
    reset: str | None = None
    oracle: str | None = None
    database: Path | None = None
    hosts: tuple[str, ...] = ()
    is_shared: bool = False
    size_px: tuple[int, int] = Field((800, 640), description="width and height of the window")
    real_time: bool = False
    domain: str = "web"
    max_steps: int = Field(20, ge=1, le=1000)


class WebPageFile(BaseModel):
    """The file as a whole. Its source is called as the file where it has no `name`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    edition: str = "1"
    licence: str = "unknown"
    tasks: dict[str, Entry] = Field(min_length=1)


def source_of_file(path: Path) -> TaskSource:
    """Raises ConfigError for a file that is not one, and for functions that are not there."""
    try:
        given = read_yaml(path.read_text(encoding="utf-8"))
        parsed = WebPageFile.model_validate(given)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path} is not a file of tasks in web pages (docs/adapters.md): {error}") from error
    tasks = [_task(name, entry, path.parent) for name, entry in parsed.tasks.items()]
    return web_page_source(parsed.name or path.stem, tasks, edition=parsed.edition, licence=parsed.licence)


def _task(name: str, entry: Entry, folder: Path) -> WebPageTask:
    plain = entry.model_dump(exclude={"verifier", "facts", "reset", "oracle", "database"})
    return WebPageTask(
        name=name,
        verifier=_function("verifier", entry.verifier, folder),
        facts=_drawing(name, entry.facts, folder),
        reset=_function("reset", entry.reset, folder) if entry.reset else None,
        oracle=_function("oracle", entry.oracle, folder) if entry.oracle else None,
        database=None if entry.database is None else folder / entry.database,
        **plain,
    )


def _drawing(name: str, facts: str | Choices | None, folder: Path) -> Callable[[random.Random], Mapping[str, Any]] | None:
    """Raises ConfigError."""
    if facts is None:
        return None
    if isinstance(facts, str):
        return _function("facts", facts, folder)
    if not facts or not all(facts.values()):
        raise ConfigError(f"`facts` of the task {name!r} is {facts!r}: give each name at least one value.")
    return lambda dice: {key: dice.choice(values) for key, values in facts.items()}


def _function(what: str, reference: str, folder: Path) -> Callable[..., Any]:
    """Raises ConfigError."""
    found = attribute_of(located(reference, folder), what, WANTED, callable)
    if not callable(found):
        raise ConfigError(f"The {what} {reference} is a {type(found).__name__}: expected a function.")
    return found  # type: ignore[no-any-return]
