"""A recorder of which a part ends by itself, on a real display: it says so, ends, and keeps what it has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from desk import Desk, a_desk, wait_until

from annotation.recorder.desktop.machine import backends_for_this_machine
from annotation.recorder.desktop.recorder import Recorder
from annotation.recorder.desktop.screening import text_of
from annotation.recorder.input.x11_input import X11Input
from annotation.recorder.review.finish import finish
from annotation.recorder.screen.accessibility import Accessibility
from annotation.recorder.settings import RecordSettings
from annotation.recorder.store import store as stores
from annotation.recordings.bundle import Manifest, TaskQuery
from annotation.recordings.consent import sign
from sandbox.actions import Click, TypeText

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs an X server")


def recorded(folder: Path, desk: Desk, fail: Callable[[Recorder, X11Input], None]) -> tuple[Manifest, str | None]:
    """What is left of a session that a failure ended, and what the recorder says of that."""
    settings = RecordSettings(read_pixels="off")
    parts = backends_for_this_machine(settings, with_microphone=False)
    store = stores.create(folder, "one")
    task = TaskQuery(query="Mail bob.smith@corp.com", applications=("https://corp.com/?mail=bob.smith@corp.com",))
    recorder = Recorder(store, parts, settings, task, sign("Ann Example", with_microphone=False))
    assert recorder.task.query == "Mail [e-mail]" and recorder.hidden_in_task == ("e-mail", "e-mail")
    recorder.start()
    try:
        assert isinstance(parts.inputs, X11Input)
        desk.click(300, 300)
        desk.type("tulips")
        wait_until(lambda: recorder.num_actions >= 1, 20, "the click")
        wait_until(lambda: heard(recorder) == "tulips", 20, "the typed text")
        fail(recorder, parts.inputs)
        assert recorder.wait(20.0), "the failure ends it"
    finally:
        recorder.stop()
    manifest = finish(store)
    assert b"bob.smith" not in b"\0".join(path.read_bytes() for path in store.folder.rglob("*") if path.is_file())
    return manifest, recorder.failure


def heard(recorder: Recorder) -> str:
    """The text that is being typed, or was and is held back."""
    typing = recorder._gestures._typing
    return "".join([*(text_of(draft) for draft in recorder._held), *(typing.text if typing else ())])


def cut_off(recorder: Recorder, inputs: X11Input) -> None:
    inputs._data.display.socket.shutdown(socket.SHUT_RDWR)


def cannot_read(recorder: Recorder, inputs: X11Input) -> None:
    def refuses() -> Any:
        raise KeyError("node")

    recorder._snapshots._accessibility.elements = refuses  # type: ignore[method-assign]
    recorder._snapshots._camera._frames[-1].number += 1_000_000  # something changed


LISTENS = """
import os
import threading
from annotation.recorder.input.pynput_input import PynputInput

inputs, said, has_begun, has_heard = PynputInput(), set(), threading.Event(), threading.Event()

def ask():
    while not has_begun.is_set():
        said.add(inputs.failure)

asking = threading.Thread(target=ask)
asking.start()
try:
    inputs.start(lambda event: has_heard.set())
finally:
    has_begun.set()
    asking.join()
print(said, flush=True)
print(has_heard.wait(20), flush=True)
os._exit(0)  # on X pynput does not end before something else happens there
"""


@pytest.mark.skipif(find_spec("pynput") is None, reason="pynput is not installed: on Linux this test alone needs it")
def test_a_part_that_only_begins_has_not_failed():
    """What hears on Windows and macOS, here from X, in a process of its own: it listens twice, and is asked from the first moment on."""
    with a_desk() as desk:
        environment = {**os.environ, "DISPLAY": desk.env["DISPLAY"], "PYNPUT_BACKEND": "xorg"}
        with subprocess.Popen([sys.executable, "-c", LISTENS], env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "{None}\n"
            desk.click(300, 300)
            assert process.stdout.readline() == "True\n", "the click"
        assert process.returncode == 0


@pytest.mark.slow
def test_a_recorder_that_no_longer_hears_or_sees_ends_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with a_desk() as desk:
        for name in ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, desk.env[name])
        manifest, failure = recorded(tmp_path / "hears", desk, cut_off)
        assert failure is not None and "no longer heard (ConnectionClosedError)" in failure
        kinds = [type(action.action) for action in manifest.actions]
        assert kinds == [Click, TypeText], "also what was held back"
        manifest, failure = recorded(tmp_path / "sees", desk, lambda recorder, inputs: recorder.ask_to_stop())
        assert failure is None and len(manifest.actions) == 2, "who stops it has no failure"
        elements = Accessibility()
        elements.start()
        is_there = elements.is_available
        elements.stop()
        if is_there:
            _, failure = recorded(tmp_path / "knows", desk, cannot_read)
            assert failure is not None and "no longer known (KeyError)" in failure
