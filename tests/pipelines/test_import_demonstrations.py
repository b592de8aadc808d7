"""Demonstrations of other collections into a warehouse: what is learned of them, what is kept aside, and that nothing is stored twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from agent.grammars.registry import grammar_named
from agent.prompts.prompt import PromptBuilder
from pipelines.importing import demonstrations as import_demonstrations
from pipelines.importing.demonstrations import import_demonstration_files
from pipelines.importing.mind2web import node_texts
from pipelines.importing.report import Report, check_any
from pipelines.importing.rows import DemonstrationSettings, settings_of
from sandbox.session import Observation
from tests.pipelines.demonstration_files import HEIGHT, WIDTH, agentnet, images, many, mind2web, picture, write_lines
from warehouse.core.errors import ConfigError, StorageFull
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

CODES = [
    "pyautogui.click(x=0.25, y=0.5)",
    "pyautogui.write('hi\\n')",
    "pyautogui.hotkey('ctrl', 's')",
    "computer.terminate(status='success')",
]
TABLES = ("tasks", "episodes", "steps", "verdicts", "sft_samples", "ct_samples")


def run(home: Path, format: str, *paths: Path, track: str = "expert", **more: Any) -> tuple[Report, str]:
    console = Console(record=True, width=200)
    options = {name: more.pop(name) for name in ("name", "images", "dry_run") if name in more}
    replace = more.pop("replace", False)
    settings = settings_of(DemonstrationSettings, track=track, **more)
    report = import_demonstration_files(
        Home(home),
        format,
        paths,
        settings,
        console,
        name=options.get("name"),
        images=options.get("images", ()),
        dry_run=options.get("dry_run", False),
        replace=replace,
    )
    return report, console.export_text()


def content(home: Path) -> dict[str, Any]:
    """Every row of every table, and what is kept beside them."""
    warehouse = Warehouse(Home(home))
    rows = {
        table: sorted(warehouse.read(table).to_pylist(), key=lambda row: json.dumps(row, sort_keys=True, default=str)) for table in TABLES
    }
    kept = {path.name: path.read_bytes() for path in sorted((home / "imports").rglob("*")) if path.is_file()}
    return rows | {"screenshots": sorted(warehouse.read("screenshots").column("screenshot_id").to_pylist()), "kept": kept}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    images(tmp_path, 8)
    records = [
        agentnet("good", CODES),
        agentnet("failed", CODES[:2], completed=False, colour="red"),
        agentnet("unsaid", CODES[:1], completed=None),
    ]
    records[0]["traj"][1]["value"]["last_step_correct"] = False
    records[0]["traj"][2]["value"]["last_step_redundant"] = True
    return write_lines(tmp_path / "demos.jsonl", records)


def test_good_steps_of_completed_trajectories_are_for_sft_and_the_rest_for_ct(files: Path, tmp_path: Path) -> None:
    report, said = run(tmp_path / "home", "agentnet", files)
    assert (report.num_added, report.num_there, report.malformed) == (3, 0, []) and "colour" in said
    warehouse = Warehouse(Home(tmp_path / "home"))
    episodes = {row["task_name"]: row for row in warehouse.read("episodes").to_pylist()}
    assert {name: (row["outcome"], row["reward"]) for name, row in episodes.items()} == {
        "good": ("success", 1.0),
        "failed": ("failure", 0.0),
        "unsaid": ("success", 1.0),
    }
    assert {row["split"] for row in episodes.values()} == {"train"} and {row["policy_id"] for row in episodes.values()} == {"human"}
    names = {row["episode_id"]: name for name, row in episodes.items()}
    sft, ct = warehouse.read("sft_samples").to_pylist(), warehouse.read("ct_samples").to_pylist()
    assert sorted((names[row["episode_id"]], row["step_index"]) for row in sft) == [("good", 0), ("good", 3), ("unsaid", 0)]
    assert sorted((names[row["episode_id"]], row["step_index"]) for row in ct) == [("failed", 0), ("failed", 1), ("good", 1), ("good", 2)]
    assert all([message["loss"] for message in row["messages"]] == [0.0] * (len(row["messages"]) - 1) + [1.0] for row in sft)
    assert {row["verdict"] for row in sft} == {True}
    verdicts = {names[row["episode_id"]]: (row["passed"], row["reasons"]) for row in warehouse.read("verdicts").to_pylist()}
    assert set(verdicts) == {"good", "failed"} and "alignment_score 8" in verdicts["good"][1] and not verdicts["failed"][0]


def test_tracks_and_alignment_decide_too(files: Path, tmp_path: Path) -> None:
    for track, more, num_sft in (("novice", {}, 0), ("unreviewed", {}, 2), ("expert", {"min_alignment": 9}, 0)):
        home = tmp_path / f"{track}{len(more)}"
        run(home, "agentnet", files, track=track, **more)
        assert Warehouse(Home(home)).read("sft_samples").num_rows == num_sft, track
    unsaid = [row for row in Warehouse(Home(tmp_path / "novice0")).read("episodes").to_pylist() if row["task_name"] == "unsaid"]
    assert [(row["outcome"], row["reward"]) for row in unsaid] == [("truncated", None)], "nothing is claimed that the record does not say"


def test_an_alignment_that_is_not_known_is_none(tmp_path: Path) -> None:
    """With --min-alignment: no score is for CT and counted as that, a textual one is malformed; without it neither matters."""
    images(tmp_path, 4)
    records = [agentnet("nine", CODES, alignment_score=9), agentnet("none", CODES, alignment_score=None)]
    records += [agentnet("text", CODES, alignment_score="9"), agentnet("two", CODES, alignment_score=2)]
    path = write_lines(tmp_path / "demos.jsonl", records)
    report, said = run(tmp_path / "home", "agentnet", path, min_alignment=5)
    assert report.malformed == [("demos.jsonl:3", "`alignment_score` is '9', expected a number, as --min-alignment compares it")]
    assert report.for_ct == {"no `alignment_score`, and --min-alignment asks for one": 1, "`alignment_score` is below 5": 1}
    assert "and --min-alignment asks for one" in said
    warehouse = Warehouse(Home(tmp_path / "home"))
    names = {row["episode_id"]: row["task_name"] for row in warehouse.read("episodes").to_pylist()}
    assert {names[row["episode_id"]] for row in warehouse.read("sft_samples").to_pylist()} == {"nine"}
    assert {names[row["episode_id"]] for row in warehouse.read("ct_samples").to_pylist()} == {"none", "two"}
    unasked, _ = run(tmp_path / "unasked", "agentnet", path)
    assert (unasked.num_added, unasked.for_ct) == (4, {})


def test_what_is_not_kept_is_counted_beside_the_rows_however_often_the_import_was_begun(tmp_path: Path) -> None:
    images(tmp_path, 8)
    slow = ["pyautogui.moveTo(0.5, 0.5, duration=0.5)", "pyautogui.click(x=0.5, y=0.5)"]
    records = [agentnet(f"t{n}", slow, **{f"colour_{m}": n for m in range(n + 1)}) for n in range(23)]
    path = write_lines(tmp_path / "demos.jsonl", records)
    report, said = run(tmp_path / "home", "agentnet", path)
    assert re.search(r"3 more, in import\.json\D*6\b", said), "22, 23 and 21 names are shown or told of"
    counts = json.loads((tmp_path / "home/imports/demos/import.json").read_text())["counts"]
    assert counts["unknown"] == {f"colour_{m}": 23 - m for m in range(23)} == dict(report.unknown)
    assert counts["lost"] == {"duration": 23} and (counts["records"], counts["withheld"], counts["malformed"]) == (23, 0, 0)
    before = content(tmp_path / "home")
    again, _ = run(tmp_path / "home", "agentnet", path)
    assert again.lost == report.lost and content(tmp_path / "home") == before
    (tmp_path / "home/imports/demos/origins.jsonl").unlink()
    run(tmp_path / "home", "agentnet", path)
    assert content(tmp_path / "home") == before, "as after an import that was killed: what is not known is looked for again"


def test_what_is_trained_is_what_an_agent_is_asked(files: Path, tmp_path: Path) -> None:
    """The prompts are those that an agent would have been asked with, had it answered as the person did."""
    run(tmp_path / "home", "agentnet", files, grammar="uitars15")
    warehouse = Warehouse(Home(tmp_path / "home"))
    (episode,) = [row for row in warehouse.read("episodes").to_pylist() if row["task_name"] == "good"]
    steps = sorted(
        (row for row in warehouse.read("steps").to_pylist() if row["episode_id"] == episode["episode_id"]),
        key=lambda row: row["step_index"],
    )
    builder, grammar = PromptBuilder("uitars15"), grammar_named("uitars15")
    memory = builder.start(episode["instruction"])
    for index, step in enumerate(steps):
        seen = Observation(
            instruction=episode["instruction"], elements=(), screenshot=picture(index), width_px=WIDTH, height_px=HEIGHT, time_ms=0.0
        )
        asked = [{"role": m.role, "content": m.content, "screenshot_id": m.screenshot_id, "loss": 0.0} for m in builder.build(memory, seen)]
        assert step["messages"] == asked
        parsed = grammar.parse(step["response"], seen)
        assert parsed.invalid is None and parsed.thought == f"Thought {index}.\nDo {index}"
        memory = builder.remember(memory, seen, step["response"], parsed)
    assert json.loads(steps[0]["action"]) == {"kind": "click", "x": WIDTH // 4, "y": HEIGHT // 2, "button": "left", "count": 1}
    shots = {row["screenshot_id"]: row for row in warehouse.read("screenshots").to_pylist()}
    assert all((shots[step["screenshot_id"]]["width_px"], shots[step["screenshot_id"]]["height_px"]) == (WIDTH, HEIGHT) for step in steps)
    assert shots[steps[0]["screenshot_id"]]["data"] == picture(0)


@pytest.mark.usefixtures("tables_place")
def test_the_mixture_draws_them(files: Path, tmp_path: Path) -> None:
    run(tmp_path / "home", "agentnet", files)
    with connect(Warehouse(Home(tmp_path / "home"))) as con:
        members = mixed(
            con, "sft", "0001", MixtureConfig(demonstration=SamplePool(), max_task_share=1.0, max_domain_share=1.0)
        ).rows.to_pylist()
        assert {(row["kind"], row["component"]) for row in members} == {("sft", "demonstration")} and len(members) == 3
        members = mixed(con, "ct", "0001", MixtureConfig(in_situ=SamplePool(), max_task_share=1.0, max_domain_share=1.0)).rows.to_pylist()
        assert {(row["kind"], row["component"]) for row in members} == {("ct", "in_situ")} and len(members) == 4


def test_what_holds_personal_data_is_withheld_and_reported_without_repeating_it(tmp_path: Path) -> None:
    images(tmp_path, 4)
    typed = [CODES[0], "pyautogui.write('grace.hopper@navy.mil')", CODES[3]]
    records = [
        agentnet("typed", typed),
        agentnet("asked", CODES, instruction="Pay with 4111 1111 1111 1111."),
        agentnet("fine", ["pyautogui.write('user@example.com')", CODES[3]]),
        agentnet("greek", CODES[3:], instruction="Κάνε κλικ στο κόκκινο κουμπί δύο φορές, παρακαλώ, και μετά κλείσε το παράθυρο."),
    ]
    records[3]["traj"][0]["value"] |= {"thought": "Το παράθυρο είναι ανοιχτό, άρα το κλείνω τώρα αμέσως.", "action": "Κλείσιμο"}
    path = write_lines(tmp_path / "demos.jsonl", records)
    report, said = run(tmp_path / "home", "agentnet", path)
    assert report.withheld == [
        ("demos.jsonl:1", "holds personal data: an e-mail address in the answer of step 1"),
        ("demos.jsonl:2", "holds personal data: a card number in its instruction"),
    ]
    assert report.num_added == 2 and "2 withheld, 0 malformed" in said and "hopper" not in said and "rejected.jsonl" in said
    stored = json.dumps(content(tmp_path / "home")["steps"])
    assert "user@example.com" in stored and "hopper" not in stored
    assert [json.loads(line)["where"] for line in (tmp_path / "home/imports/demos/rejected.jsonl").read_text().splitlines()] == [
        "demos.jsonl:1",
        "demos.jsonl:2",
    ]
    kept, _ = run(tmp_path / "kept", "agentnet", path, keep_personal_data=True, scripts=("Latin",))
    ((where, why),) = kept.withheld
    assert kept.num_added == 3 and where == "demos.jsonl:4" and "of its letters are Latin" in why
    with pytest.raises(ConfigError, match="name scripts as Unicode does"):
        run(tmp_path / "kept", "agentnet", path, scripts=("Elvish",))


def test_chats_are_looked_through_as_well(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Call +49 30 901820 now."}, {"from": "gpt", "value": "Done."}]
    fine = [{"from": "human", "value": "Call the office."}, {"from": "gpt", "value": "Done."}]
    report, _ = run(tmp_path / "home", "sharegpt", write_lines(tmp_path / "c.jsonl", [{"conversations": turns}, {"conversations": fine}]))
    assert report.withheld == [("c.jsonl:1", "holds personal data: a telephone number in message 0")] and report.num_added == 1


def test_what_is_malformed_is_named_and_kept_word_for_word(tmp_path: Path) -> None:
    images(tmp_path, 3)
    (tmp_path / "text.png").write_text("no picture")
    bad = agentnet("text", CODES[:1])
    bad["traj"][0]["image"] = "text.png"
    records = [
        agentnet("evil", ["__import__('os').system('true')"]),
        "{oops",
        agentnet("gone", CODES[:1], first=99),
        [1],
        agentnet("empty", []),
        bad,
        agentnet("keys", ["pyautogui.hotkey('a', 'b', 'c', 'd')"]),
        agentnet("fine", CODES[:1]),
    ]
    path = write_lines(tmp_path / "bad.jsonl", records)
    report, said = run(tmp_path / "home", "agentnet", path)
    assert [where for where, _ in report.malformed] == [f"bad.jsonl:{line}" for line in range(1, 8)] and report.num_added == 1
    whys = dict(report.malformed)
    for line, why in {
        1: "not understood",
        2: "not JSON",
        3: "name the folder with --images",
        4: "expected an object",
        5: "is empty",
        6: "cannot be read as PNG, JPEG or WEBP (UnidentifiedImageError)",
        7: "4 keys",
    }.items():
        assert why in whys[f"bad.jsonl:{line}"]
    kept = [json.loads(line) for line in (tmp_path / "home" / "imports" / "bad" / "rejected.jsonl").read_text().split("\n") if line]
    assert [row["record"] for row in kept] == path.read_text().split("\n")[:7] and "7 malformed" in said


def test_the_same_file_twice_adds_nothing_under_any_name(files: Path, tmp_path: Path) -> None:
    run(tmp_path / "home", "agentnet", files)
    before = content(tmp_path / "home")
    versions = Warehouse(Home(tmp_path / "home")).versions()
    again, said = run(tmp_path / "home", "agentnet", files)
    assert (again.num_added, again.num_there) == (0, 3) and "3 were there already" in said
    assert content(tmp_path / "home") == before and Warehouse(Home(tmp_path / "home")).versions() == versions
    other, _ = run(tmp_path / "home", "agentnet", files, name="other")
    assert (other.num_added, other.num_there) == (0, 3)
    line = files.read_text().split("\n")[0]
    both = write_lines(tmp_path / "both.jsonl", [line, line])
    report, _ = run(tmp_path / "second", "agentnet", both)
    assert (report.num_added, report.num_there) == (1, 1)


def test_an_import_in_another_way_wants_another_name_or_replaces(files: Path, tmp_path: Path) -> None:
    run(tmp_path / "home", "agentnet", files)
    with pytest.raises(ConfigError, match=r"with another settings .* --replace"):
        run(tmp_path / "home", "agentnet", files, grammar="uitars15")
    report, _ = run(tmp_path / "home", "agentnet", files, grammar="uitars15", replace=True)
    assert (report.num_added, report.num_there) == (3, 0)
    run(tmp_path / "fresh", "agentnet", files, grammar="uitars15")
    assert content(tmp_path / "home") == content(tmp_path / "fresh")


def test_a_dry_run_stores_nothing(files: Path, tmp_path: Path) -> None:
    report, said = run(tmp_path / "home", "agentnet", files, dry_run=True)
    assert report.num_added == 3 and "would be added" in said
    assert Warehouse(Home(tmp_path / "home")).read("episodes").num_rows == 0 and not (tmp_path / "home" / "imports").exists()


@pytest.mark.parametrize("fails_at", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 4, 5, 6)), 8])
def test_an_import_that_fails_at_any_commit_ends_alike(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: dict[str, Any], file_of_many: Path
) -> None:
    monkeypatch.setattr(import_demonstrations, "CHUNK_RECORDS", 10)
    append, calls = Warehouse.append_partition, iter(range(1, 1000))

    def failing(self: Warehouse, *given: Any, **named: Any) -> int:
        if next(calls) == fails_at:
            raise StorageFull("no room")
        return append(self, *given, **named)

    monkeypatch.setattr(Warehouse, "append_partition", failing)
    with pytest.raises(StorageFull):
        run(tmp_path / "home", "agentnet", file_of_many)
    run(tmp_path / "home", "agentnet", file_of_many)
    assert content(tmp_path / "home") == uninterrupted


@pytest.fixture(scope="module")
def file_of_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many(tmp_path_factory.mktemp("many"), 24)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, file_of_many: Path) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("whole")
    run(home, "agentnet", file_of_many)
    return content(home)


@pytest.mark.slow
def test_a_killed_import_goes_on_and_ends_alike(tmp_path: Path) -> None:
    path = many(tmp_path, 200)
    command = [sys.executable, "-m", "pipelines.cli", "import", "demonstrations", "agentnet", str(path), "--track", "expert", "--home"]
    killed = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(list((tmp_path / "killed" / "tables" / "episodes" / "_delta_log").glob("*.json"))) >= 2, killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    num_stored = Warehouse(Home(tmp_path / "killed")).read("episodes").num_rows
    assert 0 < num_stored < 200, "killed in the middle"
    report, _ = run(tmp_path / "killed", "agentnet", path)
    assert (report.num_there, report.num_added) == (num_stored, 200 - num_stored)
    run(tmp_path / "whole", "agentnet", path)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def wait_for(is_so: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert process.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
        time.sleep(0.005)


def test_a_trace_of_mind2web_without_pictures_lists_the_page_s_elements(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_text(json.dumps([mind2web()]))
    report, _ = run(tmp_path / "home", "mind2web", path, domain="web")
    assert report.malformed == [] and report.lost == {"a step whose element is unknown": 1} and not report.unknown
    warehouse = Warehouse(Home(tmp_path / "home"))
    first, second = sorted(warehouse.read("steps").to_pylist(), key=lambda row: row["step_index"])
    assert first["observation"].split("\n") == ['"Trucks" <link> [1]', '"Zip code" <input> [2]', '"Search" <button> [3]']
    assert "click(point=<point>" in first["messages"][-1]["content"] and first["screenshot_id"] is None
    assert json.loads(first["action"])["kind"] == "click" and (json.loads(first["action"])["x"], json.loads(first["action"])["y"]) == (
        60,
        30,
    )
    typed = json.loads(second["action"])
    assert (
        typed["kind"] == "several"
        and [one["kind"] for one in typed["actions"]] == ["click", "type"]
        and typed["actions"][1]["text"] == "08817"
    )
    assert warehouse.read("sft_samples").num_rows == 2 and warehouse.read("verdicts").to_pylist()[0]["origin"] == "human"


def test_names_inside_of_a_candidate_are_not_passed_over(tmp_path: Path) -> None:
    record = mind2web()
    record["actions"][0]["pos_candidates"][0]["colour"] = "red"
    record["actions"][1]["neg_candidates"] = [json.dumps(one | {"depth": 3}) for one in record["actions"][1]["neg_candidates"]]
    bad = mind2web()
    bad["actions"][0]["neg_candidates"] = ["3"]
    (tmp_path / "traces.json").write_text(json.dumps([record, bad]))
    report, _ = run(tmp_path / "home", "mind2web", tmp_path / "traces.json", domain="web")
    assert report.unknown == {"actions[].pos_candidates[].colour": 1, "actions[].neg_candidates[].depth": 1}
    assert report.malformed == [("traces.json#2", "actions[].neg_candidates[] is int, expected an object with named fields")]


@pytest.mark.parametrize(
    ("markup", "texts"),
    [
        ('<p id="1" title="T"><div id="2">a &amp; b</div><!-- c --><b>d</b></p>', {"1": "T a & b d", "2": "a & b"}),
        ('<p id="1">a<br><input id="2" placeholder="Zip" disabled>&nbsp;b', {"1": "a b", "2": "Zip"}),
        ('<!DOCTYPE p [<!ENTITY e SYSTEM "/etc/passwd">]><p id="1">a</p>', {"1": "a"}),
        ("<a " * 100_000, {}),
        ("", {}),
    ],
)
def test_texts_of_cleaned_html(markup: str, texts: dict[str, str]) -> None:
    assert node_texts(markup.replace(" id=", " backend_node_id=")) == texts


def test_rows_of_mind2web_with_pictures_are_one_trace(tmp_path: Path) -> None:
    whole = mind2web()
    rows = []
    for index, action in enumerate(whole["actions"][:2]):
        reported = {name: whole[name] for name in ("annotation_id", "confirmed_task", "website", "domain", "subdomain", "action_reprs")}
        rows.append(
            reported
            | {
                "action_uid": action["action_uid"],
                "cleaned_html": action["cleaned_html"],
                "operation": json.dumps(action["operation"]),
                "pos_candidates": [json.dumps(one) for one in action["pos_candidates"]],
                "neg_candidates": [],
                "target_action_index": str(index),
                "screenshot": {"bytes": picture(index, "JPEG"), "path": None},
            }
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    report, _ = run(tmp_path / "home", "mind2web", tmp_path / "train.parquet")
    assert report.malformed == [] and report.samples["steps"] == 2 and report.samples["episodes"] == 1
    shots = Warehouse(Home(tmp_path / "home")).read("screenshots").to_pylist()
    assert {(row["format"], row["width_px"], row["height_px"]) for row in shots} == {("jpeg", WIDTH, HEIGHT)}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"track": "master"}, "--track: Input should be 'expert', 'novice' or 'unreviewed'"),
        ({"grammar": "latin"}, "unknown grammar 'latin'"),
        ({"answers": "uitars15"}, "goes with sharegpt"),
        ({"name": "Not A Name"}, "lower-case"),
    ],
)
def test_wrong_requests_are_refused_with_the_right_ones(more: dict[str, Any], said: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        run(tmp_path / "home", "agentnet", files, **more)


def test_a_file_that_is_not_there_and_a_format_that_is_none(tmp_path: Path, files: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        run(tmp_path / "home", "agentnet", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"agentnet, .*mind2web, .*sharegpt"):
        run(tmp_path / "home", "jpeg", files)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="not a JSON document"):
        run(tmp_path / "home", "mind2web", tmp_path / "broken.json")


def test_files_of_which_nothing_can_be_read_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(ConfigError, match=r"none of 2 records is a demonstration of the format agentnet: other\.jsonl:1"):
        check_any(run(tmp_path / "home", "agentnet", path)[0], "agentnet")
