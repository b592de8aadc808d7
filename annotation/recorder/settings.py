"""What a recording session is asked to do, and the first record of its journal."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from annotation.recorder.privacy.secrecy import UnknownTyping
from annotation.recorder.screen.exclusions import Exclusions
from annotation.recorder.screen.sign import Corner
from annotation.recordings.bundle import Consent, Machine, Source, TaskQuery, Track

Keys = Annotated[tuple[str, ...], Field(min_length=2, max_length=4)]


class RecordSettings(BaseModel):
    """How a session records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    track: Annotated[Track, Field(description="an expert shows what is done; a novice explores what is new")] = "expert"
    exclusions: Exclusions = Exclusions()
    pause_keys: Keys = ("ctrl", "alt", "p")
    stop_keys: Keys = ("ctrl", "alt", "q")
    pictures_per_s: Annotated[float, Field(gt=0, le=30, description="looked at, not stored")] = 8.0
    unknown_typing: Annotated[UnknownTyping, Field(description="typing into programs that expose nothing of themselves")] = "keep"
    read_pixels: Annotated[Literal["auto", "off"], Field(description="look for private text in the pixels, where tesseract is")] = "auto"
    sign: Corner = "top"
    hold_s: Annotated[float, Field(ge=0.1, le=5, description="an action waits so long for news of what had the keyboard")] = 0.3
    run_pause_s: Annotated[float, Field(ge=1, le=60, description="typing is redacted as one run until such a pause")] = 6.0
    with_elements: bool = True


class Header(BaseModel):
    """The first record of a journal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["header"] = "header"
    source: Source
    started_at: datetime
    track: Track
    task: TaskQuery
    consent: Consent
    machine: Machine
