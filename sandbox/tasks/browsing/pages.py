"""Pages as values: what one is made of, and its HTML. Which pages there are is almanac.py and handbook.py; where they are kept, site.py."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from posixpath import relpath

HOME = "index.html"
SEARCH = "search.html"
ROWS = 14
"""Of a list, to a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a site."""

    path: str
    title: str
    kind: str = ""
    """What it is about, in a word or two, under its title and in results of a search."""
    body: str
    """HTML between the header and the end."""
    links: tuple[tuple[str, str], ...]
    """Text and path of every link of the body, in order."""
    is_found: bool = True
    """The site's search may name it."""


def rendered(page: Page, site: str) -> str:
    """The whole document. No script of its own: nothing in it changes but by going to another page."""
    up = relpath(".", start=page.path.rpartition("/")[0] or ".")
    kind = f'<p class="kind">{escaped(page.kind)}</p>' if page.kind else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(page.title)}</title>'
        f'<link rel="stylesheet" href="{up}/style.css"></head><body>{_header(site, up)}<h1>{escaped(page.title)}</h1>{kind}\n'
        f"{page.body}\n</body></html>\n"
    )


def search_page(site: str) -> str:
    """The page that searches: results come from the address's `q`, by search.js over index.js."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Search</title><link rel="stylesheet" href="style.css">'
        f'</head><body>{_header(site, ".")}<h1>Search</h1><div id="results"></div><script src="index.js"></script>'
        '<script src="search.js"></script></body></html>\n'
    )


def _header(site: str, up: str) -> str:
    return (
        f'<header><a href="{up}/{HOME}">{escaped(site)}</a><form action="{up}/{SEARCH}">'
        '<input name="q" type="text" placeholder="Search for" autocomplete="off"><button>Search</button></form></header>'
    )


def escaped(text: str) -> str:
    return html.escape(text, quote=True)


class Body:
    """A page's body in the making, and the links in it."""

    def __init__(self, path: str) -> None:
        self._folder = path.rpartition("/")[0] or "."
        self._parts: list[str] = []
        self.links: list[tuple[str, str]] = []

    def link(self, text: str, path: str) -> str:
        self.links.append((text, path))
        return f'<a href="{relpath(path, start=self._folder)}">{escaped(text)}</a>'

    def add(self, part: str) -> None:
        self._parts.append(part)

    def row(self, cells: Iterable[str], tag: str = "td") -> None:
        self.add("<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>")

    def row_of_links(self, links: Iterable[tuple[str, str]]) -> None:
        self.add('<p class="links">' + "".join(self.link(text, path) for text, path in links) + "</p>")

    @property
    def html(self) -> str:
        return "\n".join(self._parts)


def list_pages(
    stem: str, title: str, rows: Sequence[tuple[tuple[str, str], Sequence[str]]], heads: Sequence[str] = (), *, up: tuple[str, str]
) -> list[Page]:
    """A list over as many pages as it takes: each row a link and what stands beside it. `up` is the link to where the list is named."""
    chunks = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)] or [[]]
    pages = []
    for number, chunk in enumerate(chunks, start=1):
        path = list_path(stem, number)
        body = Body(path)
        body.row_of_links([up])
        body.add("<table>")
        if heads:
            body.row(map(escaped, heads), tag="th")
        for (text, target), cells in chunk:
            body.row([body.link(text, target), *map(escaped, cells)])
        body.add("</table>")
        if len(chunks) > 1:
            body.row_of_links((f"Page {other}", list_path(stem, other)) for other in range(1, len(chunks) + 1) if other != number)
        name = title if len(chunks) == 1 else f"{title}, page {number}"
        pages.append(Page(path=path, title=name, body=body.html, links=tuple(body.links), is_found=False))
    return pages


def list_path(stem: str, number: int = 1) -> str:
    return f"list/{stem}-{number}.html"
