"""From a journal to a manifest: what a session left, whether it ended or was killed, becomes a recording that can be reviewed.

Speech is recognised here, private words are taken out of the words and silenced in the sound, and thoughts are put to their actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from annotation.recorder.settings import Header
from annotation.recorder.speech import wav
from annotation.recorder.speech.alignment import align
from annotation.recorder.speech.speech import Recogniser, chunks
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import SAMPLE_RATE_HZ, Manifest, RecordedAction, Screen, Span, SpeechPart, Word
from annotation.recordings.redaction import Redactor
from warehouse.core.errors import RecordingRefused

SILENCE_EDGE_S = 0.15
GAP_S = 0.05
"""Stretches of sound that follow each other within this time are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Sound without a gap: samples from `at` in speech.pcm, the first taken at `start_s`."""

    at: int
    num_samples: int
    start_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.num_samples / SAMPLE_RATE_HZ


def finish(store: Store, recogniser: Recogniser | None = None, redactor: Redactor | None = None) -> Manifest:
    """Write the manifest; the journal goes. Raises RecordingRefused where the journal has no session.

    `recogniser` None leaves the sound as it is and thoughts empty. May be called again after a crash: nothing is lost before the manifest
    is whole. `redactor` is the session's, which knows the secrets that were typed; a resumed session has lost what it had learned.
    """
    records = list(store.journal())
    header = next((Header.model_validate(record) for record in records if record["type"] == "header"), None)
    if header is None:
        raise RecordingRefused(f"The recording {store.name} holds nothing: `flywheel record delete {store.name}`")
    stretches, samples = stretches_of(records, store.speech())
    words = recognise(recogniser, stretches, samples)
    words, silenced, hidden = private_words(words, redactor)
    if silenced:
        samples = silence(samples, stretches, silenced)
        store.replace_speech(samples)
    screens = screens_of(store, records)
    actions = actions_of(records, screens)
    thoughts = align(words, [action.start_s for action in actions])
    actions = [action.model_copy(update={"thought": thought}) for action, thought in zip(actions, thoughts, strict=True)]
    end = next((record for record in records if record["type"] == "end"), {})
    hidden.update(kind for action in actions for kind in action.hidden)
    times = [0.0, *(action.end_s for action in actions), *(stretch.end_s for stretch in stretches)]
    manifest = Manifest(
        recording_id=store.cover.recording_id,
        source=header.source,
        started_at=header.started_at,
        length_s=round(end.get("time_s", max(times)), 4),
        track=header.track,
        task=header.task,
        result=end.get("result", "unsaid"),
        consent=header.consent,
        machine=header.machine.model_copy(update={"recogniser": recogniser.name if recogniser else ""}),
        actions=tuple(actions),
        screens=tuple({screen.screen_id: screen for screen in screens.values()}.values()),
        last_screen_id=screens[end["frame"]].screen_id if end.get("frame") in screens else None,
        words=tuple(words),
        speech=tuple(part for _, part in speech_parts(stretches, samples)),
        pauses=pauses_of(records),
        hidden={**dict(hidden), **({"excluded": end["hidden"]["excluded"]} if end.get("hidden", {}).get("excluded") else {})},
    )
    store.put_manifest(manifest, "recorded")
    return manifest


def stretches_of(records: Sequence[dict[str, Any]], samples: bytes) -> tuple[list[Stretch], bytes]:
    """Where in the sound each uninterrupted stretch is. Sound without a line (killed between the two) is left out."""
    stretches: list[Stretch] = []
    at = 0
    for record in records:
        if record["type"] != "speech":
            continue
        count = min(record["num_samples"], len(samples) // 2 - at)
        if count <= 0:
            break
        last = stretches[-1] if stretches else None
        if last is not None and abs(record["start_s"] - last.end_s) < GAP_S:
            stretches[-1] = Stretch(at=last.at, num_samples=last.num_samples + count, start_s=last.start_s)
        else:
            stretches.append(Stretch(at=at, num_samples=count, start_s=max(0.0, record["start_s"])))
        at += count
    return stretches, samples[: at * 2]


def recognise(recogniser: Recogniser | None, stretches: Sequence[Stretch], samples: bytes) -> list[Word]:
    if recogniser is None:
        return []
    return [
        word
        for stretch in stretches
        for piece, start_s in chunks(samples[stretch.at * 2 : (stretch.at + stretch.num_samples) * 2], stretch.start_s)
        for word in recogniser.words(piece, start_s)
    ]


def private_words(words: Sequence[Word], redactor: Redactor | None = None) -> tuple[list[Word], list[Span], Counter[str]]:
    """Words with the private ones named in brackets, when those were said, and how many of which kind."""
    kinds = (redactor or Redactor()).redact_words([word.text for word in words])
    kept: list[Word] = []
    spans: list[Span] = []
    counts: Counter[str] = Counter()
    before: str | None = None
    for word, kind in zip(words, kinds, strict=True):
        if kind is None:
            kept.append(word)
        else:
            spans.append(Span(start_s=max(0.0, word.start_s - SILENCE_EDGE_S), end_s=word.end_s + SILENCE_EDGE_S))
            if kind == before:
                kept[-1] = kept[-1].model_copy(update={"end_s": word.end_s})
            else:
                kept.append(word.model_copy(update={"text": f"[{kind}]"}))
                counts[kind] += 1
        before = kind
    return kept, spans, counts


def silence(samples: bytes, stretches: Sequence[Stretch], spans: Sequence[Span]) -> bytes:
    """The sound with nothing to hear in these spans; its length stays."""
    result = bytearray(samples)
    for stretch in stretches:
        for span in spans:
            first = max(0, round((span.start_s - stretch.start_s) * SAMPLE_RATE_HZ))
            last = min(stretch.num_samples, round((span.end_s - stretch.start_s) * SAMPLE_RATE_HZ))
            if last > first:
                result[(stretch.at + first) * 2 : (stretch.at + last) * 2] = bytes((last - first) * 2)
    return bytes(result)


def speech_parts(stretches: Sequence[Stretch], samples: bytes) -> Iterator[tuple[bytes, SpeechPart]]:
    """WAV files of at most a minute, and what the manifest says of each. The same samples always give the same parts."""
    for stretch in stretches:
        for at in range(0, stretch.num_samples, wav.PART_SAMPLES):
            count = min(wav.PART_SAMPLES, stretch.num_samples - at)
            data = wav.pack(samples[(stretch.at + at) * 2 : (stretch.at + at + count) * 2])
            start_s = round(stretch.start_s + at / SAMPLE_RATE_HZ, 6)
            yield data, SpeechPart(sha256=sha256(data).hexdigest(), start_s=start_s, num_samples=count)


def stretches_of_parts(parts: Sequence[SpeechPart]) -> list[Stretch]:
    """The stretches of a manifest, whose parts lie in speech.pcm one after the other."""
    stretches: list[Stretch] = []
    for part in parts:
        at = stretches[-1].at + stretches[-1].num_samples if stretches else 0
        stretches.append(Stretch(at=at, num_samples=part.num_samples, start_s=part.start_s))
    return stretches


def screens_of(store: Store, records: Sequence[dict[str, Any]]) -> dict[int, Screen]:
    """Screens by their frame's number; those whose picture is not whole on the disk are left out."""
    screens: dict[int, Screen] = {}
    there = set(store.screen_ids())
    for record in records:
        if record["type"] == "screen" and record["screen_id"] in there:
            fields = {name: record[name] for name in ("screen_id", "width_px", "height_px", "elements", "redacted")}
            digest = sha256(store.screen(record["screen_id"])).hexdigest()
            screens[record["frame"]] = Screen(sha256=digest, **fields)
    return screens


def actions_of(records: Sequence[dict[str, Any]], screens: dict[int, Screen]) -> list[RecordedAction]:
    found = []
    for record in records:
        if record["type"] == "action":
            screen = screens.get(record["frame"]) if record["frame"] is not None else None
            fields = {name: record[name] for name in ("action", "start_s", "end_s", "target", "window", "hidden")}
            found.append(RecordedAction(screen_id=screen.screen_id if screen else None, **fields))
    return sorted(found, key=lambda action: action.start_s)


def pauses_of(records: Sequence[dict[str, Any]]) -> tuple[Span, ...]:
    """Pauses that ended; one in which recording ended has its end there."""
    pauses: list[Span] = []
    began: float | None = None
    for record in records:
        if record["type"] == "pause":
            began = record["time_s"]
        elif record["type"] in ("go on", "end") and began is not None:
            pauses.append(Span(start_s=began, end_s=record["time_s"]))
            began = None
    return tuple(pauses)
