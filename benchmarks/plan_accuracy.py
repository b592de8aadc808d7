"""How far the plans of `flywheel run --dry-run` are from what stages really took: each home's own stages, estimated from its profile as if
nothing had run (assumed lengths), and again with the lengths of its episodes.

    python -m benchmarks.plan_accuracy HOME... [--profile quickstart] [--json FILE]
    python -m benchmarks.plan_accuracy --cluster --publish

`--cluster` first runs an iteration by `cluster-smoke` on three hosts (benchmarks/common/cluster_home.py: network namespaces, which share
this machine's processors), some minutes, and compares the memory of the first host's processes too, of the largest in each stage.
`--publish` puts what was found into docs/measured/plan_accuracy.json, stages under the profile's name and bytes under `traffic`; without a
home and `--cluster` the bytes alone.
The tables of a home may lie in an object store: FLYWHEEL_STORE then has to be set as it was for the run.

It also measures, unless `--stages-only` is given, what `plan` assumes of this machine's CPU, training and generation of the tiny policy in
operations a second, and the bytes that pass between machines (benchmarks/common/network_traffic.py) beside those that the plan says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agent.policy.policy import Message, Prompt, Sampling
from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from assets.stages.requests import StageResult
from benchmarks.common.cluster_home import PROFILE as CLUSTER
from benchmarks.common.cluster_home import a_cluster_home
from benchmarks.common.network_traffic import measure_traffic
from benchmarks.common.provenance import Publish, provenance, publish_rows
from models.engine.embedded import EmbeddedEngine
from models.families.seed_policy import seed_policy
from models.families.shapes import ModelShape
from models.families.tokenizer import WordCodec
from models.supervised.config import SupervisedConfig
from models.supervised.fitting import fit
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.estimates import forward_flops, training_flops
from pipelines import profiles
from pipelines.plan.givens import policy_shape
from pipelines.plan.plan import Machine
from pipelines.plan.planner import make_plan
from pipelines.plan.workload import Measured, measure
from warehouse.core.home import Home, atomic_write
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

STEPS, BATCH_TOKENS, SAMPLES = 60, 1024, 600
LABELS = ("assumed", "lengths known")
"""Estimates made as if nothing had run, and with the lengths of the home's episodes."""
FIGURES = ("took_s", *LABELS, "memory_mib", "planned_mib")


def rows(home: Home, profile_name: str, memory: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Each finished stage of a home: the seconds that it took, and both estimates; with `memory`, the bytes of its largest process beside
    those of the plan."""
    profile = profiles.load(profile_name)
    shape, _ = policy_shape(profile)
    machine = Machine(num_cores=os.cpu_count() or 1, num_gpus=0, gpu_memory_bytes=0.0)
    with connect(Warehouse(home)) as con:
        lengths = {"assumed": Measured(steps={}), "lengths known": measure(con)}
    plans = {label: make_plan(profile, shape, machine, known) for label, known in lengths.items()}
    found: list[dict[str, Any]] = []
    for path in sorted(home.work.glob("*/*/result.json")):
        iteration, stage = path.parent.parent.name, path.parent.name
        took_s = StageResult.model_validate_json(path.read_text()).duration_s
        name = {"evaluation": "evaluations"}.get(stage, stage)
        row: dict[str, Any] = {"home": home.root.name, "iteration": iteration, "stage": stage, "took_s": took_s}
        for label, plan in plans.items():
            stages = plan.seed if iteration == "0000" else plan.first if iteration == "0001" else plan.later
            planned = next((of for of in stages if of.stage == name), None)
            if planned is not None and planned.seconds:
                row[label] = planned.seconds
                if (iteration, stage) in memory:
                    row |= {"memory_mib": memory[iteration, stage] / 2**20, "planned_mib": planned.memory_bytes / 2**20}
        if "assumed" in row:
            found.append(row)
    return found


def measure_cpu(console: Console) -> dict[str, float]:
    """What one process does on this machine: GFLOP a CPU-second in training and in writing answers."""
    torch.set_num_threads(1)
    model, tokenizer = seed_policy(words("web"), seed=0)
    shape, _ = policy_shape(profiles.load("quickstart"))
    texts = tutorials(SAMPLES, seed=1)
    samples = [TrainingSample(messages=messages, weight=1.0) for messages in texts]
    encoded = encode_samples(WordCodec(tokenizer), samples, 1.0, max_tokens=2048)
    config = SupervisedConfig(steps=STEPS, batch_tokens=BATCH_TOKENS, save_every=10 * STEPS)
    with tempfile.TemporaryDirectory() as folder:
        metrics = fit(model, encoded, config, Path(folder))
    length = fmean(len(sample.token_ids) for sample in encoded)
    gflops = training_flops(shape, STEPS * BATCH_TOKENS, context=length) / metrics["cpu_s"] / 1e9
    engine = EmbeddedEngine(model, WordCodec(tokenizer), "measured")
    try:
        figures = {"training_gflops": gflops, "answers_gflops": asyncio.run(_answers(engine, shape, texts))}
    finally:
        engine.close()
    console.print({name: round(value, 2) for name, value in figures.items()})
    return figures


async def _answers(engine: EmbeddedEngine, shape: ModelShape, texts: list[tuple[Message, ...]]) -> float:
    """GFLOP a CPU-second of prompts and answers together, at temperature 1, 64 prompts at a time."""
    asked = [Sampling(temperature=1.0, max_new_tokens=24, seed=seed) for seed in range(len(texts))]
    prompts = [Prompt(messages=text[:-1], sampling=sampling) for text, sampling in zip(texts, asked, strict=True)]
    started, flops = time.process_time(), 0.0
    for first in range(0, len(prompts), 64):
        for response in await engine.act(prompts[first : first + 64]):
            num_prompt, num_answer = len(response.prompt_token_ids), len(response.token_ids)
            flops += forward_flops(shape, num_prompt + num_answer, context=num_prompt)
    return flops / (time.process_time() - started) / 1e9


def traffic_table(found: list[dict[str, Any]]) -> Table:
    table = Table("what", "measured", "planned", "planned/measured", title="bytes between machines")
    for row in found:
        table.add_row(row["what"], f"{row['measured']:,.0f}", f"{row['planned']:,.0f}", f"{row['planned'] / row['measured']:.2f}")
    return table


def stages_table(found: list[dict[str, Any]]) -> Table:
    table = Table("home", "iteration", "stage", title="seconds that stages took, and their estimates")
    for column in ("took", *LABELS):
        table.add_column(column, justify="right")
    for row in found:
        estimates = (f"{row[label]:.0f} ({row[label] / row['took_s']:.2f})" for label in LABELS)
        table.add_row(row["home"], row["iteration"], row["stage"], f"{row['took_s']:.0f}", *estimates)
    return table


def memory_table(found: list[dict[str, Any]]) -> Table:
    table = Table("iteration", "stage", title="MiB of a stage's largest process, and the plan's")
    for column in ("taken", "planned", "planned/taken"):
        table.add_column(column, justify="right")
    for row in found:
        taken, planned = row["memory_mib"], row["planned_mib"]
        table.add_row(row["iteration"], row["stage"], f"{taken:.0f}", f"{planned:.0f}", f"{planned / taken:.2f}")
    return table


def summary_of(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By label: what was planned in all over what it took, and the factor by which a stage is off on average."""
    summary = {}
    for label in LABELS if found else ():
        errors = [abs(math.log(row[label] / row["took_s"])) for row in found]
        took_s = sum(row["took_s"] for row in found)
        summary[label] = {"planned_share": sum(row[label] for row in found) / took_s, "stage_factor": math.exp(fmean(errors))}
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("homes", nargs="*", type=Path, help="homes that ran with the profile")
    parser.add_argument("--profile", default="quickstart")
    parser.add_argument("--cluster", action="store_true", help=f"run an iteration by {CLUSTER} on three hosts, and take its home")
    parser.add_argument("--stages-only", action="store_true", help="measure neither this CPU nor traffic")
    parser.add_argument("--publish", action=Publish, help="write docs/measured/plan_accuracy.json")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console, loads = Console(), [os.getloadavg()[0]]
    profile = CLUSTER if arguments.cluster else arguments.profile
    found = [row for home in arguments.homes for row in rows(Home(home.absolute()), profile, {})]
    if arguments.cluster:
        with a_cluster_home() as run:
            loads += os.getloadavg()[:2]
            found += rows(run.home, profile, run.memory)
    console.print(stages_table(found))
    if with_memory := [row for row in found if "memory_mib" in row]:
        console.print(memory_table(with_memory))
    summary = summary_of(found)
    for label, of in summary.items():
        share, factor = of["planned_share"], of["stage_factor"]
        console.print(f"{label}: in all {share:.2f} of what it took; a stage is off by a factor of {factor:.2f} on average")
    published: dict[str, Any] = {}
    if found:
        stages = {f"{row['iteration']}/{row['stage']}": {name: round(row[name], 1) for name in FIGURES if name in row} for row in found}
        means = {label: {name: round(value, 2) for name, value in of.items()} for label, of in summary.items()}
        load = {"load_before_and_after": [round(value, 1) for value in loads]} if arguments.cluster else {}
        published[profile] = {"stages": stages, "in all": means, **load, "measured": provenance()}
    measured: dict[str, Any] = {"stages": found, "in all": summary}
    if not arguments.stages_only:
        measured |= {"cpu": measure_cpu(console), "traffic": measure_traffic()}
        console.print(traffic_table(measured["traffic"]))
        by_name = {row["what"]: {"passed": round(row["measured"]), "planned": round(row["planned"])} for row in measured["traffic"]}
        published["traffic"] = {"bytes": by_name, "measured": provenance()}
    if arguments.publish:
        publish_rows("plan_accuracy", published)
    if arguments.json is not None:
        atomic_write(arguments.json, json.dumps(measured, indent=2).encode())


if __name__ == "__main__":
    main()
