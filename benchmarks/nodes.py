"""Episodes on many machines, by sandbox servers or by Ray: what they come to together, what comes back when one dies, and what is lost.
Machines are network namespaces (benchmarks/common/hosts.py: Linux, root), so all share this one's processors; sessions only wait
(waiting_node.py), so that this says what servers, cluster and collector do, and nothing of browsers. Server, client, pool, Ray, episode
worker and episode runner are the real ones (waiting_hosts.py).

    python -m benchmarks.nodes --publish
    python -m benchmarks.nodes --placement ray --publish

throughput  episodes by 1, 2, 4 and 8 nodes of the same number of sessions, whose steps take a stated time, and the processor time of it;
            beside servers one OpenEnv server, and one resources server of NeMo Gym, with as many sessions as the eight nodes (each its own
            way, in a venv of its own), in turn
recovery    the longest wait of an episode whose node was killed, or whose link was cut for 30 s, until it makes its next step elsewhere
            (on Ray the first one again); and how long the node waits for its next episode once the link is back
deaths      10,000 short episodes on four nodes, one of which is killed every few seconds and started again: lost, doubled, not rewarded

Interrupted, it goes on where it was: what was measured is kept under .bench/nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from benchmarks.common.hosts import Host, Hosts
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.provenance import Publish, provenance, publish_rows
from benchmarks.common.venv import python_of
from benchmarks.common.waiting_hosts import PLACEMENTS, Placed, Processors, WaitingHosts, processors
from benchmarks.common.waiting_node import CLICKS, TASK, ClickingPolicy

KEPT = Path(".bench/nodes")
OPENENV = ("openenv-core==0.3.0",)
NEMO_GYM = ("--ignore-requires-python", "nemo-gym==0.7.0")
PEERS = Path(__file__).resolve().with_name("peers")
PEER_WAIT_S = 300.0
"""For a peer's server to start, on a busy machine."""
STEPS = CLICKS + 1
NODES = (1, 2, 4, 8)
CORES = len(os.sched_getaffinity(0))
PREFIX = {"servers": "", "ray": "ray-"}
"""Of the names of rows."""
NAMED = ("repeats", "sessions_per_node", "num_deaths_episodes")
"""Settings that a row's name says, nodes times sessions and which repeat, so that rows of others may lie beside it."""
WHOLE = 10_000
"""Episodes while nodes die, unless fewer are asked for."""
IDLE_S, BEFORE_S, CUT_S, AFTER_S = 5.0, 8.0, 30.0, 20.0
SETTLE_S = 0.5
"""What a killed or cut node had sent by then may still be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured."""

    sessions_per_node: int = 4
    step_ms: float = 1000.0
    episodes_per_session: int = 8
    recovery_step_ms: float = 500.0
    repeats: int = 3
    num_deaths_episodes: int = WHOLE
    deaths_step_ms: Mapping[str, float] = field(default_factory=lambda: {"servers": 10.0, "ray": 500.0})
    death_every_s: Mapping[str, float] = field(default_factory=lambda: {"servers": 8.0, "ray": 30.0})
    """By placement: a raylet takes longer to start, and with short steps Ray would play all before many have died."""


def apart(function: Callable[..., Row], *arguments: Any) -> Row:
    """Its result, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def requests(num: int, first: int = 0) -> list[EpisodeRequest]:
    return [request(seed) for seed in range(first, first + num)]


def until(over: asyncio.Event) -> Iterator[EpisodeRequest]:
    yield from itertools.takewhile(lambda _: not over.is_set(), map(request, itertools.count()))


def request(seed: int) -> EpisodeRequest:
    return EpisodeRequest(task=TASK, seed=seed, purpose="rollout", policy_id="clicking", screenshots=False)


async def play(
    placed: Placed, wanted: Iterable[EpisodeRequest], policy: ClickingPolicy, log: EpisodeLog | None = None
) -> list[tuple[float, Episode]]:
    """Episodes, each with the time at which it was done."""
    return [(time.monotonic(), episode) async for episode in placed.collector.collect(policy, wanted, log=log)]


def rate(started_s: float, done_s: Sequence[float], at_once: int) -> float:
    """Done a second while all sessions are busy: until the last episode begins."""
    return (len(done_s) - at_once) / (done_s[-at_once - 1] - started_s)


# ---- throughput ------------------------------------------------------------------------------------------------------------------------


def throughput(placement: str, num_nodes: int, settings: Settings) -> Row:
    """Episodes a second while all sessions are busy, and processor time: by step, that of nodes without work included; of the nodes while
    nothing runs, as a share of one core each; and of how many cores all of it and the whole machine took."""
    sessions = num_nodes * settings.sessions_per_node
    with PLACEMENTS[placement](num_nodes, settings.sessions_per_node, settings.step_ms) as made:

        async def main() -> Row:
            async with made.collector() as placed:
                await play(placed, requests(sessions, first=1_000_000), ClickingPolicy())  # connections and imports
                idle = processors(made)
                await asyncio.sleep(IDLE_S)
                before = processors(made)
                done = await play(placed, requests(sessions * settings.episodes_per_session), ClickingPolicy())
                return throughput_row(done, sessions, idle, before, processors(made))

        row = asyncio.run(main())
    return {**row, "full_at_nodes": CORES * num_nodes / row["cores"], "load": os.getloadavg()[0]}


def throughput_row(done: Sequence[tuple[float, Episode]], at_once: int, idle: Processors, before: Processors, after: Processors) -> Row:
    assert all(episode.reward == 1.0 for _, episode in done), "an episode failed"
    num_steps, wall_s = len(done) * STEPS, after.clock_s - before.clock_s
    nodes_s, own_s, head_s = after.nodes_s - before.nodes_s, after.own_s - before.own_s, after.head_s - before.head_s
    episodes_per_s = rate(before.clock_s, [at_s for at_s, _ in done], at_once)
    return {
        "episodes_per_s": episodes_per_s,
        "steps_per_s": episodes_per_s * STEPS,
        "node_cpu_ms": 1000 * nodes_s / num_steps,
        "stage_cpu_ms": 1000 * own_s / num_steps,
        "head_cpu_ms": 1000 * head_s / num_steps,
        "nodes_idle_cores": (before.nodes_s - idle.nodes_s) / (before.clock_s - idle.clock_s),
        "cores": (nodes_s + own_s + head_s) / wall_s,
        "machine_cores": (after.machine_s - before.machine_s) / wall_s,
    }


def openenv_throughput(settings: Settings) -> Row:
    """The same by one OpenEnv server on one node with all the sessions, and a client a session."""
    python, program = python_of((KEPT / "openenv").absolute(), OPENENV), PEERS / "openenv_waiting.py"
    with Hosts(2) as (head, node):
        named = [node.address, settings.step_ms, STEPS, max(NODES) * settings.sessions_per_node]
        server = node.start(words(python, program, "serve", *named), output=KEPT / "openenv.log")
        wait_for(head, node.address, 8422)
        return peer_row(head, words(python, program, "play", *named, settings.episodes_per_session, server.pid), settings)


def nemo_gym_throughput(settings: Settings) -> Row:
    """The same by one resources server of NeMo Gym on one node with all the sessions; its other servers and its rollout collection on the
    head."""
    python, program = nemo_gym_python(), PEERS / "nemo_gym_waiting.py"
    with Hosts(2) as (head, node):
        named = [head.address, node.address, settings.step_ms, STEPS]
        where = {"resources": (node, 8423), "model": (head, 8424), "agent": (head, 8425), "environment": (head, 8426)}
        log = KEPT / "nemo_gym.log"
        pids = {role: host.start(words(python, program, role, *named), output=log).pid for role, (host, _) in where.items()}
        for host, port in where.values():
            wait_for(head, host.address, port)
        of_node, of_head = pids.pop("resources"), ",".join(map(str, pids.values()))
        sizes = [max(NODES) * settings.sessions_per_node, settings.episodes_per_session]
        return peer_row(head, words(python, program, "play", *named, *sizes, of_node, of_head), settings)


def nemo_gym_python() -> Path:
    """Of a venv with it. Its releases want Python 3.13.14; what is used here runs on 3.13.0 too."""
    return python_of((KEPT / "nemo-gym").absolute(), NEMO_GYM, of="3.13")


def peer_row(head: Host, command: Sequence[str], settings: Settings) -> Row:
    ran = head.run(command, timeout=600, check=False)
    if ran.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {ran.stderr[-2000:]}")
    row: Row = json.loads(ran.stdout.strip().splitlines()[-1])
    episodes_per_s = rate(row.pop("started_s"), row.pop("done_s"), max(NODES) * settings.sessions_per_node)
    return {"episodes_per_s": episodes_per_s, "steps_per_s": episodes_per_s * STEPS, **row, "load": os.getloadavg()[0]}


def wait_for(head: Host, address: str, port: int) -> None:
    """Until a server listens there, as seen from the head."""
    deadline_s = time.monotonic() + PEER_WAIT_S
    with head.entered():
        while True:
            with suppress(OSError), socket.create_connection((address, port), timeout=5.0):
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"nothing listens at {address}:{port} after {PEER_WAIT_S:g} s; see the logs in {KEPT}")
            time.sleep(0.2)


def words(*command: object) -> list[str]:
    return [str(word) for word in command]


# ---- recovery --------------------------------------------------------------------------------------------------------------------------


def recovery(placement: str, what: str, settings: Settings) -> Row:
    """`kill` or `cut`: of one of four nodes under full load."""
    with PLACEMENTS[placement](4, settings.sessions_per_node, settings.recovery_step_ms) as made:

        async def main() -> Row:
            async with made.collector() as placed:
                policy, over = ClickingPolicy(), asyncio.Event()
                playing = asyncio.create_task(play(placed, until(over), policy))
                await asyncio.sleep(BEFORE_S)
                failed_s, again = time.monotonic(), dict[str, float]()
                made.stay_down = {made.hosts[0].address} if what == "kill" else set()
                await asyncio.to_thread(partial(made.kill, made.hosts[0]) if what == "kill" else made.hosts[0].cut)
                if what == "cut":
                    await asyncio.sleep(CUT_S - (time.monotonic() - failed_s))
                    again = {"used_again_s": await used_again(made, placed)}
                await asyncio.sleep(AFTER_S)
                over.set()
                return {**recovery_row(await playing, policy, failed_s), **again, "load": os.getloadavg()[0]}

        return asyncio.run(main())


async def used_again(made: WaitingHosts, placed: Placed) -> float:
    """Seconds from the return of the first node's link to an episode on it."""
    await asyncio.to_thread(made.hosts[0].restore)
    mended_s = time.monotonic()
    while not placed.is_used(made.hosts[0]):
        await asyncio.sleep(0.05)
    return time.monotonic() - mended_s


def recovery_row(played: Sequence[tuple[float, Episode]], policy: ClickingPolicy, failed_s: float) -> Row:
    """How long episodes that had begun and were cut off waited for their next step: those cut off after their last decision, until they
    were done."""
    assert all(episode.reward == 1.0 for _, episode in played), "an episode failed"
    hit = [(done_s, policy.asked_s[one.episode_id]) for done_s, one in played if one.num_retries]
    waits = [min([at for at in asked_s if at > failed_s + SETTLE_S] or [done_s]) - failed_s for done_s, asked_s in hit]
    return {"num_episodes": len(played), "num_hit": len(hit), "longest_s": max(waits), "median_s": statistics.median(waits)}


# ---- deaths ----------------------------------------------------------------------------------------------------------------------------


def deaths(placement: str, folder: Path, settings: Settings) -> Row:
    """Interrupted, the next call goes on with the episodes that are missing."""
    log = EpisodeLog(folder)
    log.repair()
    wanted = requests(settings.num_deaths_episodes)
    counts_file = folder / "deaths.json"
    counts = json.loads(counts_file.read_text()) if counts_file.exists() else {"num_deaths": 0, "wall_s": 0.0}
    missing, every_s = _missing(folder, wanted), settings.death_every_s[placement]
    with PLACEMENTS[placement](4, 8, settings.deaths_step_ms[placement]) as made:
        stop, started_s = threading.Event(), time.monotonic()

        async def main() -> None:
            async with made.collector() as placed:
                killer = threading.Thread(target=kill, args=(placed,))
                killer.start()
                try:
                    await play(placed, missing, ClickingPolicy(), log)
                finally:
                    stop.set()
                    await asyncio.to_thread(killer.join)

        def kill(placed: Placed) -> None:
            """Nodes on which episodes run; they are started again."""
            dice = random.Random(counts["num_deaths"])
            while not stop.wait(dice.expovariate(1 / every_s)):
                if used := [host for host in made.hosts if placed.is_used(host)]:
                    made.kill(dice.choice(used))
                    counts["num_deaths"] += 1

        try:
            asyncio.run(main())
        finally:
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
        "load": os.getloadavg()[0],
    }


def _missing(folder: Path, wanted: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
    path = folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    done = {EpisodeRequest.model_validate(json.loads(line)["request"]).episode_id for line in lines}
    return [request for request in wanted if request.episode_id not in done]


# ---- all of it -------------------------------------------------------------------------------------------------------------------------


def measure(settings: Settings, placement: str, parts: Sequence[str], console: Console) -> dict[str, Row]:
    """Rows by name, those that are kept as they are."""
    recipe = fingerprint({name: value for name, value in asdict(settings).items() if name not in NAMED}, OPENENV, NEMO_GYM)
    rows: dict[str, Row] = {}

    def add(name: str, work: Callable[[], Row]) -> None:
        rows[name] = kept_row(KEPT / f"{name}.json", recipe, {"name": name}, work)
        shown = {key: round(value, 3) for key, value in rows[name].items() if isinstance(value, int | float)}
        console.print(name, shown)

    size, first = settings.sessions_per_node, PREFIX[placement]
    if "throughput" in parts:
        for repeat in range(settings.repeats):
            for num in NODES:
                add(f"{first}nodes-{num}x{size}-{repeat}", partial(apart, throughput, placement, num, settings))
            if placement == "servers":
                add(f"openenv-1x{max(NODES) * size}-{repeat}", partial(openenv_throughput, settings))
                try:
                    nemo_gym_python()
                except FileNotFoundError as error:
                    console.print(f"NeMo Gym is left out: {error}")
                else:
                    add(f"nemo-gym-1x{max(NODES) * size}-{repeat}", partial(nemo_gym_throughput, settings))
    if "recovery" in parts:
        for repeat in range(settings.repeats):
            for what in ("kill", "cut"):
                add(f"{first}{what}-4x{size}-{repeat}", partial(apart, recovery, placement, what, settings))
    if "deaths" in parts:
        name = f"{first}deaths" if settings.num_deaths_episodes == WHOLE else f"{first}deaths-{settings.num_deaths_episodes}"
        claim(KEPT / name, recipe)
        add(f"{name}-0", partial(apart, deaths, placement, KEPT / name, settings))
    return rows


def summary(rows: dict[str, Row], settings: Settings) -> dict[str, Row]:
    """Means over the repeats, with the smallest and the largest; one row an arm."""
    arms: defaultdict[str, list[Row]] = defaultdict(list)
    for name, row in rows.items():
        arms[name.rpartition("-")[0]].append(row)
    found: dict[str, Row] = {}
    for arm, of_arm in arms.items():
        figures = [key for key, value in of_arm[0].items() if isinstance(value, int | float) and all(key in row for row in of_arm)]
        found[arm] = {key: round(statistics.mean(row[key] for row in of_arm), 3) for key in figures}
        found[arm] |= {f"{key}_all": [round(row[key], 3) for row in of_arm] for key in figures if len(of_arm) > 1}
        found[arm]["measured"] = of_arm[-1]["measured"]
    size = settings.sessions_per_node
    for first, num in itertools.product(PREFIX.values(), NODES):
        if f"{first}nodes-{num}x{size}" in found:
            row, one = found[f"{first}nodes-{num}x{size}"], found[f"{first}nodes-1x{size}"]
            row["share_of_linear"] = round(row["episodes_per_s"] / (num * one["episodes_per_s"]), 3)
    return found


def print_summary(found: dict[str, Row], console: Console) -> None:
    table = Table("arm", "figures", title="episodes on many machines", title_justify="left")
    for arm, row in found.items():
        table.add_row(arm, ", ".join(f"{key} {value:g}" for key, value in row.items() if isinstance(value, int | float)))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["throughput", "recovery", "deaths"], help="which of the three [default: all]")
    parser.add_argument("--placement", choices=sorted(PREFIX), default="servers", help="what plays the episodes [default: servers]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=4, help="sessions a node [default: 4]")
    parser.add_argument("--episodes", type=int, default=WHOLE, help="of the part deaths [default: 10000]")
    parser.add_argument("--publish", action=Publish, help="write docs/measured/nodes.json")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args()
    console = Console()
    settings = Settings(repeats=chosen.repeats, sessions_per_node=chosen.sessions, num_deaths_episodes=chosen.episodes)
    found = summary(measure(settings, chosen.placement, chosen.parts, console), settings)
    print_summary(found, console)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if chosen.publish:
        publish_rows("nodes", {arm: {**row, "measured": row.get("measured") or provenance()} for arm, row in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
