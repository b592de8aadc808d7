"""Sending a reviewed recording to the annotation server: bundle.py's three calls, each part under its digest, only those the server lacks.

Whatever interrupts it (this machine, the network, the server), the same command goes on where it was: the server is asked what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import httpx
from pydantic import ValidationError

from annotation.recorder.review.finish import speech_parts, stretches_of_parts
from annotation.recorder.store.store import Store
from annotation.recordings.addresses import is_here
from annotation.recordings.bundle import (
    ANNOUNCE_PATH,
    Announced,
    Announcement,
    Checking,
    Completed,
    Incomplete,
    MediaType,
    Part,
    complete_path,
    part_path,
    parts_named,
)
from warehouse.core.errors import AccessDenied, RecordingRefused, UploadFailed

LIMIT_S = 60.0
ATTEMPTS = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
ACCEPTED = 202
"""The server looks at the pictures; it answers when it has, or after some seconds."""
Progress = Callable[[int, int], None]
Answer = TypeVar("Answer", Announced, Incomplete, Checking, Completed)


class Bundle:
    """A reviewed recording as parts, unsealed in memory one at a time."""

    def __init__(self, store: Store) -> None:
        """Raises RecordingRefused for one that nobody looked through."""
        manifest = store.manifest()
        if store.cover.state not in ("reviewed", "uploaded") or manifest.review is None:
            raise RecordingRefused(f"The recording {store.name} was not looked through: `flywheel record review {store.name}` comes first.")
        self._store, self.manifest = store, manifest
        self._manifest_bytes = manifest.model_dump_json().encode()
        self.manifest_sha256 = sha256(self._manifest_bytes).hexdigest()
        self._screens = {screen.sha256: screen.screen_id for screen in manifest.screens}
        self._speech = {part.sha256: number for number, part in enumerate(manifest.speech)}

    def announcement(self) -> Announcement:
        """Every part with its size. Raises RecordingRefused where a file on the disk is not what the manifest says."""
        kinds: dict[str, MediaType] = {self.manifest_sha256: "application/json", **parts_named(self.manifest)}
        parts = tuple(Part(sha256=digest, num_bytes=len(self.read(digest)), media_type=kind) for digest, kind in kinds.items())
        return Announcement(recording_id=self.manifest.recording_id, manifest=self.manifest_sha256, parts=parts)

    def read(self, digest: str) -> bytes:
        """The bytes of a part."""
        if digest == self.manifest_sha256:
            return self._manifest_bytes
        data = self._store.screen(self._screens[digest]) if digest in self._screens else self._sound(self._speech[digest])
        if sha256(data).hexdigest() != digest:
            raise RecordingRefused(f"A file of the recording {self._store.name} was changed after the review: review it again.")
        return data

    def _sound(self, number: int) -> bytes:
        stretches = stretches_of_parts(self.manifest.speech)
        return next(data for data, _ in speech_parts([stretches[number]], self._store.speech()))


class Uploader:
    """One server and one annotator's token."""

    def __init__(self, url: str, token: str, *, attempts: int = ATTEMPTS, wait_s: float = FIRST_WAIT_S) -> None:
        """Raises ConfigError for an address that is neither sealed nor this machine's."""
        self._url, self._attempts, self._wait_s = url.rstrip("/"), attempts, wait_s
        self._client = httpx.Client(
            base_url=self._url, headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT_S, trust_env=not is_here(url)
        )

    def close(self) -> None:
        self._client.close()

    def upload(self, store: Store, progress: Progress | None = None) -> int:
        """Send what the server lacks, and complete it; how many parts were sent. Raises UploadFailed after the last attempt, AccessDenied
        for a token that the server does not take, RecordingRefused for a recording that was not reviewed."""
        bundle = Bundle(store)
        announcement = bundle.announcement()
        missing = self._announce(announcement)
        sent = 0
        while True:
            for number, digest in enumerate(missing):
                self._put(bundle, announcement, digest)
                sent += 1
                if progress is not None:
                    progress(number + 1, len(missing))
            missing = self._complete(announcement)
            if not missing:
                store.set_state("uploaded")
                return sent
            if sent > 3 * len(announcement.parts):
                raise UploadFailed(f"{self._url} keeps reporting parts as missing that it has accepted; the upload stops.")

    def _announce(self, announcement: Announcement) -> tuple[str, ...]:
        answer = self._call("POST", ANNOUNCE_PATH, announcement.model_dump_json().encode(), "application/json")
        return self._read(answer, Announced).missing

    def _put(self, bundle: Bundle, announcement: Announcement, digest: str) -> None:
        kinds = {part.sha256: part.media_type for part in announcement.parts}
        if digest not in kinds:
            raise UploadFailed(f"{self._url} asks for a part {digest[:12]}… that this recording does not have.")
        self._call("PUT", part_path(announcement.recording_id, digest), bundle.read(digest), kinds[digest])

    def _complete(self, announcement: Announcement) -> tuple[str, ...]:
        """What the server still lacks; empty when the recording is whole there."""
        while True:
            answer = self._call("POST", complete_path(announcement.recording_id), b"", "application/json")
            if answer.status_code != ACCEPTED:
                break
            self._read(answer, Checking)
            time.sleep(self._wait_s)
        if answer.status_code == 409:
            return self._read(answer, Incomplete).missing
        self._read(answer, Completed)
        return ()

    def _read(self, answer: httpx.Response, kind: type[Answer]) -> Answer:
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise UploadFailed(f"{self._url} does not answer like an annotation server: {answer.text[:200]!r}") from error

    def _call(self, method: str, path: str, body: bytes, media_type: str) -> httpx.Response:
        """One request, again after a failure that may pass; all of them may be repeated."""
        wait_s, problem = self._wait_s, ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            try:
                answer = self._client.request(method, path, content=body, headers={"Content-Type": media_type})
            except httpx.TransportError as error:
                problem = type(error).__name__
                continue
            if answer.is_success or (answer.status_code == 409 and path.endswith("/complete")):
                return answer
            if answer.status_code in (401, 403):
                raise AccessDenied(f"{self._url} does not take this token ({answer.status_code}): ask for a new one there.")
            problem = f"status {answer.status_code}: {answer.text[:300]}"
            if answer.status_code < 500 and answer.status_code != 429:
                raise UploadFailed(f"{self._url} refuses {path}: {problem}")
        raise UploadFailed(f"{self._url} could not be reached in {self._attempts} attempts ({problem}); give the same command again later.")
