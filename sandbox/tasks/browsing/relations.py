"""How one entity identifies another: the hops of a chain. A literal table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.tasks.browsing.graph import Entity, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`other` identifies `kind`. Where `is_held` the identified entity's attribute links to the other; else the other's links to it."""

    kind: str
    other: str
    attribute: str
    is_held: bool
    clause: str
    """With its verb: what follows the identified entity; {other} is the one that identifies it."""


RELATIONS: tuple[Relation, ...] = (
    Relation(kind="city", other="country", attribute="capital", is_held=False, clause="is the capital of {other}"),
    Relation(kind="city", other="country", attribute="country", is_held=True, clause="lies in {other}"),
    Relation(kind="country", other="city", attribute="capital", is_held=True, clause="has {other} as its capital"),
    Relation(kind="country", other="city", attribute="country", is_held=False, clause="is the country of {other}"),
    Relation(kind="country", other="country", attribute="neighbours", is_held=False, clause="is a neighbour of {other}"),
    Relation(kind="country", other="currency", attribute="currency", is_held=True, clause="has {other} as its currency"),
    Relation(kind="country", other="language", attribute="languages", is_held=True, clause="is among the countries of {other}"),
    Relation(kind="currency", other="country", attribute="currency", is_held=False, clause="is the currency of {other}"),
    Relation(kind="language", other="country", attribute="languages", is_held=False, clause="is spoken in {other}"),
    Relation(kind="element", other="element", attribute="next", is_held=False, clause="comes right after {other}"),
    Relation(kind="element", other="element", attribute="previous", is_held=False, clause="comes right before {other}"),
    Relation(kind="package", other="package", attribute="next", is_held=False, clause="stands in the row right below {other}"),
    Relation(kind="section", other="package", attribute="section", is_held=False, clause="has the table with {other}"),
    Relation(kind="chapter", other="section", attribute="chapter", is_held=False, clause="is the chapter of {other}"),
)


def others(graph: Graph, entity: Entity, relation: Relation) -> Iterator[Entity]:
    """Entities that may identify an entity, by a relation of its kind."""
    if relation.is_held:
        keys = [fact.target for fact in entity.values(relation.attribute) if fact.target is not None]
        yield from (graph.entities[key] for key in keys if graph.entities[key].kind == relation.other)
    else:
        yield from graph.linkers.get((relation.other, relation.attribute, entity.key), ())


def bits_of(graph: Graph, other: Entity, relation: Relation) -> int:
    """All of the kind that the other is related to, as bits."""
    if relation.is_held:
        return graph.linking(other.key, relation.kind, relation.attribute)
    return graph.linked(other.key, relation.attribute)
