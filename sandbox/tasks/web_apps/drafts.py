"""What every candidate of a family is made with: the seeded rows, which of them a split may ask about, the ways to pages, and the draft
that comes out. Questions are questions.py, uses of functions uses.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.tasks.task import Split, split_at
from sandbox.tasks.web_apps.apps import WebApp
from sandbox.tasks.web_apps.functions import Finder, FunctionMap, path_of
from sandbox.tasks.web_apps.state import Cells
from sandbox.tasks.web_apps.tasks import Look, Route, Search, Use, WebInstance
from warehouse.core.identity import stable_fraction


class Family(BaseModel):
    """One task's line in tasks.yaml: a kind of instance over what a map has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: str
    kind: Literal["read", "find", "match", "hop", "use", "chain"]
    table: Annotated[str, Field(description="read, find, match, hop: whose rows are asked about")] = ""
    functions: Annotated[tuple[str, ...], Field(description="use, chain: of the map")] = ()
    num_fields: Annotated[int, Field(ge=1, le=6, description="use of an update: so many fields are changed")] = 1
    is_near: Annotated[bool, Field(description="the agent starts where it is done, not at the application's first page")] = False
    max_steps: Annotated[int, Field(ge=1, le=100)]
    held_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A candidate: an instance, or why it is none."""

    instance: WebInstance | None = None
    refused: str = ""


def row_split(app: str, table: str, title: str) -> Split:
    """Which split a row, or a name that is added, belongs to: by its content alone."""
    return split_at(stable_fraction("web row", app, table, title))


class DraftFactory:
    """Candidates of one family in one split."""

    def __init__(self, *, app: WebApp, found: FunctionMap, family: Family, split: Split) -> None:
        self.app, self.map, self.family, self.split = app, found, family, split
        self.rows: dict[str, dict[str, Cells]] = {
            table: {str(next(iter(row.values()))): {name: str(value) for name, value in row.items()} for row in rows}
            for table, rows in app.world().items()
        }
        self._values: dict[tuple[str, str], list[str]] = {}
        self._titles: dict[str, frozenset[str]] = {}

    # ---- rows ----

    def title(self, table: str, key: str) -> str:
        return str(self.rows[table][key].get(self.app.tables[table].title) or key)

    def of_split(self, table: str) -> list[str]:
        """Keys of the rows that this split may ask about."""
        return [key for key in self.rows[table] if row_split(self.app.name, table, self.title(table, key)) is self.split]

    def values(self, table: str, column: str) -> list[str]:
        """What stands in a column, without doubles."""
        if (table, column) not in self._values:
            self._values[table, column] = sorted({str(cells[column]) for cells in self.rows[table].values() if cells.get(column)})
        return self._values[table, column]

    def titles(self, table: str) -> frozenset[str]:
        """Of all rows; of a table that is not there none."""
        if table not in self._titles:
            self._titles[table] = frozenset(self.title(table, key) for key in self.rows.get(table, {}))
        return self._titles[table]

    def named(self, table: str, key: str) -> str:
        return f'the {self.app.tables[table].singular} "{self.title(table, key)}"'

    # ---- ways ----

    def route(self, pattern: str, entity: str | None, key: str | None) -> Route:
        """To a page, by the pages that the crawl came from, and by a search for the row where there is one."""
        paths = [path_of(pattern, key)]
        at = pattern
        while at := self.map.patterns.get(at, ""):
            inside = at.partition("{")[2].partition("}")[0].partition(":")[0]
            if "*" not in at and inside in {"", entity}:
                paths.append(path_of(at, key))
        search = None
        if entity is not None and key is not None:
            finder = self.finder(entity)
            if finder is not None:
                search = Search(finder=finder, column=self.app.tables[entity].title, text=self.title(entity, key))
                if finder.row_page and finder.row_page != pattern:
                    paths.insert(1, path_of(finder.row_page, key))
        return Route(paths=tuple(dict.fromkeys(paths)), search=search)

    def finder(self, table: str) -> Finder | None:
        return next((finder for finder in self.map.finders if finder.table == table), None)

    def made(
        self, instruction: str, plan: tuple[Use | Look, ...], *, start: str, answer: str | None = None, functions: str = "", effort: float
    ) -> Draft:
        changes = tuple(step.change for step in plan if isinstance(step, Use))
        content = {
            "app": self.app.name,
            "instruction": instruction,
            "answer": answer,
            "start": start,
            "changes": [[change.op, change.table, change.key, dict(change.cells)] for change in changes],
        }
        provenance = {
            "app": f"{self.app.name} {self.app.version}",
            "data": self.app.world_id,
            "functions": functions,
            "kind": self.family.kind,
        }
        return Draft(
            instance=WebInstance(
                app=self.app,
                start=start,
                instruction=instruction,
                changes=changes,
                answer=answer,
                plan=plan,
                difficulty=min(1.0, effort / 20),
                provenance=provenance,
                content=content,
            )
        )
