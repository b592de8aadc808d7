"""What HTTP costs: the same answers from the embedded engine, and from our server in a process of its own, by messages and by token ids.

16 sessions of 6 turns on the quickstart's model, prompts that grow by 60 words a turn, at most 24 tokens an answer, sampled; every session
asks again as soon as it was answered. All three must write the same tokens, or the benchmark fails. CPU time is counted apart for the two
processes. One thread of tensor work each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from agent.policy.policy import Message, Policy, Prompt, Sampling
from assets.seed_data.vocabulary import words
from models.checkpoints.checkpoint import save
from models.engine.embedded import EmbeddedEngine
from models.families.seed_policy import seed_policy
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine

NUM_SESSIONS, NUM_TURNS, TURN_WORDS, ANSWER_TOKENS = 16, 6, 60, 24
TOKEN_VARIABLE = "FLYWHEEL_SERVING_BENCHMARK_TOKEN"
Answers = dict[tuple[int, int], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    num_answers: int
    num_tokens: int
    client_cpu_s: float
    server_cpu_s: float
    wall_s: float

    @property
    def cpu_ms_per_answer(self) -> float:
        return 1000 * (self.client_cpu_s + self.server_cpu_s) / self.num_answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = words("web")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "policy"
        save(folder, *seed_policy(vocabulary, 0), stage="seed_policy", iteration="0000")
        figures = measure(folder, sorted(vocabulary))
    table = Table(title=f"{NUM_SESSIONS} sessions of {NUM_TURNS} turns, {ANSWER_TOKENS} tokens an answer")
    for column in ("engine", "tokens", "client CPU s", "server CPU s", "CPU ms an answer", "tokens/s"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for figure in figures:
        table.add_row(
            figure.name,
            str(figure.num_tokens),
            f"{figure.client_cpu_s:.2f}",
            f"{figure.server_cpu_s:.2f}",
            f"{figure.cpu_ms_per_answer:.1f}",
            f"{figure.num_tokens / figure.wall_s:.0f}",
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))


def measure(folder: Path, vocabulary: list[str]) -> list[Figure]:
    os.environ[TOKEN_VARIABLE] = "a-token-of-the-benchmark"
    figures, written = [], []
    embedded = EmbeddedEngine.from_checkpoint(folder)
    with server(folder) as (url, process):
        engines: dict[str, Any] = {"embedded": embedded}
        for send in ("messages", "token_ids"):
            config = HttpEngineConfig.model_validate({"base_url": url, "token_env": TOKEN_VARIABLE, "send": send})
            engines[f"HTTP, {send}"] = HttpEngine.of_checkpoint(config, folder)
        for name, engine in engines.items():
            asyncio.run(play(engine, vocabulary, num_turns=1))  # the first answers warm everything up
            server_cpu_s, client_cpu_s, started_s = cpu_s(process), time.process_time(), time.perf_counter()
            answers = asyncio.run(play(engine, vocabulary, num_turns=NUM_TURNS))
            written.append(answers)
            figures.append(
                Figure(
                    name=name,
                    num_answers=len(answers),
                    num_tokens=sum(map(len, answers.values())),
                    wall_s=time.perf_counter() - started_s,
                    client_cpu_s=time.process_time() - client_cpu_s,
                    server_cpu_s=cpu_s(process) - server_cpu_s,
                )
            )
            engine.close()
    if any(answers != written[0] for answers in written):
        raise SystemExit("the engines wrote different tokens: what they cost cannot be compared")
    return figures


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def play(engine: Policy, vocabulary: list[str], *, num_turns: int) -> Answers:
    found: Answers = {}

    async def session(index: int) -> None:
        rng, text = random.Random(index), ""
        for turn in range(num_turns):
            text += " ".join(rng.choices(vocabulary, k=TURN_WORDS)) + " "
            sampling = Sampling(temperature=1.0, max_new_tokens=ANSWER_TOKENS, seed=index * NUM_TURNS + turn)
            prompt = Prompt(messages=(Message(role="user", content=text),), sampling=sampling, conversation=f"{num_turns}-{index}")
            (answer,) = await engine.act([prompt])
            found[index, turn] = answer.token_ids

    await asyncio.gather(*map(session, range(NUM_SESSIONS)))
    return found


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "pipelines.cli", "policy", "serve", str(folder), "--port", "0", "--token-env", TOKEN_VARIABLE]
    with subprocess.Popen([*command, "--home", str(folder.parent)], stdout=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"http://\S+", process.stdout.readline() if process.stdout is not None else "")
            if address is None:
                raise SystemExit("the server did not start")
            yield address[0], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
