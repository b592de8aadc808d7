"""`flywheel compare`: figures of stored episodes, what it says without any, playing what is missing, the page side by side."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.episode.episode import EpisodeRequest
from agent.episode.pool_collector import PoolCollector
from agent.episode.rows import rows
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from models.checkpoints.checkpoint import save
from pipelines.cli.app import app
from pipelines.cli.policies.compare import shown_name, two_policies
from sandbox.browser.chromium import find_chromium
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from tests.models.conftest import small_model
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse

EVIL = "</pre><script>window.evil = 1</script>"


def run(home: Path, *words: str) -> str:
    ran = CliRunner().invoke(app, ["compare", *words, "--home", str(home)], env={"COLUMNS": "300"})
    if ran.exception is not None:
        raise ran.exception
    return ran.output


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with what an oracle did as the policy `good`, and the same cut short at its third step as `bad`; neither has screens."""
    root = tmp_path_factory.mktemp("home")
    warehouse = Warehouse(Home(root))
    task = load_tasks()["login-user"]

    async def play() -> Any:
        async with SessionPool(size=1) as pool:
            requests = [EpisodeRequest(purpose="evaluation", task=task, seed=seed, policy_id="good", screenshots=False) for seed in (1, 2)]
            player = PoolCollector(pool, PromptBuilder("compact")).play(OracleActionSource(grammar_named("compact")), requests)
            return [episode async for episode in player]

    good = rows(asyncio.run(play()))
    good["episodes"] = [row | {"split": "holdout"} for row in good["episodes"]]
    first = good["episodes"][0]["episode_id"]
    bad_episodes = [row | {"episode_id": f"bad-{row['seed']}", "policy_id": "bad"} for row in good["episodes"]]
    bad_episodes[0] |= {"outcome": "truncated", "reward": 0.0, "num_steps": 3}
    named = {row["episode_id"]: bad["episode_id"] for row, bad in zip(good["episodes"], bad_episodes, strict=True)}
    bad_steps = [
        row | {"episode_id": named[row["episode_id"]]} for row in good["steps"] if row["episode_id"] != first or row["step_index"] < 3
    ]
    wrong = next(row for row in bad_steps if row["episode_id"] == named[first] and row["step_index"] == 2)
    wrong |= {"action": json.dumps({"kind": "type", "text": EVIL}), "thought": EVIL}
    warehouse.replace_partition("tasks", [{**task.model_dump(mode="json"), "task_id": task.task_id}], iteration="0000", stage="tasks")
    for policy, iteration, made in (("good", "0001", good), ("bad", "0002", {"episodes": bad_episodes, "steps": bad_steps})):
        for table in ("steps", "episodes"):
            warehouse.replace_partition(table, made[table], iteration=iteration, stage="evaluation")
        folder = root / "checkpoints" / policy
        registry.register(warehouse, iteration=iteration, stage="merged_policy", checkpoint_id=policy, folder=folder)
    registry.pass_on(warehouse, registry.find(warehouse, "good"), iteration="0001", stage="released_policy", note="first")
    yield root


def test_a_policy_is_shown_by_the_name_that_was_typed(place: Any) -> None:
    """A release whose merge is one of its specialists was shown as the stage that made the weights."""
    for stage in ("sft_model", "merged_policy", "released_policy"):
        registry.register(place.warehouse, iteration="0001", stage=stage, checkpoint_id="one", folder=place.home.checkpoints / "one")
    registry.register(place.warehouse, iteration="0001", stage="ct_model", checkpoint_id="two", folder=place.home.checkpoints / "two")
    both = two_policies(place.warehouse, "0001/ct_model", "released", "holdout")
    assert [shown_name(place.warehouse, *pair) for pair in zip(("0001/ct_model", "released"), both, strict=True)] == [
        "0001/ct_model (two)",
        "released (0001/merged_policy, the weights of sft_model, one)",
    ]
    policy = registry.find(place.warehouse, "one")
    assert shown_name(place.warehouse, "one", policy) == "0001/sft_model (one)"
    registry.register(place.warehouse, iteration="0002", stage="ct_model", checkpoint_id="one", folder=place.home.checkpoints / "one")
    policy = registry.made_by(place.warehouse, "0002", "ct_model")
    assert shown_name(place.warehouse, "0002/ct_model", policy) == "0002/ct_model (the weights of 0001/sft_model, one)"


def test_stored_episodes_are_compared_by_any_name_of_a_policy(home: Path) -> None:
    said = run(home, "released", "0002/merged_policy")
    assert "0002/merged_policy (bad) against released (0001/merged_policy, good), holdout" in said
    assert "-50.0 [" in said and "2 instances: 0 won, 1 lost (exact paired test, two-sided p = 1)" in said
    plain = json.loads(run(home, "bad", "good", "--json", "--tasks", "login-user"))
    assert (plain["total"]["gain"], plain["total"]["num_won"], plain["total"]["num_lost"]) == (0.5, 1, 0)
    assert [task["name"] for task in plain["tasks"]] == ["login-user"] and plain["partings"][0]["second_solves"] is True


def test_what_cannot_be_compared_says_what_to_do(home: Path) -> None:
    for words, said in (
        (("good", "0001/released_policy"), "are the same policy, good"),
        (("good", "bad", "--split", "report"), "eval and holdout are compared on"),
        (("good", "bad", "--split", "eval"), "has no stored episode on eval.*flywheel compare good bad --split eval --evaluate"),
        (("good", "bad", "--tasks", "login-user,none"), "no evaluated task or domain is called none; there are "),
    ):
        with pytest.raises(ConfigError, match=said):
            run(home, *words)


def test_the_page_shows_both_where_they_part_with_screens_of_a_replay(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(home, "good", "bad", "--page", str(page))
    text = page.read_text(encoding="utf-8")
    assert "the first 2 steps are the same" in text and "Step 3 of 3" in text and "Step 2 of" not in text
    assert "0002/merged_policy: truncated" in text and "0001/merged_policy: success" in text and "screen of a replay" in text
    assert "<script>window" not in text and "http:" not in text and "https:" not in text
    program = """
import json, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[2], args=["--no-sandbox"])
    tab, said = browser.new_page(), []
    tab.on("console", lambda message: said.append(message.text))
    tab.goto("file://" + sys.argv[1])
    script = '''() => ({
        widths: [...document.querySelectorAll(".parting img")].map((image) => image.naturalWidth), evil: Boolean(window.evil),
        columns: getComputedStyle(document.querySelector(".pair")).gridTemplateColumns.split(" ").length,
    })'''
    print(json.dumps([tab.evaluate(script), said]))
    browser.close()
"""
    command = [sys.executable, "-c", program, str(page), str(find_chromium().path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    seen, said = json.loads(ran.stdout)
    assert said == [] and not seen["evil"] and seen["columns"] == 2
    assert len(seen["widths"]) >= 3 and all(seen["widths"])
    run(home, "good", "bad", "--page", str(page), "--no-replay")
    assert "No screen was kept." in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_was_not_played_is_played_and_kept(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    for iteration, seed in (("0001", 0), ("0002", 1)):
        folder = tmp_path / "checkpoints" / iteration
        card = save(folder, *small_model(seed), stage="merged_policy", iteration=iteration)
        registry.register(warehouse, iteration=iteration, stage="merged_policy", checkpoint_id=card.checkpoint_id, folder=folder)
    words = ("0001/merged_policy", "0002/merged_policy", "--split", "eval", "--profile", "smoke", "--set", "evaluation.eval_per_task=1")
    with pytest.raises(ConfigError, match="has no stored episode on eval"):
        run(tmp_path, *words)
    said = run(tmp_path, *words, "--evaluate")
    num = warehouse.read("episodes", iteration="0002").num_rows
    assert num >= 4 and said.count(f"{num // 2} episodes played and stored") == 2
    assert f"{num // 2} instances" in said
    assert "played and stored" not in run(tmp_path, *words, "--evaluate") and warehouse.read("episodes").num_rows == num
