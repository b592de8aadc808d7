"""What is done on a home while its disk is logged: commits and files one after another, every command that changes a table, and a run.
Each says into the log what was acknowledged, once it was. What a cut makes of it is __main__.py's.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.acknowledged import Digests, Promise, file_digest
from benchmarks.importing import write_file
from benchmarks.power_cut.logged_disk import ROOT, LoggedDisk
from warehouse.core.home import Home, atomic_write
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

NUM_COMMITS = 60
SETTLED_S = 3.0
"""A commit that could be seen so long ago has returned. It is not known when the processes of a run get their answers."""
RUN_TIMEOUT_S = 3600.0
PROFILE = ROOT / "benchmarks" / "profiles" / "tiny.yaml"
"""The smoke profile with less work in each of its stages."""
RUN = ("run", "--iterations", "1", "--profile", str(PROFILE))


def commits(disk: LoggedDisk, home: Path, dice: random.Random) -> None:
    """Commits of every kind, and files, each acknowledged when its call returned."""
    warehouse, digests = Warehouse(Home(home)), Digests(home)
    for number in range(NUM_COMMITS):
        kind = dice.choice(["replace", "append", "pictures", "file"])
        if kind == "file":
            path = home / "reports" / f"page-{number}.json"
            atomic_write(path, dice.randbytes(dice.randrange(1, 40_000)))
            disk.mark(Promise(said=f"{kind} {number}", files={str(path.relative_to(home)): file_digest(path)}).text())
            continue
        commit(warehouse, kind, number, dice)
        disk.mark(Promise(said=f"{kind} {number}", tables=digests.of(digests.versions())).text())


def commit(warehouse: Warehouse, kind: str, number: int, dice: random.Random) -> None:
    place = {"iteration": f"{dice.randrange(1, 4):04d}", "stage": "rollouts"}
    if kind == "pictures":
        rows = [
            {"screenshot_id": f"shot-{number}-{each}", "format": "png", "width_px": 1, "height_px": 1, "data": dice.randbytes(3000)}
            for each in range(dice.randrange(1, 9))
        ]
        warehouse.add_screenshots(rows)
    elif kind == "replace":
        warehouse.replace_partition("ct_samples", [_sample(f"r-{number}-{each}") for each in range(dice.randrange(0, 200))], **place)
    else:
        warehouse.append_partition("sft_samples", [_sample(f"a-{number}-{each}") for each in range(dice.randrange(1, 50))], **place)


def _sample(name: str) -> dict[str, Any]:
    return {
        "sample_id": name,
        "origin": "demonstration",
        "domain": "pointing",
        "episode_id": None,
        "step_index": None,
        "annotation_id": None,
        "messages": [{"role": "user", "content": name, "loss": 0.0}, {"role": "assistant", "content": name[::-1], "loss": 1.0}],
        "verdict": True,
        "withdrawn": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line that changes tables, and SQL that gives a positive number once it has."""

    name: str
    arguments: tuple[str, ...]
    effect: str


def table_commands(home: Path, files: Path) -> list[Command]:
    """Every command that changes a table, for a home with one iteration of the smoke profile. Writes what it imports into `files`."""
    with connect(Warehouse(Home(home))) as con:
        sft, ct = (con.execute(f"select min(sample_id) from {kind}_samples where not withdrawn").fetchall()[0][0] for kind in ("sft", "ct"))
        (episode,) = con.execute("select min(episode_id) from episodes where purpose = 'rollout'").fetchall()[0]
        (release,) = con.execute("select max(checkpoint_id) from checkpoints where stage = 'merged_policy'").fetchall()[0]
    general = files / "chat.jsonl"
    chat = [
        {"messages": [{"role": "user", "content": f"What is {n} and one?"}, {"role": "assistant", "content": f"It is {n + 1}."}]}
        for n in range(40)
    ]
    general.write_text("".join(json.dumps(each) + "\n" for each in chat))
    tasks = files / "tasks.txt"
    tasks.write_text("click-test-2\nclick-link\n")
    shown = write_file(files, 6, 3, (320, 200), 6)
    withdrawn = "select count(*) from {kind}_samples where sample_id = '{id}' and withdrawn"
    return [
        Command(name="withdraw", arguments=("withdraw", sft), effect=withdrawn.format(kind="sft", id=sft)),
        Command(
            name="verdict",
            arguments=("verdict", episode, "--good", "--reason", "it was done"),
            effect=f"select count(*) from verdicts where episode_id = '{episode}' and origin = 'human'",
        ),
        Command(name="reroute", arguments=("reroute",), effect=f"select count(*) from routes where episode_id = '{episode}'"),
        Command(
            name="import general",
            arguments=("import", "general", str(general)),
            effect="select count(*) from ct_samples where origin = 'general'",
        ),
        Command(
            name="import demonstrations",
            arguments=("import", "demonstrations", "agentnet", str(shown), "--track", "expert", "--name", "shown"),
            effect="select count(*) = 6 from episodes where stage = 'imported_shown'",
        ),
        Command(name="import tasks", arguments=("import", "tasks", "miniwob", str(tasks), "--name", "two"), effect="select 1"),
        Command(name="restore", arguments=("restore", "training_metrics", "0"), effect="select 1"),
        Command(name="purge", arguments=("withdraw", ct, "--purge", "--yes"), effect=withdrawn.format(kind="ct", id=ct)),
        Command(
            name="release promote",
            arguments=("release", "promote", "0000/seed_policy", "--by", "anna", "--reason", "power cut"),
            effect="select count(*) = 2 from releases where origin = 'human'",
        ),
        Command(name="eval", arguments=("eval", release, "--per-task", "1"), effect="select 1"),
    ]


def flywheel(home: Path, *arguments: str, timeout_s: float = RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """The command line on a home, to its end."""
    command = [sys.executable, "-m", "pipelines.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=_environment(home), text=True, capture_output=True, timeout=timeout_s)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DAGSTER_", "PREFECT_"))}
    return {**kept, "FLYWHEEL_HOME": str(home), "FLYWHEEL_PROFILE": "smoke", "COLUMNS": "200"}


def commands(disk: LoggedDisk, home: Path, finished: Path, files: Path) -> list[Command]:
    """Every command of `table_commands` on a copy of a finished home, one after another; returns them."""
    shutil.copytree(finished, home, ignore=shutil.ignore_patterns("locks", "server.json"))
    os.sync()
    digests, asked = Digests(home), table_commands(home, files)
    disk.mark(Promise(said="finished home", tables=digests.of(digests.versions())).text())
    for command in asked:
        done = flywheel(home, *command.arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{command.name} ended with {done.returncode} before any cut:\n{done.stdout}\n{done.stderr}")
        disk.mark(Promise(said=f"done {command.name}", tables=digests.of(digests.versions())).text())
        time.sleep(0.5)
    return asked


def run(disk: LoggedDisk, home: Path) -> None:
    """A run of PROFILE in an empty home. Acknowledged is what could be read some seconds ago, and stages that its log calls finished."""
    digests, seen = Digests(home), _Seen()
    command = [sys.executable, "-m", "pipelines.cli", *RUN]
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(home), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(_lines(process)), daemon=True)
    reader.start()
    while process.poll() is None:
        time.sleep(0.5)
        seen.look(digests.versions)
        settled = seen.settled()
        if settled:
            disk.mark(Promise(said=lines[-1] if lines else "started", tables=digests.of(settled)).text())
    reader.join()
    if process.returncode != 0:
        raise RuntimeError(f"the run ended with {process.returncode} before any cut:\n" + "\n".join(lines[-40:]))
    disk.mark(Promise(said="done run", tables=digests.of(digests.versions())).text())


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return (line.strip() for line in process.stdout)


class _Seen:
    """Versions of tables as they were seen, and since when."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, dict[str, int]]] = []
        self._reported: dict[str, int] = {}

    def look(self, versions: Callable[[], dict[str, int]]) -> None:
        self._looks.append((time.monotonic(), versions()))

    def settled(self) -> dict[str, int]:
        """What has been there for SETTLED_S and was not yielded yet."""
        old = [found for at_s, found in self._looks if at_s < time.monotonic() - SETTLED_S]
        self._looks = self._looks[max(0, len(old) - 1) :]
        news = {table: version for table, version in (old[-1] if old else {}).items() if self._reported.get(table) != version}
        self._reported.update(news)
        return news


def episodes(home: Path, iteration: Sequence[str] = ()) -> set[str]:
    """Ids of all stored episodes."""
    with connect(Warehouse(Home(home))) as con:
        return {found for (found,) in con.execute("select episode_id from episodes").fetchall()}
