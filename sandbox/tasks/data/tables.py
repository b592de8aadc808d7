"""Data to ask about: rows of a subject, written as a table, a log, records or plain text, in one file, in parts, or packed; and the command
that brings the rows back as lines that awk splits into fields.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from sandbox.tasks.data.archives import archive
from sandbox.tasks.data.draw import PEOPLE, PLACES, THINGS

Format = Literal["csv", "text", "log", "records", "list"]
Packing = Literal["plain", "parts", "gzip", "archive"]

Row = tuple[str, ...]
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
STATES = ("open", "paid", "late", "void")
LEVELS = ("INFO", "WARN", "ERROR", "DEBUG")
ENDINGS: dict[Format, str] = {"csv": "csv", "text": "txt", "log": "log", "records": "jsonl", "list": "json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`values`: the words that are in it; none: whole numbers from 1 to `largest`."""

    name: str
    values: tuple[str, ...] = ()
    largest: int = 0

    @property
    def is_number(self) -> bool:
        return not self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    columns: tuple[Column, ...]


SUBJECTS = (
    Subject(
        name="sales",
        columns=(
            Column(name="person", values=PEOPLE),
            Column(name="town", values=PLACES),
            Column(name="item", values=THINGS[:30]),
            Column(name="amount", largest=400),
        ),
    ),
    Subject(
        name="visits",
        columns=(
            Column(name="guest", values=PEOPLE),
            Column(name="place", values=PLACES[:8]),
            Column(name="day", values=DAYS),
            Column(name="minutes", largest=240),
        ),
    ),
    Subject(
        name="stock",
        columns=(
            Column(name="item", values=THINGS[30:60]),
            Column(name="shelf", values=tuple("ABCDEF")),
            Column(name="pieces", largest=99),
            Column(name="price", largest=500),
        ),
    ),
    Subject(
        name="invoices",
        columns=(
            Column(name="customer", values=PEOPLE),
            Column(name="state", values=STATES),
            Column(name="town", values=PLACES[4:]),
            Column(name="total", largest=900),
        ),
    ),
    Subject(
        name="trips",
        columns=(
            Column(name="driver", values=PEOPLE[:9]),
            Column(name="start", values=PLACES[:6]),
            Column(name="goal", values=PLACES[6:]),
            Column(name="km", largest=350),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows with the files that hold them."""

    subject: Subject
    format: Format
    packing: Packing
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    files: dict[str, str | bytes]
    about: str
    """What the instruction says of the files."""
    reader: str
    """A command that prints a row a line."""
    look: str
    """A command that shows what the files are like."""
    awk: str
    """The options by which awk splits a line."""

    def field(self, column: Column) -> str:
        """Of awk."""
        at = self.columns.index(column)
        if self.format == "log":
            return f"${2 if at == 0 else 2 + 2 * at}"
        return f"${at + 1}"


def draw_data(rng: Random, formats: Sequence[Format], packings: Sequence[Packing], num_rows: int, *, folder: str = "") -> Data:
    """`folder`: where a plain file is when it is worked on, with a slash at its end."""
    subject, format_ = rng.choice(SUBJECTS), rng.choice(formats)
    whole: list[Packing] = ["plain", "gzip"]
    packing = rng.choice([each for each in packings if format_ != "list" or each in whole] or whole)
    columns = (Column(name="level", values=LEVELS), *subject.columns) if format_ == "log" else subject.columns
    rows = tuple(_row(rng, columns) for _ in range(num_rows))
    name = f"{subject.name}.{ENDINGS[format_]}"
    files, where = _pack(rng, format_, packing, columns, rows, f"{folder}{name}", subject.name)
    return Data(
        subject=subject,
        format=format_,
        packing=packing,
        columns=columns,
        rows=rows,
        files=files,
        about=f"{where.about} {_layout(format_, columns)}",
        reader=_reader(format_, columns, where.cat),
        look=where.look,
        awk={"csv": "-F,", "text": "", "log": "-F'[ =]'", "records": "-F'\\t'", "list": "-F'\\t'"}[format_],
    )


def _row(rng: Random, columns: Sequence[Column]) -> Row:
    return tuple(str(rng.randint(1, column.largest)) if column.is_number else rng.choice(column.values) for column in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    about: str
    cat: str
    look: str


def _pack(
    rng: Random, format_: Format, packing: Packing, columns: Sequence[Column], rows: Sequence[Row], name: str, subject: str
) -> tuple[dict[str, str | bytes], _Where]:
    if packing == "plain":
        about = f"{name.rpartition('/')[2]} holds {subject}."
        return {name: write(format_, columns, rows)}, _Where(about=about, cat=f"cat {name}", look=f"head -n 3 {name}")
    if packing == "gzip":
        packed = gzip.compress(write(format_, columns, rows).encode(), mtime=0)
        about = f"{name}.gz holds {subject}, packed by gzip."
        return {f"{name}.gz": packed}, _Where(about=about, cat=f"zcat {name}.gz", look=f"zcat {name}.gz | head -n 3")
    cuts = sorted(rng.sample(range(1, len(rows)), rng.randint(2, 4)))
    parts = {
        f"{subject}-{number}.{ENDINGS[format_]}": write(format_, columns, rows[first:last])
        for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True), start=1)
    }
    if packing == "parts":
        about = f"The files in the folder {subject} hold {subject}, in parts that belong together."
        files: dict[str, str | bytes] = {f"{subject}/{part}": content for part, content in parts.items()}
        return files, _Where(about=about, cat=f"cat {subject}/*", look=f"ls {subject}; head -n 3 {subject}/{next(iter(parts))}")
    about = f"The files in {subject}.tar.gz hold {subject}, in parts that belong together."
    look = f"tar -tzf {subject}.tar.gz; tar -xzOf {subject}.tar.gz | head -n 3"
    return {f"{subject}.tar.gz": archive(parts)}, _Where(about=about, cat=f"tar -xzOf {subject}.tar.gz", look=look)


def _records(columns: Sequence[Column], rows: Sequence[Row]) -> list[dict[str, str | int]]:
    return [{column.name: int(value) if column.is_number else value for column, value in zip(columns, row, strict=True)} for row in rows]


def write(format_: Format, columns: Sequence[Column], rows: Sequence[Row]) -> str:
    if format_ == "csv":
        lines = [",".join(column.name for column in columns), *(",".join(row) for row in rows)]
    elif format_ == "text":
        lines = [" ".join(row) for row in rows]
    elif format_ == "log":
        pairs = [" ".join(f"{column.name}={value}" for column, value in zip(columns[1:], row[1:], strict=True)) for row in rows]
        lines = [f"{8 + at // 60:02}:{at % 60:02} {row[0]} {pair}" for at, (row, pair) in enumerate(zip(rows, pairs, strict=True))]
    elif format_ == "records":
        lines = [json.dumps(record) for record in _records(columns, rows)]
    else:
        lines = [json.dumps(_records(columns, rows), indent=1)]
    return "".join(f"{line}\n" for line in lines)


def _layout(format_: Format, columns: Sequence[Column]) -> str:
    names = [column.name for column in columns]
    return {
        "csv": f"Its columns are {', '.join(names)}.",
        "text": f"A line is `{' '.join(name.upper() for name in names)}`.",
        "log": f"A line is `TIME {' '.join(['LEVEL', *(f'{name}={name.upper()}' for name in names[1:])])}`.",
        "records": f"A line is a JSON object with {', '.join(names)}.",
        "list": f"It is a JSON list of objects with {', '.join(names)}.",
    }[format_]


def _reader(format_: Format, columns: Sequence[Column], cat: str) -> str:
    if format_ == "csv":
        return f"{cat} | grep -v '^{','.join(column.name for column in columns)}$'"
    if format_ == "records":
        return f"{cat} | python3 -c \"import json,sys; [print(*json.loads(line).values(), sep='\\t') for line in sys.stdin]\""
    if format_ == "list":
        return f"{cat} | python3 -c \"import json,sys; [print(*row.values(), sep='\\t') for row in json.load(sys.stdin)]\""
    return cat
