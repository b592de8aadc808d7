"""Composing instances: a function or view of an application's map, with values from the seeded data, becomes an instruction, a wanted
difference of state or an answer, and an oracle's way.

The rows that an instance is about, and the names that it adds, are of its seed's split by their own content, so no instance of one split
asks for what one of another does. Candidates of a family are listed once for each split in an order fixed by content, filtered with a
reason for each that is refused, and handed to the split's seeds one by one: two seeds share an instance only where there are fewer
instances than seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations as subsets
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.task import SPLIT_EDGES, Split
from sandbox.web_apps import words
from sandbox.web_apps.apps import WebApp, app_named
from sandbox.web_apps.functions import KEY, FieldUse, Finder, Function, FunctionMap, load_map, path_of
from sandbox.web_apps.state import Cells, Change
from sandbox.web_apps.tasks import Look, Route, Search, Use, WebInstance
from sandbox.web_apps.words import combinations, pick
from warehouse.errors import ConfigError
from warehouse.identity import stable_fraction

MAX_CANDIDATES = 3000
MAX_INSTRUCTION = 360
VALUES_PER_FIELD = 6
NEW_NAMES = 1500
FIELDS_IN_CHAIN = 2
"""Beside its name, so many fields of what is added in a chain are told, where the others may be left as they are."""


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
    fraction = stable_fraction("web row", app, table, title)
    return next(split for split, edge in SPLIT_EDGES.items() if fraction < edge)


@lru_cache(maxsize=256)
def instances(name: str, family: Family, split: Split) -> tuple[WebInstance, ...]:
    """Every instance of a family in a split, in order, each with what was refused before it. Raises ConfigError where there is none."""
    found: list[WebInstance] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    drafts = sorted(_drafts(family, split), key=lambda draft: stable_fraction("web order", name, _identity(draft)))
    for draft in drafts[:MAX_CANDIDATES]:
        instance = draft.instance
        reason = draft.refused or _against(instance, seen)
        if reason or instance is None:
            dropped[reason] += 1
            continue
        seen.add(instance.instruction)
        found.append(_with(instance, dropped))
        dropped.clear()
    if not found:
        raise ConfigError(f"No instance of {name} is left in the split {split}: {dict(dropped)}. Change its entry in tasks.yaml.")
    return tuple(found)


def _with(instance: WebInstance, dropped: Counter[str]) -> WebInstance:
    return replace(instance, dropped=dict(dropped))


def _identity(draft: Draft) -> str:
    return draft.instance.instruction if draft.instance is not None else draft.refused


def _against(instance: WebInstance | None, seen: set[str]) -> str:
    """Why an instance is no good."""
    if instance is None:
        return "nothing"
    if instance.instruction in seen:
        return "the same as another"
    if len(instance.instruction) > MAX_INSTRUCTION:
        return "too long"
    if instance.answer is not None and instance.answer.casefold() in instance.instruction.casefold():
        return "the answer is in the question"
    keys = [(change.table, change.key) for change in instance.changes if change.key is not None]
    return "two changes of one row" if len(keys) != len(set(keys)) else ""


def _drafts(family: Family, split: Split) -> Iterator[Draft]:
    app = app_named(family.app)
    maker = _Maker(app=app, found=load_map(app), family=family, split=split)
    return {
        "read": maker.read, "find": maker.find, "match": maker.match, "hop": maker.hop, "use": maker.use, "chain": maker.chain,
    }[family.kind]()  # fmt: skip


class _Maker:
    """Candidates of one family in one split."""

    def __init__(self, *, app: WebApp, found: FunctionMap, family: Family, split: Split) -> None:
        self.app, self.map, self.family, self.split = app, found, family, split
        self.rows: dict[str, dict[str, Cells]] = {
            table: {str(next(iter(row.values()))): {name: str(value) for name, value in row.items()} for row in rows}
            for table, rows in app.world().items()
        }

    # ---- rows ----

    def title(self, table: str, key: str) -> str:
        return str(self.rows[table][key].get(self.app.tables[table].title) or key)

    def of_split(self, table: str) -> list[str]:
        """Keys of the rows that this split may ask about."""
        return [key for key in self.rows[table] if row_split(self.app.name, table, self.title(table, key)) is self.split]

    def values(self, table: str, column: str) -> list[str]:
        """What stands in a column, without doubles."""
        return sorted({str(cells[column]) for cells in self.rows[table].values() if cells.get(column)})

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

    def _made(
        self, instruction: str, plan: tuple[Use | Look, ...], *, start: str, answer: str | None = None, functions: str = "", effort: float
    ) -> Draft:
        changes = tuple(step.change for step in plan if isinstance(step, Use))
        content = {
            "app": self.app.name, "instruction": instruction, "answer": answer, "start": start,
            "changes": [[change.op, change.table, change.key, dict(change.cells)] for change in changes],
        }  # fmt: skip
        provenance = {
            "app": f"{self.app.name} {self.app.version}", "data": self.app.world_id, "functions": functions, "kind": self.family.kind,
        }  # fmt: skip
        return Draft(
            instance=WebInstance(
                app=self.app, start=start, instruction=instruction, changes=changes, answer=answer, plan=plan,
                difficulty=min(1.0, effort / 20), provenance=provenance, content=content,
            )
        )  # fmt: skip

    # ---- questions ----

    def read(self) -> Iterator[Draft]:
        """The answer stands on the page that is shown at first."""
        table = self.family.table
        view = self.map.view(table, is_list=False)
        if view is None:
            raise ConfigError(f"The map of {self.app.name} has no page of one row of {table!r}.")
        for key in self.of_split(table):
            for label, column in view.columns.items():
                answer = str(self.rows[table][key].get(column) or "")
                route = self.route(view.page, table, key)
                text = f"What is the {label} of {self.named(table, key)}? Finish with the answer."
                yield self._asked(text, (Look(route=route),), answer, start=route.paths[0], effort=1, source=view.page)

    def find(self) -> Iterator[Draft]:
        """A row is to be found by its title first."""
        table = self.family.table
        for key in self.of_split(table):
            for column in self.app.tables[table].asked:
                answer = str(self.rows[table][key].get(column) or "")
                look = self._look(table, key, answer)
                text = f"In the {self.app.title}, what is the {column} of {self.named(table, key)}? Finish with the answer."
                start = look.route.search.finder.page if self.family.is_near and look.route.search else self.app.start
                yield self._asked(text, (look,), answer, start=start, effort=5 if self.family.is_near else 7, source=table)

    def match(self) -> Iterator[Draft]:
        """A row is told by two of its columns; its title is asked."""
        table = self.family.table
        for key in self.of_split(table):
            for first, second in subsets(self.app.tables[table].asked, 2):
                wanted = {name: self.rows[table][key].get(name) for name in (first, second)}
                others = [row for row in self.rows[table].values() if wanted.items() <= row.items()]
                answer = self.title(table, key)
                described = self.app.tables[table]
                text = (
                    f'In the {self.app.title}, which {described.singular} has the {first} "{wanted[first]}" and the {second} '
                    f'"{wanted[second]}"? Finish with its {described.title}.'
                )
                look = self._look(table, key, str(wanted[second]), by=first)
                if len(others) > 1:
                    yield Draft(refused="several rows fit")
                elif sum(row.get(first) == wanted[first] for row in self.rows[table].values()) == 1:
                    yield Draft(refused="one condition is enough")
                else:
                    yield self._asked(text, (look,), answer, start=self.app.start, effort=8, source=table)

    def hop(self) -> Iterator[Draft]:
        """From a row over one that refers to it to another row."""
        table = self.family.table
        refers = self.app.tables[table].refers
        for (column, source), (other, target) in subsets(list(refers.items()), 2):
            for key in self.of_split(source):
                links = [row for row in self.rows[table].values() if row[column] == key]
                if len(links) != 1:
                    yield Draft(refused="no row, or several, refers to it")
                    continue
                end = str(links[0][other])
                for asked in self.app.tables[target].asked:
                    answer = str(self.rows[target][end].get(asked) or "")
                    yield self._hopped((source, key), (table, column), (target, end), asked, answer)

    def _hopped(self, source: tuple[str, str], link: tuple[str, str], target: tuple[str, str], asked: str, answer: str) -> Draft:
        singular = {name: self.app.tables[name].singular for name in (source[0], link[0], target[0])}
        text = (
            f"In the {self.app.title}, look up the {singular[link[0]]} of {self.named(*source)}. What is the {asked} of its "
            f"{singular[target[0]]}? Finish with the answer."
        )
        near, far = self._row_page(source[0]), self._row_page(target[0])
        listed = self.map.view(link[0], is_list=True)
        paths = [path_of(far, target[1])]
        paths += [f"{listed.page}?{link[1]}={source[1]}"] if listed is not None else []
        route = self.route(near, source[0], source[1])
        look = Look(route=Route(paths=(*paths, *route.paths), search=route.search))
        return self._asked(text, (look,), answer, start=self.app.start, effort=10, source=f"{source[0]} {link[0]} {target[0]}")

    def _row_page(self, table: str) -> str:
        view = self.map.view(table, is_list=False)
        if view is None:
            raise ConfigError(f"The map of {self.app.name} has no page of one row of {table!r}.")
        return view.page

    def _look(self, table: str, key: str, answer: str, *, by: str | None = None) -> Look:
        """Where a row and an answer stand in one line, or on the row's own page."""
        finder = self.finder(table)
        title = self.title(table, key)
        if finder is None or finder.row_page is not None:
            return Look(route=self.route(self._row_page(table), table, key))
        text = title if by is None else str(self.rows[table][key][by])
        search = Search(finder=finder, column=by or self.app.tables[table].title, text=text)
        return Look(route=Route(paths=self.route(finder.page, None, None).paths, search=search), texts=(title, answer))

    def _asked(self, text: str, plan: tuple[Look, ...], answer: str, *, start: str, effort: float, source: str) -> Draft:
        return self._made(text, plan, start=start, answer=answer, functions=source, effort=effort) if answer else Draft(refused="no answer")

    # ---- functions ----

    def use(self) -> Iterator[Draft]:
        for name in self.family.functions:
            function = self.map.function(name)
            for use, text in self._uses(function):
                start = use.route.paths[0] if self.family.is_near else self.app.start
                effort = 2 + 2 * len(use.values) + (0 if self.family.is_near else 3)
                yield self._made(text, (use,), start=start, functions=name, effort=effort)

    def chain(self) -> Iterator[Draft]:
        """One use of each function in turn. Where a later one can choose what an earlier one adds, it does."""
        lists = [list(self._uses(self.map.function(name))) for name in self.family.functions]
        shortest = min(len(each) for each in lists)
        for index in range(min(MAX_CANDIDATES, shortest * 4)):
            uses: list[Use] = []
            texts: list[str] = []
            for number, each in enumerate(lists):
                at = int(stable_fraction("web chain", *self.family.functions, number, index, self.split.value) * len(each))
                use, text = each[at]
                use, text = self._merged(use, text, uses)
                uses.append(use)
                texts.append(text)
            told = " Then ".join([texts[0], *(text[0].lower() + text[1:] for text in texts[1:])])
            effort = sum(3 + 2 * len(use.values) for use in uses)
            yield self._made(told, tuple(uses), start=self.app.start, functions=" ".join(self.family.functions), effort=effort)

    def _chooses_new(self, field: FieldUse) -> bool:
        """Whether it is a choice among what an earlier function of the chain adds."""
        added = {self.map.function(name).table for name in self.family.functions if self.map.function(name).op == "insert"}
        return self.family.kind == "chain" and any(self._is_choice_of(field, table) for table in added)

    def _is_choice_of(self, field: FieldUse, table: str) -> bool:
        titles = {self.title(table, key) for key in self.rows.get(table, {})}
        return bool(field.options) and set(field.options) - {""} <= titles

    def _merged(self, use: Use, text: str, earlier: list[Use]) -> tuple[Use, str]:
        """With what was added before as the value of a choice among such things."""
        for field in use.function.fields:
            for before in earlier:
                is_new = before.change.op == "insert" and self._is_choice_of(field, before.function.table)
                if is_new and field.name in use.values:
                    old, new = use.values[field.name], str(self._title_of(before))
                    cells = {name: new if value == old and name == field.column else value for name, value in use.change.cells.items()}
                    change = Change(op=use.change.op, table=use.change.table, key=use.change.key, cells=cells)
                    merged = Use(function=use.function, route=use.route, values={**use.values, field.name: new}, change=change)
                    return merged, text.replace(f'"{old}"', f'"{new}"')
        return use, text

    def _title_of(self, use: Use) -> str | None:
        return use.change.cells.get(self.app.tables[use.function.table].title)

    def _uses(self, function: Function) -> Iterator[tuple[Use, str]]:
        return {"insert": self._inserts, "update": self._updates, "delete": self._deletes}[function.op](function)

    def _inserts(self, function: Function) -> Iterator[tuple[Use, str]]:
        """A new row with a name that no row has, of this split, and values that others have."""
        described = self.app.tables[function.table]
        singular = described.singular
        titled = next((field for field in function.fields if field.column == described.title), None)
        if titled is None:
            raise ConfigError(f"The function {function.name} of {self.app.name} sets no {described.title!r}: no row can be told by it.")
        keys: list[str | None] = [None] if function.entity is None else list(self.of_split(function.entity))
        for number, name in enumerate(self._new_names(function.table)):
            key = keys[number % len(keys)]
            values, cells = {titled.name: name}, {c: key if v == KEY else v for c, v in function.constants.items()}
            shown = [f'the {titled.label.casefold()} "{name}"']
            for field in function.fields:
                if field is titled or field.column is None:
                    continue
                options = [text for text in field.options if text] or self.values(function.table, field.column)
                is_enough = self.family.kind == "chain" and len(shown) > FIELDS_IN_CHAIN
                if field.column in function.blank and (field.column not in described.asked or not options or is_enough):
                    cells[field.column] = function.blank[field.column]
                    continue
                value = pick(options, function.name, field.name, name)
                values[field.name] = cells[field.column] = value
                shown.append(f'the {field.label.casefold()} "{value}"')
            cells[described.title] = name
            where = f" to {self.named(function.entity, key)}" if function.entity and key else f" to the {self.app.title}"
            use = Use(
                function=function, route=self.route(function.page, function.entity, key), values=values,
                change=Change(op="insert", table=function.table, cells=cells),
            )  # fmt: skip
            yield use, f"Add a {singular}{where} with {_listed(shown)}."

    def _new_names(self, table: str) -> list[str]:
        """Names of this split that no row has, of the same kind as the names that rows have."""
        lists = (words.FIRST_NAMES, words.LAST_NAMES) if table in {"members", "suppliers"} else (words.ADJECTIVES, words.NOUNS)
        taken = {self.title(table, key) for key in self.rows.get(table, {})}
        names = [name for name in combinations(f"new {table}", *lists)[:NEW_NAMES] if name not in taken]
        return [name for name in names if row_split(self.app.name, table, name) is self.split]

    def _updates(self, function: Function) -> Iterator[tuple[Use, str]]:
        settable = [field for field in function.fields if field.column is not None]
        naming = next((field for field in function.fields if field.column is None), None)
        num = min(self.family.num_fields, len(settable)) if self.family.kind == "use" else min(1, len(settable))
        table = function.table
        wanted = self.app.tables[table].asked
        settable = [field for field in settable if field.column in wanted or function.fixed or not wanted] or settable
        settable = [field for field in settable if self._chooses_new(field)] or settable
        for key in self.of_split(table):
            row = self.rows[table][key]
            for fields in subsets(settable, num):
                for turn in range(VALUES_PER_FIELD if fields else 1):
                    values = dict(function.fixed)
                    cells = {c: v for c, v in function.constants.items() if row.get(c) != v}
                    for field in fields:
                        column = str(field.column)
                        options = [text for text in field.options if text] or self._texts(table, column)
                        value = pick(options, function.name, key, column, turn)
                        if value == row.get(column):
                            value = options[(options.index(value) + 1) % len(options)]
                        values[field.name] = cells[column] = value
                    if naming is not None:
                        values[naming.name] = self.title(table, key)
                    use = Use(
                        function=function, route=self.route(function.page, function.entity, key if function.entity else None),
                        values=values, change=Change(op="update", table=table, key=key, cells=cells),
                    )  # fmt: skip
                    yield use, self._told_update(table, key, cells)

    def _texts(self, table: str, column: str) -> list[str]:
        """What may be written into a column: what others have there; for running text a new sentence."""
        if table == "wiki":
            return [f"The keeper of this page is {name.lower()}." for name in words.FIRST_NAMES[16:]]
        return self.values(table, column)

    def _told_update(self, table: str, key: str, cells: Cells) -> str:
        shown = [f'the {name} of {self.named(table, key)} to "{value}"' for name, value in cells.items()]
        rest = [f'its {name} to "{value}"' for name, value in list(cells.items())[1:]]
        return f"In the {self.app.title}, change {_listed([shown[0], *rest])}."

    def _deletes(self, function: Function) -> Iterator[tuple[Use, str]]:
        naming = next((field for field in function.fields if field.column is None), None)
        for key in self.of_split(function.table):
            values = {naming.name: self.title(function.table, key)} if naming is not None else {}
            use = Use(
                function=function, route=self.route(function.page, function.entity, key if function.entity else None), values=values,
                change=Change(op="delete", table=function.table, key=key),
            )  # fmt: skip
            yield use, f"Remove {self.named(function.table, key)} from the {self.app.title}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
