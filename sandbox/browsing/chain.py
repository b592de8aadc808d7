"""Questions that name nothing: an entity told by conditions, or by another that is told so itself, up to three deep. Each candidate passes
the filters or is dropped with a reason, and chance tries the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from sandbox.browsing import wording
from sandbox.browsing.answers import accepted_forms, says
from sandbox.browsing.conditions import Condition, compose, conditions_of
from sandbox.browsing.graph import Attribute, Entity, Fact
from sandbox.browsing.instance import Instance, seeded
from sandbox.browsing.pages import HOME
from sandbox.browsing.relations import RELATIONS, Relation, others, told
from sandbox.browsing.site import Corpus
from sandbox.task import Split, Task
from warehouse.errors import SandboxError

MAX_ATTEMPTS = 600
MAX_ANSWER_CHARS = 40
ASKED_SHARE = 0.4
"""Of chains, so many ask for a fact of the last entity rather than for its name."""

Screen = Callable[[Instance], str | None]
"""A further filter: why an instance is refused, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What a question says of one entity: conditions, and for all but the first how the one before tells it."""

    entity: Entity
    conditions: tuple[Condition, ...]
    relation: Relation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a family asks for: kinds that its answer may be of, conditions of the first clue, how many clues."""

    kinds: Mapping[str, float]
    """With the chance of each."""
    num_conditions: Sequence[int]
    depth: int = 1
    difficulty: float


def composed(corpus: Corpus, shape: Shape, task: Task, seed: int, screen: Screen | None = None, skip: int = 0) -> Instance:
    """The first candidate that passes every filter, `skip` of those that passed left out. Raises SandboxError where none does."""
    dropped: Counter[str] = Counter()
    for attempt in range(MAX_ATTEMPTS):
        refused: Counter[str] = Counter()
        instance = _attempt(corpus, shape, task.split(seed), seeded(task, seed, attempt), dropped, refused)
        if instance is None:
            continue
        if skip:
            skip -= 1
            dropped["refused by a model"] += 1
        elif screen is not None and (reason := screen(instance)) is not None:
            dropped[reason] += 1
        else:
            return replace(instance, dropped=dict(sorted(dropped.items())), refused=dict(sorted(refused.items())))
    raise SandboxError(f"{task.name} has no question for seed {seed}: {MAX_ATTEMPTS} candidates were dropped, {dict(dropped)}.")


def _attempt(corpus: Corpus, shape: Shape, split: Split, rng: Random, dropped: Counter[str], refused: Counter[str]) -> Instance | None:
    """One candidate; None where it is dropped, with the reason counted."""
    entity = _answer_entity(corpus, shape, split, rng)
    if entity is None:
        dropped["no entity of the split"] += 1
        return None
    if entity.is_famous:
        dropped["answer known to everybody"] += 1
        return None
    clues = _clues(corpus, shape, entity, shape.depth, (), rng, dropped, refused)
    if clues is None:
        return None
    asked = _asked(corpus, clues[-1], rng) if shape.depth > 1 else None
    instance = _instance(corpus, shape, clues, asked)
    if any(says(instance.question, name) for name in instance.names):
        dropped["question names what it asks for"] += 1
        return None
    if entity.path in corpus.index.results(instance.question):
        dropped["one search finds it"] += 1
        return None
    if not instance.route:
        dropped["no links lead there"] += 1
        return None
    return instance


def _answer_entity(corpus: Corpus, shape: Shape, split: Split, rng: Random) -> Entity | None:
    kind = rng.choices(list(shape.kinds), list(shape.kinds.values()))[0]
    members = [entity for entity in corpus.graph.kinds[kind] if entity.split is split]
    return rng.choice(members) if members else None


def _clues(
    corpus: Corpus,
    shape: Shape,
    entity: Entity,
    depth: int,
    used: tuple[str, ...],
    rng: Random,
    dropped: Counter[str],
    refused: Counter[str],
) -> tuple[Clue, ...] | None:
    """Clues that lead to an entity, the first first. None where chance finds none."""
    graph = corpus.graph
    wanted, everything = graph.bits([entity.key]), (1 << len(graph.kinds[entity.kind])) - 1
    if depth == 1:
        if used and entity.is_famous:
            dropped["first of the chain known to everybody"] += 1
            return None
        num = rng.choice(list(shape.num_conditions))
        chosen = compose(conditions_of(graph, entity, rng, refused), wanted, everything, num, rng)
        if chosen is None:
            dropped["conditions leave more than one, or one of them is enough"] += 1
            return None
        return (Clue(entity=entity, conditions=chosen),)
    ways = [(relation, other) for relation in RELATIONS if relation.kind == entity.kind for other in others(graph, entity, relation)]
    ways = [way for way in ways if way[1].key not in (*used, entity.key)]
    if not ways:
        dropped["nothing leads to it"] += 1
        return None
    relations = list(dict.fromkeys(way[0] for way in ways))
    relation = rng.choice(relations)
    other = rng.choice([way[1] for way in ways if way[0] == relation])
    within = told(graph, other, relation)
    mine = conditions_of(graph, entity, rng, refused)
    found = (compose(mine, wanted, within, num, rng) for num in (0, 1, 2))
    conditions = next((each for each in found if each is not None), None)
    if conditions is None or _is_enough(conditions, wanted, everything):
        dropped["hop leaves more than one, or is not needed"] += 1
        return None
    before = _clues(corpus, shape, other, depth - 1, (*used, entity.key), rng, dropped, refused)
    return None if before is None else (*before, Clue(entity=entity, conditions=conditions, relation=relation))


def _is_enough(conditions: tuple[Condition, ...], wanted: int, everything: int) -> bool:
    """The conditions alone tell the entity: the hop before it would be for nothing."""
    for condition in conditions:
        everything &= condition.members
    return everything == wanted


def _asked(corpus: Corpus, clue: Clue, rng: Random) -> tuple[Attribute, Fact] | None:
    """A fact of the last entity to ask for, which no condition speaks of, or None: its name."""
    told = {condition.attribute for condition in clue.conditions}
    asked = [
        (attribute, fact)
        for attribute in corpus.graph.attributes[clue.entity.kind]
        if attribute.is_asked and attribute.name not in told and (fact := clue.entity.value(attribute.name)) is not None
        if fact.target is None and len(fact.text) <= MAX_ANSWER_CHARS
    ]
    return rng.choice(asked) if asked and rng.random() < ASKED_SHARE else None


def _instance(corpus: Corpus, shape: Shape, clues: tuple[Clue, ...], asked: tuple[Attribute, Fact] | None) -> Instance:
    entity = clues[-1].entity
    answer = entity.name if asked is None else asked[1].text
    phrase = "name of" if asked is None else asked[0].asked_as
    forms = accepted_forms(answer, entity.aliases if asked is None else ())
    names = [clue.entity.name for clue in clues] + ([answer] if asked is not None else [])
    facts = [
        {"kind": clue.entity.kind, "entity": clue.entity.key, "conditions": sorted(each.clause for each in clue.conditions),
         "relation": clue.relation.clause if clue.relation else ""}
        for clue in clues
    ]  # fmt: skip
    return Instance(
        corpus=corpus, question=wording.question(clues, phrase), answer=answer, forms=forms, start=HOME,
        names=tuple(names), beside=entity.name if entity.kind == "package" else "",
        route=_route(corpus, [clue.entity.path for clue in clues]), content={"clues": facts, "asked": phrase}, difficulty=shape.difficulty,
    )  # fmt: skip


def _route(corpus: Corpus, stops: Sequence[str]) -> tuple[str, ...]:
    route: tuple[str, ...] = (HOME,)
    for stop in stops:
        leg = corpus.route(route[-1], stop)
        if not leg:
            return ()
        route = (*route, *leg[1:])
    return route
