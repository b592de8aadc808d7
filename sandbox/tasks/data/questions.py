"""Families that ask something of data: gather → filter → aggregate → write. The level says how the data comes, how many filters there are,
what is made of the rows, and how it is to be written.

    1  one file, one filter, counted or listed              3  several files or an archive, two filters, ranked or the most common
    2  one file or a packed one, one filter, sums and sets  4  the same by groups or joined with a second table, as JSON, then put away
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from sandbox.tasks.data import queries
from sandbox.tasks.data.draw import things
from sandbox.tasks.data.made import Made
from sandbox.tasks.data.queries import Comparison, Condition, Result
from sandbox.tasks.data.tables import Data, Format, Packing, draw_data
from sandbox.tasks.supply import Refusal
from sandbox.terminal.tasks import Goal, Holds, HoldsJson, Instance, Mode, Prints, Step, bash
from warehouse.core.identity import content_id

REGIONS = ("north", "south", "east", "west")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    packings: tuple[Packing, ...]
    comparisons: tuple[Comparison, ...]
    num_conditions: int
    results: tuple[Callable[[Random, Data], Result], ...]
    num_rows: tuple[int, int]
    difficulty: float
    fewest: int = 2
    """Rows that have to pass."""


LEVELS: Mapping[int, Level] = {
    1: Level(
        packings=("plain",),
        comparisons=("is",),
        num_conditions=1,
        results=(queries.how_many, queries.listed),
        num_rows=(8, 20),
        difficulty=0.15,
    ),
    2: Level(
        packings=("plain", "gzip"),
        comparisons=("is", "is not", "is more than", "is less than"),
        num_conditions=1,
        results=(queries.total, queries.extreme, queries.distinct, queries.num_distinct),
        num_rows=(20, 50),
        difficulty=0.35,
        fewest=3,
    ),
    3: Level(
        packings=("parts", "archive", "gzip"),
        comparisons=("is", "is not", "is more than", "is less than"),
        num_conditions=2,
        results=(queries.total, queries.most_common, queries.top, queries.ranked),
        num_rows=(60, 120),
        difficulty=0.6,
        fewest=4,
    ),
    4: Level(
        packings=("parts", "archive"),
        comparisons=("is not", "is more than", "is less than"),
        num_conditions=2,
        results=(queries.grouped,),
        num_rows=(80, 160),
        difficulty=0.8,
        fewest=8,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of data, and the lines of its answer."""

    data: Data
    conditions: tuple[Condition, ...]
    result: Result
    answer: list[str]

    @property
    def filters(self) -> str:
        return f"Take the rows where {' and '.join(condition.words for condition in self.conditions)}."

    @property
    def command(self) -> str:
        return queries.command(self.data, self.conditions, self.result)

    @property
    def operations(self) -> list[str]:
        return [f"gather {self.data.packing}", *(f"filter {each.comparison}" for each in self.conditions), self.result.name]

    @property
    def content(self) -> dict[str, object]:
        """What makes it the question it is, but for its words."""
        return {"data": content_id("rows", [self.data.columns[0].name, *self.data.rows]), "answer": self.answer}


def pose(rng: Random, data: Data, level: Level, *, with_regions: bool = False) -> Question | Refusal:
    """A question of a level. `with_regions`: where it can be, by a second table."""
    conditions = queries.draw_conditions(rng, data, level.comparisons, level.num_conditions)
    rows = queries.passing(data, conditions)
    if isinstance(rows, Refusal):
        return rows
    if len(rows) < level.fewest:
        return Refusal("too few rows pass")
    result = rng.choice(level.results)(rng, data)
    if with_regions and (joined := _regions(rng, data, result)) is not None:
        data, result = joined
    if set(result.columns) & {condition.column for condition in conditions if condition.comparison == "is"}:
        return Refusal("asks for what the filter says")
    answer = result.compute(queries.pick(data, rows, result.columns))
    return answer if isinstance(answer, Refusal) else Question(data=data, conditions=conditions, result=result, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """How the answer is to be handed over."""

    words: str
    goals: list[Goal]
    steps: list[Step]
    name: str


def ask(rng: Random, formats: Sequence[Format], number: int) -> Made | Refusal:
    """A candidate of a level."""
    level = LEVELS[number]
    data = draw_data(rng, formats, level.packings, rng.randint(*level.num_rows))
    question = pose(rng, data, level, with_regions=number == 4 and rng.random() < 0.5)
    if isinstance(question, Refusal):
        return question
    written = _as_json(rng, question) if number == 4 else _as_text(rng, question)
    text = f"{data.about} {question.filters} Write {question.result.words} {written.words}"
    is_joined = question.data is not data
    return Made(
        instance=Instance(instruction=text, files=question.data.files, goals=written.goals, steps=[bash(data.look), *written.steps]),
        content={"instruction": text, **question.content},
        difficulty=round(level.difficulty + 0.05 * (data.format in ("records", "list")) + 0.1 * is_joined, 2),
        provenance={
            "subject": data.subject.name,
            "format": data.format,
            "level": str(number),
            "operations": " → ".join([*question.operations, f"write {written.name}"]),
        },
    )


def _as_text(rng: Random, question: Question) -> _Written:
    path = f"{things(rng, 1)[0]}.txt"
    goal = Holds(path=path, text="\n".join(question.answer))
    return _Written(words=f"into {path}.", goals=[goal], steps=[bash(f"{question.command} > {path}", goal)], name="text")


def _as_json(rng: Random, question: Question) -> _Written:
    """An object of the groups; and then what is to become of the file."""
    name, folder = things(rng, 2)
    path = f"{name}.json"
    value = {group: int(number) for group, number in (line.split() for line in question.answer)}
    goal = HoldsJson(path=path, value=value)
    layout = 'awk \'BEGIN { printf "{" } { printf "%s\\"%s\\": %s", (NR > 1 ? ", " : ""), $1, $2 } END { print "}" }\''
    steps, words = [bash(f"{question.command} | {layout} > {path}", goal)], f"into {path}, as one JSON object."
    after: Goal
    if (way := rng.choice(("private", "folder", "packed"))) == "private":
        after = Mode(path=path, mode=0o600)
        return _Written(
            words=f"{words} Nobody but the file's owner may read or write it.",
            goals=[goal, after],
            steps=[*steps, bash(f"chmod 600 {path}", after)],
            name="JSON, private",
        )
    if way == "folder":
        kept = HoldsJson(path=f"{folder}/{path}", value=value)
        inside = f"into {path} in a new folder {folder}, as one JSON object."
        moved = [bash(f"mkdir -p {folder}; {question.command} | {layout} > {folder}/{path}", kept)]
        return _Written(words=inside, goals=[kept], steps=moved, name="JSON, in a folder")
    packed = f"tar -xzOf {name}.tar.gz {path} | python3 -c 'import json, sys; print(sorted(json.load(sys.stdin).items()))'"
    after = Prints(command=packed, text=str(sorted(value.items())))
    return _Written(
        words=f"{words} Then pack {path} into the archive {name}.tar.gz.",
        goals=[goal, after],
        steps=[*steps, bash(f"tar -czf {name}.tar.gz {path}", after)],
        name="JSON, packed",
    )


def _regions(rng: Random, data: Data, result: Result) -> tuple[Data, Result] | None:
    """The same by a second table that says where each group's name belongs."""
    column = result.columns[0]
    if not column.values or len(column.values) < 6:
        return None
    region = {name: rng.choice(REGIONS) for name in column.values}
    table = "".join(f"{line}\n" for line in [f"{column.name},region", *(f"{name},{region[name]}" for name in sorted(region))])
    compute = result.compute

    def by_region(rows: list[tuple[str, ...]]) -> list[str] | Refusal:
        return compute([(region[row[0]], *row[1:]) for row in rows])

    look_up = "awk -v OFS='\\t' 'NR == FNR { r[$1] = $2; next } { print r[$1], $2 }' FS=, regions.csv FS='\\t' -"
    head = result.words.removesuffix(f"for each {column.name} among them")
    words = f"{head}for each region (regions.csv says in which each {column.name} is)"
    joined = replace(result, name=f"{result.name}, joined", words=words, shell=f"{look_up} | {result.shell}", compute=by_region)
    return replace(data, files={**data.files, "regions.csv": table}), joined
