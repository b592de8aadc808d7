"""Every route there is: closed without a login, closed to lesser roles, closed to other sites, whatever it does."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.routing import Route

from annotation.web.access import Access, accesses, needs
from annotation.web.guard import SAFE_METHODS, Guard
from annotation.web.pages import PAGES
from annotation.web.settings import WebSettings
from tests.annotation.web.web_parts import Site, site
from warehouse.core.errors import ConfigError

OPEN = {
    ("POST", "/api/v1/login"),
    ("POST", "/api/v1/join"),
    ("POST", "/api/v1/invitation"),
    ("GET", "/login"),
    ("GET", "/join"),
    ("GET", "/pages/{name}"),
    ("GET", "/health"),  # for what restarts the server: it says whether server and database answer, and no more
}
"""All that is to be had without a login. Whoever adds to it says why."""
ADMINS_ONLY = {
    ("GET", "/api/v1/users"),
    ("PATCH", "/api/v1/users/{user_id}"),
    ("POST", "/api/v1/invitations"),
    ("GET", "/api/v1/audit"),
    ("POST", "/api/v1/campaigns"),
    ("PATCH", "/api/v1/campaigns/{campaign_id}"),
}
PEOPLE_ONLY = {
    ("POST", "/api/v1/me/password"),
    ("POST", "/api/v1/me/tokens"),
    ("POST", "/api/v1/invitations"),
    ("PATCH", "/api/v1/users/{user_id}"),
}
ROLES = ("annotator", "reviewer", "admin")
CHOSEN = {"/", "/api/v1/me", "/api/v1/me/password", "/api/v1/users", "/api/v1/campaigns", "/api/v1/work/next", "/api/v1/login"}
"""Tried with every wrong login and origin that we know of; the others with those that matter most, to save time."""


def routes(there: Site) -> list[tuple[str, str, Access]]:
    """(method, path as written, who may)."""
    return [(method, route.path, access) for route, access in there.guard._routes for method in sorted(route.methods)]


def filled(path: str) -> str:
    return re.sub(r"\{\w+(:\w+)?\}", "none-0000000000000000", path)


def test_what_is_open_is_listed_here(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            said = {(method, path): access for method, path, access in routes(there)}
            assert {key for key, access in said.items() if access.role is None} == OPEN
            assert all(said[key].role == "admin" for key in ADMINS_ONLY)
            assert all(not said[key].programs for key in PEOPLE_ONLY)

    asyncio.run(run())


def test_whether_it_works_is_reported_without_a_login_and_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            stranger = await there.stranger()
            well = await stranger.client.get("/health")
            assert (well.status_code, well.json()) == (200, {"status": "ok"})
            with there.database.write() as session:
                session.execute(text("alter table users rename to elsewhere"))
            broken = await stranger.client.get("/health")
            assert (broken.status_code, broken.json()) == (503, {"status": "no database"})

    asyncio.run(run())


@pytest.mark.slow
def test_every_route_is_closed_without_a_login(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            stranger = await there.stranger()
            strange = (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": "Bearer fla_wrong"},
                {"Authorization": "Basic YTpi"},
                {"Cookie": f"flywheel_annotation_{there.address.rpartition(':')[2]}=wrong"},
            )
            for method, path, access in routes(there):
                if access.role is None:
                    continue
                for headers in strange if path in CHOSEN else strange[:2]:
                    response = await stranger.client.request(method, filled(path), headers=headers)
                    is_page = path in PAGES and "Authorization" not in headers
                    assert response.status_code == (303 if is_page else 401), (method, path, headers, response.text)
                    if is_page:
                        assert response.headers["location"].startswith("/login")
                    else:
                        assert response.json()["error"] == "LoginRefused" and "WWW-Authenticate" in response.headers
            for path in ("/api/v1/nothing", "/docs", "/openapi.json", "/pages", "/.env", "/api/v1/login/"):
                assert (await stranger.client.get(path)).status_code == 401, path

    asyncio.run(run())


@pytest.mark.slow
def test_every_route_is_closed_to_lesser_roles_and_to_programs_where_it_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            people = {role: await there.person(f"some-{role}", role) for role in ROLES}
            programs = {role: await there.program(f"program-{role}", role) for role in ROLES}
            for method, path, access in routes(there):
                if access.role is None or path == "/api/v1/logout":
                    continue
                for role in ROLES:
                    is_allowed = ROLES.index(role) >= ROLES.index(access.role)
                    if not is_allowed:
                        response = await people[role].send(method, filled(path), {})
                        assert (response.status_code, response.json()["error"]) == (403, "AccessDenied"), (role, method, path)
                    if not is_allowed or not access.programs:
                        response = await programs[role].request(method, filled(path), json={})
                        assert (response.status_code, response.json()["error"]) == (403, "AccessDenied"), (role, method, path)

    asyncio.run(run())


@pytest.mark.slow
def test_nothing_is_changed_without_the_csrf_token_or_from_another_site(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("admin", "admin")
            other = await there.person("other", "admin")
            wrong: tuple[dict[str, str], ...] = (
                {"X-CSRF-Token": ""},
                {"X-CSRF-Token": other.csrf},
                {"X-CSRF-Token": "ä"},
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Origin": "https://elsewhere.example"},
                {"Origin": "null"},
            )
            for method, path, access in routes(there):
                if method in SAFE_METHODS:
                    continue
                for headers in wrong if path in CHOSEN else wrong[1:4:2]:
                    if access.role is None and "X-CSRF-Token" in headers:
                        continue  # whoever is not logged in has none
                    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
                    response = await admin.send(method, filled(path), {}, **encoded)  # type: ignore[arg-type]
                    assert response.status_code == 403, (method, path, headers, response.text)
            assert (await admin.get("/api/v1/users", **{"Sec-Fetch-Site": "cross-site"})).status_code == 403
            opened = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert (await admin.get("/people", **opened)).status_code == 200, "a link from elsewhere opens a page"
            framed = {**opened, "Sec-Fetch-Dest": "iframe"}
            assert (await admin.get("/people", **framed)).status_code == 403
            same = {"Origin": there.address}
            assert (await admin.post("/api/v1/invitations", {}, **same)).status_code == 201

    asyncio.run(run())


def test_a_program_needs_no_csrf_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            program = await there.program("robot", "admin")
            made = await program.post("/api/v1/campaigns", json={"name": "by a program", "tasks": ["miniwob:quickstart"]})
            assert made.status_code == 201, made.text
            assert (await program.get("/api/v1/me")).json()["csrf_token"] is None

    asyncio.run(run())


def test_a_route_that_does_not_say_who_may_call_it_does_not_start() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/fine", **needs("annotator"))
    async def fine() -> None: ...

    assert len(accesses(app)) == 1

    @app.get("/forgotten")
    async def forgotten() -> None: ...

    with pytest.raises(ConfigError, match="/forgotten"):
        Guard(app, None, WebSettings())  # type: ignore[arg-type]
    bare = FastAPI(openapi_url=None)
    bare.router.routes.append(Route("/bare", lambda request: None))
    with pytest.raises(ConfigError, match="/bare"):
        accesses(bare)
    with pytest.raises(ConfigError):
        accesses(FastAPI())  # it brings /docs and /openapi.json
