"""Annotators under load: many at once against one `flywheel annotate serve` with real sandboxes, which is killed in the middle and started
again.

Each annotator is a program with a token of its own that works as the page does: it takes an assignment, follows the run's events, accepts,
overrides, steps back, skips, gives a verdict, and sends again what got no answer. All the while each looks into runs that are not its own.
Afterwards the database is asked: is everything there that was acknowledged, once, and was every lease one person's?

    python -m benchmarks.annotators --annotators 50 --seconds 120
    python -m benchmarks.annotators --annotators 50 --database postgresql+psycopg://…

*to frame* is what a person waits for: from the decision to the picture of the next screen, with the proposals for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select

from annotation.service.campaigns import Campaigns, CampaignSpec
from annotation.service.standing import StandingReader
from annotation.storage import accounts, logins
from annotation.storage.database import Database, default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Landing, Run, RunStep
from warehouse.home import Home

START_TIMEOUT_S = 180.0
THINK_S = (0.3, 1.5)
WAITING = ("starting", "proposing", "executing", "rewinding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    num_annotators: int = 50
    num_sessions: int = 24
    seconds: float = 120.0
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
    num_seen_by_others: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Annotator:
    """One simulated person. What it was told is in its tally; it sends every request until it is answered."""

    def __init__(self, number: int, url: str, token: str, tally: Tally, until_s: float) -> None:
        self._dice = random.Random(number)
        self._tally, self._until_s = tally, until_s
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(60, connect=5), trust_env=False)

    async def work(self) -> None:
        async with self._http:
            while time.monotonic() < self._until_s:
                asked_s = time.monotonic()
                answer = await self._send("POST", "/api/v1/work/next", {})
                if answer.status_code == 204:
                    await asyncio.sleep(1.0)
                    continue
                if not answer.is_success:
                    self._tally.error(answer)
                    await asyncio.sleep(1.0)
                    continue
                self._tally.take_s.append(time.monotonic() - asked_s)
                self._tally.run_ids.append(answer.json()["run_id"])
                self._tally.all_run_ids.append(answer.json()["run_id"])
                await self._run(answer.json())

    async def _run(self, state: dict[str, Any]) -> None:
        run_id = state["run_id"]
        while True:
            state = await self._settled(run_id, state)
            if state["phase"] in ("finished", "abandoned"):
                return
            if state["phase"] == "broken":
                self._tally.errors[f"broken: {state['problem'][:60]}"] += 1
                await self._send("POST", f"/api/v1/assignments/{state['assignment_id']}/skip", {"reason": "it broke"})
                return
            await asyncio.sleep(self._dice.uniform(*THINK_S))
            await self._probe()
            state = await self._step(run_id, state)

    async def _step(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        version, luck = state["version"], self._dice.random()
        if state["phase"] == "ended":
            done = await self._send("POST", f"/api/v1/runs/{run_id}/finish", {"version": version, "is_success": bool(state["verifier"])})
            if done.is_success:
                self._tally.finished.append(run_id)
            return self._state(done, state)
        if luck < 0.03:
            skipped = await self._send("POST", f"/api/v1/assignments/{state['assignment_id']}/skip", {"reason": "somebody else, please"})
            self._tally.num_skips += skipped.is_success
            return {**state, "phase": "abandoned"}
        if luck < 0.10 and state["step_index"] > 0:
            back = {"version": version, "to_step": self._dice.randrange(state["step_index"])}
            answer = await self._send("POST", f"/api/v1/runs/{run_id}/back", back)
            self._tally.num_backs += answer.is_success
            return self._state(answer, state)
        sent_s = time.monotonic()
        answer = await self._send("POST", f"/api/v1/runs/{run_id}/decide", self._decision(state))
        if answer.is_success:
            self._tally.decisions[run_id] += 1
            self._tally.ack_s.append(time.monotonic() - sent_s)
            after = await self._settled(run_id, answer.json())
            if after["screen"] is not None and after["screen"]["screenshot_id"] is not None:
                await self._send("GET", f"/api/v1/runs/{run_id}/screens/{after['screen']['screenshot_id']}")
            self._tally.frame_s.append(time.monotonic() - sent_s)
            return after
        return self._state(answer, state)

    def _decision(self, state: dict[str, Any]) -> dict[str, Any]:
        usable = [proposal for proposal in state["proposals"] if not proposal["problem"]]
        if usable and self._dice.random() < 0.8:
            return {"version": state["version"], "decision": "accept", "candidate": usable[0]["rank"]}
        elements = state["screen"]["elements"]
        if not elements:
            return {"version": state["version"], "decision": "beyond_repair"}
        chosen = self._dice.choice(elements)
        return {"version": state["version"], "decision": "override", "thought": "I would", "action": f"click [{chosen['index']}]"}

    async def _settled(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        """The state once it waits for a person, from the run's events."""
        while state["phase"] in WAITING:
            try:
                async with self._http.stream("GET", f"/api/v1/runs/{run_id}/events") as events:
                    async for line in events.aiter_lines():
                        if line.startswith("data: "):
                            state = json.loads(line[6:])
                            if state["phase"] not in WAITING:
                                break
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
        return state

    async def _probe(self) -> None:
        """Look into somebody else's run."""
        others = [run_id for run_id in self._tally.all_run_ids if run_id not in self._tally.run_ids]
        if others:
            answer = await self._send("GET", f"/api/v1/runs/{self._dice.choice(others)}")
            self._tally.num_probes += 1
            self._tally.num_seen += answer.is_success

    def _state(self, answer: httpx.Response, before: dict[str, Any]) -> dict[str, Any]:
        """What the server says now. A refusal means that it was decided on something old: look again."""
        if answer.is_success:
            found: dict[str, Any] = answer.json()
            return found
        self._tally.error(answer)
        gone = answer.status_code in (404, 410)
        return {**before, "phase": "abandoned" if gone else "starting"}

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Until there is an answer: a decision that was carried out before the line broke is known by its version."""
        while True:
            try:
                answer = await self._http.request(method, path, json=body)
            except httpx.HTTPError:
                self._tally.num_sent_again += 1
                await asyncio.sleep(0.3)
                continue
            if answer.status_code in (429, 503):
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
                continue
            return answer


@dataclass(slots=True)
class Tally:
    """What one annotator was told; `all_run_ids` is shared by all."""

    all_run_ids: list[str]
    run_ids: list[str] = field(default_factory=list)
    decisions: Counter[str] = field(default_factory=Counter)
    finished: list[str] = field(default_factory=list)
    ack_s: list[float] = field(default_factory=list)
    frame_s: list[float] = field(default_factory=list)
    take_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    num_backs: int = 0
    num_skips: int = 0
    num_sent_again: int = 0
    num_probes: int = 0
    num_seen: int = 0

    def error(self, answer: httpx.Response) -> None:
        with suppress(ValueError):
            self.errors[f"{answer.status_code} {answer.json().get('error')}"] += 1


async def play(load: Load, urls: str, tokens: list[str], tallies: list[Tally], server: Server) -> float:
    """All annotators until the time is over; for how long the server was away."""
    until_s = time.monotonic() + load.seconds
    people = [Annotator(number, urls, token, tally, until_s) for number, (token, tally) in enumerate(zip(tokens, tallies, strict=True))]
    working = asyncio.gather(*(person.work() for person in people))
    away_s = 0.0
    if load.kill:
        await asyncio.sleep(load.seconds / 2)
        killed_s = time.monotonic()
        server.kill()
        await asyncio.to_thread(server.start)
        away_s = time.monotonic() - killed_s
    await working
    return away_s


class Server:
    """`flywheel annotate serve` as a process of its own, on one port for as long as the benchmark lasts."""

    def __init__(self, home: Home, url: str, num_sessions: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            sys.executable, "-m", "pipelines.cli", "annotate", "serve", "--home", str(home.root), "--port", str(self.port),
            "--database", url, "--sessions", str(num_sessions),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.gettempdir()) / f"flywheel-annotators-{self.port}.log"

    def start(self) -> None:
        """Returns once it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended with {self._process.returncode}: {self._log.read_text()[-2000:]}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/login", trust_env=False).is_success:
                    return
            time.sleep(0.2)
        raise SystemExit(f"the server does not answer: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, to the server alone: what it started has to notice by itself."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)


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
        await Campaigns(database, StandingReader(home)).create(spec, by=None, address=None)

    tokens = database.transact(people)
    asyncio.run(campaign())
    return tokens


def checked(database: Database, tallies: list[Tally], result: Result) -> None:
    """Compare what was acknowledged with what is there."""
    with database.read() as session:
        decided = select(RunStep.run_id, func.count()).where(RunStep.decided_at_s.is_not(None)).group_by(RunStep.run_id)
        stored = dict(session.execute(decided).all())  # type: ignore[arg-type]
        finished = Counter(session.scalars(select(Run.run_id).where(Run.state == "finished")))
        of_assignment = Counter(session.scalars(select(Run.assignment_id).where(Run.state == "finished")))
        leases: dict[tuple[str, int], set[str]] = {}
        for assignment_id, number, user_id in session.execute(select(Run.assignment_id, Run.lease_number, Run.user_id)):
            leases.setdefault((assignment_id, number), set()).add(user_id)
        states = Counter(session.scalars(select(Assignment.state)))
        landed = Counter(session.scalars(select(Landing.subject_id).where(Landing.kind == "run")))
    said = [run_id for tally in tallies for run_id in tally.finished]
    for tally in tallies:
        for run_id, num in tally.decisions.items():
            result.num_lost += max(0, num - stored.get(run_id, 0))
            result.num_doubled += max(0, stored.get(run_id, 0) - num - tally.num_sent_again)
    result.num_lost += sum(run_id not in finished for run_id in said)
    result.num_doubled += sum(num > 1 for num in (*of_assignment.values(), *landed.values())) + (len(said) - len(set(said)))
    result.num_leases_of_two = sum(len(users) > 1 for users in leases.values())
    if states["finished"] != sum(of_assignment.values()):
        result.errors["assignments and runs that are finished differ"] = abs(states["finished"] - sum(of_assignment.values()))


def measured(load: Load, home: Home, url: str) -> Result:
    database = open_database(url)
    tokens = prepared(database, home, load)
    everyone: list[str] = []
    tallies = [Tally(all_run_ids=everyone) for _ in tokens]
    server = Server(home, url, load.num_sessions)
    server.start()
    began_s = time.monotonic()
    try:
        away_s = asyncio.run(play(load, server.url, tokens, tallies, server))
    finally:
        server.end()
    result = Result(
        num_annotators=load.num_annotators, num_sessions=load.num_sessions, database=database.url.get_backend_name(),
        seconds=time.monotonic() - began_s, away_s=away_s,
        num_decisions=sum(sum(tally.decisions.values()) for tally in tallies), num_finished=sum(len(tally.finished) for tally in tallies),
        num_seen_by_others=sum(tally.num_seen for tally in tallies),
        **{name: sum(getattr(tally, name) for tally in tallies) for name in ("num_backs", "num_skips", "num_sent_again", "num_probes")},
        **{f"{name}_ms": percentiles([s for tally in tallies for s in getattr(tally, f"{name}_s")]) for name in ("ack", "frame", "take")},
    )  # fmt: skip
    result.errors = dict(sum((tally.errors for tally in tallies), Counter()))
    checked(database, tallies, result)
    database.close()
    return result


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {f"p{p}": round(1000 * ordered[min(len(ordered) - 1, p * len(ordered) // 100)], 1) for p in (50, 95, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--sessions", type=int, default=24, help="sandboxes that are lent at once")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tasks", default="miniwob:quickstart")
    parser.add_argument("--home", type=Path, help="a home with a release; else one small turn of the wheel makes one under .bench")
    parser.add_argument("--database", help="address of an empty database [default: SQLite in a folder of its own]")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    home = Home(arguments.home.absolute()) if arguments.home else made_home(Path(".bench/annotators").absolute())
    load = Load(
        num_annotators=arguments.annotators, num_sessions=arguments.sessions, seconds=arguments.seconds, tasks=arguments.tasks,
        kill=not arguments.no_kill,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.database or default_url(Home(Path(folder)))
        result = measured(load, home, url)
    table = Table("what", "measured", title=f"{load.num_annotators} annotators, {load.num_sessions} sessions, {load.seconds:g} s")
    for name, value in asdict(result).items():
        table.add_row(name, str(value))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=2))


def made_home(folder: Path) -> Home:
    """One with a release, by a turn of the smallest profile."""
    if not (folder / "tables" / "checkpoints").is_dir():
        command = [sys.executable, "-m", "pipelines.cli", "run", "--iterations", "1", "--profile", "smoke", "--home", str(folder)]
        subprocess.run(command, check=True, env={**os.environ})
    return Home(folder)


if __name__ == "__main__":
    main()
