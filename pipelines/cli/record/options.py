"""What the commands of `flywheel record` share: their options, and where recordings are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import ValidationError

from pipelines.cli.options import console, home_of
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from annotation.recorder.store.store import Store
    from annotation.recordings.bundle import Box

T = TypeVar("T")
PASSPHRASE_VARIABLE = "FLYWHEEL_RECORD_PASSPHRASE"

NameArgument = Annotated[str, typer.Argument(help="Name of the recording.")]
RecogniserOption = Annotated[str, typer.Option(help="auto, pocketsphinx, faster-whisper (its weights have to be here), or none.")]
ModelOption = Annotated[str, typer.Option("--speech-model", help="faster-whisper: a folder with weights, or a model's name.")]
MicrophoneOption = Annotated[str | None, typer.Option("--microphone", help="Name or number of the microphone \\[default: the system's].")]
SpeechOption = Annotated[bool, typer.Option("--speech/--no-speech", help="Record what you say.")]
LimitOption = Annotated[float, typer.Option("--limit", help="Seconds after which it ends by itself.")]
SignedOption = Annotated[
    str | None, typer.Option("--signed", help="Your name: you read `flywheel record consent` and agree \\[default: you are asked].")
]
QueryOption = Annotated[str, typer.Option("--query", "-q", help="What you set out to do, in a sentence.")]
TrackOption = Annotated[str, typer.Option(help="expert: you know how; novice: you find out.")]
EncryptOption = Annotated[bool, typer.Option("--encrypt", help=f"Seal it on the disk by a passphrase, asked for or {PASSPHRASE_VARIABLE}.")]
ApplicationsOption = Annotated[list[str] | None, typer.Option("--app", help="Application or site that this is about; may be repeated.")]
NodeOption = Annotated[str, typer.Option("--node", help="Id of the query in the task graph.")]
EnvironmentOption = Annotated[str, typer.Option("--environment", help="Task in which it can be replayed, e.g. desktop/note.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of that task.")]
RegionOption = Annotated[list[str] | None, typer.Option("--exclude-region", help="Never record this part: X,Y,WIDTH,HEIGHT; repeatable.")]


def root_of(home: Path | None) -> Path:
    return home_of(home).root / "recordings"


def opened(name: str, home: Path | None) -> Store:
    """A recording that is there; where it is sealed its passphrase is asked for. Raises RecordingRefused, RecordingLocked."""
    from annotation.recorder.store import store as stores

    root = root_of(home)
    is_sealed = stores.read_cover(root / name).seal is not None
    return stores.open_store(root, name, _passphrase() if is_sealed else None)


def _passphrase() -> str:
    return os.environ.get(PASSPHRASE_VARIABLE) or str(typer.prompt("Passphrase", hide_input=True))


def new_passphrase() -> str:
    return os.environ.get(PASSPHRASE_VARIABLE) or str(typer.prompt("New passphrase", hide_input=True, confirmation_prompt=True))


def keys_of(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split("+"))


def region_of(text: str) -> Box:
    """Raises ConfigError."""
    from annotation.recordings.bundle import Box

    try:
        x, y, width, height = (int(part) for part in text.split(","))
        return Box(x=x, y=y, width=width, height=height)
    except ValueError as error:
        raise ConfigError(f"--exclude-region {text}: four whole numbers are expected, X,Y,WIDTH,HEIGHT in pixels.") from error


def checked(make: Callable[[], T]) -> T:
    """What is made of options. Raises ConfigError where one of them is not allowed."""
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}, not {first['input']!r}") from error


def print_paragraphs(text: str) -> None:
    """As wide as the terminal: lines of a text are the source's, not the reader's."""
    for paragraph in text.strip().split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", highlight=False)
