"""Proof that the oracles solve their tasks: they play in live sessions, through the same input as a policy, and a table shows the results.

    python -m sandbox.tasks.prove games terminal hybrid                          # every task of these sources, 3 seeds each
    python -m sandbox.tasks.prove miniwob:quickstart --seeds 10 --disturb 0.3
    python -m sandbox.tasks.prove mine --source press.py:SOURCE                  # a source of your own
    python -m sandbox.tasks.prove games --tasks snake-apples-2,2048-tile-16
    python -m sandbox.tasks.prove games --markdown docs/games.md                 # rewrites its rows in the table between the file's markers

Seeds are of the `train` split, for held-out tasks of `eval`: what is only ever reported stays unseen. With `--disturb P` a second run of
each seed takes a random action instead of the oracle's with probability P a step; counted is how often the oracle still succeeds where
the disturbance itself did not end the episode: what it is worth as the annotator of a policy's mistakes. The mean score at the end of a
game is what games/tasks.yaml gives as its reference.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sandbox.actions import Action, Click, TypeText
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.session import Observation, Session
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, SandboxError
from warehouse.core.identity import stable_seed

MAX_TRIES = 3
MARKERS = ("<!-- prove: begin -->", "<!-- prove: end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One episode of an oracle. `was_ended_by_noise`: a random action ended it, so that it says nothing about the oracle."""

    seed: int
    is_success: bool
    num_steps: int
    reason: str = ""
    score: float | None = None
    """Of a game."""
    num_random: int = 0
    was_ended_by_noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All attempts at one task."""

    task: Task
    plain: tuple[Attempt, ...]
    disturbed: tuple[Attempt, ...] = ()

    @property
    def num_solved(self) -> int:
        return sum(attempt.is_success for attempt in self.plain)

    @property
    def failed(self) -> list[Attempt]:
        return [attempt for attempt in self.plain if not attempt.is_success]

    @property
    def tested(self) -> list[Attempt]:
        """Disturbed attempts that the disturbance did not end, and that were disturbed at all."""
        return [attempt for attempt in self.disturbed if attempt.num_random and not attempt.was_ended_by_noise]


def random_action(observation: Observation, rng: random.Random) -> Action | None:
    """What a poor policy might do: click anything, or type something where a field has the focus."""
    if not observation.elements:
        return None
    if any("focused" in element.states for element in observation.elements) and rng.random() < 0.5:
        return TypeText(text=rng.choice(["Ok", "abc", "7", "x1"]))
    element = rng.choice(observation.elements)
    return Click(x=element.x_px, y=element.y_px)


Watch = Callable[[Observation, Action], None]
"""Called with each observation and the action taken on it."""


async def attempt(session: Session, task: Task, seed: int, disturb: float = 0.0, watch: Watch | None = None) -> Attempt:
    """Run one episode, with a random action instead of the oracle's with probability `disturb` a step."""
    rng = random.Random(stable_seed("prove", task.name, seed))
    observation = await session.reset(task, seed)
    num_steps = num_random = 0
    score: float | None = None
    is_over = is_random = False
    while not is_over:
        action = random_action(observation, rng) if (is_random := rng.random() < disturb) else await session.oracle_action()
        if action is None:
            break
        if watch is not None:
            watch(observation, action)
        num_random += is_random
        transition = await session.step(action)
        num_steps += 1
        score = transition.info.get("game", {}).get("score", score)
        observation, is_over = transition.observation, transition.terminated or transition.truncated
    verdict = await session.evaluate()
    return Attempt(
        seed=seed,
        is_success=verdict.success,
        num_steps=num_steps,
        reason=" ".join(verdict.reasons),
        score=score,
        num_random=num_random,
        was_ended_by_noise=is_over and is_random and not verdict.success,
    )


def proving_seeds(task: Task, num: int) -> list[int]:
    """The first seeds that may be looked at: of `train`, or of `eval` for a held-out task; none of one that is only reported."""
    return task.seeds(Split.EVAL if task.held_out else Split.TRAIN, num)


async def prove(
    tasks: Sequence[Task], num_seeds: int, *, disturb: float = 0.0, settings: FleetSettings | None = None, progress: Progress | None = None
) -> list[Proof]:
    """Attempt `num_seeds` instances of each task on a fleet. Raises SandboxError where the environments fail."""
    bar = progress.add_task("episodes", total=len(tasks) * num_seeds * (2 if disturb else 1)) if progress else None
    async with Fleet(settings or FleetSettings()) as fleet:
        places = asyncio.Semaphore(fleet.size)

        async def one(task: Task, seed: int, disturb: float) -> Attempt:
            async with places:
                done = await _with_retries(fleet, task, seed, disturb)
            if progress is not None and bar is not None:
                progress.update(bar, advance=1, description=task.name)
            return done

        async def all_of(task: Task) -> Proof:
            seeds = proving_seeds(task, num_seeds)
            plain = await asyncio.gather(*(one(task, seed, 0.0) for seed in seeds))
            # Disturbances cost steps: what is asked is whether the oracle finds back, not whether it does so in time.
            patient = task.model_copy(update={"max_steps": task.max_steps * 3})
            disturbed = await asyncio.gather(*(one(patient, seed, disturb) for seed in seeds)) if disturb else []
            return Proof(task=task, plain=tuple(plain), disturbed=tuple(disturbed))

        return list(await asyncio.gather(*(all_of(task) for task in tasks)))


async def _with_retries(fleet: Fleet, task: Task, seed: int, disturb: float) -> Attempt:
    """An environment that fails says nothing about an oracle: the episode is run again."""
    for _ in range(MAX_TRIES - 1):
        try:
            async with fleet.lease(task, screenshots=False) as session:
                return await attempt(session, task, seed, disturb)
        except SandboxError as error:
            if not error.is_retryable:
                raise
    async with fleet.lease(task, screenshots=False) as session:
        return await attempt(session, task, seed, disturb)


COLUMNS = ("task", "domain", "split", "max steps", "solved", "mean steps", "mean score", "recovers")


def table_row(proof: Proof) -> tuple[str, ...]:
    scores = [attempt.score for attempt in proof.plain if attempt.score is not None]
    return (
        proof.task.name,
        proof.task.domain,
        "held out" if proof.task.held_out else "train",
        str(proof.task.max_steps),
        f"{proof.num_solved}/{len(proof.plain)}",
        f"{mean(attempt.num_steps for attempt in proof.plain):.1f}" if proof.plain else "",
        f"{mean(scores):.0f}" if scores else "",
        f"{sum(attempt.is_success for attempt in proof.tested)}/{len(proof.tested)}" if proof.disturbed else "",
    )


def print_table(proofs: Sequence[Proof], console: Console) -> None:
    table = Table()
    for column in (*COLUMNS, "failed seeds"):
        table.add_column(column, no_wrap=column == "task")
    for proof in proofs:
        table.add_row(*table_row(proof), "; ".join(f"{attempt.seed}: {attempt.reason}" for attempt in proof.failed[:4]))
    console.print(table)
    num_solved, num = sum(proof.num_solved for proof in proofs), sum(len(proof.plain) for proof in proofs)
    console.print(f"{len(proofs)} tasks, {num_solved} of {num} episodes solved ({num_solved / max(num, 1):.3f}).")


def write_markdown(proofs: Sequence[Proof], path: Path) -> None:
    """Replace the proved tasks' rows between the markers; tasks that have no row yet come last. Raises ConfigError without markers."""
    text = path.read_text(encoding="utf-8")
    if not all(marker in text for marker in MARKERS):
        raise ConfigError(f"{path} has no place for the table: it needs the lines {MARKERS[0]} and {MARKERS[1]}.")
    head, rest = text.split(MARKERS[0], 1)
    before, tail = rest.split(MARKERS[1], 1)
    rows = {cells[1].strip(): line for line in before.splitlines()[3:] if len(cells := line.split("|")) == len(COLUMNS) + 2}
    rows |= {proof.task.name: "| " + " | ".join(table_row(proof)) + " |" for proof in proofs}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS), *rows.values()]
    path.write_text(f"{head}{MARKERS[0]}\n" + "\n".join(lines) + f"\n{MARKERS[1]}{tail}", encoding="utf-8")


def chosen_tasks(selections: Sequence[str], names: str | None = None) -> list[Task]:
    """The tasks of the selections, or those of them that are named. Raises ConfigError for an unknown name."""
    tasks = tasks_in(selections)
    if names is None:
        return list(tasks.values())
    if unknown := sorted(set(names.split(",")) - set(tasks)):
        raise ConfigError(f"{', '.join(selections)}: no task is called {', '.join(unknown)}; each source's tasks.yaml lists them.")
    return [tasks[name] for name in names.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox.tasks.prove", description="Prove that the oracles solve their tasks.")
    parser.add_argument("selections", nargs="+", metavar="SELECTION", help=f"source or source:group; sources are {', '.join(SOURCES)}")
    parser.add_argument("--tasks", help="names, with commas between them; default: all of the selections")
    parser.add_argument("--seeds", type=int, default=3, help="instances a task (default 3)")
    parser.add_argument("--disturb", type=float, default=0.0, help="probability of a random action a step, in a second run")
    parser.add_argument("--workers", type=int, help="worker processes (default: one a core)")
    parser.add_argument("--sessions", type=int, default=2, help="sessions in each worker (default 2)")
    parser.add_argument("--markdown", type=Path, help="file whose table is rewritten")
    parser.add_argument("--source", action="append", help="a task source of your own, module:attribute or path/to/file.py:attribute")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        if options.source:
            SOURCES.use(options.source, Path.cwd(), keep=True)
        tasks = chosen_tasks(options.selections, options.tasks)
        workers = {} if options.workers is None else {"max_workers": options.workers}
        settings = FleetSettings(sessions_per_worker=options.sessions, **workers)
        with Progress(console=console) as progress:
            proofs = asyncio.run(prove(tasks, options.seeds, disturb=options.disturb, settings=settings, progress=progress))
        print_table(proofs, Console())
        if options.markdown is not None:
            write_markdown(proofs, options.markdown)
    except (ConfigError, SandboxError) as error:
        console.print(f"[red]{error}[/red]")
        return 2
    return 1 if any(proof.failed for proof in proofs) else 0


if __name__ == "__main__":
    sys.exit(main())
