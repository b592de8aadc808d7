"""What the gateway adds: conversations with a policy server that thinks for a fixed time (benchmarks/common/slow_policy.py), directly and
through a gateway in a process of its own, block by block in turn. Every answer through the gateway must be in its log, whole.

One answer has 1000 token ids of prompt and 100 of its own; a conversation grows by two messages a turn. The server, the gateway and the
clients are three processes; the machine's load is reported, since all three share it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from agent.gateway.log import read_calls
from benchmarks.common.provenance import Publish, provenance, publish_rows
from warehouse.core.home import Home

NUM_BLOCKS, TURNS = 4, 5
Latencies = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Milliseconds from a request to its answer, thinking included."""

    way: str
    conversations: int
    num_answers: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_ms_per_answer: float
    """Of the gateway's process; 0 without it."""
    load: float
    """Processes that wanted to run, the mean of the last minute."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 200], help="how many at once")
    parser.add_argument("--think-ms", type=float, default=2000.0, help="how long the server thinks")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/gateway.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), arguments.conversations, arguments.think_ms)
    table = Table(title=f"the server thinks for {arguments.think_ms:g} ms; {TURNS} turns, {NUM_BLOCKS} blocks of each way")
    for name in Figure.__slots__:
        table.add_column(name.replace("_", " "))
    for figure in figures:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in asdict(figure).values()))
    Console(width=140).print(table)
    if arguments.publish:
        publish_rows("gateway", published(figures, arguments.think_ms))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))


def published(figures: Sequence[Figure], think_ms: float) -> Mapping[str, Mapping[str, Any]]:
    """Rows by way and number of conversations; those through the gateway say what it adds to the percentiles of asking directly."""
    directly = {figure.conversations: figure for figure in figures if figure.way == "directly"}
    rows = {}
    for figure in figures:
        row = {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(figure).items()}
        if figure.way == "gateway":
            beside = directly[figure.conversations]
            row |= {"added_p50_ms": round(figure.p50_ms - beside.p50_ms, 1), "added_p99_ms": round(figure.p99_ms - beside.p99_ms, 1)}
        rows[f"{figure.way}, {figure.conversations} at once, {think_ms:g} ms"] = {**row, "think_ms": think_ms, "measured": provenance()}
    return rows


def measure(home: Path, numbers: Sequence[int], think_ms: float) -> list[Figure]:
    figures, num_through = [], 0
    with (
        started(["-m", "benchmarks.common.slow_policy", str(think_ms)]) as (server, _),
        started(["-m", "pipelines.cli", "gateway", "serve", "--upstream", server, "--port", "0", "--home", str(home)]) as (url, process),
    ):
        token = (home / "gateway" / "token").read_text().strip()
        for number in numbers:
            found: dict[str, Latencies] = {"directly": [], "gateway": []}
            cpu_s = 0.0
            asyncio.run(block(url, token, 1))
            num_through += TURNS
            for _ in range(NUM_BLOCKS):
                found["directly"] += asyncio.run(block(server, "", number))
                before_s = cpu_of(process)
                found["gateway"] += asyncio.run(block(url, token, number))
                cpu_s += cpu_of(process) - before_s
            num_through += len(found["gateway"])
            for way, latencies in found.items():
                p50, p90, p99 = np.percentile(latencies, (50, 90, 99))
                figures.append(
                    Figure(
                        way=way,
                        conversations=number,
                        num_answers=len(latencies),
                        p50_ms=float(p50),
                        p90_ms=float(p90),
                        p99_ms=float(p99),
                        cpu_ms_per_answer=1000 * cpu_s / len(latencies) if way == "gateway" else 0.0,
                        load=os.getloadavg()[0],
                    )
                )
    calls = list(read_calls(Home(home)))
    if len(calls) != num_through or any(len(call.response_token_ids) != 100 for call in calls):
        raise SystemExit(f"{num_through} answers came through the gateway, and {len(calls)} are in its log")
    num_episodes = len({call.place.episode for call in calls})
    if num_episodes * TURNS != num_through:
        raise SystemExit(f"{num_through} answers of conversations of {TURNS} turns became {num_episodes} episodes")
    return figures


async def block(url: str, token: str, num: int) -> Latencies:
    """Every conversation asks again as soon as it was answered."""
    latencies: Latencies = []
    headers = {"authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=num, max_keepalive_connections=num, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits, trust_env=False) as client:

        async def conversation(index: int) -> None:
            messages = [{"role": "user", "content": f"Conversation {index} of {secrets.token_hex(8)}. " + "see the page " * 100}]
            for turn in range(TURNS):
                begun_s = time.perf_counter()
                response = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 100})
                latencies.append(1000 * (time.perf_counter() - begun_s))
                answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"It is open: turn {turn}"}]

        await asyncio.gather(*map(conversation, range(num)))
    return latencies


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def started(command: Sequence[str]) -> Iterator[tuple[str, psutil.Process]]:
    """A server as a process, by the address that its first line names."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                raise SystemExit(f"{' '.join(command)} did not come up")
            yield found[0], psutil.Process(process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
