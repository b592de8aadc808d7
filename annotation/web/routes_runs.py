"""Routes of runs: what the annotator's page shows and does. A run is its own annotator's to change; reviewers and admins may look.

Events are server-sent: a browser reconnects by itself and gets the newest state; a slow one misses states in between, never the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse

from annotation.service.runs.runs import LiveRuns
from annotation.storage import runs as stored
from annotation.web.access import Who, needs, office_of
from annotation.wire import runs as bodies
from annotation.wire.runs import ActionView, Completion, DraftView, RunState

KEEP_ALIVE_S = 10.0
SHORTEST_PAUSE_S = 0.03
"""Between two events of a stream."""
AWAY_S = 3.0
"""A run whose person went away is brought back with the next stream after they are there again."""
ANNOTATOR, AUTOMATIC = needs("annotator"), needs("annotator", is_automatic=True)
PREFIX = "/api/v1/runs/{run_id}"


async def readable(run_id: str, request: Request, who: Who) -> LiveRuns:
    """The runs, for who may look at this one. Raises UnknownSubject."""
    runs: LiveRuns = office_of(request).runs
    if await runs.owner(run_id) != who.user_id and who.role == "annotator":
        raise stored.unknown(run_id)
    return runs


async def own(run_id: str, request: Request, who: Who) -> LiveRuns:
    """The same for the run's own annotator, brought back where a server that ended had it."""
    runs: LiveRuns = office_of(request).runs
    if await runs.owner(run_id) != who.user_id:
        raise stored.unknown(run_id)
    await runs.wake(run_id)
    return runs


Readable = Annotated[LiveRuns, Depends(readable)]
Own = Annotated[LiveRuns, Depends(own)]


def add_to(app: FastAPI) -> None:
    _add_looking(app)
    _add_deciding(app)
    _add_editing(app)
    _add_panes(app)


def _add_looking(app: FastAPI) -> None:
    @app.get(PREFIX, tags=["runs"], summary="All that the page shows of a run", **ANNOTATOR)
    async def state(run_id: str, runs: Readable) -> RunState:
        return await runs.state(run_id)

    @app.get(PREFIX + "/events", tags=["runs"], summary="The run's states, as they come", response_class=StreamingResponse, **AUTOMATIC)
    async def events(run_id: str, runs: Readable, who: Who) -> Response:
        if await runs.owner(run_id) == who.user_id:
            await runs.wake(run_id, if_overdue=False)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(runs, run_id), media_type="text/event-stream", headers=headers)

    @app.get(PREFIX + "/screens/{screenshot_id}", tags=["runs"], summary="A picture of the run", response_class=Response, **ANNOTATOR)
    async def screen(run_id: str, screenshot_id: str, runs: Readable) -> Response:
        data = await runs.screen(run_id, screenshot_id)
        return Response(data, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})


async def _events(runs: LiveRuns, run_id: str) -> AsyncIterator[bytes]:
    """A state whenever it changed, until the run is nobody's any more."""
    version = -1
    while not runs.is_closing:
        state = await runs.changes(run_id, version, KEEP_ALIVE_S)
        if state is None:
            yield b": still here\n\n"
            continue
        version = state.version
        yield b"event: state\ndata: " + state.model_dump_json().encode() + b"\n\n"
        if not runs.is_live(run_id):
            await asyncio.sleep(AWAY_S if state.phase == "starting" else 0.0)
            return
        await asyncio.sleep(SHORTEST_PAUSE_S)


def _add_deciding(app: FastAPI) -> None:
    @app.post(PREFIX + "/decide", tags=["runs"], summary="Accept, edit, override, or give the state up", **ANNOTATOR)
    async def decide(run_id: str, body: bodies.Decide, runs: Own, who: Who) -> RunState:
        return await runs.decide(run_id, who.user_id, body)

    @app.post(PREFIX + "/back", tags=["runs"], summary="Restart, and do the first steps again", **ANNOTATOR)
    async def back(run_id: str, body: bodies.StepBack, runs: Own, who: Who) -> RunState:
        return await runs.back(run_id, who.user_id, body)

    @app.post(PREFIX + "/propose", tags=["runs"], summary="Ask the policy again", **ANNOTATOR)
    async def propose(run_id: str, body: bodies.Propose, runs: Own, who: Who) -> RunState:
        return await runs.propose(run_id, who.user_id, body)

    @app.post(PREFIX + "/finish", tags=["runs"], summary="Give the verdict", **ANNOTATOR)
    async def finish(run_id: str, body: bodies.Finish, runs: Own, who: Who) -> RunState:
        return await runs.finish(run_id, who.user_id, body)


def _add_editing(app: FastAPI) -> None:
    @app.put(PREFIX + "/draft", tags=["runs"], summary="Keep what is being typed", **ANNOTATOR)
    async def draft(run_id: str, body: bodies.SaveDraft, runs: Own, who: Who) -> DraftView:
        return await runs.save_draft(run_id, who.user_id, body)

    @app.post(PREFIX + "/check", tags=["runs"], summary="How an answer would be read", **ANNOTATOR)
    async def check(run_id: str, body: bodies.Check, runs: Own) -> ActionView:
        return await runs.check(run_id, body)

    @app.post(PREFIX + "/complete", tags=["runs"], summary="What may stand at the cursor", **ANNOTATOR)
    async def complete(run_id: str, body: bodies.Complete, runs: Own) -> list[Completion]:
        return await runs.complete(run_id, body)

    @app.post(PREFIX + "/at", tags=["runs"], summary="What a click or drag on the screen may mean", **ANNOTATOR)
    async def at(run_id: str, body: bodies.AtPoint, runs: Own) -> list[ActionView]:
        return await runs.at(run_id, body)

    @app.post(PREFIX + "/write", tags=["runs"], summary="An action in the grammar's words", **ANNOTATOR)
    async def write(run_id: str, body: bodies.Write, runs: Own) -> ActionView:
        return await runs.write(run_id, body)


def _add_panes(app: FastAPI) -> None:
    @app.get(PREFIX + "/files", tags=["runs"], summary="Files of the workspace", **ANNOTATOR)
    async def files(run_id: str, runs: Own) -> bodies.FileList:
        return await runs.files(run_id)

    @app.get(PREFIX + "/files/text", tags=["runs"], summary="The text of one file", **ANNOTATOR)
    async def text(run_id: str, path: Annotated[str, Query(min_length=1, max_length=4096)], runs: Own) -> bodies.FileText:
        return await runs.read_file(run_id, path)

    @app.get(PREFIX + "/terminal", tags=["runs"], summary="What tools were asked, and printed", **ANNOTATOR)
    async def terminal(run_id: str, runs: Readable) -> bodies.Transcript:
        return await runs.terminal(run_id)
