"""FunctionMap: what a crawl found an application can do. Stored as JSON beside this module (maps/), one file an application, made again by

    python -m sandbox.tasks.web_apps.crawl datasette

A function is a form whose effect on the application's state was tried out and then foretold for another row. What a page shows is a view.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.web_apps.apps import WebApp
from warehouse.core.errors import ConfigError

MAPS = Path(__file__).with_name("maps")
MAP_VERSION = 1
KEY = "{key}"
"""Among the constants of a function: the key of the row that its page is about."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FieldUse(_Stored):
    """One control of a form that sets a column."""

    name: str
    kind: Literal["text", "area", "select", "radio"]
    label: str
    column: Annotated[str | None, Field(description="the column it sets; None: it says which row is meant, by its title")]
    options: Annotated[tuple[str, ...], Field(description="shown texts of a select")] = ()
    check: Annotated[str | None, Field(description="a box that has to be ticked first")] = None


class Function(_Stored):
    """A form with one effect: a row comes, goes or changes."""

    name: str
    page: Annotated[str, Field(description="path of its page; {table} stands for a row's key")]
    entity: Annotated[str | None, Field(description="the table whose row the page is about")] = None
    submit: Annotated[str, Field(description="text of the button that sends it")]
    op: Literal["insert", "update", "delete"]
    table: str
    fields: tuple[FieldUse, ...] = ()
    fixed: Annotated[dict[str, str], Field(description="buttons of choice that have to be set, by name")] = {}
    constants: Annotated[dict[str, str | None], Field(description="columns that it sets by itself")] = {}
    blank: Annotated[dict[str, str | None], Field(description="what columns hold whose fields are left as they are")] = {}


class View(_Stored):
    """A page that shows rows: a list of many, or all of one."""

    page: str
    table: str
    is_list: bool
    columns: Annotated[dict[str, str], Field(description="column by what the page calls it")]


class Finder(_Stored):
    """A form that narrows a list, or leads to a row's page."""

    page: str
    table: str
    field: str
    submit: str
    column_field: Annotated[str | None, Field(description="the select that names the column; None: it looks for titles")] = None
    row_page: Annotated[str | None, Field(description="where what it finds leads to; None: it narrows the list of its page")] = None


class FunctionMap(_Stored):
    """All of one application."""

    map_version: int = MAP_VERSION
    app: str
    app_version: str
    world_id: str
    num_pages: Annotated[int, Field(description="pages that were asked for")]
    patterns: Annotated[dict[str, str], Field(description="kinds of pages, and from which each was reached first")]
    functions: tuple[Function, ...]
    views: tuple[View, ...]
    finders: tuple[Finder, ...]
    dropped: Annotated[dict[str, int], Field(description="pages and forms that were left out, by reason")]

    def function(self, name: str) -> Function:
        """Raises ConfigError."""
        for function in self.functions:
            if function.name == name:
                return function
        known = ", ".join(function.name for function in self.functions)
        raise ConfigError(f"The map of {self.app} has no function {name!r}; it has {known}. Crawl again, or name another.")

    def view(self, table: str, *, is_list: bool) -> View | None:
        return next((view for view in self.views if view.table == table and view.is_list == is_list), None)


def map_file(app: WebApp) -> Path:
    return MAPS / f"{app.name}.json"


@cache
def _read(path: Path) -> FunctionMap:
    try:
        return FunctionMap.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{path.name} is not a map of functions: {error}. Make it: python -m sandbox.tasks.web_apps.crawl {path.stem}"
        ) from error


def load_map(app: WebApp) -> FunctionMap:
    """The stored map. Raises ConfigError where it is missing, malformed, or of another version of the application or of its data."""
    found = _read(map_file(app))
    if (found.map_version, found.app_version, found.world_id) != (MAP_VERSION, app.version, app.world_id):
        raise ConfigError(
            f"The map of {app.name} was made of {found.app_version} with {found.world_id}, and the application is {app.version} with "
            f"{app.world_id}. Make it again: python -m sandbox.tasks.web_apps.crawl {app.name}"
        )
    return found


def encode(key: str, encoding: str) -> str:
    """A row's key as a part of a path: `plain` as it is, `json64` in base64 of a JSON list of it. Raises ConfigError for another."""
    if encoding == "json64":
        listed = json.dumps([int(key) if key.isdigit() else key])
        return quote(base64.urlsafe_b64encode(listed.encode()).decode())
    if encoding != "plain":
        raise ConfigError(f"A path encodes its key as {encoding!r}; known are plain and json64. Crawl the application again.")
    return quote(key)


def path_of(pattern: str, key: str | None) -> str:
    """The path of a row's page: `{table}` is replaced by its key, `{table:json64}` by its key in that encoding."""
    before, brace, rest = pattern.partition("{")
    if not brace or key is None:
        return pattern
    inside, _, after = rest.partition("}")
    return before + encode(key, inside.partition(":")[2] or "plain") + after
