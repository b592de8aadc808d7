"""What importing demonstrations costs: trajectories in AgentNet's shape, with screenshots of a given size, into a fresh warehouse; the same
file once more, when all is there; and one that is killed half way and begun again. CPU seconds of one process; rows must come out alike.

    python -m benchmarks.importing --json .bench/importing.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

TABLES = ("tasks", "episodes", "steps", "verdicts", "sft_samples", "ct_samples", "screenshots")
CODES = (
    "pyautogui.click(x=0.31, y=0.42)",
    "pyautogui.write('quarterly report')",
    "pyautogui.hotkey('ctrl', 's')",
    "pyautogui.moveTo(0.2, 0.2)\npyautogui.dragTo(0.6, 0.7)",
    "pyautogui.scroll(-5)",
    "pyautogui.doubleClick(x=0.5, y=0.5)",
)


def write_file(folder: Path, num: int, num_steps: int, size_px: tuple[int, int], num_pictures: int) -> Path:
    """Trajectories of so many steps; each picture is shown by many of them, and is as hard to compress as a desktop is."""
    rng = np.random.default_rng(0)
    for number in range(num_pictures):
        small = rng.integers(0, 255, (size_px[1] // 12, size_px[0] // 12, 3), dtype=np.uint8)
        Image.fromarray(small).resize(size_px, Image.Resampling.NEAREST).save(folder / f"{number}.png")
    thought = "I see the window with the table and choose the second row because the task asks for it. " * 5
    path = folder / "trajectories.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(num):
            steps: list[dict[str, Any]] = []
            for index in range(num_steps):
                code = CODES[(number + index) % len(CODES)]
                reported = {"thought": thought, "action": f"Do {index}.", "code": code, "last_step_correct": index % 9 != 3}
                steps.append({"index": index, "image": f"{(number + index) % num_pictures}.png", "value": reported})
            record = {"task_id": f"task-{number}", "instruction": f"Put report {number} in order.", "task_completed": number % 5 != 0}
            file.write(json.dumps({**record, "traj": steps}) + "\n")
    return path


def command(path: Path, home: Path) -> list[str]:
    words = ["import", "demonstrations", "agentnet", str(path), "--track", "expert", "--home", str(home)]
    return [sys.executable, "-m", "pipelines.cli", *words]


def timed(path: Path, home: Path) -> dict[str, float]:
    """CPU and wall seconds, and peak memory, of one import in a process of its own."""
    started = time.monotonic()
    process = subprocess.Popen(command(path, home), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    if status != 0:
        raise SystemExit(f"the import ended with {status}")
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.monotonic() - started, "peak_mib": used.ru_maxrss / 1024}


def kill_half_way(path: Path, home: Path, num: int) -> int:
    """Episodes that were stored when it was killed."""
    process = subprocess.Popen(command(path, home), stdout=subprocess.DEVNULL)
    warehouse = Warehouse(Home(home))
    while process.poll() is None:
        if warehouse.read("episodes", columns=("episode_id",)).num_rows >= num // 2:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    return int(warehouse.read("episodes").num_rows)


def rows_of(home: Path) -> dict[str, list[str]]:
    warehouse = Warehouse(Home(home))
    return {table: sorted(json.dumps(row, sort_keys=True, default=repr) for row in warehouse.read(table).to_pylist()) for table in TABLES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=1000, help="trajectories")
    parser.add_argument("--steps", type=int, default=12, help="steps of each")
    parser.add_argument("--pictures", type=int, default=60, help="different screenshots, of 1280x720")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="flywheel-importing-") as name:
        folder = Path(name)
        path = write_file(folder, given.num, given.steps, (1280, 720), given.pictures)
        fresh, again = timed(path, folder / "whole"), timed(path, folder / "whole")
        num_stored = kill_half_way(path, folder / "killed", given.num)
        rest = timed(path, folder / "killed")
        are_equal = rows_of(folder / "whole") == rows_of(folder / "killed")
    table = Table("import of", "CPU s", "wall s", "steps / CPU s", "peak MiB")
    runs = {"a fresh home": (fresh, given.num), "all of it there": (again, given.num), "the rest": (rest, given.num - num_stored)}
    for label, (run, num) in runs.items():
        per_s = num * given.steps / run["cpu_s"]
        table.add_row(label, f"{run['cpu_s']:.1f}", f"{run['wall_s']:.1f}", f"{per_s:,.0f}", f"{run['peak_mib']:.0f}")
    console = Console()
    console.print(table)
    verdict = "equal" if are_equal else "NOT equal"
    console.print(f"killed with {num_stored} of {given.num} stored; the rows are {verdict} to an unbroken import's")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"fresh": fresh, "again": again, "rest": rest, "num_stored_when_killed": num_stored, "are_equal": are_equal}
        given.json.write_text(json.dumps({"num": given.num, "steps": given.steps, **figures}, indent=2) + "\n")
    if not are_equal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
