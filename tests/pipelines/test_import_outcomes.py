"""Whether an imported log was carried out, by a field, by thumbs, by a judge, or by a person."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.judges.judge import Case
from pipelines.cli.data.verdict import add_human_verdict
from pipelines.importing.outcomes import outcomes_of
from pipelines.importing.rows import Rows
from pipelines.importing.trajectories import Entry
from sandbox.importing.fields import BadRecord
from sandbox.session import Verdict
from tests.models.served_models import save_vision_model
from tests.pipelines.logs.scripted import chat_answer
from tests.pipelines.test_import_demonstrations import content, run
from tests.pipelines.test_import_logs import FILES, LOGS, SCREENS, chat, lines
from warehouse.core.errors import ConfigError, StorageFull
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse


def judge(case: Case) -> Verdict:
    """Good is what ends with an answer; it has seen the screens, and nobody tells it of a limit."""
    last = case.record.turns[-1]
    score = 0.95 if "finished" in last.action and case.images and not case.record.is_cut_off else 0.1
    return Verdict(origin="judge", score=score, threshold=0.5, reasons=("it answers",))


def said(spec: str, record: Any, home: Path, **more: Any) -> bool | None:
    entry = Entry(where="a.jsonl:1", digest="d", text=json.dumps(record), **more)
    with ExitStack() as stack:
        row = outcomes_of(spec, Warehouse(Home(home)), stack)(entry, "episode-1", Rows)
    return None if row is None else row["passed"]


RECORD = {"history": [{"result": [{"is_done": True, "success": True}]}], "score": 0.7, "thumb": "👎", "status": "done", "code": "1"}


@pytest.mark.parametrize(
    ("spec", "passed"),
    [
        ("field:history/-1/result/-1/success", True),
        ("field:status=done", True),
        ("field:status!=done", False),
        ('field:status="done"', True),
        ("field:code!=1", False),
        ("field:code=1", True),
        ("field:score>=0.7", True),
        ("field:score<0.5", False),
        ("field:nothing/0", None),
        ("field:history/7", None),
        ("thumbs:thumb", False),
        ("thumbs:nothing", None),
    ],
)
def test_a_field_says_it(spec: str, passed: bool | None, tmp_path: Path) -> None:
    assert said(spec, RECORD, tmp_path) is passed


@pytest.mark.parametrize(
    "spec",
    [
        "field:status",
        "field:status>3",
        "field:code>0",
        "field:score!=good",
        "field:score=true",
        "field:history/-1/result/-1/success=1",
        "thumbs:status",
    ],
)
def test_a_field_that_cannot_be_understood_costs_its_record(spec: str, tmp_path: Path) -> None:
    with pytest.raises(BadRecord):
        said(spec, RECORD, tmp_path)


@pytest.mark.parametrize("spec", ["field", "field:", "moon:x", "person:x", "judge:none", "judge:x@7", "judge:x@0", "field:=1"])
def test_other_words_are_refused_with_those_that_are_known(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"outcome|judge"):
        said(spec, RECORD, tmp_path)


@pytest.mark.parametrize("name", ["votes.csv", "votes.jsonl"])
def test_a_file_of_thumbs_says_it_by_the_records_ids(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    votes = [("call-1", "up"), ("call-2", ""), ("a.jsonl:1", -1)]
    if name.endswith("csv"):
        path.write_text("id,thumb\n" + "".join(f"{identity},{thumb}\n" for identity, thumb in votes))
    else:
        path.write_text("".join(json.dumps({"id": identity, "thumb": thumb}) + "\n" for identity, thumb in votes))
    assert said(f"thumbs:{path}", {}, tmp_path, names=("call-1",)) is False  # by its place, one is down
    path.write_text("id,vote\n1,up\n" if name.endswith("csv") else '{"id": 1}\n')
    with pytest.raises(ConfigError, match="thumb"):
        said(f"thumbs:{path}", {}, tmp_path)


@pytest.mark.slow
def test_what_is_good_is_learned_for_sft_and_who_said_so_is_in_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_JUDGES", f"mine: {Path(__file__)}:judge")
    log = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, None, ("wait", {}))), chat(answer=chat_answer(2, "Open.")))
    report, _ = run(tmp_path, "openai-chat", log, outcome="judge:mine", name="judged")
    stored = content(tmp_path)
    verdicts = {row["score"]: row for row in stored["verdicts"]}
    assert {score: row["passed"] for score, row in verdicts.items()} == {0.1: False, 0.95: True}
    assert {(row["judge"], row["origin"], row["threshold"]) for row in verdicts.values()} == {("mine", "judge", 0.9)}
    assert len(stored["sft_samples"]) == len(stored["ct_samples"]) == 1 and report.lost["`response.model`"] == 2

    rule = "field:history/-1/result/-1/success"
    run(tmp_path, "browser-use", LOGS / FILES["browser-use"], outcome=rule, images=[SCREENS], name="history")
    assert len(content(tmp_path)["sft_samples"]) == 6


def telling(case: Case) -> Verdict:
    return Verdict(origin="judge", score=1.0, threshold=0.5, reasons=("ask grace.hopper@navy.mil",))


def test_no_reason_of_a_verdict_holds_personal_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_JUDGES", f"telling: {Path(__file__)}:telling")
    record = chat(answer=chat_answer(1, "Open.")) | {"feedback": "good, says grace.hopper@navy.mil"}
    log = lines(tmp_path / "a.jsonl", record)
    run(tmp_path / "field", "openai-chat", log, outcome="field:feedback!=bad", name="judged")
    assert content(tmp_path / "field")["verdicts"][0]["reasons"] == ["feedback!=bad is true"]
    report, _ = run(tmp_path / "judge", "openai-chat", log, outcome="judge:telling", name="judged")
    assert [why for _, why in report.withheld] == ["holds personal data: an e-mail address in the reasons of its verdict"]


def refusing(case: Case) -> bool:
    raise AssertionError(f"it was asked about {case.record.instruction!r}")


def test_a_judge_is_not_shown_what_is_withheld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_JUDGES", f"refusing: {Path(__file__)}:refusing")
    log = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, "Write to grace.hopper@navy.mil.")))
    report, _ = run(tmp_path, "openai-chat", log, outcome="judge:refusing", name="judged", dry_run=True)
    assert [why for _, why in report.withheld] == ["holds personal data: an e-mail address in the answer of step 0"]


def test_a_record_that_a_judge_fails_on_is_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_JUDGES", f"refusing: {Path(__file__)}:refusing")
    log = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, "Open.")))
    report, _ = run(tmp_path, "openai-chat", log, outcome="judge:refusing", name="judged", dry_run=True)
    assert "it was asked about 'Open it.'" in report.malformed[0][1]


def wavering(case: Case) -> float:
    return float(os.environ["WAVERING"])


def test_an_import_goes_on_with_what_a_judge_had_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_JUDGES", f"wavering: {Path(__file__)}:wavering")
    log = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, "Open.")))
    append = Warehouse.append_partition

    def failing(self: Warehouse, table: str, *given: Any, **named: Any) -> int:
        if table == "episodes":
            raise StorageFull("no room")
        return append(self, table, *given, **named)

    with monkeypatch.context() as first:
        first.setenv("WAVERING", "1")
        first.setattr(Warehouse, "append_partition", failing)
        with pytest.raises(StorageFull):
            run(tmp_path, "openai-chat", log, outcome="judge:wavering", name="judged")
    monkeypatch.setenv("WAVERING", "0")
    run(tmp_path, "openai-chat", log, outcome="judge:wavering", name="judged")
    stored = content(tmp_path)
    assert [row["passed"] for row in stored["verdicts"]] == [True] and stored["episodes"][0]["outcome"] == "success"
    assert (len(stored["sft_samples"]), len(stored["ct_samples"])) == (1, 0)
    run(tmp_path, "openai-chat", log, outcome="judge:wavering", name="judged", replace=True)
    assert content(tmp_path)["episodes"][0]["outcome"] == "failure"


@pytest.mark.slow
def test_a_person_says_it_after_the_import(tmp_path: Path) -> None:
    log = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, "Open.")))
    report, _ = run(tmp_path, "openai-chat", log, outcome="person", name="asked")
    assert not content(tmp_path)["sft_samples"] and report.for_ct == {"--outcome says nothing of it": 1}
    (episode,) = content(tmp_path)["episodes"]
    add_human_verdict(Warehouse(Home(tmp_path)), episode["episode_id"], is_good=True, reasons=["it is open"])
    again, _ = run(tmp_path, "openai-chat", log, outcome="person", name="asked", replace=True)
    stored = content(tmp_path)
    assert len(stored["sft_samples"]) == 1 and not again.for_ct and stored["episodes"][0]["outcome"] == "success"


@pytest.mark.slow
def test_the_outcome_reward_model_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_vision_model(tmp_path / "model")
    monkeypatch.setattr(registry, "find", lambda warehouse, checkpoint: SimpleNamespace(folder=tmp_path / "model"))
    run(tmp_path / "home", "openai-chat", LOGS / FILES["openai-chat"], outcome="orm:checkpoint-1@0.8", name="judged")
    verdicts = content(tmp_path / "home")["verdicts"]
    assert {(row["judge"], row["origin"], row["threshold"]) for row in verdicts} == {("orm", "orm", 0.8)} and len(verdicts) == 2
    assert all(0 < row["score"] < 1 and row["passed"] == (row["score"] >= 0.8) for row in verdicts)
