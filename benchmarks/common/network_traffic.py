"""Bytes that really pass between machines beside what a plan says of them (pipelines/plan/network.py): steps of a sandbox server, answers
of a policy server, gradients of training over two hosts.

Servers are the real ones behind a proxy that counts; hosts are network namespaces whose interfaces count, headers of every packet included.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from agent.policy.policy import Message, Prompt, Sampling
from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from benchmarks import serving
from benchmarks.common.delay import DelayingProxy
from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from benchmarks.ray_overhead import Waiting, sandbox_server
from models.checkpoints.checkpoint import save
from models.families.seed_policy import seed_policy
from models.http.config import HttpEngineConfig, Send
from models.http.engine import HttpEngine
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from models.training.hosts import TrainingHosts
from pipelines.plan import network
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split

TASKS = TaskSettings(lists=("miniwob:smoke",), domains=("forms", "pointing"))
EPISODES_A_TASK, PROMPTS, STEPS = 4, 60, 20


def measure_traffic() -> list[dict[str, Any]]:
    """Rows of `what`, `measured` and `planned` bytes. Hosts are left out where this process may not make any."""
    os.environ[serving.TOKEN_VARIABLE] = "a-token-of-the-benchmark"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "policy"
        save(folder, *seed_policy(words("web"), 0), stage="seed_policy", iteration="0000")
        rows = [*_sandboxes(), *_answers(folder)]
        return [*rows, _gradients(folder, Path(scratch))] if can_make_hosts() else rows


def _sandboxes() -> list[dict[str, Any]]:
    with sandbox_server() as url:
        return [asyncio.run(_episodes(url, screens=screens)) for screens in (False, True)]


async def _episodes(url: str, *, screens: bool) -> dict[str, Any]:
    """Episodes of a policy that waits until each ends."""
    at = urlsplit(url)
    async with DelayingProxy(str(at.hostname), int(at.port or 0), delay_s=0.0) as proxy:
        sandbox = SandboxSettings.model_validate({"num_sessions": 1, "servers": [proxy.url]})
        requests = requests_for(
            TASKS, purpose="rollout", policy_id=Waiting.policy_id, split=Split.TRAIN, num=EPISODES_A_TASK, screenshots=screens
        )
        async with open_collector(ActingSettings(tasks=TASKS, sandbox=sandbox)) as collector:
            num = sum([len(episode.steps) async for episode in collector.collect(Waiting(), requests)])
    screen = 160 * 210 * network.SCREEN_BYTES_PER_PX if screens else 0.0
    what = f"a step of a sandbox server{', with its screen' if screens else ''}"
    return {"what": what, "measured": proxy.num_bytes / num, "planned": network.SANDBOX_STEP_BYTES + screen}


def _answers(folder: Path) -> list[dict[str, Any]]:
    with serving.server(folder) as (url, _):
        return [asyncio.run(_asked(folder, url, send)) for send in get_args(Send)]


async def _asked(folder: Path, url: str, send: Send) -> dict[str, Any]:
    """Each prompt asked once."""
    at = urlsplit(url)
    async with DelayingProxy(str(at.hostname), int(at.port or 0), delay_s=0.0) as proxy:
        config = {"base_url": proxy.url, "token_env": serving.TOKEN_VARIABLE, "send": send}
        engine = await asyncio.to_thread(HttpEngine.of_checkpoint, HttpEngineConfig.model_validate(config), folder)
        before, num_prompt, num_answer, num = proxy.num_bytes, 0, 0, 0
        for prompt in _prompts():
            (answer,) = await engine.act([prompt])
            num, num_prompt, num_answer = num + 1, num_prompt + len(answer.prompt_token_ids), num_answer + len(answer.token_ids)
        engine.close()
        sent = proxy.num_bytes - before
    what = f"an answer to {num_prompt / num:.0f} tokens with {num_answer / num:.0f}, sent as {send}"
    return {"what": what, "measured": sent / num, "planned": network.answer_bytes(send, num_prompt / num, num_answer / num)}


def _prompts() -> Iterator[Prompt]:
    """About as long as those of MiniWoB's pages."""
    rng, vocabulary = random.Random(0), sorted(words("web"))
    for number in range(PROMPTS):
        text = " ".join(rng.choices(vocabulary, k=rng.randint(30, 100)))
        yield Prompt(messages=(Message(role="user", content=text),), sampling=Sampling(temperature=1.0, max_new_tokens=24, seed=number))


def _gradients(folder: Path, scratch: Path) -> dict[str, Any]:
    """SFT in two processes over two hosts."""
    with Hosts(2) as (head, other):
        where = TrainingHosts(hosts=(head.address, other.address), launch=head.launch)
        before = _interface_bytes(head)
        arguments = (str(folder), str(scratch / "out"), where.model_dump_json())
        command = [sys.executable, "-m", "benchmarks.common.network_traffic", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_IFNAME")}
        if head.start(command, env={**environment, "OMP_NUM_THREADS": "1"}).wait():
            raise SystemExit("training over two hosts failed")
        measured = _interface_bytes(head) - before
    size = 4.0 * sum(parameter.numel() for parameter in seed_policy(words("web"), 0)[0].parameters())
    return {
        "what": f"gradients of {STEPS} steps over two hosts",
        "measured": measured,
        "planned": STEPS * network.ring_bytes(size, 2, 2, zero_stage=0),
    }


def _interface_bytes(host: Host) -> int:
    """In and out."""
    (line,) = (line for line in host.run(["cat", "/proc/self/net/dev"]).stdout.splitlines() if "eth0:" in line)
    counted = line.split(":")[1].split()
    return int(counted[0]) + int(counted[8])


def _train(init: str, output: str, hosts: str) -> None:
    """What the head runs."""
    samples = [TrainingSample(messages=messages, weight=1.0) for messages in tutorials(100, seed=1)]
    config = SupervisedConfig(steps=STEPS, batch_tokens=1024, num_processes=2, save_every=10 * STEPS)
    where = TrainingHosts.model_validate_json(hosts)
    train_supervised(config, samples, init=Path(init), output=Path(output), stage="sft_model", iteration="0001", hosts=where)


if __name__ == "__main__":
    _train(*sys.argv[1:])
