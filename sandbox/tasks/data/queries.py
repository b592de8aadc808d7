"""What is asked of rows: filters, and what is made of the rows that pass. Each operation says itself in words, computes itself in Python
(the reference), and writes itself as a shell command (the oracle's), so that a chain of them is instruction, verifier and oracle at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from sandbox.tasks.data.tables import Column, Data, Row
from sandbox.tasks.supply import Refusal

Comparison = Literal["is", "is not", "is more than", "is less than"]
AWK: dict[Comparison, str] = {"is": "==", "is not": "!=", "is more than": ">", "is less than": "<"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    column: Column
    comparison: Comparison
    value: str

    @property
    def words(self) -> str:
        return f"{self.column.name} {self.comparison} {self.value}"

    def awk(self, data: Data) -> str:
        value = self.value if self.column.is_number else f'"{self.value}"'
        return f"{data.field(self.column)} {AWK[self.comparison]} {value}"

    def holds(self, data: Data, row: Row) -> bool:
        found = row[data.columns.index(self.column)]
        if self.comparison == "is":
            return found == self.value
        if self.comparison == "is not":
            return found != self.value
        return int(found) > int(self.value) if self.comparison == "is more than" else int(found) < int(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`columns` are what is looked at of each row; `compute` gives the lines of the answer, `shell` reads the columns, with a tab between
    them, and prints those lines."""

    name: str
    words: str
    columns: tuple[Column, ...]
    shell: str
    compute: Callable[[list[tuple[str, ...]]], list[str] | Refusal]


def draw_conditions(rng: Random, data: Data, comparisons: Sequence[Comparison], num: int) -> tuple[Condition, ...]:
    """Of different columns."""
    found = []
    for column in rng.sample(data.columns, num):
        if column.is_number:
            fitting: list[Comparison] = [each for each in comparisons if each not in ("is", "is not")] or ["is more than"]
            found.append(Condition(column=column, comparison=rng.choice(fitting), value=str(rng.randint(1, column.largest))))
        else:
            fitting = [each for each in comparisons if each in ("is", "is not")] or ["is"]
            found.append(Condition(column=column, comparison=rng.choice(fitting), value=rng.choice(column.values)))
    return tuple(found)


def passing(data: Data, conditions: Sequence[Condition]) -> list[Row] | Refusal:
    """The rows that all conditions let through. Refused where a condition decides nothing: then the task is another one than it says."""
    kept = [row for row in data.rows if all(condition.holds(data, row) for condition in conditions)]
    if not kept:
        return Refusal("no row passes")
    for left_out in conditions:
        others = [condition for condition in conditions if condition is not left_out]
        if sum(all(condition.holds(data, row) for condition in others) for row in data.rows) == len(kept):
            return Refusal("a condition decides nothing")
    return kept


def pick(data: Data, rows: Sequence[Row], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    places = [data.columns.index(column) for column in columns]
    return [tuple(row[at] for at in places) for row in rows]


def command(data: Data, conditions: Sequence[Condition], result: Result) -> str:
    """The pipeline that prints the answer."""
    test = " && ".join(condition.awk(data) for condition in conditions)
    fields = ", ".join(data.field(column) for column in result.columns)
    awk = " ".join(part for part in ("awk", data.awk, "-v OFS='\\t'", f"'{test} {{ print {fields} }}'") if part)
    return " | ".join(part for part in (data.reader, awk, result.shell) if part)


# ---- what is made of the rows that pass


def how_many(rng: Random, data: Data) -> Result:
    return Result(
        name="count", words="the number of them", columns=(data.columns[0],), shell="wc -l", compute=lambda rows: [str(len(rows))]
    )


def listed(rng: Random, data: Data) -> Result:
    column = rng.choice(data.columns)
    return Result(
        name="list",
        words=f"the {column.name} of each of them, one a line, in the order in which they come,",
        columns=(column,),
        shell="",
        compute=lambda rows: [row[0] for row in rows],
    )


def total(rng: Random, data: Data) -> Result:
    column = _number(rng, data)
    return Result(
        name="sum",
        words=f"the sum of their {column.name}",
        columns=(column,),
        shell="awk '{ sum += $1 } END { print sum }'",
        compute=lambda rows: [str(sum(int(row[0]) for row in rows))],
    )


def extreme(rng: Random, data: Data) -> Result:
    column, is_largest = _number(rng, data), rng.random() < 0.5
    return Result(
        name="largest" if is_largest else "smallest",
        words=f"the {'largest' if is_largest else 'smallest'} {column.name} among them",
        columns=(column,),
        shell=f"sort -n | {'tail' if is_largest else 'head'} -n 1",
        compute=lambda rows: [str((max if is_largest else min)(int(row[0]) for row in rows))],
    )


def distinct(rng: Random, data: Data) -> Result:
    column = _word(rng, data)
    return Result(
        name="distinct",
        words=f"every {column.name} that is among them, each once, in alphabetical order",
        columns=(column,),
        shell="LC_ALL=C sort -u",
        compute=_values,
    )


def _values(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
    """The different ones, sorted."""
    found = sorted({row[0] for row in rows})
    return found if len(found) < len(rows) else Refusal("nothing repeats")


def num_distinct(rng: Random, data: Data) -> Result:
    column = _word(rng, data)
    return Result(
        name="number of distinct",
        words=f"how many different values of {column.name} are among them",
        columns=(column,),
        shell="sort -u | wc -l",
        compute=lambda rows: [str(len(found))] if isinstance(found := _values(rows), list) else found,
    )


def most_common(rng: Random, data: Data) -> Result:
    column = _word(rng, data)

    def compute(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
        (first, num), *others = Counter(row[0] for row in rows).most_common()
        return Refusal("a tie") if num < 2 or (others and others[0][1] == num) else [first]

    return Result(
        name="most common",
        words=f"the {column.name} that most of them have",
        columns=(column,),
        shell="sort | uniq -c | sort -rn | head -n 1 | awk '{ print $2 }'",
        compute=compute,
    )


def top(rng: Random, data: Data) -> Result:
    column, number = _word(rng, data), _number(rng, data)

    def compute(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
        ranked = sorted(rows, key=lambda row: -int(row[1]))
        return Refusal("a tie") if len(ranked) < 2 or ranked[0][1] == ranked[1][1] else [ranked[0][0]]

    return Result(
        name="top",
        words=f"the {column.name} of the one with the largest {number.name}",
        columns=(column, number),
        shell="sort -t \"$(printf '\\t')\" -k2,2nr | head -n 1 | cut -f1",
        compute=compute,
    )


def ranked(rng: Random, data: Data) -> Result:
    column, number = _word(rng, data), _number(rng, data)

    def compute(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
        if len({row[1] for row in rows}) < len(rows):
            return Refusal("a tie")
        return [row[0] for row in sorted(rows, key=lambda row: -int(row[1]))] if len(rows) > 1 else Refusal("nothing to order")

    return Result(
        name="ranked",
        words=f"the {column.name} of each of them, one a line, from the largest {number.name} to the smallest",
        columns=(column, number),
        shell="sort -t \"$(printf '\\t')\" -k2,2nr | cut -f1",
        compute=compute,
    )


def grouped(rng: Random, data: Data) -> Result:
    """A line a group: `GROUP NUMBER`, in alphabetical order."""
    column, number, is_sum = _word(rng, data), _number(rng, data), rng.random() < 0.5

    def compute(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
        groups: Counter[str] = Counter()
        for name, value in rows:
            groups[name] += int(value) if is_sum else 1
        return Refusal("a single group") if len(groups) < 2 else [f"{name} {groups[name]}" for name in sorted(groups)]

    what = f"the sum of {number.name}" if is_sum else "the number of them"
    return Result(
        name="sum by group" if is_sum else "count by group",
        words=f"{what} for each {column.name} among them",
        columns=(column, number),
        shell=f"awk -F'\\t' '{{ n[$1] += {'$2' if is_sum else '1'} }} END {{ for (k in n) print k, n[k] }}' | LC_ALL=C sort",
        compute=compute,
    )


def _number(rng: Random, data: Data) -> Column:
    return rng.choice([column for column in data.columns if column.is_number])


def _word(rng: Random, data: Data) -> Column:
    return rng.choice([column for column in data.columns if not column.is_number])
