"""`flywheel record …`: record one's own work on one's own machine, look through it, send it off. The recorder is annotation/recording."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.options import HomeOption, console, home_of
from warehouse.errors import ConfigError, RecordingRefused

if TYPE_CHECKING:
    from annotation.recording.bundle import Box, Consent, Manifest
    from annotation.recording.redaction import Redactor
    from annotation.recording.settings import RecordSettings
    from annotation.recording.speech import Recogniser
    from annotation.recording.store import Store

PASSPHRASE_VARIABLE = "FLYWHEEL_RECORD_PASSPHRASE"
KEY_VARIABLE = "FLYWHEEL_REFINE_KEY"
URL_VARIABLE = "FLYWHEEL_ANNOTATION_URL"
TOKEN_VARIABLE = "FLYWHEEL_ANNOTATION_TOKEN"

record = typer.Typer(no_args_is_help=True, help="Record your own work, thinking aloud; look through it; send it off.")

NameArgument = Annotated[str, typer.Argument(help="Name of the recording.")]
RecogniserOption = Annotated[str, typer.Option(help="auto, pocketsphinx, faster-whisper (its weights have to be here), or none.")]
ModelOption = Annotated[str, typer.Option("--speech-model", help="faster-whisper: a folder with weights, or a model's name.")]
SignedOption = Annotated[
    str | None, typer.Option("--signed", help="Your name: you read `flywheel record consent` and agree \\[default: you are asked].")
]
QueryOption = Annotated[str, typer.Option("--query", "-q", help="What you set out to do, in a sentence.")]
TrackOption = Annotated[str, typer.Option(help="expert: you know how; novice: you find out.")]
EncryptOption = Annotated[bool, typer.Option("--encrypt", help=f"Seal it on the disk by a passphrase, asked for or {PASSPHRASE_VARIABLE}.")]
ApplicationsOption = Annotated[list[str] | None, typer.Option("--app", help="Application or site that this is about; may be repeated.")]
RegionOption = Annotated[list[str] | None, typer.Option("--exclude-region", help="Never record this part: X,Y,WIDTH,HEIGHT; repeatable.")]


@record.command()
def consent() -> None:
    """Print what you agree to when you record."""
    from annotation.recording.consent import TEXT

    _print_paragraphs(TEXT)


@record.command()
def start(
    name: NameArgument,
    query: QueryOption,
    track: TrackOption = "expert",
    app: ApplicationsOption = None,
    node: Annotated[str, typer.Option(help="Id of the query in the task graph.")] = "",
    environment: Annotated[str, typer.Option(help="Task in which it can be replayed, e.g. desktop/note.")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of that task.")] = None,
    exclude_app: Annotated[list[str] | None, typer.Option("--exclude-app", help="Never record windows of this application.")] = None,
    exclude_title: Annotated[list[str] | None, typer.Option("--exclude-title", help="Never record windows titled so: *bank*.")] = None,
    exclude_region: RegionOption = None,
    microphone: Annotated[str | None, typer.Option(help="Name or number of the microphone \\[default: the system's].")] = None,
    with_microphone: Annotated[bool, typer.Option("--speech/--no-speech", help="Record what you say.")] = True,
    recogniser: RecogniserOption = "auto",
    speech_model: ModelOption = "",
    hide_unknown: Annotated[
        bool, typer.Option("--hide-unknown", help="Hide all typing into programs that do not tell what has the keyboard.")
    ] = False,
    pause_keys: Annotated[str, typer.Option(help="Pause and go on.")] = "ctrl+alt+p",
    stop_keys: Annotated[str, typer.Option(help="End the recording.")] = "ctrl+alt+q",
    sign: Annotated[str, typer.Option(help="Where the sign is: top, top-left, top-right, bottom, bottom-left, bottom-right.")] = "top",
    pictures_per_s: Annotated[float, typer.Option(help="How often the screen is looked at.")] = 8.0,
    encrypt: EncryptOption = False,
    signed: SignedOption = None,
    limit: Annotated[float, typer.Option(help="Seconds after which it ends by itself.")] = 7200.0,
    home: HomeOption = None,
) -> None:
    """Record this screen until the stop keys or Ctrl-C. Nothing leaves this machine before you have confirmed it in `review`."""
    from annotation.recording import store as stores
    from annotation.recording.bundle import TaskQuery
    from annotation.recording.exclusions import Exclusions
    from annotation.recording.machine import parts_for_this_machine
    from annotation.recording.recorder import Recorder
    from annotation.recording.settings import RecordSettings

    def settings() -> tuple[RecordSettings, TaskQuery]:
        regions = tuple(_region(text) for text in exclude_region or ())
        exclusions = Exclusions(applications=tuple(exclude_app or ()), titles=tuple(exclude_title or ()), regions=regions)
        given: dict[str, Any] = {
            "track": track, "exclusions": exclusions, "pause_keys": _keys(pause_keys), "stop_keys": _keys(stop_keys), "sign": sign,
            "pictures_per_s": pictures_per_s, "unknown_typing": "hide" if hide_unknown else "keep",
        }  # fmt: skip
        task = TaskQuery(query=query, applications=tuple(app or ()), node=node, environment=environment, seed=seed)
        return RecordSettings(**given), task

    chosen, task = _checked(settings)
    agreed = _consent(signed, with_microphone=with_microphone)
    parts = parts_for_this_machine(chosen, with_microphone=with_microphone, microphone=microphone)
    store = stores.create(_root(home), name, _new_passphrase() if encrypt else None)
    recorder = Recorder(store, parts, chosen, task, agreed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: recorder.ask_to_stop())
    try:
        recorder.start()
    except BaseException:
        store.erase()
        raise
    _say_what_is_known(parts.accessibility.is_available, parts.accessibility.reason, parts.text_reader is not None)
    console.print(f"recording {name}: pause with {pause_keys}, end with {stop_keys} or Ctrl-C", highlight=False)
    sys.stdout.flush()
    recorder.wait(limit)
    recorder.stop("unsaid")
    if recorder.failure is not None:
        console.print(f"[yellow]it ended by itself: {escape(recorder.failure)}; what was recorded until then is kept[/]")
    _finish(store, recogniser, speech_model, recorder.redactor)


@record.command()
def browser(
    name: NameArgument,
    query: QueryOption,
    url: Annotated[str, typer.Option("--url", help="Page to begin with.")] = "about:blank",
    track: TrackOption = "expert",
    app: ApplicationsOption = None,
    exclude_site: Annotated[list[str] | None, typer.Option("--exclude-site", help="Never record this site: *bank*; repeatable.")] = None,
    chromium: Annotated[Path | None, typer.Option(help="The Chromium to open \\[default: the one that is found].")] = None,
    microphone: Annotated[str | None, typer.Option(help="Name or number of the microphone \\[default: the system's].")] = None,
    with_microphone: Annotated[bool, typer.Option("--speech/--no-speech", help="Record what you say.")] = True,
    recogniser: RecogniserOption = "auto",
    speech_model: ModelOption = "",
    encrypt: EncryptOption = False,
    signed: SignedOption = None,
    limit: Annotated[float, typer.Option(help="Seconds after which it ends by itself.")] = 7200.0,
    home: HomeOption = None,
) -> None:
    """Record work in a browser alone: opens a Chromium with a profile of its own; close it, or Ctrl-C, to end."""
    import asyncio

    from annotation.recording import store as stores
    from annotation.recording.browser_recorder import BrowserRecorder
    from annotation.recording.bundle import TaskQuery
    from annotation.recording.microphone import Microphone
    from annotation.recording.settings import RecordSettings
    from annotation.recording.text_reader import find_text_reader
    from sandbox.browser.chromium import find_chromium

    given: dict[str, Any] = {"track": track}
    chosen, task = _checked(lambda: (RecordSettings(**given), TaskQuery(query=query, applications=tuple(app or ()))))
    executable = chromium or find_chromium(headless_shell=False).path
    agreed = _consent(signed, with_microphone=with_microphone)
    device = int(microphone) if microphone is not None and microphone.isdecimal() else microphone
    store = stores.create(_root(home), name, _new_passphrase() if encrypt else None)

    async def main() -> Redactor:
        recorder = BrowserRecorder(
            store, chosen, task, agreed, text_reader=find_text_reader(), speech=Microphone(device) if with_microphone else None,
            excluded_sites=exclude_site or (),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, recorder.ask_to_stop)
        # As root Chromium has no sandbox of its own: nobody should browse so, but a container may have no other user.
        flags = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        try:
            await recorder.start(executable, _root(home).parent / "recording-profile", url, flags)
        except BaseException:
            store.erase()
            raise
        console.print(f"recording {name} in {executable.name}: close it, or Ctrl-C, to end; pause with ctrl+alt+p", highlight=False)
        sys.stdout.flush()
        await recorder.run(limit)
        await recorder.stop("unsaid")
        return recorder.redactor

    redactor = asyncio.run(main())
    _finish(store, recogniser, speech_model, redactor)


@record.command()
def resume(
    name: NameArgument, recogniser: RecogniserOption = "auto", speech_model: ModelOption = "", home: HomeOption = None
) -> None:
    """Finish a recording whose process was killed: everything up to its last action is there."""
    store = _open(name, home)
    if store.is_live:
        raise RecordingRefused(f"The recording {name} still goes on: end it first.")
    if store.has_manifest():
        raise RecordingRefused(f"The recording {name} is finished: `flywheel record review {name}`")
    _finish(store, recogniser, speech_model)


@record.command()
def review(
    name: NameArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    home: HomeOption = None,
) -> None:
    """Look through a recording in the browser: delete spans, blacken, reword thoughts, and confirm. Ctrl-C ends the page."""
    import asyncio
    import secrets

    from annotation.recording.review import create_app
    from sandbox.http_serving import Server, address_of, bind, serve_until_signalled

    store = _open(name, home)
    store.manifest()
    key = secrets.token_urlsafe(24)
    with bind("127.0.0.1", port) as listener:
        address = address_of(listener)
        number = address.rpartition(":")[2]
        app = create_app(store, key, frozenset({f"127.0.0.1:{number}", f"localhost:{number}"}))

        def ready() -> None:
            console.print(f"look through it here, in a browser on this machine: {address}/#{key}", soft_wrap=True, highlight=False)
            sys.stdout.flush()

        asyncio.run(serve_until_signalled(Server(app, grace_s=2, lifespan="off"), listener, ready))
    console.print(f"{name}: {store.cover.state}")


@record.command()
def upload(
    name: NameArgument,
    url: Annotated[
        str | None,
        typer.Option("--url", envvar=URL_VARIABLE, help="Address of the annotation server \\[default: that of the server on this home]."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help=f"File with your token \\[default: {TOKEN_VARIABLE}, or asked for].")] = None,
    home: HomeOption = None,
) -> None:
    """Send a recording that was looked through. When it is interrupted, give the command again: what arrived is not sent twice."""
    from annotation.recording.upload import Uploader
    from pipelines.annotation_address import living

    store, server = _open(name, home), living(home_of(home))
    place = url or (server.address if server is not None else None)
    if place is None:
        raise ConfigError(f"no --url, and no annotation server runs on this home: name the server's address, or set {URL_VARIABLE}")
    token = token_file.read_text().strip() if token_file is not None else os.environ.get(TOKEN_VARIABLE)
    if not token and not sys.stdin.isatty():
        raise ConfigError(f"no token: set {TOKEN_VARIABLE}, or name a --token-file; the page My work, {place}/, makes one for a program")
    uploader = Uploader(place, token or str(typer.prompt(f"Token (of the page My work, {place}/)", hide_input=True)))
    try:
        sent = uploader.upload(store)
    finally:
        uploader.close()
    console.print(f"{name} is on {escape(place)}; {sent} parts were sent", highlight=False, soft_wrap=True)


@record.command()
def refine(
    name: NameArgument,
    url: Annotated[str, typer.Option("--url", help="OpenAI-compatible address: https://…, or http://127.0.0.1:8000/v1 on this machine.")],
    model: Annotated[str, typer.Option(help="Name of the model there.")],
    home: HomeOption = None,
) -> None:
    """Have a model of your choice word the thoughts of a recording that you have confirmed; look through it again after that.

    Sent to that address: each thought, the action after it with what you typed, what it was done to, and the window's title. What was heard
    stays beside the new wording.
    """
    from annotation.recording.refinement import Refiner, refine_confirmed

    store = _open(name, home)
    refiner = Refiner(url, model, os.environ.get(KEY_VARIABLE, ""))
    try:
        changed = refine_confirmed(store, refiner)
    finally:
        refiner.close()
    then = f"; look through it again before it can be uploaded: flywheel record review {name}" if changed else ""
    console.print(f"{changed} thoughts are worded anew{then}", highlight=False, soft_wrap=True, markup=False)


@record.command("list")
def list_recordings(home: HomeOption = None) -> None:
    """The recordings on this machine, and how far each is."""
    from annotation.recording import store as stores
    from pipelines.annotation_address import living

    found = stores.all_recordings(_root(home))
    if not found:
        console.print("no recordings")
        return
    upload_to = "upload {}" if living(home_of(home)) is not None or os.environ.get(URL_VARIABLE) else "upload {} --url …"
    table = RichTable("recording", "state", "sealed", "next")
    for name, cover, is_live in found:
        state = "recording now" if is_live else "interrupted" if cover.state == "recording" else cover.state
        then = {"interrupted": "resume {}", "recorded": "review {}", "reviewed": upload_to}.get(state, "").format(escape(name))
        table.add_row(escape(name), state, "yes" if cover.seal else "no", f"flywheel record {then}" if then else "")
    console.print(table)


@record.command()
def show(name: NameArgument, home: HomeOption = None) -> None:
    """What a finished recording holds: each action, what was thought before it, and what was taken out."""
    store = _open(name, home)
    manifest = store.manifest()
    console.print(f"{manifest.task.query} ({manifest.track}, {manifest.length_s:.0f} s, {store.cover.state})", markup=False)
    for number, action in enumerate(manifest.actions, 1):
        if action.thought is not None:
            console.print(f"     “{action.thought.text}”", style="dim", markup=False, highlight=False)
        told = action.action.model_dump_json(exclude_defaults=True)
        console.print(f"{number:4} {action.start_s:7.2f} s  {action.action.kind} {told}", markup=False, highlight=False)
    hidden = ", ".join(f"{count} {kind}" for kind, count in sorted(manifest.hidden.items()))
    console.print(f"taken out: {hidden or 'nothing'}", markup=False)


@record.command()
def delete(
    name: NameArgument, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False, home: HomeOption = None
) -> None:
    """Erase a recording from this machine. What was uploaded has to be withdrawn there."""
    from annotation.recording import store as stores
    from annotation.recording.vault import OpenVault

    folder = _root(home) / name
    store = stores.Store(folder, stores.read_cover(folder), OpenVault())  # whoever forgot the passphrase may still delete
    os.close(store.lock())
    if yes or typer.confirm(f"Erase the recording {name}?"):
        store.erase()
        console.print("erased")


def _finish(store: Store, recogniser: str, speech_model: str, redactor: Redactor | None = None) -> Manifest:
    from annotation.recording.finish import finish

    manifest = finish(store, _recogniser(recogniser, speech_model), redactor)
    thoughts = sum(action.thought is not None for action in manifest.actions)
    console.print(
        f"{len(manifest.actions)} actions, {thoughts} with a thought, {len(manifest.screens)} pictures; "
        f"look through it before it can be uploaded: flywheel record review {store.name}", highlight=False, soft_wrap=True,
    )  # fmt: skip
    return manifest


def _recogniser(name: str, model: str) -> Recogniser | None:
    from annotation.recording.speech import recogniser_named

    return None if name == "none" else recogniser_named(name, model)


def _say_what_is_known(has_elements: bool, reason: str, reads_pixels: bool) -> None:
    if not has_elements:
        console.print(f"[yellow]programs tell nothing of themselves here: {escape(reason)}. Password fields are not recognised by role.[/]")
    if not reads_pixels:
        console.print("[yellow]tesseract is not installed: private text is blackened only where programs tell where it stands.[/]")


def _print_paragraphs(text: str) -> None:
    """As wide as the terminal: lines of a text are the source's, not the reader's."""
    for paragraph in text.strip().split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", highlight=False)


def _consent(signed: str | None, *, with_microphone: bool) -> Consent:
    from annotation.recording.consent import TEXT, sign

    if signed is None:
        _print_paragraphs(TEXT)
        signed = typer.prompt("To agree, write your name (Ctrl-C ends)", default="", show_default=False)
    return sign(signed, with_microphone=with_microphone)


def _root(home: Path | None) -> Path:
    return home_of(home).root / "recordings"


def _open(name: str, home: Path | None) -> Store:
    from annotation.recording import store as stores

    root = _root(home)
    is_sealed = stores.read_cover(root / name).seal is not None
    return stores.open_store(root, name, _passphrase() if is_sealed else None)


def _passphrase() -> str:
    return os.environ.get(PASSPHRASE_VARIABLE) or str(typer.prompt("Passphrase", hide_input=True))


def _new_passphrase() -> str:
    return os.environ.get(PASSPHRASE_VARIABLE) or str(typer.prompt("New passphrase", hide_input=True, confirmation_prompt=True))


def _keys(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split("+"))


def _region(text: str) -> Box:
    from annotation.recording.bundle import Box

    try:
        x, y, width, height = (int(part) for part in text.split(","))
        return Box(x=x, y=y, width=width, height=height)
    except ValueError as error:
        raise ConfigError(f"--exclude-region {text}: four whole numbers are expected, X,Y,WIDTH,HEIGHT in pixels.") from error


def _checked(make: Any) -> Any:
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}, not {first['input']!r}") from error
