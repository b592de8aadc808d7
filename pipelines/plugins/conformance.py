"""Whether a plug-in meets the contract of its kind: `check`, which `flywheel check` and the test beside a plug-in call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.grammars import conformance as grammars
from agent.grammars.base import Grammar
from agent.grammars.registry import GRAMMARS
from agent.harness.registry import HARNESSES, is_harness
from models.judges import conformance as judges
from models.judges.registry import JUDGES
from pipelines.importing.conformance import check_importer
from pipelines.importing.registry import IMPORTERS
from pipelines.importing.trajectories import Importer
from pipelines.plugins.harness_check import check_harness
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task_source import TaskSource
from warehouse.core.conformance import Checked, checked
from warehouse.core.errors import ConfigError
from warehouse.core.plugins import Plugins, located

REGISTRIES: tuple[Plugins[Any], ...] = (SOURCES, GRAMMARS, IMPORTERS, HARNESSES, JUDGES)
"""Judges last: any function is one."""


def check(reference: str, folder: Path, files: Sequence[Path] = (), *, num_seeds: int = 2) -> Iterator[Checked]:
    """What `file.py:attribute`, `module:attribute` or an address promises, with the path counted from `folder`. A name that is registered
    will do as well. `files` are of an importer's format; of a task source's tasks so many seeds are played.

    Raises ConfigError for a reference that names no plug-in, and for an importer without files.
    """
    found = _found(reference, folder)
    if isinstance(found, TaskSource):
        if found.name not in SOURCES:
            SOURCES.use({found.name: reference}, folder, keep=True)
        if SOURCES[found.name] is not found:
            raise ConfigError(f"{reference} calls itself {found.name!r}, as another task source is called: give it a name of its own")
        yield from check_source(found, num_seeds=num_seeds)
    elif isinstance(found, Importer):
        if not files:
            raise ConfigError(
                f"the importer {found.name!r} is checked on files of its format: give some, e.g. `flywheel check {reference} FILE`"
            )
        yield from check_importer(found, files)
    elif isinstance(found, Grammar) and not isinstance(found, type):
        yield from checked(grammars.PROMISES, found)
    elif is_harness(found):
        yield from check_harness(found)
    else:
        yield from checked(judges.PROMISES, found)


def _found(reference: str, folder: Path) -> Any:
    """Raises ConfigError."""
    named = [plugins for plugins in REGISTRIES if reference in plugins]
    if named:
        return named[0][reference]
    refusals = []
    for plugins in REGISTRIES:
        try:
            return plugins.load(located(reference, folder))
        except ConfigError as error:
            refusals.append(str(error))
    raise ConfigError(refusals[0] if len(set(refusals)) == 1 or "expected a" not in refusals[0] else refusals[-1])
