"""Episodes out of the warehouse again, for a critic to be pretrained on, and where lineage puts that critic."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Purpose, Step
from agent.episode.rows import rows
from agent.policy.policy import Message
from models.rl.updates.buffer import trajectory
from pipelines.stages.stored_episodes import stored_episodes
from sandbox.actions import Click, Wait
from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.graph import NodeId
from warehouse.lineage.walk import resolve
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TASK = Task(source="buttons", name="one", domain="forms", max_steps=3)
OTHER = Task(source="buttons", name="two", domain="forms", max_steps=3)


IDS = {
    "prompt_token_ids": (3, 4),
    "response_token_ids": (5, 6, 2),
    "response_logprobs": (-0.5, -0.25, -1.0),
    "response_versions": (0, 0, 1),
}


def episode(
    seed: int, *, task: Task = TASK, purpose: Purpose = "rollout", with_ids: bool = True, outcome: Outcome = Outcome.SUCCESS
) -> Episode:
    steps = tuple(
        Step(
            step_index=index,
            policy_id="p",
            observation=f"screen {index}",
            screenshot_id=None,
            messages=(Message(role="user", content="press one"),),
            response="Thought a Action b",
            thought="a",
            action=Click(x=1, y=2),
            more_actions=(Wait(),) if index else (),
            reward=0.0,
            latency_ms=1.0,
            **(IDS if with_ids else {}),
        )
        for index in range(2)
    )
    request = EpisodeRequest(purpose=purpose, task=task, seed=seed, policy_id="p", temperature=1.0, screenshots=False)
    reward = None if outcome is Outcome.CRASHED else float(outcome is Outcome.SUCCESS)
    return Episode(request=request, instruction="one", steps=steps, outcome=outcome, reward=reward, duration_ms=1.0, environment="e")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path))


def store(warehouse: Warehouse, iteration: str, stage: str, *episodes: Episode) -> None:
    found = rows(episodes)
    for table in ("episodes", "steps"):
        warehouse.replace_partition(table, found[table], iteration=iteration, stage=stage)


@pytest.mark.usefixtures("tables_place")
def test_an_episode_comes_back_as_it_was_stored_and_is_learned_from_alike(warehouse: Warehouse) -> None:
    (seed,) = TASK.seeds(Split.TRAIN, 1)
    one = episode(seed, outcome=Outcome.TRUNCATED)
    store(warehouse, "0001", "rollouts", one)
    (found,) = stored_episodes(warehouse, ["0001/rollouts"], [TASK], 9, screenshots=False)
    assert found == one and trajectory(found) == trajectory(one)


@pytest.mark.usefixtures("tables_place")
def test_only_training_instances_of_the_tasks_are_read_the_newest_iterations_first(warehouse: Warehouse) -> None:
    train, holdout = TASK.seeds(Split.TRAIN, 6), TASK.seeds(Split.HOLDOUT, 2)
    first = [episode(seed) for seed in train[:3]]
    crashed, without_ids = episode(train[4], outcome=Outcome.CRASHED), episode(train[5], with_ids=False)
    asked = [episode(train[3], purpose="evaluation"), episode(train[3], purpose="annotation")]
    store(warehouse, "0001", "rollouts", *first, crashed, without_ids, *asked, *(episode(seed) for seed in holdout))
    second = [episode(seed, purpose="rl") for seed in train[:2]]
    store(warehouse, "0002", "rl_forms", *second, episode(OTHER.seeds(Split.TRAIN, 1)[0], task=OTHER))
    places = ["0001/rollouts", "0002/rl_forms"]
    found = stored_episodes(warehouse, places, [TASK], 9, screenshots=False)
    ids = [each.episode_id for each in found]
    assert set(ids[:2]) == {each.episode_id for each in second} and set(ids[2:]) == {each.episode_id for each in first}
    assert [each.episode_id for each in stored_episodes(warehouse, places, [TASK], 3, screenshots=False)] == ids[:3]
    assert stored_episodes(warehouse, ["0001/rollouts"], [OTHER], 9, screenshots=False) == []


def test_lineage_knows_what_a_critic_learned_from_and_what_it_taught(warehouse: Warehouse) -> None:
    one, two = (episode(seed) for seed in TASK.seeds(Split.TRAIN, 2))
    store(warehouse, "0001", "rollouts", one, two)

    def register(iteration: str, stage: str, id_: str, parents: tuple[str, ...], episode_ids: tuple[str, ...]) -> None:
        folder = warehouse.home.checkpoints / id_
        registry.register(
            warehouse,
            iteration=iteration,
            stage=stage,
            checkpoint_id=id_,
            folder=folder,
            parents=parents,
            episode_ids=episode_ids,
            kind="critic" if stage.startswith("critic") else "model",
        )

    register("0001", "critic_forms", "checkpoint-a", ("sft",), (one.episode_id,))
    register("0002", "critic_forms", "checkpoint-b", ("sft", "checkpoint-a"), (two.episode_id,))
    register("0002", "rl_forms", "checkpoint-p", ("sft", "checkpoint-b"), ())
    with connect(warehouse, lineage=True) as con:
        assert resolve(con, "0002/critic_forms") == NodeId("checkpoint", "checkpoint-b")
        kinds = con.execute("select stage, kind from checkpoints where iteration = '0002' order by stage").fetchall()
        found = con.execute("select kind, id from ancestors('checkpoint-p') where kind = 'episode' order by id").fetchall()
    assert kinds == [("critic_forms", "critic"), ("rl_forms", "model")]
    assert found == sorted(("episode", each.episode_id) for each in (one, two))
