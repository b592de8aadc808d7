"""Machines compare the files of plug-ins that come with installed packages, without importing them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.server import identity
from sandbox.server.identity import NOT_THERE, plugin_ids, source_ids
from warehouse.core import plugins

FAILS = "raise RuntimeError('this module was imported')\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages: `shop` with a subpackage, the module `press`, and `spread`, a package without __init__.py."""
    for name in ("shop/__init__.py", "shop/tasks/__init__.py", "shop/tasks/source.py", "shop/prices.py", "press.py", "spread/source.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FAILS)
    monkeypatch.syspath_prepend(str(tmp_path))
    identity._reference_id.cache_clear()
    yield tmp_path
    identity._reference_id.cache_clear()


def id_of(reference: str) -> str:
    """As another process would find it."""
    identity._reference_id.cache_clear()
    return identity._reference_id(reference)


@pytest.mark.parametrize(
    ("reference", "changed", "counts"),
    [
        ("shop.tasks.source:SOURCE", "shop/tasks/source.py", True),
        ("shop.tasks.source:SOURCE", "shop/prices.py", True),
        ("shop.tasks:SOURCE", "shop/prices.py", True),
        ("shop:SOURCE", "shop/tasks/source.py", True),
        ("shop:SOURCE", "press.py", False),
        ("press:SOURCE", "press.py", True),
        ("press:SOURCE", "shop/prices.py", False),
        ("spread.source:SOURCE", "spread/source.py", True),
    ],
)
def test_a_plug_in_of_a_package_is_the_python_files_of_the_package(site: Path, reference: str, changed: str, counts: bool) -> None:
    before = id_of(reference)
    assert before.startswith("code-") and before.endswith(":SOURCE")
    (site / changed).write_text("SOURCE = None\n")
    assert (id_of(reference) != before) == counts
    assert not {"shop", "press", "spread"} & sys.modules.keys(), "nothing was imported"


def test_what_is_not_installed_and_what_is_not_python(site: Path) -> None:
    assert id_of("gone.tasks:SOURCE") == NOT_THERE
    assert id_of("math:SOURCE") == "math:SOURCE", "its file, where it has one, is no Python"
    assert id_of("__main__:SOURCE").endswith(":SOURCE")


def test_ours_go_by_name() -> None:
    assert source_ids()["miniwob"] == "flywheel.sandbox.tasks.miniwob.source:TASK_SOURCE"


def test_grammars_of_other_packages_are_compared_too(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = site / "shop-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[flywheel.grammars]\nterse = press:GRAMMAR\n")
    for found in (plugins._entry_points, plugins._all_entry_points):
        found.cache_clear()
        monkeypatch.setattr(plugins, found.__name__, found.__wrapped__)
    assert plugin_ids()["grammars press:GRAMMAR"] == id_of("press:GRAMMAR")
    assert not any("flywheel." in name for name in plugin_ids()), "ours are not listed one by one"
