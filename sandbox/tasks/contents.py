"""Makes a source's contents.json: which instances are reserved for evaluation, by what they show first (reserved.py).

    python -m sandbox.tasks.contents miniwob

Every seed is started once and looked at, nothing is played. Of the contents that were found a SHARE goes to each of RESERVED, by their
hashes, MOST at the most; each is played by the first seed that shows it. A task with fewer than LEAST for each is not reported. What was
seen is kept in a folder (--seen), so that a scan that was ended goes on. Figures are comparable under one index only, so whoever makes it
again raises SPLIT_RULE of sandbox/tasks/task.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from sandbox.browser.backend import launch
from sandbox.browser.page_session import PageSession
from sandbox.session import first_content
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.reserved import TaskContents, short
from sandbox.tasks.sources import page_tasks
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, SandboxError
from warehouse.core.identity import stable_fraction

NUM_SEEDS = 600
RESERVED = (Split.EVAL, Split.HOLDOUT, Split.REPORT)
SHARE, MOST, LEAST = 0.1, 60, 3
"""Of a task's contents, for each of RESERVED; a held-out task's are shared out whole."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sandbox.tasks.contents", description="Make the index of what is reserved for evaluation."
    )
    parser.add_argument("source", choices=[name for name in SOURCES if SOURCES[name].contents is not None])
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help=f"seeds a task (default {NUM_SEEDS})")
    parser.add_argument("--at-once", type=int, default=2, help="browsers (default 2)")
    parser.add_argument("--seen", type=Path, default=Path(".contents"), help="folder of what was seen so far (default .contents)")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        tasks = list(indexed_tasks(options.source).values())
        made = of_tasks(dict(_looked_at(options, tasks, console)))
        path = write(options.source, tasks, made)
    except (ConfigError, SandboxError) as error:
        console.print(f"[red]{error}[/red]")
        return 2
    console.print(f"{path}: {len(made)} tasks, {sum(each.is_reported for each in made.values())} of them reported")
    return 0


def indexed_tasks(source: str) -> dict[str, Task]:
    """The tasks that a source's index is about: all of a source of pages; of another its group `all`, which leaves out the families that
    draw by split."""
    return SOURCES[source].load_tasks("all" if SOURCES[source].page is None else None)


def _looked_at(options: argparse.Namespace, tasks: Sequence[Task], console: Console) -> Iterator[tuple[Task, Sequence[str]]]:
    """Contents of each task's first seeds: as the source draws them, or as a page shows them."""
    if (drawn := SOURCES[options.source].content) is not None:
        return ((task, [drawn(task, seed) for seed in range(options.seeds)]) for task in tasks)
    asyncio.run(scan(tasks, options.seeds, options.seen, options.at_once, console))
    return ((task, seen_of(options.seen, task, options.seeds)) for task in tasks)


async def scan(tasks: Sequence[Task], num_seeds: int, folder: Path, at_once: int, console: Console) -> None:
    """Look at the seeds that were not looked at yet: lines `[seed, content]` in a file a task. Raises SandboxError."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = iter(tasks)

    async def worker() -> None:
        host = await launch("auto")
        session = PageSession(host.open_page, page_tasks(), screenshots=False)
        try:
            for task in waiting:
                await _look(session, task, num_seeds, folder)
                console.print(f"{task.name}: {num_seeds} seeds")
        finally:
            await session.close()
            await host.close()

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def _look(session: PageSession, task: Task, num_seeds: int, folder: Path) -> None:
    done = len(seen_of(folder, task, num_seeds))
    with (folder / f"{task.name}.jsonl").open("a", encoding="utf-8") as file:
        for seed in range(done, num_seeds):
            file.write(json.dumps([seed, first_content(await session.begin(task, seed))]) + "\n")
            file.flush()


def seen_of(folder: Path, task: Task, num_seeds: int) -> list[str]:
    """Contents of the first seeds, in the order of the seeds. A line that a killed scan left half written ends them."""
    path, found = folder / f"{task.name}.jsonl", []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for line in lines[:num_seeds]:
        if not line.endswith("\n"):
            path.write_text("".join(lines[:-1]), encoding="utf-8")
            break
        found.append(str(json.loads(line)[1]))
    return found


def of_tasks(contents: Mapping[Task, Sequence[str]]) -> dict[str, TaskContents]:
    """What is reserved of each task. What tasks share goes to the first of them, those first that are never trained on."""
    made: dict[str, TaskContents] = {}
    taken: set[str] = set()
    for task in sorted(contents, key=lambda task: not task.held_out):
        made[task.name] = of_task(task, contents[task], taken)
        taken.update(digest for found in made[task.name].reserved.values() for digest in found)
    return made


def of_task(task: Task, contents: Sequence[str], taken: Collection[str] = ()) -> TaskContents:
    """What is reserved of a task whose seeds 0, 1, … show these contents: in the order of the contents' hashes, as many for each split, and
    none that another task has `taken`."""
    every = {content: seed for seed, content in reversed(list(enumerate(contents)))}
    first = {content: seed for content, seed in every.items() if short(content) not in taken}
    num = min(MOST, int(len(first) * (1 / len(RESERVED) if task.held_out else SHARE)))
    shuffled = sorted(first, key=lambda content: stable_fraction("content", task.source, content))
    parts = {split: shuffled[place * num : (place + 1) * num] for place, split in enumerate(RESERVED)}
    if num < LEAST:
        parts = {Split.EVAL: shuffled[:MOST]} if task.held_out else {}
    reserved = {split.value: {short(content): first[content] for content in part} for split, part in parts.items()}
    return TaskContents(num_seeds=len(contents), num_contents=len(every), reserved=reserved)


def write(source: str, tasks: Sequence[Task], made: Mapping[str, TaskContents]) -> Path:
    """Write contents.json, a line a task."""
    if (path := SOURCES[source].contents) is None:
        raise ConfigError(f"The task source {source!r} says nowhere that its index lies: give its TaskSource `contents`.")
    lines = (f"{json.dumps(name)}:{json.dumps(made[name].model_dump(mode='json'), separators=(',', ':'))}" for name in sorted(made))
    rows = ",\n".join(lines)
    path.write_text(f'{{"version":{json.dumps(tasks[0].version)},"tasks":{{\n{rows}\n}}}}\n', encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
