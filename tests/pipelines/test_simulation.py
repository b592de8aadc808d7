"""Simulated runs: times and queues reckoned by hand, dead nodes that lose nothing, and the command on a home's own episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli import app as cli
from pipelines.plan.simulation import Cluster, Learning, RecordedEpisode, simulate
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

THREE = (RecordedEpisode(steps_s=(1.0, 1.0, 1.0)),)
TWO_SESSIONS = Cluster(num_nodes=1, sessions_per_node=2)
ROUNDS = Learning(batch_episodes=4, num_batches=2, update_s=5.0)


def test_rounds_take_turns_of_collecting_and_learning() -> None:
    run = simulate(THREE, TWO_SESSIONS, ROUNDS)
    assert run.seconds == pytest.approx(2 * (6 + 5))
    assert (run.num_episodes, run.num_steps, run.staleness_max) == (8, 24, 0)
    assert run.trainer_idle == pytest.approx(12 / 22)
    assert run.sessions_busy == pytest.approx(24 / 44)
    assert run.queue_waiting == pytest.approx(2 * 2 * 3 / 22)  # two episodes wait while the first two run


def test_streaming_goes_on_while_it_learns_and_what_it_learns_is_older() -> None:
    run = simulate(THREE, TWO_SESSIONS, replace(ROUNDS, batches_ahead=1))
    assert run.seconds == pytest.approx(6 + 5 + 1 + 5)  # the second batch is complete one second after the first update
    assert 0 < run.staleness_mean <= run.staleness_max == 1


def test_the_policy_servers_bound_how_fast_steps_are() -> None:
    run = simulate(THREE, replace(TWO_SESSIONS, sessions_per_node=50, answers_per_s=2.0), replace(ROUNDS, batch_episodes=50, update_s=0.0))
    assert run.steps_per_s == pytest.approx(2.0, rel=0.03)
    assert run.server_busy > 0.97 and run.queue_server > 20


def test_an_answer_is_part_of_the_step_that_was_recorded() -> None:
    alone = Cluster(num_nodes=1, sessions_per_node=1, answers_per_s=2.0, step_cpu_s=0.25)
    assert simulate(THREE, alone, Learning(batch_episodes=10, num_batches=1)).seconds == pytest.approx(30)


def test_batches_take_the_oldest_that_were_admitted() -> None:
    """Long ones wait for no one, and are learned from before younger ones that ended sooner."""
    episodes = (RecordedEpisode(steps_s=(1.0,)), RecordedEpisode(steps_s=(1.0,) * 9))
    run = simulate(episodes, Cluster(num_nodes=1, sessions_per_node=40), Learning(batch_episodes=20, num_batches=4, batches_ahead=1))
    assert run.num_episodes == 80 and run.staleness_max <= 2


def test_a_nodes_processors_bound_it_and_another_node_helps() -> None:
    busy = replace(TWO_SESSIONS, sessions_per_node=20, cores_per_node=1, step_cpu_s=0.5)
    learning = Learning(batch_episodes=200, num_batches=1)
    one, two = (simulate(THREE, replace(busy, num_nodes=number), learning) for number in (1, 2))
    assert one.steps_per_s == pytest.approx(2.0, rel=0.03)
    assert two.steps_per_s / one.steps_per_s == pytest.approx(2.0, rel=0.03)


def test_a_thousand_nodes_do_a_thousand_times_the_work_of_one() -> None:
    one = Cluster(num_nodes=1, sessions_per_node=4)
    few, many = (
        simulate(THREE, replace(one, num_nodes=number), Learning(batch_episodes=4 * number, num_batches=2, update_s=1.0))
        for number in (1, 1000)
    )
    assert (many.num_episodes, many.num_steps) == (1000 * few.num_episodes, 1000 * few.num_steps)
    assert many.seconds == pytest.approx(few.seconds)


def test_dead_nodes_and_crashes_cost_time_and_no_episode() -> None:
    episodes = (*THREE * 19, RecordedEpisode(steps_s=(1.0,), is_crashed=True))
    mortal = Cluster(num_nodes=4, sessions_per_node=4, hours_between_deaths=20 / 3600, recovery_s=10.0)
    learning = Learning(batch_episodes=100, num_batches=3)
    run = simulate(episodes, mortal, learning)
    unharmed = simulate(episodes, replace(mortal, hours_between_deaths=None), learning)
    assert run.num_episodes == 300 and 900 - 3 * 6 <= run.num_steps <= 900  # who crashes twice teaches nothing
    assert run.num_run_again > unharmed.num_run_again > 0
    assert run.seconds > 1.2 * unharmed.seconds
    assert simulate(episodes, mortal, learning) == run
    assert simulate(episodes, mortal, learning, seed=1) != run


def test_a_failed_try_takes_the_time_of_some_of_its_steps_and_a_crash_that_of_all_its_tries() -> None:
    alone, learning = Cluster(num_nodes=1, sessions_per_node=1), Learning(batch_episodes=1, num_batches=1)
    again = simulate([RecordedEpisode(steps_s=(1.0,), num_retries=2)], alone, learning)
    assert (again.seconds, again.num_steps, again.num_run_again) == (pytest.approx(3), 1, 2)
    long = simulate([RecordedEpisode(steps_s=(1.0,) * 9, num_retries=1)], alone, replace(learning, num_batches=50))
    assert long.num_steps == 450 and 450 + 50 * 4 < long.seconds < 450 + 50 * 6, "half of it on average"
    crashed = RecordedEpisode(steps_s=(100.0,), num_retries=2, is_crashed=True)
    run = simulate([crashed, RecordedEpisode(steps_s=(1.0,))], alone, replace(learning, num_batches=40))
    num_crashes = round(run.seconds // 100)
    assert num_crashes > 20 and 2 * num_crashes < run.num_run_again <= 3 * num_crashes


def a_home(folder: Path, num_crashed: int, num_retried: int) -> Home:
    """100 episodes of four steps. Those that crashed had three tries, of some others the first one failed."""
    home = Home(folder)
    of_all = {"purpose": "rollout", "task_id": "t", "task_name": "t", "domain": "forms", "split": "train", "attempt": 0, "policy_id": "p"}
    of_all |= {"temperature": 1.0, "instruction": "", "environment": "e", "duration_ms": 4000.0}
    ended = of_all | {"outcome": "success", "reward": 1.0, "num_steps": 4, "error": None}
    crashed = of_all | {"outcome": "crashed", "reward": None, "num_steps": 0, "num_retries": 2, "error": "gone"}
    episodes, steps = list[dict[str, Any]](), list[dict[str, Any]]()
    of_step = {"policy_id": "p", "observation": "", "screenshot_id": None, "messages": [], "response": "", "thought": None, "action": "{}"}
    of_step |= {"prompt_token_ids": [1], "response_token_ids": [2], "response_logprobs": [], "reward": 0.0, "latency_ms": 1000.0}
    for number in range(100):
        own = {"episode_id": f"e{number}", "seed": number}
        if number < num_crashed:
            episodes.append(crashed | own)
        else:
            episodes.append(ended | own | {"num_retries": int(number < num_crashed + num_retried)})
            steps += [of_step | {"episode_id": own["episode_id"], "step_index": index} for index in range(4)]
    warehouse = Warehouse(home)
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    warehouse.replace_partition("steps", steps, iteration="0001", stage="rollouts")
    return home


@pytest.mark.parametrize("num_crashed, num_retried", [(0, 0), (10, 0), (0, 20), (10, 20)])
def test_as_many_tries_are_run_again_as_failed_in_the_home(num_crashed: int, num_retried: int, tmp_path: Path) -> None:
    home = a_home(tmp_path / "home", num_crashed, num_retried)
    command = ["plan", "simulate", "--home", str(home.root), "--profile", "smoke", "--nodes", "1", "--json"]
    found = json.loads(CliRunner().invoke(cli.app, [*command, "--batches", "20", "--batch-episodes", "100"]).stdout)
    num_failed = 3 * num_crashed + num_retried
    num_tries = 100 + 2 * num_crashed + num_retried
    assert f"of their {num_tries} tries {num_failed} failed, and {num_crashed} crashed for good" in found["rests_on"][0]
    for run in found["runs"]:
        again = run["num_run_again"]
        assert again / (run["num_episodes"] + again) == pytest.approx(num_failed / num_tries, rel=0.15), "no node died"


def test_where_no_episode_ends_by_itself_nothing_is_simulated() -> None:
    with pytest.raises(ValueError, match="of 1 recorded episodes none ended by itself"):
        simulate([RecordedEpisode(steps_s=(1.0,), is_crashed=True)], TWO_SESSIONS, ROUNDS)


def test_the_command_on_an_empty_home_reckons_with_the_plan(tmp_path: Path) -> None:
    command = ["plan", "simulate", "--home", str(tmp_path / "home"), "--profile", "smoke", "--nodes", "1,4", "--batches", "2", "--json"]
    found = json.loads(CliRunner().invoke(cli.app, [*command, "--node-price", "2", "--other-price", "1"]).stdout)
    assert [(run["nodes"], run["way"]) for run in found["runs"]] == [(1, "rounds"), (1, "streaming"), (4, "rounds"), (4, "streaming")]
    first = found["runs"][0]
    assert first["cost"] == pytest.approx(first["seconds"] / 3600 * 3)
    assert found["rests_on"][0].startswith("This home has too few episodes")
    shown = CliRunner().invoke(cli.app, command[:-1]).stdout
    assert "2 batches of" in shown and "streaming" in shown


def test_no_figure_is_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    command = ["plan", "simulate", "--home", str(tmp_path / "home"), "--profile", "smoke", "--nodes", "1,64", "--batches", "2"]
    shown = CliRunner().invoke(cli.app, [*command, "--node-price", "0.4", "--other-price", "1200"], env={"COLUMNS": "60"}).stdout
    assert "…" not in shown
    assert all(name in shown for name in ("cost", "staleness", "queues", "again"))


@pytest.mark.parametrize(
    "options, said", [(["--nodes", "1,x"], "--nodes is '1,x'"), (["--batches", "100000"], "simulate fewer, --batches ")]
)
def test_what_cannot_be_simulated_is_refused_in_words(tmp_path: Path, options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, ["plan", "simulate", "--home", str(tmp_path), "--profile", "smoke", *options])
    assert result.exit_code != 0 and said in str(result.exception)
