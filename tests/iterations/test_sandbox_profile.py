"""The profile `sandbox`, cut down to a task or a few of each domain, run once: every kind of session goes through a whole iteration."""

from __future__ import annotations

import shutil

import pytest
import yaml

from models.checkpoints.checkpoint import verify
from pipelines import profiles
from sandbox.desktop.apps import missing_packages
from warehouse.lineage import registry

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(3600)]

CUT = {
    "extends": "sandbox",
    "name": "sandbox-cut",
    "tasks": {"lists": ["miniwob:smoke", "games:memory-elements", "terminal:memory", "hybrid:small", "desktop:quick"]},
    "seed_data": {"tutorials": 300, "demonstrations_per_task": 1},
    "sandbox": {"num_sessions": 6},
    "ct": {"steps": 20, "log_every": 10},
    "sft": {"steps": 20, "log_every": 10},
    "rl": {"rounds": 1, "episodes_per_task": 4},
    "merge": {"grid_steps": 1, "instances_per_task": 1},
    "evaluation": {"eval_per_task": 1, "holdout_per_task": 1},
    "collection": {"instances_per_task": 2},
    "annotation": {"instances_per_task": 1},
}


def test_every_domain_of_the_sandbox_goes_through_an_iteration(new_workspace):
    if lacking := [*missing_packages(["form"]), *(["bubblewrap"] if shutil.which("bwrap") is None else [])]:
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    workspace = new_workspace()
    path = workspace.base / "cut.yaml"
    path.write_text(yaml.safe_dump(CUT))
    domains = set(profiles.load(str(path)).tasks.domains)
    assert domains == set(profiles.load("sandbox").tasks.domains) == {"pointing", "forms", "games", "terminal", "hybrid", "desktop"}

    ran = workspace.flywheel("run", "--iterations", "1", "--profile", str(path), timeout_s=3000)
    logs = "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in workspace.home.work.glob("*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"

    def of(query: str) -> set[str]:
        return {domain for (domain,) in workspace.sql(query)}

    played = "episodes e where e.purpose = 'rollout' and e.iteration = '0001'"
    assert of(f"select distinct domain from {played}") == domains
    assert of(f"select distinct domain from {played} and outcome <> 'crashed'") == domains
    for table in ("verdicts", "routes", "annotations"):
        judged = "and purpose = 'annotation'" if table == "annotations" else "and purpose = 'rollout'"
        assert of(f"select distinct domain from {table} join episodes using (episode_id) where true {judged}") == domains, table
    assert of("select distinct domain from evaluations where num_episodes > 0") == domains
    for stage in ("rl_games", "rl_terminal", "merged_policy", "released_policy"):
        found = registry.made_by(workspace.warehouse, "0001", stage)
        assert verify(found.folder).checkpoint_id == found.checkpoint_id
    assert of("select distinct domain from episodes where purpose = 'rl'") == {"games", "terminal"}
    assert workspace.left_after(15) == []
