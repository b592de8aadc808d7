"""`kill -9` at random moments of every stage of a run: half of the kills end all of its processes at once, half one of them at random.

A home runs two iterations (benchmarks/profiles/tiny.yaml), by the same command again and again, and is killed in each stage; then comes
the next home. After each kill what was acknowledged before has to be there (versions of tables with the digests of their rows, finished
stages, closed iterations), nothing twice, and where the command has ended no process of the home may be left. A home that is
finished is looked at as a whole: no acknowledged episode is missing, none is stored twice, every invariant holds, `flywheel verify`
finds nothing, and stages whose work does not depend on what a policy did have as many rows as in a home that nobody killed.

Each kill is one line of the log: an interrupted benchmark goes on where it was. Ends with status 1 where anything was lost, doubled or left
behind.

    python -m benchmarks.kills --kills 200 --log .bench/kills/kills.jsonl --json .bench/kills.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
from rich.console import Console
from rich.table import Table

from assets.gates.invariants import INVARIANTS
from benchmarks.common.acknowledged import Digests, Promise, acknowledged_episodes, broken, unsound
from benchmarks.common.homes import STAGES, stage_of, work_of
from benchmarks.common.process import left_after, processes_of
from benchmarks.common.provenance import ROOT, provenance
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.jobs import completed
from pipelines.orchestration.work.folder import RESULT, work_folder
from pipelines.orchestration.work.progress import working
from warehouse.core.home import Home, atomic_write
from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

Row = dict[str, Any]
RUN = ("run", "--iterations", "2", "--profile", str(ROOT / "benchmarks" / "profiles" / "tiny.yaml"))
ITERATIONS = (SEED_ITERATION, "0001", "0002")
TREE, ONE = "all", "one"
GONE_S = 15.0
"""Nothing may be left behind longer than this."""
LONGEST_WAIT_S = 60.0
"""A kill comes within so many seconds of its stage's begin, and within the half of what the stage takes unkilled."""
STUCK_S = 1200.0
"""A run whose steps do not change for so long does not go on."""
MAX_FAILURES = 3
"""A home whose command fails so often in a row, though nobody killed it, is given up."""
POLL_S, LOOK_S = 0.25, 0.5
BY_CHANCE = ("steps", "screenshots", "ct_samples", "sft_samples", "datasets")
"""Tables with rows by what a sampling policy did: their numbers differ from run to run."""
ONCE = {
    "episodes": "select episode_id from episodes group by all having count(*) > 1",
    "steps": "select episode_id, step_index from steps group by all having count(*) > 1",
    "routes": "select episode_id from routes group by all having count(*) > 1",
    "ct samples": "select sample_id from ct_samples where not withdrawn group by all having count(*) > 1",
    "sft samples": "select sample_id from sft_samples where not withdrawn group by all having count(*) > 1",
    "training metrics": "select iteration, stage, run, step, metric from training_metrics group by all having count(*) > 1",
    "checkpoints": "select iteration, stage, checkpoint_id from checkpoints group by all having count(*) > 1",
}
"""What nothing may be in twice: queries that list what is."""
ROLES = (
    ("the worker", "pipelines.stages"),
    ("the run", "pipelines.orchestration.runs.process"),
    ("the command", "pipelines.cli"),
    ("Prefect", "prefect_app"),
    ("a browser's process", "--type="),
    ("a browser", "--remote-debugging"),
    ("a browser", "crashpad"),
    ("a sandbox worker", "sandbox.fleet"),
    ("the log's follower", "tail -F"),
    ("the log's follower", "watch_orphans"),
    ("a resource tracker", "resource_tracker"),
    ("a Dagster process", "forkserver"),
)


class Kept(threading.Thread):
    """What a home has acknowledged so far, looked at while it runs. Ends with `stop`."""

    def __init__(self, home: Home, instance: dg.DagsterInstance) -> None:
        super().__init__(daemon=True)
        self.promise = Promise(said="seen")
        self.finished: set[Path] = set()
        self.closed: set[str] = set()
        self.failure: BaseException | None = None
        self._home, self._instance, self._digests = home, instance, Digests(home.root)
        self._stopping = threading.Event()
        self._seen: set[tuple[str, int, int]] = set()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:  # a reader beside the run must never see anything but sound tables
                self.failure = error
                return

    def look(self) -> None:
        finished, closed = set(self._home.work.glob(f"*/*/{RESULT}")), set(completed(self._instance))
        commits = {(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self._home.chain.glob("*.commits")}
        if commits != self._seen:
            self.promise, self._seen = Promise(said="seen", tables=self._digests.of(self._digests.versions())), commits
        self.finished, self.closed = self.finished | finished, self.closed | closed

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Trial:
    """One home in `base`, run and killed until it is finished. `seconds`: what each place, ITERATION/STEP, takes unkilled."""

    def __init__(self, base: Path, number: int, seconds: dict[str, float], log: Log, console: Console) -> None:
        self.base, self.number = base, number
        self.home = Home(base / "home")
        self._seconds, self._log, self._console = dict(seconds), log, console
        self._dice = random.Random(f"{number} {time.time_ns()}")
        self._episodes: set[str] = set()
        """Acknowledged ones, stored or not yet."""
        self._stored: set[str] = set()
        self._faults: list[str] = []
        self._open: Row | None = None
        """The newest kill, whose row is written once it is known how the run went on."""
        self._before: dict[str, tuple[str, int]] = {}
        (base / "tmp").mkdir(parents=True, exist_ok=True)
        base.chmod(0o755)
        self._instance = open_instance(self.home)

    def run(self) -> None:
        """Give the command until it ends well, then look at the whole home."""
        began_s, failures = time.monotonic(), 0
        while failures < MAX_FAILURES:
            status, is_killed = self._command()
            if status == 0:
                break
            failures = 0 if is_killed else failures + 1
            if not is_killed:
                self._fault(f"the command ended with {status} though nobody had killed it: {self._said()}")
        else:
            self._fault("the home was given up")
        self._close_row()
        left = left_after(self.base, GONE_S)
        self._faults += [f"left behind: {line}" for line in left]
        self._faults += faults_of(self.home, self._episodes)
        self._log.add(
            {
                "home": self.number,
                "is_end": True,
                "seconds": time.monotonic() - began_s,
                "faults": self._faults,
                "counts": counts_of(self.home),
            }
        )
        self._instance.dispose()

    def run_or_end(self) -> None:
        """`run`, and leave no process behind however that ends."""
        try:
            self.run()
        finally:
            self.end_processes()

    def end_processes(self) -> None:
        for process in processes_of(self.base):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _fault(self, line: str) -> None:
        self._faults.append(line)
        self._console.print(f"[red]home {self.number}[/]: {line}", soft_wrap=True, highlight=False)

    def _said(self) -> str:
        return (self.base / "command.log").read_text(errors="replace")[-600:]

    def _command(self) -> tuple[int, bool]:
        """Start the command, kill while there are places left to kill at; its status, and whether anything of it was killed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DAGSTER_", "PREFECT_"))}
        chromium = {name: os.environ[name] for name in ("FLYWHEEL_CHROMIUM", "FLYWHEEL_BROWSER_USER") if name in os.environ}
        ours = {"FLYWHEEL_HOME": str(self.home.root), "TMPDIR": str(self.base / "tmp"), "COLUMNS": "200"}
        with (self.base / "command.log").open("a") as log:
            command = subprocess.Popen(
                [sys.executable, "-m", "pipelines.cli", *RUN],
                cwd=ROOT,
                env={**inherited, **chromium, **ours},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        kept = Kept(self.home, self._instance)
        kept.look()
        kept.start()
        try:
            num_kills = self._kill_while_it_runs(command, kept)
        finally:
            kept.stop()
        if kept.failure is not None:
            self._fault(f"a reader beside the run met {type(kept.failure).__name__}: {kept.failure}")
        return command.returncode, num_kills > 0

    def _kill_while_it_runs(self, command: subprocess.Popen[bytes], kept: Kept) -> int:
        started, num_kills, changed_s, steps_before = time.time(), 0, time.monotonic(), ""
        target, due_s = "", 0.0
        while command.poll() is None:
            time.sleep(POLL_S)
            at_work = self._at_work(started)
            if str(at_work) != steps_before:
                steps_before, changed_s = str(at_work), time.monotonic()
            self._note_going_on(at_work, started)
            if time.monotonic() - changed_s > STUCK_S:
                self._fault(f"nothing has changed for {STUCK_S:.0f} s at {at_work}: {self._said()}")
                self.end_processes()
            elif target and target not in at_work:
                self._seconds[target] /= 2  # it was quicker than that
                target = ""
            elif target and time.monotonic() >= due_s:
                num_kills += 1
                self._kill(command, target, at_work, kept)
                target = ""
            elif not target and (places := [each for each in at_work if self._is_wanted(each)]):
                target = self._dice.choice(places)
                due_s = time.monotonic() + self._dice.random() * min(LONGEST_WAIT_S, self._seconds.get(target, 2.0) / 2)
        if self._open is not None and "ended" not in self._open and num_kills:
            self._judge(self._open, kept, command.returncode)
        return num_kills

    def _is_wanted(self, place: str) -> bool:
        """Whether to kill here: not where a stage that was finished before is only looked at again."""
        iteration, step = place.split("/")
        stage = step.replace("rl_model__", "rl_").replace("evaluations", "evaluation")
        return self._log.wants(self.number, place) and not (work_folder(self.home, iteration, stage) / RESULT).exists()

    def _at_work(self, started: float) -> list[str]:
        """Places at work in the newest Dagster run, if it is of this command."""
        records = self._instance.get_run_records(limit=1)
        if not records or records[0].create_timestamp.timestamp() < started:
            return []
        run = records[0].dagster_run
        iteration = run.tags.get("dagster/partition", SEED_ITERATION)
        stats = self._instance.get_run_step_stats(run.run_id)
        return sorted(f"{iteration}/{step.step_key}" for step in stats if step.status is not None and step.status.value == "IN_PROGRESS")

    def _kill(self, command: subprocess.Popen[bytes], target: str, at_work: list[str], kept: Kept) -> None:
        self._close_row()
        kind = self._log.kind(target)
        iteration = target.split("/")[0]
        self._before = {each.stage: (each.unit, each.done) for each in working(self.home, iteration)}
        everything = processes_of(self.base)
        by_role: dict[str, list[psutil.Process]] = {}
        for process in everything:
            by_role.setdefault(role_of(process), []).append(process)
        role = TREE if kind == TREE else self._dice.choice(sorted(by_role))
        victims = everything if kind == TREE else [self._dice.choice(by_role[role])]
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.kill()
        row: Row = {
            "home": self.number,
            "place": target,
            "at_work": at_work,
            "kind": kind,
            "role": role,
            "at": time.time(),
            "num_processes": len(everything),
        }
        self._open = row
        self._log.rows.append(row)
        if kind == TREE:
            command.wait()
            kept.stop()
            self._judge(row, kept, command.returncode)
        else:
            row["lost"], row["doubled"] = self._lost(kept), doubled(self.home)
        self._console.print(f"{self._log.num_kills:4} home {self.number} {target}: {role}", highlight=False)

    def _judge(self, row: Row, kept: Kept, status: int) -> None:
        """After the command has ended: what is left of its processes, what is lost."""
        left = left_after(self.base, GONE_S)
        self.end_processes()
        row |= {"ended": status, "left": left, "lost": row.get("lost", []) + self._lost(kept), "doubled": doubled(self.home)}
        for name in ("left", "lost", "doubled"):
            if row[name]:
                self._fault(f"{name} at {row['place']} ({row['role']}): {row[name]}")

    def _lost(self, kept: Kept) -> list[str]:
        """What of all that was acknowledged is not there now."""
        lines = broken(self.home.root, kept.promise)
        lines += [f"{path.parent.parent.name}/{path.parent.name} is no longer finished" for path in kept.finished if not path.exists()]
        lines += [f"iteration {key} is open again" for key in kept.closed - set(completed(self._instance))]
        stored = stored_episodes(self.home)
        lines += [f"{len(gone)} stored episodes are gone"] if (gone := self._stored - stored) else []
        self._stored = stored
        self._episodes |= acknowledged_episodes(self.home, stored)
        return lines

    def _note_going_on(self, at_work: list[str], started: float) -> None:
        """How long the same command took until a stage was at work again, and how much of its work it does once more."""
        if self._open is None:
            return
        if "ended" in self._open and at_work and "goes_on_s" not in self._open:
            self._open["goes_on_s"] = time.time() - started
        for each in working(self.home, self._open["place"].split("/")[0], since=self._open["at"]):
            unit, done = self._before.get(each.stage, ("", 0))
            if unit == each.unit and each.started_at > self._open["at"]:
                again = max(0, done - max(0, each.first_done - 1))
                self._open.setdefault("again", {})[f"{each.stage} {unit}"] = [again, done]

    def _close_row(self) -> None:
        if self._open is not None:
            self._log.write(self._open)
        self._open = None


class Log:
    """The rows so far, a line each in `path`, and what they leave to do: `per_place` kills of each place of a home, `num` in all."""

    def __init__(self, path: Path, num: int, per_place: int) -> None:
        self._path, self._num, self._per_place = path, num, per_place
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def kills(self) -> list[Row]:
        return [row for row in self.rows if "kind" in row]

    @property
    def num_kills(self) -> int:
        return len(self.kills)

    @property
    def ends(self) -> list[Row]:
        return [row for row in self.rows if "is_end" in row]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.write(row)

    def write(self, row: Row) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def wants(self, home: int, place: str) -> bool:
        return self.num_kills < self._num and len(self._at(home, place)) < self._per_place

    def kind(self, place: str) -> str:
        """All or one, whichever this step has had less of, then whichever there was less of in all."""
        step = place.split("/")[1]
        of_step = Counter(row["kind"] for row in self.kills if row["place"].endswith(f"/{step}"))
        num = Counter(row["kind"] for row in self.kills)
        return min((TREE, ONE), key=lambda kind: (of_step[kind], num[kind]))

    def _at(self, home: int, place: str) -> list[Row]:
        return [row for row in self.kills if row["home"] == home and row["place"] == place]


def role_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        line = " ".join(process.cmdline())
        for role, mark in ROLES:
            if mark in line:
                return role
    return "another"


def stored_episodes(home: Home) -> set[str]:
    with connect(Warehouse(home)) as con:
        return {found for (found,) in con.execute("select episode_id from episodes").fetchall()}


def doubled(home: Home) -> list[str]:
    """What is there twice, a line a kind."""
    with connect(Warehouse(home)) as con:
        found = {name: len(con.execute(query).fetchall()) for name, query in ONCE.items()}
    return [f"{num} {name} twice" for name, num in found.items() if num]


def faults_of(home: Home, episodes: set[str]) -> list[str]:
    """What is wrong with a finished home: a line each."""
    lines = unsound(home.root) + doubled(home)
    if gone := episodes - stored_episodes(home):
        lines.append(f"{len(gone)} acknowledged episodes are not stored")
    with connect(Warehouse(home)) as con:
        for iteration in ITERATIONS[1:]:
            lines += [f"{each.name} of {iteration}" for each in INVARIANTS if con.execute(each.sql, {"iteration": iteration}).fetchall()]
    return lines


def counts_of(home: Home) -> dict[str, int]:
    """Rows by TABLE/ITERATION/STAGE."""
    found: dict[str, int] = {}
    with connect(Warehouse(home)) as con:
        for name in (name for name, table in TABLES.items() if table.partitioned):
            for iteration, stage, num in con.execute(f"select iteration, stage, count(*) from {name} group by all").fetchall():
                found[f"{name}/{iteration}/{stage}"] = num
    return dict(sorted(found.items()))


def differences(counts: dict[str, int], reference: dict[str, int]) -> list[str]:
    """Where a killed home has other numbers of rows than the one that nobody killed, where chance has no part in them."""
    places = sorted(place for place in {*counts, *reference} if place.split("/")[0] not in BY_CHANCE)
    return [
        f"{place} has {counts.get(place, 0)} rows, not {reference.get(place, 0)}"
        for place in places
        if counts.get(place) != reference.get(place)
    ]


def unkilled(folder: Path, console: Console) -> Row:
    """Of a home that nobody kills: seconds by place, rows by table and place. Made once."""
    path = folder / "unkilled.json"
    if not path.exists():
        base = folder / "unkilled"
        trial = Trial(base, -1, {}, Log(folder / "unkilled.jsonl", 0, 0), console)
        trial.run_or_end()
        seconds = {work.place: work.end_s - work.start_s for work in work_of(trial.home)}
        atomic_write(path, json.dumps({"seconds": seconds, "counts": counts_of(trial.home)}).encode())
        shutil.rmtree(base)
    found: Row = json.loads(path.read_text())
    return found


def report(log: Log, reference: dict[str, int], console: Console) -> int:
    """Print the table; returns how many faults there are."""
    table = Table("stage", "kills", "all", "one", "lost", "doubled", "processes left", "went on by itself", "goes on after, s, median")
    for stage in [*STAGES, "routing", "all"]:
        rows = [row for row in log.kills if stage in ("all", stage_of(row["place"]))]
        table.add_row(stage, *map(str, _figures(rows)))
    console.print(table)
    num = sum(bool(row.get(name)) for row in log.kills for name in ("lost", "doubled", "left"))
    for end in log.ends:
        for line in [*end["faults"], *differences(end["counts"], reference)]:
            num += 1
            console.print(f"home {end['home']}: {line}", soft_wrap=True, highlight=False)
    console.print(f"{len(log.ends)} homes finished; {dict(Counter(row['role'] for row in log.kills))}", soft_wrap=True)
    return num


def _figures(rows: Sequence[Row]) -> Iterator[int | str]:
    yield len(rows)
    for kind in (TREE, ONE):
        yield sum(row["kind"] == kind for row in rows)
    for name in ("lost", "doubled"):
        yield sum(len(row.get(name, [])) for row in rows)
    yield sum(len(row.get("left", [])) for row in rows)
    yield sum("ended" not in row for row in rows)
    goes_on = [row["goes_on_s"] for row in rows if "goes_on_s" in row]
    yield f"{statistics.median(goes_on):.0f}" if goes_on else "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-place", type=int, default=1, help="kills of each step of each iteration of a home")
    parser.add_argument("--log", type=Path, default=Path(".bench/kills/kills.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path(".bench/kills"), help="where the homes lie")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started here is ended
    console, folder = Console(), options.folder.absolute()
    reference = unkilled(folder, console)
    log = Log(options.log, options.kills, options.per_place)
    while log.num_kills < options.kills or any(row["home"] not in {end["home"] for end in log.ends} for row in log.kills):
        number = len(log.ends)
        base = folder / f"home-{number:02d}"
        trial = Trial(base, number, reference["seconds"], log, console)
        trial.run_or_end()
        if not log.ends[-1]["faults"]:
            shutil.rmtree(base)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"measured": provenance(), "rows": log.rows}, indent=1))
    return 1 if report(log, reference["counts"], console) else 0


if __name__ == "__main__":
    sys.exit(main())
