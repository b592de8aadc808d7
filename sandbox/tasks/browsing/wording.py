"""Questions in words, by rule. A model may put them better (rewriting.py); what is right never depends on the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.tasks.browsing.conditions import Condition
from sandbox.tasks.browsing.graph import Entity
from sandbox.tasks.browsing.relations import Relation

LETTERS = "ABCDEF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What a question says of one entity: conditions, and for all but the first how the one before identifies it."""

    entity: Entity
    conditions: tuple[Condition, ...]
    relation: Relation | None = None


def question(clues: Sequence[Clue], phrase: str) -> str:
    """One sentence a clue, and what is asked of the last: `name of`, `calling code of`."""
    if len(clues) == 1:
        clue = clues[0]
        return (
            f"{_article(clue.entity.kind)} {joined([each.clause for each in clue.conditions])}. What is its {phrase.removesuffix(' of')}?"
        )
    sentences = []
    for place, clue in enumerate(clues):
        clauses = [each.clause for each in clue.conditions]
        if clue.relation is not None:
            clauses.insert(0, clue.relation.clause.format(other=_labelled(clues, place - 1)))
        labelled = _labelled(clues, place)
        sentences.append(f"{labelled[0].upper()}{labelled[1:]} {joined(clauses)}.")
    sentences.append(f"What is the {phrase} {_labelled(clues, len(clues) - 1)}?")
    return " ".join(sentences)


def joined(clauses: Sequence[str]) -> str:
    """`lies in Africa, has 5 neighbours, and covers …`"""
    if len(clauses) < 3:
        return " and ".join(clauses)
    return ", ".join(clauses[:-1]) + ", and " + clauses[-1]


def _labelled(clues: Sequence[Clue], place: int) -> str:
    return f"{clues[place].entity.kind} {LETTERS[place]}"


def _article(kind: str) -> str:
    return f"An {kind}" if kind[0] in "aeiou" else f"A {kind}"
