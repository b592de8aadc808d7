"""Power cuts at random moments: of commits one after another, of every command that changes a table, and of a run. After each cut the
disk is mounted as the kernel finds it: whatever had been acknowledged has to be there, and the same command has to go on.

    python -m benchmarks.power_cut --arms commits commands run --cuts 100 --json .bench/power_cut.json

The workload runs once an arm on a logged disk; the cuts are states of that disk (logged_disk.py), of a run by turns from its stages. Each
cut is written down as it is judged, so an interrupted benchmark goes on where it was. After every cut `flywheel verify` reads all that was
committed, and each stage that left a result has what its result names. Of the run (benchmarks/profiles/tiny.yaml), `--go-on` cuts are also
worked to the end. Ends with status 1 where anything was lost.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from assets.gates.invariants import INVARIANTS
from benchmarks.common.acknowledged import Promise, broken, merged, unsound
from benchmarks.common.homes import Work, stage_of, work_of
from benchmarks.power_cut import workloads
from benchmarks.power_cut.logged_disk import MARK, LoggedDisk, Platter, entries, mounted, why_not
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ARMS = ("commits", "commands", "run")
SIZE_MIB = {"commits": 256, "commands": 3072, "run": 3072}


def judge(
    arm: str, home: Path, promises: list[Promise], asked: list[workloads.Command], *, goes_on: bool, dice: random.Random
) -> list[str]:
    """What is wrong with a home after a cut: one line a fault. Changes the home: the command that was cut off is given again."""
    promise = merged(promises)
    lines = broken(home, promise) or unsound(home)
    if lines:
        return lines
    if arm == "commits":
        return _commits_go_on(home, dice)
    if arm == "commands":
        return _command_goes_on(home, promise, asked)
    return _run_goes_on(home) if goes_on else []


def _commits_go_on(home: Path, dice: random.Random) -> list[str]:
    warehouse = Warehouse(Home(home))
    for number, kind in enumerate(("replace", "append", "pictures"), start=1000):
        workloads.commit(warehouse, kind, number, dice)
    return broken(home, Promise(said="went on"))


def _command_goes_on(home: Path, promise: Promise, asked: list[workloads.Command]) -> list[str]:
    done = [command for command in asked if f"done {command.name}" == promise.said]
    position = asked.index(done[0]) + 1 if done else 0
    lines = [f"the effect of {each.name} is gone" for each in asked[:position] if not _has_effect(home, each)]
    if position == len(asked) or lines:
        return lines
    command = asked[position]
    again = workloads.flywheel(home, *command.arguments)
    if again.returncode != 0:
        lines.append(f"{command.name} again ended with {again.returncode}: {(again.stderr or again.stdout)[-400:]}")
    elif not _has_effect(home, command):
        lines.append(f"{command.name} again has no effect")
    return lines


def _has_effect(home: Path, command: workloads.Command) -> bool:
    with connect(Warehouse(Home(home))) as con:
        return bool(con.execute(command.effect).fetchall()[0][0])


def _run_goes_on(home: Path) -> list[str]:
    before = workloads.episodes(home)
    again = workloads.flywheel(home, *workloads.RUN)
    if again.returncode != 0:
        return [f"the run did not go on ({again.returncode}): {again.stdout[-600:]} {again.stderr[-300:]}"]
    lines = unsound(home)
    lost = before - workloads.episodes(home)
    lines += [f"{len(lost)} stored episodes are gone after the run went on"] if lost else []
    with connect(Warehouse(Home(home))) as con:
        twice = con.execute("select count(*) from (select episode_id from episodes group by 1 having count(*) > 1)").fetchall()[0][0]
        lines += [f"{twice} episodes are stored twice"] if twice else []
        lines += [each.name for each in INVARIANTS if con.execute(each.sql, {"iteration": "0001"}).fetchall()]
    return lines


def by_turns(stages: Mapping[int, str], num: int, dice: random.Random) -> list[int]:
    """`num` random moments, from each stage by turns."""
    moments: dict[str, list[int]] = {}
    for moment, stage in stages.items():
        moments.setdefault(stage, []).append(moment)
    for each in moments.values():
        dice.shuffle(each)
    drawn = (each.pop() for _ in range(len(stages)) for each in moments.values() if each)
    return list(islice(drawn, num))


class Arm:
    """One workload, run once on a logged disk in `folder`, and its cuts."""

    def __init__(self, name: str, folder: Path, seed: int, finished: Path | None) -> None:
        self.name, self._folder, self._seed, self._finished = name, folder, seed, finished
        self._results = folder / "cuts.jsonl"

    def record(self) -> None:
        """Run the workload, unless its log is there already."""
        if (self._folder / "recorded").exists():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / "files").mkdir()
        with LoggedDisk(self._folder / "disk", size_mib=SIZE_MIB[self.name]) as disk:
            home = disk.mount / "home"
            if self.name == "commits":
                workloads.commits(disk, home, random.Random(self._seed))
            elif self.name == "commands":
                if self._finished is None:
                    raise SystemExit("the arm `commands` needs --home, a home with one iteration of the smoke profile")
                asked = workloads.commands(disk, home, self._finished, self._folder / "files")
                (self._folder / "asked.json").write_text(json.dumps([[each.name, each.arguments, each.effect] for each in asked]))
            else:
                workloads.run(disk, home)
                (self._folder / "work.json").write_text(json.dumps(work_of(Home(home))))
        (self._folder / "recorded").touch()

    def asked(self) -> list[workloads.Command]:
        path = self._folder / "asked.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        return [workloads.Command(name=name, arguments=tuple(arguments), effect=effect) for name, arguments, effect in rows]

    def cuts(self, num: int, num_to_go_on: int, console: Console) -> list[dict[str, Any]]:
        """Judge `num` cuts at random moments, those that were judged before not again; a row each."""
        found = [json.loads(line) for line in self._results.read_text().splitlines()] if self._results.exists() else []
        log, dice = self._folder / "disk" / "log", random.Random(self._seed)
        stages = self._stages(log)
        moments = by_turns(stages, num, dice)
        latest_first = sorted(moments, reverse=True)  # the least is left to do there
        going_on = set(by_turns({moment: stages[moment] for moment in latest_first}, num_to_go_on, dice))
        platter = Platter(log, self._folder / "platter", size=SIZE_MIB[self.name] * 1024**2)
        for moment in track(sorted(moments), description=f"{self.name}: cuts", console=console, disable=not console.is_terminal):
            platter.advance(moment)
            if any(row["moment"] == moment for row in found):
                continue
            with self._state(platter, random.Random(f"{self._seed} {moment}")) as (home, num_lost):
                promises = [Promise.read(text) for text in platter.marks]
                lines = judge(self.name, home, promises, self.asked(), goes_on=moment in going_on, dice=random.Random(moment))
            row = {
                "arm": self.name,
                "moment": moment,
                "stage": stages[moment],
                "after": promises[-1].said,
                "blocks_lost": num_lost,
                "faults": lines,
                "went_on": self.name != "run" or moment in going_on,
            }
            found.append(row)
            with self._results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if lines:
                console.print(f"[red]{self.name}, moment {moment}, after {promises[-1].said}[/]: {lines[0]}", soft_wrap=True)
        return found

    def _stages(self, log: Path) -> dict[int, str]:
        """What was at work at each moment from the first mark on; before it there is no home. Of a run its stages."""
        path = self._folder / "work.json"
        works = [Work(*each) for each in json.loads(path.read_text())] if path.exists() else []
        found: dict[int, str] = {}
        is_begun = False
        for moment, entry in enumerate(entries(log), start=1):
            is_begun = is_begun or entry.kind == MARK
            if is_begun:
                at_work = [work for work in works if work.start_s <= entry.at_s <= work.end_s]
                newest = max(at_work, key=lambda work: work.start_s, default=None)
                found[moment] = self.name if not works else stage_of(newest.place) if newest else "between stages"
        return found

    @contextmanager
    def _state(self, platter: Platter, dice: random.Random) -> Iterator[tuple[Path, int]]:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            image = Path(name) / "image"
            num_lost = platter.cut(image, dice)
            Path(name).chmod(0o755)
            with mounted(image, Path(name) / "mnt") as mount:
                yield mount / "home", num_lost


def report(rows: list[dict[str, Any]], console: Console) -> int:
    """Print the table; returns how many cuts lost anything."""
    table = Table("workload", "stage", "cuts", "that took blocks (most)", "cuts that lost anything", "gone on with")
    num_bad = 0
    for arm, stage in dict.fromkeys((row["arm"], row["stage"]) for row in rows):
        of_arm = [row for row in rows if row["arm"] == arm and row["stage"] == stage]
        bad, lost = sum(bool(row["faults"]) for row in of_arm), [row["blocks_lost"] for row in of_arm]
        table.add_row(
            arm,
            stage,
            str(len(of_arm)),
            f"{sum(map(bool, lost))} (at most {max(lost)})",
            str(bad),
            str(sum(row["went_on"] for row in of_arm)),
        )
        num_bad += bad
    console.print(table)
    faults = Counter(re.sub(r"/\S*/home/", "", line)[:120] for row in rows for line in row["faults"])
    for fault, num in faults.most_common(20):
        console.print(f"{num} x {fault}", soft_wrap=True, highlight=False)
    return num_bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--cuts", type=int, default=100, help="moments an arm")
    parser.add_argument("--go-on", type=int, default=5, help="cuts of the run that are worked to the end")
    parser.add_argument("--home", type=Path, help="a home with one iteration of the smoke profile (else one is run here)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(".bench/power_cut"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that disks are unmounted
    console, reason = Console(), why_not()
    if reason is not None:
        raise SystemExit(f"no disk can be logged here: {reason}")
    rows: list[dict[str, Any]] = []
    for name in options.arms:
        arm = Arm(name, (options.folder / f"{name}-{options.seed}").absolute(), options.seed, options.home and options.home.absolute())
        console.print(f"{name}: the workload")
        arm.record()
        rows += arm.cuts(options.cuts, options.go_on, console)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if report(rows, console) else 0


if __name__ == "__main__":
    sys.exit(main())
