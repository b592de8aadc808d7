"""`flywheel record`: nothing without consent, nothing sent without a review, what it lists and shows and deletes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from desk import a_desk
from made_recording import make
from typer.main import get_command
from typer.testing import CliRunner, Result

from annotation.recorder.review import edits
from annotation.recorder.speech.microphone import Microphone
from annotation.recordings.bundle import TaskQuery
from annotation.recordings.consent import TEXT
from annotation.recordings.redaction import Redactor, redacted_task
from pipelines.annotation_server import address as annotation_address
from pipelines.cli.app import app
from pipelines.cli.record import sessions as record_sessions
from warehouse.core.errors import AccessDenied, ConfigError, RecorderUnavailable, RecordingLocked, RecordingRefused, UploadFailed
from warehouse.core.home import Home

ROOT = Path(__file__).resolve().parents[3]


def flywheel(home: Path, *words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["record", *words, "--home", str(home)], input=typed)


def test_the_text_that_is_agreed_to_is_printed():
    ran = CliRunner().invoke(app, ["record", "consent"])
    assert ran.exit_code == 0 and " ".join(ran.output.split()) == " ".join(TEXT.split())


@pytest.mark.skipif(sys.platform != "linux", reason="needs an X server")
def test_nothing_is_recorded_without_a_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with a_desk() as desk:
        monkeypatch.setenv("DISPLAY", desk.env["DISPLAY"])
        for command, typed in (("start", "\n"), ("start", "x\n"), ("browser", "\n")):
            chromium = ("--chromium", sys.executable) if command == "browser" else ()
            ran = flywheel(tmp_path, command, "one", "-q", "x", "--no-speech", *chromium, typed=typed)
            assert isinstance(ran.exception, RecordingRefused) and "not a signature" in str(ran.exception)
            assert "While the sign says RECORDING" in ran.output
    assert not (tmp_path / "recordings").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="on others there is no display to take away")
@pytest.mark.parametrize("command", ["start", "browser"])
def test_nobody_is_asked_to_agree_to_what_cannot_be_recorded(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = (command, "one", "-q", "x", *(("--chromium", sys.executable) if command == "browser" else ()))

    def refused(*options: str) -> str:
        ran = flywheel(tmp_path, *words, *options, typed="Ann Example\n")
        assert isinstance(ran.exception, RecorderUnavailable) and "While the sign says" not in ran.output
        return str(ran.exception)

    assert "there are auto" in refused("--recogniser", "no such")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as without:
        for name in ("faster_whisper", "pocketsphinx"):
            without.setitem(sys.modules, name, None)
        assert "Neither faster-whisper nor pocketsphinx is installed" in refused()
        assert "DISPLAY" in refused("--no-speech"), "there is nothing to recognise"
    assert "DISPLAY" in refused("--no-speech")
    with a_desk() as desk:
        monkeypatch.setenv("DISPLAY", desk.env["DISPLAY"])
        assert "no such microphone" in refused("--microphone", "no such microphone")
    assert not (tmp_path / "recordings").exists()
    (tmp_path / "recordings" / "one").mkdir(parents=True)
    ran = flywheel(tmp_path, *words, "--no-speech", typed="Ann Example\n")
    assert isinstance(ran.exception, RecordingRefused) and "already" in str(ran.exception) and "While the sign says" not in ran.output


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--exclude-region", "1,2,3"), "X,Y,WIDTH,HEIGHT"),
        (("--track", "master"), "track"),
        (("--pause-keys", "p"), "pause_keys"),
        (("--sign", "nowhere"), "sign"),
        (("--query", ""), "query"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, str], reported: str, tmp_path: Path):
    ran = flywheel(tmp_path, "start", "one", "-q", "x", "--signed", "Ann Example", *options)
    assert isinstance(ran.exception, ConfigError) and reported in str(ran.exception), ran.output


def test_both_recorders_name_the_query_and_the_task_that_they_are_for(tmp_path: Path):
    for command in ("start", "browser"):
        for option, value, reported in (("--node", "x" * 301, "node"), ("--environment", "x" * 301, "environment")):
            ran = flywheel(tmp_path, command, "one", "-q", "x", "--signed", "Ann Example", "--seed", "7", option, value)
            assert isinstance(ran.exception, ConfigError) and reported in str(ran.exception), ran.output


def test_what_was_taken_out_of_the_task_is_said(capsys: pytest.CaptureFixture[str]):
    task, kinds = redacted_task(TaskQuery(query="Mail bob.smith@corp.com", applications=("a@corp.com",)), Redactor())
    record_sessions._say_what_was_hidden(task, kinds)
    assert "e-mail. It is recorded as: Mail [e-mail]; [e-mail]" in " ".join(capsys.readouterr().out.split())


def test_without_a_microphone_it_names_an_option_that_there_is():
    with pytest.raises(RecorderUnavailable) as refused:
        Microphone("no such microphone").start(lambda sound: None)
    with pytest.raises(RecorderUnavailable, match="no such microphone"):
        Microphone.called("no such microphone").check()
    named = {word.strip("(),.") for word in str(refused.value).split() if word.strip("(").startswith("--")}
    record = get_command(app).get_command(None, "record").commands  # type: ignore[attr-defined, arg-type, union-attr]
    options = {name: {o for p in record[name].params for o in (*p.opts, *p.secondary_opts)} for name in ("start", "browser")}
    assert named == {"--microphone", "--no-speech"} and all(named <= there for there in options.values())


def test_recordings_are_listed_shown_and_deleted(tmp_path: Path):
    assert "no recordings" in flywheel(tmp_path, "list").output
    store = make(tmp_path / "recordings", "letter")
    assert "flywheel record review" in " ".join(flywheel(tmp_path, "list").output.split()) or "review" in flywheel(tmp_path, "list").output
    shown = flywheel(tmp_path, "show", "letter").output
    assert "Write to Emma" in shown and "first i press new" in shown and "Hello Emma" in shown
    assert isinstance(flywheel(tmp_path, "resume", "letter").exception, RecordingRefused)
    assert isinstance(flywheel(tmp_path, "show", "other").exception, RecordingRefused)
    assert flywheel(tmp_path, "delete", "letter", typed="n\n").output.strip().endswith("[y/N]: n") and store.folder.exists()
    assert "erased" in flywheel(tmp_path, "delete", "letter", "--yes").output and not store.folder.exists()


def test_a_sealed_recording_asks_for_its_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path / "recordings", "letter", "correct horse")
    monkeypatch.delenv("FLYWHEEL_RECORD_PASSPHRASE", raising=False)
    assert "first i press new" in flywheel(tmp_path, "show", "letter", typed="correct horse\n").output
    assert isinstance(flywheel(tmp_path, "show", "letter", typed="wrong horse\n").exception, RecordingLocked)
    monkeypatch.setenv("FLYWHEEL_RECORD_PASSPHRASE", "correct horse")
    assert "Hello Emma" in flywheel(tmp_path, "show", "letter").output
    monkeypatch.delenv("FLYWHEEL_RECORD_PASSPHRASE")
    assert "erased" in flywheel(tmp_path, "delete", "letter", "--yes").output, "who forgot it may still delete"


def test_nothing_is_sent_before_it_was_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = make(tmp_path / "recordings", "letter")
    monkeypatch.setenv("FLYWHEEL_ANNOTATION_TOKEN", "token-of-ann")
    ran = flywheel(tmp_path, "upload", "letter", "--url", "http://127.0.0.1:9")
    assert isinstance(ran.exception, RecordingRefused) and "flywheel record review letter" in str(ran.exception)
    edits.confirm(store)
    monkeypatch.setattr("annotation.recorder.review.upload.time.sleep", lambda seconds: None)
    assert isinstance(flywheel(tmp_path, "upload", "letter", "--url", "http://127.0.0.1:9").exception, UploadFailed | AccessDenied)
    monkeypatch.delenv("FLYWHEEL_ANNOTATION_URL", raising=False)
    ran = flywheel(tmp_path, "upload", "letter")
    assert isinstance(ran.exception, ConfigError) and "no annotation server runs on this home" in str(ran.exception)
    assert "--url" in flywheel(tmp_path, "list").output
    with annotation_address.announced(Home(tmp_path), "http://127.0.0.1:9", None, "annotation.db"):
        assert isinstance(flywheel(tmp_path, "upload", "letter").exception, UploadFailed | AccessDenied), "it knows where to send it"
        assert "upload letter" in flywheel(tmp_path, "list").output and "--url" not in flywheel(tmp_path, "list").output


def test_the_review_page_is_served_to_this_machine_alone(tmp_path: Path):
    make(tmp_path / "recordings", "letter")
    command = [sys.executable, "-m", "pipelines.cli", "record", "review", "letter", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    killer = threading.Timer(60, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address, key = re.findall(r"(http://127\.0\.0\.1:\d+)/#(\S+)", line)[0]
        assert httpx.get(address).status_code == 200 and httpx.get(f"{address}/api/recording").status_code == 401
        with httpx.Client(base_url=address, headers={"x-flywheel-review": "1"}) as client:
            assert client.post("/login", json={"key": key}).status_code == 204
            assert client.post("/api/confirm", json={}).json()["state"] == "reviewed"
        process.terminate()
        assert "letter: reviewed" in process.communicate(timeout=30)[0] and process.returncode == 0
    finally:
        killer.cancel()
        process.kill()
        process.communicate()
