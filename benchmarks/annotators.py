"""Annotators under load: many at once against one `flywheel annotate serve` with real sandboxes, which is killed in the middle and started
again.

Each annotator is a program with a token of its own that works as the page does (common/annotating.py): it takes an assignment, follows the
run's events, accepts, overrides, steps back, skips, gives a verdict, and sends again what got no answer. All the while each tries to look
into work that is not its own, to decide in it and to give it away. Afterwards the database is asked: is everything there that was
acknowledged, once, and was every lease one person's?

    python -m benchmarks.annotators --annotators 50 --seconds 120
    python -m benchmarks.annotators --annotators 50 --database postgres      one of its own, for as long as it lasts
    python -m benchmarks.annotators --annotators 50 --database postgresql+psycopg://…

*to frame* is what a person waits for: from the decision to the picture of the next screen, with the proposals for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select

from annotation.service.campaigns.campaigns import Campaigns, CampaignSpec
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.storage import accounts, logins
from annotation.storage.database import Database, default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Change, Run, RunStep
from benchmarks.common.annotating import Annotator, Counts, Server
from benchmarks.common.postgres import a_postgres, new_database
from warehouse.core.home import Home

LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The annotators begin nothing new after `seconds`, nor, where it is given, each after `num_decisions`. The server is killed half way
    to whichever comes first."""

    num_annotators: int = 50
    num_sessions: int = 24
    seconds: float = 120.0
    num_decisions: int | None = None
    tasks: str = "miniwob:quickstart"
    double_share: float = 0.3
    kill: bool = True


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of it. What must not happen comes last."""

    num_annotators: int
    num_sessions: int
    database: str
    seconds: float
    num_decisions: int = 0
    num_finished: int = 0
    num_backs: int = 0
    num_skips: int = 0
    num_sent_again: int = 0
    num_probes: int = 0
    ack_ms: dict[str, float] = field(default_factory=dict)
    frame_ms: dict[str, float] = field(default_factory=dict)
    take_ms: dict[str, float] = field(default_factory=dict)
    away_s: float = 0.0
    """From the kill of the server until the next answered."""
    num_lost: int = 0
    num_doubled: int = 0
    num_leases_of_two: int = 0
    seen_by_others: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


async def play(load: Load, tokens: list[str], all_counts: list[Counts], server: Server) -> float:
    """All annotators until they are done; for how long the server was away."""
    until_s = time.monotonic() + load.seconds
    people = [
        Annotator(number, server.url, token, counts, until_s=until_s, num_decisions=load.num_decisions)
        for number, (token, counts) in enumerate(zip(tokens, all_counts, strict=True))
    ]
    working = asyncio.gather(*(person.work() for person in people))
    away_s = 0.0
    if load.kill:
        half = load.num_annotators * (load.num_decisions or sys.maxsize) / 2
        while time.monotonic() < until_s - load.seconds / 2 and sum(counts.num_decisions for counts in all_counts) < half:
            await asyncio.sleep(LOOK_S)
        killed_s = time.monotonic()
        server.kill()
        await asyncio.to_thread(server.start)
        away_s = time.monotonic() - killed_s
    await working
    return away_s


def prepared(database: Database, home: Home, load: Load) -> list[str]:
    """A campaign, and accounts with a token each."""

    def people(session: Any) -> list[str]:
        now_s, made = time.time(), []
        for number in range(load.num_annotators):
            user = accounts.add_user(session, f"annotator{number:03d}", "annotator", None, now_s=now_s)
            made.append(logins.add_token(session, user, "benchmark", ttl_s=86_400, now_s=now_s)[0])
        return made

    async def campaign() -> None:
        spec = CampaignSpec(name="load", tasks=(load.tasks,), target_count=100_000, double_share=load.double_share, lease_s=60)
        await Campaigns(database, TaskPriorityReader(home)).create(spec, by=None, address=None)

    tokens = database.transact(people)
    asyncio.run(campaign())
    return tokens


def checked(database: Database, all_counts: list[Counts], result: Result) -> None:
    """Compare what was acknowledged with what is there."""
    with database.read() as session:
        decided = select(RunStep.run_id, func.count()).where(RunStep.decided_at_s.is_not(None)).group_by(RunStep.run_id)
        stored = dict(session.execute(decided).all())  # type: ignore[arg-type]
        kept_steps = select(RunStep.run_id, RunStep.step_index).where(RunStep.superseded_at_s.is_(None))
        places = Counter((run_id, index) for run_id, index in session.execute(kept_steps))
        words = select(RunStep.run_id, RunStep.thought).where(RunStep.decision == "override")
        overrides = Counter((run_id, thought) for run_id, thought in session.execute(words))
        finished = Counter(session.scalars(select(Run.run_id).where(Run.state == "finished")))
        of_assignment = Counter(session.scalars(select(Run.assignment_id).where(Run.state == "finished")))
        leases: dict[tuple[str, int], set[str]] = {}
        for assignment_id, number, user_id in session.execute(select(Run.assignment_id, Run.lease_number, Run.user_id)):
            leases.setdefault((assignment_id, number), set()).add(user_id)
        states = Counter(session.scalars(select(Assignment.state)))
        accepted = Counter(session.scalars(select(Change.subject_id).where(Change.kind == "run")))
    said = Counter(run_id for counts in all_counts for run_id in counts.finished)
    for counts in all_counts:
        for run_id in {*counts.decisions, *counts.unsure}:
            num = counts.decisions[run_id]
            result.num_lost += max(0, num - stored.get(run_id, 0))
            result.num_doubled += max(0, stored.get(run_id, 0) - num - counts.unsure[run_id])
    result.num_lost += sum(run_id not in finished for run_id in said)
    result.num_doubled += sum(num - 1 for found in (places, overrides, of_assignment, accepted, said) for num in found.values())
    holders = Counter(run_id for counts in all_counts for run_id in counts.own)
    result.num_leases_of_two = sum(len(users) > 1 for users in leases.values()) + sum(num > 1 for num in holders.values())
    if states["finished"] != sum(of_assignment.values()):
        result.errors["assignments and runs that are finished differ"] = abs(states["finished"] - sum(of_assignment.values()))


def measured(load: Load, home: Home, url: str, *, environment: Mapping[str, str] | None = None) -> Result:
    """Put the load on a server of the home, with an empty database at `url`. `environment`: the server's; None is this process's."""
    database = open_database(url)
    tokens = prepared(database, home, load)
    taken: dict[str, str] = {}
    all_counts = [Counts(taken) for _ in tokens]
    server = Server(home, url, load.num_sessions, environment=environment)
    began_s = time.monotonic()
    try:
        server.start()
        began_s = time.monotonic()
        away_s = asyncio.run(play(load, tokens, all_counts, server))
    finally:
        server.end()
    result = Result(
        num_annotators=load.num_annotators,
        num_sessions=load.num_sessions,
        database=database.url.get_backend_name(),
        seconds=time.monotonic() - began_s,
        away_s=away_s,
        num_decisions=sum(counts.num_decisions for counts in all_counts),
        num_finished=sum(len(counts.finished) for counts in all_counts),
        seen_by_others=[seen for counts in all_counts for seen in counts.seen],
        **{
            name: sum(getattr(counts, name) for counts in all_counts) for name in ("num_backs", "num_skips", "num_sent_again", "num_probes")
        },
        **{
            f"{name}_ms": percentiles([s for counts in all_counts for s in getattr(counts, f"{name}_s")])
            for name in ("ack", "frame", "take")
        },
    )
    result.errors = dict(sum((counts.errors for counts in all_counts), Counter()))
    checked(database, all_counts, result)
    database.close()
    return result


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {f"p{p}": round(1000 * ordered[min(len(ordered) - 1, p * len(ordered) // 100)], 1) for p in (50, 95, 99)}


def reported(result: Result) -> Table:
    title = f"{result.num_annotators} annotators, {result.num_sessions} sessions, {result.database}, {result.seconds:.0f} s"
    table = Table("what", "measured", title=title)
    for name, value in asdict(result).items():
        table.add_row(name, str(value))
    return table


@contextmanager
def database_at(given: str | None) -> Iterator[str]:
    """The address of an empty database: the given one, a Postgres of one's own, or a file of SQLite."""
    if given == "postgres":
        with a_postgres() as socket:
            yield new_database(socket, "annotators")
    elif given is not None:
        yield given
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield default_url(Home(Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--sessions", type=int, default=24, help="sandboxes that are lent at once")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--decisions", type=int, help="of each annotator, at most")
    parser.add_argument("--tasks", default="miniwob:quickstart")
    parser.add_argument("--home", type=Path, help="a home with a release; else one small iteration makes one under .bench")
    parser.add_argument(
        "--database", help="address of an empty database, or `postgres` for one of its own [default: SQLite in a folder of its own]"
    )
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    home = Home(arguments.home.absolute()) if arguments.home else made_home(Path(".bench/annotators").absolute())
    load = Load(
        num_annotators=arguments.annotators,
        num_sessions=arguments.sessions,
        seconds=arguments.seconds,
        num_decisions=arguments.decisions,
        tasks=arguments.tasks,
        kill=not arguments.no_kill,
    )
    with database_at(arguments.database) as url:
        result = measured(load, home, url)
    Console().print(reported(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=2))


def made_home(folder: Path) -> Home:
    """One with a release, by an iteration of the smallest profile."""
    if not (folder / "tables" / "checkpoints").is_dir():
        command = [sys.executable, "-m", "pipelines.cli", "run", "--iterations", "1", "--profile", "smoke", "--home", str(folder)]
        subprocess.run(command, check=True, env={**os.environ})
    return Home(folder)


if __name__ == "__main__":
    main()
