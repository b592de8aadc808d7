"""Sending a recording over real HTTP: only what is missing, on after an interruption, and nothing that was not looked through."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from made_recording import make

from annotation.recorder.review import edits
from annotation.recorder.review.upload import Bundle, Uploader
from annotation.recordings.bundle import Announced, Announcement, Completed, Incomplete, Manifest, parts_named
from warehouse.core.errors import AccessDenied, ConfigError, RecordingRefused, UploadFailed

TOKEN = "token-of-an-annotator"


@dataclass
class Archive:
    """What a server of the contract keeps, and how it fails: `failures` answers are cut off or 503, one after the other."""

    parts: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, Announcement] = field(default_factory=dict)
    completed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_puts: int = 0


def handler_of(archive: Archive) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def _say(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes | None:
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._say(401)
            failure = archive.failures.pop() if archive.failures else ""
            if failure == "cut":
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            return self._say(503) if failure else data

        def do_PUT(self) -> None:
            data = self._body()
            if data is None:
                return
            archive.num_puts += 1
            digest = self.path.rpartition("/")[2]
            if sha256(data).hexdigest() != digest:
                return self._say(422)
            archive.parts[digest] = data
            self._say(204)

        def do_POST(self) -> None:
            data = self._body()
            if data is None:
                return
            if self.path.endswith("/complete"):
                return self._complete(self.path.split("/")[-2])
            announcement = Announcement.model_validate_json(data)
            archive.announced[announcement.recording_id] = announcement
            missing = self._missing(announcement)
            self._say(200, Announced(recording_id=announcement.recording_id, missing=missing).model_dump_json().encode())

        def _missing(self, announcement: Announcement) -> tuple[str, ...]:
            return tuple(part.sha256 for part in announcement.parts if part.sha256 not in archive.parts)

        def _complete(self, recording_id: str) -> None:
            announcement = archive.announced[recording_id]
            if missing := self._missing(announcement):
                return self._say(409, Incomplete(recording_id=recording_id, missing=missing).model_dump_json().encode())
            manifest = Manifest.model_validate_json(archive.parts[announcement.manifest])
            archive.completed.append(recording_id)
            self._say(200, Completed(recording_id=recording_id, num_actions=len(manifest.actions)).model_dump_json().encode())

    return Handler


@contextlib.contextmanager
def a_server(archive: Archive) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(archive))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def uploader(url: str, token: str = TOKEN, attempts: int = 3) -> Iterator[Uploader]:
    sender = Uploader(url, token, attempts=attempts, wait_s=0.01)
    try:
        yield sender
    finally:
        sender.close()


def test_a_recording_is_not_sent_in_the_clear():
    with pytest.raises(ConfigError, match="https"):
        Uploader("http://annotation.example", "a token of thirty-two characters")


def test_a_reviewed_recording_arrives_whole_and_once(tmp_path: Path):
    store, archive = make(tmp_path, passphrase="correct horse"), Archive()
    edits.confirm(store)
    with a_server(archive) as url, uploader(url) as sender:
        sent = sender.upload(store)
        assert sent == archive.num_puts == 6, "four pictures, the sound, the manifest"
        assert sender.upload(store) == 0, "the second time nothing is missing"
    announcement = archive.announced[store.cover.recording_id]
    manifest = Manifest.model_validate_json(archive.parts[announcement.manifest])
    assert manifest == store.manifest() and set(parts_named(manifest)) <= set(archive.parts)
    assert archive.parts[manifest.speech[0].sha256][:4] == b"RIFF" and store.cover.state == "uploaded"
    with pytest.raises(RecordingRefused, match="can no longer be changed"):
        edits.edit_thought(store, 0, "too late")


def test_pictures_that_the_server_has_are_not_sent_again(tmp_path: Path):
    first, second, archive = make(tmp_path, "one"), make(tmp_path, "two"), Archive()
    for store in (first, second):
        edits.confirm(store)
    with a_server(archive) as url, uploader(url) as sender:
        assert sender.upload(first) == 6
        assert sender.upload(second) == 1, "only its manifest is new"


def test_an_interrupted_upload_goes_on_where_it_was(tmp_path: Path):
    store, archive = make(tmp_path), Archive(failures=["", "", "503", "cut", "", ""])
    edits.confirm(store)
    with a_server(archive) as url:
        archive.failures = ["cut", "cut", "cut", "", "", ""]  # the last one answers first
        with uploader(url) as sender, pytest.raises(UploadFailed, match="3 attempts"):
            sender.upload(store)
        arrived = len(archive.parts)
        assert 0 < arrived < 6 and store.cover.state == "reviewed"
        archive.failures = ["503", "", "cut", ""]
        with uploader(url) as sender:
            assert sender.upload(store) == 6 - arrived
    assert archive.completed == [store.cover.recording_id]


def test_what_may_not_be_sent_is_not(tmp_path: Path):
    store, archive = make(tmp_path), Archive()
    with a_server(archive) as url:
        with uploader(url) as sender, pytest.raises(RecordingRefused, match="not looked through"):
            sender.upload(store)
        edits.confirm(store)
        with uploader(url, "wrong-token") as sender, pytest.raises(AccessDenied):
            sender.upload(store)
        screen = store.folder / "screens" / store.manifest().screens[0].screen_id
        screen.write_bytes(screen.read_bytes() + b"x")
        with uploader(url) as sender, pytest.raises(RecordingRefused, match="changed after the review"):
            sender.upload(store)
    assert archive.parts == {} and archive.announced == {}


def test_a_server_that_is_not_there_is_named(tmp_path: Path):
    store = make(tmp_path)
    edits.confirm(store)
    with uploader("http://127.0.0.1:9", attempts=2) as sender, pytest.raises(UploadFailed, match="2 attempts"):
        sender.upload(store)
    assert len(Bundle(store).announcement().parts) == 6
