"""The profile `pixels`, cut down, run once: a vision-language policy from random weights goes through a whole iteration by screenshots
alone. What it learns of them is benchmarks/pixels.py's business.
"""

from __future__ import annotations

import json

import pytest
import yaml

from models.checkpoints.checkpoint import verify
from models.families.registry import is_vision, load_policy
from pipelines import profiles
from warehouse.lineage import registry

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(2400)]

CUT = {
    "extends": "pixels",
    "name": "pixels-cut",
    "max_parallel": 1,
    "seed_data": {"demonstrations_per_task": 3},
    "sandbox": {"num_sessions": 6},
    "ct": {"steps": 2, "batch_tokens": 512, "log_every": 1},
    "sft": {"steps": 4, "batch_tokens": 512, "log_every": 1},
    "rl": {"rounds": 1, "episodes_per_task": 2, "min_batch_episodes": 4, "pretraining_rounds": 0, "replay_sft": 2},
    "evaluation": {"eval_per_task": 1, "holdout_per_task": 1, "playwright_share": 0.5},
    "collection": {"instances_per_task": 1},
    "annotation": {"instances_per_task": 1},
}
SEEN = """select count(*), count(*) filter (where len(messages) = 2 and messages[1].content = e.instruction and messages[2].content = ''
    and messages[2].screenshot_id = s.screenshot_id) from steps s join episodes e using (iteration, stage, episode_id)
    where s.step_index = 0"""


def test_a_policy_that_sees_goes_through_an_iteration(new_workspace):
    workspace = new_workspace()
    path = workspace.base / "cut.yaml"
    path.write_text(yaml.safe_dump(CUT))
    settings = profiles.load(str(path))
    ran = workspace.flywheel("run", "--iterations", "1", "--profile", str(path), timeout_s=2000)
    logs = "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in workspace.home.work.glob("*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"

    for stage in ("ct_model", "sft_model", "rl_pointing", "rl_forms", "merged_policy", "released_policy"):
        found = registry.made_by(workspace.warehouse, "0001", stage)
        assert verify(found.folder).checkpoint_id == found.checkpoint_id and is_vision(found.folder)
    assert 2_000_000 < load_policy(found.folder).num_parameters() < 5_000_000
    for stage in ("ct_model", "sft_model"):
        ((config,),) = workspace.sql("select config from checkpoints where iteration = '0001' and stage = ?", stage)
        assert (json.loads(config)["num_processes"], json.loads(config)["deepspeed_stage"]) == (2, 1)

    ((num, num_alone),) = workspace.sql(SEEN)
    assert num == num_alone > 0, "the first prompt of each episode is its instruction and a screenshot, and nothing else"
    domains = set(settings.tasks.domains)
    for query in (
        "select distinct domain from episodes where purpose = 'rl'",
        "select distinct domain from verdicts join episodes using (episode_id) where purpose = 'rollout'",
        "select distinct domain from routes join episodes using (episode_id)",
        "select distinct domain from evaluations where num_episodes > 0",
    ):
        assert {domain for (domain,) in workspace.sql(query)} == domains, query
    twice = "episodes where purpose = 'second_browser' and outcome <> 'crashed'"
    ((num_again, num_kinds),) = workspace.sql(f"select count(*), count(distinct environment) from {twice}")
    assert num_again > 0 and num_kinds == 1, "some of the holdout again, in full Chromium"
    assert workspace.left_after(15) == []
