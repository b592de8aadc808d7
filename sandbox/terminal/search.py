"""The tools `Search` and `LinkReader` over a library: documents of our own in memory or in a folder, or an HTTP endpoint. No address that
an agent names is ever opened from here: a link is looked up in the library, or handed to the endpoint as a parameter.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol

from lxml import etree
from pydantic import BaseModel, ConfigDict, Field

from sandbox.html_tree import html_tree
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import ConfigError, SandboxError

NUM_HITS = 5
SNIPPET_CHARS = 240
MAX_DOCUMENT_CHARS = 8000
MAX_RESPONSE_BYTES = 4 << 20
K1, B = 1.2, 0.75
"""BM25's constants, as Robertson and Zaragoza (2009) recommend."""

_WORD = re.compile(r"\w+")
_SKIPPED = frozenset({"script", "style", "template", "noscript", "svg", "title"})
_BLOCKS = frozenset({"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table", "ul", "ol"})


class SearchCall(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    query: Annotated[str, Field(min_length=1, max_length=1000)]


class LinkCall(BaseModel):
    """`description` says what is looked for: of a long document the passages that fit it are given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    description: Annotated[str, Field(max_length=2000)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result of a search."""

    url: str
    title: str
    snippet: str


class Library(Protocol):
    """Where searches look."""

    async def search(self, query: str) -> Sequence[Hit]:
        """Best first. Raises ToolError, SandboxError."""
        ...

    async def read(self, url: str) -> Document:
        """Raises ToolError where there is no such document, SandboxError."""
        ...


class LocalLibrary:
    """Documents by address, ranked by BM25 (Robertson et al. 1994) over title and text."""

    def __init__(self, documents: Mapping[str, Document]) -> None:
        self._documents = dict(documents)

    @classmethod
    def from_folder(cls, folder: Path) -> LocalLibrary:
        """Every .txt, .md, .html and .htm file below a folder, as library:///its/path. Raises ConfigError where it is not a folder."""
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder: name one with .txt, .md or .html documents for the search tool.")
        paths = sorted(path for path in folder.rglob("*") if path.suffix in {".txt", ".md", ".html", ".htm"} and path.is_file())
        return cls({f"library:///{path.relative_to(folder).as_posix()}": _document(path) for path in paths})

    @cached_property
    def _counts(self) -> dict[str, Counter[str]]:
        return {url: Counter(words(f"{document.title} {document.text}")) for url, document in self._documents.items()}

    async def search(self, query: str) -> Sequence[Hit]:
        scores = bm25(self._counts, words(query))
        best = sorted((url for url in scores if scores[url] > 0), key=lambda url: (-scores[url], url))[:NUM_HITS]
        found = [(url, self._documents[url]) for url in best]
        return [Hit(url=url, title=document.title, snippet=best_passage(document.text, query, SNIPPET_CHARS)) for url, document in found]

    async def read(self, url: str) -> Document:
        if url not in self._documents:
            raise ToolError(f"there is no document at {url}: use an address that Search gave")
        return self._documents[url]


class HttpLibrary:
    """An endpoint. `{query}` and `{url}` in its templates are filled in, quoted. A search answers with a JSON list of {url, title,
    snippet}, a read with text or HTML. Redirections are not followed, and no proxy of the environment is used."""

    def __init__(self, search_template: str, read_template: str, *, timeout_s: float = 20.0) -> None:
        for template, field in ((search_template, "{query}"), (read_template, "{url}")):
            if field not in template or urllib.parse.urlsplit(template).scheme not in {"http", "https"}:
                raise ConfigError(f"{template!r} must be an http or https address that holds {field}.")
        self._search, self._read, self._timeout_s = search_template, read_template, timeout_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirection())

    async def search(self, query: str) -> Sequence[Hit]:
        _, body = await self._fetch(self._search.replace("{query}", urllib.parse.quote(query, safe="")))
        try:
            found = json.loads(body)[:NUM_HITS]
            return [Hit(url=str(hit["url"]), title=str(hit["title"]), snippet=str(hit.get("snippet", ""))) for hit in found]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SandboxError(f"The search endpoint answered {body[:200]!r}; expected a JSON list of {{url, title, snippet}}.") from error

    async def read(self, url: str) -> Document:
        kind, body = await self._fetch(self._read.replace("{url}", urllib.parse.quote(url, safe="")))
        text = body.decode(errors="replace")
        return await asyncio.to_thread(readable, text, url) if "html" in kind else Document(title=url, text=text)

    async def _fetch(self, address: str) -> tuple[str, bytes]:
        """Content type and body."""

        def fetch() -> tuple[str, bytes]:
            with self._opener.open(address, timeout=self._timeout_s) as response:
                return str(response.headers.get("Content-Type", "")), response.read(MAX_RESPONSE_BYTES)

        try:
            return await asyncio.to_thread(fetch)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in {400, 404, 410, 422}:
                raise ToolError(f"nothing found (the endpoint answered {error.code})") from error
            raise SandboxError(f"The search endpoint answered {error.code} {error.reason} to {address}.") from error
        except OSError as error:
            raise SandboxError(f"The search endpoint {address} cannot be reached: {error}. Is it running?") from error


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


async def execute_search(library: Library, call: SearchCall) -> str:
    hits = await library.search(call.query)
    if not hits:
        return f"No document fits {call.query!r}."
    return "\n\n".join(f"{rank}. {hit.title}\n   {hit.url}\n   {' '.join(hit.snippet.split())}" for rank, hit in enumerate(hits, start=1))


async def execute_link(library: Library, call: LinkCall) -> str:
    document = await library.read(call.url)
    text = document.text
    if len(text) > MAX_DOCUMENT_CHARS:
        kept = best_passage(text, call.description, MAX_DOCUMENT_CHARS)
        text = f"{kept}\n[… {len(text) - len(kept)} of {len(text)} characters left out; the description chose these …]"
    return f"{document.title}\n\n{text}"


def words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def bm25(counts: Mapping[str, Counter[str]], query: Sequence[str]) -> dict[str, float]:
    """Scores of documents, given as word counts; every idf is positive (the variant of Lucene)."""
    lengths = {name: count.total() for name, count in counts.items()}
    mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
    scores = dict.fromkeys(counts, 0.0)
    for word in set(query):
        num_with = sum(word in count for count in counts.values())
        idf = math.log(1 + (len(counts) - num_with + 0.5) / (num_with + 0.5))
        for name, count in counts.items():
            if frequency := count[word]:
                scores[name] += idf * frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * lengths[name] / mean))
    return scores


def best_passage(text: str, query: str, num_chars: int) -> str:
    """The stretch of whole lines, at most so many characters, that fits a query best; without one, the beginning."""
    lines = [line for line in text.split("\n") if line.strip()]
    counts = {str(number): Counter(words(line)) for number, line in enumerate(lines)}
    scores = bm25(counts, words(query))
    best = max(range(len(lines)), key=lambda number: (scores[str(number)], -number), default=0)
    start, passage = best, ""
    for line in lines[start:]:
        if passage and len(passage) + len(line) + 1 > num_chars:
            break
        passage += ("\n" if passage else "") + line
    while start > 0 and len(passage) + len(lines[start - 1]) + 1 <= num_chars:
        start -= 1
        passage = f"{lines[start]}\n{passage}"
    return passage[:num_chars]


def _document(path: Path) -> Document:
    text = path.read_text(encoding="utf-8", errors="replace")
    return readable(text, path.stem) if path.suffix.startswith(".htm") else Document(title=path.stem, text=text)


def readable(html: str, title: str) -> Document:
    """The text of an HTML page as a person reads it, with its title."""
    root = html_tree(html)
    if root is None:
        return Document(title=title, text="")
    parts: list[str] = []
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        if element.tag in _BLOCKS:
            parts.append("\n")
        elif element.tag == "td":
            parts.append(" ")
        if event == "end":
            parts.append(element.tail or "")
        elif element.tag in _SKIPPED:
            walk.skip_subtree()
        else:
            parts.append(element.text or "")
    text = re.sub(r"[ \t]+", " ", "".join(parts))
    text = re.sub(r" ?\n\s*", "\n", text).strip()
    return Document(title=" ".join((root.findtext(".//title") or "").split()) or title, text=text)
