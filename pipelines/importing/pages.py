"""Web pages and Markdown as blocks of text, without what is on every page of a site. Pages are data: no script is run, no link followed.

lxml reads HTML, however broken; markdown-it reads Markdown (CommonMark with tables). What becomes of the blocks is manuals.py's.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lxml import etree
from markdown_it import MarkdownIt

from sandbox.html_tree import html_tree
from sandbox.importing.fields import BadRecord

MAX_BYTES = 16 * 2**20
"""Of one page: a manual of a thousand pages of print is smaller."""
MAX_BLOCKS = 100_000
SUFFIXES = (".html", ".htm", ".xhtml", ".md", ".markdown")
MIN_PAGES, MAX_PAGE_SHARE = 5, 0.3
"""A block on more than this share of the pages of an import, of so many pages at least, is not a page's own."""
MAX_LINK_SHARE, MIN_LINKS = 0.6, 3
"""A block with so many links that make more than this share of its text is navigation."""

_HIDDEN = ("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "head")
_CONTROLS = ("form", "button", "select", "textarea")
_AROUND = ("nav", "header", "footer", "aside")
_SKIPPED = frozenset((*_HIDDEN, *_CONTROLS, *_AROUND))
_SKIPPED_ROLES = frozenset(("navigation", "banner", "contentinfo", "search", "complementary", "menu"))
_SKIPPED_NAMES = frozenset(
    (
        *("header", "nav", "navbar", "navigation", "navheader", "navfooter", "nodeheader", "sidebar", "sphinxsidebar"),
        *("breadcrumb", "breadcrumbs", "menu", "menubar", "toc", "footer", "footline", "related", "headerlink"),
        *("copyright", "cookie", "banner", "skip", "pagination", "searchbox", "ad", "ads"),
    )
)
"""Classes and ids of what stands around a text. Whole names: a section about a boot menu may be called `boot-menu`."""
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARTS = ("div", "section", "article", "main", "body", "blockquote", "figcaption", "pre", "p", "hr", "br")
_LISTS = ("ul", "ol", "dl", "li", "dt", "dd", "table", "tr", "caption")
_BLOCKS = frozenset((*_HEADINGS, *_PARTS, *_LISTS))
_CELLS = ("td", "th")
_SCRIPT = re.compile(r"<(?:script|style)\b", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`level` of a heading, 1 to 6; 0 of other text. `is_code`: lines are kept as they are. `is_around`: it stands around the page's own
    text, e.g. a menu."""

    text: str
    level: int = 0
    is_code: bool = False
    is_around: bool = False
    link_share: float = 0.0
    num_links: int = 0

    @property
    def is_navigation(self) -> bool:
        return self.is_around or (self.num_links >= MIN_LINKS and self.link_share > MAX_LINK_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One file. `where` is its path below what was named."""

    where: str
    title: str
    blocks: tuple[Block, ...]
    num_boilerplate: int = 0
    """Blocks that were left out: navigation, and what stands on many pages."""


def read_page(path: Path, where: str) -> Page:
    """Raises BadRecord for a file that is too large, is not text or holds none, and OSError."""
    text = _decoded(_bytes(path), path)
    name = path.name.removesuffix(".gz")
    read = _markdown if Path(name).suffix in (".md", ".markdown") else _html
    title, blocks = read(text)
    if len(blocks) > MAX_BLOCKS:
        raise BadRecord(f"it has {len(blocks)} blocks of text, at most {MAX_BLOCKS} are read: split it")
    own = tuple(block for block in blocks if not block.is_navigation)
    if not own:
        raise BadRecord("it holds no text of its own")
    title = title or next((block.text for block in own if block.level), Path(name).stem.replace("-", " ").replace("_", " "))
    return Page(where=where, title=" ".join(title.split()), blocks=own, num_boilerplate=len(blocks) - len(own))


def without_repeated(pages: Sequence[Page]) -> list[Page]:
    """The pages without the blocks that stand on many of them. Headings count as well: every page of a site may have the site's."""
    if len(pages) < MIN_PAGES:
        return list(pages)
    on_pages = Counter(text for page in pages for text in {block.text for block in page.blocks})
    most = max(2, MAX_PAGE_SHARE * len(pages))
    found = []
    for page in pages:
        own = tuple(block for block in page.blocks if on_pages[block.text] <= most)
        found.append(replace(page, blocks=own, num_boilerplate=page.num_boilerplate + len(page.blocks) - len(own)))
    return found


def _bytes(path: Path) -> bytes:
    """Of a file that may be gzipped, as packages have theirs."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            data = file.read(MAX_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadRecord(f"it cannot be unpacked: {error}") from None
    if len(data) > MAX_BYTES:
        raise BadRecord(f"it is larger than {MAX_BYTES // 2**20} MiB, more than is read of one page: split it")
    return data


def _decoded(data: bytes, path: Path) -> str:
    """UTF-8, UTF-16 with its mark, or what a page says of itself; else Windows-1252, as browsers do."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        raise BadRecord("it is not text: it holds NUL bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        said = re.search(rb"charset=[\"']?([\w-]+)", data[:4096])
        try:
            return data.decode(said[1].decode() if said else "cp1252", "replace")
        except (LookupError, UnicodeError):
            return data.decode("cp1252", "replace")


def _html(text: str) -> tuple[str, list[Block]]:
    root = html_tree(text)
    if root is None:
        raise BadRecord("it cannot be read as HTML: it is empty")
    title = root.findtext(".//title") or ""
    for path in ('.//*[@role="main"]', ".//main", './/div[@itemprop="articleBody"]'):
        if (found := root.find(path)) is not None:
            root = found
            break
    return title, _Collected(root).blocks


class _Collected:
    """Blocks of an element, in order. Nothing here recurses: pages may be nested as deeply as their writer liked."""

    def __init__(self, root: Any) -> None:
        self.blocks: list[Block] = []
        self._parts: list[str] = []
        self._linked = self._num_links = self._in_link = self._in_code = self._level = 0
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            if event == "start":
                if element is not root and _is_skipped(element):
                    walk.skip_subtree()
                    if element.tag not in _HIDDEN and (text := "".join(element.itertext()).strip()):
                        self.blocks.append(Block(text=text, is_around=True))
                else:
                    self._start(element.tag)
                    self._text(element.text)
            else:
                if element is root or not _is_skipped(element):
                    self._end(element.tag)
                if element is not root:
                    self._text(element.tail)
        self._flush()

    def _start(self, tag: Any) -> None:
        if tag in _BLOCKS:
            self._flush()
        self._level = _HEADINGS.get(tag, self._level)
        self._in_code += tag == "pre"
        self._in_link += tag == "a"
        self._num_links += tag == "a"

    def _end(self, tag: Any) -> None:
        if tag in _CELLS:
            self._parts.append(" ")
        if tag in _BLOCKS:
            self._flush()
        self._level = 0 if tag in _HEADINGS else self._level
        self._in_code -= tag == "pre"
        self._in_link -= tag == "a"

    def _text(self, text: str | None) -> None:
        if text:
            self._parts.append(text)
            self._linked += len("".join(text.split())) if self._in_link else 0

    def _flush(self) -> None:
        text = _laid_out("".join(self._parts), is_code=bool(self._in_code))
        if text:
            share = self._linked / max(1, len("".join(text.split())))
            self.blocks.append(
                Block(text=text, level=self._level, is_code=bool(self._in_code), link_share=share, num_links=self._num_links)
            )
        self._parts, self._linked, self._num_links = [], 0, 0


def _is_skipped(element: Any) -> bool:
    if not isinstance(element.tag, str) or element.tag in _SKIPPED or element.get("hidden") is not None:
        return True
    names = f"{element.get('class', '')} {element.get('id', '')}".lower().split()
    return element.get("role") in _SKIPPED_ROLES or not _SKIPPED_NAMES.isdisjoint(names)


def _laid_out(text: str, *, is_code: bool) -> str:
    text = text.replace("\xa0", " ").replace("¶", "")
    if not is_code:
        return " ".join(text.split())
    return "\n".join(line.rstrip() for line in text.expandtabs(4).split("\n")).strip("\n")


def _markdown(text: str) -> tuple[str, list[Block]]:
    tokens = MarkdownIt("commonmark", {"maxNesting": 40}).enable("table").parse(_FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1))
    blocks: list[Block] = []
    level = 0
    row: list[str] | None = None
    for token in tokens:
        if token.type == "heading_open":
            level = _HEADINGS[token.tag]
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            blocks += [Block(text=" ".join(row))] if row else []
            row = None
        elif token.type in ("fence", "code_block"):
            blocks += [Block(text=code, is_code=True)] if (code := _laid_out(token.content, is_code=True)) else []
        elif token.type == "inline":
            block = _inline(token.children or [], level)
            level = 0
            if row is not None:
                row.append(block.text)
            elif block.text:
                blocks.append(block)
    return "", blocks


def _inline(children: Iterable[Any], level: int) -> Block:
    """Words of a line of Markdown; pictures and HTML in it are left out."""
    parts, linked, num_links, depth, is_hidden = list[str](), 0, 0, 0, False
    for child in children:
        if child.type == "html_inline":
            is_hidden = _SCRIPT.match(child.content) is not None or (is_hidden and not child.content.startswith("</"))
        if is_hidden:
            continue
        depth += {"link_open": 1, "link_close": -1}.get(child.type, 0)
        num_links += child.type == "link_open"
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
            linked += len("".join(child.content.split())) if depth else 0
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    text = _laid_out("".join(parts), is_code=False)
    return Block(text=text, level=level, link_share=linked / max(1, len("".join(text.split()))), num_links=num_links)


def page_files(paths: Sequence[Path], is_page: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """(file, its path below what was named), in order: named files as they are, of folders every page. Links that lead out of a folder are
    not followed."""
    for path in paths:
        if not path.is_dir():
            yield path, path.name
            continue
        root = path.resolve()
        for found in sorted(path.rglob("*")):
            if is_page(found) and found.is_file() and found.resolve().is_relative_to(root):
                yield found, f"{path.name}/{found.relative_to(path)}"


def is_page(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix.lower() in SUFFIXES
