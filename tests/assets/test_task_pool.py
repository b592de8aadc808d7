"""Self-challenge: from what a policy solved, which families the next collection plays, in which seeds, and that nothing comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.collection import rollouts
from assets.seed import tasks
from assets.settings.profile import Profile, SelfChallengeSettings, parse_profile
from assets.stages.requests import CollectRequest, StageRequest, StageResult
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.tasks.choice import NEGLIGIBLE, choose, share_out
from assets.tasks.instance_rows import evaluated_instances
from assets.tasks.instances import first_instance, max_instances
from assets.tasks.pool import DUPLICATE, make_task_pool, task_pool, task_pool_of
from pipelines import profiles
from pipelines.stages.context import requests_for
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task
from tests.assets.instances import emptied_instance
from tests.warehouse.judging import episode_row
from warehouse.core.home import Home
from warehouse.evaluation.solve_rates import Solved, posterior_mass, solve_rates
from warehouse.lineage import registry
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

LIST = "terminal:generated-small"
TASKS = tasks_of(LIST)
PER_TASK = 8
TOTAL = PER_TASK * len(TASKS)
CHALLENGE = SelfChallengeSettings(enabled=True)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path))


@pytest.fixture
def profile() -> Profile:
    return made_profile()


def made_profile(**changes: Any) -> Profile:
    values = {
        "tasks.lists": [LIST],
        "tasks.domains": ["terminal"],
        "collection.instances_per_task": PER_TASK,
        "tasks.self_challenge.enabled": True,
    }
    return profiles.load("smoke", values | changes)


def evaluated(
    warehouse: Warehouse, counts: dict[str, tuple[int, int]], *, iteration: str = "0001", split: str = "eval", released: str = "policy"
) -> None:
    """Plant (solved, played) by family, of a candidate that is released unless told otherwise."""
    by_name = {task.name: task for task in TASKS}
    rows = [
        {
            "checkpoint_id": "policy",
            "checkpoint_role": "merged_policy",
            "task_id": by_name[name].task_id,
            "task_name": name,
            "domain": "terminal",
            "split": split,
            "num_episodes": played,
            "num_success": solved,
            "num_crashed": 0,
        }
        for name, (solved, played) in counts.items()
    ]
    warehouse.replace_partition("evaluations", rows, iteration=iteration, stage=f"evaluation_{split}")
    released_row = {"checkpoint_id": released, "path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}
    warehouse.replace_partition("checkpoints", [released_row], iteration=iteration, stage="released_policy")


def test_a_candidate_that_was_not_released_says_nothing_of_who_collects(tmp_path: Path) -> None:
    warehouse, name = Warehouse(Home(tmp_path / "home")), TASKS[0].name
    evaluated(warehouse, {name: (5, 8)})
    evaluated(warehouse, {name: (0, 8)}, iteration="0002", released="policy before it")
    with connect(warehouse) as con:
        (rate,) = solve_rates(con, "0003", 1.0).values()
    assert (rate.num_success, rate.num_episodes) == (5, 8)


def chosen(warehouse: Warehouse, profile: Profile, iteration: str = "0002") -> dict[str, int]:
    return {choice.task.name: choice.num for choice in make_task_pool(warehouse, profile, iteration)[0]}


def solved(num_success: int, num_episodes: int) -> Solved:
    return Solved(num_success=num_success, num_episodes=num_episodes, weight_success=num_success, weight=num_episodes)


def test_the_first_iteration_plays_every_family_as_often(warehouse: Warehouse, profile: Profile) -> None:
    choices, rows, refused = make_task_pool(warehouse, profile, "0001")
    assert [(choice.num, choice.why) for choice in choices] == [(PER_TASK, "seed")] * len(TASKS)
    assert len(rows) == TOTAL and not refused


def test_families_that_are_solved_now_and_then_get_the_most(warehouse: Warehouse, profile: Profile) -> None:
    """Shares by hand: 90 % to what may lie in [.2, .8] by that probability, 10 % to the two that almost surely do not."""
    evaluated(warehouse, {"orders-1": (40, 40), "orders-2": (20, 40), "orders-3": (0, 40), "lines-1": (16, 40), "lines-2": (30, 40)})
    given = chosen(warehouse, profile)
    assert sum(given.values()) == TOTAL
    assert given["orders-1"] == given["orders-3"] == round(0.1 * TOTAL / 2)
    aimed = {"orders-2": (20, 40), "lines-1": (16, 40), "lines-2": (30, 40)}
    in_bounds = {name: posterior_mass(*counts, 0.2, 0.8) for name, counts in aimed.items()}
    for name, mass in in_bounds.items():
        assert abs(given[name] - 0.9 * TOTAL * mass / sum(in_bounds.values())) < 1, name
    assert given["orders-2"] >= given["lines-2"] > given["orders-1"]


def test_what_was_never_tried_and_what_is_always_or_never_solved_gets_exploration_only() -> None:
    rates = {TASKS[0].task_id: solved(0, 60), TASKS[1].task_id: solved(60, 60), TASKS[2].task_id: solved(30, 60)}
    given = {choice.task.name: choice for choice in choose(TASKS, rates, CHALLENGE, 12, max_instances("rollout"))}
    explored = [given[TASKS[at].name] for at in (0, 1, 3, 4)]
    assert sum(choice.num for choice in explored) == round(0.1 * 12 * 5) and given[TASKS[2].name].num == 54
    assert all(choice.why.startswith("explore") for choice in explored) and given[TASKS[2].name].why.startswith("aim: solved 30 of 60")
    without = choose(TASKS, rates, CHALLENGE.model_copy(update={"explore": 0.0}), 12, max_instances("rollout"))
    assert [choice.num for choice in without] == [0, 0, 60, 0, 0]


def test_an_episode_on_a_reported_instance_says_nothing_of_a_family(warehouse: Warehouse, profile: Profile) -> None:
    """Also where it was played as a rollout, which no stage does."""
    task = TASKS[0]
    for split in ("train", "holdout", "report"):
        row = episode_row(f"episode-{split}", task_id=task.task_id, split=split)
        bare = {name: value for name, value in row.items() if name not in ("iteration", "stage")}
        warehouse.replace_partition("episodes", [bare], iteration="0001", stage=f"rollouts_{split}")
    (tried, *_) = make_task_pool(warehouse, profile, "0002")[0]
    assert tried.solved is not None and tried.solved.num_episodes == 1


def test_few_episodes_do_not_decide() -> None:
    assert posterior_mass(0, 0, 0.2, 0.8) == pytest.approx(0.6, abs=1e-3)
    assert posterior_mass(0, 3, 0.2, 0.8) == pytest.approx(0.8**4 - 0.2**4, abs=1e-3)
    assert posterior_mass(0, 20, 0.2, 0.8) < NEGLIGIBLE and posterior_mass(3, 3, 0.2, 0.8) > 0.3
    rates = {TASKS[0].task_id: solved(2, 2), TASKS[1].task_id: solved(1, 2)}
    few = {choice.task.name: choice.num for choice in choose(TASKS[:2], rates, CHALLENGE, 10, 200)}
    many = {
        choice.task.name: choice.num
        for choice in choose(TASKS[:2], {TASKS[0].task_id: solved(40, 40), TASKS[1].task_id: solved(20, 40)}, CHALLENGE, 10, 200)
    }
    assert few[TASKS[0].name] >= 6 and many[TASKS[0].name] <= 2


def test_where_nothing_lies_in_the_bounds_all_get_alike() -> None:
    rates = {task.task_id: solved(0, 50) for task in TASKS}
    assert [choice.num for choice in choose(TASKS, rates, CHALLENGE, 7, 200)] == [7] * len(TASKS)


def test_domains_do_not_take_from_each_other() -> None:
    other = Task(source="miniwob", name="click-button", domain="pointing", max_steps=5)
    rates = {TASKS[0].task_id: solved(20, 40), other.task_id: solved(50, 50)}
    choices = choose([*TASKS, other], rates, CHALLENGE, PER_TASK, 200)
    assert [choice.task for choice in choices] == [*TASKS, other]
    assert choices[-1].num == PER_TASK and sum(choice.num for choice in choices[:-1]) == TOTAL


@pytest.mark.parametrize(
    ("weights", "total", "most", "wanted"),
    [
        ([0.5, 0.3, 0.2], 10, 99, [5, 3, 2]),
        ([1 / 3, 1 / 3, 1 / 3], 10, 99, [4, 3, 3]),
        ([0.9, 0.1, 0.0], 10, 6, [6, 4, 0]),
        ([0.9, 0.1, 0.0], 20, 6, [6, 6, 6]),
        ([0.0, 0.0], 3, 9, [2, 1]),
        ([1.0], 0, 9, [0]),
    ],
)
def test_shares_become_whole_numbers(weights: list[float], total: int, most: int, wanted: list[int]) -> None:
    assert share_out(weights, total, most) == wanted


def test_choices_read_neither_the_holdout_nor_what_comes_later(warehouse: Warehouse, profile: Profile) -> None:
    evaluated(warehouse, {"orders-1": (20, 40)}, split="holdout")
    evaluated(warehouse, {"orders-1": (20, 40)}, iteration="0002")
    assert set(chosen(warehouse, profile).values()) == {PER_TASK}
    assert chosen(warehouse, profile, "0003")["orders-1"] > PER_TASK


def test_older_episodes_count_less(warehouse: Warehouse) -> None:
    evaluated(warehouse, {"orders-1": (0, 8)})
    evaluated(warehouse, {"orders-1": (8, 8)}, iteration="0002")
    with connect(warehouse) as con:
        (found,) = solve_rates(con, "0003", 0.5).values()
        assert (found.num_success, found.num_episodes, found.weight_success, found.weight) == (8, 16, 8.0, 12.0)
        (flat,) = solve_rates(con, "0003", 1.0).values()
        assert (flat.weight_success, flat.weight) == (8.0, 16.0)


def test_rollouts_count_and_crashes_do_not(warehouse: Warehouse) -> None:
    row = {
        "purpose": "rollout",
        "task_id": TASKS[0].task_id,
        "task_name": TASKS[0].name,
        "domain": "terminal",
        "seed": 1,
        "split": "train",
        "policy_id": "p",
        "temperature": 1.0,
        "instruction": "",
        "reward": 1.0,
        "num_steps": 2,
        "num_retries": 0,
        "error": None,
        "duration_ms": 1.0,
        "environment": "",
    }
    outcomes = ("success", "failure", "crashed", "success")
    episodes = [row | {"episode_id": f"e{at}", "attempt": at, "outcome": outcome} for at, outcome in enumerate(outcomes)]
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    warehouse.replace_partition(
        "episodes", [row | {"episode_id": "rl", "attempt": 0, "purpose": "rl", "outcome": "failure"}], iteration="0001", stage="rl_terminal"
    )
    with connect(warehouse) as con:
        (found,) = solve_rates(con, "0002", 1.0).values()
    assert (found.num_success, found.num_episodes) == (2, 3)


def test_seeds_are_the_iterations_own_and_no_content_comes_twice(warehouse: Warehouse, profile: Profile) -> None:
    evaluated(warehouse, {"orders-1": (20, 40)})
    first = make_task_pool(warehouse, profile, "0002")[1]
    by_id = {task.task_id: task for task in TASKS}
    for row in first:
        task = by_id[row["task_id"]]
        assert (
            row["seed"] in task.seeds(Split.TRAIN, max_instances("rollout"), skip=first_instance("rollout", "0002"))
            and row["split"] == "train"
        )
    planted = [dict(first[0]), dict(first[5])]
    warehouse.replace_partition("task_instances", planted, iteration="0001", stage="task_pool")
    _, second, refused = make_task_pool(warehouse, profile, "0002")
    assert refused == {DUPLICATE: 2} and len(second) == len(first)
    contents = [row["content_id"] for row in second]
    assert len(set(contents)) == len(contents) and not {row["content_id"] for row in planted} & set(contents)


def test_taken_up_again_it_chooses_the_same_and_the_collection_plays_it(warehouse: Warehouse, profile: Profile) -> None:
    evaluated(warehouse, {"orders-1": (40, 40), "orders-2": (20, 40)})
    _, rows, _ = make_task_pool(warehouse, profile, "0002")
    warehouse.replace_partition("task_instances", rows, iteration="0002", stage="task_pool")
    assert make_task_pool(warehouse, profile, "0002")[1] == rows
    pool = task_pool_of(warehouse, "0002")
    assert pool is not None and sum(map(len, pool.values())) == TOTAL
    played = requests_for(profile.tasks, purpose="rollout", policy_id="p", split=Split.TRAIN, num=PER_TASK, attempts=2, task_pool=pool)
    assert sorted((one.task.task_id, one.seed, one.attempt) for one in played) == sorted(
        (row["task_id"], row["seed"], attempt) for row in rows for attempt in (0, 1)
    )
    assert len({one.task.name for one in played[: len(pool)]}) == len(pool), "families take turns"


def test_without_a_pool_the_requests_are_those_of_before(profile: Profile) -> None:
    played = requests_for(profile.tasks, purpose="rollout", policy_id="p", split=Split.TRAIN, num=3, skip=5)
    assert [(one.task.name, one.seed) for one in played] == [
        (task.name, task.seeds(Split.TRAIN, 3, skip=5)[index]) for index in range(3) for task in TASKS
    ]


class Given(ProfileResource):
    text: str

    def load(self) -> Profile:
        return Profile.model_validate_json(self.text)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_asset_writes_the_pool_with_a_picture_or_says_that_it_is_off(warehouse: Warehouse, is_on: bool) -> None:
    settings = made_profile(**{"tasks.self_challenge.enabled": is_on})
    evaluated(warehouse, {"orders-1": (40, 40), "orders-2": (20, 40)})
    with emptied_instance() as instance:
        instance.add_dynamic_partitions("iteration", ["0002"])
        resources = {"tables": WarehouseResource(root=str(warehouse.home.root)), "profile": Given(text=settings.model_dump_json())}
        ran = dg.materialize([task_pool], partition_key="0002", instance=instance, resources=resources)
        (event,) = ran.asset_materializations_for_node("task_pool")
    pool = task_pool_of(warehouse, "0002")
    if not is_on:
        assert pool is None and event.metadata["note"].value == "self-challenge is switched off in this profile"
        return
    assert pool is not None and event.metadata["instances"].value == TOTAL
    assert "data:image/svg+xml" in str(event.metadata["pool"].value) and "aim: solved 20 of 40" in str(event.metadata["chosen"].value)


class Asked(StageRunner):
    """Writes down what a stage is asked for."""

    path: str

    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        Path(self.path).write_text(request.model_dump_json())
        return StageResult()

    def forget(self, iteration: str, stage: str) -> None: ...


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collection_is_asked_to_play_the_pool(warehouse: Warehouse, tmp_path: Path, is_on: bool) -> None:
    settings = made_profile(**{"tasks.self_challenge.enabled": is_on})
    evaluated(warehouse, {"orders-1": (40, 40), "orders-2": (20, 40)})
    registry.register(warehouse, iteration="0002", stage="released_policy", checkpoint_id="p", folder=warehouse.home.checkpoints / "p")
    with emptied_instance() as instance:
        instance.add_dynamic_partitions("iteration", ["0002"])
        resources = {
            "tables": WarehouseResource(root=str(warehouse.home.root)),
            "profile": Given(text=settings.model_dump_json()),
            "runner": Asked(path=str(tmp_path / "request.json")),
        }
        dg.materialize([task_pool, rollouts], partition_key="0002", instance=instance, resources=resources)
    request = CollectRequest.model_validate_json((tmp_path / "request.json").read_text())
    assert request.task_pool == task_pool_of(warehouse, "0002") and (request.task_pool is not None) == is_on


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(Exception, match="low must be below high"):
        made_profile(**{"tasks.self_challenge.low": 0.9})
    assert parse_profile(made_profile().model_dump(mode="json"), "again") == made_profile()
    assert not profiles.load("quickstart").tasks.self_challenge.enabled


def test_what_is_evaluated_on_is_known_before_anything_runs_and_never_played(warehouse: Warehouse, profile: Profile) -> None:
    settings = profile.evaluation
    rows = list(evaluated_instances(profile))
    assert len(rows) == len(TASKS) * (settings.eval_per_task + settings.holdout_per_task)
    assert {row["split"] for row in rows} == {"eval", "holdout"} and all(row["instruction"] for row in rows)
    first = make_task_pool(warehouse, profile, "0001")[1]
    planted = rows[0] | {"content_id": first[0]["content_id"]}
    warehouse.replace_partition("task_instances", [*rows[1:], planted], iteration="0000", stage="tasks")
    _, pool, refused = make_task_pool(warehouse, profile, "0001")
    assert refused == {DUPLICATE: 1} and first[0]["content_id"] not in {row["content_id"] for row in pool}
    assert list(evaluated_instances(made_profile(**{"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["pointing"]}))) == []


def test_the_seed_writes_them(warehouse: Warehouse) -> None:
    resources = {"tables": WarehouseResource(root=str(warehouse.home.root)), "profile": Given(text=made_profile().model_dump_json())}
    with emptied_instance() as instance:
        assert dg.materialize([tasks], instance=instance, resources=resources).success
    with connect(warehouse) as con:
        found = con.execute("select iteration, stage, why, count(*) from task_instances group by all").fetchall()
    assert found == [("0000", "tasks", "evaluated on", len(list(evaluated_instances(made_profile()))))]
