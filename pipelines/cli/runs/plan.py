"""`flywheel plan …`: its options. What it does is pipelines/plan/simulate.py's."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.options import HomeOption, ProfileOption, SetOption, console, home_of, profile_of
from warehouse.core.errors import ConfigError

plan = typer.Typer(no_args_is_help=True, help="Runs on paper: what more machines would come to. `flywheel run --dry-run` plans this one.")


@plan.callback()
def _plan() -> None:
    """Keeps `simulate` a command of its own while it is the only one."""


@plan.command("simulate")
def simulate(
    nodes: Annotated[str, typer.Option(help="Numbers of machines that run episodes, comma-separated.")] = "1,2,4,8",
    sessions: Annotated[int | None, typer.Option(min=1, help="Episodes at once on each \\[default: as the profile].")] = None,
    cores: Annotated[int, typer.Option(min=1, help="Processors of each.")] = 2,
    batches: Annotated[int, typer.Option(min=1, help="Updates to simulate.")] = 10,
    batch_episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of an update \\[default: as the profile].")] = None,
    step_s: Annotated[float | None, typer.Option(min=0, help="Seconds of a step \\[default: as this home's episodes].")] = None,
    step_cpu_s: Annotated[float | None, typer.Option(min=0, help="Seconds of a processor in each \\[default: plan.env_cpu_s].")] = None,
    answers_per_s: Annotated[float | None, typer.Option(min=1e-6, help="Of all policy servers together \\[default: planned].")] = None,
    update_s: Annotated[float | None, typer.Option(min=0, help="Seconds of an update \\[default: as this home's RL].")] = None,
    hours_between_deaths: Annotated[
        float | None, typer.Option(min=1e-3, help="Mean hours until a node is lost \\[default: none is].")
    ] = None,
    recovery_s: Annotated[float, typer.Option(min=0, help="Seconds until another node is in its place.")] = 120.0,
    node_price: Annotated[float | None, typer.Option(min=0, help="Of one node and hour: adds what the run costs.")] = None,
    other_price: Annotated[float, typer.Option(min=0, help="Of an hour of trainer and policy servers.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Which episodes are drawn, and when nodes die.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Simulate a profile's RL on more machines: time, queues, staleness and cost, in rounds and streaming, from this home's own episodes.

    flywheel plan simulate --nodes 1,10,100,1000 --node-price 0.4

    flywheel plan simulate --profile full-2b --nodes 8,32 --hours-between-deaths 24
    """
    from pipelines.plan.simulate import Wanted, simulate_profile

    try:
        numbers = tuple(int(number) for number in nodes.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--nodes is {nodes!r}: give numbers from 1 on, comma-separated, e.g. 1,2,4,8")
    wanted = Wanted(
        nodes=numbers,
        sessions_per_node=sessions,
        cores_per_node=cores,
        batches=batches,
        batch_episodes=batch_episodes,
        step_s=step_s,
        step_cpu_s=step_cpu_s,
        answers_per_s=answers_per_s,
        update_s=update_s,
        hours_between_deaths=hours_between_deaths,
        recovery_s=recovery_s,
        node_price=node_price,
        other_price=other_price,
        seed=seed,
    )
    place = home_of(home)
    simulate_profile(place, *profile_of(place, profile, set_), wanted, console, as_json=as_json)
