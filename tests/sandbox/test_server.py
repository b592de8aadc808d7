"""The server of sessions: tokens, leases and their end, limits and queueing, calls that are repeated, what one client sees of another."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

from sandbox import wire
from sandbox.http.tokens import Tokens
from sandbox.server.problems import error_of, problem_of
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import TOKEN_VARIABLE, TOKENS_FILE_VARIABLE, client_token, server_tokens, token_path
from tests.sandbox.counting import PNG, TASK, CountingPool
from warehouse.core.errors import AccessDenied, BrowserCrashed, ConfigError, LeaseLost, SandboxBusy, SandboxError, TaskError
from warehouse.core.home import Home

ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"
TASK_JSON = TASK.model_dump(mode="json")


Use = Callable[[httpx.AsyncClient, CountingPool], Awaitable[Any]]


def run(use: Use, *, size: int = 4, tokens: Tokens | None = None, **settings: Any) -> Any:
    """`await use(http client of ann, pool)` against a server."""

    async def main() -> Any:
        pool = CountingPool(size)
        async with (
            serving(pool, tokens or Tokens({"ann": ANN, "bob": BOB}), ServerSettings(**settings)) as url,
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ANN}"}, timeout=30, trust_env=False, verify=False) as http,
        ):
            result = await use(http, pool)
        assert len(pool.free) == pool.size, "a server that has ended holds no session"
        return result

    return asyncio.run(main())


def as_bob(http: httpx.AsyncClient) -> dict[str, str]:
    return {"Authorization": f"Bearer {BOB}"}


async def create(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/sessions", json={"task": TASK_JSON, "seed": 1, **body})
    assert response.status_code == 201, response.text
    return response.json()


async def measured(http: httpx.AsyncClient, line: str) -> None:
    """Wait until the server's metrics have the line."""
    async with asyncio.timeout(20):
        while line not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.02)


async def step(http: httpx.AsyncClient, session_id: str, **body: Any) -> httpx.Response:
    return await http.post(f"/v1/sessions/{session_id}/step", json={"action": {"kind": "click", "x": 1, "y": 1}, **body})


# ---- the door -------------------------------------------------------------------------------------------------------------------------

ADDRESSES = [
    ("GET", "/"),
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions"),
    ("DELETE", "/v1/sessions/x"),
    ("POST", "/v1/step"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/redoc"),
    ("GET", "/live/events"),
    ("GET", "/live/files/live.js"),
    ("GET", "/live/files/../../app.py"),
    ("GET", "/nothing/here"),
    ("OPTIONS", "/v1/sessions"),
    ("GET", "/login"),
    ("PUT", "/"),
    ("HEAD", "/health"),
    ("GET", "/v1/sessions?token=" + ANN),
]


WRONG_HEADERS = [
    None,
    "",
    "Bearer",
    "Bearer wrong",
    f"Bearer {ANN}x",
    f"Bearer {ANN[:-1]}",
    f"Basic {ANN}",
    ANN,
    f"bearer{ANN}",
    "Bearer é",
]


def test_without_a_valid_token_there_is_a_401_and_nothing_else() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        del http.headers["Authorization"]
        bodies = set()
        for header in WRONG_HEADERS:
            headers = [] if header is None else [(b"authorization", header.encode("utf-8"))]
            responses = await asyncio.gather(*(http.request(method, path, headers=headers) for method, path in ADDRESSES))
            for (method, path), response in zip(ADDRESSES, responses, strict=True):
                assert response.status_code == 401, (header, method, path)
                assert response.headers["www-authenticate"].startswith("Bearer") and "server" not in response.headers
                bodies.add(response.content)
        assert len(bodies) == 2 and b"" in bodies, "the answer says the same whatever was asked for; to HEAD it is empty"
        assert len(pool.free) == pool.size

    run(use)


def test_an_upgrade_to_a_websocket_needs_a_token_as_well() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "A" * 22 + "==", "Sec-WebSocket-Version": "13"}
        for path in ("/live/events", "/v1/sessions", "/ws"):
            assert (await http.get(path, headers={**upgrade, "Authorization": "Bearer wrong"})).status_code == 403
            assert (await http.get(path, headers=upgrade)).status_code == 403, "and nothing but /openenv/ is one (test_openenv.py)"

    run(use)


def test_any_spelling_of_the_scheme_opens() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await http.get("/health", headers={"Authorization": f"{scheme} {ANN}"})).json()["status"] == "ok"

    run(use)


def test_a_person_logs_in_to_look_and_to_nothing_else() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        await create(http)
        del http.headers["Authorization"]
        page = await http.get("/", headers={"Accept": "text/html"})
        assert page.status_code == 401 and "<form" in page.text and ANN not in page.text
        wrong = await http.post("/login", data={"token": "wrong"})
        assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
        let_in = await http.post("/login", data={"token": f" {ANN} "})
        cookie = let_in.headers["set-cookie"]
        assert let_in.status_code == 303 and "HttpOnly" in cookie and "SameSite=Strict" in cookie and ANN not in cookie
        live = await http.get("/")
        assert live.status_code == 200 and "live.js" in live.text
        assert "script-src 'self'" in live.headers["content-security-policy"] and "unsafe" not in live.headers["content-security-policy"]
        assert (await http.get("/live/files/live.css")).status_code == 200
        assert (await http.get("/live/files/live.css", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 401
        for method, path in ADDRESSES:
            if path != "/" and not path.startswith("/live/"):
                assert (await http.request(method, path)).status_code == 401, (method, path)

    run(use)


def test_a_request_that_is_too_large_is_refused() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * 50_000

        for content in (b"x" * 2_000_000, chunks()):
            refused = await http.post("/v1/sessions", content=content)
            assert refused.status_code == 413 and "larger than the 1048576 bytes" in refused.json()["detail"], "announced or not"
        assert len(pool.free) == pool.size

    run(use, max_body_mib=1)


def test_tokens_come_from_a_file_the_environment_or_are_made(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(ConfigError, match="No token"):
        client_token(home, {})
    made, place = server_tokens(home, {})
    assert str(token_path(home)) in place and token_path(home).stat().st_mode & 0o777 == 0o600
    assert made.client(client_token(home, {})) == "default" and made.client("x") is None
    assert server_tokens(home, {})[0].client(client_token(home, {})) == "default", "a second start keeps the token"
    assert server_tokens(home, {TOKEN_VARIABLE: ANN})[0].client(ANN) == "default"
    named = tmp_path / "tokens"
    named.write_text(f"# who\nann {ANN}\n\nbob {BOB} # his\n")
    with pytest.raises(ConfigError, match="chmod 600"):
        server_tokens(home, {TOKENS_FILE_VARIABLE: str(named)})
    named.chmod(0o600)
    assert server_tokens(home, {TOKENS_FILE_VARIABLE: str(named)})[0].client(BOB) == "bob"


def test_servers_that_start_together_in_one_home_take_the_same_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long one of them is at making it."""
    home, make = Home(tmp_path / "home"), secrets.token_urlsafe
    together = threading.Barrier(4)

    def make_slowly(num_bytes: int) -> str:
        time.sleep(0.2)
        return make(num_bytes)

    def start(_: int) -> Tokens:
        together.wait()
        return server_tokens(home, {})[0]

    monkeypatch.setattr(secrets, "token_urlsafe", make_slowly)
    with ThreadPoolExecutor(together.parties) as threads:
        servers = list(threads.map(start, range(together.parties)))
    assert [tokens.client(client_token(home, {})) for tokens in servers] == ["default"] * together.parties
    assert list(token_path(home).parent.iterdir()) == [token_path(home)], "nothing written aside is left"


@pytest.mark.parametrize("wrong", [{}, {"ann": "short"}, {"ann": ANN, "bob": ANN}, {"ann": "with spaces in the middle"}, {"ann": "é" * 20}])
def test_tokens_that_will_not_do(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Tokens(wrong)


# ---- calls ------------------------------------------------------------------------------------------------------------------------------


def test_an_episode_in_json() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        started = await create(http, seed=7)
        session_id = started["session_id"]
        assert started["observation"]["instruction"] == "seed 7, count 0" and started["environment"] == "counting 1"
        assert wire.OBSERVATION.from_json(httpx.Response(200, json=started["observation"]).content).screenshot == PNG + b"7/0"
        transition = wire.TRANSITION.from_json((await step(http, session_id)).content)
        assert transition.observation.instruction == "seed 7, count 1" and not transition.terminated
        again = await http.get(f"/v1/sessions/{session_id}/observation")
        assert wire.OBSERVATION.from_json(again.content) == transition.observation
        assert (await http.post(f"/v1/sessions/{session_id}/evaluate")).json()["score"] == 0.1
        screen = await http.get(f"/v1/sessions/{session_id}/screenshot")
        assert screen.content == PNG + b"7/1" and screen.headers["etag"] == f'"{transition.observation.screenshot_id}"'
        unchanged = await http.get(f"/v1/sessions/{session_id}/screenshot", headers={"If-None-Match": screen.headers["etag"]})
        assert unchanged.status_code == 304 and not unchanged.content
        reset = await http.post(f"/v1/sessions/{session_id}/reset", json={"task": TASK_JSON, "seed": 8, "screenshots": False})
        assert reset.json()["observation"]["screenshot"] is None and reset.json()["num_calls"] == 3
        (mine,) = (await http.get("/v1/sessions")).json()
        assert (mine["session_id"], mine["seed"], mine["num_steps"], mine["num_calls"]) == (session_id, 8, 0, 3)
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        assert len(pool.free) == pool.size and pool.errors == []

    run(use)


def test_messagepack_carries_a_screenshot_as_bytes() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        response = await http.post(
            f"/v1/sessions/{session_id}/step", json={"action": {"kind": "click", "x": 1, "y": 1}}, headers={"Accept": "application/msgpack"}
        )
        assert response.headers["content-type"] == "application/msgpack"
        assert wire.TRANSITION.from_plain(msgpack.unpackb(response.content)).observation.screenshot == PNG + b"1/1"

    run(use)


def test_a_repeated_call_acts_once() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        first, second, again = [await step(http, session_id, number=number) for number in (2, 3, 3)]
        assert again.content == second.content != first.content
        late = await step(http, session_id, number=2)
        assert late.status_code == 409 and "Send 4" in late.json()["detail"] and late.json()["error"] == "SandboxError"
        wait = {"kind": "wait", "seconds": 0.3}
        thrice = await asyncio.gather(*(step(http, session_id, action=wait, number=4) for _ in range(3)))
        assert {response.status_code for response in thrice} == {200}
        assert wire.TRANSITION.from_json((await step(http, session_id)).content).observation.instruction == "seed 1, count 3"
        assert (await create(http, key="once"))["session_id"] == (await create(http, key="once"))["session_id"]
        assert len((await http.get("/v1/sessions")).json()) == 2

    run(use)


def test_a_session_that_went_on_outlives_a_late_repeat_of_its_request() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http, key="once"))["session_id"]
        await step(http, session_id, number=2)
        late = await http.post("/v1/sessions", json={"task": TASK_JSON, "seed": 1, "key": "once"})
        assert late.status_code == 409 and "Send 3" in late.json()["detail"]
        assert (await step(http, session_id, number=3)).status_code == 200

    run(use)


def test_a_batch_steps_side_by_side() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        names = [(await create(http, seed=seed))["session_id"] for seed in range(3)]
        wait = {"kind": "wait", "seconds": 0.4}
        steps = [{"session_id": name, "action": wait} for name in names] + [{"session_id": "session-0", "action": wait}]
        answers = (await http.post("/v1/step", json={"steps": steps})).json()
        assert pool.most_waiting == 3
        assert [answer["transition"] is not None for answer in answers] == [True, True, True, False]
        assert answers[3]["problem"]["error"] == "LeaseLost" and answers[0]["session_id"] == names[0]

    run(use)


def test_hints_are_given_only_where_they_are_allowed() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> Any:
        return await http.post(f"/v1/sessions/{(await create(http))['session_id']}/hint")

    refused = run(use)
    assert refused.status_code == 403 and refused.json()["error"] == "AccessDenied"
    assert run(use, oracles=True).json()["kind"] == "click"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("", {"seed": 1}, "without a task"),
        ("", {"task": {**TASK_JSON, "max_steps": 0}}, "max_steps"),
        ("", {"tusk": 1}, "tusk"),
        ("", {"ttl_s": 1e9}, "too long"),
        ("/{}/step", {"action": {"kind": "fly"}}, "fly"),
        ("/{}/step", {"action": {"kind": "click", "x": 1, "y": 1}, "number": 0}, "number"),
        ("/{}/reset", {"task": {**TASK_JSON, "source": "nowhere"}, "seed": 1}, "nowhere"),
    ],
)
def test_wrong_requests_are_reported_and_cost_nothing(path: str, body: dict[str, Any], said: str) -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        response = await http.post(f"/v1/sessions{path.format(session_id)}", json=body)
        assert response.status_code == 422 and response.headers["content-type"] == "application/problem+json"
        assert said in response.json()["detail"]
        assert (await step(http, session_id)).status_code == 200
        await http.delete(f"/v1/sessions/{session_id}")
        assert pool.errors == []

    run(use)


def test_a_session_shows_nothing_of_who_had_it_before() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        first = (await create(http))["session_id"]
        await step(http, first)
        await http.delete(f"/v1/sessions/{first}")
        later = (await http.post("/v1/sessions", json={}, headers=as_bob(http))).json()
        assert later["observation"] is None
        for call in ("step", "evaluate", "hint", "observation", "screenshot"):
            method = "GET" if call in ("observation", "screenshot") else "POST"
            body = {"action": {"kind": "click", "x": 1, "y": 1}} if call == "step" else None
            response = await http.request(method, f"/v1/sessions/{later['session_id']}/{call}", json=body, headers=as_bob(http))
            assert response.status_code == 502 and "reset" in response.json()["detail"]

    run(use, size=1, oracles=True)


def test_no_client_sees_anothers_session() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        unknown = "session-" + "0" * 24
        asked = [
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/heartbeat", None),
            ("POST", "/evaluate", None),
            ("POST", "/hint", None),
            ("GET", "/observation", None),
            ("GET", "/screenshot", None),
            ("POST", "/step", {"action": {"kind": "wait"}}),
            ("POST", "/reset", {"task": TASK_JSON, "seed": 1}),
        ]
        for method, path, body in asked:
            theirs, nobodys = [
                await http.request(method, f"/v1/sessions/{name}{path}", json=body, headers=as_bob(http)) for name in (session_id, unknown)
            ]
            assert theirs.status_code == nobodys.status_code == 404
            assert theirs.text.replace(session_id, "") == nobodys.text.replace(unknown, "")
        for path in ("events", "screens/screen-0"):
            assert (await http.get(f"/live/sessions/{session_id}/{path}", headers=as_bob(http))).status_code == 404
        assert (await http.get("/v1/sessions", headers=as_bob(http))).json() == []
        beat = await http.post("/v1/heartbeat", json={"sessions": [session_id, unknown]}, headers=as_bob(http))
        assert beat.json() == {"alive": [], "gone": [session_id, unknown]}
        batch = {"steps": [{"session_id": session_id, "action": {"kind": "click", "x": 1, "y": 1}}]}
        assert (await http.post("/v1/step", json=batch, headers=as_bob(http))).json()[0]["problem"]["status"] == 404
        assert wire.TRANSITION.from_json((await step(http, session_id)).content).observation.instruction == "seed 1, count 1"

    run(use, oracles=True)


# ---- the end of leases -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_silent_session_is_reclaimed_and_heartbeats_keep_it() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        silent = (await create(http, ttl_s=0.3))["session_id"]
        kept = (await create(http, ttl_s=5))["session_id"]  # a busy machine is late with a beat
        kept_until_s = asyncio.get_running_loop().time() + 6
        async with asyncio.timeout(20):
            while len(pool.free) < pool.size - 1 or asyncio.get_running_loop().time() < kept_until_s:
                await asyncio.sleep(0.05)
                beat = (await http.post("/v1/heartbeat", json={"sessions": [kept]})).json()
                assert beat["alive"] == [kept]
        gone = await step(http, silent)
        assert gone.status_code == 404 and "heartbeat" in gone.json()["detail"] and gone.json()["error"] == "LeaseLost"
        await pool.is_whole()
        assert 'flywheel_sessions_ended_total{reason="overdue"} 2.0' in (await http.get("/metrics")).text
        assert pool.errors == ["_Distrusted", "_Distrusted"], "nobody builds on a page that was left in the middle"

    run(use)


def test_a_long_call_is_a_sign_of_life() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http, ttl_s=1.0))["session_id"]
        assert (await http.post(f"/v1/sessions/{session_id}/step", json={"action": {"kind": "wait", "seconds": 1.5}})).status_code == 200
        assert (await step(http, session_id)).status_code == 200

    run(use)


def test_no_session_lives_longer_than_the_longest_lifetime() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        cut_off = await http.post(f"/v1/sessions/{session_id}/step", json={"action": {"kind": "wait", "seconds": 60}})
        assert cut_off.status_code == 404 and "lifetime" in cut_off.json()["detail"]
        await pool.is_whole()

    run(use, max_lifetime_s=0.5)


def test_a_crash_reaches_the_client_and_the_pool() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        crash = {"action": {"kind": "tool", "name": "crash"}}
        session_id = (await create(http))["session_id"]
        crashed = await http.post(f"/v1/sessions/{session_id}/step", json=crash)
        assert crashed.status_code == 502 and isinstance(error_of(crashed.json(), 502), BrowserCrashed)
        await http.delete(f"/v1/sessions/{session_id}")
        assert pool.errors == ["BrowserCrashed"]
        session_id = (await create(http))["session_id"]
        await http.post(f"/v1/sessions/{session_id}/step", json=crash)
        await http.post(f"/v1/sessions/{session_id}/reset", json={"task": TASK_JSON, "seed": 1})
        await http.delete(f"/v1/sessions/{session_id}")
        assert pool.errors == ["BrowserCrashed"], "a session that recovered is well"
        session_id = (await create(http))["session_id"]
        await http.delete(f"/v1/sessions/{session_id}", params={"failed": True})
        assert pool.errors == ["BrowserCrashed", "_Distrusted"]

    run(use)


def test_releasing_ends_a_call_under_way() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        slow = asyncio.create_task(http.post(f"/v1/sessions/{session_id}/step", json={"action": {"kind": "wait", "seconds": 60}}))
        await pool.is_waiting()
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        assert (await slow).status_code == 404 and pool.errors == ["CancelledError"]
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 404

    run(use)


# ---- limits -----------------------------------------------------------------------------------------------------------------------------


def test_who_waits_gets_the_next_free_session_or_is_asked_to_come_back() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        first = (await create(http))["session_id"]
        turned_away = await http.post("/v1/sessions", json={"wait_s": 0.1})
        assert turned_away.status_code == 503 and int(turned_away.headers["retry-after"]) > 0
        assert isinstance(error_of(turned_away.json(), 503), SandboxBusy)
        waiting = asyncio.create_task(create(http))
        await measured(http, "flywheel_sessions_waiting 1.0")
        await http.delete(f"/v1/sessions/{first}")
        assert (await waiting)["session_id"] != first

    run(use, max_sessions=1, size=1)


def test_a_pool_without_a_free_session_is_waited_for_as_well() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        await create(http)
        assert (await http.post("/v1/sessions", json={"wait_s": 0.2})).status_code == 503
        assert len((await http.get("/v1/sessions")).json()) == 1

    run(use, size=1)


def test_one_client_cannot_take_all() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        for _ in range(2):
            await create(http)
        waiting = [asyncio.create_task(create(http)) for _ in range(3)]
        await measured(http, "flywheel_sessions_waiting 3.0")
        bobs = await http.post("/v1/sessions", json={}, headers=as_bob(http))
        assert bobs.status_code == 201, "who waits because of a limit of its own holds nobody up"
        assert (await http.post("/v1/sessions", json={"wait_s": 5})).status_code == 503, "the line has an end"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await measured(http, "flywheel_sessions_waiting 0.0")
        assert len((await http.get("/v1/sessions")).json()) == 2, "a client that went away has no place in the line"

    run(use, max_sessions_per_client=2, max_waiting=3)


def test_the_end_of_the_server_ends_everything() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> tuple[asyncio.Task[Any], ...]:
        session_id = (await create(http))["session_id"]
        slow = asyncio.create_task(http.post(f"/v1/sessions/{session_id}/step", json={"action": {"kind": "wait", "seconds": 0.5}}))
        await create(http)
        waiting = asyncio.create_task(http.post("/v1/sessions", json={}))

        watched = asyncio.Event()

        async def watch() -> str:
            async with http.stream("GET", "/live/events") as stream:
                watched.set()
                return "".join([line async for line in stream.aiter_lines()])

        watching = asyncio.create_task(watch())
        await asyncio.wait_for(watched.wait(), 20)
        await measured(http, "flywheel_sessions_waiting 1.0")
        return slow, waiting, watching

    async def main() -> None:
        pool = CountingPool(2)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {ANN}"}, timeout=30, trust_env=False, verify=False) as http:
            async with serving(pool, Tokens({"ann": ANN}), ServerSettings(max_sessions=2)) as url:
                http.base_url = httpx.URL(url)
                slow, waiting, watching = await use(http, pool)
            assert len(pool.free) == 2
            assert (await slow).status_code == 200 and (await waiting).status_code == 503
            assert (await watching).endswith('data: {"closing": true}')

    asyncio.run(main())


# ---- watching ---------------------------------------------------------------------------------------------------------------------------


def test_viewers_get_screens_actions_and_output_as_data() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        async with http.stream("GET", f"/live/sessions/{session_id}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            events = (json.loads(line.removeprefix("data: ")) async for line in stream.aiter_lines() if line.startswith("data: "))
            first = await anext(events)
            assert first["num_steps"] == 0 and first["screen"]["elements"][0]["text"] == "<b>more</b>"
            call = {"kind": "tool", "name": "execute_bash", "arguments": {"command": "ls"}}
            await http.post(f"/v1/sessions/{session_id}/step", json={"action": call})
            second = await anext(events)
            assert second["output"] == "$ ls\none\ntwo\n" and second["steps"][0]["action"]["name"] == "execute_bash"
            screen = await http.get(f"/live/sessions/{session_id}/screens/{second['screenshot_id']}")
            assert screen.content == PNG + b"1/0" and "immutable" in screen.headers["cache-control"]
            await http.delete(f"/v1/sessions/{session_id}")
            assert (await anext(events))["ended"] == "it was released"

    run(use)


def test_the_interface_describes_itself() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        described = (await http.get("/openapi.json")).json()
        routes = {(method, path): route for path, methods in described["paths"].items() for method, route in methods.items()}
        assert len(routes) > 14 and all(route["summary"] for route in routes.values())
        assert not any(path.startswith("/live") for _, path in routes)
        assert "click" in str(described["components"]["schemas"]["Click"])
        assert len((await http.get("/v1/tasks", params={"select": "miniwob:quickstart"})).json()) >= 10
        await create(http)
        text = (await http.get("/metrics")).text
        assert re.search(r"^flywheel_sessions_live 1\.0$", text, re.M) and 'flywheel_reset_seconds_count{kind="page"} 1.0' in text

    run(use)


def test_errors_are_the_same_class_at_both_ends() -> None:
    for error in (LeaseLost("a"), SandboxBusy("b"), AccessDenied("c"), TaskError("d"), BrowserCrashed("e"), SandboxError("f")):
        problem = problem_of(error)
        again = error_of(problem, problem["status"])
        assert type(again) is type(error) and str(again) == str(error) and problem["is_retryable"] is again.is_retryable
    assert not error_of({"error": "SandboxError", "detail": "x", "is_retryable": False}, 502).is_retryable
    assert type(error_of({"error": "FlywheelError.__init__", "detail": "x"}, 500)) is SandboxError
    assert type(error_of("what", 500)) is SandboxError and type(error_of(None, 401)) is AccessDenied


def test_a_port_that_is_taken_is_reported() -> None:
    from sandbox.http.serving import bind

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port"):
            bind("127.0.0.1", taken.getsockname()[1])
