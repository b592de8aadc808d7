"""Tasks of values that are read on a page, or on one that the first page links to: cells of tables, and facts with their labels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from sandbox.adopting.families.links import Links, is_sort
from sandbox.adopting.records import (
    DEEPEST_PX,
    AdoptedTask,
    AnswerCheck,
    Cell,
    Look,
    PageTable,
    Step,
    goes_by,
    is_of_date,
    is_sayable,
    page_key,
)

MAX_VALUE = 44


class Readings:
    """Questions that the text of a page answers."""

    def __init__(self, pages: Mapping[str, Look], links: Links, dropped: Counter[str]) -> None:
        self._pages, self._links, self._dropped = pages, links, dropped

    def tasks(self, key: str) -> Iterator[AdoptedTask]:
        look = self._pages[key]
        asked: dict[str, list[Cell]] = defaultdict(list)
        for table in look.tables:
            for question, cell in self._questions(table):
                asked[question].append(cell)
        for fact in look.facts:
            if is_sayable(fact.label) and _is_value(fact.value):
                asked[f'What is "{fact.label.rstrip(":")}"?'].append(fact.value)
        for question, cells in asked.items():
            if len(cells) > 1:
                self._dropped["a question with several answers"] += 1
            elif cells[0].text.casefold() in question.casefold():
                self._dropped["a question that holds its answer"] += 1
            else:
                yield self._reading(
                    question, key, (Step(do="read", key=key, at=cells[0].at, top=cells[0].top),), cells[0].text, "read-value"
                )
                yield from self._reading_elsewhere(question, key, cells[0])

    def _reading(self, question: str, start: str, steps: tuple[Step, ...], answer: str, family: str) -> AdoptedTask:
        return AdoptedTask(
            family=family,
            instruction=f"{question} Answer with the text on the page.",
            start=start,
            checks=(AnswerCheck(text=answer),),
            steps=steps,
            answer=answer,
        )

    def _reading_elsewhere(self, question: str, key: str, cell: Cell) -> Iterator[AdoptedTask]:
        """The same asked on the first page, where that links to the page with the answer."""
        start = self._links.start
        if key == start or start not in self._pages:
            return
        for name, link in self._links.usable(start).items():
            if page_key(link.url) == key and not is_sort(start, link):
                steps = (Step(do="click", key=start, at=link.at, top=link.top), Step(do="read", key=key, at=cell.at, top=cell.top))
                yield self._reading(f'Open "{name}". {question}', start, steps, cell.text, "find-value")
                return

    def _questions(self, table: PageTable) -> Iterator[tuple[str, Cell]]:
        """Of each row that its first telling cell names, each other column whose values differ."""
        columns, rows = table.columns, table.rows
        if table.is_cut:
            self._dropped["a table with more rows than were read"] += 1
            return
        if len(rows) < 2:
            self._dropped["a table of fewer than two rows"] += 1
            return
        named = [number for number in range(len(columns)) if is_sayable(columns[number])]
        texts = [[row[number].text for row in rows] for number in range(len(columns))]
        others = [{row[number] for row in table.others if number < len(row)} for number in range(len(columns))]
        telling = [
            n
            for n in named
            if len(set(texts[n])) == len(rows) and not others[n] & set(texts[n]) and all(is_sayable(text) for text in texts[n])
        ]
        by = [n for n in telling if all(_names_a_row(text) for text in texts[n])][:1]
        if not by:
            self._dropped["a table whose rows have no name"] += 1
            return
        for number in named:
            if number == by[0] or columns.count(columns[number]) > 1 or len(set(texts[number])) < min(3, len(rows)):
                continue
            for row in rows:
                if _is_value(row[number]):
                    yield f'What is "{columns[number]}" of "{row[by[0]].text}"?', row[number]


def _is_value(cell: Cell) -> bool:
    return (
        1 <= len(cell.text) <= MAX_VALUE
        and not goes_by(cell.text)
        and not cell.is_beside
        and cell.top <= DEEPEST_PX
        and bool(re.search(r"\w", cell.text))
    )


def _names_a_row(text: str) -> bool:
    """A word or a code does; a number, an amount or a date does not."""
    is_word = re.search(r"[^\W\d_]{3}", text) is not None or re.fullmatch(r"[A-Za-z]{1,5}[-_/#]?\d{2,}", text) is not None
    return is_word and not is_of_date(text)
