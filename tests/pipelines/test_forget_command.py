"""`flywheel forget`: nothing of the forgotten is left in any byte of a home, everything of others is, and what learned from it says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from agent.episode.log import EpisodeLog
from agent.gateway.episodes import finished
from agent.gateway.log import GatewayLog, folder_of, read_calls, read_outcomes
from agent.gateway.records import Said, Shown
from annotation.storage import forgetting
from annotation.storage.blobs import Blobs
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Run, RunStep
from models.rl.rollouts.log import BATCHES_FILE, BatchLine, RolloutLog
from pipelines.cli.app import app
from pipelines.forgetting.forgetting import begin, find
from pipelines.forgetting.subjects import subject_of
from pipelines.orchestration.runs.iteration_lock import driver_path, lock_path
from tests.assets.test_gateway_episodes import FIRST, Writer, take_in
from tests.models.chat_models import png
from tests.pipelines.demonstration_files import agentnet, images, picture, write_lines
from tests.pipelines.forgetting_home import ADA, BOB, IDS, SAID, annotated_home, files_with, seen_by, walked
from warehouse.core.errors import ConfigError, IterationLocked, NotNow, UnknownId, UnknownSubject
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.core.locks import FileLock
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Read it, do not write."""
    return annotated_home(tmp_path_factory.mktemp("annotated"))


@pytest.fixture
def home(annotated: Home, tmp_path: Path) -> Home:
    shutil.copytree(annotated.root, tmp_path / "home", ignore=shutil.ignore_patterns("locks"))
    return Home(tmp_path / "home")


def flywheel(home: Home, *words: str) -> str:
    ran = CliRunner().invoke(app, [*words, "--home", str(home.root)], env={"COLUMNS": "400"})
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.output


def episode_of(home: Home, name: str) -> str:
    rows = Warehouse(home).read("episodes").to_pylist()
    return next(row["episode_id"] for row in rows if SAID[name] in (row["instruction"] or ""))


@pytest.mark.slow
def test_a_person_is_gone_from_every_byte_and_the_others_are_not(home: Home, tmp_path: Path) -> None:
    for place, format_, dataset in (("chats", "trl", "sft"), ("all", "parquet", "all"), ("one.duckdb", "duckdb", "sft")):
        flywheel(home, "export", str(tmp_path / place), "--format", format_, "--dataset", dataset)
    (home.reports / "iteration-0001.html").write_text(f"<p>{SAID[ADA]}</p>")
    ada, bob = episode_of(home, ADA), episode_of(home, BOB)
    before = walked(Warehouse(home), {ada})
    assert all(before[table] for table in ("annotations", "sft_samples", "datasets")) and before["checkpoints"] == {"learned", "merged"}
    of_ada = (SAID[ADA], seen_by(ADA), ADA)
    held = files_with(tmp_path, of_ada)
    for place in (
        "annotation.db",
        "home/annotation/screens",
        "steps",
        "sft_samples",
        "screenshots",
        "verdicts",
        "work/0001",
        "chats",
        "duckdb",
    ):
        assert any(place in found for found in held), f"{place} holds it before"

    listed = json.loads(flywheel(home, "forget", "--person", ADA, "--dry-run", "--json"))
    assert {table: set(ids) for table, ids in listed["rows"].items()} == {name: before[name] for name in listed["rows"]}
    assert {one["dataset_id"] for one in listed["datasets"]} == before["datasets"] and listed["episodes"] == [ada]
    assert {one["checkpoint_id"] for one in listed["checkpoints"]} == before["checkpoints"]
    assert files_with(tmp_path, of_ada) == held, "a dry run changes nothing"

    said = flywheel(home, "forget", "--person", ADA, "--yes")
    assert "To be trained again: 0002/merged_policy (merged) is live and tainted" in said
    assert "flywheel release rollback 0001/merged_policy" in said
    assert files_with(tmp_path, of_ada) == []
    left = files_with(tmp_path, (SAID[BOB], seen_by(BOB)))
    for place in ("annotation.db", "home/annotation/screens", "steps", "sft_samples", "screenshots", "work/0001", "chats", "duckdb"):
        assert any(place in found for found in left), f"{place} still holds what is of others"
    with connect(Warehouse(home)) as con:
        assert con.sql(f"select outcome, reward, num_steps from episodes where episode_id = '{ada}'").fetchall() == [("success", 1.0, 2)]
        routes = dict(con.sql("select episode_id, route from routes").fetchall())
        assert (routes[ada], routes[bob]) == ("withheld", "ct")
        live = con.sql("select distinct episode_id from sft_samples where not withdrawn").fetchall()
        assert live == [(bob,)], "no dataset that is made from here on holds it"

    tainted = {one["release"]: one["tainted"] for one in json.loads(flywheel(home, "release", "list", "--json"))["releases"]}
    assert tainted["0001/merged_policy"] is None and "made from 0002/sft_model" in tainted["0002/merged_policy"]
    assert "tainted: made from 0002/sft_model" in flywheel(home, "release", "show", "released")
    assert re.search(r"checkpoint learned .*TAINTED: learned from 2 samples", flywheel(home, "lineage", "0002/merged_policy"))
    (receipt,) = (home.root / "forgotten").glob("*.json")
    assert json.loads(receipt.read_text())["tainted"] == ["learned"]
    assert "nothing of person user-ada left" in flywheel(home, "forget", "--person", "user-ada", "--yes")
    flywheel(home, "reroute", "--iteration", "0001")
    assert Warehouse(home).read("routes").num_rows == len(routes), "routed again, it stays out"
    assert files_with(tmp_path, of_ada) == []
    flywheel(home, "verify")


def test_one_episode_goes_and_its_person_stays(home: Home) -> None:
    ada = episode_of(home, ADA)
    said = flywheel(home, "forget", "--episode", ada[:-2], "--yes")
    assert "on the annotation server: 1 run" in said
    assert files_with(home.root, (f"prompt: {SAID[ADA]}", seen_by(ADA))) == []
    assert "ada.lovelace" in flywheel(home, "annotate", "users", "list")
    with pytest.raises(UnknownId, match="no episode 'episode-none'"):
        flywheel(home, "forget", "--episode", "episode-none")


@pytest.mark.slow
def test_lines_about_an_episode_go_after_a_kill_and_an_export_that_cannot_be_written_stops_nothing(home: Home, tmp_path: Path) -> None:
    ada, bob = episode_of(home, ADA), episode_of(home, BOB)
    said = [json.dumps({"episode_id": id_, "reasons": [SAID[name]]}) + "\n" for name, id_ in ((ADA, ada), (BOB, bob))]
    notes, judge = home.work / "0001" / "rollouts" / "episodes" / "notes.jsonl", home.work / "0001" / "judgements" / "llm-1.jsonl"
    judge.parent.mkdir(parents=True)
    for path in (notes, judge):
        path.write_text("".join(said) + said[0][:-9])
    for place in ("used_otherwise", "chats"):
        flywheel(home, "export", str(tmp_path / place), "--format", "trl", "--dataset", "sft")
    (tmp_path / "used_otherwise" / "manifest.json").unlink()
    output = flywheel(home, "forget", "--episode", ada, "--yes")
    assert f"export: {tmp_path / 'used_otherwise'} could not be written again and still holds it: erase it by hand" in output
    (receipt,) = (home.root / "forgotten").glob("*.json")
    assert json.loads(receipt.read_text())["still_held"] == [str(tmp_path / "used_otherwise")]
    assert files_with(tmp_path / "chats", (SAID[ADA],)) == [], "the others are written again"
    assert [path.read_text() for path in (notes, judge)] == [json.dumps(json.loads(said[1]), separators=(",", ":")) + "\n"] * 2
    assert files_with(home.work, (SAID[ADA], seen_by(ADA))) == [] and files_with(home.work, (seen_by(BOB),))


@pytest.mark.slow
def test_an_import_goes_with_its_pictures_and_what_was_kept_aside(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    images(tmp_path / "shots", 4)
    kept, gone = (
        write_lines(tmp_path / f"{name}.jsonl", [agentnet(f"{name} zebra", ["pyautogui.click(x=0.2, y=0.5)"] * 2, first=first)])
        for name, first in (("kept", 0), ("gone", 2))
    )
    for path in (kept, gone):
        words = ("import", "demonstrations", "agentnet", str(path), "--track", "expert", "--images", str(tmp_path / "shots"))
        flywheel(home, *words)
    chats = [{"messages": [{"role": "user", "content": "gone walrus?"}, {"role": "assistant", "content": "gone walrus!"}]}]
    flywheel(home, "import", "general", str(write_lines(tmp_path / "walrus.jsonl", [*chats, {"messages": "gone walrus, malformed"}])))
    wanted = ("gone zebra", "gone_zebra", "gone-zebra", picture(3), "gone walrus")
    assert {found.split(": ")[1] for found in files_with(home.root, wanted)} >= {"b'gone zebra'", "b'gone walrus'"}
    flywheel(home, "forget", "--import", "gone", "--yes")
    flywheel(home, "forget", "--import", "general_walrus", "--yes")
    assert files_with(home.root, wanted) == []
    assert files_with(home.root, ("kept zebra",)) and files_with(home.root, (picture(1),))
    assert Warehouse(home).read("sft_samples", stage="imported_kept").num_rows == 2
    assert "nothing of import imported_gone left" in flywheel(home, "forget", "--import", "imported_gone", "--yes")
    left = home.root / "imports" / "gone"
    left.mkdir()
    (left / "rejected.jsonl").write_text("gone zebra")
    flywheel(home, "forget", "--import", "gone", "--yes")
    assert not left.exists(), "no row is left, and the folder that is goes"
    with pytest.raises(UnknownId, match="there are: imported_gone, imported_kept"):
        flywheel(home, "forget", "--import", "other")


def test_it_refuses_while_somebody_works_and_what_it_cannot_know(home: Home) -> None:
    for path in (lock_path(home), driver_path(home)):
        with FileLock(path), pytest.raises(IterationLocked, match=f"process {os.getpid()} is running an iteration"):
            flywheel(home, "forget", "--person", ADA, "--yes")
    for words, error, match in (
        ((), ConfigError, "one thing at a time"),
        (("--person", ADA, "--import", "x"), ConfigError, "2 were given"),
        (("--person", "nobody"), UnknownSubject, "no account called 'nobody'"),
        (("--person", "root", "--yes"), NotNow, "only account that may administer"),
        (("--person", ADA, "--json"), ConfigError, "--dry-run"),
    ):
        with pytest.raises(error, match=match):
            flywheel(home, "forget", *words)
    assert "Aborted" in flywheel(home, "forget", "--person", ADA), "nobody said yes"
    assert files_with(home.root, (SAID[ADA],)) and not (home.root / "forgotten").exists()


def test_what_was_withdrawn_before_is_forgotten_too(home: Home) -> None:
    ada = episode_of(home, ADA)
    warehouse = Warehouse(home)
    samples = [row["sample_id"] for row in warehouse.read("sft_samples").to_pylist() if row["episode_id"] == ada]
    listed = json.loads(flywheel(home, "forget", "--person", ADA, "--dry-run", "--json"))
    for table, ids in listed["rows"].items():
        if ids:
            withdraw(warehouse, table, ids, iteration="0002")
    listed = json.loads(flywheel(home, "forget", "--person", ADA, "--dry-run", "--json"))
    assert listed["withdrawn"] == {} and listed["held"]["sft_samples"] == len(samples) > 0


@pytest.mark.slow
def test_what_came_while_the_plan_was_read_goes_too_and_another_person_is_not_taken_for_this_one(home: Home) -> None:
    warehouse = Warehouse(home)
    plan = find(warehouse, subject_of(warehouse, person=ADA, episode=None, import_=None))
    before = replace(plan, descent=replace(plan.descent, episodes=()), given=replace(plan.given, runs=()))
    now, begun = begin(warehouse, before)
    assert (begun.episodes, begun.runs) == (plan.descent.episodes, plan.given.runs) and begun.runs == now.given.runs
    assert re.search(f"{ADA}.*barred since", flywheel(home, "annotate", "users", "list")), "nothing more comes of them"
    assert begun.is_of_person(ADA) and begun.is_of_person(f" {ADA.upper()}") and begun.is_of_person("user-ada")
    with pytest.raises(UnknownSubject, match="no account called 'ada'"):
        flywheel(home, "forget", "--person", "ada", "--yes")
    assert files_with(home.root, (SAID[ADA], ADA)) == [], "what had been begun is finished"


@pytest.mark.slow
def test_an_rl_run_that_learned_from_an_episode_starts_over_and_others_do_not(home: Home) -> None:
    ada, bob = episode_of(home, ADA), episode_of(home, BOB)
    played = list(EpisodeLog(home.work / "0001" / "rollouts" / "episodes").episodes())
    runs = {name: home.checkpoints / "rl_model" / name for name in ("of_ada", "of_bob", "not_learned")}
    for (name, folder), batch in zip(runs.items(), ([ada, bob], [bob], None), strict=True):
        log = RolloutLog(folder / "episodes")
        for episode in played:
            log.append(episode)
        if batch is not None:
            log.take(1, batch)
        (folder / "state" / name).mkdir(parents=True)
    (runs["of_bob"] / "launch").mkdir()
    (runs["of_bob"] / "launch" / "batch.jsonl").write_text(played[0].model_dump_json())
    said = flywheel(home, "forget", "--episode", ada, "--yes")
    assert "state of RL" in said
    assert [(folder / "state").exists() for folder in runs.values()] == [False, True, True]
    assert [line.episode_ids for line in RolloutLog(runs["of_ada"] / "episodes").lines(BATCHES_FILE, BatchLine)] == [(bob,)]
    assert files_with(home.checkpoints, (SAID[ADA], seen_by(ADA))) == []


def test_a_picture_that_another_run_names_only_in_what_was_asked_stays(home: Home) -> None:
    database, blobs = open_database(default_url(home)), Blobs.of_home(home)
    with closing(database), database.write() as session:
        of_ada, of_bob = (session.scalars(select(RunStep).join(Run).where(Run.user_id == IDS[name])).first() for name in (ADA, BOB))
        assert of_ada is not None and of_bob is not None and of_ada.screenshot_id is not None
        of_bob.messages = [*of_bob.messages, {"role": "user", "content": "before", "screenshot_id": of_ada.screenshot_id, "loss": 0.0}]
        session.flush()
        forgetting.erase_runs(session, blobs, [of_ada.run_id], now_s=0.0)
        assert blobs.has(of_ada.screenshot_id)


KILLED = """
import os, signal, sys
from pipelines.cli.app import app
from warehouse.storage.tables import Warehouse
from annotation.storage import forgetting
left = [int(sys.argv[1])]

def counting(function):
    def call(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

Warehouse.maintaining = counting(Warehouse.maintaining)
for name in ("erase_runs", "erase_account", "compact"):
    setattr(forgetting, name, counting(getattr(forgetting, name)))
app(sys.argv[2:])
"""


@pytest.mark.slow
def test_what_was_killed_goes_on(home: Home) -> None:
    """Killed before ever later steps: tombstones, marks, the database, the tables."""
    environment = {**os.environ, "FLYWHEEL_HOME": str(home.root), "PYTHONPATH": str(ROOT)}
    words = ["forget", "--person", ADA, "--yes"]
    for num_steps in (1, 4, 6):
        ran = subprocess.run([sys.executable, "-c", KILLED, str(num_steps), *words], env=environment, capture_output=True, text=True)
        assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr
        assert list((home.root / "forgotten").glob("*.unfinished.json"))
    said = flywheel(home, *words)
    assert "going on with person user-ada" in said and "forgotten: person user-ada" in said
    assert files_with(home.root, (SAID[ADA], seen_by(ADA), ADA)) == []
    assert [path.suffixes for path in (home.root / "forgotten").iterdir()] == [[".json"]]
    assert json.loads(flywheel(home, "release", "list", "--json"))["releases"][0]["tainted"]


@pytest.mark.slow
def test_an_agents_episode_leaves_the_gateways_log_and_the_others_stay(tmp_path: Path) -> None:
    home, writer = Home(tmp_path), Writer(tmp_path)
    shots = {name: png(8, 4, name) for name in ("red", "blue")}
    ids = {name: bytes_id("screenshot", shot) for name, shot in shots.items()}
    writer.log.keep_screenshots({ids[name]: shot for name, shot in shots.items()})
    for name, shot in ids.items():
        asked = Said(role="user", pieces=(f"Find the {name} aardvark", Shown(screenshot_id=shot)))
        first = writer.call(name, asked, answer=Said(role="assistant", pieces=(f"I see {name}.",)))
        writer.call(name, Said(role="system", pieces=("You help.",)), answer=Said(role="assistant", pieces=(f"{name} helped.",)))
        writer.outcome(first, 1)
    take_in(tmp_path, FIRST)
    rows = Warehouse(home).read("episodes").to_pylist()
    red = next(row["episode_id"] for row in rows if "red" in (row["instruction"] or ""))
    with closing(GatewayLog(home)), pytest.raises(NotNow, match="end the gateway, and give the command again"):
        flywheel(home, "forget", "--episode", red, "--yes")
    assert "log of the gateway" in flywheel(home, "forget", "--episode", red, "--yes")
    assert {call.name for call in read_calls(home)} == {"blue"} and len(list(read_calls(home))) == 2
    assert [path.name for path in (folder_of(home) / "screenshots").iterdir()] == [ids["blue"]]
    assert len(list(read_outcomes(home))) == 1 and files_with(home.root, ("red aardvark", shots["red"])) == []
    assert len(list(finished(home))) == 1
