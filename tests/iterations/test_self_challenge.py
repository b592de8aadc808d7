"""Two small iterations on generated tasks, with self-challenge: the second collection plays what the first one taught to choose."""

from __future__ import annotations

import shutil

import pytest
import yaml

from assets.tasks.pool import make_task_pool, task_pool_of
from pipelines import profiles
from sandbox.tasks.sources import tasks_in
from warehouse.evaluation.solve_rates import solve_rates
from warehouse.storage.sql.query import connect

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(3600)]

PER_TASK = 6
CUT = {
    "extends": "smoke",
    "name": "self-challenge",
    "tasks": {"lists": ["terminal:generated-small"], "domains": ["terminal"], "self_challenge": {"enabled": True}},
    "seed_data": {"curricula": ["shell"], "tutorials": 600, "demonstrations_per_task": 4},
    "sandbox": {"num_sessions": 6},
    "rl": {"rounds": 1, "episodes_per_task": 4},
    "merge": {"weights": [1.0]},
    "evaluation": {"eval_per_task": 4, "holdout_per_task": 1},
    "collection": {"instances_per_task": PER_TASK},
    "annotation": {"enabled": False},
}


def test_the_second_collection_plays_what_the_first_taught_to_choose(new_workspace):
    if shutil.which("bwrap") is None:
        pytest.skip("apt-get install --no-install-recommends bubblewrap")
    workspace = new_workspace()
    path = workspace.base / "cut.yaml"
    path.write_text(yaml.safe_dump(CUT))
    ran = workspace.flywheel("run", "--iterations", "2", "--profile", str(path), timeout_s=3000)
    logs = "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in workspace.home.work.glob("*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"

    profile, warehouse = profiles.load(str(path)), workspace.warehouse
    num_families = len(tasks_in(profile.tasks.lists))
    for iteration in ("0001", "0002"):
        of_rollouts = "select distinct task_id, seed from episodes where purpose = 'rollout' and iteration = ? order by all"
        played = workspace.sql(of_rollouts, iteration)
        pool = task_pool_of(warehouse, iteration)
        assert pool is not None and played == sorted((task_id, seed) for task_id, seeds in pool.items() for seed in seeds)
        assert len(played) == PER_TASK * num_families
    assert workspace.sql("select distinct why from task_instances where iteration = '0001'") == [("seed",)]
    assert workspace.sql("select count(*) - count(distinct content_id) from task_instances where stage = 'task_pool'") == [(0,)]
    assert workspace.sql("select distinct split from task_instances where stage = 'task_pool'") == [("train",)]
    assert workspace.sql("select distinct split, why from task_instances where iteration = '0000' order by all") == [
        ("eval", "evaluated on"),
        ("holdout", "evaluated on"),
    ]

    choices, rows, _ = make_task_pool(warehouse, profile, "0002")
    with connect(warehouse) as con:
        rates = solve_rates(con, "0002", profile.tasks.self_challenge.memory)
    assert set(rates) == {choice.task.task_id for choice in choices}, "every family was played"
    stored = workspace.sql("select task_id, seed, why from task_instances where iteration = '0002' order by all")
    assert stored == sorted((row["task_id"], row["seed"], row["why"]) for row in rows), "taken up again, it chooses the same"
    asked = workspace.sql(
        "select count(*) from task_instances t join episodes e using (task_id, seed) "
        "where e.purpose = 'rollout' and e.instruction <> t.instruction"
    )
    assert asked == [(0,)], "what is shown of an instance is what was asked"
    assert workspace.left_after(15) == []
