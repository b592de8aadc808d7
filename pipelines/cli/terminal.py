"""How rows are shown in a terminal of any width: as a table where it fits, else upright or with fewer borders. What is shown is the
commands' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable

ROWS_SHOWN = 20
_UNBOUNDED = 10_000
"""columns of a terminal that cuts nothing."""


def fits(shown: RenderableType, console: Console) -> bool:
    """Whether this can be printed without a line being wrapped or cut."""
    return console.measure(shown, options=console.options.update(width=_UNBOUNDED)).maximum <= console.width


def counted(num: int, noun: str) -> str:
    """1 task, 2,000 tasks."""
    return f"{num:,} {noun}{'s' * (num != 1)}"


def slim_table(title: str | None = None) -> RichTable:
    """A table without vertical lines, which take three columns each, so that cells keep them."""
    return RichTable(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def print_rows(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Rows with the same keys, as a table where it fits, else a line a value. Values are printed as they are, never as markup."""
    shown = [{escape(name): escape(value) for name, value in row.items()} for row in rows]
    wide = RichTable(*shown[0])
    for row in shown:
        wide.add_row(*row.values())
    if fits(wide, console):
        console.print(wide)
        return
    for index, row in enumerate(shown, start=1):
        console.rule(f"row {index}", align="left", style="dim")
        grid = RichTable.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(overflow="fold")
        for name, value in row.items():
            grid.add_row(name, value)
        console.print(grid)


def print_counts(heading: str, unit: str, counts: Mapping[str, int], console: Console, *, kept_in: str = "") -> None:
    """The most frequent first, and how many more there are; `kept_in` names the file that has them all. Nothing without any."""
    rows = Counter(counts).most_common()
    if not rows:
        return
    table = RichTable(heading)
    table.add_column(unit, justify="right")
    for what, num in rows[:ROWS_SHOWN]:
        table.add_row(escape(what), str(num))
    if more := rows[ROWS_SHOWN:]:
        table.add_row(_more(len(more), kept_in), str(sum(num for _, num in more)))
    console.print(table)


def print_reasons(heading: str, reasons: Sequence[tuple[str, str]], console: Console, *, kept_in: str = "", show_all: bool = False) -> None:
    """What was turned away, each with why; as print_counts."""
    if not reasons:
        return
    table = RichTable(heading, "why")
    num_shown = len(reasons) if show_all else ROWS_SHOWN
    for where, why in reasons[:num_shown]:
        table.add_row(escape(where), escape(why))
    if len(reasons) > num_shown:
        table.add_row(_more(len(reasons) - num_shown, kept_in), "")
    console.print(table)


def _more(num: int, kept_in: str) -> str:
    return escape(f"{num} more{f', in {kept_in}' if kept_in else ''}")
