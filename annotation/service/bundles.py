"""Whether an uploaded bundle is what it says: nothing of it is believed. The manifest is read with every bound that its model has, and the
all that it names is decoded, a picture at a time, after its header said that it does not fill the memory. Blocks, for a minute or two where
a recording has thousands of pictures: call it in a thread.
"""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Iterable
from typing import Any

from PIL import Image
from pydantic import ValidationError

from annotation.recording.bundle import Manifest, Part, Screen, SpeechPart, parts_named
from annotation.storage.parts import Parts
from warehouse.errors import BadUpload
from warehouse.identity import ID_HEX_DIGITS

PNG_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
PNG_TAIL = b"\x00\x00\x00\x00IEND\xaeB`\x82"
MAX_PIXELS = 64 * 1024 * 1024
"""Of one picture: two 8K screens side by side. A small file may say that it is larger than any memory."""

BROKEN_PICTURE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""What PIL raises for a PNG that is none to its end."""
MOST_NAMED, LONGEST_NAME = 12, 100
"""Applications in a list's line."""


def checked(parts: Parts, digest: str, recording_id: str, announced: Iterable[Part]) -> Manifest:
    """The manifest of a recording, all of whose parts have arrived. Raises BadUpload."""
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
    for screen in manifest.screens:
        _check_picture(parts, screen)
    for speech in manifest.speech:
        _check_speech(parts, speech)
    return manifest


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
        "query": manifest.task.query, "applications": named, "environment": manifest.task.environment,
        "num_actions": len(manifest.actions), "length_s": manifest.length_s,
    }  # fmt: skip


def _check_picture(parts: Parts, screen: Screen) -> None:
    """Its name is that of its bytes, its header is a PNG's of the size that was told, it is there to its end, and it can be drawn."""
    if screen.screen_id != f"screen-{screen.sha256[:ID_HEX_DIGITS]}":
        raise BadUpload(f"{screen.screen_id} is not the id of the picture {screen.sha256[:12]}…: ids are made of the digest's beginning")
    with parts.path(screen.sha256).open("rb") as file:
        head = file.read(len(PNG_HEAD) + 17)
        file.seek(-min(len(PNG_TAIL), file.seek(0, io.SEEK_END)), io.SEEK_END)
        tail = file.read()
    if len(head) < len(PNG_HEAD) + 17 or not head.startswith(PNG_HEAD) or tail != PNG_TAIL:
        raise BadUpload(f"the part {screen.sha256[:12]}… of {screen.screen_id} is no whole PNG picture")
    width, height = struct.unpack(">II", head[16:24])
    if zlib.crc32(head[12:29]) != struct.unpack(">I", head[29:33])[0]:
        raise BadUpload(f"the part {screen.sha256[:12]}… of {screen.screen_id} is no PNG picture: its header is broken")
    if (width, height) != (screen.width_px, screen.height_px):
        raise BadUpload(f"{screen.screen_id} has {width} by {height} pixels, its manifest says {screen.width_px} by {screen.height_px}")
    if width * height > MAX_PIXELS:
        raise BadUpload(f"{screen.screen_id} has {width} by {height} pixels: {MAX_PIXELS} in all are taken at most")
    _decode(parts, screen)


def _decode(parts: Parts, screen: Screen) -> None:
    """What is broken is found here, not by whoever trains on it. A file may have several headers: the size is compared again."""
    try:
        with _opened(parts, screen) as picture:
            picture.verify()  # the checksums of all chunks
        with _opened(parts, screen) as picture:
            picture.load()
    except BROKEN_PICTURE as error:
        raise BadUpload(
            f"the part {screen.sha256[:12]}… of {screen.screen_id} cannot be drawn ({error}): take this picture out of the recording"
        ) from None


def _opened(parts: Parts, screen: Screen) -> Image.Image:
    picture = Image.open(parts.path(screen.sha256), formats=("PNG",))
    if picture.size != (screen.width_px, screen.height_px):
        picture.close()
        raise ValueError(f"it has two sizes, one of them {picture.width} by {picture.height}")
    return picture


def _check_speech(parts: Parts, speech: SpeechPart) -> None:
    told = f"the part {speech.sha256[:12]}…"
    try:
        with wave.open(io.BytesIO(parts.get(speech.sha256))) as sound:
            found = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            num = len(sound.readframes(speech.num_samples + 1)) // 2
    except (wave.Error, EOFError, ValueError):
        raise BadUpload(f"{told} is no WAV file") from None
    if found != (1, 2, speech.sample_rate_hz) or num != speech.num_samples:
        raise BadUpload(f"{told} is not {speech.num_samples} samples of mono 16-bit sound at {speech.sample_rate_hz} Hz")
