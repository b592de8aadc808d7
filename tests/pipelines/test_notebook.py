"""`import flywheel as fw`: what docs/notebook.ipynb shows, run as it stands, and what it says where something is not there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flywheel as fw
from tests.pipelines.test_compare_command import home  # noqa: F401  two policies on the same instances
from tests.sandbox.own_source import ROOT
from warehouse.core.errors import ConfigError, QueryError, StageFailed, UnknownId, UnknownTable

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in found), "what it prints is of who runs it"
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
def test_the_notebook_runs_as_it_stands(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    monkeypatch.setenv("FLYWHEEL_HOME", str(home))
    names: dict[str, Any] = {}
    opened, episodes, counts, episode, gains, _ = [run_cell(source, names) for source in cells()]
    assert str(home) in opened._repr_html_() and len(episodes) == 4 and counts["episodes"].sum() == 4
    page = episode._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html') and 'sandbox="allow-scripts"' in page and "<script" not in page
    assert episode.outcome == "success" and len(episode.steps) >= 3
    assert set(gains["name"]) >= {"all domains", "login-user"} or "login-user" in set(gains["name"])
    assert "0001" in capfd.readouterr().out, "the command's output came through"


def test_what_is_not_there_is_named(home: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="there is no home"):
        fw.open(tmp_path / "nothing")
    opened = fw.open(home)
    with pytest.raises(UnknownTable):
        opened.table("nothing")
    with pytest.raises(QueryError):
        opened.sql("select nothing from episodes")
    with pytest.raises(UnknownId):
        opened.episode("nothing")
    with pytest.raises(ConfigError, match="are the same policy"):
        opened.compare("good", "good")
    with pytest.raises(StageFailed, match=r"`flywheel sql select` ended with status"):
        opened.run("sql", "select")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fw.nothing  # noqa: B018


def test_reading_imports_no_torch_and_no_dagster(home: Path) -> None:  # noqa: F811
    program = (
        f"import sys, flywheel as fw; home = fw.open({str(home)!r}); home.table('episodes'); home.sql('select 1');"
        "home._repr_html_(); print([name for name in ('torch', 'dagster', 'transformers', 'prefect') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[]", ran.stderr
