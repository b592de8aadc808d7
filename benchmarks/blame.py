"""Wrong verdicts planted in one of several judges: what `flywheel blame` names, beside training again without each judge in turn.

A home is made as iterations make it: a tiny policy taught by tutorials and a few demonstrations plays live MiniWoB++ tasks; every episode
is judged by one of the judges, of which one passes some episodes that were not solved, so that they are routed to SFT; the policy is
trained on what was routed and both play the fixed `eval` instances. Then, for each seed (judges' shares, planted verdicts, training) and
each share of wrong verdicts (0: nobody is wrong, and whatever is named is named wrongly):

    blame       rank and interval of the judge who was wrong; episodes named, of those planted that the stage read; area under the curve
    retraining  the stage again without each judge (true leave-one-source-out): gain in success, fall of the lost answers' log-odds
    release     what is named is withdrawn, the dataset made and the stage trained again, and played: seconds until then, and its gain

The policy before, its episodes and its demonstrations are shared by all seeds. State lies under .bench/blame, a file a row; interrupted, it
goes on with what is missing, and refuses what is there of other settings.

    python -m benchmarks.blame --seeds 0 1 2 --json .bench/blame.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.episode import Episode
from agent.episode.rows import rows
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource
from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from assets.settings.profile import Profile
from assets.stages.requests import SupervisedRequest
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from benchmarks.common.small_policy import demonstrations, sampled
from models.checkpoints.checkpoint import move, save
from models.families.seed_policy import seed_policy
from models.supervised.influence import InfluenceConfig
from pipelines import profiles
from pipelines.stages import blame as blaming
from pipelines.stages import supervised
from pipelines.stages.context import WorkerContext
from pipelines.stages.evaluate import greedy_requests
from pipelines.stages.evaluate_missing import evaluate_missing
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.datasets.withdrawal import withdraw
from warehouse.evaluation.comparing import compare, played
from warehouse.lineage import registry
from warehouse.lineage.blame import members
from warehouse.lineage.regression import SPLIT, regression, stages_between
from warehouse.lineage.sources import traced
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.routing.routes import route
from warehouse.routing.samples import demonstration_rows, tutorial_rows
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROOT = Path(".bench/blame")
JUDGES = ("judge_a", "judge_b", "judge_c")
SEED, FIRST, SECOND = "0000", "0001", "0002"
MIXTURE = MixtureConfig(
    demonstration=SamplePool(draws=60), on_policy=SamplePool(), tutorial=SamplePool(draws=300), max_task_share=1.0, decay=1.0
)
"""Of SFT: what was routed as it is, beside some of what the policy was taught by, lest it forgets."""


def profile_of(arguments: argparse.Namespace) -> Profile:
    changes = {
        "tasks.domains": arguments.domains,
        "seed_data.tutorials": 8000,
        "ct.steps": arguments.ct_steps,
        "ct_mixture": {"tutorial": {}},
        "sft.steps": 100,
        "sft_refresh.steps": arguments.sft_steps,
        "evaluation.eval_per_task": arguments.per_task,
    }
    return profiles.load("quickstart", changes)


def base_recipe(arguments: argparse.Namespace) -> str:
    return fingerprint(profile_of(arguments).model_dump(mode="json"), arguments.instances, MIXTURE.model_dump(mode="json"))


def base_home(arguments: argparse.Namespace, console: Console) -> Warehouse:
    """The first iteration: a policy, how it does on eval, and its episodes on train instances; from its folder where it was made before."""
    folder, profile = ROOT / "base", profile_of(arguments)
    claim(folder, base_recipe(arguments))
    warehouse = Warehouse(Home(folder.absolute()))
    if (folder / "done").exists():
        if not warehouse.read("episodes", iteration=SEED, stage="oracle").num_rows:
            store(warehouse, asyncio.run(solutions(profile, arguments.per_task)), SEED, "oracle")
        return warehouse
    shutil.rmtree(folder, ignore_errors=True)
    warehouse.home.make()
    tasks = [{**task.model_dump(mode="json"), "task_id": task.task_id} for task in tasks_in(profile.tasks.lists).values()]
    warehouse.replace_partition("tasks", tasks, iteration=SEED, stage="tasks")
    lessons = tutorials(profile.seed_data.tutorials, 0, profile.seed_data.curricula, profile.agent.builder())
    warehouse.replace_partition("ct_samples", tutorial_rows(lessons), iteration=SEED, stage="seed_tutorials")
    fresh = warehouse.home.checkpoints / "draft"
    card = save(fresh, *seed_policy(words(*profile.seed_data.curricula), 0), stage="seed_policy", iteration=SEED)
    place = warehouse.home.checkpoints / SEED / "seed_policy" / card.checkpoint_id
    place.parent.mkdir(parents=True)
    move(fresh, place)
    registry.register(warehouse, iteration=SEED, stage="seed_policy", checkpoint_id=card.checkpoint_id, folder=place)
    with Progress(console=console, transient=True) as bars:
        shown = asyncio.run(demonstrations(profile, profile.seed_data.demonstrations_per_task, bars))
    made = rows(shown)
    store(warehouse, shown, SEED, "seed_demonstrations")
    samples = demonstration_rows(made["episodes"], made["steps"])
    warehouse.replace_partition("sft_samples", samples, iteration=SEED, stage="seed_demonstrations")
    train(warehouse, profile, FIRST, "ct", "0000/seed_policy", 0, profile.ct_mixture)
    policy = train(warehouse, profile, FIRST, "sft", "0001/ct_model", 0, MIXTURE)
    registry.pass_on(warehouse, policy, iteration=FIRST, stage="released_policy", note="the first")
    evaluate_missing(warehouse, policy, SPLIT, profile, console)
    with Progress(console=console, transient=True) as bars:
        skip = profile.seed_data.demonstrations_per_task
        store(warehouse, asyncio.run(sampled(profile, policy.folder, arguments.instances, bars, skip=skip)), FIRST, "rollouts")
    atomic_write(folder / "done", b"")
    return base_home(arguments, console)


async def solutions(profile: Profile, num: int) -> list[Episode]:
    """What an oracle does on the eval instances."""
    drawn = greedy_requests(profile.acting, ORACLE_POLICY_ID, Split(SPLIT), num)
    requests = [one.model_copy(update={"purpose": "seed", "screenshots": False}) for one in drawn]
    async with open_collector(profile.acting) as collector:
        player = collector.play(OracleActionSource(profile.agent.builder().grammar), requests)
        return [episode async for episode in player]


def store(warehouse: Warehouse, episodes: Sequence[Episode], iteration: str, stage: str) -> None:
    made = rows(episodes)
    for table in ("steps", "episodes"):
        warehouse.replace_partition(table, made[table], iteration=iteration, stage=stage)


def train(
    warehouse: Warehouse, profile: Profile, iteration: str, kind: str, parent: str, seed: int, mixture: MixtureConfig
) -> registry.Registered:
    """Snapshot and stage, as an iteration makes them; a stage that was made before is made again."""
    with connect(warehouse) as con:
        snapshot = mixed(con, "ct" if kind == "ct" else "sft", iteration, mixture)
    warehouse.replace_partition("datasets", snapshot.rows, iteration=iteration, stage=f"{kind}_dataset")
    config = profile.ct if kind == "ct" else profile.sft if iteration == FIRST else profile.sft_refresh
    stage, folder = f"{kind}_model", warehouse.home.root / "work" / iteration / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    request = SupervisedRequest(
        iteration=iteration,
        stage=stage,
        seed=seed,
        kind="ct" if kind == "ct" else "sft",
        checkpoint_id=registry.named(warehouse, parent).checkpoint_id,
        dataset_id=snapshot.dataset_id,
        config=config,
    )
    context = WorkerContext(folder=folder, home=warehouse.home, iteration=iteration, stage=stage, log=lambda text: None)
    supervised.run(request, context)
    context.clean_up()
    return registry.made_by(warehouse, iteration, stage)


def judge(warehouse: Warehouse, seed: int, share: float) -> set[str]:
    """Every episode is judged by one judge, and of the first one's verdicts `share` are wrong: episodes passed that were not solved. Route
    them all; returns the ids of those passed wrongly."""
    episodes = warehouse.read("episodes", iteration=FIRST, stage="rollouts").to_pylist()
    judged = sorted((row for row in episodes if row["outcome"] != "crashed"), key=lambda row: row["episode_id"])
    dice = random.Random(seed)
    dice.shuffle(judged)
    by = {row["episode_id"]: JUDGES[place % len(JUDGES)] for place, row in enumerate(judged)}
    unsolved = [row["episode_id"] for row in judged if by[row["episode_id"]] == JUDGES[0] and row["outcome"] != "success"]
    num = round(share * sum(name == JUDGES[0] for name in by.values()))
    wrong = set(dice.sample(unsolved, min(num, len(unsolved))))
    verdicts = [
        {
            "episode_id": row["episode_id"],
            "judge": by[row["episode_id"]],
            "judge_version": "1",
            "kind": "verdict",
            "origin": "judge",
            "score": float(row["outcome"] == "success" or row["episode_id"] in wrong),
            "threshold": 0.5,
            "passed": row["outcome"] == "success" or row["episode_id"] in wrong,
            "reasons": [],
        }
        for row in judged
    ]
    warehouse.replace_partition("verdicts", verdicts, iteration=FIRST, stage="verdicts")
    with connect(warehouse) as con:
        routes = route(con, iteration=FIRST)
    warehouse.replace_partition("routes", routes, iteration=FIRST, stage="routing")
    store_routed_samples(warehouse, FIRST)
    return wrong


def measure(base: Warehouse, seed: int, share: float, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One home of its own, from the base: plant, train, play, blame, retrain, withdraw, train again."""
    profile = profile_of(arguments)
    folder = ROOT / f"home-{seed}-{share:g}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base.home.root, folder)
    warehouse = Warehouse(Home(folder.absolute()))
    try:
        wrong = judge(warehouse, seed, share)
        policy = train(warehouse, profile, SECOND, "sft", "0001/released_policy", seed, MIXTURE)
        registry.pass_on(warehouse, policy, iteration=SECOND, stage="merged_policy", note="")
        evaluate_missing(warehouse, policy, SPLIT, profile, console)
        return _figures(warehouse, policy, profile, wrong, seed, share, arguments, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _figures(
    warehouse: Warehouse,
    policy: registry.Registered,
    profile: Profile,
    wrong: set[str],
    seed: int,
    share: float,
    arguments: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    before = registry.named(warehouse, "0001/released_policy")
    gained = gain(warehouse, before, policy)
    figures: dict[str, Any] = {"planted": len(wrong), "candidate": gained, "judges": {}}
    began = clock()
    asked = blaming.Asked(policy="0002/merged_policy", with_oracle=True)
    try:
        found = blaming.find_blame(warehouse, asked, profile, InfluenceConfig(points=arguments.points, seed=seed), console)
    except ConfigError as error:  # nothing was lost
        return figures | {"why_not": str(error)}
    figures["blame_s"] = since(began)
    judges = [one for one in found.blame.sources if one.dimension == "judge"]
    figures |= {
        "lost": found.num_lost,
        "log_odds_moved": found.blame.total,
        "rank": [one.name for one in judges].index(JUDGES[0]) + 1,
        "named_sources": [one.key for one in found.blame.sources if one.is_sure],
        "judges": {
            one.name: {"blame": one.blame, "low": one.low, "high": one.high, "named": one.num_named, "p": one.p_named} for one in judges
        },
    }
    figures |= episode_figures(found, wrong)
    if share and not arguments.no_retraining:
        few = profile.model_copy(
            update={"evaluation": profile.evaluation.model_copy(update={"eval_per_task": arguments.retraining_per_task})}
        )
        figures |= retraining(warehouse, few, found, console, figures["judges"])
    if found.withdrawals:
        figures |= release(warehouse, profile, policy, before, found, wrong, seed, console)
    return figures


def episode_figures(found: blaming.BlameReport, wrong: set[str]) -> dict[str, Any]:
    """Of the episodes that a judge passed and the stage read."""
    passed = [one for one in found.blame.episodes if "judge" in one.sources]
    named = {one.episode_id for one in passed if one.is_named}
    read = {one.episode_id for one in passed}
    hits, there = named & wrong, read & wrong
    is_wrong = np.array([one.episode_id in wrong for one in passed])
    scores = np.array([one.blame for one in passed])
    top = [one.episode_id for one in passed[: len(there)]]
    return {
        "read": len(read),
        "planted_read": len(there),
        "named": len(named),
        "named_right": len(hits),
        "precision": len(hits) / len(named) if named else None,
        "recall": len(hits) / len(there) if there else None,
        "precision_at_planted": sum(id_ in wrong for id_ in top) / len(top) if top else None,
        "auc": area(scores, is_wrong),
        "auc_in_its_judge": area(*_of_judge(passed, wrong)),
    }


def _of_judge(passed: Sequence[Any], wrong: set[str]) -> tuple[np.ndarray, np.ndarray]:
    own = [one for one in passed if one.sources["judge"] == JUDGES[0]]
    return np.array([one.blame for one in own]), np.array([one.episode_id in wrong for one in own])


def area(scores: np.ndarray, is_wrong: np.ndarray) -> float | None:
    """Chance that a wrong one is blamed more than a right one; None where there are not both."""
    bad, good = scores[is_wrong], scores[~is_wrong]
    return float((bad[:, None] > good[None, :]).mean() + 0.5 * (bad[:, None] == good[None, :]).mean()) if len(bad) and len(good) else None


def retraining(
    warehouse: Warehouse, profile: Profile, found: blaming.BlameReport, console: Console, judges: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """True leave-one-source-out; fills in `judges`."""
    lost = regression(warehouse, "0002/merged_policy", with_oracle=True)
    stage = stages_between(warehouse, lost.policy, lost.predecessor)[0]
    samples = traced(warehouse, stage.dataset_id)
    questions = [blaming.question(one.wanted, one.given) for one in lost.lost]
    asked = blaming.Asked(policy="0002/merged_policy", check=True, plays=profile.evaluation.eval_per_task > 0)
    began = clock()
    for name in JUDGES:
        key = f"judge={name}"
        left_out = members(samples, key)
        with TemporaryDirectory(dir=warehouse.home.scratch) as folder:
            checked = blaming.check_without(warehouse, stage, key, left_out, lost, questions, profile, asked, console, None, Path(folder))
        success = checked.success
        judges.setdefault(name, {}).update(
            fall=checked.log_odds_with - checked.log_odds_without,
            gain=success.gain if success else None,
            gain_low=success.low if success else None,
            gain_high=success.high if success else None,
        )
    by_fall = sorted(JUDGES, key=lambda name: -judges[name]["fall"])
    by_gain = sorted(JUDGES, key=lambda name: -(judges[name]["gain"] or 0.0))
    return {
        "retraining_s": since(began),
        "retraining_rank_log_odds": by_fall.index(JUDGES[0]) + 1,
        "retraining_rank_success": by_gain.index(JUDGES[0]) + 1,
    }


def release(
    warehouse: Warehouse,
    profile: Profile,
    policy: registry.Registered,
    before: registry.Registered,
    found: blaming.BlameReport,
    wrong: set[str],
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Withdraw what is named (the episodes; where none stands out, the source), snapshot, train and play."""
    began = clock()
    taken = found.withdrawals[0]
    tables = {one.sample_id: one.table for one in traced(warehouse, found.dataset)}
    by_table: dict[str, list[str]] = {}
    for id_ in taken.sample_ids:
        by_table.setdefault(tables.get(id_, "sft_samples"), []).append(id_)
    for table, ids in by_table.items():
        withdraw(warehouse, table, ids, iteration=SECOND)
    clean = train(warehouse, profile, SECOND, "sft", "0001/released_policy", seed, MIXTURE)
    left = {one.episode_id for one in traced(warehouse, _dataset_of(warehouse, clean))} & wrong
    evaluate_missing(warehouse, clean, SPLIT, profile, console)
    return {
        "withdrawn": taken.what,
        "withdrawn_samples": len(taken.sample_ids),
        "planted_left": len(left),
        "clean": gain(warehouse, before, clean),
        "clean_over_candidate": gain(warehouse, policy, clean),
        "release_s": since(began),
    }


def _dataset_of(warehouse: Warehouse, made: registry.Registered) -> str:
    row = warehouse.read("checkpoints", iteration=made.iteration, stage=made.stage).to_pylist()[0]
    return str(row["datasets"][0])


def gain(warehouse: Warehouse, first: registry.Registered, second: registry.Registered) -> dict[str, float]:
    part = compare(played(warehouse, first.checkpoint_id, SPLIT), played(warehouse, second.checkpoint_id, SPLIT)).total
    interval = part.paired.difference.interval
    return {
        "first": part.first,
        "second": part.second,
        "gain": part.paired.difference.mean,
        "low": interval.low,
        "high": interval.high,
        "lost": part.paired.incumbent_only,
        "won": part.paired.candidate_only,
    }


def clock() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> dict[str, float]:
    """Wall seconds, and processor seconds of this process: browsers are others."""
    return {"wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}


@contextmanager
def timed(found: dict[str, Any]) -> Iterator[None]:
    began = clock()
    yield
    found["row_s"] = since(began)


def row(base: Warehouse, seed: int, share: float, arguments: argparse.Namespace, console: Console) -> Row:
    recipe = fingerprint(base_recipe(arguments), arguments.points, arguments.no_retraining, arguments.retraining_per_task, JUDGES)

    def figures() -> dict[str, Any]:
        found: dict[str, Any] = {}
        with timed(found):
            found |= measure(base, seed, share, arguments, console)
        return found

    return kept_row(ROOT / f"row-{seed}-{share:g}.json", recipe, {"seed": seed, "share": share}, figures)


def summary(share: float, found: Sequence[Row]) -> dict[str, Any]:
    """Over seeds: means, and sums of counts."""
    asked = [one for one in found if "why_not" not in one]
    sure = [one for one in asked if f"judge={JUDGES[0]}" in one["named_sources"]]
    named_judges = sum(sum(key.startswith("judge=") for key in one["named_sources"]) for one in asked)
    right, named, there = (sum(one[key] for one in asked) for key in ("named_right", "named", "planted_read"))
    made: dict[str, Any] = {
        "share": share,
        "homes": len(found),
        "homes_with_losses": len(asked),
        "planted": sum(one["planted"] for one in found),
        "planted_read": there,
        "candidate_gain": mean(one["candidate"]["gain"] for one in found),
        "first_of_judges": sum(one["rank"] == 1 for one in asked),
        "judge_named": len(sure),
        "judges_named": named_judges,
        "episodes_named": named,
        "episodes_named_right": right,
        "precision": right / named if named else None,
        "recall": right / there if there else None,
        "auc": _mean(one["auc"] for one in asked),
        "auc_in_its_judge": _mean(one["auc_in_its_judge"] for one in asked),
        "precision_at_planted": _mean(one["precision_at_planted"] for one in asked),
        "blame_wall_s": _mean(one["blame_s"]["wall"] for one in asked),
        "blame_cpu_s": _mean(one["blame_s"]["cpu"] for one in asked),
    }
    again = [one for one in asked if "retraining_s" in one]
    if again:
        made |= {
            "retraining_first_by_log_odds": sum(one["retraining_rank_log_odds"] == 1 for one in again),
            "retraining_first_by_success": sum(one["retraining_rank_success"] == 1 for one in again),
            "retraining_wall_s": mean(one["retraining_s"]["wall"] for one in again),
            "retraining_cpu_s": mean(one["retraining_s"]["cpu"] for one in again),
            "blame_beside_fall": correlation(again),
        }
    released = [one for one in asked if "release_s" in one]
    if released:
        made |= {
            "released": len(released),
            "withdrawn_samples": mean(one["withdrawn_samples"] for one in released),
            "planted_left": sum(one["planted_left"] for one in released),
            "clean_over_candidate": mean(one["clean_over_candidate"]["gain"] for one in released),
            "time_to_release_wall_s": mean(one["blame_s"]["wall"] + one["release_s"]["wall"] for one in released),
        }
    return made


def correlation(found: Sequence[Row]) -> float | None:
    """Pearson's, of the predicted and the measured fall of the log-odds when a judge is left out; over all judges of all homes."""
    pairs = np.array([(of["blame"], of["fall"]) for one in found for of in one["judges"].values()])
    return float(np.corrcoef(pairs.T)[0, 1]) if len(pairs) > 2 else None


def _mean(values: Iterator[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return mean(there) if there else None


def table(made: Sequence[dict[str, Any]]) -> Table:
    drawn = Table(title="Wrong verdicts of one judge of three, by their share of that judge's verdicts")
    drawn.add_column("")
    for one in made:
        drawn.add_column(f"{100 * one['share']:g} %", justify="right")
    for key in dict.fromkeys(key for one in made for key in one if key != "share"):
        values = [one.get(key) for one in made]
        drawn.add_row(key.replace("_", " "), *("" if value is None else f"{value:.3g}" for value in values))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of judges, planting and training (default: 0 1 2)")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0, 0.02, 0.2], help="wrong verdicts of one judge (default: 0 .02 .2)")
    parser.add_argument("--domains", nargs="+", default=["pointing", "forms"], help="tasks of the quickstart (default: pointing forms)")
    parser.add_argument("--instances", type=int, default=40, help="episodes a task that are judged (default: 40)")
    parser.add_argument("--per-task", type=int, default=6, help="eval episodes a task (default: 6)")
    parser.add_argument("--ct-steps", type=int, default=1500, help="of the policy before (default: 1500)")
    parser.add_argument("--sft-steps", type=int, default=140, help="of the stage that is blamed (default: 140)")
    parser.add_argument("--points", type=int, default=1, help="weights at which gradients are taken (default: 1)")
    parser.add_argument(
        "--retraining-per-task", type=int, default=3, help="of the eval episodes, those that each retraining plays (default: 3)"
    )
    parser.add_argument("--no-retraining", action="store_true", help="leave true leave-one-source-out away")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/blame.json")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    ROOT.mkdir(parents=True, exist_ok=True)
    console = Console()
    base = base_home(arguments, console)
    found: dict[float, list[Row]] = {share: [] for share in arguments.shares}
    for seed in arguments.seeds:
        for share in arguments.shares:
            found[share].append(row(base, seed, share, arguments, console))
    made = [summary(share, of_share) for share, of_share in found.items()]
    console.print(table(made))
    if arguments.publish:
        measured = {share: of_share[0]["measured"] for share, of_share in found.items()}
        publish_rows("blame", {f"{100 * one['share']:g} %": {**one, "measured": measured[one["share"]]} for one in made})
    if arguments.json:
        rows_of = [each for of_share in found.values() for each in of_share]
        atomic_write(arguments.json, json.dumps({"summary": made, "rows": rows_of}, indent=2).encode())


if __name__ == "__main__":
    main()
