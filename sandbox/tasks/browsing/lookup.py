"""Questions that name what they ask about: drills of reading a page, opening a link, following one on, finding by the search box, going
down the lists. They are dealt out like cards: each fact of the split once before any is asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from random import Random

from sandbox.tasks.browsing.answers import accepted_forms
from sandbox.tasks.browsing.graph import Attribute, Entity, Fact, Graph
from sandbox.tasks.browsing.instance import Instance, rank
from sandbox.tasks.browsing.pages import HOME
from sandbox.tasks.browsing.site import Corpus
from sandbox.tasks.task import Split, Task

KINDS = {"almanac": ("country", "city", "language", "currency", "element"), "handbook": ("package",)}
MAX_ANSWER_CHARS = 40
VISIBLE_ROWS = 9
"""Of a page, without scrolling: what a small task asks for stands there."""

_Card = tuple[str, str, str]
"""Key of the entity asked about; its attribute; for a hop, the attribute of what that links to, else empty."""


@cache
def _cards(corpus: Corpus, split: Split, way: str) -> tuple[_Card, ...]:
    """Everything that may be asked in a split, shuffled. What is asked about is of the split: of a hop the entity that the link leads to,
    wherever it begins."""
    graph, cards = corpus.graph, []
    unique = _unique_names(graph)
    asked_of = cache(lambda key: _asked(graph, graph.entities[key]))
    for kind in KINDS[corpus.name]:
        for entity in graph.kinds[kind]:
            if (way != "follow" and entity.split is not split) or (kind, entity.name) not in unique:
                continue
            for attribute in graph.attributes[kind]:
                fact = entity.value(attribute.name)
                if fact is None or len(fact.text) > MAX_ANSWER_CHARS:
                    continue
                if way == "follow" and attribute.kind == "link" and fact.target is not None:
                    other = graph.entities[fact.target]
                    asked = asked_of(other.key) if other.split is split else []
                    cards += [(entity.key, attribute.name, each.name) for each, there in asked if there.text != entity.name]
                elif way != "follow" and (attribute, fact) in asked_of(entity.key):
                    cards.append((entity.key, attribute.name, ""))
    if way == "search":
        cards = [card for card in cards if _is_found(corpus, graph.entities[card[0]])]
    Random(f"{corpus.name} {split} {way}").shuffle(cards)
    return tuple(cards)


def _is_found(corpus: Corpus, entity: Entity) -> bool:
    """Its name brings it up near the top of the first screen: no scrolling."""
    return entity.path in corpus.index.results(entity.name)[:5]


def _unique_names(graph: Graph) -> frozenset[tuple[str, str]]:
    counted = Counter((entity.kind, entity.name) for entity in graph.entities.values())
    return frozenset(name for name, number in counted.items() if number == 1)


def _asked(graph: Graph, entity: Entity) -> list[tuple[Attribute, Fact]]:
    """What may be asked of an entity: one short value, near the top of its page, that is not its own name."""
    shown = [attribute for attribute in graph.attributes[entity.kind] if entity.values(attribute.name)][:VISIBLE_ROWS]
    asked = []
    for attribute in shown:
        fact = entity.value(attribute.name)
        if attribute.is_asked and fact is not None and len(fact.text) <= MAX_ANSWER_CHARS and fact.text != entity.name:
            asked.append((attribute, fact))
    return asked


def card_of(corpus: Corpus, task: Task, seed: int, way: str) -> _Card:
    cards = _cards(corpus, task.split(seed), way)
    return cards[rank(task, seed) % len(cards)]


def called(graph: Graph, entity: Entity) -> str:
    """Its name, with its kind where another kind has that name too."""
    shared = sum(entity.name == other.name for other in graph.entities.values()) > 1
    return f"the {entity.kind} {entity.name}" if shared else entity.name


def _instance(
    corpus: Corpus, card: _Card, question: str, start: str, route: tuple[str, ...], difficulty: float, typed: str = ""
) -> Instance:
    graph = corpus.graph
    entity = graph.entities[card[0]]
    asked = entity.value(card[1])
    if card[2] and asked is not None and asked.target is not None:
        asked = graph.entities[asked.target].value(card[2])
    fact = asked or Fact(attribute=card[1], text="")
    aliases = graph.entities[fact.target].aliases if fact.target is not None else ()
    return Instance(
        corpus=corpus,
        question=question,
        answer=fact.text,
        forms=accepted_forms(fact.text, aliases),
        start=start,
        route=route,
        typed=typed,
        beside=entity.name if entity.kind == "package" else "",
        content={"entity": card[0], "attribute": card[1], "then": card[2]},
        difficulty=difficulty,
    )


def _asking(graph: Graph, card: _Card) -> str:
    """What is the calling code of Mali?"""
    entity = graph.entities[card[0]]
    phrase = graph.attribute(entity.kind, card[1]).asked_as
    if card[2]:
        other = graph.entities[str(getattr(entity.value(card[1]), "target", ""))]
        phrase = f"{graph.attribute(other.kind, card[2]).asked_as} the {phrase}"
    return f"What is the {phrase} {called(graph, entity)}?"


def read(corpus: Corpus, task: Task, seed: int) -> Instance:
    """On the page already."""
    card = card_of(corpus, task, seed, "read")
    path = corpus.graph.entities[card[0]].path
    return _instance(corpus, card, _asking(corpus.graph, card), path, (path,), 0.0)


def open_and_read(corpus: Corpus, task: Task, seed: int) -> Instance:
    """A click away, on the list that has it."""
    card = card_of(corpus, task, seed, "open")
    path = corpus.graph.entities[card[0]].path
    start = corpus.route(HOME, path)[-2]
    return _instance(corpus, card, _asking(corpus.graph, card), start, (start, path), 0.05)


def follow_and_read(corpus: Corpus, task: Task, seed: int) -> Instance:
    """A link of the page leads to what is asked about."""
    card = card_of(corpus, task, seed, "follow")
    entity = corpus.graph.entities[card[0]]
    other = corpus.graph.entities[str(getattr(entity.value(card[1]), "target", ""))]
    return _instance(corpus, card, _asking(corpus.graph, card), entity.path, (entity.path, other.path), 0.1)


def search_and_read(corpus: Corpus, task: Task, seed: int) -> Instance:
    """By the search box, from the contents."""
    card = card_of(corpus, task, seed, "search")
    entity = corpus.graph.entities[card[0]]
    question = _asking(corpus.graph, card)
    return _instance(corpus, card, question, HOME, (HOME, entity.path), 0.15, typed=entity.name)


def browse_and_read(corpus: Corpus, task: Task, seed: int) -> Instance:
    """Down the lists, from the contents."""
    card = card_of(corpus, task, seed, "browse")
    entity = corpus.graph.entities[card[0]]
    question = _asking(corpus.graph, card)
    if entity.kind == "package":
        section = entity.values("section")[0].text
        question = f'What size does the handbook give for the package {entity.name}, in the section "{section}"?'
    return _instance(corpus, card, question, HOME, corpus.route(HOME, entity.path), 0.2)


LOOKUPS: Mapping[str, Callable[[Corpus, Task, int], Instance]] = {
    "read": read,
    "open-and-read": open_and_read,
    "follow-and-read": follow_and_read,
    "search-and-read": search_and_read,
    "browse-and-read": browse_and_read,
}
