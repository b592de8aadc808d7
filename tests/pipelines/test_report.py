"""The report over a small history in real tables: complete, escaped, self-contained, repeatable; and over an empty warehouse. Beside the
page of all iterations one for each iteration and each training run.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from pipelines.cli import app as cli
from pipelines.reporting import build
from pipelines.reporting.build import build_iteration, build_report, build_run
from pipelines.reporting.gains import iteration_gains, merge_weights
from pipelines.reporting.overview import stage_seconds
from pipelines.stages.__main__ import _write_pages
from pipelines.stages.context import WorkerContext
from sandbox.tasks.games.references import references
from sandbox.tasks.games.source import load_tasks
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, page_name
from warehouse.core.identity import bytes_id
from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.lineage.release_ledger import changing, write
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

HOSTILE = '<script>alert("instruction")</script> & more'
PROMPT = [{"role": "user", "content": "Click.", "screenshot_id": None, "loss": 0.0}]
TASKS = {"click-button": "pointing", "enter-text": "forms"}
ROLES = {"sft_model": 5, "rl_pointing": 6, "merged_policy": 8}


class Page(HTMLParser):
    """Collects what the page is made of; balanced tags only."""

    VOID = frozenset({"meta", "img", "br", "hr", "link", "input", "rect", "circle", "line", "path", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.sources: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"unclosed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def screenshot(shade: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (160, 210), (shade, shade, shade)).save(buffer, "PNG")
    data = buffer.getvalue()
    return {"screenshot_id": bytes_id("screen", data), "format": "png", "width_px": 160, "height_px": 210, "data": data}


def fill(warehouse: Warehouse, iteration: str, base: int) -> None:
    """One iteration: evaluations, a release, two rollouts and one corrected episode with their routes, a dataset and curves."""
    shots = [screenshot(base + i) for i in range(2)]
    warehouse.add_screenshots(shots)
    for stage, purpose, names in (("rollouts", "rollout", ("good", "bad")), ("annotations", "annotation", ("fixed",))):
        episodes, steps = [], []
        for name in names:
            solved = name == "good"
            episodes.append(
                {
                    "episode_id": f"{name}-{iteration}",
                    "purpose": purpose,
                    "task_id": "task-a",
                    "task_name": "click-button",
                    "domain": "pointing",
                    "seed": 3,
                    "split": "train",
                    "attempt": 0,
                    "policy_id": f"merged-{iteration}",
                    "temperature": 1.0,
                    "instruction": HOSTILE,
                    "outcome": "success" if solved else "failure",
                    "reward": float(solved),
                    "num_steps": 2,
                    "num_retries": 0,
                    "error": None,
                    "duration_ms": 1.0,
                    "environment": "env",
                }
            )
            steps += [
                {
                    "episode_id": f"{name}-{iteration}",
                    "step_index": i,
                    "policy_id": f"merged-{iteration}",
                    "observation": "",
                    "screenshot_id": shots[i]["screenshot_id"],
                    "messages": PROMPT,
                    "response": f'Thought type Action type "{HOSTILE}"',
                    "thought": "type",
                    "action": json.dumps({"kind": "click", "x": 80, "y": 105}),
                    "prompt_token_ids": [],
                    "response_token_ids": [],
                    "response_logprobs": [],
                    "reward": 0.0,
                    "latency_ms": 1.0,
                }
                for i in range(2)
            ]
        warehouse.replace_partition("episodes", episodes, iteration=iteration, stage=stage)
        warehouse.replace_partition("steps", steps, iteration=iteration, stage=stage)
    note = {
        "annotation_id": f"note-{iteration}",
        "episode_id": f"fixed-{iteration}",
        "step_index": 1,
        "annotator": "oracle",
        "origin": "scripted",
        "mode": "relabel",
        "decision": "override",
        "proposal": "p",
        "response": "Thought click Action click [7]",
        "messages": PROMPT,
        "withdrawn": False,
    }
    warehouse.replace_partition("annotations", [note], iteration=iteration, stage="annotations")
    failed = ("ct", "V=0: verifier 0 < 0.999")
    reasons = {"good": ("sft", "V=1: verifier 1 >= 0.999"), "bad": failed, "fixed": failed}
    rows = [{"episode_id": f"{name}-{iteration}", "route": route, "reason": reason} for name, (route, reason) in reasons.items()]
    warehouse.replace_partition("routes", rows, iteration=iteration, stage="routing")
    fill_models(warehouse, iteration)


def fill_models(warehouse: Warehouse, iteration: str) -> None:
    for stage in (*ROLES, "released_policy"):
        made = "merged_policy" if stage == "released_policy" else stage
        row = {
            "checkpoint_id": f"{made[:6]}-{iteration}",
            "path": "p",
            "parents": [],
            "datasets": [],
            "config": "{}",
            "metrics": "{}",
            "note": "the candidate does not lose" if stage == "released_policy" else "",
        }
        warehouse.replace_partition("checkpoints", [row], iteration=iteration, stage=stage)
    evaluations = [
        {
            "checkpoint_id": f"{role[:6]}-{iteration}",
            "checkpoint_role": role,
            "task_id": task,
            "task_name": task,
            "domain": domain,
            "split": split,
            "num_episodes": 10,
            "num_success": min(10, solved + int(iteration) - 1),
            "num_crashed": 0,
        }
        for role, solved in ROLES.items()
        for task, domain in TASKS.items()
        for split in ("eval", "holdout")
    ]
    warehouse.replace_partition("evaluations", evaluations, iteration=iteration, stage="evaluation")
    episodes = [evaluated(iteration, row, seed) for row in evaluations for seed in range(10) if row["split"] == REPORTED_SPLIT]
    warehouse.replace_partition("episodes", episodes, iteration=iteration, stage="evaluation")
    curve = [{"run": "sft_model", "step": i, "metric": "loss", "value": 1 / i, "checkpoint_id": "c"} for i in (1, 2, 3)]
    warehouse.replace_partition("training_metrics", curve, iteration=iteration, stage="sft_model")
    fill_rl(warehouse, iteration)
    dataset = [{"dataset_id": f"d-{iteration}", "kind": "sft", "sample_id": "s", "component": "demonstration", "weight": 250.0}]
    warehouse.replace_partition("datasets", dataset, iteration=iteration, stage="sft_dataset")
    folder = warehouse.home.work / iteration / "sft_model"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"duration_s": 90.0}))


def evaluated(iteration: str, row: dict[str, Any], seed: int) -> dict[str, Any]:
    """One greedy episode: the first instances are the easy ones, and each takes a step more than the one before."""
    solved = seed < row["num_success"]
    return {
        "episode_id": f"eval-{row['checkpoint_role']}-{row['task_id']}-{seed}-{iteration}",
        "purpose": "evaluation",
        "seed": seed,
        "task_id": row["task_id"],
        "task_name": row["task_name"],
        "domain": row["domain"],
        "split": row["split"],
        "attempt": 0,
        "policy_id": row["checkpoint_id"],
        "temperature": 0.0,
        "instruction": HOSTILE,
        "outcome": "success" if solved else "failure",
        "reward": float(solved),
        "num_steps": seed + 1,
        "num_retries": 0,
        "error": None,
        "duration_ms": 1.0,
        "environment": "env",
    }


RL_METRICS = {
    "reward": 0.5,
    "success": 0.5,
    "entropy": 0.2,
    "think_tokens_per_step": 7.0,
    "steps_per_episode": 3.0,
    "explained_variance": 0.3,
    "clip_fraction_low": 0.01,
    "clip_fraction_high": 0.02,
    "kl": 0.01,
    "staleness_mean": 0.5,
    "staleness_max": 2.0,
    "lambda_policy": 0.96,
    "staleness/0": 0.7,
    "staleness/1": 0.2,
    "staleness/8+": 0.05,
    "lease_busy_share": 0.9,
    "env_steps_per_s": 12.0,
    "shaping/format": -0.1,
    "shaping/length": -0.2,
    "success/click-button": 0.4,
    "critic_steers": 1.0,
}
CONSTANT = "critic_steers"


def fill_rl(warehouse: Warehouse, iteration: str) -> None:
    """A run of three rounds that learned from a win and a loss."""
    curve = [
        {
            "run": "rl_pointing",
            "step": step,
            "metric": name,
            "checkpoint_id": "c",
            "value": value + (0.01 * step if name != CONSTANT else 0),
        }
        for name, value in RL_METRICS.items()
        for step in (1, 2, 3)
    ]
    warehouse.replace_partition("training_metrics", curve, iteration=iteration, stage="rl_pointing")
    episodes, steps = [], []
    for name in ("win", "loss"):
        row = {
            "checkpoint_role": name,
            "task_id": "click-button",
            "task_name": "click-button",
            "domain": "pointing",
            "split": "train",
            "checkpoint_id": "policy-of-round-1",
            "num_success": int(name == "win"),
        }
        episode = evaluated(iteration, row, 0) | {"purpose": "rl", "episode_id": f"{name}-{iteration}", "num_steps": 2}
        episodes.append(episode)
        steps += [
            {
                "episode_id": episode["episode_id"],
                "step_index": i,
                "policy_id": "p",
                "observation": f'<button> "Ok" {HOSTILE}',
                "screenshot_id": None,
                "messages": PROMPT,
                "response": "Thought hm Action click [1]",
                "thought": "hm",
                "action": json.dumps({"kind": "click", "x": 1, "y": 1}),
                "prompt_token_ids": [],
                "response_token_ids": [],
                "response_logprobs": [],
                "reward": 0.0,
                "latency_ms": 1.0,
            }
            for i in range(2)
        ]
    warehouse.replace_partition("episodes", episodes, iteration=iteration, stage="rl_pointing")
    warehouse.replace_partition("steps", steps, iteration=iteration, stage="rl_pointing")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("report")))
    fill(warehouse, "0001", 40)
    fill(warehouse, "0002", 140)
    return warehouse


def assert_stands_alone(parsed: Page, page: str) -> None:
    """Nothing is loaded, and links lead to places in the page or to pages beside it."""
    pages = {page_name(key) for key in ("0001", "0002")} | {"index.html"}
    pages |= {page_name(key, run) for key in ("0001", "0002") for run in ("sft_model", "rl_pointing")}
    assert all(source.startswith(("data:image/", "#")) or source in pages for source in parsed.sources)
    assert set(re.findall(r"https?://[^\"'\s<)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\((?!#)", page) and "@import" not in page
    assert "script" not in parsed.tags and "<script" not in page


@pytest.fixture(scope="module")
def page(history: Warehouse) -> str:
    return build_report(history, history.home, history.home.reports / "index.html").read_text()


@pytest.fixture
def reported(history: Warehouse, page: str, tmp_path: Path) -> Warehouse:
    """A copy of the history with its pages, which a test may change."""
    return Warehouse(Home(shutil.copytree(history.home.root, tmp_path / "home")))


def test_the_page_says_what_came_of_it(page: str) -> None:
    text = " ".join(Page(page).text.split())
    assert "2 iterations of acting" in text
    assert "seed SFT 0.500" in text and "after iteration 2 0.900" in text and "+40.0" in text and "excludes zero" in text
    assert "the candidate does not lose" in text and "stage time 3.0 min in 2 stages" in text
    for heading in ("Success by task", "Routing", "Data and annotations", "Training", "Sample trajectories", "Lineage", "Time", "Tables"):
        assert heading in text


def test_what_is_live_and_what_people_decided_is_on_the_page(reported: Warehouse) -> None:
    warehouse = reported
    for id_, state in (("one", "live"), ("two", "held")):
        with changing(warehouse) as ledger:
            change = {id_: (f"0001/{id_}", state)}
            write(warehouse, ledger, change, live_id="one", by="anna", is_person=True, reason="<b>read</b>", iteration="0001")
    text = build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html").read_text()
    said = " ".join(Page(text).text.split())
    assert "Live now: 0001/one ; held until a person promotes it: 0001/two" in said and "2 1 0001/two held anna <b>read</b>" in said
    assert "&lt;b&gt;read" in text


def test_scores_at_games_are_on_the_pages_where_games_were_evaluated(reported: Warehouse, page: str) -> None:
    assert "Scores at games" not in Page(page).text
    tasks = [load_tasks("scored-elements")[name] for name in ("pairs-16-elements", "catch-15-elements")]
    for iteration, points in (("0001", 12.0), ("0002", 24.0)):
        rows = [
            {
                "checkpoint_id": f"{role[:6]}-{iteration}",
                "checkpoint_role": role,
                "task_id": task.task_id,
                "task_name": task.name,
                "domain": "games",
                "split": REPORTED_SPLIT,
                "num_episodes": 10,
                "num_success": 1,
                "num_crashed": 0,
                "mean_points": points,
                "points_deviation": 6.0,
            }
            for role in ("sft_model", "rl_games", "merged_policy")
            for task in tasks
        ]
        reported.replace_partition("evaluations", rows, iteration=iteration, stage="evaluation_of_games")
    of = {name: references()[name] for name in ("catch-15", "pairs-16")}
    means = {name: (each.random.mean, each.oracle.mean) for name, each in of.items()}
    share = sum(100 * 24 / oracle for _, oracle in means.values()) / 2
    said = " ".join(Page(build_report(reported, reported.home, reported.home.reports / "index.html").read_text()).text.split())
    assert "2 of 15 games" in said and "oracle-normalised, since nobody has played all of them: the oracle is a program" in said
    for name, (chance, oracle) in means.items():
        assert f"{name} {chance:.1f} {oracle:.1f} 12.0 12.0 24.0 24.0" in said, "two policies of each iteration, and no specialist"
    assert f"{share:.1f} [" in said and "human" not in said
    alone = " ".join(Page(build_iteration(reported, "0002", reported.home.reports).read_text()).text.split())
    assert "Scores at games" in alone and "catch-15" in alone


def test_trajectories_show_screens_marks_and_corrections(page: str) -> None:
    assert page.count('<article class="episode') == 6
    for kind in ("solved", "failed", "corrected"):
        assert page.count(f'class="badge {kind}"') == 2
    assert page.count("data:image/png;base64,") == 12
    assert 'style="left:50.0%;top:50.0%"' in page
    assert page.count('corrected to <span class="code">click [7]</span>') == 2


def test_everything_is_escaped_and_nothing_is_loaded(page: str) -> None:
    parsed = Page(page)
    assert HOSTILE in parsed.text, "it is shown as text"
    assert_stands_alone(parsed, page)


def test_no_path_of_this_machine_is_in_it_and_it_repeats_to_the_byte(history: Warehouse, page: str, tmp_path: Path) -> None:
    assert str(history.home.root) not in page
    again = build_report(history, history.home, tmp_path / "deep" / "again.html")
    assert again.read_text() == page


def test_an_empty_warehouse_gives_a_page_that_says_so(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    text = Page(build_report(Warehouse(home), home, tmp_path / "empty.html").read_text()).text
    assert "Nothing has run here yet" in text


def test_a_seed_without_iterations_is_no_error(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    row = {"checkpoint_id": "c", "path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}
    warehouse.replace_partition("checkpoints", [row], iteration="0000", stage="seed_policy")
    assert "Nothing has run" in build_report(warehouse, warehouse.home, tmp_path / "seed.html").read_text()


def test_times_come_from_finished_stages_only(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for stage, text in {"ct_model": '{"duration_s": 4.5}', "sft_model": "{half written", "rl_forms": '{"other": 1}'}.items():
        (home.work / "0001" / stage).mkdir(parents=True)
        (home.work / "0001" / stage / "result.json").write_text(text)
    assert stage_seconds(home) == {"iteration 1": {"ct_model": 4.5}}


def test_the_pages_lead_to_each_other(history: Warehouse, page: str) -> None:
    folder = history.home.reports
    for target in (page_name("0002"), page_name("0001", "rl_pointing")):
        assert target in Page(page).sources and (folder / target).is_file()
    iteration = Page((folder / page_name("0002")).read_text())
    assert page_name("0002", "rl_pointing") in iteration.sources and "index.html" in iteration.sources
    assert page_name("0002") in Page((folder / page_name("0002", "rl_pointing")).read_text()).sources


def test_an_iteration_tells_what_each_domain_gained_and_what_the_merge_kept(history: Warehouse) -> None:
    text = build_iteration(history, "0002", history.home.reports).read_text()
    parsed = Page(text)
    assert_stands_alone(parsed, text)
    said = " ".join(parsed.text.split())
    assert "RL on pointing +10.0" in said, "6 + 1 of 10 after, 5 + 1 before, on the same instances"
    assert "pointing 0.600 0.700 +10.0 [" in said and "0.900 +30.0 [" in said and "129 % kept" in said
    assert "forms 0.600 0.900 +30.0" in said, "a domain without a specialist has its merge all the same"
    assert "Success within a step budget" in said


def test_success_within_a_budget_counts_what_was_solved_by_then(history: Warehouse) -> None:
    with connect(history) as con:
        gains = iteration_gains(con, "0001", REPORTED_SPLIT)
    curve = {budget: estimate.mean for budget, estimate in gains.budgets["SFT"]}
    assert curve[1] == pytest.approx(0.1) and curve[5] == curve[8] == pytest.approx(0.5), "instance n is solved in n + 1 steps"
    assert {budget for budget, _ in gains.budgets["merged"]} == set(curve)


def test_a_runs_page_has_its_curves_tasks_and_episodes(history: Warehouse) -> None:
    text = build_run(history, "0001/rl_pointing", history.home.reports).read_text()
    parsed = Page(text)
    assert_stands_alone(parsed, text)
    said = " ".join(parsed.text.split())
    for heading in ("Outcome", "Policy update", "Critic", "Streaming", "Reward shaping", "Success by task while learning"):
        assert heading in said
    for panel in (
        "think tokens a step",
        "steps per episode",
        "explained variance",
        "clip fraction",
        "staleness",
        "entropy",
        "reward",
        "sessions at work",
        "Tokens by staleness",
    ):
        assert f'aria-label="{panel}' in text, panel
    assert 'aria-label="critic steers' not in text, "what never changes has no curve"
    assert "learning rate" not in said, "what was not measured is left out"
    assert "click-button pointing 5/10 6/10" in said and "+10.0 [" in said and "1 instances won, 0 lost" in said
    assert said.index("click-button pointing") < said.index("enter-text forms"), "its own domain comes first"
    assert 'class="badge solved"' in text and 'class="badge failed"' in text and "win-0001" in said and "loss-0001" in said
    assert HOSTILE in parsed.text and "Thought hm" not in said


def test_instances_that_changed_are_shown_before_and_after(history: Warehouse) -> None:
    text = Page(build_run(history, "0002/rl_pointing", history.home.reports).read_text()).text
    assert text.index("eval-sft_model-click-button-6-0002") < text.index("eval-rl_pointing-click-button-6-0002")
    assert "before the run; an instance that it won" in text and "an instance that it lost" not in text


def test_a_supervised_run_has_a_page_without_a_before(history: Warehouse) -> None:
    said = Page(build_run(history, "0001/sft_model", history.home.reports).read_text()).text
    assert "Supervised" in said and "before, own domain" not in said and "What it does differently" not in said


def test_runs_pages_repeat_to_the_byte(history: Warehouse, tmp_path: Path) -> None:
    for name in ("0001/rl_pointing", "0002/sft_model"):
        assert build_run(history, name, tmp_path).read_bytes() == build_run(history, name, tmp_path / "again").read_bytes()


def written(folder: Path) -> dict[str, int]:
    """Which file each page is: one that is written again is another."""
    return {path.name: path.stat().st_ino for path in folder.glob("*.html")}


@pytest.mark.slow
def test_a_report_of_one_more_iteration_writes_the_pages_that_are_new(tmp_path: Path) -> None:
    warehouse, later = (Warehouse(Home(tmp_path / name)) for name in ("grown", "at-once"))
    for iteration in ("0001", "0002", "0003"):
        fill(later, iteration, 40)
    at_once = build_report(later, later.home, later.home.reports / "index.html").parent
    folder = warehouse.home.reports
    for iteration in ("0001", "0002"):
        fill(warehouse, iteration, 40)
    build_report(warehouse, warehouse.home, folder / "index.html")
    before = written(folder)
    build_report(warehouse, warehouse.home, folder / "index.html")
    assert {name for name, inode in written(folder).items() if inode != before[name]} == {"index.html"}, "nothing has changed"
    fill(warehouse, "0003", 40)
    build_report(warehouse, warehouse.home, folder / "index.html")
    stayed = {name for name, inode in before.items() if written(folder)[name] == inode}
    assert stayed == {page_name("0001"), *(page_name(key, run) for key in ("0001", "0002") for run in ("sft_model", "rl_pointing"))}
    made_of = re.compile(r'<meta name="made-of"[^>]*>')
    for path in at_once.glob("*.html"):
        assert made_of.sub("", (folder / path.name).read_text()) == made_of.sub("", path.read_text()), "as if it were built at once"


@pytest.fixture(scope="module")
def three_iterations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, to be copied."""
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("three")))
    for iteration in ("0001", "0002", "0003"):
        fill(warehouse, iteration, 40)
    return warehouse.home.root


@pytest.fixture
def three(three_iterations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A home of which a report reads the episodes of the newest iteration only."""
    monkeypatch.setattr(build, "READ_HERE", 1)
    monkeypatch.setattr(build, "MAX_LINES", 2)
    return Warehouse(Home(shutil.copytree(three_iterations, tmp_path / "home")))


@pytest.mark.slow
def test_a_report_of_one_more_iteration_reads_no_rows_of_old_ones(three: Warehouse) -> None:
    """Nothing of theirs could be read, but for what every evaluated policy solved."""
    warehouse = three
    build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html")
    spoiled = 0
    for table in set(TABLES) - {"evaluations"}:
        for path in warehouse.files(table):
            if "iteration=0002" in str(path):
                path.write_bytes(b"spoiled")
                spoiled += 1
    assert spoiled > 5
    fill(warehouse, "0004", 40)
    build_report(Warehouse(warehouse.home), warehouse.home, warehouse.home.reports / "index.html")
    assert {"iteration-0004.html", "run-0004-sft_model.html", "run-0004-rl_pointing.html"} <= set(written(warehouse.home.reports))


@pytest.mark.slow
def test_more_pictures_leave_the_pages_that_are_there(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    fill(warehouse, "0001", 40)
    build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html")
    before, first = written(warehouse.home.reports), min(warehouse.files("screenshots"))
    for shade in range(100, 200):  # names of files are random: until a later one comes first
        warehouse.add_screenshots([screenshot(shade)])
        if min(warehouse.files("screenshots")) != first:
            break
    build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html")
    assert {name for name, inode in written(warehouse.home.reports).items() if inode != before[name]} == {"index.html"}


def test_a_page_whose_rows_have_changed_or_that_is_torn_is_written_again(reported: Warehouse) -> None:
    warehouse = reported
    before = written(warehouse.home.reports)
    row = {"checkpoint_id": "other", "path": "p", "parents": [], "datasets": [], "config": '{"steps": 77}', "metrics": "{}", "note": ""}
    warehouse.replace_partition("checkpoints", [row], iteration="0001", stage="sft_model")
    (warehouse.home.reports / page_name("0002", "rl_pointing")).write_text("torn")
    build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html")
    again = {name for name, inode in written(warehouse.home.reports).items() if inode != before[name]}
    assert again == {
        "index.html",
        page_name("0001"),
        page_name("0001", "sft_model"),
        page_name("0001", "rl_pointing"),
        page_name("0002", "rl_pointing"),
    }
    assert "77" in (warehouse.home.reports / page_name("0001", "sft_model")).read_text()


def test_episodes_of_old_iterations_are_on_their_own_pages(three: Warehouse) -> None:
    warehouse = three
    page = build_report(warehouse, warehouse.home, warehouse.home.reports / "index.html").read_text()
    assert page.count('<article class="episode') == 3 and f"{page_name('0001')}#trajectories" in page and "good-0003" in page
    text = Page(page).text
    assert "spread evenly" in text and "3 iterations of acting" in text
    assert (warehouse.home.reports / page_name("0001")).read_text().count('<article class="episode') == 3


def test_what_there_is_no_page_of_is_named(history: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0001, 0002"):
        build_iteration(history, "0009", tmp_path)
    with pytest.raises(ConfigError, match="0001/rl_pointing"):
        build_run(history, "0001/rl_forms", tmp_path)
    with pytest.raises(ConfigError, match="none yet"):
        build_run(Warehouse(Home(tmp_path / "home")), "0001/rl_forms", tmp_path)


def test_merge_weights_are_reported_by_specialist(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    rows = {"rl_forms": ("a", "{}"), "merged_policy": ("m", json.dumps({"weights": {"a": 0.25, "elsewhere": 0.75}}))}
    for stage, (checkpoint_id, config) in rows.items():
        row = {"checkpoint_id": checkpoint_id, "path": "p", "parents": [], "datasets": [], "config": config, "metrics": "{}", "note": ""}
        warehouse.replace_partition("checkpoints", [row], iteration="0001", stage=stage)
    with connect(warehouse) as con:
        assert merge_weights(con, "0001") == {"rl_forms": 0.25, "elsewhere": 0.75}
        assert merge_weights(con, "0002") == {}


def test_a_worker_leaves_its_iterations_pages_and_never_fails_by_them(history: Warehouse, tmp_path: Path) -> None:
    said: list[str] = []
    home = Home(tmp_path / "home")
    for iteration, warehouse_home in (("0001", history.home), ("0001", home)):
        context = WorkerContext(folder=tmp_path, home=warehouse_home, iteration=iteration, stage="rl_pointing", log=said.append)
        page = warehouse_home.reports / page_name(iteration, "rl_pointing")
        page.unlink(missing_ok=True)
        _write_pages(context)
        assert page.exists() is (warehouse_home == history.home)
    assert len(said) == 1 and "could not be written" in said[0], "an empty home has no iteration to report"


def test_the_mixtures_that_were_tried_are_drawn(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    fill_models(warehouse, "0001")
    tried = [
        {
            "candidate": index,
            "method": "linear",
            "weights": json.dumps({"rl_pointing": share, "rl_forms": 1 - share}),
            "is_chosen": share == 0.5,
            "task_id": task,
            "task_name": task,
            "domain": domain,
            "num_episodes": 8,
            "num_success": 4,
            "num_crashed": 0,
        }
        for index, share in enumerate((0.0, 0.5, 1.0))
        for task, domain in TASKS.items()
    ]
    warehouse.replace_partition("merge_candidates", tried, iteration="0001", stage="merged_policy")
    text = build_iteration(warehouse, "0001", tmp_path).read_text()
    assert "3 mixtures that the search" in " ".join(Page(text).text.split()) and "0.5 / 0.5" in text


def test_the_command_writes_a_part(history: Warehouse, tmp_path: Path) -> None:
    home = ["--home", str(history.home.root)]
    for arguments, written in ((["2"], page_name("0002")), (["--run", "0001/rl_pointing"], page_name("0001", "rl_pointing"))):
        output = tmp_path / written.removesuffix(".html") / "index.html"
        ran = CliRunner().invoke(cli.app, ["report", *arguments, *home, "-o", str(output)], env={"COLUMNS": "300"})
        assert ran.exit_code == 0 and written in ran.output, ran.output
        assert (output.parent / written).is_file()
    assert not (tmp_path / "iteration-0002" / "index.html").exists(), "only what was asked for"
