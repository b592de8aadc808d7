"""What games are scored beside (sandbox/tasks/games/references.json): the scores of random play and of the oracles at the tasks of the
group `scored`, one of each game.

Both play the first seeds of the split `train` with as many steps as a policy has; the score is the game's own, at the end of the episode.
Each step of random play is drawn evenly from the inputs that the game takes (INPUTS) and from where they can go to, whatever the state:
it knows the controls and where things are, and nothing of the rules. Episodes run inside the page (game_play.js) with the inputs and at the
times of a session; `--check` does what was done again in sessions, whose scores must be the same.

A row is a task and a player, kept under .bench/game_references: interrupted, it goes on where it was.

    python -m benchmarks.game_references --publish
    python -m benchmarks.game_references --check 1
    python -m benchmarks.game_references --people HOME       what people scored there, by the annotation server, into the file
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.common.kept import fingerprint, kept_row
from benchmarks.common.provenance import Publish, distinct, provenance, require_no_changes, sentence
from sandbox.actions import ACTION
from sandbox.browser.chromium import find_chromium
from sandbox.pool.pool import SessionPool
from sandbox.tasks.games.references import GROUPS, REFERENCES_FILE, TaskReferences, references
from sandbox.tasks.games.source import ELEMENTS_SUFFIX, SIZE_PX, GamesSource, game_of, load_tasks
from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home, atomic_write
from warehouse.core.identity import stable_seed
from warehouse.evaluation.game_scores import people_scores
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FOLDER = Path(".bench/game_references")
PLAY = Path(__file__).with_name("game_play.js")
PLAYERS = ("random", "oracle")
PAGE = Path("docs/games.md")
MARKERS = ("<!-- references: begin -->", "<!-- references: end -->")
SLOW = {("2048-tile-256", "oracle"): 3}
"""Of how many instances at most: this one searches for long."""
_ARROWS = ("left", "right", "up", "down")
INPUTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "2048": [{"kind": "press", "keys": _ARROWS}],
    "snake": [{"kind": "press", "keys": _ARROWS}],
    "key": [{"kind": "slide", "role": "block"}],
    "sokoban": [{"kind": "press", "keys": _ARROWS}],
    "blocks": [{"kind": "press", "keys": (*_ARROWS, "space")}],
    "loop": [{"kind": "click", "role": "pipe"}],
    "gems": [{"kind": "slide", "role": "gem"}],
    "pairs": [{"kind": "click", "role": "tile"}],
    "hex": [{"kind": "drag", "role": "piece", "onto": "cell"}],
    "wood": [{"kind": "drag", "role": "piece", "onto": "cell"}],
    "merge": [{"kind": "click", "role": "column"}],
    "laser": [{"kind": "click", "role": "mirror"}],
    "shapes": [{"kind": "drag", "role": "shape", "onto": "outline"}, {"kind": "click", "role": "shape"}],
    "mines": [{"kind": "click", "role": "cell"}],
    "catch": [{"kind": "press", "keys": ("left", "right")}],
}
"""What a step of random play may be, by game: any of the keys; a click on any element of the role; a drag of one by its own size in any of
four directions (`slide`), or onto any element of the role `onto`."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium().path, args=["--no-sandbox", "--disable-gpu"], timeout=0)
        yield browser
        browser.close()


def play(browser: Browser, task: Task, player: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Score, `won`, `reason` and actions of each episode."""
    source, inputs = GamesSource(), INPUTS[game_of(task)] if player == "random" else None
    page = browser.new_page(viewport={"width": SIZE_PX[0], "height": SIZE_PX[1]})
    page.goto(source.url(task), timeout=0)
    page.evaluate(PLAY.read_text(encoding="utf-8"))
    page.evaluate("new Promise((done) => setTimeout(done, 500))")  # the page's own last frame ends in ours
    episodes = []
    for seed in seeds:
        how = {"maxSteps": task.max_steps, "inputs": inputs, "seed": stable_seed("random play", task.name, seed) % 2**32}
        script = f"(how) => playEpisode({{ ...how, start: () => {source.start_script(task, seed)} }})"
        episodes.append(page.evaluate(script, how))
    page.close()
    return episodes


def task_for(name: str, player: str) -> Task:
    """Random play sees the elements; the oracle needs none."""
    return load_tasks()[name + ELEMENTS_SUFFIX * (player == "random")]


async def score_in_session(task: Task, seed: int, actions: Sequence[Mapping[str, Any]]) -> float:
    """What the same actions score in a session."""
    async with SessionPool({"games": GamesSource()}, size=1) as pool, pool.lease(task, screenshots=False) as session:
        await session.reset(task, seed)
        score = 0.0
        for action in actions:
            transition = await session.step(ACTION.validate_python(action))
            score = float(transition.info["game"]["score"])
    return score


def check(names: Sequence[str], num_seeds: int) -> list[str]:
    """What differs between the page alone and a session."""
    with open_browser() as browser:
        played = [
            (task, player, seed, episode)
            for name in names
            for player in PLAYERS
            for task in [task_for(name, player)]
            for seeds in [task.seeds(Split.TRAIN, num_seeds)]
            for seed, episode in zip(seeds, play(browser, task, player, seeds), strict=True)
        ]
    different = []
    for task, player, seed, episode in played:
        score = asyncio.run(score_in_session(task, seed, episode["actions"]))
        if score != episode["score"]:
            different.append(f"{task.name}, {player}, seed {seed}: {episode['score']:g} in the page, {score:g} in a session")
    return different


def row(browser: Browser, name: str, player: str, num_seeds: int) -> dict[str, Any]:
    """Measured now, or as it was kept."""
    task = task_for(name, player)
    num_seeds = min(num_seeds, SLOW.get((name, player), num_seeds))
    recipe = fingerprint(name, task.version, task.max_steps, player, num_seeds)
    figures = partial(_figures, browser, task, player, num_seeds)
    return kept_row(FOLDER / f"{name}-{player}.json", recipe, {"task": name, "player": player}, figures)


def _figures(browser: Browser, task: Task, player: str, num_seeds: int) -> Mapping[str, Any]:
    scores = [episode["score"] for episode in play(browser, task, player, task.seeds(Split.TRAIN, num_seeds))]
    return {"split": Split.TRAIN.value, "scores": scores}


def entry(name: str, rows: Mapping[str, Mapping[str, Any]], people: Any) -> dict[str, Any]:
    """Of references.json."""
    task = load_tasks()[name]
    taken = {player: {key: rows[player][key] for key in ("scores", "split", "measured")} for player in PLAYERS}
    return {"game": game_of(task), "version": task.version, "max_steps": task.max_steps, **taken, "people": people}


def write(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """The file, with a line for each player's scores, and the table of docs/games.md. Raises SystemExit for what was measured in a
    checkout with changes."""
    require_no_changes(entries)
    lines = []
    for name, of in entries.items():
        fields = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in of.items())
        lines.append(f"  {json.dumps(name)}: {{\n{fields}\n  }}")
    atomic_write(REFERENCES_FILE, ('{\n "tasks": {\n' + ",\n".join(lines) + "\n }\n}\n").encode())
    references.cache_clear()
    write_page(references())


def with_people(entries: Mapping[str, Mapping[str, Any]], home: Home) -> dict[str, dict[str, Any]]:
    """The entries with people's scores in a home, of every split, in place of those they have; of other tasks as they are."""
    with connect(Warehouse(home), tables=["episodes", "annotations"]) as con:
        scores = people_scores(con)
    found = {}
    for name, of in entries.items():
        ids = [load_tasks()[each].task_id for each in (name, name + ELEMENTS_SUFFIX)]
        own = [score for task_id in ids for score in scores.get(task_id, [])]
        found[name] = {**of, "people": {"scores": own, "split": "any", "measured": provenance()} if own else of["people"]}
    return found


def write_page(entries: Mapping[str, TaskReferences]) -> None:
    """The table of docs/games.md."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(MARKERS[0], 1)
    atomic_write(PAGE, f"{head}{MARKERS[0]}\n{markdown(entries)}{MARKERS[1]}{rest.split(MARKERS[1], 1)[1]}".encode())


def markdown(entries: Mapping[str, TaskReferences]) -> str:
    """Mean scores by task."""
    columns = ("task", "steps", "random play", "oracle", "people", "random, % of oracle")
    lines = [columns, ("---",) * len(columns)]
    for name, of in entries.items():
        people = "–" if of.people is None else f"{of.people.mean:.1f}"
        share = f"{100 * of.random.mean / of.oracle.mean:.1f}"
        lines.append((name, str(of.max_steps), f"{of.random.mean:.1f}", f"{of.oracle.mean:.1f}", people, share))
    measured = [{"measured": of.measured} for each in entries.values() for of in (each.random, each.oracle, each.people) if of is not None]
    said = "; ".join(sentence(each) for each in distinct(measured))
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", f"Measured {said}.", ""])


def show(entries: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    table = Table(title="mean score", title_justify="left")
    for column in ("task", "steps", *PLAYERS, "random, % of oracle"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for name, of in entries.items():
        chance, oracle = (sum(of[player]["scores"]) / len(of[player]["scores"]) for player in PLAYERS)
        table.add_row(name, str(of["max_steps"]), f"{chance:.1f}", f"{oracle:.1f}", f"{100 * chance / oracle:.1f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="instances a task (default 10)")
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), help="groups of tasks (default: scored)")
    parser.add_argument("--check", type=int, metavar="SEEDS", help="only compare so many episodes of each task and player with sessions")
    parser.add_argument("--people", type=Path, metavar="HOME", help="only put what people scored in this home into the file")
    parser.add_argument(
        "--publish", action=Publish, help="write references.json, in which people's scores stay, and the table of docs/games.md"
    )
    options = parser.parse_args()
    names = [name for group in options.groups for name in load_tasks(group)]
    if options.check:
        different = check(names, options.check)
        print("\n".join(different) or f"{len(names)} tasks: a session gives the same scores")
        return 1 if different else 0
    before = json.loads(REFERENCES_FILE.read_text(encoding="utf-8"))["tasks"] if REFERENCES_FILE.exists() else {}
    if options.people is not None:
        write(with_people(before, Home(options.people)))
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    entries = {}
    with open_browser() as browser:
        for name in names:
            rows = {player: row(browser, name, player, options.seeds) for player in PLAYERS}
            entries[name] = entry(name, rows, before.get(name, {}).get("people"))
    show(entries, Console(width=120))
    if options.publish:
        write(entries)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
