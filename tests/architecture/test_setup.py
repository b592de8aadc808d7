"""What scripts/setup.sh says where it cannot go on. Whole installations are tried by continuous integration, from a clean clone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("bash") or "bash", "scripts/setup.sh"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_wrong_python_is_refused_by_name(checkout: Path):
    ran = run_setup(checkout, PATH=os.environ["PATH"], PYTHON="/bin/false")
    assert ran.returncode == 1
    assert "PYTHON is '/bin/false'" in ran.stderr
    assert not (checkout / ".venv").exists()


def test_a_machine_without_python_says_what_was_tried_and_how_to_get_one(checkout: Path):
    tools = checkout / "tools"
    tools.mkdir()
    (tools / "dirname").symlink_to(shutil.which("dirname") or "dirname")
    ran = run_setup(checkout, PATH=str(tools))
    assert ran.returncode == 1
    assert "tried python3.11, python3 and python" in ran.stderr and "apt-get install" in ran.stderr
    assert not (checkout / ".venv").exists()
