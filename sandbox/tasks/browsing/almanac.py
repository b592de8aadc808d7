"""The almanac: one site over countries, cities, languages, currencies and chemical elements, a page each, and the lists that lead there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

from sandbox.tasks.browsing import matter, places, tongues
from sandbox.tasks.browsing.answers import plain
from sandbox.tasks.browsing.graph import Entity, Graph, graph_of
from sandbox.tasks.browsing.pages import HOME, Body, Page, escaped, list_pages, list_path
from sandbox.tasks.browsing.site import ALMANAC_PACKAGES

SITE = "Almanac"
HOST = "almanac.test"
KINDS = {"country": "Countries", "city": "Cities", "language": "Languages", "currency": "Currencies", "element": "Elements"}
MAX_SHOWN = 8
"""Of the values of an attribute, on the entity's own page; more of them are a list of their own."""
CONTENTS = ("Contents", HOME)


def versions() -> dict[str, str]:
    """Of the packages that the almanac is made from."""
    return {name: version(name) for name in ALMANAC_PACKAGES}


@cache
def graph() -> Graph:
    found = places.places()
    spoken = tongues.tongues(entity for entity in found if entity.kind == "country")
    return graph_of([*found, *spoken, *matter.matter()], {**places.ATTRIBUTES, **tongues.ATTRIBUTES, **matter.ATTRIBUTES}, versions())


def pages() -> list[Page]:
    """Every page, each linked to from another."""
    known = graph()
    return [_home(), *_indexes(known), *_lists(known), *_values(known), *(_entity(known, entity) for entity in known.entities.values())]


def _home() -> Page:
    body = Body(HOME)
    for kind, name in KINDS.items():
        body.row_of_links([(name, f"list/{kind}.html")])
    return Page(path=HOME, title="Contents", body=body.html, links=tuple(body.links), is_found=False)


def _indexes(known: Graph) -> Iterator[Page]:
    """One a kind: where its lists are."""
    for kind, name in KINDS.items():
        body = Body(f"list/{kind}.html")
        body.row_of_links([CONTENTS])
        if kind == "country":
            for continent in known.kinds["continent"]:
                body.row_of_links([(continent.name, continent.path)])
        if kind == "element":
            body.row_of_links([("All elements by number", list_path("elements"))])
        body.row_of_links((letter, list_path(f"{kind}-{letter.lower()}")) for letter in sorted(_letters(known, kind)))
        yield Page(path=f"list/{kind}.html", title=name, body=body.html, links=tuple(body.links), is_found=False)


def _letters(known: Graph, kind: str) -> dict[str, list[Entity]]:
    found: dict[str, list[Entity]] = {}
    for entity in sorted(known.kinds[kind], key=lambda entity: (plain(entity.name), entity.key)):
        first = plain(entity.name).strip("'")[:1].upper()
        found.setdefault(first if first.isascii() and first.isalpha() else "Z", []).append(entity)
    return found


def _lists(known: Graph) -> Iterator[Page]:
    for kind, name in KINDS.items():
        for letter, members in _letters(known, kind).items():
            rows = [((entity.name, entity.path), ()) for entity in members]
            yield from list_pages(f"{kind}-{letter.lower()}", f"{name}: {letter}", rows, up=(name, f"list/{kind}.html"))
    columns = ("mass", "density", "isotopes")
    rows_of = [((each.name, each.path), _cells(each, columns)) for each in known.kinds["element"]]
    yield from list_pages("elements", "Elements", rows_of, ("Element", "Mass", "Density", "Isotopes"), up=("Elements", "list/element.html"))
    for continent in known.kinds["continent"]:
        yield from _countries_of(known, continent)
    for country in known.kinds["country"]:
        members = [city for city in known.kinds["city"] if city.facts[0].target == country.key]
        rows_of = [((city.name, city.path), _cells(city, ("population", "latitude"))) for city in sorted(members, key=_by_name)]
        if rows_of:
            heads = ("City", "Population", "Latitude")
            yield from list_pages(_cities_stem(country), f"Cities of {country.name}", rows_of, heads, up=(country.name, country.path))


def _countries_of(known: Graph, continent: Entity) -> Iterator[Page]:
    members = [country for country in known.kinds["country"] if country.facts[0].target == continent.key]
    rows = [((country.name, country.path), _cells(country, ("population", "area"))) for country in sorted(members, key=_by_name)]
    heads = ("Country", "Population", "Area")
    yield from list_pages(_countries_stem(continent), f"Countries of {continent.name}", rows, heads, up=(continent.name, continent.path))


def _values(known: Graph) -> Iterator[Page]:
    """Lists of what an attribute links to, where that is much."""
    for entity in known.entities.values():
        for attribute in known.attributes[entity.kind]:
            facts = entity.values(attribute.name)
            if len(facts) > MAX_SHOWN:
                rows = [((fact.text, f"{fact.target}.html"), ()) for fact in facts]
                title = f"{entity.name}: {attribute.label}"
                yield from list_pages(_values_stem(entity, attribute.name), title, rows, up=(entity.name, entity.path))


def _values_stem(entity: Entity, attribute: str) -> str:
    return f"{entity.key.replace('/', '-')}-{attribute}"


def _by_name(entity: Entity) -> tuple[str, str]:
    return plain(entity.name), entity.key


def _cells(entity: Entity, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fact.text if (fact := entity.value(column)) else "" for column in columns)


def _countries_stem(continent: Entity) -> str:
    return continent.key.replace("/", "-")


def _cities_stem(country: Entity) -> str:
    return f"cities-{country.key.partition('/')[2]}"


def _entity(known: Graph, entity: Entity) -> Page:
    """Its facts, a row an attribute."""
    body = Body(entity.path)
    body.add("<table>")
    for attribute in known.attributes[entity.kind]:
        facts = entity.values(attribute.name)
        if len(facts) > MAX_SHOWN:
            body.row([escaped(attribute.label), body.link(f"All {len(facts)}", list_path(_values_stem(entity, attribute.name)))])
        elif facts:
            shown = "".join(escaped(fact.text) if fact.target is None else body.link(fact.text, fact.target + ".html") for fact in facts)
            body.row([escaped(attribute.label), shown])
    body.add("</table>")
    if entity.kind == "continent":
        body.row_of_links([(f"Countries of {entity.name}", list_path(_countries_stem(entity)))])
    if entity.kind == "country" and (cities := entity.value("cities")) and cities.number:
        body.row_of_links([(f"Cities of {entity.name}", list_path(_cities_stem(entity)))])
    return Page(path=entity.path, title=entity.name, kind=entity.kind.capitalize(), body=body.html, links=tuple(body.links))
