"""Some of the kills of benchmarks/resume.py: real processes, real browsers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.provenance import ROOT

TRIAL = """
import json, random, sys
from pathlib import Path
from benchmarks import resume
resume.NUM_SEEDS = int(sys.argv[4])
print(json.dumps(resume.trial(Path(sys.argv[1]), 0, sys.argv[2], random.Random(0), int(sys.argv[3]))))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("arm", "num_seeds", "num_episodes"), [("resume", 6, 24), ("forks", 2, 16)])
def test_killed_episodes_go_on_where_they_were_and_nothing_is_lost_or_doubled(
    tmp_path: Path, arm: str, num_seeds: int, num_episodes: int
) -> None:
    command = [sys.executable, "-c", TRIAL, str(tmp_path), arm, "6", str(num_seeds)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] >= (3 if arm == "resume" else 2) and found["episodes"] == num_episodes
    assert not any(found[name] for name in ("lost", "doubled", "other", "left", "restarted", "refused")), found
    assert found["went on"] >= 1 and found["again"] <= 4 * found["kills"], "at most the responses that were under way"
