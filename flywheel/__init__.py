"""The rooms of a checkout under one name: `from flywheel.sandbox.session import Session` gives the same module as `sandbox.session`. And
`flywheel.open(HOME)`, for notebooks (pipelines/notebook.py).

In a checkout the rooms lie at the root of the repository, and this package leads to them. In an installed package they lie in this
package, with their imports rewritten (scripts/hatch_build.py), and nothing else is installed: a program of yours may have a folder
`models` or `agent` beside it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")


class _Alias(Loader):
    """Gives the module of another name, which keeps its own spec and name: there is one of it, whichever name was imported first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m flywheel.ROOM.MODULE`."""
        spec = importlib.util.find_spec(self._name)
        return spec.loader.get_code(self._name) if spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader) else None


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != __name__ or name.partition(".")[0] not in ROOMS:
            return None
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(name), origin=found.origin, is_package=found.submodule_search_locations is not None)


sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    """`open` is imported when it is asked for: importing this package costs nothing."""
    if name == "open":
        return importlib.import_module("pipelines.notebook").open
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
