"""Routes of recordings: the upload (recording/bundle.py says how it goes), looking at them, judging them, taking them back."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.requests import ClientDisconnect

from annotation.recordings.bundle import ANNOUNCE_PATH, MAX_PART_BYTES, Announced, Announcement, Checking, Completed, Incomplete
from annotation.web.access import Address, Who, needs, office_of
from annotation.wire.review import RecordingDetail, RecordingItem, ReviewView, SubmitReview, Withdraw
from sandbox.http.problems import answer, problem
from warehouse.core.errors import BadUpload

ANNOTATOR = needs("annotator")
REVIEW = needs("reviewer", max_body_bytes=2 * 1024 * 1024)
ANNOUNCEMENT = needs("annotator", max_body_bytes=4 * 1024 * 1024)
"""Of 20,000 parts."""
PART = needs("annotator", max_body_bytes=MAX_PART_BYTES)


def add_to(app: FastAPI) -> None:
    _add_upload(app)
    _add_looking(app)


def _add_upload(app: FastAPI) -> None:
    @app.post(ANNOUNCE_PATH, tags=["recordings"], summary="Say what will be uploaded", **ANNOUNCEMENT)
    async def announce(body: Announcement, request: Request, who: Who) -> Announced:
        """What is missing; may be requested at any time, to go on where an upload stopped."""
        return await office_of(request).recordings.announce(body, by=who)

    @app.put(ANNOUNCE_PATH + "/{recording_id}/parts/{sha256}", status_code=204, tags=["recordings"], summary="Upload a part", **PART)
    async def part(recording_id: str, sha256: str, request: Request, who: Who) -> Response:
        length = request.headers.get("content-length", "")
        num_bytes = int(length) if length.isascii() and length.isdecimal() else None
        try:
            await office_of(request).recordings.receive(recording_id, sha256, request.stream(), num_bytes=num_bytes, by=who)
        except ClientDisconnect:  # it comes again
            return answer(problem(400, "Wrong upload", "The part did not come whole: send it again.", BadUpload))
        return Response(status_code=204)

    @app.post(
        ANNOUNCE_PATH + "/{recording_id}/complete",
        tags=["recordings"],
        summary="All parts are there",
        response_model=Completed,
        responses={202: {"model": Checking}, 409: {"model": Incomplete}},
        **ANNOTATOR,
    )
    async def complete(recording_id: str, request: Request, who: Who, address: Address) -> Response:
        found = await office_of(request).recordings.complete(recording_id, by=who, address=address)
        return JSONResponse(found.model_dump(mode="json"), {Incomplete: 409, Checking: 202}.get(type(found), 200))


def _add_looking(app: FastAPI) -> None:
    @app.get(ANNOUNCE_PATH, tags=["recordings"], summary="One's own; for reviewers all", **ANNOTATOR)
    async def listed(request: Request, who: Who) -> list[RecordingItem]:
        return await office_of(request).recordings.listed(who)

    @app.get(ANNOUNCE_PATH + "/{recording_id}", tags=["recordings"], summary="All of a recording", **ANNOTATOR)
    async def look(recording_id: str, request: Request, who: Who) -> RecordingDetail:
        return await office_of(request).recordings.look(recording_id, who)

    @app.get(
        ANNOUNCE_PATH + "/{recording_id}/screens/{screen_id}",
        tags=["recordings"],
        summary="A picture",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}},
        **ANNOTATOR,
    )
    async def picture(recording_id: str, screen_id: str, request: Request, who: Who) -> Response:
        data = await office_of(request).recordings.picture(recording_id, screen_id, who)
        return Response(data, media_type="image/png")

    @app.get(
        ANNOUNCE_PATH + "/{recording_id}/sounds/{sound_id}",
        tags=["recordings"],
        summary="What was said",
        response_class=Response,
        responses={200: {"content": {"audio/wav": {}}}},
        **ANNOTATOR,
    )
    async def sound(recording_id: str, sound_id: str, request: Request, who: Who) -> Response:
        path = await office_of(request).recordings.sound(recording_id, sound_id, who)
        return FileResponse(path, media_type="audio/wav", headers={"Cache-Control": "no-store"})

    @app.post(ANNOUNCE_PATH + "/{recording_id}/review", status_code=201, tags=["recordings"], summary="Say what one thinks of it", **REVIEW)
    async def review(recording_id: str, body: SubmitReview, request: Request, who: Who, address: Address) -> ReviewView:
        return await office_of(request).recordings.review(recording_id, body, by=who, address=address)

    @app.post(ANNOUNCE_PATH + "/{recording_id}/withdraw", status_code=204, tags=["recordings"], summary="Take it back", **ANNOTATOR)
    async def withdraw(recording_id: str, body: Withdraw, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).recordings.withdraw(recording_id, body.reason, by=who, address=address)
        return Response(status_code=204)
