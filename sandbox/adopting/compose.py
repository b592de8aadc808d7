"""From pages to candidate tasks: an instruction in plain words, checks, and the way that the crawl has found. What is ambiguous is dropped
here, with its reason, as far as the pages show it; what only a play shows is proof.py's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit

from sandbox.adopting.records import (
    AdoptedTask,
    AnswerCheck,
    Cell,
    Link,
    Look,
    PageField,
    PageForm,
    PageTable,
    Press,
    RequestCheck,
    ShownCheck,
    Site,
    StateCheck,
    Step,
    Submit,
    UrlCheck,
    goes_by,
    is_leaving,
    is_of_date,
    is_sayable,
    names_of,
    origin_of,
    page_key,
    path_of,
    says_leaving,
)
from sandbox.adopting.values import TEXT_TYPES, samples, shaped, value_of, vocabulary
from warehouse.core.identity import canonical_json, stable_fraction, stable_seed

DEEPEST_PX = 1_500
"""How far down a page a task's target may stand; further down an agent does little but scroll."""
MAX_VALUE = 44
MAX_SAME_GOAL = 2
FIELD_WORDS = 3
"""Tasks of one field, each with another word."""
FORM_FILLS = 6
BELOW_PX = 200
"""So far below its last field the button of a form is taken to be."""
FORM_FIELDS = 8
"""At most so many are filled in."""
OPEN = ('Open "{}".', 'Go to "{}".', 'Click the link "{}".')


@dataclass(slots=True, kw_only=True)
class Composed:
    tasks: list[AdoptedTask] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


class Composer:
    """All candidates of a site."""

    def __init__(self, site: Site, pages: Mapping[str, Look]) -> None:
        self._site, self._pages = site, pages
        self._start = page_key(site.origin + site.start)
        self.dropped: Counter[str] = Counter()
        self._words = vocabulary(pages.values())
        self._samples = samples(pages.values())

    def compose(self, max_tasks: int) -> Composed:
        """At most so many, of all families alike."""
        found = [task for key in self._pages for task in self._of_page(key)]
        found = self._one_meaning(found)
        return Composed(tasks=_chosen(found, max_tasks), dropped=self.dropped)

    def _of_page(self, key: str) -> Iterator[AdoptedTask]:
        look = self._pages[key]
        links = self._links(key, look)
        yield from self._open_link(key, links)
        yield from self._open_grouped(key, look)
        yield from self._open_path(key, links)
        yield from self._read(key, look)
        yield from self._fields(key, look)
        yield from self._toggles(key, look)
        yield from self._presses(key, look)
        yield from self._search(key, look)
        if self._site.allow_writes:
            yield from self._forms(key, look)

    # ---- links ----

    def _links(self, key: str, look: Look) -> dict[str, Link]:
        """Links of a page by name, of those that lead to one known page each."""
        found: dict[str, Link] = {}
        if look.has_more_links:
            self.dropped["a page with too many links to compare their names"] += 1
            return found
        for links in _by_name(look.links):
            first = min(links, key=lambda link: link.top)
            target = page_key(first.url)
            if not is_sayable(first.at.name):
                self.dropped["a link without a name that can be said"] += 1
            elif len({page_key(link.url) for link in links}) > 1:
                if not self._grouped(key, links):
                    self.dropped["several links of one name lead to different pages"] += 1
            elif not self._is_known(first):
                self.dropped["a link to what was not crawled"] += 1
            elif target == key:
                self.dropped["a link to the page itself"] += 1
            elif first.top > DEEPEST_PX:
                self.dropped["too far down the page"] += 1
            else:
                found[first.at.name] = first
        return found

    def _is_known(self, link: Link) -> bool:
        return origin_of(link.url) == self._site.origin and page_key(link.url) in self._pages and not is_leaving(link.url)

    def _grouped(self, key: str, links: Sequence[Link]) -> list[Link]:
        """Of links of one name those that their row, or the part of the page that they stand in, tells from the others."""
        by_group: dict[tuple[str, bool], list[Link]] = defaultdict(list)
        for link in links:
            by_group[link.group.casefold(), link.is_in_row].append(link)
        first = [members[0] for members in by_group.values() if len({page_key(link.url) for link in members}) == 1]
        usable = [each for each in first if is_sayable(each.group) and each.group.casefold() != each.at.name.casefold()]
        return [each for each in usable if self._is_known(each) and page_key(each.url) != key and each.top <= DEEPEST_PX]

    def _open_grouped(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        for links in _by_name(() if look.has_more_links else look.links):
            if len({page_key(link.url) for link in links}) == 1 or not is_sayable(links[0].at.name):
                continue
            for link in self._grouped(key, links):
                where = f'In the row "{link.group}"' if link.is_in_row else f'Under "{link.group}"'
                yield AdoptedTask(
                    family="open-link",
                    instruction=f'{where}, click "{link.at.name}".',
                    start=key,
                    checks=(UrlCheck(key=page_key(link.url)),),
                    steps=(Step(do="click", key=key, at=link.at, top=link.top),),
                )

    def _open_link(self, key: str, links: Mapping[str, Link]) -> Iterator[AdoptedTask]:
        for name, link in links.items():
            target = page_key(link.url)
            is_sort = _is_sort(key, link)
            columns = {column for table in self._pages[key].tables for column in table.columns}
            if is_sort and columns and name not in columns:
                self.dropped["a sort that does not name its column"] += 1
                continue
            order = _order(self._pages[target], name) if is_sort else ""
            said = f'Sort the list by "{name}"{order}.' if is_sort else _varied(OPEN, key, name).format(name)
            yield AdoptedTask(
                family="sort" if is_sort else "open-link",
                instruction=said,
                start=key,
                checks=(UrlCheck(key=target),),
                steps=(Step(do="click", key=key, at=link.at, top=link.top),),
            )

    def _open_path(self, key: str, links: Mapping[str, Link]) -> Iterator[AdoptedTask]:
        """Two clicks: by a page that is linked here to one that is not."""
        if key != self._start:
            return
        direct = {page_key(link.url) for link in links.values()} | {key}
        for name, link in links.items():
            if _is_sort(key, link):
                continue
            middle = page_key(link.url)
            for second, then in self._links_silently(middle).items():
                if page_key(then.url) not in direct and not _is_sort(middle, then) and second.casefold() != name.casefold():
                    yield AdoptedTask(
                        family="open-path",
                        instruction=f'Open "{name}", then open "{second}" there.',
                        start=key,
                        checks=(UrlCheck(key=page_key(then.url)),),
                        steps=(Step(do="click", key=key, at=link.at, top=link.top), Step(do="click", key=middle, at=then.at, top=then.top)),
                    )

    def _links_silently(self, key: str) -> dict[str, Link]:
        before = self.dropped.copy()
        found = self._links(key, self._pages[key])
        self.dropped = before
        return found

    # ---- values ----

    def _read(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        asked: dict[str, list[Cell]] = defaultdict(list)
        for table in look.tables:
            for question, cell in self._questions(table):
                asked[question].append(cell)
        for fact in look.facts:
            if is_sayable(fact.label) and _is_value(fact.value):
                asked[f'What is "{fact.label.rstrip(":")}"?'].append(fact.value)
        for question, cells in asked.items():
            if len(cells) > 1:
                self.dropped["a question with several answers"] += 1
            elif cells[0].text.casefold() in question.casefold():
                self.dropped["a question that holds its answer"] += 1
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
        if key == self._start or self._start not in self._pages:
            return
        for name, link in self._links_silently(self._start).items():
            if page_key(link.url) == key and not _is_sort(self._start, link):
                steps = (Step(do="click", key=self._start, at=link.at, top=link.top), Step(do="read", key=key, at=cell.at, top=cell.top))
                yield self._reading(f'Open "{name}". {question}', self._start, steps, cell.text, "find-value")
                return

    def _questions(self, table: PageTable) -> Iterator[tuple[str, Cell]]:
        """Of each row that its first telling cell names, each other column whose values differ."""
        columns, rows = table.columns, table.rows
        if table.is_cut:
            self.dropped["a table with more rows than were read"] += 1
            return
        if len(rows) < 2:
            self.dropped["a table of fewer than two rows"] += 1
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
            self.dropped["a table whose rows have no name"] += 1
            return
        for number in named:
            if number == by[0] or columns.count(columns[number]) > 1 or len(set(texts[number])) < min(3, len(rows)):
                continue
            for row in rows:
                if _is_value(row[number]):
                    yield f'What is "{columns[number]}" of "{row[by[0]].text}"?', row[number]

    # ---- fields and toggles ----

    def _fields(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        labels = Counter(each.at.name.casefold() for each in look.fields)
        for each in look.fields:
            label = each.at.name
            if not is_sayable(label) or each.top > DEEPEST_PX:
                self.dropped["a field without a label that can be said"] += 1
            elif labels[label.casefold()] > 1:
                self.dropped["several fields of one label"] += 1
            elif each.type in TEXT_TYPES:
                yield from self._fill_field(key, each)
            elif each.type == "select" and not each.is_multiple:
                yield from self._choose(key, each)
            elif each.type in ("checkbox", "radio"):
                wanted = "true" if each.type == "radio" or each.state == "false" else "false"
                if each.state != wanted:
                    said = "Choose" if each.type == "radio" else "Tick" if wanted == "true" else "Untick"
                    yield self._setting(
                        "toggle", f'{said} "{label}".', key, Step(do="set", key=key, at=each.at, top=each.top, value=wanted)
                    )

    def _fill_field(self, key: str, each: PageField) -> Iterator[AdoptedTask]:
        dice = Random(stable_seed("adopted", "field", each.at.name))
        short = [word for word in self._words if not 0 < each.max_length < len(word)]
        like = self._like(each)
        for word in dice.sample(short, min(FIELD_WORDS, len(short))):
            value = str(dice.randrange(2, 90)) if each.type == "number" else shaped(like, dice) or word
            if each.state != value and each.type not in ("email", "url"):
                step = Step(do="type", key=key, at=each.at, top=each.top, value=value)
                yield self._setting("fill-field", f'Type "{value}" into the field "{each.at.name}".', key, step)

    def _choose(self, key: str, each: PageField) -> Iterator[AdoptedTask]:
        usable = _options(each)
        dice = Random(stable_seed("adopted", "choose", each.at.name))
        for option in dice.sample(usable, min(6, len(usable))):
            step = Step(do="choose", key=key, at=each.at, top=each.top, value=option)
            yield self._setting("choose-option", f'Choose "{option}" in "{each.at.name}".', key, step)

    def _toggles(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        names = Counter(each.at.name.casefold() for each in look.toggles)
        for each in look.toggles:
            name = each.at.name
            if not is_sayable(name) or each.top > DEEPEST_PX or names[name.casefold()] > 1:
                self.dropped["a toggle without a name of its own"] += 1
                continue
            wanted = "false" if each.state == "true" else "true"
            if each.kind == "tab" and wanted == "false":
                continue
            verbs = {"expand": ("Expand", "Collapse"), "tab": ("Switch to the tab", ""), "tick": ("Switch on", "Switch off")}[each.kind]
            said = verbs[0] if wanted == "true" else verbs[1]
            yield self._setting("toggle", f'{said} "{name}".', key, Step(do="set", key=key, at=each.at, top=each.top, value=wanted))

    @staticmethod
    def _setting(family: str, instruction: str, key: str, step: Step) -> AdoptedTask:
        return AdoptedTask(
            family=family, instruction=instruction, start=key, checks=(StateCheck(at=step.at, state=step.value, page=key),), steps=(step,)
        )

    # ---- buttons ----

    def _presses(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        """Buttons that led to another page when the crawl tried them, or brought up a dialog, a menu or another heading."""
        names, lasting = names_of(look), {button.at for button in look.buttons}
        for press in look.presses:
            name = press.at.name
            if press.is_refused:
                self.dropped["a button that would write"] += 1
            elif press.at not in lasting or names[name.casefold()] > 1:
                self.dropped["a button without a name of its own"] += 1
            elif press.top > DEEPEST_PX:
                self.dropped["too far down the page"] += 1
            elif press.opens and page_key(press.opens) not in self._pages:
                self.dropped["a button to what was not crawled"] += 1
            elif (check := _outcome(press, key)) is None:
                self.dropped["a button that changes nothing that is verified"] += 1
            else:
                said = f'Click "{name}".' if press.at.tag == "a" else f'Press "{name}".'
                step = Step(do="click", key=key, at=press.at, top=press.top)
                yield AdoptedTask(family="press-button", instruction=said, start=key, checks=(check,), steps=(step,))

    # ---- forms ----

    def _search(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        for number, form in enumerate(look.forms):
            fields = [each for each in look.fields if each.form == number]
            texts = [each for each in fields if each.type in ("text", "search", "") and each.at.key and each.is_sent]
            if form.method != "get" or len(texts) != 1 or not self._is_ours(form):
                continue
            box = texts[0]
            if sum(each.at == box.at for each in look.fields) > 1 or box.top > DEEPEST_PX:
                continue
            others = [each for each in look.fields if each.type in ("text", "search", "") and each.at != box.at and each.form != number]
            where = f' in "{box.at.name}"' if others and is_sayable(box.at.name) else ""
            dice = Random(stable_seed("adopted", "search", box.at.key))
            for word in dice.sample(self._words, min(FIELD_WORDS + 1, len(self._words))):
                check = RequestCheck(method="GET", path=urlsplit(form.action).path or "/", fields={box.at.key: word})
                yield AdoptedTask(
                    family="search",
                    instruction=f'Search for "{word}"{where}.',
                    start=key,
                    checks=(check,),
                    steps=(Step(do="type", key=key, at=box.at, top=box.top, value=word, enter=True),),
                )

    def _is_ours(self, form: PageForm) -> bool:
        return origin_of(form.action) == self._site.origin and not is_leaving(form.action)

    def _forms(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        """Forms that write: only where the site may be written to."""
        for number, form in enumerate(look.forms):
            fields = [each for each in look.fields if each.form == number]
            usable = [each for each in fields if each.at.key and each.is_sent and is_sayable(each.at.name) and _can_be_filled(each)]
            num_texts = sum(each.type in TEXT_TYPES for each in usable)
            labels = Counter(each.at.name.casefold() for each in look.fields)
            submits = self._submits(form, look)
            if form.method != "post" or not submits:
                continue
            if form.hides_required:
                self.dropped["a form that hides what it requires"] += 1
            elif not num_texts or len(usable) > FORM_FIELDS or any(each.type in ("password", "file") for each in fields):
                self.dropped["a form that cannot be filled in by its labels"] += 1
            elif any(labels[each.at.name.casefold()] > 1 for each in usable) or any(
                each.is_required and each not in usable for each in fields
            ):
                self.dropped["a form whose fields have no labels of their own"] += 1
            else:
                for fill in range(FORM_FILLS):
                    yield self._filling(key, form, submits[fill % len(submits)], usable, fill)

    def _submits(self, form: PageForm, look: Look) -> list[Submit]:
        """The buttons that send a form: those that can be named, and do not say that they destroy something."""
        seen = form.submits or ((Submit(at=form.submit),) if form.submit else ())
        names = Counter(each.at.name.casefold() for other in look.forms for each in other.submits)
        usable = [each for each in seen if is_sayable(each.at.name) and not says_leaving(each.at.name) and not is_leaving(each.key)]
        usable = [each.model_copy(update={"action": each.action or form.action}) for each in usable if names[each.at.name.casefold()] <= 1]
        return [each for each in usable if origin_of(each.action) == self._site.origin and not is_leaving(each.action)]

    def _filling(self, key: str, form: PageForm, submit: Submit, fields: Sequence[PageField], fill: int) -> AdoptedTask:
        dice = Random(stable_seed("adopted", "form", key, form.action, fill))
        steps = [self._filled(key, each, dice) for each in fields]
        sent = {
            each.at.key: dict(zip(each.options, each.values, strict=False)).get(step.value, step.value)
            for each, step in zip(fields, steps, strict=True)
        }
        pressed = {submit.key: submit.value} if submit.key and len(form.submits) > 1 else {}
        parts = ", ".join(f'"{step.at.name}" is "{step.value}"' for step in steps)
        return AdoptedTask(
            family="fill-form",
            instruction=f'Fill in the form: {parts}; then press "{submit.at.name}".',
            start=key,
            checks=(RequestCheck(method="POST", path=urlsplit(submit.action).path or "/", fields=sent | pressed),),
            steps=(*steps, Step(do="click", key=key, at=submit.at, top=max(each.top for each in fields) + BELOW_PX)),
        )

    def _filled(self, key: str, each: PageField, dice: Random) -> Step:
        if each.type == "select":
            return Step(do="choose", key=key, at=each.at, top=each.top, value=dice.choice(_options(each)))
        value = shaped(self._like(each), dice) or value_of(each.type, dice, each.max_length)
        return Step(do="type", key=key, at=each.at, top=each.top, value=value)

    def _like(self, each: PageField) -> str:
        """What such a field holds elsewhere."""
        return self._samples.get(each.at.key) or self._samples.get(each.at.name.casefold(), "")

    def _one_meaning(self, tasks: Sequence[AdoptedTask]) -> list[AdoptedTask]:
        """Without those whose instruction means different things, wherever they start, and without repeats. Where the heading of the page
        that they start on tells them apart, the instruction has it, too."""
        goals = _goals(tasks)
        tasks = [task if len(goals[task.instruction.casefold()]) == 1 else self._with_heading(task) for task in tasks]
        goals = _goals(tasks)
        kept: dict[str, AdoptedTask] = {}
        for task in tasks:
            if len(goals[task.instruction.casefold()]) > 1:
                self.dropped["the same instruction with another verifier"] += 1
            else:
                kept.setdefault(task.task_id, task)
        return list(kept.values())

    def _with_heading(self, task: AdoptedTask) -> AdoptedTask:
        heading = self._pages[task.start].heading
        if not is_sayable(heading):
            return task
        return task.model_copy(update={"instruction": f'On the page "{heading}": {task.instruction}'})


def _is_sort(key: str, link: Link) -> bool:
    return link.is_head and path_of(link.url) == path_of(key)


def _by_name(links: Iterable[Link]) -> Iterable[list[Link]]:
    found: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        found[link.at.name.casefold()].append(link)
    return found.values()


def _goals(tasks: Iterable[AdoptedTask]) -> Mapping[str, set[bytes]]:
    """Of each instruction."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for task in tasks:
        found[task.instruction.casefold()].add(canonical_json(task.goal))
    return found


def _chosen(tasks: Sequence[AdoptedTask], max_tasks: int) -> list[AdoptedTask]:
    """Of each family alike, and in it first one of each goal, near the top of the list of a hash."""
    families: dict[str, list[AdoptedTask]] = defaultdict(list)
    seen: Counter[bytes] = Counter()
    for task in sorted(tasks, key=lambda task: stable_fraction("adopted", task.task_id)):
        goal = canonical_json([task.family, task.goal])
        seen[goal] += 1
        if seen[goal] <= MAX_SAME_GOAL:
            families[task.family].append(task)
    for family, members in families.items():
        rank: Counter[bytes] = Counter()
        order: list[tuple[int, AdoptedTask]] = []
        for task in members:
            rank[canonical_json(task.goal)] += 1
            order.append((rank[canonical_json(task.goal)], task))
        families[family] = [task for _, task in sorted(order, key=lambda pair: pair[0])]
    chosen: list[AdoptedTask] = []
    for place in range(max((len(members) for members in families.values()), default=0)):
        chosen += [members[place] for members in families.values() if place < len(members)]
    return chosen[:max_tasks]


def _outcome(press: Press, key: str) -> UrlCheck | ShownCheck | None:
    if press.opens:
        return UrlCheck(key=page_key(press.opens))
    return None if press.shows is None else ShownCheck(view=press.shows, page=key)


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


def _order(look: Look, column: str) -> str:
    """How a list that was sorted by a column shows that it is; nothing where it does not."""
    for table in look.tables:
        if table.columns.count(column) != 1:
            continue
        texts = [row[table.columns.index(column)].text for row in table.rows]
        if len(set(texts)) > 1 and not any(is_of_date(text) for text in texts):
            are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", text) for text in texts)
            values: list[Any] = [float(text) for text in texts] if are_numbers else [text.casefold() for text in texts]
            if values == sorted(values):
                return ", in ascending order"
            if values == sorted(values, reverse=True):
                return ", in descending order"
    return ""


def _options(each: PageField) -> list[str]:
    """Those of a choice that can be asked for."""
    named = [option for option in each.options if is_sayable(option) and not says_leaving(option)]
    return [option for option in named if each.options.count(option) == 1 and option != each.state]


def _can_be_filled(each: PageField) -> bool:
    return each.type in TEXT_TYPES or (each.type == "select" and not each.is_multiple and bool(each.values) and bool(_options(each)))


def _varied(templates: Sequence[str], *content: str) -> str:
    return templates[int(stable_fraction("adopted wording", *content) * len(templates))]
