"""`flywheel blame` on a home whose policies were really trained: one of two judges passed wrong answers, it is named, and the command
that is printed takes out what it names."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent.episode.episode import EpisodeRequest
from agent.episode.rows import rows
from agent.policy.action_source import OracleActionSource
from agent.policy.policy import Message, Prompt, Sampling
from models.checkpoints.checkpoint import save
from models.engine.embedded import EmbeddedEngine
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from pipelines import profiles
from pipelines.cli.app import app
from pipelines.stages.context import profile_tasks, requests_for
from pipelines.stages.evaluate import greedy_requests
from pipelines.stages.evaluate_missing import evaluate_missing
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.supervised import DatasetSamples
from sandbox.tasks.task import Split
from tests.models.conftest import small_model
from tests.warehouse.conftest import Make
from warehouse.core.errors import CheckpointError, ConfigError
from warehouse.core.home import Home
from warehouse.datasets.withdrawal import withdrawn_ids
from warehouse.lineage import registry
from warehouse.routing.samples import demonstration_rows, sample_row
from warehouse.storage.tables import Warehouse

WORDS = ("Ok", "Submit", "see", "then")
CONFIG = SupervisedConfig(steps=24, warmup_steps=2, learning_rate=3e-3, batch_tokens=256, save_every=90, log_every=24)
NUM_EVALUATED = 24


def run(home: Path, *words: str) -> str:
    ran = CliRunner().invoke(app, [*words, "--home", str(home), "--profile", "smoke"], env={"COLUMNS": "300"})
    if ran.exception is not None:
        raise ran.exception
    return ran.stdout


def asked(word: str, number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f'Find "{word}" [{number}] then hello', "screenshot_id": None, "loss": 0.0}]


def train(warehouse: Warehouse, iteration: str, parent: Path, samples: list[dict[str, Any]], steps: int) -> registry.Registered:
    """Store samples, a dataset of them, and what is trained on it."""
    warehouse.replace_partition("sft_samples", samples, iteration=f"{int(iteration) - 1:04d}", stage="routing")
    dataset = [
        {"dataset_id": f"data-{iteration}", "kind": "sft", "sample_id": row["sample_id"], "component": "rollout", "weight": 1.0}
        for row in samples
    ]
    warehouse.replace_partition("datasets", dataset, iteration=iteration, stage="sft_dataset")
    config = CONFIG.model_copy(update={"steps": steps})
    card = train_supervised(
        config,
        DatasetSamples(warehouse, f"data-{iteration}"),
        init=parent,
        output=warehouse.home.checkpoints / iteration / "sft",
        stage="sft_model",
        iteration=iteration,
        datasets=(f"data-{iteration}",),
    )
    folder = warehouse.home.checkpoints / iteration / "sft"
    registry.register(
        warehouse,
        iteration=iteration,
        stage="sft_model",
        checkpoint_id=card.checkpoint_id,
        folder=folder,
        parents=card.parents,
        datasets=card.datasets,
        config=card.config,
    )
    made = registry.made_by(warehouse, iteration, "sft_model")
    registry.pass_on(warehouse, made, iteration=iteration, stage="merged_policy", note="")
    evaluate(warehouse, made)
    return made


def evaluate(warehouse: Warehouse, policy: registry.Registered) -> None:
    """What the policy really says where it is asked for a word."""
    wanted = [(WORDS[place % 4] if place % 2 else "Ok", 100 + place) for place in range(NUM_EVALUATED)]
    engine = EmbeddedEngine.from_checkpoint(policy.folder)
    prompts = [Prompt(messages=tuple(Message(**message) for message in asked(*one)), sampling=Sampling(max_new_tokens=6)) for one in wanted]
    said = [answer.text.strip() for answer in asyncio.run(engine.act(prompts))]
    engine.close()
    same = {"purpose": "evaluation", "split": "eval", "policy_id": policy.checkpoint_id, "num_steps": 1}
    names = [f"{policy.checkpoint_id}-{number}" for _, number in wanted]
    episodes = [
        Make.episode(name, seed=number, outcome="success" if text == word else "failure", reward=float(text == word), **same)
        for name, (word, number), text in zip(names, wanted, said, strict=True)
    ]
    steps = [
        Make.step(name, 0, messages=asked(*one), response=text or "hello", action=json.dumps(text))
        for name, one, text in zip(names, wanted, said, strict=True)
    ]
    for table, of_table in (("episodes", episodes), ("steps", steps)):
        warehouse.replace_partition(table, of_table, iteration=policy.iteration, stage="evaluation")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Iteration 0002 was trained on episodes of two judges, `strict` and `lax`; lax passes them where `see` was answered to Ok."""
    root = tmp_path_factory.mktemp("home")
    warehouse = Warehouse(Home(root))
    fresh = warehouse.home.checkpoints / "0000" / "seed"
    card = save(fresh, *small_model(), stage="seed_policy", iteration="0000")
    registry.register(warehouse, iteration="0000", stage="seed_policy", checkpoint_id=card.checkpoint_id, folder=fresh)
    warehouse.replace_partition("tasks", [Make.task("task-a")], iteration="0000", stage="tasks")
    lessons = [
        sample_row("sft", origin="demonstration", domain="pointing", messages=asked(WORDS[place % 4], place), response=WORDS[place % 4])
        for place in range(80)
    ]
    first = train(warehouse, "0001", fresh, lessons, 80)
    registry.pass_on(warehouse, first, iteration="0001", stage="released_policy", note="first")
    episodes, routes, samples = [], [], []
    for place in range(80):
        word, judge = WORDS[place % 4], ("strict", "lax")[place // 4 % 2]
        answer = "see" if (word, judge) == ("Ok", "lax") else word
        id_ = f"ep-{place:02d}-{judge}-{'wrong' if answer != word else 'right'}"
        episodes.append(Make.episode(id_, seed=place, policy_id=first.checkpoint_id, outcome="success" if answer == word else "failure"))
        routes.append(
            {"episode_id": id_, "route": "sft", "reason": "V=1", "decided_verdict": True, "decided_by": judge, "decided_score": 1.0}
        )
        samples.append(
            sample_row(
                "sft", origin="rollout", domain="pointing", messages=asked(word, place), response=answer, episode_id=id_, step_index=0
            )
        )
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    warehouse.replace_partition("routes", routes, iteration="0001", stage="routing")
    train(warehouse, "0002", first.folder, samples, 40)
    return root


@pytest.mark.slow
def test_the_judge_who_was_wrong_is_named_and_leaving_it_out_helps(home: Path) -> None:
    plain = json.loads(run(home, "blame", "0002/merged_policy", "--check", "--no-play", "--json"))
    assert plain["success"]["gain"] < 0 and plain["num_lost"] >= 1 and plain["stage"].startswith("0002/sft_model")
    sources = {f"{one['dimension']}={one['name']}": one for one in plain["blame"]["sources"]}
    first = plain["blame"]["sources"][0]
    assert (first["dimension"], first["name"]) == ("judge", "lax") and first["low"] > 0 > sources["judge=strict"]["blame"]
    named = [one["episode_id"] for one in plain["blame"]["episodes"] if one["is_named"]]
    assert named and all("wrong" in name for name in named)
    check = plain["check"]
    assert check["without"] == "judge=lax" and check["num_left_out"] == 40 and check["log_odds_without"] < check["log_odds_with"]
    assert check["success"] is None and not (home / "checkpoints" / "0002" / "sft_model" / "blame").exists()
    again = json.loads(run(home, "blame", "0002/merged_policy", "--json"))
    assert again["blame"] == plain["blame"] and again["check"] is None


@pytest.mark.slow
def test_the_printed_command_takes_out_what_is_named(home: Path, tmp_path: Path) -> None:
    said = run(home, "blame", "0002/merged_policy", "--task", "click-button", "--most", "2")
    assert "asked about" in said and "judge=lax" in said and "episodes that stand out" in said
    assert "not proved: --check trains the stage again" in said and "take out all of judge=lax (40 samples)" in said
    command = next(line.strip() for line in said.splitlines() if line.strip().startswith("flywheel withdraw"))
    words = shlex.split(command)[1:]
    if words[1].startswith("$("):
        words = ["withdraw", *Path(command.partition("$(cat ")[2].rstrip(")").strip("'")).read_text().split()]
    copied = Warehouse(Home(home))
    version = copied.version("sft_samples")
    ran = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert ran.exception is None and "of sft_samples withdrawn" in ran.stdout
    try:
        assert withdrawn_ids(copied, "sft_samples") == set(words[1:])
        left = json.loads(run(home, "blame", "0002/merged_policy", "--json"))["blame"]["episodes"]
        assert not {id_ for one in left for id_ in one["samples"]} & set(words[1:])
    finally:
        run_restore = CliRunner().invoke(app, ["restore", "sft_samples", str(version), "--home", str(home)])
        assert run_restore.exception is None


def test_wrong_words_say_what_to_do(home: Path) -> None:
    for words, error, said in (
        (("0007/merged_policy",), CheckpointError, "has made no checkpoint; there are"),
        (("0001/merged_policy",), ConfigError, "has no stored episode on eval"),
        (("0002/merged_policy", "--stage", "ct_model"), ConfigError, "--stage 'ct_model' does not stand.*there are 0002/sft_model"),
        (("0002/merged_policy", "--without", "episodes"), ConfigError, "give --check too"),
        (("0002/merged_policy", "--check", "--without", "judge=x"), ConfigError, "no sample .* 'judge=x'; there are .*judge=lax"),
        (("0002/merged_policy", "--check", "--without", "task list=miniwob"), ConfigError, "leaves nothing of the 80 samples"),
        (("0002/merged_policy", "--check"), ConfigError, "none of the instances of eval is of the profile's tasks"),
    ):
        with pytest.raises(error, match=said):
            run(home, "blame", *words)


@pytest.mark.slow
def test_the_check_plays_both_on_live_pages(tmp_path: Path) -> None:
    """What an oracle solves on the instances that neither policy solves; the stage again without a part, played on the same instances."""
    settings = {"evaluation.eval_per_task": 1}
    profile, warehouse = profiles.load("smoke", settings), Warehouse(Home(tmp_path))
    policies = [save(tmp_path / "checkpoints" / str(seed), *small_model(seed), stage="seed_policy", iteration="0000") for seed in (0, 1)]

    async def play(requests: list[EpisodeRequest]) -> dict[str, Any]:
        async with open_collector(profile.acting) as collector:
            source = OracleActionSource(profile.agent.builder().grammar)
            return rows([episode async for episode in collector.play(source, requests)])

    shown = asyncio.run(play(requests_for(profile.tasks, purpose="seed", policy_id="oracle", split=Split.TRAIN, num=1, screenshots=False)))
    solved = asyncio.run(
        play([one.model_copy(update={"purpose": "seed"}) for one in greedy_requests(profile.acting, "oracle", Split.EVAL, 1)])
    )
    tasks = [{**task.model_dump(mode="json"), "task_id": task.task_id} for task in profile_tasks(profile.tasks)]
    warehouse.replace_partition("tasks", tasks, iteration="0000", stage="tasks")
    for stage, made in (("seed_demonstrations", shown), ("oracle", solved)):
        for table in ("steps", "episodes"):
            warehouse.replace_partition(table, made[table], iteration="0000", stage=stage)
    first = tmp_path / "checkpoints" / "0"
    registry.register(warehouse, iteration="0001", stage="released_policy", checkpoint_id=policies[0].checkpoint_id, folder=first)
    evaluate_missing(warehouse, registry.released(warehouse), "eval", profile, Console(quiet=True))
    samples = demonstration_rows(shown["episodes"], shown["steps"])
    warehouse.replace_partition("sft_samples", samples, iteration="0000", stage="seed_demonstrations")
    made = [
        {"dataset_id": "d", "kind": "sft", "sample_id": row["sample_id"], "component": "demonstration", "weight": 1.0} for row in samples
    ]
    warehouse.replace_partition("datasets", made, iteration="0002", stage="sft_dataset")
    output = tmp_path / "checkpoints" / "sft"
    config = CONFIG.model_copy(update={"steps": 2, "batch_tokens": 1024})
    card = train_supervised(
        config, DatasetSamples(warehouse, "d"), init=first, output=output, stage="sft_model", iteration="0002", datasets=("d",)
    )
    registered = {"checkpoint_id": card.checkpoint_id, "folder": output, "parents": card.parents, "datasets": ("d",), "config": card.config}
    registry.register(warehouse, iteration="0002", stage="sft_model", **registered)
    evaluate_missing(warehouse, registry.named(warehouse, "0002/sft_model"), "eval", profile, Console(quiet=True))
    words = ("blame", "0002/sft_model", "--oracle", "--check", "--without", "task list=miniwob", "--set", "evaluation.eval_per_task=1")
    with pytest.raises(ConfigError, match="leaves nothing"):
        run(tmp_path, *words)
    domain = samples[0]["sample_id"]
    rest = [row | {"component": "variation" if row["sample_id"] == domain else "demonstration"} for row in made]
    warehouse.replace_partition("datasets", rest, iteration="0002", stage="sft_dataset")
    words = (*words[:4], "--without", "collection=demonstration (variation)", *words[-2:])
    check = json.loads(run(tmp_path, *words, "--json"))["check"]
    assert check["num_left_out"] == 1 and check["success"]["num_pairs"] == len(solved["episodes"]) >= 2
