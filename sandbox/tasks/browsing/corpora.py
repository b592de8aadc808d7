"""The corpora by name: each is built once from its packages, into the cache, under a name that is the hash of all that it is made from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from sandbox.cache import cache_folder
from sandbox.tasks.browsing.graph import Graph
from sandbox.tasks.browsing.pages import Page
from sandbox.tasks.browsing.site import WEB, Corpus, build
from warehouse.core.errors import CorpusMissing, missing_extra
from warehouse.core.identity import content_id, files_id

_MADE_BY = (
    "pages.py",
    "almanac.py",
    "handbook.py",
    "places.py",
    "tongues.py",
    "matter.py",
    "search.py",
    "site.py",
    "answers.py",
    "graph.py",
)


Parts = tuple[str, str, Callable[[], dict[str, str]], Callable[[], Graph], Callable[[], list[Page]]]
"""Of a corpus: the names of its site and its host, the versions of what it is made from, its graph, its pages."""


@cache
def corpus(name: str) -> Corpus:
    """`almanac` or `handbook`, built where it is not in the cache. Raises CorpusMissing where its packages cannot be had."""
    site, host, versions, graph, pages = _almanac() if name == "almanac" else _handbook()
    code = files_id("code", [*(Path(__file__).with_name(module) for module in _MADE_BY), *WEB.iterdir()])
    folder = cache_folder() / "browsing" / content_id(name, [code, versions()])
    if not folder.exists():
        build(folder, site, pages())
    return Corpus(name=name, host=host, folder=folder, graph=graph())


# What they read from takes a while to load, and few processes ask for it.


def _almanac() -> Parts:
    try:
        from sandbox.tasks.browsing import almanac
    except ModuleNotFoundError as error:
        raise CorpusMissing(missing_extra(error.name, "browsing")) from error
    return almanac.SITE, almanac.HOST, almanac.versions, almanac.graph, almanac.pages


def _handbook() -> Parts:
    from sandbox.tasks.browsing import handbook

    return handbook.SITE, handbook.HOST, handbook.versions, handbook.graph, handbook.pages
