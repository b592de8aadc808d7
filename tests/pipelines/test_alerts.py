"""Alerts by real HTTP and SMTP servers on loopback: what is sent for, that nothing is lost while one is down, nor sent twice."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest
from typer.testing import CliRunner

from assets.stages.asset_keys import ITERATION_OUTPUT
from assets.stages.resources import WarehouseResource
from pipelines import profiles
from pipelines.cli.app import app
from pipelines.orchestration.alerts.channels import EMAIL_VARIABLE, WEBHOOK_VARIABLE, Alert, Webhook, channels, deliver, post
from pipelines.orchestration.alerts.sensors import build_alert_sensors
from tests.pipelines.test_failures import fail
from warehouse.core.errors import ConfigError
from warehouse.lineage import releases

POLICY = {"path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}


@contextmanager
def webhook(port: int = 0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that keeps what it is sent."""
    got: list[dict[str, Any]] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", port), Keeper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", got
        server.shutdown()


@contextmanager
def smtp() -> Iterator[tuple[str, list[str]]]:
    """As much of RFC 5321 as smtplib speaks."""
    got: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.split()[0].upper() if line.split() else b""
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines: list[bytes] = []
                    while (part := self.rfile.readline()) != b".\r\n":
                        lines.append(part)
                    got.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                if word == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"smtp://127.0.0.1:{server.server_address[1]}?from=flywheel@example.org&to=a@example.org&to=b@example.org", got
        server.shutdown()


def evaluation(iteration_successes: int) -> dict[str, Any]:
    return {
        "checkpoint_id": "checkpoint-a",
        "checkpoint_role": "merged_policy",
        "task_id": "task-a",
        "task_name": "a",
        "domain": "pointing",
        "split": "eval",
        "num_episodes": 10,
        "num_success": iteration_successes,
        "num_crashed": 0,
    }


def sensors(place: Any, **settings: Any) -> Any:
    """The periodic sensor, and the one of failed runs, each as a call."""
    failed, periodic = build_alert_sensors(profiles.load("smoke", settings))
    assert (failed.name, periodic.name) == ("alert_failed_runs", "alerts")

    def look() -> str:
        context = dg.build_sensor_context(instance=place.instance, resources={"tables": WarehouseResource(root=str(place.home.root))})
        return str(periodic(context).skip_message)

    def see(run: dg.DagsterRun) -> None:
        (record,) = place.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
        event = record.event_log_entry.dagster_event
        failed(
            dg.build_run_status_sensor_context(
                sensor_name=failed.name, dagster_event=event, dagster_instance=place.instance, dagster_run=run
            ).for_run_failure()
        )

    return look, see


def test_a_failed_run_is_sent_once_by_every_channel(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_DAGSTER_URL", "http://127.0.0.1:3000")
    run, _ = fail(place, ConfigError("no such curriculum"))
    with webhook() as (url, got), smtp() as (address, mails):
        monkeypatch.setenv(WEBHOOK_VARIABLE, url)
        monkeypatch.setenv(EMAIL_VARIABLE, address)
        look, see = sensors(place)
        see(run)
        see(run)
        assert look() == "2 sent"
        assert look() == "0 sent"
    (reported,) = got
    assert reported["kind"] == "run_failed" and reported["url"] == f"http://127.0.0.1:3000/runs/{run.run_id}"
    assert "failed: failing: ConfigError: no such curriculum" in reported["text"]
    (mail,) = mails
    assert "Subject: flywheel: run failed" in mail and "To: a@example.org, b@example.org" in mail and run.run_id in mail


def test_what_a_channel_that_is_down_lacks_is_sent_when_it_is_up(place: Any) -> None:
    post(place.home, Alert(kind="late", about="1", text="nothing has closed", url="u"))
    with webhook() as (url, _):
        port = int(url.split(":")[2].split("/")[0])
    num_sent, problems = deliver(place.home, [Webhook(url)])
    assert num_sent == 0 and problems[0].startswith("webhook: ConnectError")
    with webhook(port) as (url, got):
        assert deliver(place.home, [Webhook(url)]) == (1, [])
        post(place.home, Alert(kind="late", about="1", text="nothing has closed", url="u"))
        assert deliver(place.home, [Webhook(url)]) == (0, []), "the same is not posted again"
    assert [reported["about"] for reported in got] == ["1"]


def test_a_damaged_file_is_reported_once_and_holds_up_no_other(place: Any) -> None:
    post(place.home, Alert(kind="failed run", about="run-a", text="whole", url=""))
    (place.home.root / "alerts" / "torn.json").write_bytes(b'{"kind": "failed ru')
    with webhook() as (url, received):
        num_sent, problems = deliver(place.home, [Webhook(url)])
        assert num_sent == len(received) == len(problems) == 1 and "torn.damaged" in problems[0]
        assert deliver(place.home, [Webhook(url)]) == (0, [])


def test_a_regression_a_held_release_and_a_late_schedule_are_sent(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = place.warehouse
    for key, solved in (("0001", 9), ("0002", 5)):
        place.open(key)
        warehouse.replace_partition("evaluations", [evaluation(solved)], iteration=key, stage="evaluation")
        place.close(key)
    warehouse.replace_partition("checkpoints", [{**POLICY, "checkpoint_id": "checkpoint-a"}], iteration="0002", stage="merged_policy")
    monkeypatch.setattr(releases, "_finished", lambda tables, ref: releases.registry.named(tables, ref))  # its weights are not the matter
    releases.hold(warehouse, "0002/merged_policy", by="Ada", reason="to be looked at")
    with webhook() as (url, got):
        monkeypatch.setenv(WEBHOOK_VARIABLE, url)
        look, _ = sensors(place, **{"schedule.late_after_h": 48})
        assert look() == "2 sent"
        look, _ = sensors(place, **{"schedule.late_after_h": 1e-9})
        assert place.instance.get_latest_materialization_event(ITERATION_OUTPUT) is not None
        assert look() == "1 sent"
    texts = {reported["kind"]: reported["text"] for reported in got}
    assert "merged policy of iteration 0002 solves 0.500 of eval, the one before 0.900" in texts["regression"]
    assert "0002/merged_policy is held: to be looked at" in texts["release_held"]
    assert "no iteration has closed for 0 hours" in texts["late"]


def test_alerts_are_off_until_a_channel_is_configured_and_then_on(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (WEBHOOK_VARIABLE, EMAIL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    look, _ = sensors(place)
    assert "no channel is configured: set FLYWHEEL_ALERT_WEBHOOK" in look()
    monkeypatch.setenv(WEBHOOK_VARIABLE, "http://127.0.0.1:1")
    assert {sensor.default_status for sensor in build_alert_sensors(profiles.load("smoke"))} == {dg.DefaultSensorStatus.RUNNING}


@pytest.mark.parametrize(
    ("variable", "address"),
    [
        (WEBHOOK_VARIABLE, "ftp://secret@host"),
        (EMAIL_VARIABLE, "smtp://secret@host"),
        (EMAIL_VARIABLE, "imap://secret@host?from=a@b&to=c@d"),
    ],
)
def test_an_address_that_is_none_is_refused_and_its_secret_is_not_shown(variable: str, address: str) -> None:
    with pytest.raises(ConfigError, match=variable) as refused:
        channels({variable: address})
    assert "secret" not in str(refused.value)


def test_a_word_is_sent_by_hand_to_see_that_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EMAIL_VARIABLE, raising=False)
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    refused = CliRunner().invoke(app, ["alert"])
    assert isinstance(refused.exception, ConfigError) and WEBHOOK_VARIABLE in str(refused.exception)
    with webhook() as (url, got):
        monkeypatch.setenv(WEBHOOK_VARIABLE, url)
        said = CliRunner().invoke(app, ["alert", "a word"])
        assert (said.exit_code, said.output.strip()) == (0, "webhook: sent")
        assert [(one["text"], one["kind"]) for one in got] == [("a word", "test")]
    said = CliRunner().invoke(app, ["alert"])
    assert said.exit_code == 1 and "webhook: ConnectError" in said.output
