"""Proof that the oracles solve their tasks: runs them in live sessions and prints a table.

    python -m sandbox.miniwob.prove                                    # every task, 40 seeds each
    python -m sandbox.miniwob.prove --group quickstart --seeds 10
    python -m sandbox.miniwob.prove --tasks login-user,click-tab --disturb 0.3
    python -m sandbox.miniwob.prove --markdown docs/miniwob.md         # rewrites its rows in the table between the file's markers

Seeds are of the `train` split, for held-out tasks of `eval`: what is only ever reported stays unseen. With `--disturb P` a second run of
each seed takes a random action instead of the oracle's with probability P a step; counted is how often the oracle still succeeds where
the disturbance itself did not end the episode: what it is worth as the annotator of a policy's mistakes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sandbox.actions import Action, Click, TypeText
from sandbox.miniwob.oracles import has_oracle, oracle_action
from sandbox.miniwob.source import load_tasks
from sandbox.pool import SessionPool
from sandbox.session import Observation, Session
from sandbox.task import Split, Task
from warehouse.errors import ConfigError, SandboxError
from warehouse.identity import stable_seed

MAX_TRIES = 3
MARKERS = ("<!-- prove: begin -->", "<!-- prove: end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One episode of an oracle. `was_ended_by_noise`: a random action ended it, so that it says nothing about the oracle."""

    seed: int
    is_success: bool
    num_steps: int
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
    def failed_seeds(self) -> list[int]:
        return [attempt.seed for attempt in self.plain if not attempt.is_success]

    @property
    def mean_steps(self) -> float:
        return sum(attempt.num_steps for attempt in self.plain) / max(len(self.plain), 1)

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


async def attempt(session: Session, task: Task, seed: int, disturb: float = 0.0) -> Attempt:
    """Run one episode, with a random action instead of the oracle's with probability `disturb` a step."""
    rng = random.Random(stable_seed("prove", task.name, seed))
    observation = await session.reset(task, seed)
    history: list[Action] = []
    num_random = 0
    is_over = is_random = False
    while not is_over:
        action = random_action(observation, rng) if (is_random := rng.random() < disturb) else oracle_action(task, observation, history)
        if action is None:
            break
        num_random += is_random
        transition = await session.step(action)
        history.append(action)
        observation, is_over = transition.observation, transition.terminated or transition.truncated
    verdict = await session.evaluate()
    was_ended_by_noise = is_over and is_random and not verdict.success
    return Attempt(
        seed=seed, is_success=verdict.success, num_steps=len(history), num_random=num_random, was_ended_by_noise=was_ended_by_noise
    )


def proving_seeds(task: Task, num: int) -> list[int]:
    """The first seeds that may be looked at: of `train`, or of `eval` for a held-out task."""
    return task.seeds(Split.EVAL if task.held_out else Split.TRAIN, num)


async def prove(
    tasks: Sequence[Task], num_seeds: int, *, disturb: float = 0.0, size: int = 4, progress: Progress | None = None
) -> list[Proof]:
    """Attempt `num_seeds` instances of each task in a pool of sessions. Raises SandboxError where the browsers fail."""
    bar = progress.add_task("episodes", total=len(tasks) * num_seeds * (2 if disturb else 1)) if progress else None
    patient = {task.name: task.model_copy(update={"max_steps": task.max_steps * 3}) for task in tasks}
    async with SessionPool(size=size) as pool:

        async def one(task: Task, seed: int, disturb: float) -> Attempt:
            done = await _with_retries(pool, task, seed, disturb)
            if progress is not None and bar is not None:
                progress.update(bar, advance=1, description=task.name)
            return done

        proofs = []
        for task in tasks:
            seeds = proving_seeds(task, num_seeds)
            plain = await asyncio.gather(*(one(task, seed, 0.0) for seed in seeds))
            # Disturbances cost steps: what is asked is whether the oracle finds back, not whether it does so in time.
            disturbed = await asyncio.gather(*(one(patient[task.name], seed, disturb) for seed in seeds)) if disturb else []
            proofs.append(Proof(task=task, plain=tuple(plain), disturbed=tuple(disturbed)))
            if progress is not None:
                progress.console.print("  ".join(table_rows(proofs[-1:])[0]), f"failed {proofs[-1].failed_seeds}", highlight=False)
    return proofs


async def _with_retries(pool: SessionPool, task: Task, seed: int, disturb: float) -> Attempt:
    """A browser that fails says nothing about an oracle: the episode is run again."""
    for _ in range(MAX_TRIES - 1):
        try:
            async with pool.lease(task, screenshots=False) as session:
                return await attempt(session, task, seed, disturb)
        except SandboxError:
            continue
    async with pool.lease(task, screenshots=False) as session:
        return await attempt(session, task, seed, disturb)


COLUMNS = ("task", "domain", "split", "max steps", "solved", "mean steps", "recovers")


def table_rows(proofs: Sequence[Proof]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for proof in proofs:
        tested = proof.tested
        rows.append(
            (
                proof.task.name,
                proof.task.domain,
                "held out" if proof.task.held_out else "train",
                str(proof.task.max_steps),
                f"{proof.num_solved}/{len(proof.plain)}",
                f"{proof.mean_steps:.1f}",
                f"{sum(a.is_success for a in tested)}/{len(tested)}" if proof.disturbed else "",
            )
        )
    return rows


def print_table(proofs: Sequence[Proof], console: Console) -> None:
    table = Table()
    for column in (*COLUMNS, "failed seeds"):
        table.add_column(column, no_wrap=column == "task")
    for row, proof in zip(table_rows(proofs), proofs, strict=True):
        table.add_row(*row, " ".join(str(seed) for seed in proof.failed_seeds[:8]))
    console.print(table)
    num_solved, num = sum(proof.num_solved for proof in proofs), sum(len(proof.plain) for proof in proofs)
    console.print(f"{len(proofs)} tasks, {num_solved} of {num} episodes solved ({num_solved / max(num, 1):.3f}).")


def write_markdown(proofs: Sequence[Proof], path: Path) -> None:
    """Replace the proved tasks' rows between the markers, in the order of the task list. Raises ConfigError where there are none."""
    text = path.read_text(encoding="utf-8")
    if not all(marker in text for marker in MARKERS):
        raise ConfigError(f"{path} has no place for the table: it needs the lines {MARKERS[0]} and {MARKERS[1]}.")
    head, rest = text.split(MARKERS[0], 1)
    before, tail = rest.split(MARKERS[1], 1)
    rows = {cells[1].strip(): line for line in before.splitlines() if len(cells := line.split("|")) == len(COLUMNS) + 2}
    rows |= {row[0]: "| " + " | ".join(row) + " |" for row in table_rows(proofs)}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += [rows[name] for name in load_tasks() if name in rows]
    path.write_text(f"{head}{MARKERS[0]}\n" + "\n".join(lines) + f"\n{MARKERS[1]}{tail}", encoding="utf-8")


def chosen_tasks(names: str | None, group: str | None) -> list[Task]:
    """The tasks asked for, those with an oracle. Raises ConfigError for an unknown name."""
    tasks = load_tasks(group)
    if names is not None:
        wanted = names.split(",")
        if unknown := sorted(set(wanted) - set(tasks)):
            raise ConfigError(f"MiniWoB has no task {', '.join(unknown)}. Tasks are listed in sandbox/miniwob/tasks.yaml.")
        tasks = {name: tasks[name] for name in wanted}
    return [task for task in tasks.values() if has_oracle(task)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox.miniwob.prove", description="Prove that the oracles solve their tasks.")
    parser.add_argument("--tasks", help="names, with commas between them; default: all of the group")
    parser.add_argument("--group", help="quickstart, unseen or wide; default: wide")
    parser.add_argument("--seeds", type=int, default=40, help="instances a task (default 40)")
    parser.add_argument("--disturb", type=float, default=0.0, help="probability of a random action a step, in a second run")
    parser.add_argument("--sessions", type=int, default=4, help="sessions at a time (default 4)")
    parser.add_argument("--markdown", type=Path, help="file whose table is rewritten")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        tasks = chosen_tasks(options.tasks, options.group)
        with Progress(console=console) as progress:
            proofs = asyncio.run(prove(tasks, options.seeds, disturb=options.disturb, size=options.sessions, progress=progress))
        print_table(proofs, Console())
        if options.markdown is not None:
            write_markdown(proofs, options.markdown)
    except (ConfigError, SandboxError) as error:
        console.print(f"[red]{error}[/red]")
        return 2
    return 0 if all(proof.num_solved for proof in proofs) else 1


if __name__ == "__main__":
    sys.exit(main())
