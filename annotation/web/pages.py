"""The pages and their files, each by its literal name: what is not listed here is not served, whatever the address says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from annotation.web.access import MaybeWho, needs, open_to_all
from annotation.web.shell import FOLDER, Page, page_text
from warehouse.core.errors import UnknownSubject

_HTML, _SCRIPT, _STYLE = "text/html; charset=utf-8", "text/javascript; charset=utf-8", "text/css; charset=utf-8"
PAGES = {
    "/": Page(name="home", title="My work"),
    "/work": Page(name="work", title="Annotate", style="work.css", skip_to="workbench", skip="Skip to the candidates"),
    "/runs": Page(name="runs", title="Runs"),
    "/recordings": Page(name="recordings", title="Recordings"),
    "/review": Page(name="review", title="Review", role="reviewer"),
    "/quality": Page(name="quality", title="Quality", role="reviewer"),
    "/design": Page(name="design", title="Task design", role="reviewer"),
    "/campaigns": Page(name="campaigns", title="Campaigns", role="admin"),
    "/people": Page(name="people", title="People", role="admin"),
}
"""By address."""
OPEN_PAGES = {
    "/login": Page(name="login", title="Log in", role=None, style=None),
    "/join": Page(name="join", title="Join", role=None, style=None),
}
"""Those that one sees without a login."""
FILES = {
    "api.js": _SCRIPT,
    "base.css": _STYLE,
    "campaigns.js": _SCRIPT,
    "chart.js": _SCRIPT,
    "design.js": _SCRIPT,
    "dom.js": _SCRIPT,
    "finished.js": _SCRIPT,
    "forms.js": _SCRIPT,
    "home.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "join.js": _SCRIPT,
    "keys.js": _SCRIPT,
    "lists.css": _STYLE,
    "login.js": _SCRIPT,
    "marks.js": _SCRIPT,
    "opinion.js": _SCRIPT,
    "people.js": _SCRIPT,
    "quality.js": _SCRIPT,
    "recordings.js": _SCRIPT,
    "replay.js": _SCRIPT,
    "review.js": _SCRIPT,
    "runs.js": _SCRIPT,
    "shell.js": _SCRIPT,
    "sounds.js": _SCRIPT,
    "theme.js": _SCRIPT,
    "tree.js": _SCRIPT,
    "wanted.js": _SCRIPT,
    "work.css": _STYLE,
    "work.js": _SCRIPT,
    "work_between.js": _SCRIPT,
    "work_cards.js": _SCRIPT,
    "work_complete.js": _SCRIPT,
    "work_decisions.js": _SCRIPT,
    "work_dialogs.js": _SCRIPT,
    "work_drafts.js": _SCRIPT,
    "work_editor.js": _SCRIPT,
    "work_finder.js": _SCRIPT,
    "work_history.js": _SCRIPT,
    "work_keys.js": _SCRIPT,
    "work_outbox.js": _SCRIPT,
    "work_panes.js": _SCRIPT,
    "work_screen.js": _SCRIPT,
    "work_stream.js": _SCRIPT,
    "work_view.js": _SCRIPT,
    "zoom.js": _SCRIPT,
}
"""What pages load. They hold nothing that is anybody's, and the login needs some: open to all."""


def add_to(app: FastAPI) -> None:
    for path, page in PAGES.items():
        _add_page(app, path, page)
    for path, page in OPEN_PAGES.items():
        _add_open_page(app, path, page)

    @app.get("/pages/{name}", include_in_schema=False, **open_to_all())
    async def file(name: str, request: Request) -> Response:
        if name not in FILES:
            raise UnknownSubject(f"there is no file {name[:80]!r}")
        return _answer(request, name, lambda: (FOLDER / name).read_bytes(), FILES[name])


def _add_page(app: FastAPI, path: str, page: Page) -> None:
    @app.get(path, include_in_schema=False, **needs(page.role or "annotator", programs=False, is_page=True))
    async def show(request: Request) -> Response:
        return _page(request, page)


def _add_open_page(app: FastAPI, path: str, page: Page) -> None:
    @app.get(path, include_in_schema=False, **open_to_all())
    async def show(request: Request, who: MaybeWho) -> Response:
        if path == "/login" and who is not None and "next" not in request.query_params:
            return RedirectResponse("/", 303)
        return _page(request, page)


def _page(request: Request, page: Page) -> Response:
    return _answer(request, page.file, lambda: page_text(page).encode(), _HTML)


def _answer(request: Request, name: str, read: Callable[[], bytes], media_type: str) -> Response:
    """Asked for again each time, and sent again only when it has changed: a new release is seen at once."""
    try:
        data = read()
    except FileNotFoundError as error:
        raise UnknownSubject(f"the page {name} is not installed") from error
    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)
