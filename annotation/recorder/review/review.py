"""The local page on which a person looks through a recording before it may be uploaded: a server on loopback for one recording.

The address that the command prints authorises its visitor by its fragment, which browsers send to nobody; the page trades it
for a cookie. Requests that change something have to be the page's own. What programs, speech or people wrote is set as text by the page,
never as markup.
"""

from __future__ import annotations

import hmac
import io
import secrets
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from annotation.recorder.review import edits
from annotation.recorder.review.finish import stretches_of_parts
from annotation.recorder.speech import wav
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import MAX_QUERY, SAMPLE_RATE_HZ, Box, Manifest, Result, Span
from sandbox.http.guarding import SECURITY_HEADERS, with_headers
from warehouse.core.errors import FlywheelError, RecordingRefused
from warehouse.storage.screenshots import pictures

PAGE = Path(__file__).with_name("review_page")
FILES = {"review.js": "text/javascript", "timeline.js": "text/javascript", "review.css": "text/css"}
COOKIE = "flywheel_review"
OWN_HEADER = "x-flywheel-review"
THUMBNAIL_PX = 240
PEAKS_PER_S = 20
MAX_BODY_BYTES = 1 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = SECURITY_HEADERS | {"content-security-policy": POLICY}


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeleteBody(_Body):
    span: Span
    speech_only: bool = False


class ThoughtBody(_Body):
    index: Annotated[int, Field(ge=0)]
    text: Annotated[str, Field(max_length=20_000)]


class BoxBody(_Body):
    screen_id: str
    box: Box
    everywhere: bool = False


class QueryBody(_Body):
    query: Annotated[str, Field(max_length=4 * MAX_QUERY)]


class ResultBody(_Body):
    result: Result


class LoginBody(_Body):
    key: str


def create_app(store: Store, key: str) -> ASGIApp:
    """The application for one finished recording. Run it with http_serving.Server, which answers for names of this machine alone."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    cookie = secrets.token_urlsafe(32)

    @app.exception_handler(FlywheelError)
    async def refused(_: Request, error: FlywheelError) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=409)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"}, status_code=422)

    @app.get("/")
    async def page() -> Response:
        return Response((PAGE / "index.html").read_bytes(), media_type="text/html; charset=utf-8")

    @app.get("/files/{name}")
    async def file(name: str) -> Response:
        return Response((PAGE / name).read_bytes(), media_type=FILES[name]) if name in FILES else Response(status_code=404)

    @app.post("/login")
    async def login(body: LoginBody) -> Response:
        if not hmac.compare_digest(body.key.encode(), key.encode()):
            return JSONResponse({"detail": "This address is not the one that the command printed."}, status_code=401)
        response = Response(status_code=204)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return response

    _add_reading(app, store)
    _add_changes(app, store)
    return _Guard(app, cookie)


def _add_reading(app: FastAPI, store: Store) -> None:
    @app.get("/api/recording")
    def recording() -> dict[str, Any]:
        return view_of(store, store.manifest())

    @app.get("/api/peaks")
    def peaks() -> list[dict[str, Any]]:
        return peaks_of(store, store.manifest())

    @app.get("/api/screens/{screen_id}")
    def screen(screen_id: str, small: bool = False) -> Response:
        _known(store.manifest(), screen_id)
        png = store.screen(screen_id)
        return Response(thumbnail(png) if small else png, media_type="image/png", headers={"cache-control": "private, no-store"})

    @app.get("/api/speech/{number}")
    def speech(number: int, request: Request) -> Response:
        manifest = store.manifest()
        if not 0 <= number < len(manifest.speech):
            raise RecordingRefused(f"There is no stretch of speech {number}; there are {len(manifest.speech)}.")
        stretch = stretches_of_parts(manifest.speech)[number]
        data = wav.pack(store.speech()[stretch.at * 2 : (stretch.at + stretch.num_samples) * 2])
        return _ranged(data, request.headers.get("range", ""))


def _add_changes(app: FastAPI, store: Store) -> None:
    """Plain functions: one after the other, on a thread, since erasing waits for the disk."""

    @app.post("/api/delete")
    def delete(body: DeleteBody) -> dict[str, Any]:
        return view_of(store, edits.delete_span(store, body.span, speech_only=body.speech_only))

    @app.post("/api/thought")
    def thought(body: ThoughtBody) -> dict[str, Any]:
        return view_of(store, edits.edit_thought(store, body.index, body.text))

    @app.post("/api/box")
    def box(body: BoxBody) -> dict[str, Any]:
        return view_of(store, edits.draw_box(store, body.screen_id, body.box, everywhere=body.everywhere))

    @app.post("/api/query")
    def query(body: QueryBody) -> dict[str, Any]:
        return view_of(store, edits.edit_query(store, body.query))

    @app.post("/api/result")
    def result(body: ResultBody) -> dict[str, Any]:
        return view_of(store, edits.say_result(store, body.result))

    @app.post("/api/confirm")
    def confirm() -> dict[str, Any]:
        return view_of(store, edits.confirm(store))


class _Guard:
    """Every answer has the headers, every change is the page's own, every one but the door's has the cookie."""

    def __init__(self, app: ASGIApp, cookie: str) -> None:
        self._app, self._cookie = app, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        sending = with_headers(send, HEADERS)
        problem = self._problem(request)
        if problem is not None:
            return await JSONResponse({"detail": problem[1]}, status_code=problem[0])(scope, receive, sending)
        await self._app(scope, receive, sending)

    def _problem(self, request: Request) -> tuple[int, str] | None:
        headers, path = request.headers, request.url.path
        if request.method not in ("GET", "HEAD"):
            if headers.get(OWN_HEADER) != "1" or headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return 403, "Only the page itself may change a recording."
            if int(headers.get("content-length", "0") or 0) > MAX_BODY_BYTES or "transfer-encoding" in headers:
                return 413, "Too large."
        is_door = path in ("/", "/login") or path.startswith("/files/")
        if not is_door and not hmac.compare_digest(request.cookies.get(COOKIE, ""), self._cookie):
            return 401, "Open the address that the command printed."
        return None


def view_of(store: Store, manifest: Manifest) -> dict[str, Any]:
    """What the page shows of a recording."""
    actions = [
        {
            "start_s": action.start_s,
            "end_s": action.end_s,
            "screen_id": action.screen_id,
            "kind": action.action.kind,
            "action": action.action.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True),
            "hidden": action.hidden,
            "window": action.window.title or action.window.application,
            "thought": action.thought.text if action.thought else "",
            "raw": action.thought.raw if action.thought else "",
            "target": action.target.model_dump(mode="json") if action.target else None,
            "thought_span": [action.thought.start_s, action.thought.end_s] if action.thought else None,
        }
        for action in manifest.actions
    ]
    return {
        "name": store.name,
        "state": store.cover.state,
        "query": manifest.task.query,
        "track": manifest.track,
        "length_s": manifest.length_s,
        "result": manifest.result,
        "actions": actions,
        "last_screen_id": manifest.last_screen_id,
        "words": [[word.text, word.start_s, word.end_s] for word in manifest.words],
        "hidden": manifest.hidden,
        "speech": [[part.start_s, part.num_samples / SAMPLE_RATE_HZ] for part in manifest.speech],
        "pauses": [[span.start_s, span.end_s] for span in manifest.pauses],
        "deleted": [[span.start_s, span.end_s] for span in manifest.deleted],
        "screens": {screen.screen_id: [screen.width_px, screen.height_px] for screen in manifest.screens},
    }


def peaks_of(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """How loud it is, twenty values a second, 0 to 100, for each stretch of speech."""
    samples, found = np.frombuffer(store.speech(), dtype="<i2"), []
    step = SAMPLE_RATE_HZ // PEAKS_PER_S
    for stretch in stretches_of_parts(manifest.speech):
        part = np.abs(samples[stretch.at : stretch.at + stretch.num_samples // step * step].astype(np.int32))
        part = part[: len(part) // step * step].reshape(-1, step)
        values = (part.max(axis=1) * 100 // 32768).tolist() if part.size else []
        found.append({"start_s": stretch.start_s, "per_s": PEAKS_PER_S, "values": values})
    return found


def thumbnail(png: bytes) -> bytes:
    image, buffer = pictures.decoded(png), io.BytesIO()
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _known(manifest: Manifest, screen_id: str) -> None:
    if all(screen.screen_id != screen_id for screen in manifest.screens):
        raise RecordingRefused(f"There is no picture {screen_id} in this recording.")


def _ranged(data: bytes, asked: str) -> Response:
    """Sound, or the part of it that a player jumps to."""
    headers = {"accept-ranges": "bytes"}
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not asked.startswith("bytes=") or not first.isdecimal() or int(first) >= len(data):
        return Response(data, media_type="audio/wav", headers=headers)
    end = min(int(last), len(data) - 1) if last.isdecimal() else len(data) - 1
    headers["content-range"] = f"bytes {first}-{end}/{len(data)}"
    return Response(data[int(first) : end + 1], status_code=206, media_type="audio/wav", headers=headers)
