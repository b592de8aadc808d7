"""What was measured in a checkout with changes is not published."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.common import provenance

WHEN = {"commit": "0123456789", "date": "2026-11-28", "machine": "two cores"}
CHANGED = WHEN | {"commit": "0123456789 + changes"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a program and a document, both committed."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "MEASURED", tmp_path / "docs" / "measured")
    (tmp_path / "docs").mkdir()
    for name in ("program.py", "docs/page.md"):
        (tmp_path / name).write_text("one\n")
    author = ("-c", "user.name=any", "-c", "user.email=any@example.org")
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def parsed() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("--publish", action=provenance.Publish, help="any")
    assert parser.parse_args([]).publish is False
    return bool(parser.parse_args(["--publish"]).publish)


def test_publishing_is_refused_at_the_start_where_a_program_was_changed(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "docs" / "page.md").write_text("figures\n")
    (checkout / "new.py").write_text("nobody knows it yet\n")
    assert parsed() and not provenance.provenance()["commit"].endswith(provenance.CHANGED)
    (checkout / "program.py").write_text("two\n")
    assert provenance.provenance()["commit"].endswith(provenance.CHANGED)
    with pytest.raises(SystemExit):
        parsed()
    assert "--publish: these files differ from the commit" in (said := capsys.readouterr().err) and "program.py. Commit first" in said


def test_rows_of_a_checkout_with_changes_are_refused_and_those_of_before_stay(checkout: Path) -> None:
    path = checkout / "docs" / "measured" / "steps.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"rows": {"before": {"measured": CHANGED, "seconds": 1.0}}}))
    provenance.publish_rows("steps", {"now": {"measured": WHEN, "seconds": 2.0}})
    stored = json.loads(path.read_text())
    assert list(stored["rows"]) == ["before", "now"]
    with pytest.raises(SystemExit, match=r"not published: figures were measured at commit 0123456789 \+ changes.*measure again"):
        provenance.publish_rows("steps", {"later": {"measured": [WHEN, CHANGED], "seconds": 3.0}})
    with pytest.raises(SystemExit, match="not published"):
        provenance.publish("steps", {"measured": CHANGED, "seconds": 3.0})
    assert json.loads(path.read_text()) == stored
