"""The handbook: the Debian Reference (Debian package debian-reference-en) as a site, a page a section with its real text, and the packages
of its tables as entities.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree  # nosec B405

from sandbox.tasks.browsing import debian
from sandbox.tasks.browsing.graph import Attribute, Entity, Fact, Graph, graph_of
from sandbox.tasks.browsing.pages import HOME, Body, Page, escaped
from sandbox.tasks.browsing.site import HANDBOOK_PACKAGE as PACKAGE
from warehouse.core.errors import CorpusMissing

SITE = "Handbook"
HOST = "handbook.test"
DOCS = "usr/share/doc/debian-reference-en/docs"
MAX_DESCRIPTION_CHARS = 60
"""A longer description is more than a policy that reads elements sees of it."""

ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = {
    "chapter": (Attribute(name="sections", label="Sections", kind="number", is_asked=False),),
    "section": (
        Attribute(name="chapter", label="Chapter", kind="link", is_asked=False),
        Attribute(name="number", label="Number", kind="text", is_identifier=True, is_asked=False),
        Attribute(name="packages", label="Packages", kind="number", is_asked=False),
    ),
    "package": (
        Attribute(name="size", label="size", kind="number"),
        Attribute(name="installed", label="popcon I", kind="number", is_asked=False),
        Attribute(name="used", label="popcon V", kind="number", is_asked=False),
        Attribute(name="description", label="description", kind="text", is_asked=False),
        Attribute(name="section", label="section", kind="links", is_asked=False),
        Attribute(name="next", label="next row", kind="link", is_asked=False),
    ),
}
_XHTML = "{http://www.w3.org/1999/xhtml}"
_KEPT = frozenset({"p", "ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "em", "strong"})
_DROPPED = frozenset({"img", "colgroup", "hr"})
_NUMBERED = re.compile(r"(?:Chapter )?(\d+(?:\.\d+)*)\.\s*(.*)", re.DOTALL)
_POPCON = re.compile(r"V:(\d+), I:(\d+)")


@dataclass(slots=True, kw_only=True)
class _Section:
    """A chapter or a section: what will be a page."""

    number: str
    title: str
    node: ElementTree.Element
    inner: list[_Section] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"section/{self.number}.html"

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}"


@cache
def versions() -> dict[str, str]:
    """Raises CorpusMissing."""
    return {PACKAGE: debian.package_version(debian.package_file(PACKAGE))}


@cache
def _chapters() -> tuple[_Section, ...]:
    """The book, read from the package. Raises CorpusMissing."""
    with tempfile.TemporaryDirectory() as folder:
        debian.unpack(debian.package_file(PACKAGE), Path(folder))
        files = sorted((Path(folder) / DOCS).glob("ch*.en.html"))
        if not files:
            raise CorpusMissing(f"The Debian package {PACKAGE} {versions()[PACKAGE]} has no {DOCS}/ch*.en.html; is it another book?")
        roots = [ElementTree.parse(file).getroot() for file in files]  # nosec B314 # of a package that is pinned
    chapters = (root.find(f".//{_XHTML}div[@class='chapter']") for root in roots)
    return tuple(_section(node) for node in chapters if node is not None)


def _section(node: ElementTree.Element) -> _Section:
    head = next(each for each in node.iter() if each.get("class") == "title")
    match = _NUMBERED.fullmatch(_text(head))
    if match is None:
        raise CorpusMissing(f"The Debian package {PACKAGE} {versions()[PACKAGE]} has a section without a number: {_text(head)!r}.")
    inner = [_section(child) for child in node if child.get("class") == "section"]
    return _Section(number=match[1], title=match[2], node=node, inner=inner)


def _all(sections: tuple[_Section, ...] | list[_Section]) -> Iterator[_Section]:
    for section in sections:
        yield section
        yield from _all(section.inner)


def _text(node: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()).split())


def _own(node: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """What stands in a section itself: neither in sections inside it, nor its title or contents."""
    for child in node:
        if child.get("class") not in ("section", "titlepage", "toc"):
            yield child


# ---- as a graph ----


@cache
def graph() -> Graph:
    """Raises CorpusMissing."""
    entities: list[Entity] = []
    rows: dict[str, list[Entity]] = {}
    for chapter in _chapters():
        facts = (Fact(attribute="sections", text=str(len(chapter.inner)), number=float(len(chapter.inner))),)
        entities.append(Entity(key=f"chapter/{chapter.number:0>2}", kind="chapter", name=chapter.title, path=chapter.path, facts=facts))
        for section in _all(chapter.inner):
            found = list(_packages(section))
            entities.append(_section_entity(chapter, section, len(found)))
            for package in found:
                rows.setdefault(package.key, []).append(package)
    return graph_of([*entities, *map(_merged, rows.values())], ATTRIBUTES, versions())


def _merged(rows: list[Entity]) -> Entity:
    """A package of several tables is in the sections of all; what follows it is then no longer one thing."""
    if len(rows) == 1:
        return rows[0]
    sections = dict.fromkeys(fact for row in rows for fact in row.values("section"))
    facts = [fact for fact in rows[0].facts if fact.attribute not in ("section", "next")]
    return replace(rows[0], facts=(*facts, *sections))


def _section_entity(chapter: _Section, section: _Section, packages: int) -> Entity:
    facts = (
        Fact(attribute="chapter", text=chapter.title, target=f"chapter/{chapter.number:0>2}"),
        Fact(attribute="number", text=section.number),
        Fact(attribute="packages", text=str(packages), number=float(packages)),
    )
    return Entity(key=f"section/{section.number}", kind="section", name=section.title, path=section.path, facts=facts)


def _packages(section: _Section) -> Iterator[Entity]:
    """The packages of a section's own tables: a row each, recognised by the table's head."""
    for table in (table for child in _own(section.node) for table in child.iter(f"{_XHTML}table")):
        heads = [_text(head) for head in table.iter(f"{_XHTML}th")]
        if heads[:3] != ["package", "popcon", "size"]:
            continue
        rows = [[_text(cell) for cell in row.findall(f"{_XHTML}td")] for row in table.iter(f"{_XHTML}tr")]
        rows = [row for row in rows if len(row) == len(heads)]
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            cells = dict(zip(heads, row, strict=True))
            popcon = _POPCON.fullmatch(cells["popcon"])
            if popcon is None or not cells["size"].isdecimal():
                continue
            name, described = cells["package"], cells.get("description", "")
            facts = [
                Fact(attribute="size", text=cells["size"], number=float(cells["size"])),
                Fact(attribute="used", text=popcon[1], number=float(popcon[1])),
                Fact(attribute="installed", text=popcon[2], number=float(popcon[2])),
                Fact(attribute="section", text=section.title, target=f"section/{section.number}"),
            ]
            facts += [Fact(attribute="description", text=described)] if 0 < len(described) <= MAX_DESCRIPTION_CHARS else []
            facts += [Fact(attribute="next", text=after[0], target=f"package/{after[0]}")] if after is not None else []
            yield Entity(key=f"package/{name}", kind="package", name=name, path=section.path, facts=tuple(facts))


# ---- as pages ----


def pages() -> list[Page]:
    """Contents, chapters and sections. Raises CorpusMissing."""
    places = {anchor: section.path for section in _all(list(_chapters())) for node in _with_titles(section) if (anchor := node.get("id"))}
    home = Body(HOME)
    home.add("<ul>")
    for chapter in _chapters():
        home.add(f"<li>{home.link(chapter.heading, chapter.path)}</li>")
    home.add("</ul>")
    contents = Page(path=HOME, title="Contents", body=home.html, links=tuple(home.links), is_found=False)
    return [contents, *(page for chapter in _chapters() for page in _pages(chapter, None, places))]


def _with_titles(section: _Section) -> Iterator[ElementTree.Element]:
    for child in section.node:
        if child.get("class") != "section":
            yield from child.iter()


def _pages(section: _Section, outer: _Section | None, places: Mapping[str, str]) -> Iterator[Page]:
    body = Body(section.path)
    body.row_of_links([("Contents", HOME) if outer is None else (outer.heading, outer.path)])
    body.add('<div class="handbook">')
    body.add("".join(_html(child, body, places) for child in _own(section.node)))
    body.add("<ul>" + "".join(f"<li>{body.link(inner.heading, inner.path)}</li>" for inner in section.inner) + "</ul></div>")
    kind = "Chapter" if outer is None else "Section"
    yield Page(path=section.path, title=section.heading, kind=kind, body=body.html, links=tuple(body.links))
    for inner in section.inner:
        yield from _pages(inner, section, places)


def _html(node: ElementTree.Element, body: Body, places: Mapping[str, str]) -> str:
    """The markup that matters. Links lead within the book; what leads outside it is text."""
    tag = node.tag.removeprefix(_XHTML)
    if tag in _DROPPED:
        return ""
    if tag == "a" and (target := places.get(node.get("href", "").partition("#")[2])) is not None and _text(node):
        return body.link(_text(node), target)
    inner = escaped(node.text or "") + "".join(_html(child, body, places) + escaped(child.tail or "") for child in node)
    return f"<{tag}>{inner}</{tag}>" if tag in _KEPT else inner
