"""Uses of functions: rows that are added, changed and removed, one alone or several in a chain, and their wording."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations as subsets

from sandbox.tasks.web_apps import words
from sandbox.tasks.web_apps.drafts import Draft, DraftFactory, row_split
from sandbox.tasks.web_apps.functions import KEY, FieldUse, Function
from sandbox.tasks.web_apps.state import Cells, Change
from sandbox.tasks.web_apps.tasks import Use
from sandbox.tasks.web_apps.words import combinations, pick
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_fraction

MAX_CHAINS = 3000
VALUES_PER_FIELD = 6
NEW_NAMES = 1500
FIELDS_IN_CHAIN = 2
"""Beside its name, an instruction gives so many fields of what is added in a chain, where the others may be left as they are."""


class Uses(DraftFactory):
    """Candidates that change the state."""

    def use(self) -> Iterator[Draft]:
        for name in self.family.functions:
            function = self.map.function(name)
            for use, text in self._uses(function):
                start = use.route.paths[0] if self.family.is_near else self.app.start
                effort = 2 + 2 * len(use.values) + (0 if self.family.is_near else 3)
                yield self.made(text, (use,), start=start, functions=name, effort=effort)

    def chain(self) -> Iterator[Draft]:
        """One use of each function in turn. Where a later one can choose what an earlier one adds, it does."""
        lists = [list(self._uses(self.map.function(name))) for name in self.family.functions]
        shortest = min(len(each) for each in lists)
        for index in range(min(MAX_CHAINS, shortest * 4)):
            uses: list[Use] = []
            texts: list[str] = []
            for number, each in enumerate(lists):
                at = int(stable_fraction("web chain", *self.family.functions, number, index, self.split.value) * len(each))
                use, text = each[at]
                use, text = self._merged(use, text, uses)
                uses.append(use)
                texts.append(text)
            instruction = " Then ".join([texts[0], *(text[0].lower() + text[1:] for text in texts[1:])])
            effort = sum(3 + 2 * len(use.values) for use in uses)
            yield self.made(instruction, tuple(uses), start=self.app.start, functions=" ".join(self.family.functions), effort=effort)

    def _chooses_new(self, field: FieldUse) -> bool:
        """Whether it is a choice among what an earlier function of the chain adds."""
        added = {self.map.function(name).table for name in self.family.functions if self.map.function(name).op == "insert"}
        return self.family.kind == "chain" and any(self._is_choice_of(field, table) for table in added)

    def _is_choice_of(self, field: FieldUse, table: str) -> bool:
        return bool(field.options) and set(field.options) - {""} <= self.titles(table)

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
            raise ConfigError(f"The function {function.name} of {self.app.name} sets no {described.title!r}: no row can be named by it.")
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
                function=function,
                route=self.route(function.page, function.entity, key),
                values=values,
                change=Change(op="insert", table=function.table, cells=cells),
            )
            yield use, f"Add a {singular}{where} with {_listed(shown)}."

    def _new_names(self, table: str) -> list[str]:
        """Names of this split that no row has, of the same kind as the names that rows have."""
        lists = (words.FIRST_NAMES, words.LAST_NAMES) if table in {"members", "suppliers"} else (words.ADJECTIVES, words.NOUNS)
        names = [name for name in combinations(f"new {table}", *lists)[:NEW_NAMES] if name not in self.titles(table)]
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
                        function=function,
                        route=self.route(function.page, function.entity, key if function.entity else None),
                        values=values,
                        change=Change(op="update", table=table, key=key, cells=cells),
                    )
                    yield use, self._describe_update(table, key, cells)

    def _texts(self, table: str, column: str) -> list[str]:
        """What may be written into a column: what others have there; for running text a new sentence."""
        if table == "wiki":
            return [f"The keeper of this page is {name.lower()}." for name in words.FIRST_NAMES[16:]]
        return self.values(table, column)

    def _describe_update(self, table: str, key: str, cells: Cells) -> str:
        shown = [f'the {name} of {self.named(table, key)} to "{value}"' for name, value in cells.items()]
        rest = [f'its {name} to "{value}"' for name, value in list(cells.items())[1:]]
        return f"In the {self.app.title}, change {_listed([shown[0], *rest])}."

    def _deletes(self, function: Function) -> Iterator[tuple[Use, str]]:
        naming = next((field for field in function.fields if field.column is None), None)
        for key in self.of_split(function.table):
            values = {naming.name: self.title(function.table, key)} if naming is not None else {}
            use = Use(
                function=function,
                route=self.route(function.page, function.entity, key if function.entity else None),
                values=values,
                change=Change(op="delete", table=function.table, key=key),
            )
            yield use, f"Remove {self.named(function.table, key)} from the {self.app.title}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
