"""Requests that no page of ours would send: paths that lead out, bodies too large, too slow or broken, markup where text is wanted."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

from annotation.web.guard import PAGE_HEADERS
from annotation.web.limits import Rates
from annotation.web.pages import FILES, OPEN_PAGES, PAGES
from annotation.web.settings import WebSettings
from annotation.web.shell import FOLDER, TEMPLATES, page_text, problem_text
from tests.annotation.web.web_parts import Site, site

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"


async def raw(there: Site, data: bytes, *, wait_s: float = 5.0) -> bytes:
    """What the server answers to these bytes."""
    host, _, port = there.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(65536), wait_s)
    finally:
        writer.close()


def test_every_file_of_the_pages_is_listed_and_every_listed_one_is_there() -> None:
    there = {path.name for path in FOLDER.iterdir()}
    pages = [*PAGES.values(), *OPEN_PAGES.values()]
    assert there == set(FILES) | set(TEMPLATES) | {page.file for page in pages}
    assert {f"{page.name}.js" for page in pages} | {page.style for page in pages if page.style} <= set(FILES), "each finds what it loads"


OUTSIDE = (
    "/pages/../app.py",
    "/pages/..%2fapp.py",
    "/pages/%2e%2e/app.py",
    "/pages/..%5capp.py",
    "/pages/....//app.py",
    "/pages/%2fetc%2fpasswd",
    "/pages/app.js%00.py",
    "/pages//etc/passwd",
    "/pages/.",
    "/pages/..",
    "/pages/home.html",
    "/pages/WORK.JS",
    "/..%2f..%2fetc/passwd",
    "/api/v1/runs/..%2f..%2fetc/screens/passwd",
)


def test_no_address_leads_out_of_the_pages(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            for path in OUTSIDE:
                answer = await raw(there, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                assert int(answer.split(b" ", 2)[1]) in (400, 401, 404), (path, answer)
                assert b"root:" not in answer and b"FastAPI" not in answer and b"<!doctype" not in answer.lower(), path

    asyncio.run(run())


def test_a_picture_is_had_by_its_id_and_by_nothing_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            (tmp_path / "secret.png").write_bytes(b"hidden")
            admin = await there.person("root", "admin")
            for name in ("..%2f..%2fsecret", "../../secret.png", "screen-0000000000000000", "%00", "screen-..%2f..%2fsecret"):
                for path in (f"/api/v1/runs/run-1/screens/{name}", f"/api/v1/recordings/recording-1/screens/{name}"):
                    answer = await admin.get(path)
                    assert answer.status_code in (404, 422) and "hidden" not in answer.text, path

    asyncio.run(run())


def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            large = await admin.post("/api/v1/campaigns", {"name": "x", "tasks": ["miniwob"], "guidelines": "y" * 300_000})
            assert large.status_code == 413 and large.headers["content-type"] == "application/problem+json"

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(100):
                    yield b" " * 10_000

            headers = {"X-CSRF-Token": admin.csrf, "Content-Type": "application/json"}
            chunked = await admin.client.post("/api/v1/campaigns", content=pieces(), headers=headers)
            assert chunked.status_code == 413, chunked.text
            login = await (await there.stranger()).post("/api/v1/login", {"name": "x", "password": "y" * 10_000})
            assert login.status_code == 413

    asyncio.run(run())


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(body_timeout_s=0.2)) as there:
            head = b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            assert (await raw(there, head)).startswith(b"HTTP/1.1 408")

    asyncio.run(run())


BROKEN = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"name": "a"',
    b"[" * 50_000,
    b'{"name": NaN, "tasks": []}',
    b"1e999",
    b'{"name": "x", "tasks": ["miniwob"], "surprise": 1}',
    b'{"name": "", "tasks": ["miniwob"]}',
    b'{"name": "x", "tasks": []}',
    b'{"name": "x", "tasks": ["miniwob"], "target_count": -1}',
    b'{"name": "x", "tasks": ["miniwob"], "lease_s": 1e999}',
    b'{"name": "x", "tasks": ["../../etc"]}',
    b'{"name": {"$gt": ""}, "tasks": ["miniwob"]}',
    b'{"name": "\\ud800", "tasks": ["miniwob"]}',
    b'{"name": "x", "tasks": ["miniwob"], "members": ["\' or 1=1 --"]}',
)


def test_a_broken_body_is_a_problem_and_not_a_failure(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            program = await there.program("robot", "admin")
            for body in BROKEN:
                response = await program.post("/api/v1/campaigns", content=body, headers={"Content-Type": "application/json"})
                assert response.status_code in (400, 404, 422), (body[:60], response.status_code, response.text)
                assert response.headers["content-type"] == "application/problem+json"
                assert set(response.json()) == {"type", "title", "status", "detail", "error", "is_retryable"}

    asyncio.run(run())


def test_strange_texts_are_kept_as_they_are_or_refused(tmp_path: Path, postgres_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=postgres_url) as there:
            program = await there.program("robot", "admin")
            refused = await program.post("/api/v1/campaigns", json={"name": "a\0b", "tasks": ["miniwob"]})
            assert refused.status_code == 422 and "NUL" in refused.json()["detail"]
            for name in ("\u202eevil", "🦉" * 100):
                kept = await program.post("/api/v1/campaigns", json={"name": name, "tasks": ["miniwob"]})
                assert kept.status_code == 201 and kept.json()["name"] == name

    asyncio.run(run())


def test_a_form_of_another_site_is_no_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            await there.person("ada")
            stranger = await there.stranger()
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None):
                body = json.dumps({"name": "ada", "password": "correct horse battery"}).encode()
                headers = {} if kind is None else {"Content-Type": kind}
                response = await stranger.client.post("/api/v1/login", content=body, headers=headers)
                assert response.status_code == 422 and "set-cookie" not in response.headers, kind

    asyncio.run(run())


def test_a_password_is_not_sent_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            stranger = await there.stranger()
            for name in ({"name": 1}, {}, {"name": "x" * 65}):
                response = await stranger.post("/api/v1/login", {**name, "password": "my-secret-words"})
                assert response.status_code == 422 and "my-secret-words" not in response.text

    asyncio.run(run())


def test_markup_travels_as_text_that_no_browser_runs(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            made = await admin.post("/api/v1/campaigns", {"name": MARKUP, "tasks": ["miniwob"], "guidelines": MARKUP})
            assert made.status_code == 201 and made.json()["guidelines"] == MARKUP
            answers = [
                made,
                await admin.get("/api/v1/campaigns"),
                await admin.get("/api/v1/audit"),
                await admin.get(f"/api/v1/{MARKUP}"),
                await admin.get(f"/pages/{MARKUP}"),
                await admin.post("/api/v1/campaigns", {"name": "x", "tasks": [MARKUP]}),
                await (await there.stranger()).get(f"/api/v1/{MARKUP}"),
                await admin.send("DELETE", "/api/v1/me"),
            ]
            for answer in answers:
                assert answer.headers["content-type"] in ("application/json", "application/problem+json"), answer.request.url
                assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
                assert answer.headers["cache-control"] == "no-store"
            page = await admin.get("/login", **{"Cookie": ""})
            policy = page.headers["content-security-policy"]
            assert page.headers["content-type"].startswith("text/html")
            wanted = ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'")
            assert "unsafe" not in policy and all(said in policy for said in wanted)

    asyncio.run(run())


def test_no_page_has_anything_inline_or_from_elsewhere() -> None:
    pages = {page.name: page_text(page) for page in (*PAGES.values(), *OPEN_PAGES.values())}
    pages["problem"] = problem_text("Not found", MARKUP)
    for name, text in pages.items():
        assert text.startswith("<!doctype html>") and "<main" in text and not re.search(r"\$[a-z]", text), name
        assert "<style" not in text and " style=" not in text and " onclick=" not in text and "javascript:" not in text, name
        assert "http://" not in text and "https://" not in text, name
        for script in text.split("<script")[1:]:
            assert 'src="/pages/' in script.partition(">")[0] and script.partition(">")[2].startswith("</script>"), name
    assert MARKUP not in pages["problem"] and "&lt;script&gt;" in pages["problem"]


def test_who_opens_what_there_is_not_or_may_not_gets_a_page(tmp_path: Path) -> None:
    """In the product's style and with the way back; pages that ask the interface, and programs, get a problem in JSON as ever."""
    opening = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    async def run() -> None:
        async with site(tmp_path) as there:
            ann, stranger, program = await there.person("ann"), await there.stranger(), await there.program("robot")
            for path, status, reported in (
                ("/people", 403, "This is for admins; ann is annotator."),
                ("/review", 403, "This is for reviewers"),
                ("/nowhere", 404, "There is nothing at this address."),
                (f"/{MARKUP}", 404, "There is nothing"),
                ("/.env", 404, "nothing"),
            ):
                page = await ann.get(path, **opening)
                assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
                assert reported in page.text and 'href="/"' in page.text and "/pages/base.css" in page.text and MARKUP not in page.text
                assert page.headers["cache-control"] == "no-store"
                assert {name: page.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
                assert (await ann.get(path)).json()["status"] == status, "who asks for nothing special gets JSON"
                sent = await stranger.get(path, **opening)
                assert (sent.status_code, sent.headers["location"].startswith("/login?next=/")) == (303, True), "whatever is there"
                assert (await program.get(path, headers=opening)).headers["content-type"] == "application/problem+json"
            for path in ("/api/v1/nothing", "/api/v1/users", "/pages/nothing.js"):
                assert (await ann.get(path, **opening)).headers["content-type"] == "application/problem+json", path

    asyncio.run(run())


def test_who_asks_in_haste_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(requests_per_s=0.5, burst=5)) as there:
            stranger = await there.stranger()
            answers = [await stranger.get("/login") for _ in range(8)]
            assert [answer.status_code for answer in answers].count(429) >= 2
            assert int(answers[-1].headers["retry-after"]) >= 1

    asyncio.run(run())


def test_a_bucket_fills_up_again_and_callers_do_not_fill_the_memory() -> None:
    now = [0.0]
    rates = Rates(2.0, 4, clock=lambda: now[0])
    assert [rates.wait_s("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert rates.wait_s("b") == 0
    now[0] = 1.0
    assert [rates.wait_s("a") for _ in range(3)] == [0, 0, 0.5]
    for index in range(30_000):
        rates.wait_s(f"caller {index}")
    assert len(rates._buckets) <= 10_000
