"""How far lessons stay from tasks: sketches of both side by side (benchmarks/common/sketches.py), wording left out.

Two tasks of different families are some distance apart, in the middle `reach`. A lesson that is nearer than that to a task is as good as
an instance of it, and counts for it. Lessons may teach how a screen is read; they may not be a task in other words: so at most one in a
hundred counts for any task, three for all tasks together, and none for a task of the list `unseen`.

`sample` plays the tasks in Chromium, by their oracles, on training instances (of tasks that are held out: eval instances), and keeps the
sketches in benchmarks/task_sketches.json; without it, the lessons as they are now are held beside those, and beside what earlier lessons
made, which were the tasks in other words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from assets.seed_data.curricula import lessons_of
from assets.seed_data.lessons import Lesson
from assets.seed_data.text_sampler import TextSampler
from assets.seed_data.vocabulary import words
from benchmarks.common.sketches import Sketch, nearest_task, reach, read, sketch, taken, written
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks, task_file
from sandbox.tasks.task import Split, Task
from warehouse.core.home import atomic_write

TASKS = Path(__file__).with_name("task_sketches.json")
EARLIER = Path(__file__).with_name("earlier_lesson_sketches.json")
"""Of 2,000 lessons as they were until they were held beside tasks."""
INSTANCES = 6
NUM_SESSIONS = 4
MAX_SHARE, MAX_SHARE_OF_ALL = 0.01, 0.03


async def sample(tasks: Mapping[str, Task], num: int) -> dict[str, list[Sketch]]:
    """Sketches of the oracles' solved episodes, by task; a task that they do not solve is left out."""
    found: dict[str, list[Sketch]] = defaultdict(list)
    gate = asyncio.Semaphore(NUM_SESSIONS)
    async with SessionPool(size=NUM_SESSIONS, num_browsers=1) as pool:

        async def play(task: Task, seed: int) -> None:
            async with gate, pool.lease(task, screenshots=False) as session:
                observation, steps = await session.reset(task, seed), []
                while len(steps) < task.max_steps and (action := await session.oracle_action()) is not None:
                    steps.append((observation, action))
                    after = await session.step(action)
                    observation = after.observation
                    if after.terminated:
                        break
                if steps and (await session.evaluate()).success:
                    found[task.name].append(sketch(steps))

        split = {name: Split.EVAL if task.held_out else Split.TRAIN for name, task in tasks.items()}
        await asyncio.gather(*(play(task, seed) for name, task in tasks.items() for seed in task.seeds(split[name], num)))
    return {name: found[name] for name in sorted(found)}


def sampled() -> dict[str, list[Sketch]]:
    """The task sketches that are kept."""
    return {name: read(rows) for name, rows in json.loads(TASKS.read_text()).items()}


def earlier() -> dict[str, list[Sketch]]:
    """Sketches of earlier lessons, by kind."""
    return {kind: read(rows) for kind, rows in json.loads(EARLIER.read_text()).items()}


def drawn(num: int, curriculum: str = "web") -> dict[str, list[Sketch]]:
    """Sketches of `num` lessons as tutorials draw them, by kind."""
    makers, shares = zip(*lessons_of(curriculum), strict=True)
    found: dict[str, list[Sketch]] = defaultdict(list)
    for index in range(num):
        rng = random.Random(f"sketch/{index}")
        (make,) = rng.choices(makers, shares)
        found[make.__name__].append(sketch(acted_out(make(TextSampler(rng, words(curriculum))))))
    return dict(found)


def acted_out(lesson: Lesson) -> list[tuple[Any, Any]]:
    """What is seen and done at each step of a lesson."""
    steps = []
    for move in lesson.moves:
        observation = lesson.page.observe(lesson.instruction)
        steps.append((observation, lesson.page.action(move)))
        lesson.page.carry_out(move)
    return steps


def print_report(name: str, lessons: Mapping[str, Sequence[Sketch]], tasks: Mapping[str, Sequence[Sketch]], console: Console) -> None:
    """Which tasks the lessons count for, and how near each kind of lesson comes to any."""
    within = reach(tasks)
    shares = taken((one for of in lessons.values() for one in of), tasks, within)
    reported = ", ".join(f"{task} {share:.1%}" for task, share in shares.items()) or "none"
    num = sum(map(len, lessons.values()))
    console.print(f"{name}: {sum(shares.values()):.1%} of {num} lessons are within {within:.3f} of a task: {reported}")
    table = Table()
    for column in ("kind of lesson", "lessons", "within reach of a task", "distance to the nearest, mean", "nearest of all"):
        table.add_column(column)
    for kind, of in sorted(lessons.items()):
        near = [nearest_task(one, tasks) for one in of]
        task, least = min(near, key=lambda each: each[1])
        share = fmean(distance < within for _, distance in near)
        mean = fmean(distance for _, distance in near)
        table.add_row(kind, str(len(of)), f"{share:.1%}", f"{mean:.3f}", f"{task}, {least:.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", nargs="?", choices=("report", "sample"), default="report", help="what to do (default: report)")
    parser.add_argument("--lessons", type=int, default=2000, help="lessons that are drawn (default: 2000)")
    arguments = parser.parse_args()
    if arguments.do == "sample":
        solvable = {name: task for name, task in load_tasks("wide").items() if task_file().tasks[name].oracle}
        rows = {name: written(of) for name, of in asyncio.run(sample(solvable, INSTANCES)).items()}
        lines = (f"{json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, of)) + "\n]" for name, of in rows.items())
        atomic_write(TASKS, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
        return
    console, tasks = Console(), sampled()
    print_report("earlier lessons", earlier(), tasks, console)
    print_report("lessons", drawn(arguments.lessons), tasks, console)


if __name__ == "__main__":
    main()
