"""Secrets that were typed and shown while somebody recorded, looked for where the recording has gone: on the server's disk (database,
parts, logs), in what it answers, in the rows that the flywheel takes in and in their pictures. And what lets people in: passwords,
invitations, tokens, logins."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from desk import ROOT, a_desk
from PIL import Image
from typer.testing import CliRunner

from annotation.recorder.review import edits
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import ANNOUNCE_PATH
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Base
from assets.datasets import dataset_snapshots
from benchmarks.common.annotating import Server
from pipelines.cli.app import app
from tests.annotation.recording.test_recorder_x11 import all_bytes, secrets_in, secrets_read_in, type_secrets
from tests.assets.people_parts import ITERATION, NEXT, materialize
from warehouse.core.home import Home
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import Warehouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(sys.platform != "linux", reason="needs an X server")]
PASSWORD = "seven grey herons at dawn"
PNG = b"\x89PNG"


def flywheel(home: Home, *arguments: str) -> str:
    """A command of `flywheel annotate`; what it printed."""
    ran = CliRunner().invoke(app, ["annotate", *arguments, "--home", str(home.root)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output.strip()


def test_planted_secrets_are_nowhere_after_the_upload(tmp_path: Path) -> None:
    person, office = tmp_path / "person", Home(tmp_path / "office")
    person.mkdir()
    office.root.mkdir()
    with a_desk(800, 640) as desk:
        store, _ = type_secrets(desk, person)
    edits.confirm(store)
    keys = {"token": flywheel(office, "users", "program", "lena"), "invitation": flywheel(office, "invite", "--role", "reviewer")}
    keys["invitation"] = keys["invitation"].partition("#")[2]
    server = Server(office, default_url(office), 1)
    server.start()
    try:
        reported = upload(person, server.url, keys["token"])
        answers = review(server.url, store, keys)
    finally:
        server.end()
    assert materialize(office.root, ITERATION).success and materialize(office.root, NEXT, dataset_snapshots).success

    rows = "\n".join([*exported(office), *stored_rows(office)])
    everything = all_bytes(office.root) + reported + answers + rows.encode()
    assert "hello there" in rows and b"mail [e-mail]" in everything, "what is not secret has come through"
    assert "annotation server: http" in server.log.read_text() and store.cover.recording_id.encode() in everything
    assert secrets_in(everything) == []
    assert [name for name, key in (keys | {"password": PASSWORD}).items() if key.encode() in everything] == []
    assert [found for png in pictures(office) for found in secrets_read_in(png)] == []


def upload(person: Path, url: str, token: str) -> bytes:
    """By the command; all it said."""
    (person / "token").write_text(token)
    command = [sys.executable, "-m", "pipelines.cli", "record", "upload", "one", "--url", url, "--token-file", str(person / "token")]
    ran = subprocess.run([*command, "--home", str(person)], capture_output=True, cwd=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout + ran.stderr


def review(url: str, store: Store, keys: dict[str, str]) -> bytes:
    """Somebody joins by the invitation, logs in once wrongly and once rightly, looks at the recording and approves it. Adds the key of
    their login; all that they were answered."""
    path, answers = f"{ANNOUNCE_PATH}/{store.cover.recording_id}", []
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        joined = client.post("/api/v1/join", json={"token": keys["invitation"], "name": "rex", "password": PASSWORD})
        assert joined.is_success, joined.text
        assert client.post("/api/v1/login", json={"name": PASSWORD, "password": "rex"}).status_code in (400, 401, 403, 422)
        entered = client.post("/api/v1/login", json={"name": "rex", "password": PASSWORD})
        client.headers["X-CSRF-Token"] = entered.json()["csrf_token"]
        keys["login"] = next(cookie.value or "" for cookie in client.cookies.jar)
        said = {"approves": True, "verdict": True}
        for answer in (client.get(ANNOUNCE_PATH), client.get(path), client.post(f"{path}/review", json=said)):
            assert answer.is_success, answer.text
            answers.append(answer.content)
    return b"\n".join(answers)


def stored_rows(office: Home) -> Iterator[str]:
    """All rows of the annotation database."""
    database = open_database(default_url(office))
    try:
        with database.read() as session:
            for table in Base.metadata.sorted_tables:
                yield from (json.dumps([*row], default=str, ensure_ascii=False) for row in session.execute(table.select()))
    finally:
        database.close()


def exported(office: Home) -> Iterator[str]:
    """All rows of the warehouse, without the bytes of pictures; and which tables have some."""
    warehouse, filled = Warehouse(office), set()
    for table in TABLES:
        for row in warehouse.read(table).to_pylist():
            filled.add(table)
            yield json.dumps({name: value for name, value in row.items() if not isinstance(value, bytes)}, default=str, ensure_ascii=False)
    assert {"tasks", "steps", "episodes", "screenshots", "ct_samples", "datasets"} <= filled


def pictures(office: Home) -> Iterator[bytes]:
    """Every picture among the server's parts and in the warehouse, each once by its pixels."""
    parts = [path.read_bytes() for path in sorted((office.root / "annotation" / "parts").rglob("*")) if path.is_file()]
    found = [data for data in parts if data.startswith(PNG)]
    taken = [bytes(row["data"]) for row in Warehouse(office).read("screenshots").to_pylist()]
    assert found and taken
    seen = set()
    for data in (*found, *taken):
        pixels = Image.open(io.BytesIO(data)).convert("RGB").tobytes()
        if pixels not in seen:
            seen.add(pixels)
            yield data
