"""The services of deploy/compose.yaml, started by its very commands on loopback, each as its own user on a read-only root (deployment.py),
with a real Postgres under Dagster, Prefect and annotation at once. What is healthy is what the file's health checks call so.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from benchmarks.common import postgres
from pipelines.orchestration.runs.iteration_lock import lock_path
from tests.deploy.deployment import FOLDER, ROOT, Place, compose
from warehouse.core.home import Home
from warehouse.core.locks import FileLock

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(600)]

SECRETS = {
    "POSTGRES_PASSWORD": "of-the-superuser",
    "DAGSTER_DB_PASSWORD": "of-dagster-3f9",
    "PREFECT_DB_PASSWORD": "of-prefect-7c1",
    "ANNOTATION_DB_PASSWORD": "of-annotation-a08",
    "SANDBOX_TOKEN": "token-of-the-sandbox-5e2d",
}
PORTS = ("POSTGRES_PORT", "CODE_LOCATION_PORT", "DAGSTER_PORT", "PREFECT_PORT", "SANDBOX_PORT", "ANNOTATION_PORT")
RUN_S = 120.0
LAUNCH = """mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId status } } ... on PythonError { message } } }"""
LOCATIONS = "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus locationOrLoadError { __typename } } } } }"
STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
LOGS = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
    ... on LogsCapturedEvent { fileKey } } } } }"""
CAPTURED = "query($key: [String!]!) { capturedLogs(logKey: $key) { stdout stderr } }"
ASK_STATUS = """
import sys
from dagster_graphql import DagsterGraphQLClient
from pipelines.orchestration.jobs import internal_url
host, _, port = internal_url().removeprefix("http://").partition(":")
print(host, DagsterGraphQLClient(host, port_number=int(port)).get_run_status(sys.argv[1]).value)
"""
KEEP = """
import asyncio
from hashlib import sha256
from annotation.storage.blobs import PNG, Blobs
from annotation.storage.parts import PartStore
from warehouse.core.home import Home

async def chunks():
    yield b"part"

home = Home.from_env()
Blobs.of_home(home).put(PNG + b"a screen")
parts = PartStore.of_home(home).of("user-ann")
asyncio.run(parts.receive(sha256(b"part").hexdigest(), 4, chunks()))
parts.answers("recording-0123456789abcdef").put("asked", "answered")
"""
ERASE = """
from hashlib import sha256
from annotation.storage.blobs import PNG, Blobs
from annotation.storage.parts import PartStore
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id

home = Home.from_env()
parts, digest = PartStore.of_home(home).of("user-ann"), sha256(b"part").hexdigest()
print(parts.get(digest).decode(), parts.erase([digest]), Blobs.of_home(home).erase([bytes_id("screen", PNG + b"a screen")]))
answers = parts.answers("recording-0123456789abcdef")
assert answers.get("asked") == "answered"
answers.erase()
"""
FLOW = """
import os
from warehouse.core.home import Home
from pipelines.orchestration.services import prefect_server
home = Home.from_env()
with prefect_server.prefect_server(home) as url:
    os.environ.update(prefect_server.client_environment(home, url) | {"PREFECT_HOME": "/tmp"})
    from prefect import flow
    flow(name="deployed")(lambda: None)()
"""


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """What .env would say here. A service takes its port a minute later: it is none that the kernel gives to connections meanwhile."""
    free = (str(port) for port in random.SystemRandom().sample(range(20_000, 30_000), 100) if is_free(port))
    found = dict(zip(PORTS, free, strict=False))
    return SECRETS | found | {"BIND_ADDRESS": "127.0.0.1", "FLYWHEEL_PROFILE": "smoke", "SANDBOX_SESSIONS": "1"}


@pytest.fixture(scope="module")
def database(variables: dict[str, str]) -> Iterator[Path]:
    """The folder with the socket of a Postgres that has run deploy/databases.sh."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    with postgres.a_postgres(is_durable=False, listen="127.0.0.1", port=int(variables["POSTGRES_PORT"])) as folder:
        own = {"POSTGRES_USER": postgres.USER, "PGHOST": str(folder), "PGPORT": variables["POSTGRES_PORT"], "PATH": os.environ["PATH"]}
        made = subprocess.run([str(FOLDER / "databases.sh")], env=SECRETS | own, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        yield folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str], database: Path) -> Iterator[Place]:
    """Every service, started when those that it depends on are healthy."""
    skipped = "only root gives each service a user of its own"
    if os.geteuid() != 0:
        pytest.skip(skipped)
    place = Place(folder=tmp_path_factory.mktemp("deployed"), services=compose(variables)["services"])
    place.prepare()
    if (tried := place.ask("prefect", ["true"])).returncode != 0:
        pytest.skip(f"{skipped}: {tried.stderr.strip()}")
    try:
        place.start_all()
        yield place
    finally:
        place.end()


def asked(variables: dict[str, str], query: str, **given: Any) -> Any:
    url = f"http://127.0.0.1:{variables['DAGSTER_PORT']}/graphql"
    answer = httpx.post(url, json={"query": query, "variables": given}, timeout=30.0).raise_for_status().json()
    assert "errors" not in answer, answer
    return answer["data"]


def rows(database: Path, variables: dict[str, str], name: str, query: str, *given: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(host=str(database), port=variables["POSTGRES_PORT"], user=postgres.USER, dbname=name) as connection:
        return connection.execute(query.encode(), given).fetchall()


def test_a_run_is_queued_executed_and_kept_in_postgres(place: Place, variables: dict[str, str], database: Path) -> None:
    entries = asked(variables, LOCATIONS)["workspaceOrError"]["locationEntries"]
    assert [entry["name"] for entry in entries] == ["flywheel"]
    assert entries[0]["locationOrLoadError"]["__typename"] == "RepositoryLocation", place.log_tail("dagster-webserver")

    selector = {"repositoryLocationName": "flywheel", "repositoryName": "__repository__", "pipelineName": "seed_iteration"}
    params = {"selector": selector | {"assetSelection": [{"path": ["tasks"]}]}, "mode": "default"}
    launched = asked(variables, LAUNCH, params=params)["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id, deadline = launched["run"]["runId"], time.monotonic() + RUN_S
    assert launched["run"]["status"] == "QUEUED"
    while (status := asked(variables, STATUS, id=run_id)["runOrError"]["status"]) not in ("SUCCESS", "FAILURE", "CANCELED"):
        assert time.monotonic() < deadline, (status, place.log_tail("dagster-daemon"), place.log_tail("dagster-code"))
        time.sleep(0.5)
    if status != "SUCCESS":
        events = [
            json.loads(event) for (event,) in rows(database, variables, "dagster", "select event from event_logs where run_id = %s", run_id)
        ]
        pytest.fail(
            "\n".join(str((event.get("dagster_event") or event).get("message")) for event in events) + place.log_tail("dagster-code")
        )

    reached = place.ask("dagster-code", ["python", "-c", ASK_STATUS, run_id])
    assert reached.stdout.split() == ["dagster-webserver", "SUCCESS"], f"as next_iteration reaches the page: {reached.stderr}"

    kinds = {
        kind for (kind,) in rows(database, variables, "dagster", "select dagster_event_type from event_logs where run_id = %s", run_id)
    }
    assert {"PIPELINE_ENQUEUED", "PIPELINE_START", "ASSET_MATERIALIZATION", "PIPELINE_SUCCESS"} <= kinds
    assert not (place.folder / "srv/flywheel/dagster/history").exists(), "nothing of it is kept in SQLite beside"

    key = next(event["fileKey"] for event in asked(variables, LOGS, id=run_id)["logsForRun"]["events"] if event)
    logs = asked(variables, CAPTURED, key=[run_id, "compute_logs", key])["capturedLogs"]
    assert logs["stdout"] is not None or logs["stderr"] is not None, "the webserver reads what runs of another user have printed"


def test_daemons_report_and_see_from_their_container_who_holds_the_home(place: Place, variables: dict[str, str], database: Path) -> None:
    beats = {name for (name,) in rows(database, variables, "dagster", "select daemon_type from daemon_heartbeats")}
    assert {"QUEUED_RUN_COORDINATOR", "SCHEDULER", "SENSOR", "MONITORING"} <= beats
    look = (
        "from warehouse.core.locks import *; from pipelines.orchestration.runs.iteration_lock import *; from warehouse.core.home import *; "
    )
    program = ["python", "-c", f"{look}print(holder_of(lock_path(Home.from_env())))"]
    lock = FileLock(lock_path(Home(place.folder / "srv/flywheel")))
    assert lock.path.exists(), "a run has made it"
    assert lock.acquire(timeout_s=30.0), "the process of the run ends soon after the run"
    try:
        assert place.ask("dagster-daemon", program).stdout.strip() == str(os.getpid())
    finally:
        lock.release()
    assert place.ask("dagster-daemon", program).stdout.strip() == "None"


def test_prefect_keeps_its_flow_runs_in_postgres(place: Place, variables: dict[str, str], database: Path) -> None:
    ran = place.ask("dagster-code", ["python", "-c", FLOW])
    assert ran.returncode == 0, ran.stderr
    query = "select r.state_type::text from flow_run r join flow f on f.id = r.flow_id where f.name = 'deployed'"
    assert rows(database, variables, "prefect", query) == [("COMPLETED",)]
    assert not list((place.folder / "srv/prefect").rglob("*.db")), "nothing of it is kept in SQLite beside"


def test_annotation_keeps_its_tables_in_postgres(place: Place, variables: dict[str, str], database: Path) -> None:
    answer = httpx.get(f"http://127.0.0.1:{variables['ANNOTATION_PORT']}/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    tables = {name for (name,) in rows(database, variables, "annotation", "select tablename from pg_tables where schemaname = 'public'")}
    assert {"users", "campaigns", "assignments"} <= tables
    invited = place.ask("annotation", ["flywheel", "annotate", "invite", "--role", "admin"])
    assert invited.returncode == 0 and "/join#" in invited.stdout, invited.stderr
    living = (
        "from pipelines.annotation_server.address import living; from warehouse.core.home import Home; print(living(Home.from_env()).url)"
    )
    seen = place.ask("dagster-code", ["python", "-c", living])
    assert seen.stdout.strip() == f"http://127.0.0.1:{variables['ANNOTATION_PORT']}", f"from another container: {seen.stderr}"


def test_the_sandbox_answers_whoever_has_its_token(place: Place, variables: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{variables['SANDBOX_PORT']}/health"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"authorization": f"Bearer {SECRETS['SANDBOX_TOKEN']}"}).json()["status"] == "ok"


def test_what_people_gave_is_read_and_erased_by_the_code_location(place: Place) -> None:
    kept, parts = place.ask("annotation", ["python", "-c", KEEP]), "/srv/flywheel/annotation/parts/user-ann"
    assert kept.returncode == 0, kept.stderr
    erased = place.ask("dagster-code", ["python", "-c", ERASE])
    assert (erased.returncode, erased.stdout.split()) == (0, ["part", "1", "1"]), erased.stderr
    assert place.ask("annotation", ["find", parts, "-type", "f"]).stdout == ""


def test_services_cannot_do_what_is_not_theirs(place: Place, variables: dict[str, str]) -> None:
    for name in ("dagster-webserver", "dagster-daemon", "annotation"):
        assert place.ask(name, ["touch", "/srv/flywheel/tables/x"]).returncode != 0, name
    for name in ("dagster-webserver", "dagster-daemon"):
        assert place.ask(name, ["touch", "/srv/flywheel/annotation/x"]).returncode != 0, name
    assert place.ask("prefect", ["touch", str(ROOT / "x")]).returncode != 0, "the root is read-only"
    assert "flywheel" not in place.ask("sandbox", ["ls", "/srv"]).stdout.split()
    address = f"postgresql://dagster:{SECRETS['DAGSTER_DB_PASSWORD']}@postgres:{variables['POSTGRES_PORT']}/annotation"
    refused = place.ask("dagster-webserver", ["python", "-c", f"import psycopg; psycopg.connect({address!r})"])
    assert refused.returncode != 0 and "permission denied for database" in refused.stderr
    for name in place.running:
        log = place.log_tail(name)
        assert not [secret for secret in SECRETS.values() if secret in log], f"{name} prints a secret"
