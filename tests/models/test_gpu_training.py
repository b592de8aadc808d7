"""The accelerator's benchmark runs on any machine, and an accelerator computes what the CPU computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_training import TOLERANCES, cpu_probe, furthest, probe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_benchmark_runs_without_an_accelerator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_training", "--device", "cpu", "--size", "tiny", "--steps", "8"]
    done = subprocess.run([*command, "--json", str(tmp_path / "found.json")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["throughput"]["steps"] == 8 and found["throughput"]["loss_last"] < found["throughput"]["loss_first"]
    assert found["furthest_from_cpu_float32"]["float32"] == 0.0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_an_accelerator_computes_what_the_cpu_computes(dtype: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no accelerator")
    assert furthest(probe(dtype), cpu_probe()) <= TOLERANCES[dtype]
