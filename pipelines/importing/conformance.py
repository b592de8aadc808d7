"""The contract of every importer, checked on files of its format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.importing.trajectories import Demonstration, Entry, Importer, Pictures
from sandbox.importing.fields import BadRecord
from warehouse.core.conformance import Checked, checked, require


def check_importer(importer: Importer, files: Sequence[Path]) -> Iterator[Checked]:
    def accounts_for_each_record(importer: Importer) -> None:
        for entry in _entries(importer, files):
            require((entry.made is None) == bool(entry.why_not), f"{entry.where}: expected either what was made of it or why nothing was")
            require(bool(entry.where and entry.digest), "an entry without its place or its digest")

    def reads_the_same_twice(importer: Importer) -> None:
        first, again = ([(entry.where, entry.digest) for entry in _entries(importer, files)] for _ in range(2))
        require(first == again, "it reads other records the second time")

    def steps_can_be_loaded(importer: Importer) -> None:
        entries = list(_entries(importer, files))
        made = [entry for entry in entries if entry.made is not None]
        why_not = next((f"{entry.where}: {entry.why_not}" for entry in entries if entry.why_not), "there is no record")
        require(bool(made), f"it made nothing of {', '.join(map(str, files))}: {why_not}")
        for entry in made:
            if isinstance(entry.made, Demonstration):
                try:
                    require(bool(entry.made.load()), f"{entry.where}: it has no step")
                except BadRecord as error:
                    require(False, f"{entry.where}: {error}")

    promises = {
        "it accounts for each record": accounts_for_each_record,
        "it reads the same twice": reads_the_same_twice,
        "the steps of what it reads can be loaded": steps_can_be_loaded,
    }
    yield from checked(promises, importer)


def _entries(importer: Importer, files: Sequence[Path]) -> Iterator[Entry]:
    for path in files:
        yield from importer.entries(path, Pictures([path.parent]), lambda _: None)
