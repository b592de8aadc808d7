"""The contact sheet of the games: each played for a while by its oracle, side by side in one small picture.

python scripts/game_sheet.py docs/games.png
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from sandbox.pool.pool import SessionPool
from sandbox.tasks.games.source import SIZE_PX, GamesSource, entry_of, load_tasks
from sandbox.tasks.task import Task
from warehouse.storage.screenshots import pictures

NUM_COLUMNS = 5
NUM_STEPS = 12
GAP_PX = 6
SHOWN_PX = (192, 216)
NUM_COLOURS = 256
BACKGROUND = "#ffffff"


def shown_tasks() -> list[Task]:
    """One task of each game, of medium difficulty where there is one: there is more to see."""
    tasks = list(reversed(load_tasks("all").values()))
    first = {entry_of(task).game: task for task in tasks}
    medium = {entry_of(task).game: task for task in tasks if entry_of(task).difficulty == "medium"}
    return [medium.get(game, task) for game, task in reversed(first.items())]


async def screens(tasks: Sequence[Task], num_steps: int = NUM_STEPS) -> list[Image.Image]:
    """A screen of each task while it runs, at the latest one step before its end."""
    shots = []
    async with SessionPool({"games": GamesSource()}, size=1) as pool:
        for task in tasks:
            async with pool.lease(task) as session:
                shot = (await session.reset(task, 1)).screenshot
                for _ in range(num_steps):
                    action = await session.oracle_action()
                    transition = await session.step(action) if action is not None else None
                    if transition is None or transition.terminated or transition.truncated:
                        break
                    shot = transition.observation.screenshot
            shots.append(pictures.decoded(shot or b""))
    return shots


def sheet(shots: Sequence[Image.Image]) -> Image.Image:
    width, height = SHOWN_PX
    num_rows = -(-len(shots) // NUM_COLUMNS)
    size = (NUM_COLUMNS * (width + GAP_PX) + GAP_PX, num_rows * (height + GAP_PX) + GAP_PX)
    made = Image.new("RGB", size, BACKGROUND)
    for number, shot in enumerate(shots):
        column, row = number % NUM_COLUMNS, number // NUM_COLUMNS
        place = (GAP_PX + column * (width + GAP_PX), GAP_PX + row * (height + GAP_PX))
        made.paste(shot.resize(SHOWN_PX, Image.Resampling.LANCZOS), place)
    return made.quantize(NUM_COLOURS, kmeans=2)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python scripts/game_sheet.py", description=f"Draw every game at {SIZE_PX} in one picture.")
    parser.add_argument("path", type=Path, help="where the PNG goes")
    options = parser.parse_args(arguments)
    sheet(asyncio.run(screens(shown_tasks()))).save(options.path, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
