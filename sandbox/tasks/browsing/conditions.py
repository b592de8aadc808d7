"""How an entity may be described without naming it: every fact blurred into conditions that others meet too, and how much each gives away.

A condition is a clause ("has between 10 and 20 million inhabitants") and the set of all entities of the kind that meet it, as the corpus
has them: what a question says of its answer is decided by sets, never by words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random

from sandbox.tasks.browsing.answers import plain, says
from sandbox.tasks.browsing.clauses import INITIALS, MANY, NAMES, NUMBERS, SAME, Blur
from sandbox.tasks.browsing.graph import Entity, Fact, Graph

MIN_LEAVES = 4
"""A condition that fewer entities meet gives the answer away."""
MAX_SHARE = 0.8
"""One that more of them meet says nothing."""
TRIES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One blurred fact."""

    attribute: str
    clause: str
    """With its verb: what follows "it"."""
    members: int
    """All of the kind that meet it, as bits (Graph.places)."""

    def bits_given(self, total: int) -> float:
        """Its distinctiveness: log2 of how many times fewer entities it leaves."""
        return math.log2(total / max(self.members.bit_count(), 1))


def conditions_of(graph: Graph, entity: Entity, rng: Random, refused: Counter[str]) -> list[Condition]:
    """Every description of an entity, each wording once. What was refused is counted by reason."""
    members = graph.kinds[entity.kind]
    kept: list[Condition] = []
    refused["attribute names its entity"] += sum(attribute.is_identifier for attribute in graph.attributes[entity.kind])
    for condition in _candidates(graph, entity, rng):
        leaves = condition.members.bit_count()
        if leaves < MIN_LEAVES:
            refused["condition gives the answer away"] += 1
        elif leaves > MAX_SHARE * len(members):
            refused["condition says nothing"] += 1
        elif says(condition.clause, entity.name):
            refused["condition has a part of the name"] += 1
        else:
            kept.append(condition)
    return kept


def _candidates(graph: Graph, entity: Entity, rng: Random) -> Iterator[Condition]:
    kind = entity.kind
    for attribute in graph.attributes[kind]:
        facts = entity.values(attribute.name)
        if attribute.is_identifier or not facts:
            continue
        where = (kind, attribute.name)
        if where in NUMBERS and facts[0].number is not None:
            yield from _of_number(graph, entity, attribute.name, facts[0].number, NUMBERS[where], rng)
        if where in MANY:
            yield from _of_many(graph, entity, attribute.name, facts, MANY[where], rng)
        if where in INITIALS:
            letter = _initial(facts[0].text)
            clause = INITIALS[where].format(letter=letter)
            yield _condition(graph, kind, attribute.name, clause, lambda fact, letter=letter: _initial(fact.text) == letter)  # type: ignore[misc]
        if where in SAME:
            clause = SAME[where].format(text=facts[0].text)
            yield _condition(graph, kind, attribute.name, clause, lambda fact, text=facts[0].text: fact.text == text)  # type: ignore[misc]
    if kind == "city":
        yield from _of_continent(graph, entity)
    if kind == "package":
        yield from _of_words(graph, entity)
        yield from _of_chapter(graph, entity)
    if kind in NAMES:
        letter = _initial(entity.name)
        found = graph.bits(each.key for each in graph.kinds[kind] if _initial(each.name) == letter)
        yield Condition(attribute="name", clause=NAMES[kind].format(letter=letter), members=found)


def _condition(graph: Graph, kind: str, attribute: str, clause: str, holds: Callable[[Fact], bool]) -> Condition:
    members = 0
    for place, fact in graph.columns.get((kind, attribute), ()):
        if holds(fact):
            members |= 1 << place
    return Condition(attribute=attribute, clause=clause, members=members)


@lru_cache(maxsize=1 << 16)
def _initial(text: str) -> str:
    return plain(text)[:1].upper()


# ---- numbers ----


def _of_number(graph: Graph, entity: Entity, attribute: str, value: float, blur: Blur, rng: Random) -> Iterator[Condition]:
    def within(low: float, high: float, clause: str) -> Condition:
        return _condition(graph, entity.kind, attribute, clause, lambda fact: fact.number is not None and low <= fact.number <= high)

    if blur.scale == "count":
        if blur.exactly:
            yield within(value, value, _singular(blur.exactly) if value == 1 else blur.exactly.format(low=f"{value:g}"))
        least, most = max(value - rng.randint(1, 3), 0.0), value + rng.randint(1, 3)
        yield within(least, most, blur.between.format(low=f"{least:g}", high=f"{most:g}"))
    for low, high in _ranges(value, blur.scale, rng):
        bounds = {
            "low": _degrees(low, attribute) if blur.scale == "linear" else _said(low),
            "high": _degrees(high, attribute) if blur.scale == "linear" else _said(high),
        }
        yield within(low, high, blur.between.format(**bounds))
        if blur.more:
            yield within(low, math.inf, blur.more.format(**bounds))
        if blur.fewer:
            yield within(-math.inf, high, blur.fewer.format(**bounds))
    yield from _relative(graph, entity, attribute, value, blur, rng)


def _relative(graph: Graph, entity: Entity, attribute: str, value: float, blur: Blur, rng: Random) -> Iterator[Condition]:
    """Beside two others of the kind that lie not far off: one below, one above, and between both."""
    if not blur.relative[0]:
        return
    members = graph.kinds[entity.kind]
    column = graph.columns[entity.kind, attribute]
    known = sorted((fact.number, members[place].name) for place, fact in column if fact.number is not None)
    names = Counter(name for _, name in known)
    below = [pair for pair in known if pair[0] < value and names[pair[1]] == 1]
    above = [pair for pair in known if pair[0] > value and names[pair[1]] == 1]
    if not below or not above:
        return
    low, high = below[-min(rng.randint(2, 12), len(below))], above[min(rng.randint(1, 11), len(above) - 1)]
    more, fewer = blur.relative[0].format(name=low[1]), blur.relative[1].format(name=high[1])
    ends = {more: (low[0], math.inf), fewer: (-math.inf, high[0]), f"{more} but {fewer.partition(' ')[2]}": (low[0], high[0])}
    for clause, (least, most) in ends.items():
        yield _condition(
            graph,
            entity.kind,
            attribute,
            clause,
            lambda fact, least=least, most=most: fact.number is not None and least < fact.number < most,  # type: ignore[misc]
        )


def _ranges(value: float, scale: str, rng: Random) -> Iterator[tuple[float, float]]:
    """Narrow to wide, the value somewhere inside, the ends round."""
    if scale == "linear":
        for width in (2, 5, 10):
            corner = math.floor(value) - rng.randrange(width)
            yield float(corner), float(corner + width)
    elif scale == "log" and value > 0:
        for factor in (1.15, 1.4, 2.5):
            digits = 2 if factor < 2 else 1
            shift = rng.random()
            low, high = _round(value / factor**shift, digits, down=True), _round(value * factor ** (1 - shift), digits, down=False)
            if value == int(value) and value < 1000:  # a number of things: ends that are such numbers too
                low, high = float(math.floor(low)), float(math.ceil(high))
            if low < value < high:
                yield low, high


def _round(value: float, digits: int, *, down: bool) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{(math.floor if down else math.ceil)(value / step) * step:.10g}")


def _said(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _singular(clause: str) -> str:
    clause = clause.format(low="one")
    return clause.removesuffix("ies") + "y" if clause.endswith("ies") else clause.removesuffix("s")


def _degrees(value: float, attribute: str) -> str:
    sides = ("north", "south") if attribute == "latitude" else ("east", "west")
    return f"{abs(value):g}° {sides[0] if value >= 0 else sides[1]}"


# ---- links and words ----


def _of_many(
    graph: Graph, entity: Entity, attribute: str, facts: tuple[Fact, ...], ways: tuple[str, str], rng: Random
) -> Iterator[Condition]:
    kind, number = entity.kind, len(facts)
    if ways[0]:
        same = graph.bits(each.key for each in graph.kinds[kind] if len(each.values(attribute)) == number)
        clause = _singular(ways[0]) if number == 1 else ways[0].format(low=number)
        yield Condition(attribute=attribute, clause=clause, members=same)
    letter = _initial(rng.choice(facts).text)
    yield _condition(graph, kind, attribute, ways[1].format(letter=letter), lambda fact: _initial(fact.text) == letter)


def _of_continent(graph: Graph, city: Entity) -> Iterator[Condition]:
    """A city has no continent of its own: its country has."""

    def continent(each: Entity) -> str:
        return graph.entities[str(each.values("country")[0].target)].values("continent")[0].text

    text = continent(city)
    found = graph.bits(each.key for each in graph.kinds["city"] if continent(each) == text)
    yield Condition(attribute="country", clause=f"lies in a country of {text}", members=found)


def _of_words(graph: Graph, package: Entity) -> Iterator[Condition]:
    """Words of its description that others' have too."""
    described = package.value("description")
    for word in dict.fromkeys(plain(described.text if described else "").replace(",", " ").split()):
        if len(word) >= 4 and word.isalpha() and not says(package.name.replace("-", " "), word):
            clause = f'has the word "{word}" in its description'
            yield _condition(
                graph,
                "package",
                "description",
                clause,
                lambda fact, word=word: word in plain(fact.text).replace(",", " ").split(),  # type: ignore[misc]
            )


def _of_chapter(graph: Graph, package: Entity) -> Iterator[Condition]:
    def chapters(each: Entity) -> set[str]:
        return {graph.entities[str(fact.target)].values("chapter")[0].text for fact in each.values("section")}

    for chapter in sorted(chapters(package)):
        found = graph.bits(each.key for each in graph.kinds["package"] if chapter in chapters(each))
        yield Condition(attribute="section", clause=f'is listed in the chapter "{chapter}"', members=found)


# ---- together ----


def compose(conditions: list[Condition], wanted: int, within: int, num: int, rng: Random) -> tuple[Condition, ...] | None:
    """`num` conditions on different attributes that, within a set, leave exactly the one wanted; none of them could be left out. None where
    chance finds no such conditions."""
    if num == 0:
        return () if within == wanted else None
    if len({condition.attribute for condition in conditions}) < num:
        return None
    for _ in range(TRIES):
        chosen = rng.sample(conditions, num) if len(conditions) >= num else []
        if len({condition.attribute for condition in chosen}) == num and leave(chosen, within) == wanted:
            fewer = (part for size in range(num) for part in combinations(chosen, size))
            if all(leave(part, within) != wanted for part in fewer):
                return tuple(chosen)
    return None


def leave(conditions: Sequence[Condition], within: int) -> int:
    """Those of a set that meet all conditions."""
    for condition in conditions:
        within &= condition.members
    return within
