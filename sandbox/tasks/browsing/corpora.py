"""The corpora by name: each is built once from its packages, into the cache, under a name that is the hash of all that it is made from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from sandbox.cache import cache_folder
from sandbox.tasks.browsing.graph import Graph
from sandbox.tasks.browsing.pages import Page
from sandbox.tasks.browsing.site import WEB, Corpus, build
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


@cache
def corpus(name: str) -> Corpus:
    """`almanac` or `handbook`, built where it is not in the cache. Raises CorpusMissing where its package cannot be had."""
    from sandbox.tasks.browsing import almanac, handbook  # what they read from takes a while to load, and few processes ask for it

    made_from: dict[str, tuple[str, str, Callable[[], dict[str, str]], Callable[[], Graph], Callable[[], list[Page]]]] = {
        "almanac": (almanac.SITE, almanac.HOST, almanac.versions, almanac.graph, almanac.pages),
        "handbook": (handbook.SITE, handbook.HOST, handbook.versions, handbook.graph, handbook.pages),
    }
    site, host, versions, graph, pages = made_from[name]
    code = files_id("code", [*(Path(__file__).with_name(module) for module in _MADE_BY), *WEB.iterdir()])
    folder = cache_folder() / "browsing" / content_id(name, [code, versions()])
    if not folder.exists():
        build(folder, site, pages())
    return Corpus(name=name, host=host, folder=folder, graph=graph())
