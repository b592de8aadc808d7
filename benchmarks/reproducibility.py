"""Reproducibility: the same task, seed and actions on two workers, each with a browser of its own; do screens, elements and rewards agree?

Of every task two episodes are played on the first worker: one by its oracle, one by anything a poor policy might do. What was done is then
done again on the second worker, whose pages have seen other tasks before, in another order. Every difference is listed by task, seed,
step and what differs; rerun it to learn whether it comes back.

    python -m benchmarks.reproducibility                                   # miniwob and games
    python -m benchmarks.reproducibility hybrid --seeds 3 --json .bench/reproducibility.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sandbox import actions
from sandbox.actions import Action
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.session import Element, Observation, Session
from sandbox.tasks.prove import proving_seeds
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, SandboxError
from warehouse.core.identity import stable_seed

STRAY_STEPS = 8
"""Actions of an episode that no oracle plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a step showed."""

    screenshot_id: str | None
    elements: tuple[Element, ...]
    output: str
    time_ms: float
    reward: float
    is_over: bool

    def differs(self, other: Snapshot) -> list[str]:
        return [name for name in Snapshot.__slots__ if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An episode: what was done, and what it showed, the start first."""

    actions: tuple[Action, ...]
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs of one episode that did not agree, at the first step where they did not (0: the start)."""

    task: str
    seed: int
    player: str
    step: int
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was compared."""

    num_tasks: int
    num_episodes: int
    num_screens: int
    num_distinct_screens: int
    differences: tuple[Difference, ...]


def any_action(observation: Observation, generator: random.Random) -> Action:
    """Anything a policy might do, so that episodes go astray in every way."""
    element = generator.choice(observation.elements) if observation.elements else None
    width_px, height_px = observation.width_px, observation.height_px
    point = (element.x_px, element.y_px) if element else (generator.randrange(width_px), generator.randrange(height_px))
    other = {"x": generator.randrange(width_px), "y": generator.randrange(height_px * 2 // 7, height_px)}
    choices: list[Action] = [
        actions.Click(x=point[0], y=point[1]),
        actions.Click(x=point[0], y=point[1]),
        actions.Click(**other),
        actions.MoveTo(x=point[0], y=point[1]),
        actions.TypeText(text=generator.choice(["ab", "x\n", "Zoë"])),
        actions.Hotkey(keys=(generator.choice(["tab", "enter", "down", "escape"]),)),
        actions.Scroll(direction="down", **other),
        actions.Drag(x=point[0], y=point[1], to_x=other["x"], to_y=other["y"]),
        actions.Wait(seconds=0.3),
    ]
    return generator.choice(choices)


Player = Callable[[Session, Observation, int], Awaitable[Action | None]]
"""Chooses the next action from the session, what it shows and how many actions were done; None: the episode is over for it."""


async def oracle(session: Session, observation: Observation, num_done: int) -> Action | None:
    return await session.oracle_action()


def stray(seed: int) -> Player:
    """A policy that does whatever comes to mind."""
    generator = random.Random(seed)

    async def choose(session: Session, observation: Observation, num_done: int) -> Action | None:
        return any_action(observation, generator) if num_done < STRAY_STEPS else None

    return choose


def follower(actions: Sequence[Action]) -> Player:
    """Does again what was done."""

    async def choose(session: Session, observation: Observation, num_done: int) -> Action | None:
        return actions[num_done] if num_done < len(actions) else None

    return choose


async def play(session: Session, task: Task, seed: int, player: Player) -> Trace:
    """One episode."""
    observation = await session.reset(task, seed)
    done: list[Action] = []
    snapshots = [_snapshot(observation, 0.0, False)]
    while not snapshots[-1].is_over and (action := await player(session, observation, len(done))) is not None:
        transition = await session.step(action)
        observation = transition.observation
        done.append(action)
        snapshots.append(_snapshot(observation, transition.reward, transition.terminated or transition.truncated))
    return Trace(actions=tuple(done), snapshots=tuple(snapshots))


def _snapshot(observation: Observation, reward: float, is_over: bool) -> Snapshot:
    return Snapshot(
        screenshot_id=observation.screenshot_id,
        elements=observation.elements,
        output=observation.output,
        time_ms=observation.time_ms,
        reward=reward,
        is_over=is_over,
    )


async def compare(tasks: Sequence[Task], num_seeds: int, progress: Progress | None = None) -> Report:
    """Play on one worker, follow on another. Raises SandboxError where the environments fail."""
    bar = progress.add_task("episodes", total=len(tasks) * num_seeds * 4) if progress else None
    one_worker = FleetSettings(max_workers=1, sessions_per_worker=2)
    episodes = [(task, seed, name) for task in tasks for seed in proving_seeds(task, num_seeds) for name in ("oracle", "stray")]
    shuffled = random.Random(0).sample(range(len(episodes)), len(episodes))

    async def on(fleet: Fleet, places: asyncio.Semaphore, number: int, player: Player) -> Trace:
        task, seed, _ = episodes[number]
        async with places, fleet.lease(task) as session:
            trace = await play(session, task, seed, player)
        if progress is not None and bar is not None:
            progress.update(bar, advance=1, description=task.name)
        return trace

    def player_of(number: int) -> Player:
        task, seed, name = episodes[number]
        return oracle if name == "oracle" else stray(stable_seed("reproducibility", task.name, seed))

    async with Fleet(one_worker) as first, Fleet(one_worker) as second:
        places = asyncio.Semaphore(first.size)
        played = await asyncio.gather(*(on(first, places, number, player_of(number)) for number in range(len(episodes))))
        places = asyncio.Semaphore(second.size)
        again = await asyncio.gather(*(on(second, places, number, follower(played[number].actions)) for number in shuffled))

    differences = []
    for number, trace in sorted(zip(shuffled, again, strict=True), key=lambda pair: pair[0]):
        task, seed, name = episodes[number]
        if (found := first_difference(played[number], trace)) is not None:
            differences.append(Difference(task=task.name, seed=seed, player=name, step=found[0], what=tuple(found[1])))
    screens = [snapshot.screenshot_id for trace in played for snapshot in trace.snapshots]
    return Report(
        num_tasks=len(tasks),
        num_episodes=len(episodes),
        num_screens=len(screens),
        num_distinct_screens=len(set(screens)),
        differences=tuple(differences),
    )


def first_difference(before: Trace, after: Trace) -> tuple[int, list[str]] | None:
    """The first step that does not agree, and in what; `the end` where one episode goes on."""
    for step, (one, other) in enumerate(zip(before.snapshots, after.snapshots, strict=False)):
        if what := one.differs(other):
            return step, what
    if len(before.snapshots) != len(after.snapshots):
        return min(len(before.snapshots), len(after.snapshots)), ["the end"]
    return None


def print_report(report: Report, console: Console) -> None:
    console.print(
        f"{report.num_tasks} tasks, {report.num_episodes} episodes on two workers each: {report.num_screens} screens, "
        f"{report.num_distinct_screens} of them distinct; {len(report.differences)} episodes differ."
    )
    if report.differences:
        table = Table("task", "seed", "player", "step", "what differs first")
        for each in report.differences:
            table.add_row(each.task, str(each.seed), each.player, str(each.step), ", ".join(each.what))
        console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproducibility", description="Same seed and actions on two workers.")
    parser.add_argument("selections", nargs="*", metavar="SELECTION", help=f"source or source:group of {', '.join(SOURCES)}")
    parser.add_argument("--tasks", help="names, with commas between them; default: all of the selections")
    parser.add_argument("--seeds", type=int, default=1, help="instances a task (default 1)")
    parser.add_argument("--json", type=Path, help="file for the report")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        tasks = tasks_in(options.selections or ["miniwob", "games:all"])
        names = options.tasks.split(",") if options.tasks else list(tasks)
        if unknown := sorted(set(names) - set(tasks)):
            raise ConfigError(f"No task is called {', '.join(unknown)}.")
        with Progress(console=console) as progress:
            report = asyncio.run(compare([tasks[name] for name in names], options.seeds, progress))
    except (ConfigError, SandboxError) as error:
        console.print(f"[red]{error}[/red]")
        return 2
    print_report(report, Console())
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(report), indent=2), encoding="utf-8")
    return 1 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
