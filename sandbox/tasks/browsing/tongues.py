"""Languages and currencies, by ISO 639-3 and ISO 4217 (pycountry), as far as a country of places.py speaks or uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pycountry

from sandbox.tasks.browsing.graph import Attribute, Entity, Fact
from sandbox.tasks.browsing.places import language_name

FAMOUS_FROM = 8
"""A language or a currency of so many countries counts as known to everybody."""

ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = {
    "language": (
        Attribute(name="code", label="ISO 639-3 code", kind="text", is_identifier=True),
        Attribute(name="count", label="Number of countries", kind="number", is_asked=False),
        Attribute(name="countries", label="Spoken in", kind="links", is_asked=False),
    ),
    "currency": (
        Attribute(name="code", label="ISO 4217 code", kind="text", is_identifier=True),
        Attribute(name="numeric", label="Numeric code", kind="text", is_identifier=True),
        Attribute(name="count", label="Number of countries", kind="number", is_asked=False),
        Attribute(name="countries", label="Used in", kind="links", is_asked=False),
    ),
}


def tongues(countries: Iterable[Entity]) -> list[Entity]:
    """Languages and currencies that the countries link to."""
    users: dict[str, list[Entity]] = {}
    for country in countries:
        for fact in country.facts:
            if fact.target is not None and fact.attribute in ("languages", "currency"):
                users.setdefault(fact.target, []).append(country)
    return [_entity(key, users[key]) for key in sorted(users)]


def _entity(key: str, users: list[Entity]) -> Entity:
    kind, _, code = key.partition("/")
    facts, name = list(_codes(kind, code)), ""
    if kind == "language":
        name = language_name(pycountry.languages.get(alpha_3=code))
    else:
        name = str(_currency(code).name)
    facts.append(Fact(attribute="count", text=str(len(users)), number=float(len(users))))
    facts += [Fact(attribute="countries", text=user.name, target=user.key) for user in sorted(users, key=lambda user: user.name)]
    return Entity(key=key, kind=kind, name=name, path=f"{key}.html", facts=tuple(facts), is_famous=len(users) >= FAMOUS_FROM)


def _codes(kind: str, code: str) -> Iterator[Fact]:
    if kind == "language":
        yield Fact(attribute="code", text=code)
        return
    yield Fact(attribute="code", text=code.upper())
    yield Fact(attribute="numeric", text=str(_currency(code).numeric))


def _currency(code: str) -> Any:
    return pycountry.currencies.get(alpha_3=code.upper())
