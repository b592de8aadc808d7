"""`flywheel record …`: record your own work on your own machine, review it, upload it. The recorder is annotation/recorder;
recordings are made in sessions.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.cli.options import HomeOption, console, home_of
from pipelines.cli.record import sessions as record_sessions
from pipelines.cli.record.options import NameArgument, opened, print_paragraphs, root_of
from warehouse.core.errors import ConfigError

KEY_VARIABLE = "FLYWHEEL_REFINE_KEY"
URL_VARIABLE = "FLYWHEEL_ANNOTATION_URL"
TOKEN_VARIABLE = "FLYWHEEL_ANNOTATION_TOKEN"

record = typer.Typer(no_args_is_help=True, help="Record your own work, thinking aloud; look through it; send it off.")


@record.command()
def consent() -> None:
    """Print what you agree to when you record."""
    from annotation.recordings.consent import TEXT

    print_paragraphs(TEXT)


for command in (record_sessions.start, record_sessions.browser, record_sessions.resume):
    record.command()(command)


@record.command()
def review(
    name: NameArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    home: HomeOption = None,
) -> None:
    """Look through a recording in the browser: delete spans, blacken, reword thoughts, and confirm. Ctrl-C ends the page."""
    import asyncio
    import secrets

    from annotation.recorder.review.review import create_app
    from sandbox.http.serving import Server, address_of, bind, serve_until_signalled

    store = opened(name, home)
    store.manifest()
    key = secrets.token_urlsafe(24)
    with bind("127.0.0.1", port) as listener:
        address = address_of(listener)
        app = create_app(store, key)

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
    from annotation.recorder.review.upload import Uploader
    from pipelines.annotation_server.address import living

    store, server = opened(name, home), living(home_of(home))
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
    why: Annotated[bool, typer.Option("--why", help="Have it say why, also where you said nothing, not only what you said.")] = False,
    home: HomeOption = None,
) -> None:
    """Have a model of your choice word the thoughts of a recording that you have confirmed; look through it again after that.

    Sent to that address: each thought, the action after it with what you typed, what it was done to, and the window's title; with --why the
    task and the actions before it too. What was heard stays beside the new wording.
    """
    from annotation.recorder.review.rewording import refine_confirmed
    from annotation.recordings.enrichment import with_reasons
    from annotation.recordings.refinement import Refiner

    store = opened(name, home)
    refiner = Refiner(url, model, os.environ.get(KEY_VARIABLE, ""))
    try:
        reword = (lambda found: with_reasons(found, refiner)) if why else (lambda found: refiner.refine(found.actions))
        changed = refine_confirmed(store, reword)
    finally:
        refiner.close()
    then = f"; look through it again before it can be uploaded: flywheel record review {name}" if changed else ""
    console.print(f"{changed} thoughts are reworded{then}", highlight=False, soft_wrap=True, markup=False)


@record.command("list")
def list_recordings(home: HomeOption = None) -> None:
    """The recordings on this machine, and how far each is."""
    from annotation.recorder.store import store as stores
    from pipelines.annotation_server.address import living

    found = stores.all_recordings(root_of(home))
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
    store = opened(name, home)
    manifest = store.manifest()
    console.print(f"{manifest.task.query} ({manifest.track}, {manifest.length_s:.0f} s, {store.cover.state})", markup=False)
    for number, action in enumerate(manifest.actions, 1):
        if action.thought is not None:
            console.print(f"     “{action.thought.text}”", style="dim", markup=False, highlight=False)
        as_json = action.action.model_dump_json(exclude_defaults=True)
        console.print(f"{number:4} {action.start_s:7.2f} s  {action.action.kind} {as_json}", markup=False, highlight=False)
    hidden = ", ".join(f"{count} {kind}" for kind, count in sorted(manifest.hidden.items()))
    console.print(f"taken out: {hidden or 'nothing'}", markup=False)


@record.command()
def delete(name: NameArgument, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False, home: HomeOption = None) -> None:
    """Erase a recording from this machine. What was uploaded has to be withdrawn there."""
    from annotation.recorder.store import store as stores
    from annotation.recorder.store.vault import OpenVault

    folder = root_of(home) / name
    store = stores.Store(folder, stores.read_cover(folder), OpenVault())  # deletion needs no passphrase
    os.close(store.lock())
    if yes or typer.confirm(f"Erase the recording {name}?"):
        store.erase()
        console.print("erased")
