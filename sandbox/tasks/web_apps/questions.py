"""Questions: what stands in a row, found by its title, by two conditions, or over a row that refers to it. The state stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from itertools import combinations as subsets
from itertools import product

from sandbox.tasks.web_apps.drafts import Draft, DraftFactory
from sandbox.tasks.web_apps.functions import path_of
from sandbox.tasks.web_apps.tasks import Look, Route, Search
from warehouse.core.errors import ConfigError

MIN_VALUES = 15
"""What is found or hopped to is asked of columns with so many different values or more: one guess in so many is right at most."""


class Questions(DraftFactory):
    """Candidates that ask."""

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
        columns = yield from self._distinguished(table)
        for key in self.of_split(table):
            for column in columns:
                answer = str(self.rows[table][key].get(column) or "")
                look = self._look(table, key, answer)
                text = f"In the {self.app.title}, what is the {column} of {self.named(table, key)}? Finish with the answer."
                start = look.route.search.finder.page if self.family.is_near and look.route.search else self.app.start
                yield self._asked(text, (look,), answer, start=start, effort=5 if self.family.is_near else 7, source=table)

    def match(self) -> Iterator[Draft]:
        """A row is identified by two of its columns; its title is asked."""
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
                rarer, other = sorted((first, second), key=lambda name: self._num_with(table, name, wanted[name]))  # all on one page
                look = self._look(table, key, str(wanted[other]), by=rarer)
                if len(others) > 1:
                    yield Draft(refused="several rows fit")
                elif self._num_with(table, first, wanted[first]) == 1:
                    yield Draft(refused="one condition is enough")
                else:
                    yield self._asked(text, (look,), answer, start=self.app.start, effort=8, source=table)

    def _num_with(self, table: str, name: str, value: object) -> int:
        return sum(row.get(name) == value for row in self.rows[table].values())

    def hop(self) -> Iterator[Draft]:
        """From a row over one that refers to it to another row, of which something is asked: that one is of the split."""
        table = self.family.table
        refers = self.app.tables[table].refers
        for (column, source), (other, target) in subsets(list(refers.items()), 2):
            columns = yield from self._distinguished(target)
            referred = Counter(row[column] for row in self.rows[table].values())
            for end in self.of_split(target):
                keys = [str(row[column]) for row in self.rows[table].values() if row[other] == end and referred[row[column]] == 1]
                if not keys:
                    yield Draft(refused="no row, or several, refers to it")
                for key, asked in product(keys, columns):
                    answer = str(self.rows[target][end].get(asked) or "")
                    yield self._hopped((source, key), (table, column), (target, end), asked, answer)

    def _distinguished(self, table: str) -> Generator[Draft, None, list[str]]:
        """Columns of which too much stands in the table for a guess to be right often."""
        columns = {column: len(self.values(table, column)) for column in self.app.tables[table].asked}
        yield from (Draft(refused="a column with so few values is guessed") for num in columns.values() if num < MIN_VALUES)
        return [column for column, num in columns.items() if num >= MIN_VALUES]

    def _hopped(self, source: tuple[str, str], link: tuple[str, str], target: tuple[str, str], asked: str, answer: str) -> Draft:
        singular = {name: self.app.tables[name].singular for name in (source[0], link[0], target[0])}
        text = (
            f"In the {self.app.title}, look up the {singular[link[0]]} of {self.named(*source)}. What is the {asked} of its "
            f"{singular[target[0]]}? Finish with the answer."
        )
        near, far = self._row_page(source[0]), self._row_page(target[0])
        paths = [path_of(far, target[1])]
        listed = next((page for page in self.map.patterns if page.endswith(f"/{link[0]}?{link[1]}=*")), None)
        paths += [listed.replace("*", source[1])] if listed is not None else []
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
        return self.made(text, plan, start=start, answer=answer, functions=source, effort=effort) if answer else Draft(refused="no answer")
