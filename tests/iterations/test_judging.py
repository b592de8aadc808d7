"""A whole iteration in which the ORM is trained on the iteration's own episodes, judges its rollouts and, in a domain that is taken for one
without a verifier, decides where they go.
"""

from __future__ import annotations

import pytest
import yaml

from warehouse.core.home import page_name
from warehouse.lineage import registry

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

# A policy that is taught a little more than smoke's, so that some of what it does is good and some is not.
SETTINGS = {
    "extends": "smoke",
    "name": "smoke-orm",
    "seed_data": {"tutorials": 6000, "demonstrations_per_task": 4},
    "ct": {"steps": 500, "log_every": 50},
    "sft": {"steps": 60, "log_every": 10},
    "rl": {"rounds": 3, "episodes_per_task": 12},
    "orm": {"enabled": True, "min_samples": 2, "training": {"steps": 60, "log_every": 10}},
    "verdicts": {"unverified_domains": ["forms"], "min_passed": 2, "target_precision": 0.5, "max_measured": 60},
}


def test_the_orm_is_trained_used_and_measured_in_an_iteration(new_workspace):
    workspace = new_workspace()
    path = workspace.base / "orm.yaml"
    path.write_text(yaml.safe_dump(SETTINGS))
    ran = workspace.flywheel("run", "--iterations", "1", "--profile", str(path), timeout_s=2000)
    logs = "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in workspace.home.work.glob("*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"

    orm = registry.made_by(workspace.warehouse, "0001", "orm_model")
    assert orm.checkpoint_id != registry.made_by(workspace.warehouse, "0001", "sft_model").checkpoint_id
    assert workspace.sql("select distinct domain from orm_samples where iteration = '0001'") == [("pointing",)]
    (unjudged,) = workspace.sql(
        "select count(*) from episodes e anti join verdicts v on v.episode_id = e.episode_id and v.judge = 'orm' "
        "where e.purpose = 'rollout' and e.outcome <> 'crashed' and e.num_steps > 0"
    )
    assert unjudged == (0,)
    assert workspace.sql("select count(*) from judge_reports where is_chosen and judge_version = ?", orm.checkpoint_id)[0][0] >= 2
    decided = "from routes r join episodes e using (episode_id) where r.reason like 'V=%' and e.domain ="
    assert workspace.sql(f"select count(*) {decided} 'forms' and r.reason not like '%orm%'") == [(0,)]
    assert workspace.sql(f"select count(*) {decided} 'pointing' and r.reason like '%orm%'") == [(0,)]
    assert workspace.sql(f"select count(*) > 0 {decided} 'forms'") == [(True,)]
    assert "Judges that may err" in (workspace.home.reports / page_name("0001")).read_text()

    (episode_id,) = workspace.sql("select episode_id from routes order by 1 limit 1")[0]
    said = workspace.flywheel("verdict", episode_id, "--bad", "--reason", "the wrong one")
    assert said.returncode == 0 and "is bad, says a person" in said.stdout, said.stderr
    assert workspace.sql("select passed, reasons from verdicts where judge = 'human'") == [(False, ["the wrong one"])]
