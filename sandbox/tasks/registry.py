"""The one registry of task sources by name, SOURCES. A source is registered by an entry point of an installed package:

    [project.entry-points."flywheel.task_sources"]
    shop = "shop.tasks:SOURCE"

or, without any package, by FLYWHEEL_TASK_SOURCES: YAML of `name: module:attribute` or `name: path/to/file.py:attribute`, a list of these
without names, or one alone. A profile's `tasks.sources` and the option --source set it, so every process that they start has the same.
The sources that ship are registered by entry points as well. A source is imported when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType

import yaml

from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError

GROUP = "flywheel.task_sources"
VARIABLE = "FLYWHEEL_TASK_SOURCES"
EXPECTED = "expected module:attribute or path/to/file.py:attribute, e.g. press.py:SOURCE"

Declared = str | Sequence[str] | Mapping[str, str]
"""References to sources: `module:attribute` or `path/to/file.py:attribute`, by name or without."""
_LOADING = RLock()


class Registry(Mapping[str, TaskSource]):
    """Every registered source by name. Names are read from the packages' metadata and the environment; only an access by name imports a
    source. All of it raises ConfigError for references that cannot be used."""

    def __getitem__(self, name: str) -> TaskSource:
        found = load(references()[name])
        if found.name != name:
            raise ConfigError(
                f"The task source {name!r} ({references()[name]}) calls itself {found.name!r}: register it by that name, which is "
                "`Task.source` of its tasks."
            )
        return found

    def __contains__(self, name: object) -> bool:
        return name in references()

    def __iter__(self) -> Iterator[str]:
        return iter(references())

    def __len__(self) -> int:
        return len(references())


SOURCES: Mapping[str, TaskSource] = Registry()


def references() -> Mapping[str, str]:
    """Reference of every registered source by its name. Raises ConfigError where two have one name, or none is installed."""
    return _references(os.environ.get(VARIABLE, ""))


@cache
def _references(text: str) -> Mapping[str, str]:
    found = dict(installed())
    for name, given in parse(text):
        reference = located(given, Path.cwd())
        name = load(reference).name if name is None else name
        if name in found:
            raise ConfigError(
                f"The task source {name!r} ({reference}) has the name of another one ({found[name]}): give it a name of its own. "
                f"Taken are {', '.join(found)}."
            )
        found[name] = reference
    return found


@cache
def installed() -> Mapping[str, str]:
    """References of the installed packages' sources, ours first, in the order of their packages' metadata."""
    found: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.dist is None or point.dist.name != "flywheel"):
        if point.name in found:
            raise ConfigError(
                f"Two installed packages have a task source {point.name!r}: {found[point.name]} and {point.value}. Uninstall one of them."
            )
        found[point.name] = point.value
    if not found:
        raise ConfigError(f"No task source is installed: the metadata of the package flywheel has no group {GROUP!r}. Run `make setup`.")
    return found


def parse(text: str) -> list[tuple[str | None, str]]:
    """(name, reference) of each source in the text of FLYWHEEL_TASK_SOURCES. Raises ConfigError for anything else."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{VARIABLE} is {text!r}, which is not YAML: {error}") from error
    if data is None:
        return []
    parts = [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else [data]
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{VARIABLE} is {text!r}: {EXPECTED}, a list of these, or a mapping of names to them.")
    return _pairs(data)


def use(declared: Declared, folder: Path, *, keep: bool = False) -> None:
    """Register these sources, instead of those that FLYWHEEL_TASK_SOURCES names or, for `keep`, beside them: here and in every process that
    this one starts. Paths count from `folder`. Raises ConfigError for a reference that cannot be used; then nothing has changed."""
    before = os.environ.get(VARIABLE, "")
    pairs = [*(parse(before) if keep else []), *_pairs(declared)]
    found: dict[str, str] = {}
    for name, reference in pairs:
        reference = located(reference, folder)
        name = load(reference).name if name is None else name
        if found.setdefault(name, reference) != reference:
            raise ConfigError(f"The task source {name!r} is given twice: {found[name]} and {reference}. Leave out one, or rename it.")
    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=True).strip()
    _references(text)
    os.environ[VARIABLE] = text


def _pairs(declared: Declared) -> list[tuple[str | None, str]]:
    if isinstance(declared, Mapping):
        return list(declared.items())
    return [(None, each) for each in ([declared] if isinstance(declared, str) else declared)]


def located(reference: str, folder: Path) -> str:
    """A reference that means the same from any folder: a file's path is made absolute, counted from `folder`. A module that lies in the
    folder as a file is that file; another is left to Python."""
    where, _, attribute = reference.rpartition(":")
    if where.endswith(".py"):
        return f"{(folder / Path(where).expanduser()).resolve()}:{attribute}"
    beside = folder / f"{where}.py"
    return f"{beside.resolve()}:{attribute}" if where.isidentifier() and beside.is_file() else reference


def load(reference: str) -> TaskSource:
    """The source that a reference names. Raises ConfigError where there is none, with the reason."""
    where, _, attribute = reference.rpartition(":")
    if not where or not attribute.isidentifier():
        raise ConfigError(f"The task source {reference!r} cannot be loaded: {EXPECTED}.")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else import_module(where)
    except Exception as error:
        raise ConfigError(f"The task source {reference} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        own = [name for name, value in vars(module).items() if isinstance(value, TaskSource)]
        raise ConfigError(f"The task source {reference}: {where} has no {attribute!r}; its task sources are {', '.join(own) or 'none'}.")
    found = getattr(module, attribute)
    if not isinstance(found, TaskSource):
        raise ConfigError(
            f"The task source {reference} is a {type(found).__name__}: expected a TaskSource (sandbox/tasks/task_source.py), e.g. "
            f"`{attribute} = TaskSource(name=…, kind='page', load_tasks=…, page=…)`."
        )
    return found


def _module_of_file(path: Path) -> ModuleType:
    """A file as a module, imported once. Modules beside it can be imported by it, where no installed one has their name."""
    path = path.expanduser().resolve()
    name = f"flywheel_task_source_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    with _LOADING:
        if name in sys.modules:
            return sys.modules[name]
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
