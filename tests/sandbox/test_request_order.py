"""When a page's requests are answered: at the cost of page time, and in the order, that they have in every run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.browser.page_session import PageSession
from sandbox.browser.window import request_order
from sandbox.session import Observation, Transition
from sandbox.tasks.page_task import Site
from tests.sandbox.web_pages import Bench, bench, noted

PAGE = """<button style="width:200px; height:100px" onclick="press()">press</button><script>
  const noted = [];
  window.state = () => ({ instruction: noted.join("; "), elements: [], reward: 0, done: false });
  const get = (what, more) => fetch("data.json?" + what, more).then(answer => answer.text()).then(() => noted.push(what));
  function press() { %s }
</script>"""
MIXED = """get("a 90 ms"); get("b 60 ms"); get("c moved"); get("d 0 ms"); fetch("data.json?e").then(() => noted.push("e unread"));
    setTimeout(() => { get("f 60 ms"); get("g 0 ms") }, 30); new Image().src = "data.json?h"; get("i 0 ms")"""
CANCELLED = """const [stop, later] = [new AbortController(), new AbortController()];
    get("a 0 ms", { signal: stop.signal }).catch(() => noted.push("a stopped")); stop.abort(); get("b 0 ms").then(() => later.abort());
    get("c hangs", { signal: later.signal }).catch(() => noted.push("c stopped")); get("d 0 ms")"""


@pytest.fixture(scope="module")
def web() -> Iterator[Bench]:
    with bench("beginframe") as made:
        yield made


@contextmanager
def served(web: Bench, script: str) -> Iterator[dict[str, Any]]:
    """A session's settings with a page that does `script` when it is pressed, from a server that takes as long as a request says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        body, status, more = (PAGE % script if path == "/" else "{}"), "200 OK", ""
        if path.endswith("moved"):
            status, more = "302 Found", "Location: /data.json?60%20ms\r\n"
        elif path.endswith("hangs"):
            await reader.read()  # until the browser gives up
        elif path.endswith("ms"):
            await asyncio.sleep(int(path.split("%20")[-2].rpartition("?")[2]) / 1000)
        kind = "text/html" if path == "/" else "application/json"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

    server = web.runner.run(start())
    try:
        yield {"connect": connect, "address": "http://localhost:5000/", "sites": ()}
    finally:
        server.close()


async def press(session: PageSession, first: Observation) -> Transition:
    return await session.step(actions.Click(x=50, y=50))


def test_answers_come_in_the_order_of_the_requests(web: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever each takes; a redirect, and a body that the page does not read, among them."""
    monkeypatch.setattr(request_order, "TURN_S", 60.0)
    with served(web, MIXED) as settings:
        runs = [noted(web.run(press, **settings)) for _ in range(3)]
    assert runs == [["a 90 ms", "b 60 ms", "c moved", "d 0 ms", "e unread", "i 0 ms", "f 60 ms", "g 0 ms"]] * 3


def test_a_request_that_is_cancelled_holds_up_no_other(web: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, or by what comes of the one before it."""
    monkeypatch.setattr(request_order, "TURN_S", 60.0)
    with served(web, CANCELLED) as settings:
        assert noted(web.run(press, **settings)) == ["a stopped", "b 0 ms", "c stopped", "d 0 ms"]


def test_a_request_that_hangs_holds_up_the_others_for_its_turn(web: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_order, "TURN_S", 0.2)
    with served(web, 'get("a hangs"); get("b 0 ms")') as settings:
        transition = web.run(press, settle_limit_s=2.0, **settings)
    assert noted(transition) == ["b 0 ms"] and transition.info["unsettled"] == "1 requests are under way"


def test_a_page_with_a_worker_settles(web: Bench, tmp_path: Path) -> None:
    """It is told that the worker's script is under way, and not that it has come."""
    (tmp_path / "index.html").write_text(PAGE % 'new Worker("worker.js").onmessage = (event) => noted.push(event.data)')
    (tmp_path / "worker.js").write_text('fetch("data.json").then((answer) => answer.text()).then(postMessage)')
    (tmp_path / "data.json").write_text("{}")
    tmp_path.chmod(0o755)

    async def use(session: PageSession, first: Observation) -> list[Transition]:
        return [await press(session, first), *[await session.step(actions.Wait(seconds=0.5)) for _ in range(4)]]

    transitions = web.run(use, sites=(Site(host="shop.test", folder=tmp_path),))
    assert noted(transitions[-1]) == ["{}"] and not any("unsettled" in transition.info for transition in transitions)


FETCHES = """<button style="width:200px; height:100px" onclick="press()">press</button><script>
  const noted = [];
  const note = (what, since_ms) => noted.push(what + " " + Math.round(performance.now() - since_ms));
  window.state = () => ({ instruction: [...noted].sort().join("; "), elements: [], reward: 0, done: false });
  const get = (what, since_ms) => fetch("data.json?" + what).then(() => note(what, since_ms));
  function press() {
    const pressed_ms = performance.now();
    const request = new XMLHttpRequest();
    request.open("GET", "data.json", false);
    request.send();
    note("waited for", pressed_ms);
    get("at once", pressed_ms);
    setTimeout(() => get("by a timer", performance.now()), 30);
    requestAnimationFrame(() => get("by a frame", performance.now()));
  }
</script>"""


def test_a_fetch_costs_page_time_however_fast_it_is_answered(web: Bench, tmp_path: Path) -> None:
    """What begins while page time stands still costs as much as what begins while it runs: answers are held until it runs. What a script
    waits for without letting go is answered at once, or its page would wait for ever."""
    (tmp_path / "index.html").write_text(FETCHES)
    (tmp_path / "data.json").write_text("{}")
    tmp_path.chmod(0o755)

    async def use(session: PageSession, first: Observation) -> list[str]:
        return noted(await session.step(actions.Click(x=50, y=50)))

    runs = [web.run(use, sites=(Site(host="shop.test", folder=tmp_path),)) for _ in range(3)]
    assert runs == [["at once 10", "by a frame 10", "by a timer 10", "waited for 0"]] * 3
