"""What every test runs under, set before anything of ours is imported; subprocesses inherit it.

One thread a process: the suite runs on two cores with two workers, and a tiny model only waits for a second thread. And bytecode is kept,
also where the environment says otherwise: the suite starts hundreds of processes, each of which would compile all of ours again, and half
of what collecting takes is pytest's rewriting of the tests, which it keeps as bytecode too. `make clean` removes it.
"""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from benchmarks.common.object_store import Server
    from warehouse.core.store import Store

gc.disable()  # until all is collected: imports make millions of objects that stay (tests/running.py)

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# GNU readline, which pytest loads, tells every process that it starts to be as wide as a terminal; a console that was made then stays so.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long one example takes says how busy the machine is; tests that hang meet the suite's own limit.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

from tests.disks import mounted_disk  # noqa: E402
from tests.running import (  # noqa: E402,F401 - hooks, once the environment stands
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_xdist_make_scheduler,
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with mounted_disk(tmp_path / "small", "1m"):
        yield tmp_path / "small"


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An object store on loopback."""
    from benchmarks.common.object_store import an_object_store

    with an_object_store(tmp_path_factory.mktemp("object-store") / "log") as server:
        yield server


@pytest.fixture
def store(object_store: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A place in it that nothing was written to yet, in which homes keep their tables and checkpoints."""
    from benchmarks.common.object_store import BUCKET
    from warehouse.core.store import STORE_VARIABLE, Store

    found = Store.of(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    for name, value in {**object_store.environment, STORE_VARIABLE: found.url}.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def tables_place(request: pytest.FixtureRequest) -> str:
    """Where the tables of homes lie that are made in a test; its processes inherit it."""
    if request.param == "s3":
        request.getfixturevalue("store")
    return str(request.param)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's venv (benchmarks/common/vllm_server.py), made on first use."""
    from benchmarks.common import vllm_server

    try:
        return vllm_server.vllm_python()
    except ConnectionError as error:
        pytest.skip(f"needs vLLM: {error}, or let {vllm_server.VARIABLE} name a venv that has it")
