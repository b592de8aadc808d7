"""The recorder on a real display: a scripted person works in a real editor and thinks aloud into the microphone; a password form, planted
secrets, excluded windows, the pause keys; a recorder that is killed in the middle. All through the command that people use."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk import ROOT, Desk, a_desk, say, wait_until
from hearing import SAID, VOICE_OPTIONS, sentence_in
from PIL import Image

from annotation.recorder.store import store as stores
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Manifest, RecordedAction
from sandbox.actions import Click, Hotkey, TypeText
from warehouse.core.errors import RecordingRefused

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs an X server")
FORM = Path(__file__).with_name("gtk_form.py")
PATIENCE_S = 60.0


@dataclass
class Session:
    desk: Desk
    process: subprocess.Popen[str]
    home: Path
    name: str
    passphrase: str | None = None

    @property
    def root(self) -> Path:
        return self.home / "recordings"

    def store(self) -> Store:
        return stores.open_store(self.root, self.name, self.passphrase)

    def wait_for_actions(self, num: int) -> None:
        """Until the journal has so many: the recorder is not behind."""
        wait_until(lambda: len([r for r in self.store().journal() if r["type"] == "action"]) >= num, PATIENCE_S, f"{num} actions")

    def wait_for(self, kind: str, num: int = 1) -> None:
        """Until the journal has so many records of a kind."""
        wait_until(lambda: len([r for r in self.store().journal() if r["type"] == kind]) >= num, PATIENCE_S, f"{num} times {kind!r}")

    def wait_for_typing(self, text: str) -> None:
        """Until the journal's newest typing is this: the recorder is not behind."""

        def newest() -> bool:
            written = [r["action"] for r in self.store().journal() if r["type"] == "action" and r["action"]["kind"] == "type"]
            return bool(written) and written[-1]["text"] == text

        wait_until(newest, PATIENCE_S, f"{text!r} in the journal")

    def end(self) -> Manifest:
        self.desk.key("ctrl+alt+q")
        output, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, output
        return self.store().manifest()


@contextmanager
def recording(
    desk: Desk, home: Path, *options: str, name: str = "one", speech: bool = False, passphrase: str | None = None
) -> Iterator[Session]:
    command = [
        sys.executable,
        "-m",
        "pipelines.cli",
        "record",
        "start",
        name,
        "--query",
        "Write a note",
        "--signed",
        "Ann Example",
        *options,
        *(["--recogniser", "pocketsphinx"] if speech else ["--no-speech", "--recogniser", "none"]),
        "--home",
        str(home),
    ]
    env = {**desk.env, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        assert process.stdout is not None
        said = ""
        while "recording one" not in said:
            line = process.stdout.readline()
            assert line, f"the recorder ended: {said}"
            said += line
        be_read(desk)
        yield Session(desk, process, home, name, passphrase)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def be_read(desk: Desk) -> None:
    """Let the recorder read what stands on the screen, which nothing outside of it shows: programs are asked when the screen is at rest,
    and their answers stay in its memory until an action. Longer where others want the processor too."""
    desk.wait_for_rest()
    time.sleep(0.5 * min(6.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))))


@dataclass
class Fill:
    """Hands at the form of gtk_form.py, which tells how far it has come."""

    desk: Desk
    state: Path
    session: Session | None = None

    def wait_for_focus(self, field: str) -> None:
        wait_until(lambda: self._state().get("focus") == field, PATIENCE_S, f"the keyboard in {field}")
        be_read(self.desk)

    def type(self, field: str, text: str) -> None:
        self.desk.type(text)
        wait_until(lambda: self._state()["lengths"].get(field) == len(text), PATIENCE_S, f"{len(text)} characters in {field}")

    def go_on_to(self, field: str, *, after: str) -> None:
        """By Tab, once the recorder has written what was typed before it."""
        self.desk.key("Tab")
        self.wait_for_focus(field)
        assert self.session is not None
        self.session.wait_for_typing(after)

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.state.read_text()) if self.state.exists() else {"lengths": {}}
        return found


def actions_of(manifest: Manifest, *kinds: type) -> list[RecordedAction]:
    return [action for action in manifest.actions if isinstance(action.action, kinds)]


def texts_of(manifest: Manifest) -> list[str]:
    return [action.action.text for action in manifest.actions if isinstance(action.action, TypeText)]


def all_bytes(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def read_aloud(png: bytes) -> str:
    """Everything that tesseract reads in a picture, at two sizes, without spaces."""
    image = Image.open(io.BytesIO(png)).convert("L")
    texts = []
    for scale in (2, 3):
        buffer = io.BytesIO()
        image.resize((image.width * scale, image.height * scale), Image.Resampling.LANCZOS).save(buffer, "PNG")
        ran = subprocess.run(
            ["tesseract", "stdin", "stdout", "--psm", "11"],
            input=buffer.getvalue(),
            capture_output=True,
            timeout=120,
            env={**os.environ, "OMP_THREAD_LIMIT": "1"},
        )
        texts.append(ran.stdout.decode())
    return re.sub(r"\s", "", "".join(texts)).casefold()


def open_editor(desk: Desk) -> tuple[int, int]:
    """An editor with the keyboard; gives the middle of its window."""
    desk.spawn("mousepad", "--disable-server")
    window = desk.window("Mousepad")
    desk.hands("windowactivate", "--sync", window)
    place = dict(re.findall(r"(\w+)=(\d+)", desk.hands("getwindowgeometry", "--shell", window)))
    desk.wait_for_rest()
    return int(place["X"]) + int(place["WIDTH"]) // 2, int(place["Y"]) + int(place["HEIGHT"]) // 2


@pytest.mark.slow
def test_a_session_in_an_editor_gives_the_right_actions_on_the_right_elements(tmp_path: Path):
    with a_desk() as desk:
        x, y = open_editor(desk)
        with recording(desk, tmp_path) as session:
            desk.click(x, y)
            session.wait_for_actions(1)
            desk.type("Dear Emma, see you at nin")
            desk.key("BackSpace", "BackSpace", "BackSpace")
            desk.type("noon")
            desk.key("Return")
            session.wait_for_typing("Dear Emma, see you at noon\n")
            desk.wait_for_rest()
            desk.key("ctrl+a")
            session.wait_for_actions(3)
            desk.key("ctrl+alt+p")
            session.wait_for("pause")
            desk.type("not for you")
            desk.key("ctrl+a", "Delete")
            desk.key("ctrl+alt+p")
            session.wait_for("go on")
            be_read(desk)
            desk.key("ctrl+End")
            session.wait_for_actions(4)
            manifest = session.end()
    assert [action.action for action in manifest.actions] == [
        Click(x=x, y=y),
        TypeText(text="Dear Emma, see you at noon\n"),
        Hotkey(keys=("ctrl", "a")),
        Hotkey(keys=("ctrl", "end")),
    ]
    click, typing, *_ = manifest.actions
    assert click.target is not None and click.target.role == "textarea" and click.target.box.holds(x, y)
    assert click.window.application == "Mousepad" and "Mousepad" in click.window.title
    assert manifest.machine.accessibility and manifest.consent.name == "Ann Example" and len(manifest.pauses) == 1
    assert all(action.screen_id is not None for action in manifest.actions)
    # The picture of an action is from before it: empty at the first key, full when all was selected.
    store = session.store()
    before, after = (np.asarray(Image.open(io.BytesIO(store.screen(a.screen_id or "")))) for a in (typing, manifest.actions[2]))
    region = (slice(y - 200, y + 200), slice(x - 250, x + 250))
    assert (before[region] < 100).sum() < (after[region] < 100).sum()
    assert not (before[0:20, 437:587] != 0).any(), "the sign is masked"
    assert "not for you" not in all_bytes(session.root).decode("latin-1")
    assert not (session.root / "one" / stores.JOURNAL).exists() and session.store().cover.state == "recorded"


SECRETS = {
    "password": "Tulip-42-rain",
    "e-mail": "lena.fischer@posteo.de",
    "card": "4539 1488 0343 6467",
    "token": "ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2bC4",
}


def type_secrets(desk: Desk, home: Path) -> tuple[Store, bytes]:
    """A session in a form, a mail address in its title and a card number in it, and in a terminal that shows them; with all that the
    programs wrote to their log."""
    state = desk.home / "form.json"
    card = f"Card on file: {SECRETS['card']}"
    desk.spawn("/usr/bin/python3", str(FORM), "Account of lena.fischer@posteo.de", card, FORM_STATE=str(state))
    window = desk.window("Account")
    desk.hands("windowactivate", "--sync", window, "windowmove", "--sync", window, "40", "60")
    fill = Fill(desk, state)
    fill.wait_for_focus("User name")
    with recording(desk, home) as session:
        fill.session = session
        fill.type("User name", "lena")
        fill.go_on_to("Key to the safe", after="lena")
        fill.type("Key to the safe", SECRETS["password"])
        fill.go_on_to("Remarks", after="[password]")
        fill.type("Remarks", "mail " + SECRETS["e-mail"])
        desk.hands("mousemove", "120", "80")
        desk.key("ctrl+a")
        session.wait_for_typing("mail [e-mail]")
        be_read(desk)
        fill.type("Remarks", f"use {SECRETS['token']} and {SECRETS['card']} ok")
        desk.key("Tab")
        session.wait_for_typing("use [token] and [card] ok")
        # what is on the screen in a program that tells nothing of itself can only be read off the pixels
        lines = "\n".join(["in a terminal", SECRETS["e-mail"], SECRETS["token"], SECRETS["card"], "no secret"])
        (desk.home / "lines").write_text(lines + "\n")
        show = "cat lines; touch shown; cat -"
        desk.spawn("xterm", "-T", "Plain", "-fa", "DejaVu Sans Mono", "-fs", "12", "-geometry", "60x8+40+420", "-e", "sh", "-c", show)
        terminal = desk.window("Plain")
        wait_until((desk.home / "shown").exists, PATIENCE_S, "the lines in the terminal")
        be_read(desk)
        desk.click(200, 520)
        desk.hands("windowfocus", "--sync", terminal)
        be_read(desk)
        desk.type("hello there")
        desk.key("Return")
        session.wait_for_typing("hello there\n")
        be_read(desk)
        session.end()
    return session.store(), (desk.home / "programs.log").read_bytes()


def secrets_in(stored: bytes) -> list[str]:
    """What of the secrets can be found in bytes, also cut or without spaces."""
    found = []
    for kind, secret in SECRETS.items():
        compact = re.sub(r"\s", "", secret)
        found += [f"{kind}: {part}" for part in (secret, compact, secret[:-3], secret[4:]) if part.encode() in stored]
    return found


LEGIBLE = ("user", "name", "safe", "remarks", "sign")
"""Words of the form, which stand beside the secrets and are none."""


def secrets_read_in(png: bytes) -> list[str]:
    """What of them can be read in a picture of the form: the whole, or half of it. What is not secret must be legible there."""
    text, found = read_aloud(png), []
    legible = [word for word in LEGIBLE if word in text]
    assert len(legible) >= len(LEGIBLE) / 2, f"what is not secret can still be read: only {legible} in {text}"
    for kind, secret in SECRETS.items():
        compact = re.sub(r"\s", "", secret)
        half = len(compact) // 2
        found += [f"{kind}: {part}" for part in (compact, compact[:half], compact[half:]) if part.casefold() in text]
    return found


@pytest.mark.timeout(600)  # tesseract reads a dozen pictures three times: a minute, and many where other tests want the processor too
@pytest.mark.slow
def test_planted_secrets_are_nowhere_in_what_is_stored(tmp_path: Path):
    with a_desk(800, 640) as desk:
        store, output = type_secrets(desk, tmp_path)
    manifest = store.manifest()
    assert texts_of(manifest) == ["lena", "[password]", "mail [e-mail]", "use [token] and [card] ok", "hello there\n"]
    assert manifest.hidden["password"] == 1 and manifest.hidden["token"] >= 1
    assert secrets_in(all_bytes(tmp_path) + output) == []
    pictures = [store.screen(screen.screen_id) for screen in manifest.screens]
    assert [secrets_read_in(png) for png in pictures] == [[] for _ in pictures]
    text = read_aloud(pictures[-1])
    assert "inaterminal" in text and "nosecret" in text and "hellothere" in text, "the lines beside the secrets in the terminal are legible"


@pytest.mark.slow
def test_what_is_excluded_leaves_no_event_and_no_pixel(tmp_path: Path):
    with a_desk() as desk:
        x, y = open_editor(desk)
        desk.spawn("/usr/bin/python3", str(FORM), "My Bank", "balance 12345")
        bank = desk.window("My Bank")
        desk.hands("windowmove", "--sync", bank, "10", "40")
        desk.wait_for_rest()
        with recording(desk, tmp_path, "--exclude-title", "*bank*", "--exclude-region", "900,700,124,68") as session:
            desk.click(100, 80)
            desk.wait_for_rest()
            desk.type("secret wish")
            desk.wait_for_rest()
            desk.click(1000, 740)
            be_read(desk)
            desk.click(x + 150, y + 100)
            session.wait_for_actions(1)
            desk.type("open words")
            desk.wait_for_rest()
            manifest = session.end()
    assert [action.action for action in manifest.actions] == [Click(x=x + 150, y=y + 100), TypeText(text="open words")]
    assert manifest.hidden["excluded"] == 3
    stored = all_bytes(tmp_path)
    assert [word for word in (b"secret wish", b"balance", b"Bank") if word in stored] == []
    for screen in manifest.screens:
        pixels = np.asarray(Image.open(io.BytesIO(session.store().screen(screen.screen_id))))
        assert not pixels[45:150, 15:180].any(), "the excluded window is black"
        assert not pixels[700:768, 900:1024].any(), "the excluded region is black"
        assert pixels[y, x].any()


@pytest.mark.slow
def test_a_killed_recorder_loses_at_most_the_last_action_and_stays_sealed(tmp_path: Path):
    sealed = {"FLYWHEEL_RECORD_PASSPHRASE": "correct horse"}
    with a_desk() as desk:
        x, y = open_editor(desk)
        desk.env |= sealed
        with recording(desk, tmp_path, "--encrypt", passphrase="correct horse") as session:
            desk.click(x, y)
            session.wait_for_actions(1)
            for line in ("one", "two", "three"):
                desk.type(line)
                desk.key("Return")
                session.wait_for_typing(f"{line}\n")
            session.wait_for("screen")
            desk.type("fou")
            os.killpg(session.process.pid, signal.SIGKILL)
            session.process.wait()
        assert not session.store().is_live
        with pytest.raises(RecordingRefused, match="not finished"):
            session.store().manifest()
    env = {**os.environ, **sealed, "PYTHONPATH": str(ROOT)}
    flywheel = [sys.executable, "-m", "pipelines.cli", "record"]
    listed = subprocess.run([*flywheel, "list", "--home", str(tmp_path)], env=env, capture_output=True, text=True, timeout=60)
    assert "interrupted" in listed.stdout
    command = [*flywheel, "resume", "one", "--recogniser", "none", "--home", str(tmp_path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    manifest = session.store().manifest()
    everything = all_bytes(session.root)
    assert [word for word in (b"three", b"Mousepad", b"Ann Example", b"\x89PNG") if word in everything] == []
    assert texts_of(manifest) == ["one\n", "two\n", "three\n"] and len(actions_of(manifest, Click)) == 1
    assert manifest.result == "unsaid" and manifest.actions[0].screen_id, "pictures that were still being read are lost, actions are not"


@pytest.mark.slow
def test_thoughts_are_put_to_the_actions_they_announce(tmp_path: Path):
    with a_desk(voice=True) as desk:
        x, y = open_editor(desk)
        spoken, acted = [], []
        with recording(desk, tmp_path, speech=True) as session:
            acts = (lambda: desk.click(x, y), lambda: desk.type("Hello Emma"), lambda: desk.key("ctrl+a"))
            for thought, act in zip(SAID, acts, strict=True):
                spoken.append(say(desk, thought, *VOICE_OPTIONS))
                time.sleep(0.4)  # a person's pauses: they are a part of what is recorded
                began_s = time.monotonic()
                act()
                acted.append((began_s, time.monotonic()))
                time.sleep(1.2)
            manifest = session.end()
    assert [type(action.action) for action in manifest.actions] == [Click, TypeText, Hotkey]
    thoughts = [action.thought for action in manifest.actions]
    assert all(thought is not None for thought in thoughts), manifest.words
    # The sound's clock and the events' clock are one: each thought lies within the time in which it was played.
    earliest_s, latest_s = (at_s - manifest.actions[0].start_s for at_s in acted[0])  # of the recording's beginning
    for thought, (start_s, end_s), action in zip(thoughts, spoken, manifest.actions, strict=True):
        assert thought is not None and thought.end_s <= action.start_s + 0.2
        assert start_s - 0.5 <= latest_s + thought.start_s and earliest_s + thought.end_s <= end_s + 0.5
    sound, zero_s = session.store().speech(), manifest.speech[0].start_s
    for text, thought in zip(SAID, thoughts, strict=True):
        assert thought is not None
        start, end = (round((time_s - zero_s) * 16_000) * 2 for time_s in (thought.start_s - 0.4, thought.end_s + 0.4))
        assert sentence_in(sound[max(0, start) : end]) == text, f"heard: {thought.raw}"
    length_s = sum(part.num_samples for part in manifest.speech) / 16_000
    assert manifest.speech[0].start_s < 3 and length_s > manifest.actions[-1].end_s - manifest.speech[0].start_s
