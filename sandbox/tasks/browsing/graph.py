"""The knowledge graph that questions are made from: entities, their facts, the links between them. Where the data is from is places.py,
tongues.py, matter.py and handbook.py; how it is shown as pages, pages.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from sandbox.tasks.task import Split, split_at
from warehouse.core.identity import stable_fraction

AttributeKind = Literal["number", "text", "link", "links"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What a fact of a kind of entity is about."""

    name: str
    label: str
    """As pages say it."""
    kind: AttributeKind
    is_identifier: bool = False
    """It names its entity (a code, a domain, a symbol): asked for, never given."""
    phrase: str = ""
    """How a question calls it, before a name; empty: its label, and `of`."""
    is_asked: bool = True
    """A question may ask for it: its value is short and one only."""

    @property
    def asked_as(self) -> str:
        """`calling code of`, `element after`."""
        label = self.label if self.label.startswith(("ISO", "popcon")) else self.label[0].lower() + self.label[1:]
        return self.phrase or f"{label} of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of an entity's page: one value, or one of several linked ones."""

    attribute: str
    text: str
    """As the page shows it."""
    number: float | None = None
    target: str | None = None
    """Key of the entity that the value is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """One thing with a page of its own, or with a row of one."""

    key: str
    kind: str
    name: str
    path: str
    """Of its page, below the site's root."""
    facts: tuple[Fact, ...]
    aliases: tuple[str, ...] = ()
    """Other names that are right as an answer."""
    is_famous: bool = False
    """So well known that a few hints name it to readers of an encyclopaedia."""

    def values(self, attribute: str) -> tuple[Fact, ...]:
        return tuple(fact for fact in self.facts if fact.attribute == attribute)

    def value(self, attribute: str) -> Fact | None:
        """The only value of an attribute; None for none or several."""
        found = self.values(attribute)
        return found[0] if len(found) == 1 else None

    @property
    def split(self) -> Split:
        """By its own content, whatever asks for it: what is asked in one split is never asked in another."""
        return split_at(stable_fraction("browsing entity", self.key))


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """All entities of one corpus, in the order of their keys, and what their attributes are."""

    entities: Mapping[str, Entity]
    attributes: Mapping[str, tuple[Attribute, ...]]
    """By kind of entity."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that the data is from, by name."""

    @cached_property
    def kinds(self) -> Mapping[str, tuple[Entity, ...]]:
        kinds: dict[str, list[Entity]] = {kind: [] for kind in self.attributes}
        for entity in self.entities.values():
            kinds[entity.kind].append(entity)
        return {kind: tuple(members) for kind, members in kinds.items()}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where an entity stands among those of its kind: its bit in a set of them."""
        return {entity.key: place for members in self.kinds.values() for place, entity in enumerate(members)}

    @cached_property
    def columns(self) -> Mapping[tuple[str, str], tuple[tuple[int, Fact], ...]]:
        """By kind and attribute: every value, with the place of the entity that has it."""
        columns: dict[tuple[str, str], list[tuple[int, Fact]]] = {}
        for key, entity in self.entities.items():
            for fact in entity.facts:
                columns.setdefault((entity.kind, fact.attribute), []).append((self.places[key], fact))
        return {where: tuple(column) for where, column in columns.items()}

    @cached_property
    def linkers(self) -> Mapping[tuple[str, str, str], tuple[Entity, ...]]:
        """By kind, attribute and key: who of the kind has that entity as a value."""
        found: dict[tuple[str, str, str], list[Entity]] = {}
        for entity in self.entities.values():
            for fact in entity.facts:
                if fact.target is not None:
                    found.setdefault((entity.kind, fact.attribute, fact.target), []).append(entity)
        return {where: tuple(dict.fromkeys(entities)) for where, entities in found.items()}

    def attribute(self, kind: str, name: str) -> Attribute:
        return next(each for each in self.attributes[kind] if each.name == name)

    def bits(self, keys: Iterable[str]) -> int:
        """A set of entities of one kind, a bit each."""
        bits = 0
        for key in keys:
            bits |= 1 << self.places[key]
        return bits

    def linked(self, key: str, attribute: str) -> int:
        """Those that an entity's attribute links to, as bits of their kind."""
        return self.bits(fact.target for fact in self.entities[key].values(attribute) if fact.target is not None)

    def linking(self, key: str, kind: str, attribute: str) -> int:
        """Those of a kind whose attribute links to an entity."""
        return self.bits(each.key for each in self.linkers.get((kind, attribute, key), ()))


def graph_of(entities: Iterable[Entity], attributes: Mapping[str, tuple[Attribute, ...]], versions: Mapping[str, str]) -> Graph:
    """Entities by key, in order. Links to what is not there become plain text."""
    known = {entity.key: entity for entity in sorted(entities, key=lambda entity: entity.key)}
    fixed = {
        key: Entity(
            key=key,
            kind=entity.kind,
            name=entity.name,
            path=entity.path,
            aliases=entity.aliases,
            is_famous=entity.is_famous,
            facts=tuple(
                fact if fact.target is None or fact.target in known else Fact(attribute=fact.attribute, text=fact.text, number=fact.number)
                for fact in entity.facts
            ),
        )
        for key, entity in known.items()
    }
    return Graph(entities=fixed, attributes=attributes, versions=versions)
