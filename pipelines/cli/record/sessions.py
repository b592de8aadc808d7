"""`flywheel record start`, `browser` and `resume`: make a recording. Whether it can be made is checked before anybody is asked to agree."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from pipelines.cli.options import HomeOption, console
from pipelines.cli.record.options import (
    ApplicationsOption,
    EncryptOption,
    EnvironmentOption,
    LimitOption,
    MicrophoneOption,
    ModelOption,
    NameArgument,
    NodeOption,
    QueryOption,
    RecogniserOption,
    RegionOption,
    SeedOption,
    SignedOption,
    SpeechOption,
    TrackOption,
    checked,
    keys_of,
    new_passphrase,
    opened,
    print_paragraphs,
    region_of,
    root_of,
)
from warehouse.core.errors import RecordingRefused

if TYPE_CHECKING:
    from annotation.recorder.settings import RecordSettings
    from annotation.recorder.speech.speech import Recogniser
    from annotation.recorder.store.store import Store
    from annotation.recordings.bundle import Consent, Manifest, TaskQuery
    from annotation.recordings.redaction import Redactor


def start(
    name: NameArgument,
    query: QueryOption,
    track: TrackOption = "expert",
    app: ApplicationsOption = None,
    node: NodeOption = "",
    environment: EnvironmentOption = "",
    seed: SeedOption = None,
    exclude_app: Annotated[list[str] | None, typer.Option("--exclude-app", help="Never record windows of this application.")] = None,
    exclude_title: Annotated[list[str] | None, typer.Option("--exclude-title", help="Never record windows titled so: *bank*.")] = None,
    exclude_region: RegionOption = None,
    microphone: MicrophoneOption = None,
    with_microphone: SpeechOption = True,
    recogniser: RecogniserOption = "auto",
    speech_model: ModelOption = "",
    hide_unknown: Annotated[
        bool, typer.Option("--hide-unknown", help="Hide all typing into programs that do not expose which element has the focus.")
    ] = False,
    pause_keys: Annotated[str, typer.Option(help="Pause and go on.")] = "ctrl+alt+p",
    stop_keys: Annotated[str, typer.Option(help="End the recording.")] = "ctrl+alt+q",
    sign: Annotated[str, typer.Option(help="Where the sign is: top, top-left, top-right, bottom, bottom-left, bottom-right.")] = "top",
    pictures_per_s: Annotated[float, typer.Option(help="How often the screen is looked at.")] = 8.0,
    encrypt: EncryptOption = False,
    signed: SignedOption = None,
    limit: LimitOption = 7200.0,
    home: HomeOption = None,
) -> None:
    """Record this screen until the stop keys or Ctrl-C. Nothing leaves this machine before you have confirmed it in `review`."""
    from annotation.recorder.desktop.machine import backends_for_this_machine, check_machine
    from annotation.recorder.desktop.recorder import Recorder
    from annotation.recorder.screen.exclusions import Exclusions
    from annotation.recorder.settings import RecordSettings
    from annotation.recorder.store import store as stores
    from annotation.recordings.bundle import TaskQuery

    def settings() -> tuple[RecordSettings, TaskQuery]:
        regions = tuple(region_of(text) for text in exclude_region or ())
        exclusions = Exclusions(applications=tuple(exclude_app or ()), titles=tuple(exclude_title or ()), regions=regions)
        given: dict[str, Any] = {
            "track": track,
            "exclusions": exclusions,
            "pause_keys": keys_of(pause_keys),
            "stop_keys": keys_of(stop_keys),
            "sign": sign,
            "pictures_per_s": pictures_per_s,
            "unknown_typing": "hide" if hide_unknown else "keep",
        }
        task = TaskQuery(query=query, applications=tuple(app or ()), node=node, environment=environment, seed=seed)
        return RecordSettings(**given), task

    chosen, task = checked(settings)
    recogniser = recogniser if with_microphone else "none"
    _check_new(name, home, recogniser)
    check_machine(chosen, with_microphone=with_microphone, microphone=microphone)
    agreed = _consent(signed, with_microphone=with_microphone)
    parts = backends_for_this_machine(chosen, with_microphone=with_microphone, microphone=microphone)
    store = stores.create(root_of(home), name, new_passphrase() if encrypt else None)
    recorder = Recorder(store, parts, chosen, task, agreed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: recorder.ask_to_stop())
    try:
        recorder.start()
    except BaseException:
        store.erase()
        raise
    _say_what_was_hidden(recorder.task, recorder.hidden_in_task)
    _say_what_is_known(parts.accessibility.is_available, parts.accessibility.reason, parts.text_reader is not None)
    console.print(f"recording {name}: pause with {pause_keys}, end with {stop_keys} or Ctrl-C", highlight=False)
    sys.stdout.flush()
    recorder.wait(limit)
    recorder.stop("unsaid")
    if recorder.failure is not None:
        console.print(f"[yellow]it ended by itself: {escape(recorder.failure)}; what was recorded until then is kept[/]")
    _finish(store, recogniser, speech_model, recorder.redactor)


def browser(
    name: NameArgument,
    query: QueryOption,
    url: Annotated[str, typer.Option("--url", help="Page to begin with.")] = "about:blank",
    track: TrackOption = "expert",
    app: ApplicationsOption = None,
    node: NodeOption = "",
    environment: EnvironmentOption = "",
    seed: SeedOption = None,
    exclude_site: Annotated[list[str] | None, typer.Option("--exclude-site", help="Never record this site: *bank*; repeatable.")] = None,
    chromium: Annotated[Path | None, typer.Option(help="The Chromium to open \\[default: the one that is found].")] = None,
    microphone: MicrophoneOption = None,
    with_microphone: SpeechOption = True,
    recogniser: RecogniserOption = "auto",
    speech_model: ModelOption = "",
    encrypt: EncryptOption = False,
    signed: SignedOption = None,
    limit: LimitOption = 7200.0,
    home: HomeOption = None,
) -> None:
    """Record work in a browser alone: opens a Chromium with a profile of its own; close it, or Ctrl-C, to end."""
    import asyncio

    from annotation.recorder.browser.browser_recorder import BrowserRecorder
    from annotation.recorder.browser.pages import check_display
    from annotation.recorder.screen.text_reader import find_text_reader
    from annotation.recorder.settings import RecordSettings
    from annotation.recorder.speech.microphone import Microphone
    from annotation.recorder.store import store as stores
    from annotation.recordings.bundle import TaskQuery
    from sandbox.browser.chromium import find_chromium

    def settings() -> tuple[RecordSettings, TaskQuery]:
        given: dict[str, Any] = {"track": track}
        task = TaskQuery(query=query, applications=tuple(app or ()), node=node, environment=environment, seed=seed)
        return RecordSettings(**given), task

    chosen, task = checked(settings)
    recogniser = recogniser if with_microphone else "none"
    _check_new(name, home, recogniser)
    executable = chromium or find_chromium(headless_shell=False).path
    check_display()
    speech = Microphone.called(microphone) if with_microphone else None
    if speech is not None:
        speech.check()
    reader = find_text_reader()
    if reader is not None:
        reader.check()
    agreed = _consent(signed, with_microphone=with_microphone)
    store = stores.create(root_of(home), name, new_passphrase() if encrypt else None)

    async def main() -> Redactor:
        recorder = BrowserRecorder(store, chosen, task, agreed, text_reader=reader, speech=speech, excluded_sites=exclude_site or ())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, recorder.ask_to_stop)
        # As root Chromium has no sandbox of its own: nobody should browse so, but a container may have no other user.
        flags = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        try:
            await recorder.start(executable, root_of(home).parent / "recording-profile", url, flags)
        except BaseException:
            store.erase()
            raise
        _say_what_was_hidden(recorder.task, recorder.hidden_in_task)
        console.print(f"recording {name} in {executable.name}: close it, or Ctrl-C, to end; pause with ctrl+alt+p", highlight=False)
        sys.stdout.flush()
        await recorder.run(limit)
        await recorder.stop("unsaid")
        return recorder.redactor

    redactor = asyncio.run(main())
    _finish(store, recogniser, speech_model, redactor)


def resume(name: NameArgument, recogniser: RecogniserOption = "auto", speech_model: ModelOption = "", home: HomeOption = None) -> None:
    """Finish a recording whose process was killed: everything up to its last action is there."""
    store = opened(name, home)
    if store.is_live:
        raise RecordingRefused(f"The recording {name} still goes on: end it first.")
    if store.has_manifest():
        raise RecordingRefused(f"The recording {name} is finished: `flywheel record review {name}`")
    _finish(store, recogniser, speech_model)


def _check_new(name: str, home: Path | None, recogniser: str) -> None:
    """Raises RecordingRefused for a name that is taken or no name, RecorderUnavailable for a recogniser that is not there."""
    from annotation.recorder.speech.speech import check_recogniser
    from annotation.recorder.store.store import check_new

    check_new(root_of(home), name)
    if recogniser != "none":
        check_recogniser(recogniser)


def _finish(store: Store, recogniser: str, speech_model: str, redactor: Redactor | None = None) -> Manifest:
    from annotation.recorder.review.finish import finish

    manifest = finish(store, _recogniser(recogniser, speech_model), redactor)
    thoughts = sum(action.thought is not None for action in manifest.actions)
    console.print(
        f"{len(manifest.actions)} actions, {thoughts} with a thought, {len(manifest.screens)} pictures; "
        f"look through it before it can be uploaded: flywheel record review {store.name}",
        highlight=False,
        soft_wrap=True,
    )
    return manifest


def _recogniser(name: str, model: str) -> Recogniser | None:
    from annotation.recorder.speech.speech import recogniser_named

    return None if name == "none" else recogniser_named(name, model)


def _say_what_was_hidden(task: TaskQuery, kinds: Sequence[str]) -> None:
    if kinds:
        said = escape("; ".join((task.query, *task.applications)))
        console.print(f"[yellow]taken out of your task: {', '.join(sorted(set(kinds)))}. It is recorded as: {said}[/]", highlight=False)


def _say_what_is_known(has_elements: bool, reason: str, reads_pixels: bool) -> None:
    if not has_elements:
        console.print(f"[yellow]programs expose no elements here: {escape(reason)}. Password fields are not recognised by role.[/]")
    if not reads_pixels:
        console.print("[yellow]tesseract is not installed: private text is blackened only where programs expose its position.[/]")


def _consent(signed: str | None, *, with_microphone: bool) -> Consent:
    from annotation.recordings.consent import TEXT, sign

    if signed is None:
        print_paragraphs(TEXT)
        signed = typer.prompt("To agree, write your name (Ctrl-C ends)", default="", show_default=False)
    return sign(signed, with_microphone=with_microphone)
