"""The bundle: what a recording is when it leaves a person's machine. The contract between the upload client and the annotation server.

A bundle is one `manifest.json` (a Manifest) and the parts that it names, each under the SHA-256 of its bytes: screenshots (PNG) and
speech (WAV, at most a minute a part). A part that several recordings share is sent once. It goes over in three calls, each of which may
be repeated:

    POST /api/v1/recordings                      Announcement -> Announced: which parts are missing
    PUT  /api/v1/recordings/{id}/parts/{sha256}  the bytes of one part; the manifest is a part too
    POST /api/v1/recordings/{id}/complete        -> Completed; 409 with Incomplete while parts are missing, 202
        with Checking while its pictures are looked at: retry

All times are seconds since the recording began (`Manifest.started_at`), on one clock for events, pictures and sound. Points and boxes are
pixels of the screenshots. How a bundle is made is finish.py's, how it is sent upload.py's.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.actions import Action

FORMAT: Final = 1
MAX_PART_BYTES = 16 * 1024 * 1024
MAX_PARTS = 20_000
MAX_ACTIONS = 5_000
MAX_QUERY = 4_000
SAMPLE_RATE_HZ: Final = 16_000
ANNOUNCE_PATH = "/api/v1/recordings"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of a part's bytes, in hexadecimal")]
RecordingId = Annotated[str, Field(pattern=r"^recording-[0-9a-f]{16}$", description="random, given when the recording began")]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400, allow_inf_nan=False, description="since the recording began")]
Line = Annotated[str, Field(max_length=2_000)]
Track = Literal["expert", "novice"]
Source = Literal["desktop", "browser"]
MediaType = Literal["image/png", "audio/wav", "application/json"]
Result = Literal["done", "failed", "infeasible", "unsaid"]


def part_path(recording_id: str, sha256: str) -> str:
    return f"{ANNOUNCE_PATH}/{recording_id}/parts/{sha256}"


def complete_path(recording_id: str) -> str:
    return f"{ANNOUNCE_PATH}/{recording_id}/complete"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Box(_Model):
    """A rectangle; the right and bottom edges are outside."""

    x: int
    y: int
    width: Annotated[int, Field(ge=0, le=100_000)]
    height: Annotated[int, Field(ge=0, le=100_000)]

    def holds(self, x: float, y: float) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height

    def overlaps(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


class ScreenElement(_Model):
    """What a program's accessibility tree reported about a visible thing: role as in sandbox.session.Element, redacted text."""

    role: Annotated[str, Field(max_length=40)]
    text: Line = ""
    states: tuple[str, ...] = ()
    box: Box


class Window(_Model):
    """The window that had the keyboard."""

    title: Line = ""
    application: Annotated[str, Field(max_length=300, description="class of the window, or name of the program")] = ""
    url: Annotated[str, Field(max_length=4_000, description="of the page, in a browser recording")] = ""
    box: Box | None = None


class Screen(_Model):
    """A picture of the screen, and what stood there. `redacted` are the blackened places."""

    screen_id: Annotated[str, Field(pattern=r"^screen-[0-9a-f]{16}$", description="as in the table `screenshots`")]
    sha256: Sha256
    width_px: Annotated[int, Field(ge=1, le=20_000)]
    height_px: Annotated[int, Field(ge=1, le=20_000)]
    elements: Annotated[tuple[ScreenElement, ...], Field(max_length=2_000)] = ()
    redacted: Annotated[tuple[Box, ...], Field(max_length=5_000)] = ()


class Word(_Model):
    """A word as the recogniser heard it, or the name of what was taken out in brackets. `confidence` is the recogniser's own, in [0, 1]."""

    text: Annotated[str, Field(max_length=200)]
    start_s: Seconds
    end_s: Seconds
    confidence: Annotated[float, Field(ge=0, le=1)] = 1.0


class Thought(_Model):
    """What was said before an action, since the action before it. `raw` is what the recogniser heard and stays; `text` is the wording in
    use, by the author that `origin` names."""

    text: Annotated[str, Field(max_length=20_000)]
    raw: Annotated[str, Field(max_length=20_000)] = ""
    origin: Literal["speech", "refined", "person"] = "speech"
    start_s: Seconds
    end_s: Seconds


class RecordedAction(_Model):
    """One action, with the screen as it was before it. `hidden` names what was taken out of its text, e.g. ("password",)."""

    action: Action
    start_s: Seconds
    end_s: Seconds
    screen_id: Annotated[str | None, Field(description="None where no picture could be made private in time")] = None
    target: Annotated[ScreenElement | None, Field(description="smallest element under its first point, or what had the keyboard")] = None
    window: Window = Window()
    thought: Thought | None = None
    hidden: tuple[str, ...] = ()


class SpeechPart(_Model):
    """A stretch of 16 kHz mono speech. What was taken out of it is silence: times stay what they were."""

    sha256: Sha256
    start_s: Seconds
    num_samples: Annotated[int, Field(ge=1, le=MAX_PART_BYTES // 2)]
    sample_rate_hz: Literal[16_000] = SAMPLE_RATE_HZ


class Span(_Model):
    start_s: Seconds
    end_s: Seconds

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"a span from {self.start_s} to {self.end_s} s: it must not end before it starts")
        return self


class Consent(_Model):
    """What was agreed to, by whom and when. The text itself is kept under its digest (consent.py)."""

    name: Annotated[str, Field(min_length=2, max_length=200)]
    signed_at: datetime
    text_version: str
    text_sha256: Sha256
    with_microphone: bool


class TaskQuery(_Model):
    """What the person set out to do, and where it stands in the task design."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    applications: tuple[str, ...] = ()
    node: Annotated[str, Field(max_length=300, description="id of the query or node in the task graph, where it came from one")] = ""
    difficulty: Annotated[str, Field(max_length=40)] = ""
    environment: Annotated[
        str, Field(max_length=300, description="name of a task in which it can be replayed, e.g. desktop/note, where there is one")
    ] = ""
    seed: int | None = None


class Machine(_Model):
    """What it was recorded on; no name of a machine or an account."""

    system: Annotated[str, Field(max_length=40)]
    width_px: Annotated[int, Field(ge=1, le=20_000)]
    height_px: Annotated[int, Field(ge=1, le=20_000)]
    input_source: Annotated[str, Field(max_length=40)]
    accessibility: bool
    text_reader: Annotated[str, Field(max_length=80, description="what read the pixels for redaction; empty: nothing did")] = ""
    recogniser: Annotated[str, Field(max_length=80)] = ""


class Review(_Model):
    """The person's own look at the recording, without which it cannot be uploaded."""

    confirmed_at: datetime
    num_deleted_spans: Annotated[int, Field(ge=0)] = 0
    num_edited_thoughts: Annotated[int, Field(ge=0)] = 0
    num_drawn_boxes: Annotated[int, Field(ge=0)] = 0


class Manifest(_Model):
    """A whole recording, without the bytes of its parts."""

    format: Literal[1] = FORMAT
    recording_id: RecordingId
    source: Source
    started_at: datetime
    length_s: Seconds
    track: Track
    task: TaskQuery
    result: Result = "unsaid"
    consent: Consent
    machine: Machine
    actions: Annotated[tuple[RecordedAction, ...], Field(max_length=MAX_ACTIONS)]
    screens: Annotated[tuple[Screen, ...], Field(max_length=MAX_PARTS)]
    last_screen_id: str | None = None
    words: Annotated[tuple[Word, ...], Field(max_length=200_000)] = ()
    speech: Annotated[tuple[SpeechPart, ...], Field(max_length=MAX_PARTS)] = ()
    pauses: tuple[Span, ...] = ()
    deleted: tuple[Span, ...] = ()
    hidden: dict[str, int] = Field(default_factory=dict, description="how much was taken out, by kind")
    review: Review | None = None

    @model_validator(mode="after")
    def _screens_are_there(self) -> Self:
        known = {screen.screen_id for screen in self.screens}
        named = {action.screen_id for action in self.actions} | {self.last_screen_id}
        if missing := sorted(name for name in named - known if name is not None):
            raise ValueError(f"actions name {len(missing)} screens that the manifest does not hold, e.g. {missing[0]}")
        if len(known) != len(self.screens):
            raise ValueError(f"{len(self.screens)} screens have {len(known)} ids: each screen is stored once")
        return self

    @model_validator(mode="after")
    def _actions_are_in_order(self) -> Self:
        starts = [action.start_s for action in self.actions]
        early = next((index for index, (before, start) in enumerate(pairwise(starts), 1) if start < before), None)
        if early is not None:
            raise ValueError(f"action {early} starts at {starts[early]:g} s, before the one in front of it: put them in the order of times")
        return self

    def screen(self, screen_id: str) -> Screen:
        return next(screen for screen in self.screens if screen.screen_id == screen_id)


class Part(_Model):
    sha256: Sha256
    num_bytes: Annotated[int, Field(ge=1, le=MAX_PART_BYTES)]
    media_type: MediaType


class Announcement(_Model):
    """The first call: what will come. `manifest` is the SHA-256 of one of the parts."""

    recording_id: RecordingId
    manifest: Sha256
    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _manifest_is_a_part(self) -> Self:
        if not any(part.sha256 == self.manifest and part.media_type == "application/json" for part in self.parts):
            raise ValueError("the manifest is not among the parts: announce it as application/json")
        if len({part.sha256 for part in self.parts}) < len(self.parts):
            raise ValueError(f"{len(self.parts)} parts have {len({part.sha256 for part in self.parts})} digests: announce each part once")
        return self


class Announced(_Model):
    """`missing`: parts that the server does not hold yet, from whatever recording."""

    recording_id: RecordingId
    missing: tuple[Sha256, ...]
    is_complete: bool = False


class Incomplete(_Model):
    recording_id: RecordingId
    missing: tuple[Sha256, ...]


class Completed(_Model):
    recording_id: RecordingId
    num_actions: int


class Checking(_Model):
    """Its pictures are being checked: retry."""

    recording_id: RecordingId
    num_checked: int
    num_pictures: int


def parts_named(manifest: Manifest) -> dict[str, MediaType]:
    """Media type of every part that a manifest names, by digest; the manifest itself is not among them."""
    pictures: dict[str, MediaType] = {screen.sha256: "image/png" for screen in manifest.screens}
    return pictures | {speech.sha256: "audio/wav" for speech in manifest.speech}
