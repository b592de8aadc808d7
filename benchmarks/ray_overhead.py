"""What Ray costs: a step and an episode on a node of a Ray cluster, beside a sandbox server over HTTP and sessions of the stage itself; and
how long a stage waits for Ray. The same episodes on each, one at a time, the three in turn; all on this machine's loopback.

    python -m benchmarks.ray_overhead [--episodes 12] [--rounds 5] [--publish]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from agent.policy.policy import Prompt, Response
from assets.settings.execution import RaySettings, SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from benchmarks.common.provenance import Publish, provenance, publish_rows
from benchmarks.common.ray_nodes import ROOT, ray_nodes
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import StageCollector, open_collector
from sandbox.tasks.task import Split

TASKS = TaskSettings(lists=("miniwob:smoke",), domains=("forms",))
TOKEN = "FLYWHEEL_SANDBOX_TOKEN"


class Waiting:
    """Waits at every step, so that an episode has all the steps that its task allows."""

    policy_id = "policy-waiting"
    is_continuous = True

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [
            Response(text="Action wait", prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.1,), policy_id=self.policy_id) for _ in prompts
        ]


@contextmanager
def sandbox_server() -> Iterator[str]:
    """Its address, once it answers."""
    os.environ[TOKEN] = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pipelines.cli", "sandbox", "serve", "--host", "127.0.0.1", "--port", str(port), "--size", "1"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/health")
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


async def step_ms(collector: StageCollector, num: int) -> tuple[float, float]:
    """Milliseconds of wall clock of a step and of an episode."""
    requests = requests_for(TASKS, purpose="rollout", policy_id=Waiting.policy_id, split=Split.TRAIN, num=num, screenshots=False)
    started = time.perf_counter()
    steps = [len(episode.steps) async for episode in collector.collect(Waiting(), requests)]
    took_ms = (time.perf_counter() - started) * 1000
    return took_ms / sum(steps), took_ms / len(steps)


async def measure(profiles: dict[str, SandboxSettings], num: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Of each place: seconds until it is open, and of each round the milliseconds of a step and of an episode. Prints a table of them."""
    opened_after_s: dict[str, float] = {}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in profiles}
    async with AsyncExitStack() as stack:
        collectors = {}
        for name, sandbox in profiles.items():
            started = time.perf_counter()
            collector = await stack.enter_async_context(open_collector(ActingSettings(tasks=TASKS, sandbox=sandbox)))
            opened_after_s[name] = time.perf_counter() - started
            await step_ms(collector, 1)
            print(f"{name}: open after {opened_after_s[name]:.1f} s, first episode after {time.perf_counter() - started:.1f} s", flush=True)
            collectors[name] = collector
        for _ in range(rounds):
            for name, collector in collectors.items():
                found[name].append(await step_ms(collector, num))
    rows = {
        name: {
            "opened_after_s": round(opened_after_s[name], 1),
            "step_ms": [round(step, 1) for step, _ in figures],
            "episode_ms": [round(episode, 1) for _, episode in figures],
        }
        for name, figures in found.items()
    }
    if not rounds:
        return rows
    print("\n| where | a step, ms | an episode, ms |\n|---|---|---|")
    for name, figures in found.items():
        cells = [f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in zip(*figures, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--episodes", type=int, default=12)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--local", action="store_true", help="only how long a stage waits for `address: local`")
    options.add_argument("--publish", action=Publish, help="write docs/measured/ray_overhead.json")
    chosen = options.parse_args()
    load = os.getloadavg()[0]
    if chosen.local:
        rows = asyncio.run(measure({"sandbox.ray.address: local": SandboxSettings(num_sessions=1, ray=RaySettings(address="local"))}, 1, 0))
        _publish(rows, load, chosen.publish)
        return
    with sandbox_server() as url, ray_nodes(1) as (nodes, _):
        time.sleep(20)  # the node has joined; how long that takes is `ray start`'s, not the stage's
        profiles = {
            "sessions of the stage": SandboxSettings(num_sessions=1),
            "a sandbox server": SandboxSettings(num_sessions=1, servers=(url,)),
            "a node of a Ray cluster": SandboxSettings(num_sessions=1, ray=RaySettings(address=nodes.address)),
        }
        rows = asyncio.run(measure(profiles, chosen.episodes, chosen.rounds))
    _publish(rows, load, chosen.publish)
    local = [sys.executable, "-m", "benchmarks.ray_overhead", "--local", *(["--publish"] if chosen.publish else [])]
    subprocess.run(local, cwd=ROOT, check=True)


def _publish(rows: dict[str, dict[str, Any]], load: float, wanted: bool) -> None:
    """`load`: of this machine before the run, over the last minute."""
    if wanted:
        measured = provenance()
        publish_rows("ray_overhead", {name: {**row, "load": round(load, 1), "measured": measured} for name, row in rows.items()})


if __name__ == "__main__":
    main()
