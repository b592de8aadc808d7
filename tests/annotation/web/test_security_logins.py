"""Logins: no fixation, no guessing, no life after their end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from annotation.storage.attempts import source_of
from annotation.web import guard
from annotation.web.access import needs
from annotation.web.serve import serving
from annotation.web.settings import WebSettings
from tests.annotation.web.web_parts import PASSWORD, Site, site


def cookie(there: Site) -> str:
    return f"flywheel_annotation_{there.address.rpartition(':')[2]}"


def test_a_cookie_that_somebody_planted_is_never_a_login(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            await there.person("ada")
            victim = await there.stranger()
            victim.client.cookies.set(cookie(there), "planted", domain="127.0.0.1", path="/")
            assert (await victim.log_in("ada")).status_code == 200
            attacker = await there.stranger()
            attacker.client.cookies.set(cookie(there), "planted", domain="127.0.0.1", path="/")
            assert (await attacker.get("/api/v1/me")).status_code == 401

    asyncio.run(run())


def test_logging_in_again_ends_the_login_before_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            person = await there.person("ada")
            before = person.client.cookies[cookie(there)]
            csrf = person.csrf
            assert (await person.log_in("ada")).status_code == 200
            after = person.client.cookies[cookie(there)]
            assert before != after and csrf != person.csrf and len(after) >= 43
            old = await there.stranger()
            old.client.cookies.set(cookie(there), before, domain="127.0.0.1", path="/")
            assert (await old.get("/api/v1/me")).status_code == 401

    asyncio.run(run())


def test_the_cookie_is_for_this_server_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            person = await there.person("ada")
            made, device = (await person.log_in("ada")).headers.get_list("set-cookie")
            assert re.fullmatch(rf"{cookie(there)}=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Strict; Max-Age=57600", made)
            name = cookie(there).replace("annotation", "device")
            assert re.fullmatch(rf"{name}=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000", device)
            gone = (await person.post("/api/v1/logout")).headers["set-cookie"]
            assert f"{cookie(there)}=;" in gone and "Max-Age=0" in gone
            assert (await person.get("/api/v1/me")).status_code == 401
        async with site(tmp_path, settings=WebSettings(behind_proxy=True)) as there:
            person = await there.stranger()
            forwarded = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7", "X-Forwarded-Proto": "https"}
            made = await person.post("/api/v1/login", {"name": "ada", "password": PASSWORD}, **forwarded)
            for header, kind in zip(made.headers.get_list("set-cookie"), ("annotation", "device"), strict=True):
                assert header.startswith(f"__Host-flywheel_{kind}=") and header.endswith("; Secure")
            assert "strict-transport-security" in made.headers
            with there.database.read() as session:
                from annotation.storage import audit

                assert audit.entries(session)[0].address == "203.0.113.7", "what our own proxy saw, not what the client says"

    asyncio.run(run())


def test_where_there_is_no_proxy_nobody_says_another_address(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(free_failures=5)) as there:
            guesser = await there.stranger()
            answers = [
                await guesser.post("/api/v1/login", {"name": "ada", "password": "x" * 12}, **{"X-Forwarded-For": f"10.0.0.{index}"})
                for index in range(7)
            ]
            assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2

    asyncio.run(run())


def test_addresses_of_one_network_of_ipv6_count_as_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(free_failures=5, behind_proxy=True)) as there:
            guesser = await there.stranger()

            async def attempt(address: str) -> int:
                forwarded = {"X-Forwarded-For": address}
                return (await guesser.post("/api/v1/login", {"name": "ada", "password": "x" * 12}, **forwarded)).status_code

            own = [await attempt(f"2001:db8:1:2:{index}::{index}") for index in range(7)]
            assert own == [401] * 5 + [429] * 2, "whoever has one of them has them all"
            assert await attempt("2001:db8:1:3::1") == 401, "a neighbour's network is another"
            mapped = [await attempt(address) for address in ("::ffff:198.51.100.7", "198.51.100.7") * 3]
            assert mapped == [401] * 5 + [429] and await attempt("198.51.100.8") == 401, "addresses of IPv4 count one by one"
            with there.database.read() as session:
                from annotation.storage import audit

                assert "2001:db8:1:2:4::4" in {entry.address for entry in audit.entries(session)}, "what is written down is the address"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_what_counts_as_one_caller(address: str, source: str) -> None:
    assert source_of(address) == source


def test_guessing_a_password_is_stopped_and_tells_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(free_failures=4)) as there:
            ada = await there.person("ada")
            guesser = await there.stranger()
            known = [await guesser.log_in("ada", f"wrong guess {index}") for index in range(6)]
            unknown = [await guesser.log_in("nobody", f"wrong guess {index}") for index in range(6)]
            assert [answer.status_code for answer in known] == [401] * 4 + [429] * 2
            assert [answer.status_code for answer in unknown] == [401] * 4 + [429] * 2, "an unknown name looks the same"
            assert {answer.json()["detail"] for answer in known[:4]} == {answer.json()["detail"] for answer in unknown[:4]}
            assert 0 < int(known[5].headers["retry-after"]) <= 900
            assert (await guesser.log_in("ada")).status_code == 429, "the right one too"
            assert (await ada.get("/api/v1/me")).status_code == 200, "who is in stays in"
        async with site(tmp_path, settings=WebSettings(free_failures=4)) as there:
            assert (await (await there.stranger()).log_in("ada")).status_code == 429, "a restart forgives nothing"

    asyncio.run(run())


@pytest.mark.slow
def test_nobody_shuts_out_the_others_at_an_address(tmp_path: Path) -> None:
    """A hundred failures under her own name and under others, from the address that she has too: she logs in, and a new person joins."""

    async def run() -> None:
        async with site(tmp_path) as there:
            ada = await there.person("ada")
            attacker = await there.stranger()
            for index in range(100):
                assert (await attacker.log_in("ada", f"wrong guess {index}")).status_code in (401, 429)
                assert (await attacker.log_in(f"name{index}", "wrong guess")).status_code == 401
                assert (await attacker.post("/api/v1/invitation", {"token": f"guess {index}"})).status_code == 404
            assert (await attacker.log_in("ada")).status_code == 429
            await ada.post("/api/v1/logout")
            assert (await ada.log_in("ada")).status_code == 200, "her browser got in before"
            await there.person("bob")

    asyncio.run(run())


def test_who_is_barred_is_out_at_once_and_nobody_bars_themselves(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin, ada = await there.person("root", "admin"), await there.person("ada", "reviewer")
            token = (await ada.post("/api/v1/me/tokens", {"label": "upload", "password": PASSWORD})).json()["token"]
            program = httpx.AsyncClient(base_url=there.address, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
            async with program:
                assert (await program.get("/api/v1/me")).status_code == 200
                path = f"/api/v1/users/{ada.me['user_id']}"
                assert (await admin.send("PATCH", path, {"is_disabled": True})).json()["disabled_at_s"] is not None
                assert (await program.get("/api/v1/me")).status_code == 401
            assert (await ada.get("/api/v1/me")).status_code == 401
            own = f"/api/v1/users/{admin.me['user_id']}"
            for change in ({"is_disabled": True}, {"role": "annotator"}):
                assert (await admin.send("PATCH", own, change)).status_code == 409
            assert (await admin.send("PATCH", path, {"role": "god"})).status_code == 422

    asyncio.run(run())


def test_a_changed_role_counts_from_the_next_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin, ada = await there.person("root", "admin"), await there.person("ada", "admin")
            assert (await ada.get("/api/v1/users")).status_code == 200
            await admin.send("PATCH", f"/api/v1/users/{ada.me['user_id']}", {"role": "annotator"})
            assert (await ada.get("/api/v1/users")).status_code == 403

    asyncio.run(run())


def test_a_token_is_made_with_the_password_and_is_shown_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ada, eve = await there.person("ada"), await there.person("eve")
            refused = await ada.post("/api/v1/me/tokens", {"label": "x", "password": "not the password"})
            assert refused.status_code == 401
            made = (await ada.post("/api/v1/me/tokens", {"label": "upload", "password": PASSWORD})).json()
            listed = (await ada.get("/api/v1/me/tokens")).json()
            assert [one["label"] for one in listed] == ["upload"] and "token" not in listed[0]
            assert (await eve.send("DELETE", f"/api/v1/me/tokens/{made['token_id']}")).status_code == 404
            assert (await ada.send("DELETE", f"/api/v1/me/tokens/{made['token_id']}")).status_code == 204
            assert (await ada.get("/api/v1/me/tokens")).json() == []

    asyncio.run(run())


def test_a_stream_ends_with_the_login_that_opened_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RECHECK_S", 0.05)

    async def ticks() -> AsyncIterator[bytes]:
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with site(tmp_path) as there:
            app = FastAPI(openapi_url=None)

            @app.get("/stream", **needs("annotator"))
            async def stream() -> StreamingResponse:
                return StreamingResponse(ticks(), media_type="text/event-stream")

            token, user = await there.accounts.add_program("watcher", "annotator", "a test")
            async with serving(guard.Guard(app, there.accounts, WebSettings())) as address, httpx.AsyncClient(trust_env=False) as client:
                async with client.stream("GET", f"{address}/stream", headers={"Authorization": f"Bearer {token}"}) as response:
                    seen = 0
                    async for _ in response.aiter_bytes():
                        seen += 1
                        if seen == 5:
                            await there.accounts.set_disabled(user.user_id, True, by=None)
                assert 5 <= seen < 200

    asyncio.run(asyncio.wait_for(run(), 30))
