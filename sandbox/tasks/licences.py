"""The licence of each source's tasks, as rows of the table `sources`: task sources state it for themselves, or for each of their
groups, as sets of imported tasks do by what was given when they were imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandbox.tasks.registry import SOURCES
from warehouse.core.home import Home
from warehouse.datasets.provenance import UNKNOWN, Source


def task_sources(names: Iterable[str], home: Home | None = None) -> Iterator[Source]:
    """Of task sources by name; of those that are not installed here nothing is known, and nothing is yielded."""
    for name in sorted(set(names)):
        if name not in SOURCES:
            continue
        source = SOURCES[name]
        if source.provenance is not None:
            yield from source.provenance(home)
        else:
            stated_by = "the task source" if source.licence != UNKNOWN else ""
            yield Source(source=name, kind="tasks", licence=source.licence, origin=source.origin, stated_by=stated_by)
