"""Questions that name nothing: an entity identified by conditions, or by another that is identified so itself, up to three deep. Each
candidate passes the filters or is dropped with a reason, and chance tries the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from sandbox.tasks.browsing import wording
from sandbox.tasks.browsing.answers import accepted_forms, says
from sandbox.tasks.browsing.conditions import compose, conditions_of, leave
from sandbox.tasks.browsing.graph import Attribute, Entity, Fact, Graph
from sandbox.tasks.browsing.instance import Instance, rank, seeded
from sandbox.tasks.browsing.pages import HOME
from sandbox.tasks.browsing.relations import RELATIONS, Relation, bits_of, others
from sandbox.tasks.browsing.site import Corpus
from sandbox.tasks.browsing.wording import Clue
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import SandboxError

MAX_ATTEMPTS = 600
TRIES = 6
"""Candidates about one entity, before chance takes another."""
MAX_ANSWER_CHARS = 40
ASKED_SHARE = 0.4
"""Of chains, so many ask for a fact of the last entity rather than for its name."""

Screen = Callable[[Instance], str | None]
"""A further filter: why an instance is refused, or None."""


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
        entity = _answer_entity(corpus, shape, task, seed, attempt // TRIES)
        if entity is None or (entity.is_famous and attempt % TRIES):
            continue
        draft = _Draft(corpus=corpus, shape=shape, rng=seeded(task, seed, attempt), dropped=dropped)
        instance = draft.instance(entity)
        if instance is None:
            continue
        if skip:
            skip -= 1
            dropped["refused by a model"] += 1
        elif screen is not None and (reason := screen(instance)) is not None:
            dropped[reason] += 1
        else:
            return replace(instance, dropped=dict(sorted(dropped.items())), refused=dict(sorted((+draft.refused).items())))
    raise SandboxError(f"{task.name} has no question for seed {seed}: {MAX_ATTEMPTS} candidates were dropped, {dict(dropped)}.")


def _answer_entity(corpus: Corpus, shape: Shape, task: Task, seed: int, turn: int) -> Entity | None:
    """What is asked about: of the split, dealt out like cards as long as the seeds of the split are small; on later turns any. None where
    the kind that chance names has none in the split."""
    rng = seeded(task, seed, -1 - turn)
    kind = rng.choices(list(shape.kinds), list(shape.kinds.values()))[0]
    deck = _deck(corpus, kind, task.split(seed), task.name, shape.depth > 1)
    if not deck:
        return None
    return rng.choice(deck) if turn else deck[rank(task, seed) % len(deck)]


@cache
def _deck(corpus: Corpus, kind: str, split: Split, name: str, is_mentioned: bool) -> tuple[Entity, ...]:
    """Shuffled by the family's name. `is_mentioned`: only what some other entity mentions."""
    deck = [
        entity
        for entity in corpus.graph.kinds[kind]
        if entity.split is split and (not is_mentioned or _informants(corpus.graph, entity, ()))
    ]
    Random(f"{name} {split}").shuffle(deck)
    return tuple(deck)


def _informants(graph: Graph, entity: Entity, used: tuple[str, ...]) -> Mapping[Relation, list[Entity]]:
    """Entities that may identify an entity, by relation."""
    ways: dict[Relation, list[Entity]] = {}
    for relation in RELATIONS:
        if relation.kind == entity.kind:
            found = [other for other in others(graph, entity, relation) if other.key not in (*used, entity.key)]
            if found:
                ways[relation] = found
    return ways


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """One candidate in the making, and the counts of what is refused on the way."""

    corpus: Corpus
    shape: Shape
    rng: Random
    dropped: Counter[str]
    """Candidates, over all drafts of a seed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Conditions, of this draft."""

    def instance(self, entity: Entity) -> Instance | None:
        """A question whose answer is the entity, or is of it; None where the candidate is dropped, with the reason counted."""
        if entity.is_famous:
            self._drop("answer known to everybody")
            return None
        clues = self._clues(entity, self.shape.depth, ())
        if clues is None:
            return None
        instance = _instance(self.corpus, self.shape, clues, self._asked(clues[-1]) if self.shape.depth > 1 else None)
        if any(says(instance.question, name) for name in instance.names):
            self._drop("question names what it asks for")
            return None
        if entity.path in self.corpus.index.results(instance.question):
            self._drop("one search finds it")
            return None
        if not instance.route:
            self._drop("no links lead there")
            return None
        return instance

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    def _clues(self, entity: Entity, depth: int, used: tuple[str, ...]) -> tuple[Clue, ...] | None:
        """Clues that lead to an entity, the first first. None where chance finds none."""
        graph, rng = self.corpus.graph, self.rng
        wanted, everything = graph.bits([entity.key]), (1 << len(graph.kinds[entity.kind])) - 1
        if depth == 1:
            if used and entity.is_famous:
                self._drop("first of the chain known to everybody")
                return None
            num = rng.choice(list(self.shape.num_conditions))
            chosen = compose(conditions_of(graph, entity, rng, self.refused), wanted, everything, num, rng)
            if chosen is None:
                self._drop("no such conditions leave just one")
                return None
            return (Clue(entity=entity, conditions=chosen),)
        way = self._way_to(entity, used)
        if way is None:
            self._drop("nothing leads to it")
            return None
        relation, other = way
        mine = conditions_of(graph, entity, rng, self.refused)
        found = (compose(mine, wanted, bits_of(graph, other, relation), num, rng) for num in (0, 1, 2))
        conditions = next((each for each in found if each is not None), None)
        if conditions is None or leave(conditions, everything) == wanted:
            self._drop("hop leaves more than one, or is not needed")
            return None
        before = self._clues(other, depth - 1, (*used, entity.key))
        return None if before is None else (*before, Clue(entity=entity, conditions=conditions, relation=relation))

    def _way_to(self, entity: Entity, used: tuple[str, ...]) -> tuple[Relation, Entity] | None:
        """What identifies an entity, and how: chance takes a relation, then an entity of it."""
        ways = _informants(self.corpus.graph, entity, used)
        if not ways:
            return None
        relation = self.rng.choice(list(ways))
        return relation, self.rng.choice(ways[relation])

    def _asked(self, clue: Clue) -> tuple[Attribute, Fact] | None:
        """A fact of the last entity to ask for, which no condition speaks of, or None: its name."""
        mentioned = {condition.attribute for condition in clue.conditions}
        asked = [
            (attribute, fact)
            for attribute in self.corpus.graph.attributes[clue.entity.kind]
            if attribute.is_asked and attribute.name not in mentioned and (fact := clue.entity.value(attribute.name)) is not None
            if fact.target is None and len(fact.text) <= MAX_ANSWER_CHARS
        ]
        return self.rng.choice(asked) if asked and self.rng.random() < ASKED_SHARE else None


def _instance(corpus: Corpus, shape: Shape, clues: tuple[Clue, ...], asked: tuple[Attribute, Fact] | None) -> Instance:
    entity = clues[-1].entity
    answer = entity.name if asked is None else asked[1].text
    phrase = "name of" if asked is None else asked[0].asked_as
    forms = accepted_forms(answer, entity.aliases if asked is None else ())
    names = [clue.entity.name for clue in clues] + ([answer] if asked is not None else [])
    facts = [
        {
            "kind": clue.entity.kind,
            "entity": clue.entity.key,
            "conditions": sorted(each.clause for each in clue.conditions),
            "relation": clue.relation.clause if clue.relation else "",
        }
        for clue in clues
    ]
    return Instance(
        corpus=corpus,
        question=wording.question(clues, phrase),
        answer=answer,
        forms=forms,
        start=HOME,
        names=tuple(names),
        beside=entity.name if entity.kind == "package" else "",
        route=_route(corpus, [clue.entity.path for clue in clues]),
        content={"clues": facts, "asked": phrase},
        difficulty=shape.difficulty,
        given_bits=tuple(each.bits_given(len(corpus.graph.kinds[clue.entity.kind])) for clue in clues for each in clue.conditions),
    )


def _route(corpus: Corpus, stops: Sequence[str]) -> tuple[str, ...]:
    route: tuple[str, ...] = (HOME,)
    for stop in stops:
        leg = corpus.route(route[-1], stop)
        if not leg:
            return ()
        route = (*route, *leg[1:])
    return route
