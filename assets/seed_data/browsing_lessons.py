"""Lessons of looking things up and setting them right: read what stands beside a label, follow the link beside one, open an entry of a
list, search, fill in fields by their labels, carry words between a page and files; acted out on assets/seed_data/practice_site.py. What the
values of a page look like is said here too.

Unlike those of assets/seed_data/lessons.py they are drills of the steps that the tasks of `browsing:small`, `web:small` and
`hybrid:generated-small` take, on invented sites: what tutorials alone solve there is not transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assets.seed_data.lessons import Lesson, lesson_of, press, write
from assets.seed_data.practice_page import Widget
from assets.seed_data.practice_site import PracticeSite, SiteMove, answer, click, fill, run, scroll_down
from assets.seed_data.shell_lessons import ENDINGS
from assets.seed_data.text_sampler import TextSampler

CHARACTER_WORDS = ("u00b0", "u00b2", "u00b3", "u00c5", "triple")
"""The escapes of °, ², ³ and Å, which units are written with: one token each. And half the name of an action."""
ACCENTED = "áàâäãåāçčéèêëēíîïīñóôöõøōšúûüūýž"
AGAIN = 4
"""So many more questions are asked of a page at most."""
UNITS = (" km²", " g/cm³", " Å", " u", " m", "%", " KB")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a page: what it is called, and what it says, as text or as a link."""

    label: str
    value: str
    is_link: bool = False

    def widgets(self) -> tuple[Widget, Widget]:
        return Widget("text", self.label), Widget("link" if self.is_link else "text", self.value)


def title(sampler: TextSampler) -> str:
    """What a page may be about: a made-up name, at times with an accent, or a few words."""
    if sampler.often(0.2):
        return " ".join(word.capitalize() for word in sampler.words(1, 2, 2).split())
    name = sampler.proper_name() if sampler.often(0.6) else sampler.string(1).upper() + sampler.string(8, 2).lower()
    if sampler.often(0.15):
        place = sampler.rng.randrange(1, len(name))
        name = name[:place] + sampler.rng.choice(ACCENTED) + name[place + 1 :]
    return name


def entry_names(sampler: TextSampler, num: int) -> list[str]:
    """At most `num` different names, often of one first letter, as in an alphabetical list."""
    names = [title(sampler) for _ in range(num)]
    if sampler.often(0.6):
        first = sampler.rng.choice("ABCDEFGHIJKLMNOPRSTUVWYZ")
        names = [first + name[1:].lower() for name in names]
    return list(dict.fromkeys(names))


def number(sampler: TextSampler) -> str:
    """Of one to nine digits, with commas."""
    return f"{sampler.rng.randrange(10 ** sampler.rng.randint(1, 9)):,}"


def value(sampler: TextSampler) -> str:
    """What a page may say of a thing: a number, a measure, a place on the globe, a code, a word or two, a path."""
    kind = sampler.rng.random()
    if kind < 0.2:
        return number(sampler)
    if kind < 0.38:
        return f"{sampler.rng.uniform(0, 180 if sampler.often(0.5) else 60):.2f}° {sampler.rng.choice('NSEW')}"
    if kind < 0.5:
        amount = number(sampler) if sampler.often(0.5) else str(round(sampler.rng.uniform(0, 300), sampler.rng.randint(1, 3)))
        return f"{amount}{sampler.rng.choice(UNITS)}"
    if kind < 0.62:
        return sampler.string(4, 1).upper()
    if kind < 0.68:
        return f"+{sampler.rng.randint(1, 999)}" if sampler.often(0.7) else f"+1-{sampler.rng.randint(200, 999)}"
    if kind < 0.74:
        return f".{sampler.string(3, 2).lower()}"
    if kind < 0.82:
        return sampler.words(1, 2, 3).lower()
    return title(sampler) if sampler.often(0.8) else f"{sampler.word().capitalize()}/{title(sampler)}"


def rows(sampler: TextSampler, num: int) -> list[Row]:
    """At most `num` lines with different labels; names are often links."""
    found: dict[str, Row] = {}
    for label in [sampler.label() for _ in range(num)]:
        is_link = sampler.often(0.2)
        found[label] = Row(label, title(sampler) if is_link else value(sampler), is_link)
    return list(found.values())


def bar(sampler: TextSampler, field: Widget | None = None) -> list[Widget]:
    """What stands on top of every page of a site: a way home and a search box."""
    return [Widget("link", sampler.word().capitalize()), field or Widget("input", sampler.words(1, 2)), Widget("button", _button(sampler))]


def _button(sampler: TextSampler) -> str:
    return sampler.rng.choice(("Search", "Search", "Go", "Find", sampler.word().capitalize()))


def page(sampler: TextSampler, head: Sequence[Widget], name: str, lines: Sequence[Row]) -> list[Widget]:
    kind = [Widget("text", sampler.word().capitalize())] if sampler.often(0.8) else []
    return [*head, Widget("text", name), *kind, *(widget for row in lines for widget in row.widgets())]


def asked(label: str) -> str:
    """How an instruction speaks of a label."""
    return label if label[:2].isupper() else label[0].lower() + label[1:]


def _head(sampler: TextSampler) -> list[Widget]:
    return bar(sampler) if sampler.often(0.8) else []


_READ = (
    "Tell the {label} of {name}.",
    "{name}: {label}?",
    "Say which {label} stands with {name}.",
    "Answer with the {label} of {name}.",
    "The {label} of {name} is wanted.",
    "Read off the {label} of {name} and say it.",
)


def read_again(sampler: TextSampler, name: str, lines: Sequence[Row], but: Row) -> list[tuple[str, SiteMove]]:
    """Questions about other lines of a page."""
    others = [row for row in lines if row is not but]
    asks = sampler.rng.sample(others, min(len(others), AGAIN))
    return [(sampler.say(*_READ, label=asked(row.label), name=name), answer(row.value)) for row in asks]


def open_again(sampler: TextSampler, links: Sequence[Widget], but: Widget) -> list[tuple[str, SiteMove]]:
    """Questions that other links of a list lead to."""
    others = [link for link in links if link is not but]
    asks = sampler.rng.sample(others, min(len(others), AGAIN))
    return [(sampler.say(*_READ, label=asked(sampler.label()), name=link.text), click(link)) for link in asks]


def read(sampler: TextSampler) -> Lesson:
    """The page is open: answer with what stands beside a label."""
    name, lines = title(sampler), rows(sampler, sampler.rng.randint(2, 11))
    wanted = sampler.rng.choice(lines)
    site = PracticeSite(page(sampler, _head(sampler), name, lines))
    instruction = sampler.say(*_READ, label=asked(wanted.label), name=name)
    return Lesson(instruction, site, [answer(wanted.value)], also={0: read_again(sampler, name, lines, wanted)})


def follow(sampler: TextSampler) -> Lesson:
    """A link of this page leads to the page that says it."""
    head, name, other = _head(sampler), title(sampler), title(sampler)
    via, lines = sampler.label(), rows(sampler, sampler.rng.randint(1, 6))
    lines = [row for row in lines if row.label != via]
    lines.insert(sampler.rng.randint(0, len(lines)), link := Row(via, other, is_link=True))
    there = rows(sampler, sampler.rng.randint(2, 10))
    if sampler.often(0.3) and len(lines) > 1:  # this page has a line of that name as well
        also = sampler.rng.choice([row for row in lines if row is not link])
        there = [Row(also.label, value(sampler)), *(row for row in there if row.label != also.label)]
        wanted = there[0]
        sampler.rng.shuffle(there)
    else:
        wanted = sampler.rng.choice(there)
    wordings = (
        "Tell the {label} of the {via} of {name}.",
        "{name} has {via}: which {label} is there?",
        "Answer with the {label} of the {via} of {name}.",
        "Go on to the {via} of {name} and say its {label}.",
    )
    site = PracticeSite(widgets := page(sampler, head, name, lines))
    opened = next(widget for place, widget in enumerate(widgets) if widget.text == other and widgets[place - 1].text == via)
    moves = [click(opened, page(sampler, head, other, there)), answer(wanted.value)]
    instruction = sampler.say(*wordings, label=asked(wanted.label), via=asked(via), name=name)
    return Lesson(instruction, site, moves, crux=sampler.rng.randint(0, 1), also={1: read_again(sampler, other, there, wanted)})


def open_entry(sampler: TextSampler) -> Lesson:
    """A list of links, of which the named one is opened; it may lie further down."""
    head, names = _head(sampler), entry_names(sampler, sampler.rng.randint(2, 12))
    if sampler.often(0.7):
        names.sort()
    wanted, lines = sampler.rng.choice(names), rows(sampler, sampler.rng.randint(2, 7))
    entries = [Widget("link", name) for name in names]
    opened = entries[names.index(wanted)]
    line = sampler.rng.choice(lines)
    moves: list[SiteMove] = [click(opened, page(sampler, head, wanted, lines)), answer(line.value)]
    listed = [*head, Widget("text", sampler.words(1, 2)), *entries]
    also = {0: open_again(sampler, entries, opened), 1: read_again(sampler, wanted, lines, line)}
    if len(names) > 3 and sampler.often(0.35):  # only the first are shown
        cut = sampler.rng.randint(1, max(1, names.index(wanted)))
        if cut <= names.index(wanted):
            above = [*listed[: len(listed) - len(entries)], *entries[:cut]]
            moves = [scroll_down(shown := entries[sampler.rng.randint(0, cut) :]), *moves]
            listed = above
            also = {1: open_again(sampler, shown, opened), 2: also[1]}
    instruction = sampler.say(*_READ, label=asked(line.label), name=wanted)
    return Lesson(instruction, PracticeSite(listed), moves, crux=sampler.rng.randrange(len(moves)), also=also)


def search(sampler: TextSampler) -> Lesson:
    """The name into the search box, the page from what is found, the answer from the page."""
    name, lines = title(sampler), rows(sampler, sampler.rng.randint(2, 7))
    hint = sampler.words(1, 2)
    wanted, field = sampler.rng.choice(lines), Widget("input", hint, is_hint=True)
    head = bar(sampler, field)
    others = [title(sampler) for _ in range(sampler.rng.choice((0, 1, 2, 4)))]
    results = [Widget("link", each) for each in (name, *others)]
    if sampler.often(0.3):
        sampler.rng.shuffle(results)
    kinds = sampler.often(0.7)
    found = [Widget("text", sampler.word().capitalize())]
    for each in results:
        found += [each, *([Widget("text", sampler.word().capitalize())] if kinds else [])]
    start = [
        *head,
        Widget("text", sampler.word().capitalize()),
        *(Widget("link", sampler.word().capitalize()) for _ in range(sampler.rng.randint(1, 5))),
    ]
    opened = next(each for each in results if each.text == name)
    fresh = [head[0], Widget("input", hint), head[2]]
    moves = [*fill(field, name), click(head[2], [*head, *found]), click(opened, page(sampler, fresh, name, lines)), answer(wanted.value)]
    instruction = sampler.say(*_READ, label=asked(wanted.label), name=name)
    also = {3: open_again(sampler, results, opened), 4: read_again(sampler, name, lines, wanted)}
    return Lesson(instruction, PracticeSite(start), moves, crux=sampler.rng.randint(0, 4), also=also)


_FIELDS = {
    1: ('Fill in "{b}" for {w}.', 'The {w} is "{b}".', 'Take "{b}" as {w} and send it off.'),
    2: (
        'Where {w} is "{b}", let {v} be "{a}".',
        'Of the {w} "{b}", set the {v} to "{a}".',
        'The {v} of "{b}" should be "{a}".',
        'Put "{a}" for {v} and "{b}" for {w}.',
    ),
}


def fill_fields(sampler: TextSampler) -> Lesson:
    """Fields under their labels; a button at the end; what the page says then is that it is done."""
    num = sampler.rng.choice((1, 2, 2))
    labels = [sampler.word().lower() for _ in range(2)]
    values = [
        sampler.string(3, 2) if sampler.often(0.4) else sampler.word() if sampler.often(0.5) else title(sampler),
        title(sampler) if sampler.often(0.6) else sampler.words(2),
    ]
    labels, values = labels[-num:], values[-num:]
    fields = [Widget("input") for _ in range(num)]
    head = [Widget(sampler.rng.choice(("link", "text")), sampler.words(1, 2)) for _ in range(sampler.rng.randint(0, 4))]
    notes = [Widget("text", sampler.words(1, 2, 6)) for _ in range(sampler.rng.randint(0, 3))]
    buttons = [Widget("button", sampler.words(1, 2)) for _ in range(sampler.rng.choice((1, 2)))]
    form = [widget for label, field in zip(labels, fields, strict=True) for widget in (Widget("text", label), field)]
    foot = [Widget("text", sampler.words(1, 2)) for _ in range(sampler.rng.randint(0, 2))]
    empty = [Widget("text", each.text) if each.role == "text" else Widget("input") for each in form]
    said = Widget("text", sampler.words(2, 4))
    moves = [move for field, text in zip(fields, values, strict=True) for move in fill(field, text)]
    moves += [click(buttons[-1], [*head, said, *notes, *empty, *buttons, *foot]), answer()]
    parts = dict(zip("ab", ["", *values][-2:], strict=True)) | dict(zip("vw", ["", *labels][-2:], strict=True))
    return Lesson(sampler.say(*_FIELDS[num], **parts), PracticeSite([*head, *notes, *form, *buttons, *foot]), moves)


def _file(sampler: TextSampler) -> str:
    return f"{sampler.word().lower()}.{sampler.rng.choice(ENDINGS)}"


def note_down(sampler: TextSampler) -> Lesson:
    """What the page shows, into one file or two."""
    num = sampler.rng.choice((1, 2))
    codes = [sampler.string(4, 3).upper() for _ in range(num)]
    names, files = [sampler.word().lower() for _ in range(num)], [_file(sampler) for _ in range(num)]
    shown = [Widget("text", codes[0] if num == 1 else f"{name} {code}") for name, code in zip(names, codes, strict=True)]
    sampler.rng.shuffle(shown)
    if num == 1:
        instruction = sampler.say("Note in {f} what you see on the page.", "Let {f} hold what the page says.", f=files[0])
    else:
        wordings = (
            "What stands with {a} goes into {f}, what stands with {b} into {g}.",
            "Note in {f} what {a} has. Note in {g} what {b} has.",
        )
        instruction = sampler.say(*wordings, a=names[0], b=names[1], f=files[0], g=files[1])
    moves = [run(f"echo {code} > {file}") for code, file in zip(codes, files, strict=True)]
    return Lesson(instruction, PracticeSite([Widget("text", sampler.word().capitalize()), *shown]), [*moves, answer()], crux=0)


def type_out(sampler: TextSampler) -> Lesson:
    """What one file or two say, into fields, and off with it."""
    num = sampler.rng.choice((1, 2))
    files = [_file(sampler) for _ in range(num)]
    texts = [sampler.word().lower() if sampler.often(0.8) else sampler.string(6, 3) for _ in range(num)]
    labels = [sampler.words(1, 2).capitalize() for _ in range(num)]
    fields = [Widget("input", label, is_hint=True) for label in labels]
    send = sampler.confirm()
    wordings = {
        1: ("Put what {f} says under {v}, then push {ok}.", "The word of {f} goes to {v}. Push {ok}."),
        2: (
            "Put what {f} says under {v} and what {g} says under {w}, then push {ok}.",
            "The word of {f} goes to {v}. The word of {g} goes to {w}. Push {ok}.",
        ),
    }[num]
    parts = dict(zip("fg", files, strict=False)) | dict(zip("vw", labels, strict=False))
    moves: list[SiteMove] = []
    for file, text, field in zip(files, texts, fields, strict=True):
        moves += [run(f"cat {file}", f"{text}\n"), *fill(field, text, "triple_click")]
    heading = Widget("text", sampler.word().capitalize())
    moves += [click(send, [heading, Widget("text", sampler.words(1, 2))]), answer()]
    return Lesson(sampler.say(*wordings, ok=send.text, **parts), PracticeSite([heading, *fields, send]), moves)


BROWSING_LESSONS: tuple[tuple[Callable[[TextSampler], Lesson], float], ...] = (
    (read, 0.80),
    (follow, 0.60),
    (open_entry, 0.60),
    (search, 0.50),
    (fill_fields, 0.40),
    (note_down, 0.30),
    (type_out, 0.35),
    (lesson_of(press), 0.30),
    (lesson_of(write), 0.20),
)
"""Each kind of lesson with its share, on the scale of the web's; the last ones are the web's own, short and full of copying."""
