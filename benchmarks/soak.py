"""Soak: thousands of MiniWoB episodes on a fleet, played by oracles through the collector, a browser killed at random every so many.

Reported: episodes lost (no record, or recorded as crashed), recorded twice, retried; processes left behind at the end; and how much memory
the manager, the workers and the browsers gain in 1000 episodes (least squares over samples, after a warm-up). Each episode and
sample is written down as it comes, so an interrupted run goes on where it was; --restart begins again.

    python -m benchmarks.soak --episodes 10000 --json .bench/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.tasks.miniwob.oracles import has_oracle
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task

SAMPLES = 200
"""Of memory, spread over a run; but no more than one in SAMPLE_EVERY episodes, because a sample takes a while."""
SAMPLE_EVERY = 25
IN_A_ROW = 8
"""Episodes of one task that follow each other, so that most find its page loaded, as in a collection."""
WARM_UP = 0.2
"""Share of the samples that the slopes leave out: browsers start, caches fill."""
ORPHAN_GRACE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """What is run. `kill_every` episodes a browser is killed; 0: never."""

    num_episodes: int
    kill_every: int = 50
    num_workers: int = 2
    sessions_per_worker: int = 2
    tasks: str = "miniwob"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Memory at one moment: proportional for browsers, which share theirs, resident for the rest; MiB."""

    num_episodes: int
    manager_mib: float
    workers_mib: float
    browsers_mib: float
    num_processes: int
    num_open_files: int
    """Of manager and workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it. Slopes are MiB in 1000 episodes, of the longest uninterrupted run."""

    num_episodes: int
    num_lost: int
    num_duplicated: int
    num_crashed: int
    num_unsolved: int
    num_retries: int
    num_kills: int
    num_orphans: int
    manager_slope_mib: float
    workers_slope_mib: float
    browsers_slope_mib: float
    open_files_slope: float
    seconds: float
    episodes_per_s: float
    outcomes: dict[str, int]


@dataclass(slots=True, kw_only=True)
class _Run:
    """One uninterrupted run, and where it is written down: a line for each sample, with what was counted so far."""

    number: int
    path: Path
    started_s: float = field(default_factory=time.monotonic)
    worker_pids: set[int] = field(default_factory=set)
    num_kills: int = 0
    num_orphans: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_s

    def write(self, sample: Sample | None) -> None:
        line = {"run": self.number, "num_kills": self.num_kills, "num_orphans": self.num_orphans, "seconds": self.seconds}
        with self.path.open("a", encoding="utf-8") as out:
            print(json.dumps(line | {"sample": None if sample is None else asdict(sample)}), file=out)


def requests(settings: SoakSettings) -> list[EpisodeRequest]:
    """Every task in turn, IN_A_ROW seeds of it at a time."""
    tasks = [task for task in tasks_of(settings.tasks) if has_oracle(task)]
    seeds = {task.name: _seeds(task, settings.num_episodes // len(tasks) + 2 * IN_A_ROW) for task in tasks}
    turns = (task for task in cycle(tasks) for _ in range(IN_A_ROW))
    return [
        EpisodeRequest(purpose="seed", task=task, seed=next(seeds[task.name]), policy_id="oracle")
        for task in islice(turns, settings.num_episodes)
    ]


def _seeds(task: Task, num: int) -> Iterator[int]:
    return iter(task.seeds(Split.EVAL if task.held_out else Split.TRAIN, num))


async def soak(settings: SoakSettings, folder: Path, log: Callable[[str], None]) -> Report:
    """Play what is not yet written down in `folder`, and report on all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = requests(settings)
    record = folder / "episodes.jsonl"
    done = {line["episode_id"] for line in _lines(record)}
    todo = [request for request in wanted if request.episode_id not in done]
    runs = folder / "runs.jsonl"
    if todo:
        run = _Run(number=max((line["run"] for line in _lines(runs)), default=0) + 1, path=runs)
        log(f"{len(todo)} of {len(wanted)} episodes to play")
        with record.open("a", encoding="utf-8") as out:
            if out.tell():
                print(file=out)  # after a line that may have been cut off
            await _play(settings, todo, run, len(done), lambda line: print(json.dumps(line), file=out, flush=True), log)
    return report(wanted, list(_lines(record)), list(_lines(runs)))


async def _play(
    settings: SoakSettings,
    todo: Sequence[EpisodeRequest],
    run: _Run,
    num_before: int,
    keep: Callable[[dict[str, Any]], None],
    log: Callable[[str], None],
) -> None:
    builder = PromptBuilder("compact")
    chance = random.Random(f"{settings.seed} {num_before}")
    sample_every = max(SAMPLE_EVERY, settings.num_episodes // SAMPLES)
    fleet = Fleet(
        FleetSettings(min_workers=settings.num_workers, max_workers=settings.num_workers, sessions_per_worker=settings.sessions_per_worker)
    )
    async with fleet:
        collector = PoolCollector(
            fleet, builder, settings=CollectorSettings(concurrency=4 * settings.num_workers * settings.sessions_per_worker, max_retries=5)
        )
        noting = asyncio.create_task(_note_workers(fleet, run))
        num = 0
        async for episode in collector.play(OracleActionSource(builder.grammar), todo):
            num += 1
            keep(_line(episode))
            if settings.kill_every and num % settings.kill_every == 0:
                await _kill_one(fleet, chance)
                run.num_kills += 1
            if num % sample_every == 0:
                run.write(await asyncio.to_thread(_sample, fleet.worker_pids(), num_before + num))
            if num % max(1, len(todo) // 20) == 0:
                to_go_s = (len(todo) - num) / num * run.seconds
                log(f"{num_before + num} episodes, {num / run.seconds:.1f} a second, {to_go_s:.0f} s to go")
        noting.cancel()
    run.num_orphans = await _orphans(run.worker_pids)
    run.write(None)


async def _note_workers(fleet: Fleet, run: _Run) -> None:
    while True:
        run.worker_pids.update(fleet.worker_pids())
        await asyncio.sleep(0.2)


async def _kill_one(fleet: Fleet, chance: random.Random) -> None:
    """One of the browsers that live; waits where all are being restarted."""
    while not (pids := sorted(await fleet.browser_pids())):
        await asyncio.sleep(0.05)
    with suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)


def _members(worker_pids: set[int] | Sequence[int]) -> list[psutil.Process]:
    """Live processes in the workers' sessions, themselves included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) in worker_pids and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _sample(worker_pids: Sequence[int], num_episodes: int) -> Sample:
    manager, members = psutil.Process(), _members(worker_pids)
    workers_mib = browsers_mib = 0.0
    num_open_files = manager.num_fds()
    for process in members:
        with suppress(psutil.Error):
            if process.pid in worker_pids:
                workers_mib += process.memory_info().rss / 2**20
                num_open_files += process.num_fds()
            else:
                browsers_mib += process.memory_full_info().pss / 2**20
    return Sample(
        num_episodes=num_episodes,
        manager_mib=manager.memory_info().rss / 2**20,
        workers_mib=workers_mib,
        browsers_mib=browsers_mib,
        num_processes=len(members),
        num_open_files=num_open_files,
    )


async def _orphans(worker_pids: set[int]) -> int:
    deadline_s = time.monotonic() + ORPHAN_GRACE_S
    while (left := len(_members(worker_pids))) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
    return left


def _line(episode: Episode) -> dict[str, Any]:
    return {
        "episode_id": episode.episode_id,
        "task": episode.request.task.name,
        "seed": episode.request.seed,
        "outcome": episode.outcome.value,
        "num_retries": episode.num_retries,
        "num_steps": len(episode.steps),
        "error": episode.error,
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """A line that an interruption cut off is as good as not written."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            yield json.loads(text)


def report(wanted: Sequence[EpisodeRequest], lines: Sequence[dict[str, Any]], written: Sequence[dict[str, Any]]) -> Report:
    """From the lines of the episodes, and of the runs."""
    ids = {request.episode_id for request in wanted}
    lines = [line for line in lines if line["episode_id"] in ids]
    seen = Counter(line["episode_id"] for line in lines)
    outcomes = Counter(line["outcome"] for line in lines)
    num_crashed = outcomes[Outcome.CRASHED]
    by_run: dict[int, list[dict[str, Any]]] = {}
    for line in written:
        by_run.setdefault(line["run"], []).append(line)
    ends = [of_run[-1] for of_run in by_run.values()]
    samples = [line["sample"] for line in max(by_run.values(), key=len, default=[]) if line["sample"] is not None]
    seconds = sum(end["seconds"] for end in ends)
    return Report(
        num_episodes=len(wanted),
        num_lost=len(ids - set(seen)) + num_crashed,
        num_duplicated=sum(count - 1 for count in seen.values()),
        num_crashed=num_crashed,
        num_unsolved=len(lines) - num_crashed - outcomes[Outcome.SUCCESS],
        num_retries=sum(line["num_retries"] for line in lines),
        num_kills=sum(end["num_kills"] for end in ends),
        num_orphans=sum(end["num_orphans"] for end in ends),
        manager_slope_mib=slope(samples, "manager_mib"),
        workers_slope_mib=slope(samples, "workers_mib"),
        browsers_slope_mib=slope(samples, "browsers_mib"),
        open_files_slope=slope(samples, "num_open_files"),
        seconds=seconds,
        episodes_per_s=len(lines) / seconds if seconds else 0.0,
        outcomes=dict(outcomes),
    )


def slope(samples: Sequence[dict[str, Any]], name: str) -> float:
    """By least squares, a 1000 episodes; 0 where there are too few samples."""
    steady = samples[int(WARM_UP * len(samples)) :]
    if len(steady) < 3:
        return 0.0
    return statistics.linear_regression([sample["num_episodes"] / 1000 for sample in steady], [sample[name] for sample in steady]).slope


def show(found: Report, console: Console) -> None:
    table = Table(title="soak")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in asdict(found).items():
        table.add_row(name.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--kill-every", type=int, default=50, help="episodes between two kills of a browser; 0: none (default: 50)")
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument("--sessions", type=int, default=2, help="sessions of a worker (default: 2)")
    parser.add_argument("--tasks", default="miniwob", help="source or source:group whose tasks have an oracle (default: miniwob)")
    parser.add_argument("--root", type=Path, default=Path(".bench/soak"), help="where episodes are written down (default: .bench/soak)")
    parser.add_argument("--restart", action="store_true", help="forget what was written down")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    arguments = parser.parse_args()
    if arguments.restart:
        for name in ("episodes.jsonl", "runs.jsonl"):
            (arguments.root / name).unlink(missing_ok=True)
    console = Console()
    settings = SoakSettings(
        num_episodes=arguments.episodes,
        kill_every=arguments.kill_every,
        num_workers=arguments.workers,
        sessions_per_worker=arguments.sessions,
        tasks=arguments.tasks,
    )
    found = asyncio.run(soak(settings, arguments.root, lambda text: console.print(text, highlight=False)))
    show(found, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    if found.num_lost or found.num_duplicated or found.num_orphans:
        raise SystemExit("episodes were lost or recorded twice, or processes left behind")


if __name__ == "__main__":
    main()
