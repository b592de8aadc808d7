"""Proof that the games' oracles reach the goals of their tasks: plays them in live sessions and prints a table.

    python -m sandbox.games.prove                                  # every task, 3 seeds each
    python -m sandbox.games.prove --tasks snake-apples-2,2048-tile-16 --seeds 10
    python -m sandbox.games.prove --markdown docs/games.md         # rewrites its rows in the table between the file's markers

Seeds are of the `train` split, for held-out tasks of `eval`: what is only ever reported stays unseen. The mean score at the end of a task
is what tasks.yaml gives as its reference.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.games.source import GamesSource, entry_of, load_tasks
from sandbox.pool import SessionPool
from sandbox.session import Session
from sandbox.task import Split, Task
from warehouse.errors import ConfigError, SandboxError

MARKERS = ("<!-- prove: begin -->", "<!-- prove: end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One episode of an oracle."""

    seed: int
    is_success: bool
    num_steps: int
    score: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All attempts at one task."""

    task: Task
    attempts: tuple[Attempt, ...]

    @property
    def failed(self) -> list[str]:
        return [f"{each.seed}: {each.reason}" for each in self.attempts if not each.is_success]

    def row(self) -> tuple[str, ...]:
        entry = entry_of(self.task)
        return (
            self.task.name,
            entry.difficulty,
            str(entry.level),
            f"{entry.goal} {entry.target:g}",
            str(self.task.max_steps),
            f"{len(self.attempts) - len(self.failed)}/{len(self.attempts)}",
            f"{statistics.mean(each.num_steps for each in self.attempts):.1f}",
            f"{statistics.mean(each.score for each in self.attempts):.0f}",
            f"{entry.reference:g}",
        )


COLUMNS = ("task", "difficulty", "level", "goal", "max steps", "solved", "mean steps", "mean score", "reference")


def proving_seeds(task: Task, num: int) -> list[int]:
    """The first seeds that may be looked at: of `train`, or of `eval` for a held-out task."""
    return task.seeds(Split.EVAL if task.held_out else Split.TRAIN, num)


async def attempt(session: Session, task: Task, seed: int) -> Attempt:
    """One episode of the oracle, by the hints of the session."""
    await session.reset(task, seed)
    num_steps, score, is_over = 0, 0.0, False
    while not is_over and (action := await session.hint()) is not None:
        transition = await session.step(action)
        num_steps += 1
        score = transition.info["game"]["score"]
        is_over = transition.terminated or transition.truncated
    verdict = await session.evaluate()
    return Attempt(seed=seed, is_success=verdict.success, num_steps=num_steps, score=score, reason=" ".join(verdict.reasons))


async def prove(tasks: Sequence[Task], num_seeds: int, *, size: int = 2) -> list[Proof]:
    """Play `num_seeds` instances of each task in a pool of sessions. Raises SandboxError where the browsers fail."""
    async with SessionPool({"games": GamesSource()}, size=size) as pool:

        async def one(task: Task, seed: int) -> Attempt:
            async with pool.lease(task, screenshots=False) as session:
                return await attempt(session, task, seed)

        return [
            Proof(task=task, attempts=tuple(await asyncio.gather(*(one(task, seed) for seed in proving_seeds(task, num_seeds)))))
            for task in tasks
        ]


def print_table(proofs: Sequence[Proof], console: Console) -> None:
    table = Table()
    for column in (*COLUMNS, "failed seeds"):
        table.add_column(column, no_wrap=column == "task")
    for proof in proofs:
        table.add_row(*proof.row(), "; ".join(proof.failed[:4]))
    console.print(table)


def write_markdown(proofs: Sequence[Proof], path: Path) -> None:
    """Replace the proved tasks' rows between the markers, in the order of the task list. Raises ConfigError where there are none."""
    text = path.read_text(encoding="utf-8")
    if not all(marker in text for marker in MARKERS):
        raise ConfigError(f"{path} has no place for the table: it needs the lines {MARKERS[0]} and {MARKERS[1]}.")
    head, rest = text.split(MARKERS[0], 1)
    before, tail = rest.split(MARKERS[1], 1)
    rows = {cells[1].strip(): line for line in before.splitlines() if len(cells := line.split("|")) == len(COLUMNS) + 2}
    rows |= {proof.task.name: "| " + " | ".join(proof.row()) + " |" for proof in proofs}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += [rows[name] for name in load_tasks() if name in rows]
    path.write_text(f"{head}{MARKERS[0]}\n" + "\n".join(lines) + f"\n{MARKERS[1]}{tail}", encoding="utf-8")


def chosen_tasks(names: str | None, group: str) -> list[Task]:
    """The tasks asked for. Raises ConfigError for an unknown name."""
    if names is None:
        return list(load_tasks(group).values())
    tasks = load_tasks()
    if unknown := sorted(set(names.split(",")) - set(tasks)):
        raise ConfigError(f"The games have no task {', '.join(unknown)}. Tasks are listed in sandbox/games/tasks.yaml.")
    return [tasks[name] for name in names.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox.games.prove", description="Prove that the games' oracles reach the goals.")
    parser.add_argument("--tasks", help="names, with commas between them; default: all of the group")
    parser.add_argument("--group", default="all", help="a group of tasks.yaml, or all (default)")
    parser.add_argument("--seeds", type=int, default=3, help="instances a task (default 3)")
    parser.add_argument("--sessions", type=int, default=2, help="sessions at a time (default 2)")
    parser.add_argument("--markdown", type=Path, help="file whose table is rewritten")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        proofs = asyncio.run(prove(chosen_tasks(options.tasks, options.group), options.seeds, size=options.sessions))
        print_table(proofs, Console())
        if options.markdown is not None:
            write_markdown(proofs, options.markdown)
    except (ConfigError, SandboxError) as error:
        console.print(f"[red]{error}[/red]")
        return 2
    return 1 if any(proof.failed for proof in proofs) else 0


if __name__ == "__main__":
    sys.exit(main())
