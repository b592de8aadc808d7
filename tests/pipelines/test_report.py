"""The report over a small history in real tables: complete, escaped, self-contained, repeatable; and over an empty warehouse."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.report import build_report
from pipelines.report_data import stage_seconds
from warehouse.home import Home
from warehouse.identity import bytes_id
from warehouse.tables import Warehouse

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
            episodes.append({
                "episode_id": f"{name}-{iteration}", "purpose": purpose, "task_id": "task-a", "task_name": "click-button",
                "domain": "pointing", "seed": 3, "split": "train", "attempt": 0, "policy_id": f"merged-{iteration}", "temperature": 1.0,
                "instruction": HOSTILE,
                "outcome": "success" if solved else "failure", "reward": float(solved), "num_steps": 2, "num_retries": 0, "error": None,
                "duration_ms": 1.0, "environment": "env",
            })  # fmt: skip
            steps += [{
                "episode_id": f"{name}-{iteration}", "step_index": i, "policy_id": f"merged-{iteration}", "observation": "",
                "screenshot_id": shots[i]["screenshot_id"], "messages": PROMPT, "response": f'Thought type Action type "{HOSTILE}"',
                "thought": "type", "action": json.dumps({"kind": "click", "x": 80, "y": 105}), "prompt_token_ids": [],
                "response_token_ids": [], "response_logprobs": [], "reward": 0.0, "latency_ms": 1.0,
            } for i in range(2)]  # fmt: skip
        warehouse.replace_partition("episodes", episodes, iteration=iteration, stage=stage)
        warehouse.replace_partition("steps", steps, iteration=iteration, stage=stage)
    note = {
        "annotation_id": f"note-{iteration}", "episode_id": f"fixed-{iteration}", "step_index": 1, "annotator": "oracle",
        "origin": "scripted", "mode": "relabel", "decision": "override", "proposal": "p", "response": "Thought click Action click [7]",
        "messages": PROMPT,
        "withdrawn": False,
    }  # fmt: skip
    warehouse.replace_partition("annotations", [note], iteration=iteration, stage="annotations")
    failed = ("ct", "V=0: verifier 0 < 0.999")
    reasons = {"good": ("sft", "V=1: verifier 1 >= 0.999"), "bad": failed, "fixed": failed}
    rows = [{"episode_id": f"{name}-{iteration}", "route": route, "reason": reason} for name, (route, reason) in reasons.items()]
    warehouse.replace_partition("routes", rows, iteration=iteration, stage="routing")
    fill_models(warehouse, iteration)


def fill_models(warehouse: Warehouse, iteration: str) -> None:
    for stage in (*ROLES, "released_policy"):
        made = "merged_policy" if stage == "released_policy" else stage
        row = {"checkpoint_id": f"{made[:6]}-{iteration}", "path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}",
               "note": "the candidate does not lose" if stage == "released_policy" else ""}  # fmt: skip
        warehouse.replace_partition("checkpoints", [row], iteration=iteration, stage=stage)
    evaluations = [
        {"checkpoint_id": f"{role[:6]}-{iteration}", "checkpoint_role": role, "task_id": task, "task_name": task, "domain": domain,
         "split": split, "num_episodes": 10, "num_success": solved + int(iteration) - 1, "num_crashed": 0}
        for role, solved in ROLES.items() for task, domain in TASKS.items() for split in ("eval", "holdout")
    ]  # fmt: skip
    warehouse.replace_partition("evaluations", evaluations, iteration=iteration, stage="evaluation")
    curve = [{"run": "sft_model", "step": i, "metric": "loss", "value": 1 / i, "checkpoint_id": "c"} for i in (1, 2, 3)]
    warehouse.replace_partition("training_metrics", curve, iteration=iteration, stage="sft_model")
    dataset = [{"dataset_id": f"d-{iteration}", "kind": "sft", "sample_id": "s", "component": "demonstration", "weight": 250.0}]
    warehouse.replace_partition("datasets", dataset, iteration=iteration, stage="sft_dataset")
    folder = warehouse.home.work / iteration / "sft_model"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"duration_s": 90.0}))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("report")))
    fill(warehouse, "0001", 40)
    fill(warehouse, "0002", 140)
    return warehouse


@pytest.fixture(scope="module")
def page(history: Warehouse) -> str:
    return build_report(history, history.home, history.home.reports / "index.html").read_text()


def test_the_page_says_what_came_of_it(page: str) -> None:
    text = " ".join(Page(page).text.split())
    assert "2 iterations of acting" in text
    assert "seed SFT 0.500" in text and "after iteration 2 0.900" in text and "+40.0" in text and "excludes zero" in text
    assert "the candidate does not lose" in text and "stage time 3.0 min in 2 stages" in text
    for heading in ("Success by task", "Routing", "Data and annotations", "Training", "Sample trajectories", "Lineage", "Time", "Tables"):
        assert heading in text


def test_trajectories_show_screens_marks_and_corrections(page: str) -> None:
    assert page.count('<article class="episode') == 6
    for kind in ("solved", "failed", "corrected"):
        assert page.count(f'class="badge {kind}"') == 2
    assert page.count("data:image/png;base64,") == 12
    assert 'style="left:50.0%;top:50.0%"' in page
    assert page.count('corrected to <span class="code">click [7]</span>') == 2


def test_everything_is_escaped_and_nothing_is_loaded(page: str) -> None:
    parsed = Page(page)
    assert "script" not in parsed.tags and "<script" not in page
    assert HOSTILE in parsed.text, "it is shown as text"
    assert all(source.startswith(("data:image/", "#")) for source in parsed.sources)
    assert set(re.findall(r"https?://[^\"'\s<)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\((?!#)", page) and "@import" not in page


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
