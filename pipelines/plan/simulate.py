"""`flywheel plan simulate`: time and cost of a profile's RL on so many nodes (simulation.py), from the home's own episodes where it has
enough of them, else from the plan's assumptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import duckdb
from rich.console import Console
from rich.progress import track
from rich.table import Table

from assets.settings.profile import Profile
from models.rl.rollouts.curriculum import batch_episodes
from pipelines import profiles
from pipelines.cli.terminal import counted, fits, slim_table
from pipelines.plan.dry_run import in_time
from pipelines.plan.givens import policy_shape, see_machine
from pipelines.plan.plan import Machine
from pipelines.plan.planner import Planner
from pipelines.plan.simulation import Cluster, Learning, RecordedEpisode, Simulated, recorded_episodes, simulate
from pipelines.plan.workload import MIN_EPISODES, Measured, Workload, measure
from pipelines.stages.context import profile_tasks
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

MOST_STEPS = 3_000_000
"""Steps of one simulated run: a minute or so. A run of more is refused, with the number of batches that fits."""
WHICH = ("nodes", "way")
HOW_FAST = (*WHICH, "time", "episodes\nan hour", "of\nlinear", "busy", "waits", "cost")
WHAT_WAITS = ("staleness", "queues", "again")
"""Columns, in two groups."""
LEGEND = (
    "busy: share of the sessions' time that an episode had them; waits: of the trainer's time, for episodes; staleness: mean and most, in "
    "updates; queues: episodes that wait for a session, prompts for the policy servers, episodes for the trainer; again: tries that "
    "failed as often as the home's did, or were lost with a node."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is simulated, and what replaces a figure that the home or the plan gives; prices are of an hour."""

    nodes: tuple[int, ...]
    sessions_per_node: int | None = None
    cores_per_node: int = 2
    batches: int = 10
    batch_episodes: int | None = None
    step_s: float | None = None
    step_cpu_s: float | None = None
    answers_per_s: float | None = None
    update_s: float | None = None
    hours_between_deaths: float | None = None
    recovery_s: float = 120.0
    node_price: float | None = None
    other_price: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the simulation draws from. `rests_on`: where each came from, in sentences."""

    episodes: tuple[RecordedEpisode, ...]
    cluster: Cluster
    learning: Learning
    rests_on: tuple[str, ...]


def simulate_profile(
    home: Home, profile_name: str, overrides: Mapping[str, Any], wanted: Wanted, console: Console, *, as_json: bool = False
) -> None:
    """Print a line for each number of nodes, in rounds and streaming. Raises ConfigError."""
    profile = profiles.load(profile_name, overrides)
    inputs = inputs_of(home, profile, wanted)
    num_steps = sum(len(one.steps_s) for one in inputs.episodes) / len(inputs.episodes)
    num_steps *= inputs.learning.batch_episodes * inputs.learning.num_batches
    if num_steps > MOST_STEPS:
        most = max(1, int(inputs.learning.num_batches * MOST_STEPS / num_steps))
        raise ConfigError(
            f"{counted(inputs.learning.num_batches, 'update')} of {inputs.learning.batch_episodes:,} episodes are about "
            f"{num_steps:,.0f} steps, more than {MOST_STEPS:,}: simulate fewer, --batches {most}, or smaller ones, --batch-episodes N"
        )
    ways = {"rounds": 0, "streaming": profile.rl.batches_ahead}
    runs = [(number, way, ahead) for number in wanted.nodes for way, ahead in ways.items()]
    found: list[tuple[int, str, Simulated]] = []
    for number, way, ahead in track(runs, "simulating", console=console, transient=True, disable=as_json):
        cluster, learning = replace(inputs.cluster, num_nodes=number), replace(inputs.learning, batches_ahead=ahead)
        found.append((number, way, simulate(inputs.episodes, cluster, learning, seed=wanted.seed)))
    if as_json:
        rows = [{"nodes": number, "way": way, **asdict(run), "cost": cost(run, number, wanted)} for number, way, run in found]
        print(json.dumps({"profile": profile.name, "rests_on": inputs.rests_on, "runs": rows}, indent=2))
        return
    for table in _tables(profile, inputs, found, wanted, console):
        console.print(table)
    for line in (LEGEND, *inputs.rests_on):
        console.print(f"  {line}", highlight=False, style="dim")


def inputs_of(home: Home, profile: Profile, wanted: Wanted) -> Inputs:
    """Episodes, speeds and sizes: as wanted, else as the home's tables show, else as the profile's plan assumes."""
    shape, _ = policy_shape(profile)
    machine = see_machine(profile)
    measured, episodes, update_s = Measured(steps={}), [], None
    if home.has_tables:
        with connect(Warehouse(home)) as con:
            measured, episodes, update_s = measure(con), recorded_episodes(con), _update_seconds(con)
    work = next(work for work in Workload(profile, shape, measured).iteration(1) if work.kind == "rl")
    planner = Planner(profile, shape, machine)
    # Of servers the profile says how many sessions it has of all together.
    sessions = wanted.sessions_per_node or -(-profile.sandbox.num_sessions // max(1, len(profile.sandbox.servers)))
    alone_s, each_s = planner.answer_seconds(work, sessions)
    rests_on = []
    num_crashed = sum(one.is_crashed for one in episodes)
    if len(episodes) - num_crashed >= MIN_EPISODES:
        failed = num_crashed + sum(one.num_retries for one in episodes)
        rests_on.append(
            f"Episodes are drawn from {len(episodes):,} of this home, with the seconds that their steps took there; of their "
            f"{len(episodes) + sum(one.num_retries for one in episodes):,} tries {failed:,} failed, and {num_crashed:,} crashed for good."
        )
    else:
        episodes = assumed_episodes(profile, Workload(profile, shape, measured), alone_s)
        rests_on.append("This home has too few episodes: their lengths and the seconds of a step are the plan's assumptions.")
    if wanted.step_s is not None:
        episodes = [one if one.is_crashed else replace(one, steps_s=(wanted.step_s,) * len(one.steps_s)) for one in episodes]
        rests_on.append(f"Each step takes {wanted.step_s:g} s, as given.")
    size = wanted.batch_episodes or batch_episodes(profile.rl, max(1, _num_tasks(profile)))
    if wanted.update_s is not None:
        update_s = wanted.update_s
        rests_on.append(f"An update takes {update_s:g} s, as given.")
    elif update_s is not None:
        rests_on.append(f"An update takes {update_s:.1f} s, the mean of this home's RL runs.")
    else:
        update_s = planner.update_seconds(work) * size / max(1, work.num_episodes)
        rests_on.append(f"An update takes {update_s:.1f} s, as the plan reckons from the model's size.")
    rate = wanted.answers_per_s if wanted.answers_per_s is not None else _rate(profile, machine, each_s)
    rests_on.append("The policy servers answer as fast as they are asked." if rate is None else f"They give {rate:,.1f} answers a second.")
    step_cpu_s = profile.plan.env_cpu_s if wanted.step_cpu_s is None else wanted.step_cpu_s
    rests_on.append(f"A step takes {1000 * step_cpu_s:.0f} ms of one of the {wanted.cores_per_node} cores of its node.")
    return Inputs(
        episodes=tuple(episodes),
        cluster=Cluster(
            num_nodes=1,
            sessions_per_node=sessions,
            cores_per_node=wanted.cores_per_node,
            step_cpu_s=step_cpu_s,
            answers_per_s=rate,
            hours_between_deaths=wanted.hours_between_deaths,
            recovery_s=wanted.recovery_s,
        ),
        learning=Learning(batch_episodes=size, num_batches=wanted.batches, update_s=update_s),
        rests_on=tuple(rests_on),
    )


def assumed_episodes(profile: Profile, workload: Workload, answer_s: float) -> list[RecordedEpisode]:
    """One of each task, as long as the plan assumes."""
    step_s = profile.plan.env_latency_s + answer_s
    tasks = [task for task in profile_tasks(profile.tasks) if task.domain in profile.tasks.domains and not task.held_out]
    return [RecordedEpisode(steps_s=(step_s,) * max(1, round(workload.steps_of([task])))) for task in tasks]


def cost(run: Simulated, num_nodes: int, wanted: Wanted) -> float | None:
    """Of the whole run; None without a price of a node."""
    return None if wanted.node_price is None else run.seconds / 3600 * (num_nodes * wanted.node_price + wanted.other_price)


def _rate(profile: Profile, machine: Machine, each_s: float) -> float | None:
    """Answers a second of GPUs, which the plan knows; what a machine's own CPU gives is in the seconds of the recorded steps."""
    return 1 / each_s if each_s and (profile.engine.kind == "http" or machine.num_gpus) else None


def _num_tasks(profile: Profile) -> int:
    """Of the first specialist."""
    domain = profile.tasks.specialists[0]
    return sum(task.domain == domain and not task.held_out for task in profile_tasks(profile.tasks))


def _update_seconds(con: duckdb.DuckDBPyConnection) -> float | None:
    """Mean seconds of an RL update in this home, weights handed on included."""
    row = con.execute(
        "select sum(value) / count(distinct (iteration, stage, run, step)) from training_metrics where metric in ('update_s', 'swap_s')"
    ).fetchone()
    return None if row is None or row[0] is None else float(row[0])


def _tables(profile: Profile, inputs: Inputs, found: Sequence[tuple[int, str, Simulated]], wanted: Wanted, console: Console) -> list[Table]:
    """One where the console is wide enough for it, else two, so that no figure is cut."""
    learning = inputs.learning
    title = (
        f"profile {profile.name}: {learning.num_batches} batches of {learning.batch_episodes:,} episodes, "
        f"{inputs.cluster.sessions_per_node} sessions a node"
    )
    first = {way: (number, run.steps_per_s) for number, way, run in reversed(found)}
    rows = [_figures(number, way, run, first[way], cost(run, number, wanted)) for number, way, run in found]
    whole = _table(title, rows, [*HOW_FAST, *WHAT_WAITS])
    return [whole] if fits(whole, console) else [_table(title, rows, HOW_FAST), _table(None, rows, [*WHICH, *WHAT_WAITS])]


def _table(title: str | None, rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> Table:
    table, shown = slim_table(title), [name for name in names if name in rows[0]]
    for name in shown:
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _figures(number: int, way: str, run: Simulated, first: tuple[int, float], price: float | None) -> dict[str, str]:
    """By the names of columns. `first`: the fewest nodes of this way, and their steps a second."""
    nodes, rate = first
    row = {
        "nodes": f"{number:,}",
        "way": way,
        "time": in_time(run.seconds),
        "episodes\nan hour": f"{run.episodes_per_h:,.0f}",
        "of\nlinear": f"{run.steps_per_s / rate * nodes / number:.2f}",
        "busy": f"{run.sessions_busy:.0%}",
        "waits": f"{run.trainer_idle:.0%}",
        "staleness": f"{run.staleness_mean:.1f} ≤ {run.staleness_max}",
        "queues": f"{run.queue_waiting:,.0f}/{run.queue_server:,.0f}/{run.queue_finished:,.0f}",
        "again": f"{run.num_run_again:,}",
    }
    return row if price is None else {**row, "cost": f"{price:,.2f}"}
