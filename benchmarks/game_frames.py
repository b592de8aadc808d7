"""Frames a second of the games under the virtual clock, beside real time: 60 frames a second of page time, a screenshot at every tenth.

Each game is played by its oracle, an action and a screenshot in ten frames; asking the oracle is not timed, and what the page draws
meanwhile is not counted. The page counts the calls of requestAnimationFrame: under the virtual clock they must be exactly the frames that
were asked for. `real time` is the same in a browser without begin-frame control, which draws as fast as a screen would and no faster: its
share of 60 frames a second is what was not missed. CPU milliseconds a frame count us and the browser, and depend less on a busy machine.

    python benchmarks/game_frames.py --seconds 20 --json .bench/game_frames.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table

from sandbox.browser.page import Page
from sandbox.pool.pool import SessionPool
from sandbox.session import Session
from sandbox.tasks.games.source import GamesSource, entry_of, load_tasks
from sandbox.tasks.page_task import PageSettings
from sandbox.tasks.task import Task

FRAME_MS = 1000 / 60
FRAMES_PER_SCREENSHOT = 10
AIM = 5.0
"""Times real time."""
COUNT_FRAMES = (
    "(() => { if (window.framesSeen !== undefined) return; window.framesSeen = 0;"
    " requestAnimationFrame(function next() { framesSeen += 1; requestAnimationFrame(next); }); })()"
)


class SmoothGames(GamesSource):
    """The games at 60 frames a second, observed at every tenth."""

    def settings(self, task: Task) -> PageSettings:
        return replace(super().settings(task), step_time_ms=FRAMES_PER_SCREENSHOT * FRAME_MS, frame_time_ms=FRAME_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One game, one kind of browser."""

    game: str
    kind: str
    frames_per_s: float
    times_real_time: float
    cpu_ms_per_frame: float
    frames_asked: int
    frames_seen: int
    screenshots: int

    @property
    def is_exact(self) -> bool:
        return self.frames_asked == self.frames_seen


@dataclass(slots=True, kw_only=True)
class Spent:
    """What steps took and gave; what happens between them is not counted, neither time nor frames."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    page_ms: float = 0.0
    frames_seen: int = 0
    num_steps: int = 0

    def figure(self, game: str, kind: str) -> Figure:
        # In real time the page goes on while its frames are counted: then its own time is the time that they took.
        took_s = self.page_ms / 1000 if kind == "plain" else self.wall_s
        frames_per_s = self.frames_seen / took_s
        return Figure(
            game=game,
            kind=kind,
            frames_per_s=frames_per_s,
            times_real_time=frames_per_s * FRAME_MS / 1000,
            cpu_ms_per_frame=self.cpu_s / self.frames_seen * 1000,
            frames_asked=round(self.page_ms / FRAME_MS),
            frames_seen=self.frames_seen,
            screenshots=self.num_steps,
        )


async def measure(pool: SessionPool, task: Task, page_seconds: float) -> Figure:
    """Play until so much page time went by in steps, on instance after instance."""
    spent = Spent()
    seed = 0
    while spent.page_ms < page_seconds * 1000:
        async with pool.lease(task) as session:
            await session.reset(task, seed)
            page = session._page
            if page is None:
                raise ValueError("a session without a page after its reset")
            await page.evaluate(COUNT_FRAMES)
            await play(session, page, page_seconds, spent)
        seed += 1
    return spent.figure(entry_of(task).game, pool.kind)


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


async def moment(page: Page) -> tuple[float, int]:
    """Page time, and the frames until then."""
    return page.time_ms, int(await page.evaluate("framesSeen"))


async def play(session: Session, page: Page, page_seconds: float, spent: Spent) -> None:
    """Steps until the episode or the page time is over."""
    us = psutil.Process()
    processes = [us, *us.children(recursive=True)]
    while spent.page_ms < page_seconds * 1000 and (action := await session.oracle_action()) is not None:
        before_ms, seen_before = await moment(page)
        cpu_before_s, started = cpu_s(processes), time.perf_counter()
        transition = await session.step(action)
        spent.wall_s += time.perf_counter() - started
        spent.cpu_s += cpu_s(processes) - cpu_before_s
        after_ms, seen_after = await moment(page)
        spent.page_ms += after_ms - before_ms
        spent.frames_seen += seen_after - seen_before
        spent.num_steps += 1
        if transition.observation.screenshot is None:
            raise ValueError("a step without a screenshot")
        if transition.terminated or transition.truncated:
            break


def longest_tasks() -> list[Task]:
    """Of each game the task that may last longest."""
    longest: dict[str, Task] = {}
    for task in load_tasks("all").values():
        game = entry_of(task).game
        if game not in longest or task.max_steps > longest[game].max_steps:
            longest[game] = task
    return list(longest.values())


async def measure_all(tasks: Sequence[Task], kind: Literal["beginframe", "plain"], page_seconds: float, console: Console) -> list[Figure]:
    figures = []
    async with SessionPool({"games": SmoothGames()}, kind=kind, size=1) as pool:
        for task in tasks:
            figures.append(await measure(pool, task, page_seconds))
            console.print(f"  {kind}: {figures[-1].game}, {figures[-1].frames_per_s:.0f} frames/s")
    return figures


def show(virtual: Sequence[Figure], real: Sequence[Figure], console: Console) -> None:
    table = Table(title="games: frames a second, a screenshot at every tenth, one browser")
    headings = ("game", "frames/s, virtual clock", "times real time", "CPU ms a frame", "frames asked", "frames seen")
    for heading in (*headings, "frames/s, real time", "of 60"):
        table.add_column(heading, justify="left" if heading == "game" else "right")
    by_game = {figure.game: figure for figure in real}
    for each in virtual:
        beside = by_game.get(each.game)
        of_60 = (f"{beside.frames_per_s:.1f}", f"{beside.frames_per_s / 60:.0%}") if beside else ("", "")
        counts = (str(each.frames_asked), f"{each.frames_seen}{'' if each.is_exact else ' (not exact)'}")
        table.add_row(each.game, f"{each.frames_per_s:.0f}", f"{each.times_real_time:.1f}", f"{each.cpu_ms_per_frame:.2f}", *counts, *of_60)
    console.print(table)
    median = statistics.median(figure.times_real_time for figure in virtual)
    exact = sum(figure.is_exact for figure in virtual)
    console.print(f"median {median:.1f} times real time (aim {AIM:g}); exact in {exact} of {len(virtual)} games")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="page time to play each game for (default: 20)")
    parser.add_argument("--real-seconds", type=float, default=5.0, help="the same in real time; 0 leaves it out (default: 5)")
    parser.add_argument("--games", nargs="+", help="which games (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    console = Console()
    tasks = [task for task in longest_tasks() if not arguments.games or entry_of(task).game in arguments.games]
    if not tasks:
        parser.error(f"no such game; there are {', '.join(entry_of(task).game for task in longest_tasks())}")
    virtual = asyncio.run(measure_all(tasks, "beginframe", arguments.seconds, console))
    real = asyncio.run(measure_all(tasks, "plain", arguments.real_seconds, console)) if arguments.real_seconds else []
    show(virtual, real, console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"aim": AIM, "figures": [asdict(each) for each in (*virtual, *real)]}, indent=1))


if __name__ == "__main__":
    main()
