"""Environment steps a second: our sessions beside the official MiniWoB++ environment (selenium), BrowserGym, Playwright used directly, and
the least that bare commands to the same browser take, in one run.

A step is a click, then a screenshot and the elements of the page. Episodes of STEPS_PER_EPISODE steps on the same tasks, each begun by a
reset that starts a new instance in the page (or whatever the environment does instead): steps a second count resets in. All have the same
number of workers, each one process with one page. Blocks of episodes are interleaved, repeat by repeat, so that what else the machine does
falls on all alike; figures are medians over the repeats. CPU milliseconds a step count the worker and its browsers, and depend less on a
busy machine. Loading a page for the first time is not counted.

Peers have two lines each: in the full Chromium that they are written for, and, as *headless shell*, in the smaller browser that ours runs
in. BrowserGym builds an accessibility tree and a DOM snapshot for every observation, which no other does.

Peers run in venvs of their own under .bench/, made on first use. The official environment needs chromedriver beside Chromium
(on Debian: apt-get install chromium-driver).

    python -m benchmarks.env_steps --workers 1 2 4 --large-workers 1 2 --publish
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.common.provenance import Publish, provenance, publish
from benchmarks.common.venv import python_of
from sandbox.browser.chromium import find_chromium
from sandbox.tasks.miniwob.source import MiniWobSource

HERE = Path(__file__).resolve().parent
TASKS = ("click-checkboxes", "login-user", "choose-list", "click-tab")


STEPS_PER_EPISODE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """An environment under test: a program below this folder, what its venv holds (nothing: ours), how many episodes make a block."""

    name: str
    program: str
    argument: str
    venv: str | None = None
    packages: tuple[str, ...] = ()
    episodes_per_block: int
    in_headless_shell: bool = False
    """Whether a peer gets the browser of ours; ours choose their own."""

    def python(self, root: Path) -> Path:
        """The interpreter that runs it."""
        return Path(sys.executable) if self.venv is None else python_of(root / self.venv, self.packages)


SHELL = ", headless shell"
BROWSERGYM = ("browsergym-miniwob==0.14.3", "playwright==1.44.0")
OURS = (
    Contestant(name="flywheel", program="ours/env_steps.py", argument="beginframe", episodes_per_block=8),
    Contestant(name="flywheel, fleet", program="ours/env_steps.py", argument="fleet", episodes_per_block=8),
    Contestant(name="flywheel, server", program="ours/env_steps.py", argument="server", episodes_per_block=8),
    Contestant(name="flywheel, plain", program="ours/env_steps.py", argument="plain", episodes_per_block=2),
    Contestant(name="flywheel, playwright", program="ours/env_steps.py", argument="playwright", episodes_per_block=2),
)
PEERS = (
    Contestant(name="playwright, bare", program="peers/playwright_steps.py", argument="", episodes_per_block=2),
    Contestant(
        name="official miniwob",
        program="peers/official_steps.py",
        argument="",
        episodes_per_block=2,
        venv="official",
        packages=("miniwob==1.1.0", "selenium==4.51.0"),
    ),
    Contestant(
        name="browsergym",
        program="peers/browsergym_steps.py",
        argument="delay",
        episodes_per_block=1,
        venv="browsergym",
        packages=BROWSERGYM,
    ),
    Contestant(
        name="browsergym, no sleep",
        program="peers/browsergym_steps.py",
        argument="no-delay",
        episodes_per_block=1,
        venv="browsergym",
        packages=BROWSERGYM,
    ),
)
FLOOR = Contestant(name="floor (bare commands)", program="ours/env_steps.py", argument="floor", episodes_per_block=8)
CONTESTANTS = (*OURS, *(each for peer in PEERS for each in (peer, replace(peer, name=peer.name + SHELL, in_headless_shell=True))), FLOOR)
TARGETS = {"official miniwob": 8.0, "browsergym": 60.0, "floor (bare commands)": 0.8}
"""What `flywheel` is to reach in steps a second, times the other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Medians over the repeats; rates are of all workers together, resets included."""

    name: str
    window: str
    workers: int
    steps_per_s: float
    steps_per_s_low: float
    steps_per_s_high: float
    step_ms: float
    reset_ms: float
    cpu_ms_per_step: float
    times_ours: float
    """Our steps a second over this one's."""


class Worker:
    """A worker process; `ask` sends a request, `answer` waits for its reply."""

    def __init__(self, contestant: Contestant, window: str, python: Path, log: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(HERE.parent), "MINIWOB_URL": (MiniWobSource().root / "miniwob").as_uri() + "/"}
        if contestant.program.startswith("peers/"):
            environment["BENCH_CHROMIUM"] = browser_of(contestant)
            if driver := shutil.which("chromedriver"):
                environment |= {"MINIWOB_CHROME_BINARY": environment["BENCH_CHROMIUM"], "MINIWOB_CHROMEDRIVER": driver}
        self.contestant, self._log = contestant, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), str(HERE / contestant.program), contestant.argument, window],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def ask(self, **request: Any) -> None:
        if self._process.stdin is None:
            raise RuntimeError("worker without standard input")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def _died(self) -> RuntimeError:
        return RuntimeError(f"The worker of {self.contestant.name} died; its last words: {self._log.read_text()[-1500:]}")

    def answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise self._died()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def cpu_s(self) -> float:
        """Processor time of the worker and everything that lives below it."""
        total = 0.0
        for process in [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        children = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        try:
            self.ask(do="end")
            self._process.wait(timeout=30)
        except (RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for child in children:  # peers leave browsers behind when they are cut off
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue


def browser_of(contestant: Contestant) -> str:
    """The executable that a peer gets. Raises SystemExit where this machine has not the kind that it is listed with."""
    found = find_chromium(headless_shell=contestant.in_headless_shell)
    if found.is_headless_shell != contestant.in_headless_shell:
        kind, package = ("headless shell", "chromium-headless-shell") if contestant.in_headless_shell else ("full Chromium", "chromium")
        raise SystemExit(f"{contestant.name} needs a {kind}, and {found.path} is none: apt-get install {package}, or leave it --without")
    return str(found.path)


@dataclass(slots=True, kw_only=True)
class Samples:
    """What one contestant's blocks took."""

    steps_per_s: list[float]
    step_ms: list[float]
    cpu_ms: list[float]
    reset_ms: list[float]


def run_block(workers: Sequence[Worker], task: str, seed: int) -> tuple[list[dict[str, Any]], float]:
    """Each worker's reply to a block of episodes of one task, and the processor seconds of all."""
    before_s = sum(worker.cpu_s() for worker in workers)
    for worker in workers:
        worker.ask(do="episodes", task=task, seed=seed, num=worker.contestant.episodes_per_block, steps=STEPS_PER_EPISODE)
    replies = [worker.answer() for worker in workers]
    return replies, sum(worker.cpu_s() for worker in workers) - before_s


def load(workers: Sequence[Worker], task: str) -> None:
    for worker in workers:
        worker.ask(do="load", task=task, seed=0)
    for worker in workers:
        worker.answer()


def measure(
    contestants: Sequence[Contestant], window: str, num_workers: int, repeats: int, tasks: Sequence[str], root: Path, console: Console
) -> list[Figure]:
    """Interleaved blocks of every contestant."""
    samples = {contestant.name: Samples(steps_per_s=[], step_ms=[], cpu_ms=[], reset_ms=[]) for contestant in contestants}
    logs = {contestant.name: root / f"{Path(contestant.program).name}.log" for contestant in contestants}
    with ExitStack() as stack:
        crews = {
            contestant.name: [
                stack.enter_context(Worker(contestant, window, contestant.python(root), logs[contestant.name])) for _ in range(num_workers)
            ]
            for contestant in contestants
        }
        for repeat in range(repeats):
            order = [contestants[(n + repeat) % len(contestants)] for n in range(len(contestants))]
            rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
            for task in tasks:
                for contestant in order:
                    crew, kept = crews[contestant.name], samples[contestant.name]
                    load(crew, task)
                    replies, cpu_s = run_block(crew, task, seed=1000 * (repeat + 1))
                    rates[contestant.name].append(sum(reply["steps"] / reply["seconds"] for reply in replies))
                    kept.step_ms += [reply["step_s"] / reply["steps"] * 1000 for reply in replies]
                    kept.reset_ms += [seconds * 1000 for reply in replies for seconds in reply["reset_s"]]
                    kept.cpu_ms.append(cpu_s / sum(reply["steps"] for reply in replies) * 1000)
            for name, of_tasks in rates.items():
                samples[name].steps_per_s.append(statistics.harmonic_mean(of_tasks))
            console.print(f"  {window}, {num_workers} worker(s), repeat {repeat + 1} of {repeats} done")
    return [figure(name, window, num_workers, kept, samples[contestants[0].name]) for name, kept in samples.items()]


def figure(name: str, window: str, num_workers: int, kept: Samples, ours: Samples) -> Figure:
    """The ratio is the median of the repeats' ratios: what disturbed a repeat disturbed both."""
    return Figure(
        name=name,
        window=window,
        workers=num_workers,
        steps_per_s=statistics.median(kept.steps_per_s),
        steps_per_s_low=min(kept.steps_per_s),
        steps_per_s_high=max(kept.steps_per_s),
        step_ms=statistics.median(kept.step_ms),
        reset_ms=statistics.median(kept.reset_ms),
        cpu_ms_per_step=statistics.median(kept.cpu_ms),
        times_ours=statistics.median(ours_rate / rate for ours_rate, rate in zip(ours.steps_per_s, kept.steps_per_s, strict=True)),
    )


def show(figures: Sequence[Figure], console: Console) -> None:
    headings = ("environment", "steps/s", "lowest–highest", "ms a step", "ms a reset", "CPU ms a step", "flywheel is … times as fast")
    table = Table(title=f"environment steps with resets, window {figures[0].window}, {figures[0].workers} worker(s)")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "environment" else "right")
    for each in figures:
        target = TARGETS.get(each.name) if each.window == "task" else None
        times = f"{each.times_ours:.1f}" + (f" (aim {target:g})" if target else "")
        rates = (f"{each.steps_per_s:.1f}", f"{each.steps_per_s_low:.1f}–{each.steps_per_s_high:.1f}")
        table.add_row(each.name, *rates, f"{each.step_ms:.1f}", f"{each.reset_ms:.0f}", f"{each.cpu_ms_per_step:.1f}", times)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="numbers of workers to measure (default: 1 2 4)")
    parser.add_argument(
        "--large-workers", type=int, nargs="*", default=[1, 2], help="the same in a window of 1280×720, all of it observed (default: 1 2)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats; figures are their medians (default: 3)")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help=f"MiniWoB tasks (default: {' '.join(TASKS)})")
    names = ", ".join(contestant.name for contestant in CONTESTANTS[1:])
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help=f"leave some out: {names}")
    parser.add_argument("--root", type=Path, default=Path(".bench"), help="where the peers' venvs are made (default: .bench)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="write docs/measured/env_steps.json")
    arguments = parser.parse_args()
    console = Console()
    contestants = [contestant for contestant in CONTESTANTS if contestant.name not in arguments.without]
    if contestants[0].name != "flywheel":
        parser.error("flywheel cannot be left out: everything is compared with it")
    if shutil.which("chromedriver") is None and any(contestant.venv == "official" for contestant in contestants):
        parser.error("the official environment needs chromedriver: apt-get install chromium-driver, or --without 'official miniwob'")
    arguments.root.mkdir(parents=True, exist_ok=True)
    figures = []
    for window, num_workers in [("task", num) for num in arguments.workers] + [("720p", num) for num in arguments.large_workers]:
        found = measure(contestants, window, num_workers, arguments.repeats, arguments.tasks, arguments.root.absolute(), console)
        show(found, console)
        figures += found
        setting = {"tasks": arguments.tasks, "steps_per_episode": STEPS_PER_EPISODE, "targets": TARGETS}
        stored = {"measured": provenance(), **setting, "figures": [asdict(each) for each in figures]}
        if arguments.json:
            arguments.json.write_text(json.dumps(stored, indent=1))
        if arguments.publish:
            publish("env_steps", stored)


if __name__ == "__main__":
    main()
