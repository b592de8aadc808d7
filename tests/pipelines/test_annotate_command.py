"""`flywheel annotate`: accounts and campaigns from the command line, and a whole server as a process, killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import psutil
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from annotation.storage.database import Database, default_url
from annotation.storage.migrating import head, open_database
from annotation.storage.one_server import only_server
from pipelines.annotation_server import address as annotation_address
from pipelines.annotation_server.server import check_host
from pipelines.cli.app import app
from pipelines.orchestration.reported_changes import TAKEN_BACK
from sandbox.server.tokens import TOKEN_VARIABLE
from tests.pipelines.annotation_home import small_home
from tests.pipelines.test_sandbox_servers import local_nodes
from warehouse.core.errors import ConfigError, DatabaseUnusable, UnknownSubject
from warehouse.core.home import Home

PASSWORD = "correct horse battery"


def flywheel(home: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(app, ["annotate", *arguments, "--home", str(home)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_accounts_and_campaigns_from_the_command_line(tmp_path: Path) -> None:
    assert re.fullmatch(
        r"https://a\.example/join#[\w-]{43}\n", flywheel(tmp_path, "invite", "--role", "admin", "--url", "https://a.example/")
    )
    token = flywheel(tmp_path, "users", "program", "scripted").strip()
    assert token.startswith("fla_")
    flywheel(tmp_path, "users", "disable", "scripted")
    assert "program, barred since" in flywheel(tmp_path, "users", "list")
    flywheel(tmp_path, "users", "enable", "scripted")
    flywheel(tmp_path, "users", "role", "scripted", "reviewer")
    assert flywheel(tmp_path, "users") == flywheel(tmp_path, "users", "list") and "reviewer" in flywheel(tmp_path, "users")
    made = flywheel(tmp_path, "campaign", "create", "forms", "--tasks", "miniwob:quickstart", "--member", "scripted")
    assert made.startswith("campaign ") and "once `flywheel annotate serve` runs" in made
    flywheel(tmp_path, "campaign", "pause", "forms")
    assert "paused" in flywheel(tmp_path, "campaign", "list") and "0/100" in flywheel(tmp_path, "campaign", "list")
    flywheel(tmp_path, "campaign", "resume", "forms")
    guidelines = tmp_path / "guidelines.txt"
    guidelines.write_text("Be kind.")
    asked = ("--target", "7", "--double", "0.5", "--priority", "-2", "--everyone", "--guidelines", str(guidelines))
    changed = flywheel(tmp_path, "campaign", "change", "forms", *asked)
    for reported in (
        "target count 100 → 7",
        "double share 0.1 → 0.5",
        "priority 0 → -2",
        "members scripted → everyone",
        "guidelines changed",
    ):
        assert reported in changed, f"{reported}: {changed}"
    assert "is so already" in flywheel(tmp_path, "campaign", "change", "forms", "--target", "7", "--policy", "newest")
    assert "members everyone → scripted" in flywheel(tmp_path, "campaign", "change", "forms", "--member", "scripted")
    flywheel(tmp_path, "campaign", "end", "forms")
    assert "ended" in flywheel(tmp_path, "campaign", "list")
    (reported,) = json.loads(flywheel(tmp_path, "campaign", "list", "--json"))
    assert (reported["name"], reported["state"], reported["members"], reported["progress"]["num_finished"]) == (
        "forms",
        "ended",
        ["scripted"],
        0,
    )
    assert (reported["target_count"], reported["double_share"], reported["priority"], reported["policy"]) == (7, 0.5, -2, "newest")
    assert f"those of version {head()}; before they were those of {head()}" in flywheel(tmp_path, "migrate")


def test_lists_can_be_read_at_80_columns(tmp_path: Path) -> None:
    flywheel(tmp_path, "users", "program", "a-scripted-annotator")
    for name in ("Files and forms, November", "x"):
        selected = ("--tasks", "miniwob:quickstart", "--tasks", "hybrid/type-word", "--member", "a-scripted-annotator")
        flywheel(tmp_path, "campaign", "create", name, *selected, "--target", "12345")
    reported = flywheel(tmp_path, "campaign", "list")
    assert max(map(len, reported.splitlines())) <= 80
    for whole in ("November", "active", "0/12345", "at work", "miniwob:quickstart", "hybrid/type-word", "a-scripted-annotator"):
        assert whole in reported, f"{whole} is broken in two:\n{reported}"


def test_commands_print_the_address_of_the_server_that_lives(tmp_path: Path) -> None:
    home, file = Home(tmp_path), tmp_path / "annotation" / "server.json"
    database = Database(default_url(home))
    usual = "http://127.0.0.1:8441/join#"
    without = CliRunner().invoke(app, ["annotate", "invite", "--home", str(tmp_path)])
    assert without.stdout.startswith(usual) and "no annotation server runs" in without.stderr
    with annotation_address.announced(home, "http://127.0.0.1:5000", None, database.name) as said:
        assert flywheel(tmp_path, "invite").startswith("http://127.0.0.1:5000/join#")
        assert "http://127.0.0.1:5000" in flywheel(tmp_path, "campaign", "create", "forms", "--tasks", "miniwob:quickstart")
        assert "http://127.0.0.1:5000/campaigns" in flywheel(tmp_path, "campaign", "list")
        assert flywheel(tmp_path, "invite", "--url", "https://a.example").startswith("https://a.example/join#")
        other = f"sqlite:///{tmp_path}/other.db"
        assert usual in flywheel(tmp_path, "invite", "--database", other), "the server of another database"
        elsewhere = said.model_copy(update={"pid": 2**22 + 1})
        file.write_text(elsewhere.model_dump_json())
        assert annotation_address.living(home) == elsewhere, "in another container its process cannot be seen, its lock can"
        for gone in ({"pid": 2**22 + 1}, {"started_at_s": said.started_at_s - 60}):
            without_lock = said.model_copy(update=gone).model_dump(mode="json", exclude={"is_locked"})
            file.write_text(json.dumps(without_lock))
            assert annotation_address.living(home) is None, f"what a killed server without a lock left: {gone}"
        file.write_text("{half a wor")
        assert annotation_address.living(home) is None
    assert file.exists(), "what another wrote there stays"
    file.write_text(said.model_dump_json())
    assert annotation_address.living(home) is None, "the process lives, and its lock is let go"
    with annotation_address.announced(home, "http://127.0.0.1:5000", "https://people.example", database.name):
        assert flywheel(tmp_path, "invite").startswith("https://people.example/join#")
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "reported"),
    [
        (["serve", "--host", "0.0.0.0"], ConfigError, "--allow-remote"),
        (["users", "disable", "nobody"], UnknownSubject, "users list"),
        (["invite", "--role", "god"], ConfigError, "there are annotator, reviewer, admin"),
        (["campaign", "create", "x", "--tasks", "nowhere"], ConfigError, "nowhere"),
        (["campaign", "create", "x", "--tasks", "miniwob", "--target", "0"], ConfigError, "target_count"),
        (["runs", "--status", "lost"], ConfigError, "counts, waiting, rejected, withdrawn"),
        (["runs", "--user", "nobody"], UnknownSubject, "users list"),
        (["runs", "--campaign", "none"], UnknownSubject, "campaign list"),
        (["campaign", "pause", "none"], UnknownSubject, "campaign list"),
        (["campaign", "change", "none", "--target", "2"], UnknownSubject, "campaign list"),
        (["campaign", "change", "none"], ConfigError, "--policy"),
        (["campaign", "change", "none", "--member", "x", "--everyone"], ConfigError, "--everyone"),
        (["campaign", "change", "none", "--double", "1.5"], ConfigError, "double_share"),
        (["recordings", "--state", "lost"], ConfigError, "uploading, pending, approved, rejected, withdrawn"),
        (["recordings", "--user", "nobody"], UnknownSubject, "users list"),
        (["migrate", "--database", "mysql://host/name"], ConfigError, "postgresql"),
        (["users", "list", "--database", "postgresql://u:secret@127.0.0.1:1/x"], DatabaseUnusable, "127.0.0.1"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: list[str], kind: type[Exception], reported: str) -> None:
    error = CliRunner().invoke(app, ["annotate", *arguments, "--home", str(tmp_path)]).exception
    assert isinstance(error, kind) and reported in str(error) and "secret" not in str(error)


def test_other_machines_only_when_asked_for() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, allow_remote=False)
    check_host("0.0.0.0", allow_remote=True)
    with pytest.raises(ConfigError, match="not encrypted"):
        check_host("192.0.2.1", allow_remote=False)


def test_one_server_a_database(tmp_path: Path) -> None:
    database = open_database(default_url(Home(tmp_path)))
    with only_server(database), pytest.raises(ConfigError, match="another annotation server"), only_server(database):
        raise AssertionError
    with only_server(database):
        pass
    database.close()


@contextmanager
def server(home: Path, *options: str, sessions: int = 1) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address, and all it said until it was ready."""
    command = [sys.executable, "-m", "pipelines.cli", "annotate", "serve", "--port", "0", "--sessions", str(sessions), "--workers", "1"]
    place, environment = Path(__file__).parents[2], {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        [*command, "--home", str(home), *options], stdout=subprocess.PIPE, text=True, cwd=place, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline() + process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert address is not None, said
            if not (home / "joined").exists():
                said += process.stdout.readline()
            yield process, address[0], said
        finally:
            process.kill()


def until(client: httpx.Client, run_id: str, phase: str) -> dict[str, Any]:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        state: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}").json()
        if state.get("phase") == phase:
            return state
        time.sleep(0.1)
    raise AssertionError(f"the run is {state}")


def override(client: httpx.Client, state: dict[str, Any], name: str) -> None:
    """Click the element of that name."""
    box = next(box for box in state["screen"]["elements"] if box["name"] == name)
    body = {"version": state["version"], "decision": "override", "thought": f"the button {name}", "action": f"click [{box['index']}]"}
    answer = client.post(f"/api/v1/runs/{state['run_id']}/decide", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_session_runs_on_the_sandbox_server_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers as processes of their own; the page's screens and the verdict come from the other one."""
    monkeypatch.setenv(TOKEN_VARIABLE, "token-of-the-sandbox-server-0123456789")
    home, profile = tmp_path / "home", tmp_path / "mine.yaml"
    small_home(home)
    with local_nodes(tmp_path, 1) as (node,):
        profile.write_text(f"extends: smoke\nsandbox: {{servers: [{node}]}}\n")
        with server(home, "--profile", str(profile)) as (process, address, said), httpx.Client(base_url=address, timeout=60) as client:
            link = re.search(r"/join#([\w-]{43})", said)
            assert link is not None, said
            joined = client.post("/api/v1/join", json={"token": link[1], "name": "ada", "password": PASSWORD})
            client.headers["X-CSRF-Token"] = joined.json()["csrf_token"]
            made = client.post("/api/v1/campaigns", json={"name": "buttons", "tasks": ["miniwob/click-button-sequence"], "double_share": 0})
            assert made.status_code == 201, made.text
            given = client.post("/api/v1/work/next", json={}).json()
            state = until(client, given["run_id"], "deciding")
            assert [session["task"]["name"] for session in sessions_of(node)] == ["click-button-sequence"]
            own = [child.name() for child in psutil.Process(process.pid).children(recursive=True)]
            assert not [name for name in own if "chrom" in name.lower()], "no browser here"
            shown = client.get(f"/api/v1/runs/{given['run_id']}/screens/{state['screen']['screenshot_id']}")
            assert shown.content.startswith(b"\x89PNG")
            for name, phase in (("ONE", "deciding"), ("TWO", "ended")):
                override(client, state, name)
                state = until(client, given["run_id"], phase)
            assert state["verifier"] is True
            done = client.post(f"/api/v1/runs/{given['run_id']}/finish", json={"version": state["version"], "is_success": True})
            assert done.json()["phase"] == "finished"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert sessions_of(node) == [], "they were given back"


def sessions_of(node: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {os.environ[TOKEN_VARIABLE]}"}
    found: list[dict[str, Any]] = httpx.get(f"{node}/v1/sessions", headers=headers, trust_env=False).raise_for_status().json()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_goes_on_where_people_were(tmp_path: Path) -> None:
    small_home(tmp_path)
    with server(tmp_path) as (process, address, said):
        link = re.search(r"/join#([\w-]{43})", said)
        assert link is not None, said
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            joined = client.post("/api/v1/join", json={"token": link[1], "name": "ada", "password": PASSWORD})
            assert joined.json()["role"] == "admin"
            (tmp_path / "joined").touch()
            client.headers["X-CSRF-Token"] = joined.json()["csrf_token"]
            made = client.post("/api/v1/campaigns", json={"name": "buttons", "tasks": ["miniwob/click-button-sequence"], "double_share": 0})
            assert made.status_code == 201, made.text
            given = client.post("/api/v1/work/next", json={}).json()
            state = until(client, given["run_id"], "deciding")
            assert state["proposals"], "the released policy proposes"
            one = next(box for box in state["screen"]["elements"] if box["name"] == "ONE")
            body = {"version": state["version"], "decision": "override", "thought": "the first", "action": f"click [{one['index']}]"}
            answer = client.post(f"/api/v1/runs/{given['run_id']}/decide", json=body)
            assert answer.status_code == 200, answer.text
            before = until(client, given["run_id"], "deciding")
            assert len(before["history"]) == 1
            draft = {"step_index": 1, "number": 7, "thought": "now the sec", "action": ""}
            assert client.put(f"/api/v1/runs/{given['run_id']}/draft", json=draft).status_code == 200
        assert flywheel(tmp_path, "invite").startswith(f"{address}/join#"), "it says in the home where it is"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert flywheel(tmp_path, "invite").startswith("no annotation server runs"), "what it said died with it"
    with server(tmp_path) as (process, address, said):
        assert "/join#" not in said
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            opened = client.post("/api/v1/login", json={"name": "ada", "password": PASSWORD})
            client.headers["X-CSRF-Token"] = opened.json()["csrf_token"]
            again = client.post("/api/v1/work/next", json={}).json()
            assert (again["run_id"], again["assignment_id"]) == (given["run_id"], given["assignment_id"])
            after = until(client, given["run_id"], "deciding")
            assert after["history"] == before["history"] and after["draft"]["thought"] == "now the sec"
            assert after["screen"]["screenshot_id"] == before["screen"]["screenshot_id"], "the same screen, done again"
            two = next(box for box in after["screen"]["elements"] if box["name"] == "TWO")
            body = {"version": after["version"], "decision": "override", "thought": "the second", "action": f"click [{two['index']}]"}
            client.post(f"/api/v1/runs/{given['run_id']}/decide", json=body)
            ended = until(client, given["run_id"], "ended")
            assert ended["verifier"] is True
            done = client.post(f"/api/v1/runs/{given['run_id']}/finish", json={"version": ended["version"], "is_success": True})
            assert done.json()["phase"] == "finished"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not (tmp_path / "annotation" / "server.json").exists()
        assert process.stdout is not None and "everybody's work is kept" in process.stdout.read()


@pytest.mark.slow
def test_what_somebody_gave_is_taken_back(place: Any) -> None:
    from annotation.storage import accounts, audit, run_endings
    from annotation.storage.schema import Assignment, Campaign, Change, Run

    home = place.home.root
    place.open("0001")
    database = open_database(default_url(place.home))
    with database.write() as session:
        ada, bob = (accounts.add_user(session, name, "annotator", None, now_s=0.0).user_id for name in ("ada", "bob"))
        session.add(
            Campaign(
                campaign_id="c",
                name="c",
                guidelines="",
                mode="intervene",
                tasks=[],
                policy="newest",
                num_candidates=1,
                temperature=1.0,
                target_count=9,
                double_share=0.0,
                lease_s=60.0,
                state="active",
                created_at_s=0.0,
            )
        )
        session.flush()
        for number, user_id in enumerate((ada, ada, bob)):
            session.add(
                Assignment(
                    assignment_id=f"a{number}",
                    campaign_id="c",
                    task_id="t",
                    task_name="t",
                    domain="d",
                    task={},
                    seed=number,
                    copy=0,
                    priority=1.0,
                    state="leased",
                    user_id=user_id,
                    lease_number=1,
                    lease_until_s=1e12,
                    changed_at_s=0.0,
                )
            )
            session.flush()
            session.add(
                Run(
                    run_id=f"r{number}",
                    assignment_id=f"a{number}",
                    lease_number=1,
                    user_id=user_id,
                    policy_id="p",
                    grammar="compact",
                    state="live",
                    started_at_s=0.0,
                    num_backs=0,
                    review_state="none",
                )
            )
            session.flush()
            run_endings.finish(session, f"r{number}", is_success=True, note="", now_s=1.0)
    with pytest.raises(ConfigError, match="--of NAME"):
        flywheel(home, "withdraw")
    with pytest.raises(UnknownSubject):
        flywheel(home, "withdraw", "r2", "nothing")
    assert [run["run_id"] for run in json.loads(flywheel(home, "runs", "--json"))["runs"]] == ["r0", "r1", "r2"]
    assert "nothing" not in flywheel(home, "runs") and "3 finished runs" in flywheel(home, "runs", "--campaign", "c")
    assert "2 of 3 finished runs" in flywheel(home, "runs", "--limit", "2")
    assert "withdrawn: 1" in flywheel(home, "withdraw", "r0")
    assert "withdrawn: 1" in flywheel(home, "withdraw", "r0", "--of", "ada", "--erase", "--reason", "asked to")
    found = json.loads(flywheel(home, "runs", "--status", "withdrawn", "--user", "ada", "--json"))
    assert (found["num"], {run["status"] for run in found["runs"]}) == (2, {"withdrawn"})
    assert "no finished run is like that" in flywheel(home, "runs", "--status", "rejected")
    with database.read() as session:
        changes = [(one.kind, one.subject_id) for one in session.scalars(select(Change).order_by(Change.change_id))]
        assert changes == [("run", "r0"), ("run", "r1"), ("run", "r2"), ("withdrawal", "r0"), ("withdrawal", "r1")]
        assert [(one.action, one.subject) for one in audit.entries(session)] == [("run.withdrawn", "r1"), ("run.withdrawn", "r0")]
    database.close()
    reported = [
        record.event_log_entry.asset_observation for record in place.instance.fetch_observations(dg.AssetKey("withdrawals"), 9).records
    ]
    assert [(one.partition, one.metadata[TAKEN_BACK].value) for one in reported] == [("0001", 1), ("0001", 1)], "Dagster shows what comes"


def test_recordings_are_listed_by_their_ids(tmp_path: Path) -> None:
    from annotation.storage import accounts
    from annotation.storage.schema import Recording

    assert "no recording yet" in flywheel(tmp_path, "recordings")
    database = open_database(default_url(Home(tmp_path)))
    with database.write() as session:
        ada, bob = (accounts.add_user(session, name, "annotator", None, now_s=0.0).user_id for name in ("ada", "bob"))
        for number, (user_id, state) in enumerate([(ada, "pending"), (ada, "withdrawn"), (bob, "uploading")]):
            is_complete = state != "uploading"
            summary = {"query": f"Write [letter] {number}", "applications": ["Mousepad"], "num_actions": 12, "length_s": 90.0}
            session.add(
                Recording(
                    recording_id=f"recording-{number:016x}",
                    user_id=user_id,
                    digest="0" * 64,
                    parts=[],
                    state=state,
                    summary=summary if is_complete else {},
                    track="expert" if is_complete else None,
                    created_at_s=1_790_000_000.0 + number,
                )
            )
    database.close()
    reported = flywheel(tmp_path, "recordings")
    assert max(map(len, reported.splitlines())) <= 80 and "3 recordings" in reported
    for whole in ("recording-0000000000000000", "Write [letter] 1", "withdrawn", "uploading", "1.5"):
        assert whole in reported, f"{whole}: {reported}"
    assert "1 of 3 recordings" in flywheel(tmp_path, "recordings", "--limit", "1")
    found = json.loads(flywheel(tmp_path, "recordings", "--user", "ada", "--state", "withdrawn", "--json"))
    assert found["num"] == 1 and found["recordings"][0]["recording_id"] == "recording-0000000000000001"
    assert "no recording is like that" in flywheel(tmp_path, "recordings", "--state", "rejected")
