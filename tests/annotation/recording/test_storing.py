"""A recording on the disk: what a killed process leaves, what sealing hides, what erasing removes; and consent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from made_recording import make

from annotation.recorder.review.finish import private_words, silence, speech_parts, stretches_of
from annotation.recorder.store import store
from annotation.recorder.store.vault import SealedVault
from annotation.recordings import consent
from annotation.recordings.bundle import Consent, Word
from warehouse.core.errors import RecordingLocked, RecordingRefused, StorageFull


def test_a_torn_line_is_skipped_and_spoils_nothing_after_it(tmp_path: Path):
    first = store.create(tmp_path, "one")
    first.append({"type": "a", "text": "ü"})
    first.close()
    with (first.folder / store.JOURNAL).open("ab") as file:
        file.write(b'{"type": "b", "te')
    again = store.open_store(tmp_path, "one")
    assert [record["type"] for record in again.journal()] == ["a"]
    again.append({"type": "c"})
    assert [record["type"] for record in again.journal()] == ["a", "c"]


def test_torn_sound_is_left_out(tmp_path: Path):
    first = store.create(tmp_path, "one")
    first.append_speech(b"ab" * 100)
    first.append_speech(b"cd" * 100)
    first.close()
    path = first.folder / store.SPEECH
    path.write_bytes(path.read_bytes()[:-50])
    assert store.open_store(tmp_path, "one").speech() == b"ab" * 100


def test_a_sealed_recording_shows_nothing_and_opens_with_its_passphrase_only(tmp_path: Path):
    sealed = store.create(tmp_path, "one", "correct horse")
    sealed.append({"type": "a", "text": "tulips"})
    sealed.append_speech(b"tulips" * 50)
    sealed.put_screen("screen-0123456789abcdef", b"tulips")
    sealed.close()
    for path in sealed.folder.rglob("*"):
        assert not path.is_file() or b"tulips" not in path.read_bytes()
    opened = store.open_store(tmp_path, "one", "correct horse")
    assert [record["text"] for record in opened.journal()] == ["tulips"]
    assert opened.speech() == b"tulips" * 50 and opened.screen("screen-0123456789abcdef") == b"tulips"
    for wrong in ("wrong horse", None):
        with pytest.raises(RecordingLocked):
            store.open_store(tmp_path, "one", wrong)
    with pytest.raises(RecordingLocked, match="at least 8"):
        store.create(tmp_path, "two", "short")


def test_sealed_pieces_cannot_be_swapped(tmp_path: Path):
    sealed = store.create(tmp_path, "one", "correct horse")
    sealed.put_screen("screen-0123456789abcdef", b"one")
    sealed.put_screen("screen-fedcba9876543210", b"two")
    folder = sealed.folder / store.SCREENS
    os.replace(folder / "screen-0123456789abcdef", folder / "screen-fedcba9876543210")
    assert sealed.cover.seal is not None
    with pytest.raises(RecordingLocked):
        store.Store(sealed.folder, sealed.cover, SealedVault("correct horse", sealed.cover.seal)).screen("screen-fedcba9876543210")


def test_only_one_process_records_and_names_are_checked(tmp_path: Path):
    first = store.create(tmp_path, "one")
    assert not first.is_live
    lock = first.lock()
    assert first.is_live and store.all_recordings(tmp_path) == [("one", first.cover, True)]
    os.close(lock)
    for name in ("one", "../two", "", ".hidden", "a/b"):
        with pytest.raises(RecordingRefused):
            store.create(tmp_path, name)
    with pytest.raises(RecordingRefused):
        store.open_store(tmp_path, "three")
    first.erase()
    assert store.all_recordings(tmp_path) == []


def test_files_are_their_owners_alone(tmp_path: Path):
    first = store.create(tmp_path, "one")
    first.append({"type": "a"})
    first.put_screen("screen-0123456789abcdef", b"x")
    assert {path.stat().st_mode & 0o077 for path in [first.folder, *first.folder.rglob("*")]} == {0}


class Killed(BaseException):
    """Nothing runs after it, as after SIGKILL."""


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("when", ["before the new file is in its place", "after it"])
def test_a_change_that_is_cut_off_leaves_a_whole_recording(when: str, is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = make(tmp_path)
    before, sound, put = first.manifest(), first.speech(), store.Store._put
    new, is_new = before.model_copy(update={"result": "failed"}), when == "after it"

    def cut_off(path: Path, data: bytes) -> None:
        if is_new:
            put(path, data)
        raise Killed if is_killed else StorageFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_put", staticmethod(cut_off))
        if is_killed:  # what would run on the way out of an exception does not
            patch.setattr(store, "wipe_old", lambda old: None)
        for change in (lambda: first.replace_speech(b"new!" * 50), lambda: first.put_manifest(new, "recorded")):
            with pytest.raises((Killed, StorageFull)):
                change()
    names = {path.name for path in first.folder.glob("*.old")}
    assert names == ({"manifest.json.old", "speech.pcm.old"} if is_killed else set())
    with contextlib.ExitStack() as files:
        replaced = [files.enter_context((first.folder / name).open("rb")) for name in names]
        again = store.open_store(tmp_path, "one")
        assert all(file.read().strip(b"\0") == b"" for file in replaced) is (is_new or not is_killed), "what was replaced is overwritten"
    assert again.manifest() == (new if is_new else before) and again.speech() == (b"new!" * 50 if is_new else sound)
    assert list(first.folder.glob("*.old")) == []
    for _ in range(2):
        again.put_manifest(before, "recorded")
    assert store.open_store(tmp_path, "one").manifest() == before


def test_the_next_change_does_not_wipe_what_a_cut_off_one_left_in_use(tmp_path: Path):
    first = make(tmp_path)
    before = first.manifest()
    os.link(first.folder / store.MANIFEST, first.folder / (store.MANIFEST + store.OLD))
    first.put_manifest(before, "recorded")
    assert first.manifest() == before and list(first.folder.glob("*.old")) == []


def test_consent_needs_a_name_and_the_text_as_it_is():
    agreed = consent.sign("  Ann   Example ", with_microphone=True)
    assert agreed.name == "Ann Example"
    consent.check(agreed)
    for name in ("", " ", "x"):
        with pytest.raises(RecordingRefused, match="signature"):
            consent.sign(name, with_microphone=True)
    with pytest.raises(RecordingRefused, match="another text"):
        consent.check(Consent(**{**agreed.model_dump(), "text_sha256": "0" * 64}))


def test_private_words_are_named_and_silenced_and_times_stay():
    said = "pay four five three nine one four eight eight oh three four three six four six seven now"
    words = [Word(text=text, start_s=1 + i / 2, end_s=1.4 + i / 2) for i, text in enumerate(said.split())]
    kept, spans, counts = private_words(words)
    assert [word.text for word in kept] == ["pay", "[card]", "now"] and counts == {"card": 1}
    records = [{"type": "speech", "start_s": 0.0, "num_samples": 16_000}, {"type": "speech", "start_s": 1.01, "num_samples": 200_000}]
    stretches, samples = stretches_of(records, b"\1\1" * 170_000)
    assert len(stretches) == 1 and len(samples) == 340_000, "as much as is there"
    quiet = silence(samples, stretches, spans)
    heard = [quiet[round(at * 16_000) * 2] for at in (1.2, 1.5, 5.0, 9.0, 9.6)]
    assert heard == [1, 0, 0, 0, 1] and len(quiet) == len(samples)
    parts = list(speech_parts(stretches, quiet))
    assert [part.num_samples for _, part in parts] == [170_000] and parts == list(speech_parts(stretches, quiet))
