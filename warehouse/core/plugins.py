"""What a user's own package or file adds to Flywheel without an edit in it: task sources, grammars, harnesses, judges, importers. One
mechanism for each of these kinds, which are the `Plugins` objects of sandbox/tasks/registry.py, agent/grammars/registry.py,
agent/harness/registry.py, models/judges/registry.py and pipelines/importing/registry.py. A plug-in is registered by an entry point of an
installed package:

    [project.entry-points."flywheel.task_sources"]
    shop = "shop.tasks:SOURCE"

or, without any package, by the kind's environment variable (FLYWHEEL_TASK_SOURCES): YAML of `name: module:attribute` or
`name: path/to/file.py:attribute`, a list of these without names, or one alone; of some kinds also a path without an attribute. A profile's
`plugins` and options such as --source set it, so every process that they start has the same. What ships is registered by entry points as
well; there is no other list. A plug-in is imported when it is first asked for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Generic, TypeVar

import yaml

from warehouse.core.errors import ConfigError
from warehouse.core.machine import missing_of_train
from warehouse.core.plain_yaml import read_yaml

T = TypeVar("T")

VARIABLES = {
    "task_sources": "FLYWHEEL_TASK_SOURCES",
    "grammars": "FLYWHEEL_GRAMMARS",
    "judges": "FLYWHEEL_JUDGES",
    "importers": "FLYWHEEL_IMPORTERS",
    "harnesses": "FLYWHEEL_HARNESSES",
}
"""Of each kind. The kinds are the keys of a profile's `plugins`, and `flywheel.` and a kind is its group of entry points."""
Declared = str | Sequence[str] | Mapping[str, str]
"""References to plug-ins: `module:attribute` or `path/to/file.py:attribute`, by name or without."""
_LOADING = RLock()


def environment() -> dict[str, str]:
    """What this process's environment says of plug-ins, by variable: for processes that do not inherit it."""
    return {name: os.environ[name] for name in VARIABLES.values() if os.environ.get(name)}


def declared() -> Iterator[tuple[str, str]]:
    """Kind and reference of each plug-in that this process's environment names. Raises ConfigError for what is not YAML."""
    for kind, variable in VARIABLES.items():
        try:
            data = read_yaml(os.environ.get(variable, ""))
        except yaml.YAMLError as error:
            raise ConfigError(f"{variable} is not YAML: {error}") from error
        yield from ((kind, reference) for _, reference in _pairs(data or []))


def of_other_packages() -> Iterator[tuple[str, str]]:
    """Kind and reference of each plug-in that another installed package than ours brings."""
    for kind in VARIABLES:
        others = [point for point in _entry_points(f"flywheel.{kind}") if point.dist is None or point.dist.name != "flywheel"]
        yield from ((kind, point.value) for point in others)


class Plugins(Mapping[str, T], Generic[T]):
    """Every registered plug-in of one kind by name. Names are read from the packages' metadata and the environment; only an access by name
    imports a plug-in. All of it raises ConfigError for references that cannot be used.

    `noun` is what messages call one, `example` a reference, `is_one` checks whether an object is one, `expected` says what is, in words.
    `own_name` is the name that a plug-in itself has, None for one that has none. `taken_as` gives the plug-in of a reference that is not
    code, such as an address. `ships`: some come with the package.
    """

    def __init__(
        self,
        kind: str,
        *,
        noun: str,
        example: str,
        is_one: Callable[[Any], bool],
        expected: str,
        own_name: Callable[[T], str | None] = lambda plugin: getattr(plugin, "name", None),
        taken_as: Callable[[str], T | None] = lambda reference: None,
        ships: bool = True,
    ) -> None:
        self.kind, self.group, self.variable = kind, f"flywheel.{kind}", VARIABLES[kind]
        self._noun, self._example, self._is_one, self._expected, self._own_name = noun, example, is_one, expected, own_name
        self._taken_as, self._ships = taken_as, ships
        self._read = cache(self._references)

    def __getitem__(self, name: str) -> T:
        found = self.load(self.references()[name])
        if (own := self._own_name(found)) not in (name, None):
            raise ConfigError(f"The {self._noun} {name!r} ({self.references()[name]}) calls itself {own!r}: register it by that name.")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.references()

    def __iter__(self) -> Iterator[str]:
        return iter(self.references())

    def __len__(self) -> int:
        return len(self.references())

    def references(self) -> Mapping[str, str]:
        """Reference of every registered plug-in by its name. Raises ConfigError where two have one name."""
        return self._read(os.environ.get(self.variable, ""))

    def _references(self, text: str) -> Mapping[str, str]:
        found = dict(self.installed())
        for name, given in self.parse(text):
            reference = located(given, Path.cwd())
            name = self._name(reference) if name is None else name
            if name in found:
                raise ConfigError(
                    f"The {self._noun} {name!r} ({reference}) has the name of another one ({found[name]}): give it a name of its own. "
                    f"Taken are {', '.join(found)}."
                )
            found[name] = reference
        return found

    def installed(self) -> Mapping[str, str]:
        """References of the installed packages' plug-ins, ours first, in the order of their packages' metadata. Raises ConfigError where
        two have one name, and where none of a kind that ships with some is there: the package's metadata is older than its code."""
        found: dict[str, str] = {}
        for point in _entry_points(self.group):
            if point.name in found:
                raise ConfigError(
                    f"Two installed packages have a {self._noun} {point.name!r}: {found[point.name]} and {point.value}. Uninstall one "
                    "of them."
                )
            found[point.name] = point.value
        if not found and self._ships:
            raise ConfigError(
                f"No {self._noun} is installed: the metadata of the package flywheel has no group {self.group!r}. Run `make setup`."
            )
        return found

    def parse(self, text: str) -> list[tuple[str | None, str]]:
        """(name, reference) of each plug-in in the text of the variable. Raises ConfigError for anything else."""
        try:
            data = read_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{self.variable} is {text!r}, which is not YAML: {error}") from error
        if data is None:
            return []
        parts = [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else [data]
        if not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"{self.variable} is {text!r}: {self._wanted()}, a list of these, or a mapping of names to them.")
        return _pairs(data)

    def use(self, declared: Declared, folder: Path, *, keep: bool = False) -> None:
        """Register these, instead of those that the variable names or, for `keep`, beside them: here and in every process that this one
        starts. Paths count from `folder`. Raises ConfigError for a reference that cannot be used; then nothing has changed."""
        before = os.environ.get(self.variable, "")
        found: dict[str, str] = {}
        for name, reference in [*(self.parse(before) if keep else []), *_pairs(declared)]:
            reference = located(reference, folder)
            name = self._name(reference) if name is None else self._checked(name, reference)
            if found.setdefault(name, reference) != reference:
                raise ConfigError(f"The {self._noun} {name!r} is given twice: {found[name]} and {reference}. Leave out one, or rename it.")
            self.load(reference)
        text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=True).strip() if found else ""
        self._read(text)
        os.environ[self.variable] = text

    def load(self, reference: str) -> T:
        """The plug-in that a reference names. Raises ConfigError for an unknown one, with the reason."""
        if (taken := self._taken_as(reference)) is not None:
            return taken
        found = attribute_of(reference, self._noun, self._wanted(), self._is_one)
        if not self._is_one(found):
            raise ConfigError(f"The {self._noun} {reference} is a {type(found).__name__}: expected {self._expected}.")
        return found  # type: ignore[no-any-return]

    def _name(self, reference: str) -> str:
        name = self._own_name(self.load(reference)) or reference.rpartition(":")[2]
        return self._checked(name, reference)

    def _checked(self, name: str, reference: str) -> str:
        if re.fullmatch(r"\w[\w-]*", name):
            return name
        raise ConfigError(f"The {self._noun} {reference} has no name, or a bad one ({name!r}): give it one of letters, digits, _ and -.")

    def _wanted(self) -> str:
        return f"expected module:attribute or path/to/file.py:attribute, e.g. {self._example}"


def attribute_of(reference: str, noun: str, wanted: str, is_one: Callable[[Any], bool]) -> Any:
    """What a reference to code names. `noun` is what it is called, `wanted` says how a reference is written, `is_one` finds what else may
    have been meant. Raises ConfigError, with the reason."""
    where, _, attribute = reference.rpartition(":")
    if not where or not attribute.isidentifier():
        raise ConfigError(f"The {noun} {reference!r} cannot be loaded: {wanted}.")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else import_module(where)
    except Exception as error:
        why = missing_of_train(error) or f"{type(error).__name__}: {error}"
        raise ConfigError(f"The {noun} {reference} cannot be imported: {why}") from error
    if not hasattr(module, attribute):
        own = [name for name, value in vars(module).items() if not name.startswith("_") and is_one(value)]
        raise ConfigError(f"The {noun} {reference}: {where} has no {attribute!r}; its {noun}s are {', '.join(own) or 'none'}.")
    return getattr(module, attribute)


def located(reference: str, folder: Path) -> str:
    """A reference that means the same from any folder: a path of a file is made absolute, counted from `folder`. A module that lies in the
    folder as a file is that file; another is left to Python. Raises ConfigError for what no path can be."""
    where, _, attribute = reference.rpartition(":")
    try:
        if reference and ":" not in reference and (path := folder / Path(reference).expanduser()).exists():
            return str(path.resolve())
        if where.endswith(".py"):
            return f"{(folder / Path(where).expanduser()).resolve()}:{attribute}"
        beside = folder / f"{where}.py"
        return f"{beside.resolve()}:{attribute}" if where.isidentifier() and beside.is_file() else reference
    except (OSError, RuntimeError, ValueError) as error:  # a NUL, an unknown user's home, a name too long
        raise ConfigError(f"{reference[:200]!r} is not a reference to a plug-in: {error}") from error


def located_all(declared: Any, folder: Path) -> Any:
    """References in whatever shape, with their paths counted from a folder. What is not a reference stays as it is."""
    if isinstance(declared, str):
        return located(declared, folder)
    if isinstance(declared, Mapping):
        return {name: located_all(each, folder) for name, each in declared.items()}
    return [located_all(each, folder) for each in declared] if isinstance(declared, list) else declared


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Ours first."""
    return tuple(sorted(_all_entry_points().select(group=group), key=lambda point: point.dist is None or point.dist.name != "flywheel"))


@cache
def _all_entry_points() -> Any:
    """One look at the metadata of every installed package, which takes tens of milliseconds, for all kinds."""
    return entry_points()


def _pairs(declared: Declared) -> list[tuple[str | None, str]]:
    if isinstance(declared, Mapping):
        return list(declared.items())
    return [(None, each) for each in ([declared] if isinstance(declared, str) else declared)]


def _module_of_file(path: Path) -> ModuleType:
    """A file as a module, imported once. Modules beside it can be imported by it, where no installed one has their name."""
    path = path.expanduser().resolve()
    name = f"flywheel_plugin_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
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
