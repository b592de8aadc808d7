"""A page of another site, in a real browser, beside Dagster's page and Prefect's: it launches nothing and reads nothing."""

from __future__ import annotations

import functools
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, sync_playwright

from pipelines.orchestration.services import prefect_server
from sandbox.browser.chromium import find_chromium
from warehouse.core.home import Home
from warehouse.core.processes import end_group

START_S = 120.0
ASK = """async ([url, init]) => {
    try { const answer = await fetch(url, init); return answer.type + ' ' + await answer.text(); } catch { return 'refused'; } }"""
EMBED = """url => new Promise(done => {
    const picture = new Image(); picture.onload = picture.onerror = () => done(); picture.src = url; })"""
CONNECT = """url => new Promise(done => {
    const socket = new WebSocket(url, 'graphql-ws'); socket.onopen = () => done(true); socket.onerror = () => done(false); })"""

pytestmark = pytest.mark.slow


@pytest.fixture
def tab() -> Iterator[Page]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(find_chromium().path))
        yield browser.new_page()
        browser.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of a page of another origin. Its port differs, so it is of the same site: the nearest that another origin can be."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<p>Something to read</p>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "page")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def dagster(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "instance").mkdir()
    (tmp_path / "things.py").write_text("import dagster as dg\n\n@dg.asset\ndef thing(): ...\n")
    with (tmp_path / "dagster.log").open("wb") as log:
        served = subprocess.Popen(
            [sys.executable, "-m", "pipelines.orchestration.services.dagster_dev", "-f", str(tmp_path / "things.py"), "--port", str(port)],
            env={**os.environ, "DAGSTER_HOME": str(tmp_path / "instance"), "DAGSTER_DISABLE_TELEMETRY": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while not _answers(url):
            assert served.poll() is None and time.monotonic() < deadline, (tmp_path / "dagster.log").read_text()
            time.sleep(0.3)
        yield url
    finally:
        end_group(served.pid)
        served.wait()


def test_dagster_takes_no_mutation_from_another_page(dagster: str, elsewhere: str, tab: Page) -> None:
    def pause(is_paused: bool) -> str:
        return f"mutation{{setAutoMaterializePaused(paused:{json.dumps(is_paused)})}}"

    def is_paused() -> Any:
        answer = httpx.post(f"{dagster}/graphql", json={"query": "{instance{autoMaterializePaused}}"}, trust_env=False)
        return answer.json()["data"]["instance"]["autoMaterializePaused"]

    before = is_paused()
    change = pause(not before)
    tab.goto(elsewhere)
    tab.evaluate(EMBED, f"{dagster}/graphql?query={change}")
    tab.evaluate(ASK, [f"{dagster}/graphql?query={change}", {"method": "POST", "mode": "no-cors", "body": ""}])
    tab.evaluate(ASK, [f"{dagster}/graphql", {"method": "POST", "mode": "no-cors", "body": json.dumps({"query": change})}])
    assert is_paused() == before
    assert not tab.evaluate(CONNECT, f"{dagster.replace('http', 'ws')}/graphql")

    tab.goto(dagster)
    assert tab.evaluate(CONNECT, f"{dagster.replace('http', 'ws')}/graphql")
    init = {"method": "POST", "headers": {"content-type": "application/json"}, "body": json.dumps({"query": change})}
    assert "errors" not in tab.evaluate(ASK, ["/graphql", init])
    assert is_paused() != before, "a page of its own may"


def test_prefect_tells_another_page_nothing(elsewhere: str, tab: Page, tmp_path: Path) -> None:
    init = {"method": "POST", "headers": {"content-type": "application/json"}, "body": "{}"}
    with prefect_server.prefect_server(Home(tmp_path / "home")) as url:
        tab.goto(elsewhere)
        assert tab.evaluate(ASK, [f"{url}/api/flow_runs/filter", init]) == "refused"
        tab.goto(f"{url}/api/health")
        assert tab.evaluate(ASK, ["/api/flow_runs/filter", init]) == "basic []"


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/server_info", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
