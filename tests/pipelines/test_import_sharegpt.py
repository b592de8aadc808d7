"""ShareGPT-style chats: what was exported comes back equal, and chats of others are taken as they are or as trajectories."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from tests.pipelines.demonstration_files import HEIGHT, WIDTH, agentnet, images, picture, write_lines
from tests.pipelines.test_import_demonstrations import CODES, run
from warehouse.core.home import Home
from warehouse.datasets.export import export
from warehouse.storage.tables import Warehouse

LINEAGE = ("episode_id", "step_index", "annotation_id", "stage")


def exported(home: Path, output: Path, dataset: str) -> list[dict[str, Any]]:
    export(Warehouse(Home(home)), output, format="sharegpt", dataset=dataset)
    return [json.loads(line) for line in (output / "data.jsonl").read_text().split("\n") if line]


def rows(home: Path, table: str) -> list[dict[str, Any]]:
    found = Warehouse(Home(home)).read(table).to_pylist()
    return sorted(({name: value for name, value in row.items() if name not in LINEAGE} for row in found), key=lambda row: row["sample_id"])


def test_an_export_comes_back_equal(tmp_path: Path) -> None:
    """SFT with pictures and CT with loss on prompts: file by file and row by row, but for episodes that the other home does not
    have, and for statements about the whole import."""
    images(tmp_path, 8)
    path = write_lines(tmp_path / "demos.jsonl", [agentnet("one", CODES), agentnet("two", CODES[:2], completed=False)])
    run(tmp_path / "a", "agentnet", path)
    for dataset in ("sft", "ct"):
        first = exported(tmp_path / "a", tmp_path / f"a-{dataset}", dataset)
        report, _ = run(tmp_path / "b", "sharegpt", tmp_path / f"a-{dataset}" / "data.jsonl", name=dataset)
        assert report.num_added == len(first) > 1 and not report.malformed and not report.unknown
        second = exported(tmp_path / "b", tmp_path / f"b-{dataset}", dataset)
        origins = {"source": ("imported_demos", f"imported_{dataset}"), "licence": ("MIT", "unknown")}
        assert second == [row | {name: there for name, (_, there) in origins.items()} for row in first]
        text = (tmp_path / f"a-{dataset}" / "data.jsonl").read_text()
        for name, (here, there) in origins.items():
            text = text.replace(f'"{name}": "{here}"', f'"{name}": "{there}"')
        assert (tmp_path / f"b-{dataset}" / "data.jsonl").read_text() == text
        pictures = [{p.name: p.read_bytes() for p in (tmp_path / f"{home}-{dataset}" / "images").iterdir()} for home in "ab"]
        assert pictures[0] == pictures[1]
        assert rows(tmp_path / "b", f"{dataset}_samples") == rows(tmp_path / "a", f"{dataset}_samples")
        again, _ = run(tmp_path / "a", "sharegpt", tmp_path / f"a-{dataset}" / "data.jsonl", name=dataset)
        assert (again.num_added, again.num_there) == (0, len(first)), "its own home has them already"


def chat(**more: Any) -> dict[str, Any]:
    record = {
        "id": 7,
        "conversations": [
            {"from": "human", "value": "<image>\nYou operate a computer.\n\n## User Instruction\nOpen the menu."},
            {"from": "gpt", "value": "Thought: It is at the top.\nAction: click(start_box='<|box_start|>(500,900)<|box_end|>')"},
            {"from": "human", "value": "<image>"},
            {"from": "gpt", "value": "Thought: Done.\nAction: finished(content='yes')"},
        ],
        "images": ["0.png", "1.png"],
    }
    return record | more


def test_a_foreign_chat_is_kept_as_it_is(tmp_path: Path) -> None:
    images(tmp_path, 2)
    url = f"data:image/png;base64,{base64.b64encode(picture(5)).decode()}"
    two = {
        "conversations": [
            {"from": "user", "value": "<image><image> Which differs?", "x": 1},
            {"from": "assistant", "value": "The second."},
        ],
        "images": ["0.png", url],
        "system": "Be brief.",
        "topic": "games",
    }
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [chat(), two]))
    assert report.num_added == 2 and report.unknown == {"conversations[].x": 1, "topic": 1}
    found = sorted(Warehouse(Home(tmp_path / "home")).read("sft_samples").to_pylist(), key=lambda row: len(row["messages"]))
    first, second = found
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "user", "assistant"]
    assert first["messages"][0]["content"].startswith("You operate") and [message["loss"] for message in first["messages"]] == [0, 1, 0, 1]
    assert (
        second["messages"][0] == {"role": "system", "content": "Be brief.", "screenshot_id": None, "loss": 0.0}
        or len(second["messages"]) == 4
    )
    shown = [message["screenshot_id"] for row in found for message in row["messages"] if message["screenshot_id"]]
    assert len(shown) == 4 and len(set(shown)) == 3


def test_answers_of_a_known_grammar_become_a_trajectory(tmp_path: Path) -> None:
    images(tmp_path, 2)
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [chat()]), answers="uitars1", grammar="uitars2")
    assert report.num_added == 1 and report.samples["steps"] == 2 and report.samples["sft_samples"] == 2
    warehouse = Warehouse(Home(tmp_path / "home"))
    first, last = sorted(warehouse.read("steps").to_pylist(), key=lambda row: row["step_index"])
    assert json.loads(first["action"])["x"] == WIDTH // 2 and json.loads(first["action"])["y"] == round(0.9 * HEIGHT)
    assert (
        first["thought"] == "It is at the top."
        and "<function=click>" in first["response"]
        and json.loads(last["action"])["answer"] == "yes"
    )
    assert warehouse.read("episodes").to_pylist()[0]["instruction"] == "Open the menu."
    assert "Task:\nOpen the menu." in first["messages"][1]["content"], "asked as our own agents are"


@pytest.mark.parametrize(("policy", "stored"), [(None, "unknown"), ("browser-agent 3", "browser-agent 3")])
def test_an_agents_chat_is_nobodys_or_the_agents_whose_it_is(policy: str | None, stored: str, tmp_path: Path) -> None:
    images(tmp_path, 2)
    path = write_lines(tmp_path / "chats.jsonl", [chat()])
    run(tmp_path / "home", "sharegpt", path, answers="uitars1", policy=policy)
    warehouse = Warehouse(Home(tmp_path / "home"))
    assert {row["policy_id"] for table in ("episodes", "steps") for row in warehouse.read(table).to_pylist()} == {stored}


def test_a_verdict_on_an_imported_episode_says_what_can_be_done(tmp_path: Path) -> None:
    """It was never routed: `flywheel reroute` would refuse its iteration."""
    images(tmp_path, 2)
    run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [chat()]), answers="uitars1")
    warehouse = Warehouse(Home(tmp_path / "home"))
    (episode,) = warehouse.read("episodes").to_pylist()
    words = ["verdict", episode["episode_id"], "--bad", "--reason", "the menu stayed closed", "--home", str(tmp_path / "home")]
    said = CliRunner().invoke(app, words, catch_exceptions=False).output
    samples = warehouse.read("sft_samples")["sample_id"].to_pylist()
    assert "reroute" not in said and f"its {len(samples)} samples stay" in said and f"flywheel withdraw {min(samples)}" in said


@pytest.mark.parametrize("track", ["expert", "unreviewed"])
def test_a_declared_failure_is_never_learned_as_a_success(track: str, tmp_path: Path) -> None:
    images(tmp_path, 2)
    failed = chat(verdict=False, origin="rollout", domain="web", system="Be brief.")
    failed["conversations"][1]["weight"] = 0.5
    solved = chat(verdict=True, domain="web", id=8)
    path = write_lines(tmp_path / "chats.jsonl", [failed, solved])
    report, said = run(tmp_path / "home", "sharegpt", path, answers="uitars1", track=track)
    assert (
        report.lost
        == {
            "`origin`": 1,
            "what the system says": 1,
            "what stands before the instruction": 2,
            "`weight` of an answer, but for whether it is learned": 1,
        }
        and "`origin`" in said
    )
    warehouse = Warehouse(Home(tmp_path / "home"))
    episodes = {row["outcome"]: row for row in warehouse.read("episodes").to_pylist()}
    assert {outcome: row["reward"] for outcome, row in episodes.items()} == {"failure": 0.0, "success": 1.0}
    assert {row["domain"] for row in episodes.values()} == {"web"}
    names = {row["episode_id"]: row["outcome"] for row in episodes.values()}
    assert {(names[row["episode_id"]], row["passed"], row["origin"]) for row in warehouse.read("verdicts").to_pylist()} == {
        ("failure", False, "judge"),
        ("success", True, "judge"),
    }
    for table, outcome, verdict in (("sft_samples", "success", True), ("ct_samples", "failure", False)):
        found = [(names[row["episode_id"]], row["verdict"], row["domain"]) for row in warehouse.read(table).to_pylist()]
        assert found == [(outcome, verdict, "web")] * 2
    assert {row["domain"] for row in warehouse.read("tasks").to_pylist()} == {"web"}


def test_a_declared_failure_that_is_kept_as_it_is_is_for_ct(tmp_path: Path) -> None:
    images(tmp_path, 2)
    run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [chat(verdict=False)]))
    warehouse = Warehouse(Home(tmp_path / "home"))
    assert warehouse.read("sft_samples").num_rows == 0 and [row["verdict"] for row in warehouse.read("ct_samples").to_pylist()] == [False]


@pytest.mark.parametrize("answers", [None, "uitars1"])
@pytest.mark.parametrize("verdict", [0, 1, "false", "", []])
def test_a_verdict_that_is_none_is_malformed(verdict: Any, answers: str | None, tmp_path: Path) -> None:
    images(tmp_path, 2)
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [chat(verdict=verdict)]), answers=answers)
    said = f"`verdict` is {verdict!r}, expected good, bad, none, true, false or null"
    assert report.malformed == [("chats.jsonl:1", said)] and not report.num_added


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (chat(images=["0.png"]), "shows 2 pictures .* names 1"),
        (chat(images=["0.png", "../1.png"]), "not below"),
        (chat(conversations=[{"from": "robot", "value": "x"}]), "from 'robot'"),
        (chat(conversations=[{"from": "human", "value": "x"}], images=[]), "nothing in it is an answer"),
        (chat(conversations=[{"from": "gpt", "value": "x", "weight": -1}], images=[]), "weight of a turn is -1"),
        (chat(origin="elsewhere"), "`origin` is 'elsewhere'"),
        (chat(domain=["web"]), r"`domain` is \['web'\], expected a name"),
        ({"text": "x"}, "`conversations` is missing"),
    ],
)
def test_a_chat_that_is_none_is_named(record: dict[str, Any], why: str, tmp_path: Path) -> None:
    images(tmp_path, 2)
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [record]))
    assert report.num_added == 0 and re.search(why, report.malformed[0][1]), report.malformed


def test_an_answer_that_is_no_action_is_named_where_trajectories_are_asked_for(tmp_path: Path) -> None:
    images(tmp_path, 2)
    record = chat()
    record["conversations"][3]["value"] = "I do not know."
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "chats.jsonl", [record]), answers="uitars1")
    assert "answer 1 does not follow the grammar uitars1" in report.malformed[0][1]
