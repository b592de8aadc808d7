"""A user's own source of tasks, outside of the repository: registered by file, module, profile or entry point, played in this process and
in workers, and refused with the reason where it cannot be used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.gym.env import FlywheelEnv
from sandbox.pool.pool import SessionPool
from sandbox.tasks.describe import describe
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import all_tasks, kind_of, page_tasks, tasks_of
from sandbox.tasks.task_source import TaskSource
from tests.sandbox.own_source import ROOT, write_own_source
from tests.sandbox.test_sources import solves
from warehouse.core.errors import ConfigError
from warehouse.core.plugins import located

OK = "from sandbox.tasks.task_source import TaskSource\nfrom press import SOURCE as PRESS, PressPage, load_tasks\n"

MADE = """
import gymnasium
env = gymnasium.make("flywheel.sandbox.gym.ids:flywheel/press-press-letter-v0")
env.reset(seed=1)
print(env.step(env.unwrapped.oracle_action())[1])
env.close()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name == "press"]:
        monkeypatch.delitem(sys.modules, name)
    return write_own_source(tmp_path)


def test_a_file_outside_the_repository_is_a_source_like_any_other(folder: Path) -> None:
    SOURCES.use("press.py:SOURCE", folder)
    assert "press" in SOURCES and "press" in page_tasks() and [*SOURCES][:-1] == [*SOURCES.installed()]
    (task,) = tasks_of("press:small")
    assert (task.name, kind_of(task), describe(task)) == ("press-letter", "page", "Press A.") and task in all_tasks()
    with pytest.raises(ConfigError, match="no task group 'large'"):
        tasks_of("press:large")


@pytest.mark.parametrize("reference", ["press.py:SOURCE", "press:SOURCE"])
def test_it_is_played_in_a_pool_and_in_a_worker_of_a_fleet(folder: Path, reference: str) -> None:
    SOURCES.use({"press": reference}, folder)
    (task,) = tasks_of("press")

    async def play() -> None:
        async with SessionPool(size=1) as pool:
            assert await solves(pool, task, 1) and await solves(pool, task, 2)
        async with Fleet(FleetSettings(max_workers=1, sessions_per_worker=1)) as fleet:
            assert await solves(fleet, task, 1) and await solves(fleet, task, 2)

    asyncio.run(play())


def test_it_is_a_gymnasium_environment(folder: Path) -> None:
    SOURCES.use("press.py:SOURCE", folder)
    env = FlywheelEnv("press/press-letter")
    try:
        env.reset(options={"instance": 1})
        action = env.oracle_action()
        assert action is not None
        _, reward, terminated, _, _ = env.step(action)
        assert terminated and reward == 1.0
    finally:
        env.close()


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In the user's own folder, as a user would."""
    environment = {**os.environ, "FLYWHEEL_HOME": str(folder / "home"), **variables}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False
    )


@pytest.mark.slow
def test_commands_take_it_by_option_profile_and_variable(folder: Path) -> None:
    for given in (("--source", "press.py:SOURCE"), ("--profile", "mine.yaml")):
        listed = run(folder, "pipelines.cli", "tasks", *given, "--list", "press")
        assert "press-letter" in listed.stdout and "Press A." in listed.stdout, listed.stderr
    proved = run(folder, "sandbox.tasks.prove", "press", "--seeds", "2", "--workers", "1", "--source", "press.py:SOURCE")
    assert proved.returncode == 0 and "2/2" in proved.stdout, proved.stderr
    listed = run(folder, "pipelines.cli", "tasks", "--list", "press", FLYWHEEL_TASK_SOURCES="press.py:SOURCE")
    assert "press-letter" in listed.stdout, listed.stderr
    (folder / "made.py").write_text(MADE)
    made = run(folder, "made", FLYWHEEL_TASK_SOURCES="press.py:SOURCE")
    assert made.stdout.split() == ["1.0"], made.stderr


def test_a_source_registers_beside_others_and_one_call_replaces_the_last(folder: Path) -> None:
    (folder / "second.py").write_text(OK + "SOURCE = TaskSource(name='second', kind='page', load_tasks=load_tasks, page=PressPage())")
    SOURCES.use("press.py:SOURCE", folder)
    SOURCES.use("second.py:SOURCE", folder, keep=True)
    assert {"press", "second"} <= set(SOURCES)
    SOURCES.use(["second.py:SOURCE"], folder)
    assert "press" not in SOURCES and SOURCES["second"].name == "second"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WRONG = 1", r"wrong\.py has no 'SOURCE'; its task sources are none"),
        ("from press import SOURCE as MINE", r"has no 'SOURCE'; its task sources are MINE"),
        ("SOURCE = {'press': 1}", "is a dict: expected a TaskSource"),
        ("import nonesuch_module", "cannot be imported: ModuleNotFoundError: No module named 'nonesuch_module'"),
        (
            "raise ModuleNotFoundError('No module named torch', name='torch')",
            r"cannot be imported: The Python package 'torch' is not installed. Install the extra: pip install 'flywheel\[train\]'",
        ),
        ("raise RuntimeError('no licence')", "cannot be imported: RuntimeError: no licence"),
        ("SOURCE = (", "cannot be imported: SyntaxError"),
        (OK + "SOURCE = TaskSource(name='miniwob', kind='page', load_tasks=load_tasks, page=PressPage())", "'miniwob'.*give it a name of"),
        (OK + "SOURCE = TaskSource(name='a b', kind='page', load_tasks=load_tasks, page=PressPage())", "expected a word"),
        (OK + "SOURCE = TaskSource(name='bare', kind='page', load_tasks=load_tasks)", "'bare' is of kind 'page' and has no `page`"),
        (OK + "SOURCE = TaskSource(name='bare', kind='terminal', load_tasks=load_tasks)", "of kind 'terminal' and has no `instance`"),
        (OK + "SOURCE = TaskSource(name='bare', kind='web', load_tasks=load_tasks)", "of kind 'web' and has no `open_session`"),
        (OK + "SOURCE = TaskSource(name='bare', kind='moon', load_tasks=load_tasks)", "of kind 'moon'; kinds are page, terminal"),
        (OK + "SOURCE = TaskSource(name='bare', kind='page', load_tasks={}, page=PressPage())", "`load_tasks` of the task source"),
        (
            OK + "class P:\n    root = ''\nSOURCE = TaskSource(name='bare', kind='page', load_tasks=load_tasks, page=P())",
            "is a P without ready_script, state_script, environment, settings",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(folder: Path, text: str, message: str) -> None:
    (folder / "wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        SOURCES.use("wrong.py:SOURCE", folder)
    assert os.environ[SOURCES.variable] == "" and list(SOURCES) == list(SOURCES.installed()), "nothing has changed"


@pytest.mark.parametrize(
    "reference", ["", "press", "press.py", ":SOURCE", "press.py:", "press:a b", "none.py:SOURCE", "nonesuch:SOURCE", f"data:{'/A' * 3000}"]
)
def test_a_reference_that_names_nothing(folder: Path, reference: str) -> None:
    with pytest.raises(ConfigError, match=r"expected module:attribute or path|there is no file|No module named 'nonesuch'"):
        SOURCES.use([reference], folder)


@pytest.mark.parametrize("text", ["{press: 3}", "[[press]]", "3", "{press: [}"])
def test_a_variable_that_is_no_list_of_references(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SOURCES.variable, text)
    with pytest.raises(ConfigError, match=f"{SOURCES.variable} is"):
        list(SOURCES)


def test_a_source_has_one_name(folder: Path) -> None:
    SOURCES.use({"mine": "press.py:SOURCE"}, folder)
    with pytest.raises(ConfigError, match=r"'mine' .* calls itself 'press'"):
        tasks_of("mine")
    with pytest.raises(ConfigError, match="'mine' is given twice"):
        SOURCES.use({"mine": "other.py:SOURCE"}, folder, keep=True)


def test_tasks_are_of_their_source(folder: Path) -> None:
    (folder / "stray.py").write_text(OK + "SOURCE = TaskSource(name='stray', kind='page', page=PressPage(), load_tasks=load_tasks)")
    SOURCES.use("stray.py:SOURCE", folder)
    with pytest.raises(ConfigError, match="'stray' gives tasks of the source 'press'"):
        tasks_of("stray")


def test_a_source_may_call_its_variants_suffix_as_before() -> None:
    parts: dict[str, Any] = {"name": "mine", "kind": "terminal", "load_tasks": lambda group=None: {}, "instance": lambda task, seed: None}
    old = TaskSource(**parts, twin_suffix="-elements")
    assert old.variant_suffix == replace(old, name="other").variant_suffix == "-elements"
    assert TaskSource(**parts, variant_suffix="-new").variant_suffix == "-new" and TaskSource(**parts).variant_suffix == ""


def test_no_task_is_called_as_erased_episodes_are(folder: Path) -> None:
    made = (
        "from sandbox.tasks.task import Task\ntasks = lambda _: {'erased': Task(source='gone', name='erased', domain='d', max_steps=3)}\n"
    )
    (folder / "gone.py").write_text(OK + made + "SOURCE = TaskSource(name='gone', kind='page', page=PressPage(), load_tasks=tasks)")
    SOURCES.use("gone.py:SOURCE", folder)
    with pytest.raises(ConfigError, match="'gone' calls a task 'erased'"):
        tasks_of("gone")


def test_a_module_is_looked_for_beside_the_profile_first(folder: Path) -> None:
    assert located("press:SOURCE", folder) == f"{folder / 'press.py'}:SOURCE" == located("press.py:SOURCE", folder)
    assert located("sandbox.tasks.games.source:TASK_SOURCE", folder) == "sandbox.tasks.games.source:TASK_SOURCE"


def test_an_installed_package_registers_by_entry_point(folder: Path) -> None:
    metadata = folder / "shop-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[flywheel.task_sources]\npress = press:SOURCE\n")
    program = "from sandbox.tasks.sources import SOURCES, tasks_of; print(list(SOURCES)[-1], tasks_of('press')[0].name)"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT), str(folder)]))
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["press", "press-letter"], ran.stderr


def test_a_source_is_imported_when_it_is_asked_for_and_no_other() -> None:
    program = (
        "import sys; from sandbox.tasks.sources import SOURCES, page_tasks, tasks_of; names = list(SOURCES);"
        "loaded = lambda: [name for name in sys.modules if name.startswith('sandbox.tasks.') and name.endswith('.source')];"
        "print(loaded()); tasks_of('terminal:small'); page_tasks()['miniwob']; print(sorted(loaded()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["[]", "['sandbox.tasks.miniwob.source', 'sandbox.tasks.terminal.source']"], ran.stderr


def test_every_shipped_source_is_what_its_entry_point_says() -> None:
    assert set(SOURCES.installed()) >= {"miniwob", "games", "terminal", "hybrid", "browsing", "web", "desktop", "android", "imported"}
    found: dict[str, Any] = {name: SOURCES.load(reference) for name, reference in SOURCES.installed().items()}
    assert all(isinstance(source, TaskSource) and source.name == name for name, source in found.items())
