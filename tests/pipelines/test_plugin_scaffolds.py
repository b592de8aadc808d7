"""`flywheel init` writes plug-ins that work, and `flywheel check` tells those that keep their promises from those that do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.grammars.registry import GRAMMARS
from pipelines.cli.app import app
from pipelines.plugins.conformance import check
from pipelines.plugins.scaffold import TEMPLATES, rendered, write
from tests.sandbox.own_source import ROOT
from warehouse.core.conformance import problems
from warehouse.core.errors import ConfigError
from warehouse.core.plugins import VARIABLES

ATTRIBUTES = {"task-source": "SOURCE", "judge": "judge", "grammar": "GRAMMAR", "importer": "IMPORTER", "harness": "HARNESS"}
BAD = {
    "raises": (
        "grammar",
        'return invalid_response(text, f"not',
        'raise\n        return invalid_response(text, f"not',
        "never raises for what a policy writes",
    ),
    "forgets": ("grammar", '"action": action.model_dump(mode="json")', '"action": {"kind": "wait"}', "reads what it writes"),
    "chance": (
        "judge",
        "score=1.0 - wasted / len(record.turns)",
        "score=__import__('random').random()",
        "says the same of the same episodes",
    ),
    "beyond": (
        "judge",
        'return Verdict(origin="judge", score=0.0, threshold=0.5, reasons=("it did not end",))',
        "return 7",
        "scores every episode",
    ),
    "silent": ("importer", 'entry.why_not = f"not a record of clicks: {error!r}"', "pass", "accounts for each record"),
}


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])


def files_of(kind: str, folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.jsonl"] if kind == "importer" else []


@pytest.mark.parametrize(
    "kind", ["judge", "grammar", "importer", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("task-source", "harness"))]
)
def test_what_init_writes_keeps_its_promises(kind: str, tmp_path: Path) -> None:
    write(kind, "mine", tmp_path)
    found = list(check(f"mine.py:{ATTRIBUTES[kind]}", tmp_path, files_of(kind, tmp_path, "mine")))
    assert len(found) >= 2 and problems(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["judge", "task-source"])
def test_its_test_passes_and_its_profile_loads_in_a_folder_of_ones_own(kind: str, tmp_path: Path) -> None:
    write(kind, "mine", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLYWHEEL_HOME": str(tmp_path / "home")}

    def run(*command: str) -> str:
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    loaded = "from flywheel.pipelines.profiles import load; print(load('mine.yaml').name)"
    assert run("-c", loaded).split() == ["mine"]


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_kept_is_named(name: str, tmp_path: Path) -> None:
    kind, right, wrong, promise = BAD[name]
    write(kind, name, tmp_path)
    path = tmp_path / f"{name}.py"
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    if kind == "importer":
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    found = problems(check(f"{name}.py:{ATTRIBUTES[kind]}", tmp_path, files_of(kind, tmp_path, name)))
    assert any(promise in each for each in found), found


@pytest.mark.slow
def test_a_source_whose_oracle_fails_and_that_pays_for_nothing_is_named(tmp_path: Path) -> None:
    write("task-source", "broken", tmp_path)
    page = tmp_path / "broken.html"
    page.write_text(page.read_text().replace("reward: Number(pressed === wanted)", "reward: Number(pressed !== wanted)"))
    found = problems(check("broken.py:SOURCE", tmp_path))
    assert {each.partition(":")[0] for each in found} == {"its oracle solves it", "doing nothing is not paid"}


def test_the_documents_show_what_init_writes() -> None:
    shown = (ROOT / "docs" / "page-tasks.md").read_text(encoding="utf-8")
    made = rendered("task-source", "press")
    assert all(made[name].decode() in shown for name in ("press.html", "press.py"))
    shown = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert rendered("judge", "brief")["brief.py"].decode() in shown and rendered("importer", "clicks")["clicks.py"].decode() in shown
    assert rendered("grammar", "json")["json.py"].decode() in shown


def run(*arguments: str, folder: Path | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, *(["--folder", str(folder)] if folder else [])])
    said = result.output + (str(result.exception) if isinstance(result.exception, ConfigError) else "")
    return result.exit_code, re.sub(r"\s+", " ", said)


def test_the_commands_say_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = run("init", "judge", "brief", folder=tmp_path)
    assert status == 0 and "flywheel check brief.py:judge" in said and (tmp_path / "test_brief.py").is_file()
    monkeypatch.chdir(tmp_path)
    status, said = run("check", "brief.py:judge")
    assert status == 0 and "yes it scores every episode from 0 to 1" in said
    (tmp_path / "brief.py").write_text("def judge(case):\n    return 2\n")
    sys.modules.pop(next(name for name in sys.modules if name.startswith("flywheel_plugin_brief_")))
    status, said = run("check", "brief.py:judge")
    assert status == 1 and "no it scores every episode from 0 to 1" in said and "a score is from 0 to 1" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "moon", "x"), "'moon' cannot be made: the kinds are task-source, judge"),
        (("init", "judge", "../up"), "the name is '../up'"),
        (("init", "judge", "Class"), "the name is 'Class'"),
        (("init", "judge", "orm"), "'orm' is the name of another judge, or of Flywheel's own"),
        (("init", "task-source", "miniwob"), "'miniwob' is the name of another task-source"),
        (("check", "gone.py:judge"), "there is no file"),
        (("check", "nothing"), "expected module:attribute or path"),
        (("check", "sharegpt"), "is checked on files of its format"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: Sequence[str], message: str, tmp_path: Path) -> None:
    status, said = run(*arguments, folder=tmp_path if arguments[0] == "init" else None)
    assert status != 0 and message in said, said


def test_a_source_of_another_ones_name_is_not_taken_for_it(tmp_path: Path) -> None:
    write("task-source", "mine", tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace('name="mine", kind', 'name="games", kind'))
    with pytest.raises(ConfigError, match="calls itself 'games', as another task source is called"):
        list(check("mine.py:SOURCE", tmp_path))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "brief.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        write("judge", "brief", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["brief.yaml"]


@pytest.mark.parametrize("name", sorted(GRAMMARS.installed()))
def test_our_grammars_keep_the_same_promises(name: str, tmp_path: Path) -> None:
    assert problems(check(name, tmp_path)) == []


def test_every_kind_has_its_templates() -> None:
    assert all(len(rendered(kind, "a_name")) == len(names) for kind, names in TEMPLATES.items())
