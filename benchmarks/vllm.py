"""vLLM beside the embedded engine and our own server, on the CPU: what it says, how fast it answers, how long new weights take.

One tiny random Qwen3 in float32, the sessions of benchmarks/serving.py (each asks again as soon as it was answered), sampled. From one
seed the engines draw different tokens, so tokens a second are compared, not answers. That they are the same policy is shown by greedy
answers, whose tokens must be equal, and by their log-probabilities. Every figure is of one run. vLLM's venv is made on first use, which
takes minutes, or named by FLYWHEEL_VLLM. One thread of tensor work each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from agent.policy.policy import Message, Prompt, Response, Sampling
from assets.seed_data.vocabulary import words
from benchmarks.common.tiny_qwen3 import tiny_qwen3_policy
from benchmarks.common.vllm_server import vllm_python, vllm_server
from benchmarks.serving import NUM_TURNS, TOKEN_VARIABLE, cpu_s, play, server
from models.checkpoints.checkpoint import save
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_policy
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine

OPTIONS = ("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--max-model-len", "2048")
GLOO = ("--worker-extension-cls", "models.http.vllm_gloo.Gloo", "--weight-transfer-config", '{"backend": "gloo"}')
NUM_GREEDY, NUM_HAND_OVERS = 16, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ[TOKEN_VARIABLE] = "a-token-of-the-benchmark"
    python = vllm_python()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(python, Path(scratch))
    table = Table(title="16 sessions of 6 turns, at most 24 tokens an answer")
    for column in ("engine", "tokens", "wall s", "tokens/s", "client CPU s", "server CPU s"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for row in figures["engines"]:
        table.add_row(row["name"], *(f"{row[name]:.{digits}f}" for name, digits in SHOWN))
    console = Console()
    console.print(table)
    console.print(
        f"vLLM starts in {figures['start_s']:.0f} s; greedy answers with the same tokens as the embedded engine's: "
        f"{figures['greedy_equal']} of {NUM_GREEDY}; log-probabilities differ by {figures['logprob_difference']:.1e} at the most; "
        f"new weights, median of {NUM_HAND_OVERS}: "
        + ", ".join(f"{way} {seconds:.2f} s" for way, seconds in figures["hand_over_s"].items())
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


SHOWN = (("num_tokens", 0), ("wall_s", 2), ("tokens_per_s", 0), ("client_cpu_s", 2), ("server_cpu_s", 2))


def measure(python: Path, scratch: Path) -> dict[str, Any]:
    vocabulary = sorted(words("web"))
    folder = scratch / "policy"
    save(folder, *tiny_qwen3_policy(vocabulary, 0), stage="seed_policy", iteration="0000")
    source = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    with ExitStack() as stack:
        ours_url, ours = stack.enter_context(server(folder))
        vllm = stack.enter_context(vllm_server(python, folder, scratch, *OPTIONS, *GLOO, environment=source))
        exchange = str(scratch / "exchange")
        config = HttpEngineConfig(base_url=vllm.url, send="token_ids", exchange=exchange)
        at_ours = HttpEngineConfig(base_url=ours_url, token_env=TOKEN_VARIABLE, send="token_ids")
        engines: dict[str, tuple[Any, psutil.Process | None]] = {
            "embedded": (EmbeddedEngine.from_checkpoint(folder), None),
            "our server": (HttpEngine.of_checkpoint(at_ours, folder), ours),
            "vLLM": (HttpEngine.of_checkpoint(config, folder), psutil.Process(vllm.process.pid)),
        }
        rows = [timed(name, engine, process, vocabulary) for name, (engine, process) in engines.items()]
        here, there = (greedy(engines[name][0], vocabulary) for name in ("embedded", "vLLM"))
        equal = [(one, other) for one, other in zip(here, there, strict=True) if one.token_ids == other.token_ids]
        found = {
            "engines": rows,
            "start_s": vllm.start_s,
            "greedy_equal": len(equal),
            "logprob_difference": max(abs(a - b) for one, other in equal for a, b in zip(one.logprobs, other.logprobs, strict=True)),
            "hand_over_s": {
                "our server, disk": handed_over(at_ours.model_copy(update={"exchange": str(folder.parent / "checkpoints")}), folder),
                **{f"vLLM, {way}": handed_over(config.model_copy(update={"weights": way}), folder) for way in ("disk", "transfer")},
            },
        }
        for engine, _ in engines.values():
            engine.close()
    return found


def timed(name: str, engine: Any, process: psutil.Process | None, vocabulary: list[str]) -> dict[str, Any]:
    asyncio.run(play(engine, vocabulary, num_turns=1))  # the first answers warm everything up
    server_cpu_s, client_cpu_s, started_s = all_cpu_s(process), time.process_time(), time.perf_counter()
    answers = asyncio.run(play(engine, vocabulary, num_turns=NUM_TURNS))
    wall_s, num_tokens = time.perf_counter() - started_s, sum(map(len, answers.values()))
    return {
        "name": name,
        "num_tokens": num_tokens,
        "wall_s": wall_s,
        "tokens_per_s": num_tokens / wall_s,
        "client_cpu_s": time.process_time() - client_cpu_s,
        "server_cpu_s": all_cpu_s(process) - server_cpu_s,
    }


def all_cpu_s(process: psutil.Process | None) -> float:
    """Of a server with the processes that it started."""
    return 0.0 if process is None else sum(cpu_s(each) for each in (process, *process.children(recursive=True)))


def greedy(engine: Any, vocabulary: list[str]) -> list[Response]:
    texts = (" ".join(vocabulary[start::NUM_GREEDY][:40]) for start in range(NUM_GREEDY))
    prompts = [Prompt(messages=(Message(role="user", content=text),), sampling=Sampling(max_new_tokens=24)) for text in texts]
    return list(asyncio.run(engine.act(prompts)))


def handed_over(config: HttpEngineConfig, folder: Path) -> float:
    """Median seconds until a server answers with a learner's weights."""
    engine, state, seconds = HttpEngine.of_checkpoint(config, folder), load_policy(folder).state_dict(), []
    for version in range(1, NUM_HAND_OVERS + 2):  # the first makes connections
        started_s = time.perf_counter()
        engine.load_weights(state, f"checkpoint-{version}", version)
        seconds.append(time.perf_counter() - started_s)
    engine.close()
    return sorted(seconds[1:])[NUM_HAND_OVERS // 2]


if __name__ == "__main__":
    main()
