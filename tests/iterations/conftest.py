"""Homes of real iterations: `finished_home` is run once for all tests (read it, do not write), `copy_of` gives one to
write on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from benchmarks.common.process import left_after, processes_of
from sandbox.browser.chromium import find_chromium
from tests.iterations.reported import poison
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]
PROFILE = "smoke"
SERVE_TIMEOUT_S = 300
PAGE_TIMEOUT_MS = 90_000
VIEWPORT_PX = {"width": 1600, "height": 1900}
"""Tall enough for the whole catalog: Dagster draws only the rows that are in sight."""
ITERATION_TIMEOUT_S = 1500
"""An iteration takes a minute and a half; on a busy machine much longer."""


@dataclass(frozen=True)
class Workspace:
    """A FLYWHEEL_HOME and the command line on it. Everything that runs for it carries `base` in its environment or its command."""

    base: Path
    settings: dict[str, str] = field(default_factory=dict)
    """More of the environment."""

    @property
    def home(self) -> Home:
        return Home(self.base / "home")

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.home)

    @property
    def environment(self) -> dict[str, str]:
        ours = {"FLYWHEEL_HOME": str(self.base / "home"), "FLYWHEEL_PROFILE": PROFILE, "TMPDIR": str(self.base / "tmp"), "COLUMNS": "200"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DAGSTER_", "PREFECT_"))}
        chromium = {name: os.environ[name] for name in ("FLYWHEEL_CHROMIUM", "FLYWHEEL_BROWSER_USER") if name in os.environ}
        return {**inherited, **chromium, **ours, **self.settings}

    def start(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        """`python COMMAND…` on this home, in a session of its own."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=self.environment, start_new_session=True, **{**streams, **more})

    def flywheel(self, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; stdout and stderr apart."""
        process = self.start("-m", "pipelines.cli", *arguments, stderr=subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect(self.warehouse, lineage=True) as con:
            return con.execute(query, list(values)).fetchall()

    def processes(self) -> list[psutil.Process]:
        """Whatever runs for this home, browsers included."""
        return processes_of(self.base)

    def left_after(self, seconds: float) -> list[str]:
        """The command lines of what still runs for this home after so long; returns as soon as there is nothing."""
        return left_after(self.base, seconds)

    def end_processes(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def remove(self) -> None:
        self.end_processes()
        shutil.rmtree(self.base, ignore_errors=True)


def _new_base() -> Path:
    """Browsers run as another user when we are root: their profiles must not lie below a folder that is closed to others."""
    base = Path(tempfile.mkdtemp(prefix="flywheel-test-"))
    base.chmod(0o755)
    (base / "tmp").mkdir(mode=0o755)
    return base


@pytest.fixture
def new_workspace() -> Iterator[Callable[..., Workspace]]:
    """`new_workspace(**environment)`: an empty home, removed after the test with every process that is left of it."""
    made: list[Workspace] = []

    def make(**settings: str) -> Workspace:
        made.append(Workspace(_new_base(), settings))
        return made[-1]

    yield make
    for workspace in made:
        workspace.remove()


@pytest.fixture
def copy_of(new_workspace: Callable[..., Workspace]) -> Callable[..., Workspace]:
    """`copy_of(workspace, **environment)`: the same home again, to write on."""

    def copy(workspace: Workspace, **settings: str) -> Workspace:
        made = new_workspace(**settings)
        _copy_home(workspace, made)
        return made

    return copy


def _copy_home(workspace: Workspace, to: Workspace) -> None:
    shutil.copytree(workspace.home.root, to.base / "home", ignore=shutil.ignore_patterns("locks", "server.json"))


@pytest.fixture(scope="module")
def shared_copy(finished_home: Finished) -> Iterator[Workspace]:
    """A copy of `finished_home` that the tests of one module write on, one after the other."""
    made = Workspace(_new_base())
    _copy_home(finished_home, made)
    yield made
    made.remove()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of the system's Chromium. What it showed last is kept in tmp_path/last.png."""
    from playwright.sync_api import Error, expect, sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(find_chromium().path))
        tab = browser.new_page(viewport=VIEWPORT_PX, timezone_id="UTC", locale="en-US")
        tab.set_default_timeout(PAGE_TIMEOUT_MS)
        expect.set_options(timeout=PAGE_TIMEOUT_MS)
        yield tab
        with contextlib.suppress(Error):
            tab.screenshot(path=tmp_path / "last.png")
        browser.close()


@dataclass(frozen=True)
class Served:
    """`flywheel ui` on a home."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]


@pytest.fixture
def serve() -> Callable[..., contextlib.AbstractContextManager[Served]]:
    """`with serve(workspace, *arguments) as page:` serves `flywheel ui` until the block ends; yields once Dagster answers."""

    @contextlib.contextmanager
    def serving(workspace: Workspace, *arguments: str) -> Iterator[Served]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        path = workspace.base / "ui.log"
        with path.open("w") as log:
            process = workspace.start("-m", "pipelines.cli", "ui", "--port", str(port), "--profile", PROFILE, *arguments, stdout=log)
        page = Served(f"http://127.0.0.1:{port}", process, path)
        try:
            deadline = time.monotonic() + SERVE_TIMEOUT_S
            while page.url not in path.read_text() and time.monotonic() < deadline:
                assert process.poll() is None, page.said()
                time.sleep(0.5)
            assert page.url in path.read_text(), page.said()
            yield page
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            workspace.end_processes()

    return serving


@dataclass(frozen=True)
class Finished(Workspace):
    """A home with one finished iteration, with what the command printed and how long it took."""

    output: str = ""
    seconds: float = 0.0


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """`flywheel run --iterations 1 --profile smoke` in an empty home; once, whichever worker of the suite comes first."""
    yield from _shared(tmp_path_factory, "finished", lambda: _run(_new_base(), 1))


@pytest.fixture
def finished_with() -> Iterator[Callable[[dict[str, str]], Finished]]:
    """The same under other variables, in homes of a test's own."""
    made: list[Finished] = []

    def run(settings: dict[str, str]) -> Finished:
        made.append(_run(_new_base(), 1, settings))
        return made[-1]

    yield run
    for workspace in made:
        workspace.remove()


@pytest.fixture(scope="session")
def finished_twice(finished_home: Finished, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The same home after a second iteration, over a first one whose reported rows say the contrary of what was measured (reported.py).
    Read it, do not write."""

    def run() -> Finished:
        base = _new_base()
        shutil.copytree(finished_home.home.root, base / "home", ignore=shutil.ignore_patterns("locks", "server.json"))
        poison(Workspace(base).warehouse, "0001")
        return _run(base, 2)

    yield from _shared(tmp_path_factory, "finished-twice", run)


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str, run: Callable[[], Finished]) -> Iterator[Finished]:
    """One home for all workers of the suite, made by the first and removed by the last."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        finished = run()
        yield finished
        finished.remove()
        return
    shared = tmp_path_factory.getbasetemp().parent
    record = shared / f"{name}.json"
    with FileLock(shared / f"{name}.lock"):
        if not record.exists():
            finished = run()
            record.write_text(json.dumps({"base": str(finished.base), "output": finished.output, "seconds": finished.seconds, "users": 0}))
        kept = json.loads(record.read_text())
        record.write_text(json.dumps({**kept, "users": kept["users"] + 1}))
    finished = Finished(Path(kept["base"]), output=kept["output"], seconds=kept["seconds"])
    yield finished
    with FileLock(shared / f"{name}.lock"):
        kept = json.loads(record.read_text())
        record.write_text(json.dumps({**kept, "users": kept["users"] - 1}))
        if kept["users"] == 1:
            finished.remove()
            record.unlink()


WATCH = """
import os, sys
from pathlib import Path

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "great_expectations":
            command = Path("/proc/self/cmdline").read_bytes().replace(b"\\0", b" ")
            with open(os.environ["FLYWHEEL_TEST_IMPORTERS"], "ab", 0) as log:
                log.write(command.replace(b"\\n", b" ") + b"\\n")

sys.meta_path.insert(0, Watch())
"""
"""Python runs it in every process of an iteration, and so each that imports Great Expectations leaves its command in a file."""


def _watched(base: Path) -> dict[str, str]:
    (base / "watch").mkdir()
    (base / "watch" / "sitecustomize.py").write_text(WATCH)
    (base / "importers").touch()
    paths = (str(base / "watch"), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path), "FLYWHEEL_TEST_IMPORTERS": str(base / "importers")}


def _run(base: Path, num_iterations: int, settings: dict[str, str] | None = None) -> Finished:
    workspace = Finished(base, settings={**_watched(base), **(settings or {})})
    started = time.monotonic()
    ran = workspace.flywheel("run", "--iterations", str(num_iterations), "--profile", PROFILE, timeout_s=ITERATION_TIMEOUT_S)
    seconds = time.monotonic() - started
    if ran.returncode != 0:
        logs = "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in workspace.home.work.glob("*.log"))
        workspace.remove()
        pytest.fail(f"the iteration did not finish:\n{ran.stdout}\n{ran.stderr}\n{logs}", pytrace=False)
    return Finished(base, settings=settings or {}, output=ran.stdout, seconds=seconds)
