"""What a desktop costs: resets with and without a spare display, a step and its parts, memory, and many displays side by side.

A step is a click, waiting until the screen has settled, a screenshot and the elements. The editor is open in every display. Resets are of
the task `editor-type`: a new display and the editor's window in it. The least a settled screen takes is its definition: QUIET_MS.

    python benchmarks/desktop_steps.py --displays 1,2,4,8 --json .bench/desktop_steps.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.table import Table

from sandbox import actions
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop.local import LocalDesktop, LocalDesktops
from sandbox.desktop.requested import QUIET_MS
from sandbox.desktop.session import DesktopSession
from sandbox.tasks.desktop.source import load_tasks

NOTE = PurePosixPath("note.txt")


async def timed(work: Callable[[], Awaitable[Any]], times: list[float]) -> Any:
    """What the work gives; its milliseconds are added to `times`."""
    start = time.perf_counter()
    value = await work()
    times.append((time.perf_counter() - start) * 1000)
    return value


async def opened() -> LocalDesktop:
    """A desktop with the editor."""
    desktop = await LocalDesktop.open()
    await desktop.put_file(NOTE, b"one two three\n")
    await desktop.launch("editor", [NOTE])
    while not await desktop.windows():
        await asyncio.sleep(0.02)
    await desktop.settle()
    return desktop


async def steps(desktop: LocalDesktop, num: int) -> dict[str, list[float]]:
    """Milliseconds of a step's parts."""
    times: dict[str, list[float]] = {"input": [], "settle": [], "screenshot": [], "elements": [], "step": []}
    for n in range(num):
        phases = gestures(actions.Click(x=300 + n % 50, y=300), desktop.size_px, "desktop")
        if isinstance(phases, Refusal):
            raise SystemExit(phases.reason)
        start = time.perf_counter()
        await timed(lambda: desktop.perform(phases), times["input"])  # noqa: B023  awaited here
        await timed(desktop.settle, times["settle"])
        await timed(desktop.screenshot, times["screenshot"])
        await timed(desktop.elements, times["elements"])
        times["step"].append((time.perf_counter() - start) * 1000)
    return times


async def resets(num: int, *, has_spare: bool) -> list[float]:
    """Milliseconds of a reset, while an agent thinks for a second between its episodes."""
    session, times, task = DesktopSession(LocalDesktops(has_spare=has_spare)), [], load_tasks()["editor-type"]
    try:
        for seed in range(num):
            await timed(lambda: session.reset(task, seed), times)  # noqa: B023  awaited here
            await asyncio.sleep(1.0)
    finally:
        await session.close()
    return times[1:]


async def side_by_side(num_displays: int, num_steps: int) -> dict[str, float]:
    start = time.perf_counter()
    desktops = await asyncio.gather(*(opened() for _ in range(num_displays)))
    opened_s = time.perf_counter() - start
    try:
        memory_mib = statistics.mean(desktop.memory_mib() for desktop in desktops)
        start = time.perf_counter()
        await asyncio.gather(*(steps(desktop, num_steps) for desktop in desktops))
        seconds = time.perf_counter() - start
    finally:
        await asyncio.gather(*(desktop.close() for desktop in desktops))
    return {
        "displays": num_displays,
        "all_open_s": opened_s,
        "steps_per_s": num_displays * num_steps / seconds,
        "mib_per_display": memory_mib,
    }


async def measure(displays: Sequence[int], num_steps: int, num_resets: int) -> dict[str, Any]:
    desktop = await opened()
    try:
        parts = await steps(desktop, num_steps)
    finally:
        await desktop.close()
    return {
        "quiet_ms": QUIET_MS,
        "median_ms": {name: statistics.median(times) for name, times in parts.items()},
        "reset_ms": {
            "with a spare display": statistics.median(await resets(num_resets, has_spare=True)),
            "without": statistics.median(await resets(num_resets, has_spare=False)),
        },
        "side_by_side": [await side_by_side(num, num_steps) for num in displays],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a desktop costs.")
    parser.add_argument("--displays", default="1,2,4,8", help="numbers of displays side by side, with commas between them")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--resets", type=int, default=8)
    parser.add_argument("--json", type=Path, help="file that the figures are written to")
    options = parser.parse_args()
    displays = [int(number) for number in options.displays.split(",")]
    figures = asyncio.run(measure(displays, options.steps, options.resets))
    console = Console()
    table = Table("what", "median ms")
    for name, value in {**figures["median_ms"], **{f"reset, {k}": v for k, v in figures["reset_ms"].items()}}.items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)
    table = Table("displays", "all open after s", "steps/s", "MiB each (PSS)")
    for row in figures["side_by_side"]:
        table.add_row(str(row["displays"]), f"{row['all_open_s']:.1f}", f"{row['steps_per_s']:.1f}", f"{row['mib_per_display']:.0f}")
    console.print(table)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
