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
from benchmarks.resume import trial
print(json.dumps(trial(Path(sys.argv[1]), 0, "resume", random.Random(0), 6)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_episodes_go_on_where_they_were_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", TRIAL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["kills"] >= 3 and found["episodes"] == 24
    assert not any(found[name] for name in ("lost", "doubled", "other", "left", "restarted")), found
    assert found["went on"] >= 1 and found["again"] <= 4 * found["kills"], "at most the responses that were under way"
