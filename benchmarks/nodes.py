"""Sandbox servers on many machines: what they come to together, what comes back when one dies, and what is lost. Machines are network
namespaces (benchmarks/common/hosts.py: Linux, root), so all share this one's processors; sessions only wait (waiting_node.py), so that this
says what the servers, the client and the pool do, and nothing of browsers. Server, client, pool and episode runner are the real ones.

    python -m benchmarks.nodes --publish

throughput  episodes by 1, 2, 4 and 8 nodes of the same number of sessions, whose steps take a stated time; beside them one OpenEnv server
            with as many sessions as the eight nodes, a client a session (its own way, in a venv of its own), in turn
recovery    the longest wait of an episode whose node was killed, or whose link was cut for 30 s, until it makes its next step elsewhere;
            and how long the mended node waits for its next lease
deaths      10,000 short episodes on four nodes, one of which is killed every few seconds and started again: lost, doubled, not rewarded

Interrupted, it goes on where it was: what was measured is kept under .bench/nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import ActionSource, StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.hosts import Host, Hosts
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.provenance import provenance, publish_rows
from benchmarks.common.venv import python_of
from benchmarks.common.waiting_node import CLICKS, TASK, Clicking
from sandbox.server.address import ServerAddress
from sandbox.server.servers_pool import ServersPool
from sandbox.server.tokens import TOKEN_VARIABLE

KEPT = Path(".bench/nodes")
OPENENV = ("openenv-core==0.3.0",)
ROOT = Path(__file__).resolve().parents[1]
TOKEN = "token-of-the-nodes-0123456789"
PORT = 8421
STEPS = CLICKS + 1
NODES = (1, 2, 4, 8)
NAMED = ("repeats", "sessions_per_node")
"""Settings that a row's name says, nodes times sessions and which repeat, so that rows of others may lie beside it."""
CUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured."""

    sessions_per_node: int = 4
    step_ms: float = 1000.0
    episodes_per_session: int = 8
    recovery_step_ms: float = 500.0
    repeats: int = 3
    num_deaths_episodes: int = 10_000
    deaths_step_ms: float = 10.0
    death_every_s: float = 8.0


@dataclass
class Nodes:
    """A head, and nodes that serve."""

    head: Host
    hosts: list[Host]
    size: int
    step_ms: float
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, host: Host) -> None:
        command = [sys.executable, "-m", "benchmarks.common.waiting_node", "--host", host.address, "--port", PORT, "--size", self.size]
        output = KEPT / f"{host.address}.log"
        self.processes[host.address] = host.start(
            [str(part) for part in [*command, "--step-ms", self.step_ms]], env=_environment(), cwd=ROOT, output=output
        )

    def addresses(self) -> list[ServerAddress]:
        return [ServerAddress(url=f"http://{host.address}:{PORT}") for host in self.hosts]

    def cpu_s(self) -> float:
        """Of all that runs on the nodes."""
        found = 0.0
        for host in self.hosts:
            for pid in host.pids():
                with suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    found += times.user + times.system
        return found


def _environment() -> dict[str, str]:
    return {**os.environ, TOKEN_VARIABLE: TOKEN, "PYTHONPATH": str(ROOT)}


@contextmanager
def nodes(num: int, size: int, step_ms: float) -> Iterator[Nodes]:
    """So many nodes, all of which answer; within the block this thread is on the head, and this process has their token."""
    KEPT.mkdir(parents=True, exist_ok=True)
    os.environ[TOKEN_VARIABLE] = TOKEN
    with Hosts(num + 1) as (head, *hosts):
        made = Nodes(head, hosts, size, step_ms)
        for host in hosts:
            made.start(host)
        with head.entered():
            asyncio.run(_all_answer(made))
            yield made


async def _all_answer(made: Nodes) -> None:
    async with asyncio.timeout(120), ServersPool(made.addresses(), size=1) as pool:
        while len(pool.free_by_server()) < len(made.hosts):
            await asyncio.sleep(0.05)


def requests(num: int, first: int = 0) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(task=TASK, seed=seed, purpose="rollout", policy_id="clicking", screenshots=False)
        for seed in range(first, first + num)
    ]


async def play(
    pool: ServersPool, wanted: Sequence[EpisodeRequest], at_once: int, source: ActionSource, log: EpisodeLog | None = None
) -> list[tuple[float, Episode]]:
    """Episodes, each with the time at which it was done."""
    collector = PoolCollector(pool, PromptBuilder("uitars15"), EpisodeLimits(), CollectorSettings(concurrency=at_once))
    return [(time.monotonic(), episode) async for episode in collector.play(source, wanted, log=log)]


def rate(started_s: float, done_s: Sequence[float], at_once: int) -> float:
    """Done a second while all sessions are busy: until the last episode begins."""
    return (len(done_s) - at_once) / (done_s[-at_once - 1] - started_s)


# ---- throughput ------------------------------------------------------------------------------------------------------------------------


def our_throughput(num_nodes: int, settings: Settings) -> Row:
    """Episodes a second while all sessions are busy, and processor time by step."""
    sessions = num_nodes * settings.sessions_per_node
    with nodes(num_nodes, settings.sessions_per_node, settings.step_ms) as made:

        async def main() -> tuple[float, list[tuple[float, Episode]]]:
            async with ServersPool(made.addresses(), size=sessions) as pool:
                await play(pool, requests(sessions, first=1_000_000), sessions, Clicking())  # connections and imports
                started_s = time.monotonic()
                return started_s, await play(pool, requests(sessions * settings.episodes_per_session), sessions, Clicking())

        before_s, own_s = made.cpu_s(), time.process_time()
        started_s, done = asyncio.run(main())
        steps = len(done) * STEPS * (1 + 1 / settings.episodes_per_session)
        cpu = {"node_cpu_ms": 1000 * (made.cpu_s() - before_s) / steps, "head_cpu_ms": 1000 * (time.process_time() - own_s) / steps}
    assert all(episode.reward == 1.0 for _, episode in done), "an episode failed"
    episodes_per_s = rate(started_s, [at_s for at_s, _ in done], sessions)
    return {"episodes_per_s": episodes_per_s, "steps_per_s": episodes_per_s * STEPS, **cpu, "load": os.getloadavg()[0]}


def openenv_throughput(settings: Settings) -> Row:
    """The same by one OpenEnv server on one node with all the sessions, and a client a session."""
    python = python_of((KEPT / "openenv").absolute(), OPENENV)
    program = ROOT / "benchmarks" / "peers" / "openenv_waiting.py"
    sessions = max(NODES) * settings.sessions_per_node
    with Hosts(2) as (head, node):
        numbers = [str(sessions), str(settings.step_ms), str(STEPS), str(settings.episodes_per_session)]
        node.start([python, program, "serve", node.address, *numbers], output=KEPT / "openenv.log")
        ran = head.run([python, program, "play", node.address, *numbers], timeout=600)
        row: Row = json.loads(ran.stdout.strip().splitlines()[-1])
        times = [psutil.Process(pid).cpu_times() for pid in node.pids()]
    node_cpu_ms = 1000 * sum(each.user + each.system for each in times) / row["num_steps_served"]
    episodes_per_s = rate(row["started_s"], row["done_s"], sessions)
    cpu = {"node_cpu_ms": node_cpu_ms, "head_cpu_ms": row["head_cpu_ms"]}
    return {"episodes_per_s": episodes_per_s, "steps_per_s": episodes_per_s * STEPS, **cpu, "load": os.getloadavg()[0]}


# ---- recovery --------------------------------------------------------------------------------------------------------------------------


class Watched:
    """An action source that notes when each episode asked for a new step."""

    def __init__(self) -> None:
        self._source = Clicking()
        self.asked_s: defaultdict[str, list[float]] = defaultdict(list)

    async def respond(self, context: StepContext) -> Response | None:
        self.asked_s[context.request.episode_id].append(time.monotonic())
        return await self._source.respond(context)


def recovery(what: str, settings: Settings) -> Row:
    """`kill` or `cut`: of one of four nodes under full load."""
    size = settings.sessions_per_node
    with nodes(4, size, settings.recovery_step_ms) as made:
        source, node = Watched(), made.hosts[0]
        url = made.addresses()[0].url

        async def main() -> Row:
            async with ServersPool(made.addresses(), size=4 * size) as pool:
                num = int(4 * size * 60 / (STEPS * settings.recovery_step_ms / 1000))
                playing = asyncio.create_task(play(pool, requests(num), 4 * size, source))
                await asyncio.sleep(8)
                failed_s = time.monotonic()
                await asyncio.to_thread(node.kill if what == "kill" else node.cut)
                again: Row = {}
                if what == "cut":
                    await asyncio.sleep(CUT_S - (time.monotonic() - failed_s))
                    await asyncio.to_thread(node.mend)
                    mended_s = time.monotonic()
                    while pool.free_by_server().get(url, size) >= size:
                        await asyncio.sleep(0.02)
                    again = {"used_again_s": time.monotonic() - mended_s}
                played = await playing
                done = [episode for _, episode in played]
                hit = [(done_s, episode) for done_s, episode in played if episode.num_retries]
                # One that was cut off after its last decision makes no new one.
                waits = [min([at for at in source.asked_s[one.episode_id] if at > failed_s] or [at_s]) - failed_s for at_s, one in hit]
                assert all(episode.reward == 1.0 for episode in done), "an episode failed"
                return {
                    "num_episodes": len(done),
                    "num_hit": len(hit),
                    "longest_s": max(waits),
                    "median_s": statistics.median(waits),
                    **again,
                }

        return asyncio.run(main())


# ---- deaths ----------------------------------------------------------------------------------------------------------------------------


def deaths(settings: Settings, recipe: str) -> Row:
    """Interrupted, the next call goes on with the episodes that are missing."""
    folder, size = KEPT / "deaths", 8
    claim(folder, recipe)
    log = EpisodeLog(folder)
    log.repair()
    wanted = requests(settings.num_deaths_episodes)
    counts_file = folder / "deaths.json"
    counts = json.loads(counts_file.read_text()) if counts_file.exists() else {"num_deaths": 0, "wall_s": 0.0}
    missing = _missing(folder, wanted)
    with nodes(4, size, settings.deaths_step_ms) as made:
        stop, started_s = threading.Event(), time.monotonic()

        def kill_and_start() -> None:
            dice = random.Random(counts["num_deaths"])
            while not stop.wait(dice.expovariate(1 / settings.death_every_s)):
                host = dice.choice(made.hosts)
                host.kill()
                counts["num_deaths"] += 1
                if not stop.wait(dice.uniform(0, 4)):
                    made.start(host)

        async def main() -> None:
            async with ServersPool(made.addresses(), size=4 * size) as pool:
                await play(pool, missing, 4 * size, Clicking(), log)

        killer = threading.Thread(target=kill_and_start)
        killer.start()
        try:
            asyncio.run(main())
        finally:
            stop.set()
            killer.join()
            counts["wall_s"] += time.monotonic() - started_s
            counts_file.write_text(json.dumps(counts))
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_bytes().splitlines()]
    ids = Counter(EpisodeRequest.model_validate(line["request"]).episode_id for line in lines)
    return {
        "num_episodes": len(ids),
        "num_lost": sum(request.episode_id not in ids for request in wanted),
        "num_doubled": sum(count > 1 for count in ids.values()),
        "num_rewarded": sum(line["reward"] == 1.0 for line in lines),
        "num_crashed": sum(line["outcome"] == "crashed" for line in lines),
        "num_other_rewards": sum(line["reward"] not in (1.0, None) for line in lines),
        "num_retried": sum(line["num_retries"] > 0 for line in lines),
        **counts,
    }


def _missing(folder: Path, wanted: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
    path = folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    done = {EpisodeRequest.model_validate(json.loads(line)["request"]).episode_id for line in lines}
    return [request for request in wanted if request.episode_id not in done]


# ---- all of it -------------------------------------------------------------------------------------------------------------------------


def measure(settings: Settings, parts: Sequence[str], console: Console) -> dict[str, Row]:
    """Rows by name, those that are kept as they are."""
    recipe = fingerprint({name: value for name, value in asdict(settings).items() if name not in NAMED}, OPENENV)
    rows: dict[str, Row] = {}

    def add(name: str, work: Callable[[], Row]) -> None:
        rows[name] = kept_row(KEPT / f"{name}.json", recipe, {"name": name}, work)
        shown = {key: round(value, 3) for key, value in rows[name].items() if isinstance(value, int | float)}
        console.print(name, shown)

    size = settings.sessions_per_node
    if "throughput" in parts:
        for repeat in range(settings.repeats):
            for num in NODES:
                add(f"nodes-{num}x{size}-{repeat}", lambda num=num: our_throughput(num, settings))  # type: ignore[misc]
            add(f"openenv-1x{max(NODES) * size}-{repeat}", lambda: openenv_throughput(settings))
    if "recovery" in parts:
        for repeat in range(settings.repeats):
            for what in ("kill", "cut"):
                add(f"{what}-4x{size}-{repeat}", lambda what=what: recovery(what, settings))  # type: ignore[misc]
    if "deaths" in parts:
        add("deaths", lambda: deaths(settings, recipe))
    return rows


def summary(rows: dict[str, Row], settings: Settings) -> dict[str, Row]:
    """Means over the repeats, with the smallest and the largest; one row an arm."""
    arms: defaultdict[str, list[Row]] = defaultdict(list)
    for name, row in rows.items():
        arms[name.rpartition("-")[0] or name].append(row)
    found: dict[str, Row] = {}
    for arm, of_arm in arms.items():
        figures = [key for key, value in of_arm[0].items() if isinstance(value, int | float) and all(key in row for row in of_arm)]
        found[arm] = {key: round(statistics.mean(row[key] for row in of_arm), 3) for key in figures}
        found[arm] |= {f"{key}_all": [round(row[key], 3) for row in of_arm] for key in figures if len(of_arm) > 1}
        found[arm]["measured"] = of_arm[-1]["measured"]
    size = settings.sessions_per_node
    if one := found.get(f"nodes-1x{size}"):
        for num in NODES:
            row = found[f"nodes-{num}x{size}"]
            row["share_of_linear"] = round(row["episodes_per_s"] / (num * one["episodes_per_s"]), 3)
    return found


def print_summary(found: dict[str, Row], console: Console) -> None:
    table = Table("arm", "figures", title="sandbox servers on many machines", title_justify="left")
    for arm, row in found.items():
        table.add_row(arm, ", ".join(f"{key} {value:g}" for key, value in row.items() if isinstance(value, int | float)))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["throughput", "recovery", "deaths"], help="which of the three [default: all]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=4, help="sessions a node [default: 4]")
    parser.add_argument("--publish", action="store_true", help="write docs/measured/nodes.json")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args()
    console = Console()
    settings = Settings(repeats=chosen.repeats, sessions_per_node=chosen.sessions)
    found = summary(measure(settings, chosen.parts, console), settings)
    print_summary(found, console)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if chosen.publish:
        publish_rows("nodes", {arm: {**row, "measured": row.get("measured") or provenance()} for arm, row in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
