"""Leases under load: many clients against one `flywheel sandbox serve`, of which some are killed at any moment.

Clients live in several processes, each client with a token of its own. Some give up in the middle of a step and release nothing; whole
processes are ended with SIGKILL and replaced. All the while others try their tokens, and wrong ones, on sessions that are not theirs.
At the end every session must have been reclaimed, and nobody may have seen another's.

    python -m benchmarks.leases --clients 200 --seconds 60 --json .bench/leases.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from sandbox.actions import Click
from sandbox.http.tokens import read_tokens
from sandbox.server.client import RemoteSession, SandboxClient
from sandbox.server.tokens import TOKENS_FILE_VARIABLE
from sandbox.tasks.sources import tasks_of
from warehouse.core.errors import SandboxError

TTL_S = 3
STEPS_A_LEASE = 6
START_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the server."""

    num_clients: int = 200
    num_processes: int = 5
    num_sessions: int = 16
    seconds: float = 60.0
    kill_every_s: float = 8.0
    tasks: str = "miniwob:quickstart"
    screenshots: bool = True


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of it. The `num_` of things that must not happen come last."""

    num_clients: int
    num_sessions: int
    seconds: float
    num_leases: int = 0
    num_steps: int = 0
    num_given_up: int = 0
    num_processes_killed: int = 0
    num_probes: int = 0
    step_ms_median: float = 0.0
    step_ms_p95: float = 0.0
    wait_s_median: float = 0.0
    reclaim_s: float = 0.0
    """From the last kill of everything until no session was left; the time to live is 3 s."""
    ended: dict[str, int] = field(default_factory=dict)
    num_not_reclaimed: int = 0
    num_seen_by_others: int = 0
    num_wrong_tokens_let_in: int = 0
    num_mixed_up: int = 0
    errors: dict[str, int] = field(default_factory=dict)


# ---- the clients: a process of its own --------------------------------------------------------------------------------------------------


async def client_process(url: str, tokens: dict[str, str], tasks: str, screenshots: bool) -> None:
    """Clients until the process is killed; each event is a line of JSON on standard output."""
    await asyncio.gather(*(_one_client(url, name, token, tasks, screenshots) for name, token in tokens.items()))


async def _one_client(url: str, name: str, token: str, tasks: str, screenshots: bool) -> None:
    dice, pool = random.Random(name), tasks_of(tasks)
    while True:
        # A new one each time: the connections of one that gave up are gone as well.
        client = SandboxClient(url, token, ttl_s=TTL_S, wait_s=600)
        asked_s = time.monotonic()
        task, seed = dice.choice(pool), dice.randrange(1000)
        try:
            session = await client.open(task, screenshots=screenshots)
            _tell(event="lease", client=name, session=session.session_id, wait_s=time.monotonic() - asked_s)
            gives_up = dice.random() < 0.2
            work = asyncio.create_task(_play(session, task, seed, name, dice))
            done, _ = await asyncio.wait({work}, timeout=dice.uniform(0.01, 0.6) if gives_up else None)
            if not done:
                await _vanish(client, work)
                _tell(event="given up", client=name)
                continue
            work.result()
            await session.close()
        except (SandboxError, httpx.HTTPError) as error:
            _tell(event="error", client=name, error=type(error).__name__, text=str(error)[:200])
        await client.close()


async def _play(session: RemoteSession, task: Any, seed: int, name: str, dice: random.Random) -> None:
    observation = await session.reset(task, seed)
    for _ in range(STEPS_A_LEASE):
        started_s = time.monotonic()
        transition = await session.step(Click(x=dice.randrange(observation.width_px), y=dice.randrange(observation.height_px)))
        _tell(event="step", client=name, ms=(time.monotonic() - started_s) * 1000)
        if await session.observe() != transition.observation:
            _tell(event="mixed up", client=name)
        if transition.terminated or transition.truncated:
            await session.reset(task, seed)


async def _vanish(client: SandboxClient, work: asyncio.Task[None]) -> None:
    """What a crash of the client's machine looks like: connections end, nothing is released, no sign of life comes any more."""
    heart, http = client._heart, client._http
    client._held.clear()
    for task in (work, heart):
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, SandboxError):
                await task
    if http is not None:
        await http.aclose()


def _tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


# ---- the trial --------------------------------------------------------------------------------------------------------------------------


class Trial:
    """One server, its client processes, and what they said."""

    def __init__(self, url: str, tokens: dict[str, str], load: Load) -> None:
        self.url, self.tokens, self.load = url, tokens, load
        self.result = Result(num_clients=load.num_clients, num_sessions=load.num_sessions, seconds=load.seconds)
        self._owner: dict[str, str] = {}
        """Client of each session that was ever leased."""
        self._step_ms: list[float] = []
        self._waits_s: list[float] = []
        self._dice = random.Random(0)
        self._processes: list[asyncio.subprocess.Process] = []
        self._at_work: set[asyncio.subprocess.Process] = set()
        """Processes whose clients have begun; killing one that still starts would prove nothing."""
        self._begun = asyncio.Event()

    async def run(self) -> Result:
        names = [name for name in self.tokens if name.startswith("client")]
        groups = [names[n :: self.load.num_processes] for n in range(self.load.num_processes)]
        tasks = [asyncio.create_task(self._keep_alive(group)) for group in groups]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._begun.wait()
            tasks += [asyncio.create_task(self._probe(kind)) for kind in ("others", "wrong")]
            tasks.append(asyncio.create_task(self._kill_some()))
            done, _ = await asyncio.wait(tasks, timeout=self.load.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            await self._stop(tasks)
        await self._await_reclaim()
        self._sum_up()
        return self.result

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _keep_alive(self, names: list[str]) -> None:
        """A client process, replaced whenever it is killed."""
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "benchmarks.leases",
                "--client-of",
                self.url,
                "--names",
                ",".join(names),
                "--tasks",
                self.load.tasks,
                *([] if self.load.screenshots else ["--no-screenshots"]),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment()},
            )
            self._processes.append(process)
            if process.stdout is not None:
                async for line in process.stdout:
                    self._at_work.add(process)
                    self._hear(line)
            self._at_work.discard(process)
            await process.wait()

    def _environment(self) -> dict[str, str]:
        return {TOKENS_FILE_VARIABLE: os.environ[TOKENS_FILE_VARIABLE]}

    def _hear(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # its writer was killed
        event, result = json.loads(line), self.result
        match event["event"]:
            case "lease":
                result.num_leases += 1
                self._waits_s.append(event["wait_s"])
                self._owner[event["session"]] = event["client"]
            case "step":
                result.num_steps += 1
                self._begun.set()
                self._step_ms.append(event["ms"])
            case "given up":
                result.num_given_up += 1
            case "mixed up":
                result.num_mixed_up += 1
            case "error":
                result.errors[event["error"]] = result.errors.get(event["error"], 0) + 1

    async def _kill_some(self) -> None:
        while True:
            await asyncio.sleep(self.load.kill_every_s)
            if self._at_work:
                self._dice.choice(list(self._at_work)).send_signal(signal.SIGKILL)
                self.result.num_processes_killed += 1

    async def _probe(self, kind: str) -> None:
        """Somebody else's token, or a wrong one, on sessions that live."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, verify=False) as http:
            while True:
                await asyncio.sleep(0.05)
                if not self._owner:
                    continue
                session_id = self._dice.choice(list(self._owner)[-self.load.num_sessions :])
                token = self.tokens["prober"] if kind == "others" else secrets.token_urlsafe(32)
                method, path = self._dice.choice(
                    [("GET", ""), ("GET", "/screenshot"), ("POST", "/evaluate"), ("POST", "/heartbeat"), ("DELETE", "")]
                )
                headers = {"Authorization": f"Bearer {token}"}
                response = await http.request(method, f"/v1/sessions/{session_id}{path}", headers=headers)
                self.result.num_probes += 1
                if kind == "others" and response.status_code != 404:
                    self.result.num_seen_by_others += 1
                if kind == "wrong" and (response.status_code != 401 or session_id in response.text):
                    self.result.num_wrong_tokens_let_in += 1

    async def _await_reclaim(self) -> None:
        started_s = time.monotonic()
        while (live := await self._live()) and time.monotonic() - started_s < 60:
            await asyncio.sleep(0.1)
        self.result.reclaim_s = round(time.monotonic() - started_s, 2)
        self.result.num_not_reclaimed = live
        self.result.ended = {key: int(value) for key, value in (await self._metrics("flywheel_sessions_ended_total")).items() if value}

    async def _live(self) -> int:
        return int((await self._metrics("flywheel_sessions_live"))[""])

    async def _metrics(self, name: str) -> dict[str, float]:
        """Values of one metric by its label."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, verify=False) as http:
            text = (await http.get("/metrics", headers={"Authorization": f"Bearer {self.tokens['prober']}"})).text
        found = {}
        for line in text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                label, _, value = line[len(name) :].rpartition(" ")
                found[label.partition('"')[2].partition('"')[0]] = float(value)
        return found

    def _sum_up(self) -> None:
        result = self.result
        if len(self._step_ms) > 1:
            result.step_ms_median = round(statistics.median(self._step_ms), 1)
            result.step_ms_p95 = round(statistics.quantiles(self._step_ms, n=20)[-1], 1)
        result.wait_s_median = round(statistics.median(self._waits_s or [0.0]), 2)


@asynccontextmanager
async def server(folder: Path, load: Load) -> AsyncIterator[tuple[str, dict[str, str], int]]:
    """`flywheel sandbox serve` as a process of its own: its address, the tokens it takes, its process id."""
    names = [*(f"client{n}" for n in range(load.num_clients)), "prober"]
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name} {secrets.token_urlsafe(24)}\n" for name in names))
    os.environ[TOKENS_FILE_VARIABLE] = str(path)
    command = [sys.executable, "-m", "pipelines.cli", "sandbox", "serve", "--port", "0", "--size", str(load.num_sessions)]
    command += ["--ttl", str(TTL_S), "--max-wait", "20", "--home", str(folder / "home")]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not (line := (await process.stdout.readline()).decode()).startswith("sandbox server: "):
            raise SandboxError("The sandbox server did not start; run `flywheel sandbox serve` to see why.")
        yield line.removeprefix("sandbox server: ").strip(), read_tokens(path), process.pid
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def run(load: Load) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        async with server(Path(folder), load) as (url, tokens, _):
            return await Trial(url, tokens, load).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Load()
    parser.add_argument("--clients", type=int, default=usual.num_clients)
    parser.add_argument("--sessions", type=int, default=usual.num_sessions)
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--tasks", default=usual.tasks, help="source or source:group")
    parser.add_argument("--no-screenshots", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client-of", help=argparse.SUPPRESS)
    parser.add_argument("--names", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client_of:
        tokens = read_tokens(Path(os.environ[TOKENS_FILE_VARIABLE]))
        chosen = {name: tokens[name] for name in given.names.split(",")}
        with suppress(BrokenPipeError):
            asyncio.run(client_process(given.client_of, chosen, given.tasks, not given.no_screenshots))
        return
    load = Load(
        num_clients=given.clients,
        num_sessions=given.sessions,
        seconds=given.seconds,
        tasks=given.tasks,
        screenshots=not given.no_screenshots,
    )
    result = asyncio.run(run(load))
    table = Table("what", "how much")
    for name, value in asdict(result).items():
        table.add_row(name, str(value))
    Console().print(table)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(asdict(result), indent=2))


if __name__ == "__main__":
    main()
