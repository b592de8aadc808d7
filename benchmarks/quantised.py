"""The embedded engine with weights of 8 and 4 bits beside full precision: speed, memory, what it does to answers, and success.

    speed      a Qwen2 of 92 million random parameters, eight prompts of 256 tokens with answers of 32, one thread: tokens a CPU-second of
               reading and of writing, bytes of the weights, and how far what was sampled lies from full precision in nats a token
    success    --policy and --profile: greedy success of a checkpoint on the profile's holdout, by the profile's engine

torchao is installed below .bench on first use: it is an extra of its own (`quantised`).

    python -m benchmarks.quantised --rounds 3 --publish
    python -m benchmarks.quantised --policy HOME/checkpoints/0001/merged_policy/checkpoint-… --profile pixels --publish
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent.policy.policy import Response, Sampling
from benchmarks.common.provenance import Publish, provenance, publish_rows
from benchmarks.common.small_policy import Bar, collected
from benchmarks.generation import IdCodec, prompt_of
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings, Quantisation
from models.rl.updates.losses import kl_k3
from pipelines import profiles
from pipelines.stages.engines import open_engine
from pipelines.stages.evaluate import greedy_requests, task_counts
from sandbox.tasks.task import Split
from warehouse.evaluation.statistics import wilson

TORCHAO = "torchao==0.18.0"
FOLDER = Path(".bench") / TORCHAO
NUM_PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS, VOCABULARY = 8, 256, 32, 8000
WARM = 1
KINDS: tuple[Quantisation | None, ...] = (None, "int8", "int4")


def model_of(hidden: int, layers: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=1024,
        initializer_range=hidden**-0.5,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def speed(model: Qwen2ForCausalLM, kind: Quantisation | None, rounds: int) -> dict[str, Any]:
    """Medians over the rounds; every round has prompts of its own."""
    reading, writing, answers = list[float](), list[float](), list[Response]()
    with closing(EmbeddedEngine(model, IdCodec(), "checkpoint-benchmark", settings=EngineSettings(quantisation=kind))) as engine:
        size = weight_bytes(engine)
        for number in range(-WARM, rounds):
            read_s, _ = _acted(engine, number, 1)
            both_s, answers = _acted(engine, 1000 + number, ANSWER_TOKENS)
            if number >= 0:
                reading.append(NUM_PROMPTS * PROMPT_TOKENS / read_s)
                writing.append(NUM_PROMPTS * (ANSWER_TOKENS - 1) / max(1e-9, both_s - read_s))
    mean, largest = _mismatch(model, answers)
    return {
        "parameters": model.num_parameters(),
        "weight_bytes": size,
        "read_tokens_per_cpu_s": statistics.median(reading),
        "written_tokens_per_cpu_s": statistics.median(writing),
        "mismatch_nats": mean,
        "furthest_nats": largest,
    }


def _acted(engine: EmbeddedEngine, seed: int, num_tokens: int) -> tuple[float, list[Response]]:
    """CPU seconds of answering the prompts of a seed, and the answers."""
    rng = random.Random(seed)
    texts = [[rng.randrange(1, VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]
    prompts = [prompt_of(ids, Sampling(temperature=1.0, max_new_tokens=num_tokens, seed=row), None) for row, ids in enumerate(texts)]
    started = time.process_time()
    answers = asyncio.run(engine.act(prompts))
    return time.process_time() - started, answers


@torch.inference_mode()
def _mismatch(model: Qwen2ForCausalLM, answers: list[Response]) -> tuple[float, float]:
    """The divergence of what sampled from full precision, in nats a token, by Schulman's estimator that is never negative; and the largest
    difference of a token's log-probability."""
    sampled, full = list[float](), list[float]()
    for answer in answers:
        ids = torch.tensor([[*answer.prompt_token_ids, *answer.token_ids]])
        logprobs = model(ids).logits[0, -len(answer.token_ids) - 1 : -1].log_softmax(dim=-1)
        full += logprobs.gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1).tolist()
        sampled += answer.logprobs
    at_full, at_sampling = torch.tensor(full), torch.tensor(sampled)
    return float(kl_k3(at_full, at_sampling).mean()), float((at_full - at_sampling).abs().max())


def success(policy: Path, profile_name: str, kind: Quantisation | None, console: Console) -> dict[str, Any]:
    profile = profiles.load(profile_name)
    settings = profile.engine.settings.model_copy(update={"quantisation": kind})
    engine = open_engine(policy, profile.engine.model_copy(update={"settings": settings}))
    assert isinstance(engine, EmbeddedEngine), "a profile whose policy is served rounds nothing"
    size = weight_bytes(engine)
    requests = list(greedy_requests(profile.acting, engine.policy_id, Split.HOLDOUT, profile.evaluation.holdout_per_task))
    with Progress(console=console) as bars:
        counts = task_counts(asyncio.run(collected(profile, engine, requests, Bar(bars, kind or "full precision", len(requests)))))
    return {
        "weight_bytes": size,
        "num_success": sum(one.num_success for one in counts),
        "num_episodes": sum(one.num_episodes for one in counts),
    }


def weight_bytes(engine: EmbeddedEngine) -> int:
    """What the parameters take in memory, rounded ones among them; shared ones once."""
    model = engine._scheduler.backend._model  # type: ignore[attr-defined]
    return sum(part.nbytes for parameter in model.parameters() for part in _parts(parameter))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """torchao's tensors name the plain ones that they are made of."""
    names = getattr(type(tensor), "tensor_data_names", None)
    if names is None:
        yield tensor
        return
    for name in (*names, *getattr(type(tensor), "optional_tensor_data_names", [])):
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            yield from _parts(part)


def show(rows: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    table = Table(title="beside full precision", title_justify="left")
    for column in ("", "weights, MB", "read/s", "written/s", "nats a token", "success"):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in rows.items():
        interval = wilson(row["num_success"], row["num_episodes"]) if "num_episodes" in row else None
        solved = f"{row['num_success']}/{row['num_episodes']} [{interval.low:.2f}, {interval.high:.2f}]" if interval else "–"
        rates = (f"{row[key]:,.0f}" if key in row else "–" for key in ("read_tokens_per_cpu_s", "written_tokens_per_cpu_s"))
        table.add_row(
            name, f"{row['weight_bytes'] / 1e6:.1f}", *rates, f"{row['mismatch_nats']:.4f}" if "mismatch_nats" in row else "–", solved
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=768, help="width of the model of `speed`, a multiple of 64")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--policy", type=Path, help="a checkpoint's folder: measure success, and not speed")
    parser.add_argument("--profile", default="quickstart", help="whose holdout it plays")
    parser.add_argument("--publish", action=Publish, help="write docs/measured/quantised.json")
    options = parser.parse_args()
    if find_spec("torchao") is None:
        return with_torchao(["-m", "benchmarks.quantised", *sys.argv[1:]])
    torch.set_num_threads(1)
    console, rows = Console(width=140), dict[str, Mapping[str, Any]]()
    what = f"{options.hidden} x {options.layers}" if options.policy is None else f"{options.policy.name} on {options.profile}"
    for kind in KINDS:
        if options.policy is None:
            figures = speed(model_of(options.hidden, options.layers), kind, options.rounds)
        else:
            figures = success(options.policy, options.profile, kind, console)
        rows[f"{what}, {kind or 'full precision'}"] = {"measured": provenance(), **figures}
    show(rows, console)
    if options.publish:
        publish_rows("quantised", rows)
    return 0


def with_torchao(arguments: Sequence[str]) -> int:
    """Python with these arguments in a process that finds torchao, which is put below .bench."""
    if not FOLDER.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), TORCHAO]
        subprocess.run(command, check=True)
    paths = [str(FOLDER.absolute()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run([sys.executable, *arguments], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}).returncode


if __name__ == "__main__":
    sys.exit(main())
