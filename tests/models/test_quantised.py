"""Weights of 8 and 4 bits in the embedded engine. torchao is not part of the environment: the rest is rounded_checks.py, in a process that
has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.quantised import IdCodec, model_of, with_torchao
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings
from pipelines import profiles
from pipelines.plan.preflight import check_launcher
from warehouse.core.errors import ConfigError

CHECKS = str(Path(__file__).with_name("rounded_checks.py"))


def test_without_torchao_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"pip install 'flywheel\[quantised\]'"):
        EmbeddedEngine(model_of(64, 1), IdCodec(), "checkpoint-0", settings=EngineSettings(quantisation="int8"))


def test_a_run_is_checked_for_torchao_before_it_starts() -> None:
    found = check_launcher(profiles.load("quickstart", {"engine": {"settings": {"quantisation": "int8"}}}))
    assert (found.status, found.found, found.fix) == ("fail", "not installed: torchao", "pip install 'flywheel[quantised]'")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_answers_by_rounded_weights() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib", "-W", "ignore"]
    assert with_torchao(["-m", "pytest", *options, CHECKS]) == 0
    assert with_torchao(["-m", "benchmarks.quantised", "--rounds", "1", "--hidden", "128", "--layers", "2"]) == 0
