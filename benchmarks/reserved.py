"""What it costs to keep evaluated contents out of training: how often a train instance is refused at reset, and the time of the check.

    python -m benchmarks.reserved miniwob:quickstart --seeds 200

A row a task: different first screens among the seeds that its index looked at, instances for each of eval, holdout and report, train seeds
refused at their first draw, and milliseconds a reset: without the check, with it, and of the check's own work (one process, one session;
wall clock, and so only as good as the machine is quiet; the check's work is CPU time).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.browser.backend import launch
from sandbox.browser.page_session import PageSession
from sandbox.session import first_content
from sandbox.tasks.reserved import reserved_of
from sandbox.tasks.sources import page_tasks, tasks_of
from sandbox.tasks.task import Split, Task
from warehouse.core.home import atomic_write

CHECKS = 20
"""Times that a content is read to time it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    task: str
    num_contents: int
    num_each: int
    """Instances of each of eval, holdout and report; the fewest of the three."""
    num_seeds: int
    num_refused: int
    begin_ms: float
    reset_ms: float
    check_ms: float


async def measure(tasks: Sequence[Task], num_seeds: int) -> list[Cost]:
    host = await launch("auto")
    session = PageSession(host.open_page, page_tasks(), screenshots=False)
    try:
        return [cost for task in tasks if (cost := await _of_task(session, task, num_seeds)) is not None]
    finally:
        await session.close()
        await host.close()


async def _of_task(session: PageSession, task: Task, num_seeds: int) -> Cost | None:
    reserved = reserved_of(task.source, task.name)
    if reserved is None or task.held_out:
        return None
    seeds = task.seeds(Split.TRAIN, num_seeds)
    observation = await session.begin(task, seeds[0])  # the page is loaded
    begun = time.perf_counter()
    for seed in seeds:
        observation = await session.begin(task, seed)
    between, before = time.perf_counter(), session.num_refused
    for seed in seeds:
        observation = await session.reset(task, seed)
    done, cpu = time.perf_counter(), time.process_time()
    for _ in range(CHECKS):
        first_content(observation)
    return Cost(
        task=task.name,
        num_contents=reserved.contents.num_contents,
        num_seeds=num_seeds,
        num_refused=session.num_refused - before,
        num_each=min(len(reserved.seeds(split)) for split in (Split.EVAL, Split.HOLDOUT, Split.REPORT)),
        begin_ms=1000 * (between - begun) / num_seeds,
        reset_ms=1000 * (done - between) / num_seeds,
        check_ms=1000 * (time.process_time() - cpu) / CHECKS,
    )


def show(costs: Sequence[Cost], console: Console) -> None:
    drawn = Table()
    for column in ("task", "contents", "each split", "refused", "reset, ms", "with the check", "the check, ms"):
        drawn.add_column(column, justify="left" if column == "task" else "right")
    for each in costs:
        refused = f"{each.num_refused} of {each.num_seeds}"
        times = (f"{ms:.2f}" for ms in (each.begin_ms, each.reset_ms, each.check_ms))
        drawn.add_row(each.task, str(each.num_contents), str(each.num_each or "–"), refused, *times)
    console.print(drawn)
    seeds, refused_all = sum(each.num_seeds for each in costs), sum(each.num_refused for each in costs)
    console.print(f"{refused_all} of {seeds} train instances refused ({refused_all / seeds:.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("selection", nargs="?", default="miniwob:quickstart")
    parser.add_argument("--seeds", type=int, default=200, help="train instances a task (default: 200)")
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()
    costs = asyncio.run(measure(tasks_of(options.selection), options.seeds))
    show(costs, Console())
    if options.json is not None:
        atomic_write(options.json, (json.dumps([asdict(cost) for cost in costs], indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
