"""Whether an uploaded bundle is what it says: nothing of it is believed. The manifest is read with every bound that its model has, and the
speech that it names is decoded; its pictures are picture_check.py's. Blocks: call it in a thread.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from annotation.recordings.bundle import Manifest, Part, Screen, SpeechPart, parts_named
from annotation.service.recordings.picture_check import Wanted
from annotation.storage.parts import Parts
from warehouse.core.errors import BadUpload, UnreadablePicture
from warehouse.storage.screenshots.pictures import check_size

MAX_RECORDING_PIXELS = 16 * 10**9
"""Of all pictures of a recording: 7,700 of full HD."""
MOST_NAMED, LONGEST_NAME = 12, 100
"""Applications in a list's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is kept of a manifest while its pictures are looked at: itself is many times its bytes."""

    track: str
    summary: dict[str, Any]
    node: str
    consent: str
    num_actions: int
    pictures: tuple[Wanted, ...]

    @property
    def num_pixels(self) -> int:
        return sum(one.width_px * one.height_px for one in self.pictures)


def checked(parts: Parts, digest: str, recording_id: str, announced: Iterable[Part]) -> Checked:
    """What a recording is, all of whose parts have arrived; its pictures are still to be looked at. Raises BadUpload."""
    manifest = read_manifest(parts, digest)
    if manifest.recording_id != recording_id:
        raise BadUpload(f"the manifest is of {manifest.recording_id}, not of {recording_id}")
    if manifest.review is None:
        raise BadUpload(f"nobody has looked at {recording_id}: look through it, confirm, and upload it again")
    named = {**parts_named(manifest), digest: "application/json"}
    kinds = {part.sha256: part.media_type for part in announced}
    if strange := sorted(sha256 for sha256 in named.keys() | kinds.keys() if named.get(sha256) != kinds.get(sha256)):
        raise BadUpload(
            f"{len(strange)} parts were not announced as the manifest names them, e.g. {strange[0][:12]}…: announced as "
            f"{kinds.get(strange[0], 'nothing')}, named as {named.get(strange[0], 'nothing')}"
        )
    found = Checked(
        track=manifest.track,
        summary=summary_of(manifest),
        node=manifest.task.node,
        consent=manifest.consent.text_sha256,
        num_actions=len(manifest.actions),
        pictures=tuple(dict.fromkeys(_wanted(parts, screen) for screen in manifest.screens)),
    )
    if found.num_pixels > MAX_RECORDING_PIXELS:
        raise BadUpload(f"the pictures of {recording_id} have {found.num_pixels} pixels: {MAX_RECORDING_PIXELS} are taken at most: trim it")
    for speech in manifest.speech:
        _check_speech(parts, speech)
    return found


def read_manifest(parts: Parts, digest: str) -> Manifest:
    """Raises BadUpload, UnknownSubject."""
    try:
        return Manifest.model_validate_json(parts.get(digest))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadUpload(f"the manifest is not usable: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def summary_of(manifest: Manifest) -> dict[str, Any]:
    """What lists show of it (schema.Recording.summary)."""
    applications = manifest.task.applications or tuple(dict.fromkeys(one.window.application for one in manifest.actions))
    named = [name[:LONGEST_NAME] for name in applications if name][:MOST_NAMED]
    return {
        "query": manifest.task.query,
        "applications": named,
        "environment": manifest.task.environment,
        "num_actions": len(manifest.actions),
        "length_s": manifest.length_s,
    }


def _wanted(parts: Parts, screen: Screen) -> Wanted:
    try:
        check_size((screen.width_px, screen.height_px))
    except UnreadablePicture as error:
        raise BadUpload(f"{screen.screen_id}: {error}") from None
    return Wanted(
        path=str(parts.path(screen.sha256)),
        sha256=screen.sha256,
        screen_id=screen.screen_id,
        width_px=screen.width_px,
        height_px=screen.height_px,
    )


def _check_speech(parts: Parts, speech: SpeechPart) -> None:
    part = f"the part {speech.sha256[:12]}…"
    try:
        with wave.open(io.BytesIO(parts.get(speech.sha256))) as sound:
            found = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            num = len(sound.readframes(speech.num_samples + 1)) // 2
    except (wave.Error, EOFError, ValueError):
        raise BadUpload(f"{part} is not a WAV file") from None
    if found != (1, 2, speech.sample_rate_hz) or num != speech.num_samples:
        raise BadUpload(f"{part} is not {speech.num_samples} samples of mono 16-bit sound at {speech.sample_rate_hz} Hz")
