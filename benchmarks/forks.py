"""What a fork of a live episode costs, by the depth at which it leaves its parent, beside the same by hand.

An oracle plays instances of MiniWoB tasks and games: the parents. At each depth k a session is brought to the state before step k:

    fork       agent/episode/fork.py: the log is written, the parent's actions are carried out again, and at each step elements, prompt and
               pixels are compared, up to the first decision of the fork's own
    by hand    the session is reset and the same actions are carried out, with a screenshot at each step; nothing is compared

and both once more without screens, as with `rl.fork_pixels: false`: no screenshot is taken, and a fork compares elements and prompt. All
four use one session, whose page was loaded before, and take turns, so that what else the machine does falls on all alike. A fork that does
not meet what its parent saw is refused; of those by hand the last screen is looked at afterwards. CPU time is of this process and the
browser. State lies under .bench/forks, a file an instance; interrupted, it goes on with what is missing.

    python -m benchmarks.forks --publish
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.fork import begin, siblings
from agent.episode.log import EpisodeLog
from agent.episode.runner import EpisodeRunner, RunnerSettings
from agent.grammars.elements import render_observation
from agent.policy.action_source import OracleActionSource, StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.page import Section, page_text, write_between
from benchmarks.common.provenance import MEASURED, Publish, distinct, publish_rows
from benchmarks.common.small_policy import Bar
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import SandboxError
from warehouse.core.home import atomic_write

ROOT = Path(".bench/forks")
PAGE = Path("docs/rl.md")
SELECTIONS = ("miniwob", "games:all")
TASKS = ("login-user", "click-checkboxes-large", "social-media-all", "snake-apples-2", "2048-tile-64")
DEPTHS = (1, 2, 3, 4, 6, 8)
ARMS = ("fork", "by hand", "fork, without screens", "by hand, without screens")
BUILDER = PromptBuilder("compact")
Samples = dict[str, list[Any]]
"""Of an arm at a depth: `wall_ms` and `cpu_ms` of those that came to the parent's state, and `not_met`, why the others did not."""


class Clock:
    """Wall and CPU milliseconds between `start` and `stop`."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self.wall_ms = self.cpu_ms = 0.0

    def start(self) -> None:
        self._browsers_s, self._own_s, self._began_s = _browsers_cpu_s(self._pool), time.process_time(), time.perf_counter()

    def stop(self) -> None:
        wall_s, own_s = time.perf_counter() - self._began_s, time.process_time() - self._own_s
        self.wall_ms, self.cpu_ms = 1000 * wall_s, 1000 * (own_s + _browsers_cpu_s(self._pool) - self._browsers_s)


def _browsers_cpu_s(pool: SessionPool) -> float:
    total = 0.0
    for pid in pool.browser_pids():
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total


class Arrived:
    """Stops a clock when it is first asked at step `depth`, and ends the episode there."""

    def __init__(self, depth: int, clock: Clock) -> None:
        self._depth, self._clock = depth, clock

    async def respond(self, context: StepContext) -> Response | None:
        if context.step_index == self._depth:
            self._clock.stop()
        return None


async def forked(pool: SessionPool, request: EpisodeRequest, parent: Episode, log: EpisodeLog, clock: Clock) -> str:
    """Time one fork; why it was refused, empty where it met its parent's state. Raises SandboxError where the sandbox failed."""
    depth = 0 if request.fork is None else request.fork.step
    runner = EpisodeRunner(pool, BUILDER, settings=RunnerSettings(max_retries=0))
    clock.start()
    begin(request, parent, log)
    episode = await runner.run(request, Arrived(depth, clock), log=log)
    if episode.outcome is Outcome.CRASHED:
        raise SandboxError(f"the sandbox failed in a fork of {request.task.name}: {episode.error}; start this again, it goes on from here")
    return episode.fork_refused or ""


async def by_hand(pool: SessionPool, parent: Episode, depth: int, clock: Clock) -> str:
    """Time the same without a fork; what differs from what the parent saw, which is looked at afterwards."""
    request, left_at = parent.request, parent.steps[depth]
    clock.start()
    lease: AbstractAsyncContextManager[Any] = pool.lease(request.task, screenshots=request.screenshots)
    async with lease as session:
        seen = await session.reset(request.task, request.seed)
        for step in parent.steps[:depth]:
            for action in (step.action, *step.more_actions):
                seen = (await session.step(action)).observation
        clock.stop()
    is_met = render_observation(seen) == left_at.observation and seen.screenshot_id == left_at.screenshot_id
    return "" if is_met else f"step {depth} shows something else"


async def parent_of(pool: SessionPool, task: Task, seed: int, *, screenshots: bool) -> Episode:
    """What the oracle does. Raises SandboxError where the sandbox failed."""
    request = EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle", screenshots=screenshots)
    episode = await EpisodeRunner(pool, BUILDER).run(request, OracleActionSource(BUILDER.grammar))
    if episode.outcome is Outcome.CRASHED:
        raise SandboxError(f"the oracle of {task.name} could not play: {episode.error}")
    return episode


async def measured(task: Task, seed: int, depths: Sequence[int], repeats: int, advance: Callable[[], None]) -> dict[str, Any]:
    """One instance: by depth and arm the milliseconds of the repeats that came to the parent's state, and why others did not. Depths that
    the parent does not have are left out. `advance` is called after each depth."""
    with TemporaryDirectory() as folder:
        async with SessionPool(size=1) as pool:
            clock, found = Clock(pool), dict[str, dict[str, Samples]]()
            with_screens, without = [await parent_of(pool, task, seed, screenshots=has_screens) for has_screens in (True, False)]
            logs = EpisodeLog(Path(folder) / "screens"), EpisodeLog(Path(folder) / "no screens")
            for depth in depths:
                if depth < len(with_screens.steps):
                    found[str(depth)] = {arm: {"wall_ms": [], "cpu_ms": [], "not_met": []} for arm in ARMS}
                    for repeat in range(repeats):
                        ways = (
                            partial(forked, pool, siblings(with_screens, depth, repeats)[repeat], with_screens, logs[0], clock),
                            partial(by_hand, pool, with_screens, depth, clock),
                            partial(forked, pool, siblings(without, depth, repeats)[repeat], without, logs[1], clock),
                            partial(by_hand, pool, without, depth, clock),
                        )
                        arms = list(zip(ARMS, ways, strict=True))
                        for arm, way in arms[repeat % len(arms) :] + arms[: repeat % len(arms)]:
                            _keep(found[str(depth)][arm], await way(), clock)
                advance()
    return {"steps": len(with_screens.steps), "depths": found}


def _keep(samples: Samples, not_met: str, clock: Clock) -> None:
    if not_met:
        samples["not_met"].append(not_met)
    else:
        samples["wall_ms"].append(round(clock.wall_ms, 2))
        samples["cpu_ms"].append(round(clock.cpu_ms, 2))


def published(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A row a task and depth: median wall and mean CPU milliseconds of each arm, and how many of all came to the parent's state."""
    found = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        for depth in sorted({int(depth) for row in mine for depth in row["depths"]}):
            having = [row for row in mine if str(depth) in row["depths"]]
            arms = {arm: _of_arm([row["depths"][str(depth)][arm] for row in having]) for arm in ARMS}
            found[f"{task} {depth}"] = {"task": task, "depth": depth, "instances": len(having), "arms": arms, "measured": distinct(having)}
    return found


def _of_arm(samples: Sequence[Mapping[str, list[Any]]]) -> dict[str, Any]:
    wall, cpu = ([value for each in samples for value in each[name]] for name in ("wall_ms", "cpu_ms"))
    not_met = [reason for each in samples for reason in each["not_met"]]
    return {
        "met": len(wall),
        "of": len(wall) + len(not_met),
        "wall_ms": round(median(wall), 1) if wall else None,
        "cpu_ms": round(mean(cpu), 1) if cpu else None,
        "not_met": sorted(set(not_met)),
    }


def sections(found: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """One of wall and one of CPU time, of published rows; the existing ones."""
    if not found:
        return []
    columns = (
        "task",
        "depth",
        "fork",
        "by hand",
        "quotient",
        "fork, no screens",
        "by hand, no screens",
        "quotient",
        "forks met",
        "by hand met",
    )
    return [
        Section(
            title=f"{title} to a parent's state, by a fork and by hand",
            columns=columns,
            lines=[
                (row["task"], str(row["depth"]), *_pair(row, name, 0), *_pair(row, name, 2), _met(row, ARMS[::2]), _met(row, ARMS[1::2]))
                for row in found.values()
            ],
        )
        for name, title in (("wall_ms", "Median milliseconds"), ("cpu_ms", "Mean milliseconds of CPU"))
    ]


def _pair(row: Mapping[str, Any], name: str, first: int) -> tuple[str, str, str]:
    fork, hand = (row["arms"][arm][name] for arm in ARMS[first : first + 2])
    texts = ["" if each is None else f"{each:.0f}" for each in (fork, hand)]
    return texts[0], texts[1], f"{fork / hand:.2f}" if fork and hand else ""


def _met(row: Mapping[str, Any], arms: Sequence[str]) -> str:
    return f"{sum(row['arms'][arm]['met'] for arm in arms)} of {sum(row['arms'][arm]['of'] for arm in arms)}"


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What docs/rl.md says of published rows, between its marks."""
    return page_text(sections(found), found) if found else "Not measured yet.\n"


def published_rows(folder: Path = MEASURED) -> dict[str, dict[str, Any]]:
    """All that is published; nothing before the first time."""
    path = folder / "forks.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help=f"MiniWoB tasks and games (default: {' '.join(TASKS)})")
    parser.add_argument("--depths", nargs="+", type=int, default=list(DEPTHS), help="steps before the fork (default: 1 2 3 4 6 8)")
    parser.add_argument("--instances", type=int, default=3, help="train instances a task (default: 3)")
    parser.add_argument("--repeats", type=int, default=5, help="times each is done an instance and depth (default: 5)")
    parser.add_argument("--root", type=Path, default=ROOT, help="where state lies (default: .bench/forks)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/forks.json and docs/rl.md")
    arguments = parser.parse_args()
    known = tasks_in(SELECTIONS)
    if unknown := sorted(set(arguments.tasks) - known.keys()):
        parser.error(f"no task is called {', '.join(unknown)}: name some of MiniWoB or of the games (`flywheel tasks`)")
    arguments.root.mkdir(parents=True, exist_ok=True)
    console, rows = Console(), list[Row]()
    with Progress(console=console, transient=True) as bars:
        for name in arguments.tasks:
            for seed in known[name].seeds(Split.TRAIN, arguments.instances):
                bar = Bar(bars, f"{name} {seed}", len(arguments.depths))
                figures = partial(_figures, known[name], seed, arguments, bar)
                recipe = fingerprint(known[name].task_id, seed, arguments.depths, arguments.repeats)
                rows.append(kept_row(arguments.root / f"{name}-{seed}.json", recipe, {"task": name, "seed": seed}, figures))
    found = published(rows)
    for section in sections(found):
        console.print(section.drawn())
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=1).encode())
    if arguments.publish:
        publish_rows("forks", found)
        write_between(PAGE, "forks", page(published_rows()))


def _figures(task: Task, seed: int, arguments: argparse.Namespace, bar: Bar) -> dict[str, Any]:
    return asyncio.run(measured(task, seed, arguments.depths, arguments.repeats, bar.advance))


if __name__ == "__main__":
    main()
