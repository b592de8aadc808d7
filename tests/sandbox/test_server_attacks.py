"""What a careless or hostile client tries on a sandbox server: numbers and texts beyond what anything holds, other host names, slow
requests, readers that never read. None of it is an error of the server's, or stops another client."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sandbox.counting import CountingPool
from tests.sandbox.test_server import ANN, TASK_JSON, as_bob, create, run, step

HUGE = (2**63, 2**64, 10**40, -1, 1e400, float("nan"))
TEXTS = ("\0", "\ud800", "x" * 10_000, "../..", "%00", "\u202e", "")


def as_json(value: Any) -> dict[str, Any]:
    """For `httpx`: a body that Python writes and strict JSON may not know."""
    return {"content": json.dumps(value).encode(), "headers": {"content-type": "application/json"}}


@pytest.mark.parametrize("seed", HUGE)
def test_a_seed_that_nothing_holds_is_refused_and_leaves_no_lease(seed: float) -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        answer = await http.post("/v1/sessions", **as_json({"task": TASK_JSON, "seed": seed}))
        assert answer.status_code == 422 and "seed" in answer.json()["detail"]
        assert (await http.get("/v1/sessions")).json() == []
        assert (await create(http))["session_id"], "the only session is free"

    run(use, size=1)


def test_an_error_of_any_kind_in_the_first_reset_gives_the_lease_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session = pool.free[0]

        async def fails(*_: Any) -> None:
            raise OverflowError("Python int too large to convert to C long")

        with monkeypatch.context() as patch:
            patch.setattr(type(session), "reset", fails)
            with pytest.raises(AssertionError):
                await create(http)
        await pool.is_whole()
        assert (await http.get("/v1/sessions")).json() == []

    run(use, size=1)


@pytest.mark.parametrize("text", TEXTS)
def test_odd_numbers_and_texts_are_reported_and_never_an_error_of_the_servers(text: str) -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        quoted = quote(text.encode("utf-8", "surrogatepass"), safe="")
        tried = [
            await http.get(f"/v1/sessions/{session_id}/files/text?path={quoted}"),
            await http.get(f"/v1/sessions/{quoted}"),
            await http.get(f"/v1/tasks?select={quoted}"),
            await http.get(f"/live/files/{quoted}"),
            await http.get(f"/live/sessions/{session_id}/screens/{quoted}"),
            await http.post("/v1/heartbeat", **as_json({"sessions": [text]})),
            await http.post("/v1/sessions", **as_json({"key": text})),
            await http.post("/v1/sessions", **as_json({"task": {**TASK_JSON, "name": text}, "seed": 1})),
            await http.post(f"/v1/sessions/{session_id}/step", **as_json({"action": {"kind": "type", "text": text}})),
            await http.post("/v1/step", **as_json({"steps": [{"session_id": text, "action": {"kind": "wait"}}]})),
        ]
        tried += [await http.post("/v1/sessions", **as_json({"wait_s": number, "ttl_s": number})) for number in HUGE]
        tried += [await http.post(f"/v1/sessions/{session_id}/step", **as_json({"action": {"kind": "wait"}, "number": n})) for n in HUGE]
        deep = b'{"action": {"kind": "tool", "name": "x", "arguments": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}}"
        tried.append(await http.post(f"/v1/sessions/{session_id}/step", content=deep, headers={"content-type": "application/json"}))
        assert [answer.status_code for answer in tried if answer.status_code >= 500 and answer.status_code != 502] == []
        for session in (await http.get("/v1/sessions")).json():
            await http.delete(f"/v1/sessions/{session['session_id']}")

    run(use, size=8)


def test_the_reasons_of_a_verdict_are_for_those_who_may_have_hints() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> Any:
        session_id = (await create(http))["session_id"]
        await step(http, session_id)
        verdict = (await http.post(f"/v1/sessions/{session_id}/evaluate")).json()
        packed = await http.post(f"/v1/sessions/{session_id}/evaluate", headers={"accept": "application/msgpack"})
        assert (b"of 10 clicks" in packed.content) == bool(verdict["reasons"])
        return verdict

    shown, hidden = run(use, oracles=True), run(use)
    assert shown["reasons"] == ["1 of 10 clicks"] and hidden["reasons"] == []
    assert hidden["score"] == shown["score"] and hidden["threshold"] == shown["threshold"]


def test_a_page_whose_name_was_bound_to_this_machine_gets_nothing() -> None:
    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "sandbox.lan:1"):
            for path in ("/", "/health", "/v1/sessions", "/login"):
                assert (await http.get(path, headers={"host": host})).status_code in {400, 421}, host
        for host in ("localhost", "127.0.0.1:1", "[::1]", "gpu-box.lan"):
            assert (await http.get("/health", headers={"host": host})).status_code == 200, host

    run(use, allowed_hosts=("gpu-box.lan",))


def test_two_clients_neither_see_nor_end_each_others_sessions() -> None:
    """Beside what test_server.py tries: heartbeats, batches, the live view, keys that both use."""

    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        ours, theirs = await create(http, key="same"), (await http.post("/v1/sessions", json={"key": "same"}, headers=as_bob(http))).json()
        assert ours["session_id"] != theirs["session_id"]
        session_id = ours["session_id"]
        batch = {"steps": [{"session_id": session_id, "action": {"kind": "wait"}}]}
        assert (await http.post("/v1/step", json=batch, headers=as_bob(http))).json()[0]["problem"]["status"] == 404
        assert (await http.post("/v1/heartbeat", json={"sessions": [session_id]}, headers=as_bob(http))).json()["gone"] == [session_id]
        for path in (
            f"/live/sessions/{session_id}/events",
            f"/live/sessions/{session_id}/screens/x",
            f"/v1/sessions/{session_id}/screenshot",
        ):
            assert (await http.get(path, headers=as_bob(http))).status_code == 404
        assert (await http.delete(f"/v1/sessions/{session_id}", headers=as_bob(http))).status_code == 404
        async with http.stream("GET", "/live/events", headers=as_bob(http)) as stream:
            first = await anext(line async for line in stream.aiter_lines() if line.startswith("data: "))
        assert session_id not in first and theirs["session_id"] in first
        assert (await step(http, session_id)).status_code == 200

    run(use)


def test_slow_and_silent_clients_stop_nobody() -> None:
    """Requests whose head or body never ends, viewers that never read; meanwhile another client plays. Then they are let go."""

    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        host, port = http.base_url.host, http.base_url.port
        session_id = (await create(http))["session_id"]
        heads = [
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-",
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + ANN.encode() + b"\r\nContent-Length: 100\r\n\r\n{",
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nt",
            f"GET /live/sessions/{session_id}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n\r\n".encode(),
        ]
        async with AsyncExitStack() as stack:
            readers = []
            for head in heads * 50:
                reader, writer = await asyncio.open_connection(host, port, limit=16)
                stack.callback(writer.close)
                writer.write(head)
                readers.append(reader)
            for _ in range(30):
                assert (await step(http, session_id)).status_code == 200
            for reader in readers[1::4] + readers[2::4]:  # their body has not come in time
                async with asyncio.timeout(30):
                    await reader.read(1)

    run(use, max_request_s=0.5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["task", "seed", "kind", "x", "action", "number"]), inner),
    max_leaves=8,
)


def test_no_body_is_an_error_of_the_servers() -> None:
    """Whatever is sent to whichever route: an answer below 500."""
    seen: dict[str, int] = {}

    async def use(http: httpx.AsyncClient, pool: CountingPool) -> None:
        session_id = (await create(http))["session_id"]
        routes = [
            "/v1/sessions",
            "/v1/step",
            "/v1/heartbeat",
            *(f"/v1/sessions/{session_id}/{name}" for name in ("reset", "step", "evaluate")),
        ]
        loop = asyncio.get_running_loop()

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
        @given(route=st.sampled_from(routes), value=JSON | st.fixed_dictionaries({"action": JSON, "number": JSON}))
        def send(route: str, value: Any) -> None:
            answer = asyncio.run_coroutine_threadsafe(http.post(route, **as_json(value)), loop).result(60)
            seen[route] = seen.get(route, 0) + 1
            assert answer.status_code < 500, answer.text

        await asyncio.to_thread(send)

    run(use, size=8)
    assert sum(seen.values()) >= 100 and len(seen) == 6
