"""Runs over HTTP, on real sessions: what the page asks for, the stream of states, a hybrid task with its files and terminal."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from annotation.service.access.accounts import Accounts
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.runs.runs import LiveRuns
from annotation.storage.schema import Assignment
from annotation.web.app import create_app
from annotation.web.guard import Guard
from annotation.web.serve import serving
from annotation.web.settings import WebSettings
from sandbox.actions import ACTION
from sandbox.pool.pool import SessionPool
from sandbox.tasks.hybrid.source import load_tasks as hybrid_tasks
from sandbox.tasks.task import Task
from tests.annotation.service.live_parts import OneSource, Reader, Work, task_named

PATIENCE_S = 60.0


class Desk:
    """A server, and people with tokens."""

    def __init__(self, address: str, work: Work, runs: LiveRuns, accounts: Accounts, stack: AsyncExitStack) -> None:
        self.address, self.work, self.runs, self._accounts, self._stack = address, work, runs, accounts, stack

    async def person(self, name: str, role: str = "annotator") -> httpx.AsyncClient:
        token, _ = await self._accounts.add_program(name, role, "a test")
        client = httpx.AsyncClient(base_url=self.address, trust_env=False, timeout=60, headers={"Authorization": f"Bearer {token}"})
        return await self._stack.enter_async_context(client)

    def offer(self, task: Task, mode: str = "intervene") -> str:
        """Work that is free to all."""
        assignment_id = self.work.lease(self.work.campaign(mode), task)
        with self.work.database.write() as session:
            assignment = session.get_one(Assignment, assignment_id)
            assignment.state, assignment.user_id, assignment.lease_number, assignment.lease_until_s = "open", None, 0, None
        return assignment_id


@asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[Desk]:
    work = Work(folder)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(SessionPool(size=2, num_browsers=1))
        runs = LiveRuns(work.database, work.blobs, pool, OneSource(Reader()))
        app = create_app(work.database, work.blobs, runs, TaskPriorityReader(None), WebSettings(burst=5000, requests_per_s=5000))
        assert isinstance(app, Guard)
        address = await stack.enter_async_context(serving(app, on_end=runs.end_streams))
        yield Desk(address, work, runs, app._accounts, stack)
    work.close()


async def states(client: httpx.AsyncClient, run_id: str) -> AsyncIterator[dict[str, Any]]:
    """What the stream of a run says."""
    async with client.stream("GET", f"/api/v1/runs/{run_id}/events") as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


async def until(client: httpx.AsyncClient, run_id: str, *phases: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    async for state in states(client, run_id):
        assert state["phase"] not in ("broken", "abandoned") or state["phase"] in phases, state["problem"]
        assert time.monotonic() < deadline_s
        if state["phase"] in phases:
            return state
    raise AssertionError("the stream ended")


async def post(client: httpx.AsyncClient, run_id: str, verb: str, body: dict[str, Any]) -> httpx.Response:
    return await client.post(f"/api/v1/runs/{run_id}/{verb}", json=body)


@pytest.mark.slow
def test_an_episode_over_http_from_the_queue_to_the_verdict(tmp_path: Path) -> None:
    async def run() -> None:
        async with desk(tmp_path) as here:
            ann, bob, eve = await here.person("ann"), await here.person("bob"), await here.person("eve", "reviewer")
            here.offer(task_named("enter-text"))
            taken = (await ann.post("/api/v1/work/next", json={})).json()
            run_id = taken["run_id"]
            state = await until(ann, run_id, "deciding")
            assert state["proposals"] and state["screen"]["elements"]
            picture = await ann.get(f"/api/v1/runs/{run_id}/screens/{state['screen']['screenshot_id']}")
            assert picture.headers["content-type"] == "image/png" and picture.content.startswith(b"\x89PNG")
            assert (await ann.get(f"/api/v1/runs/{run_id}/screens/..%2f..%2fannotation.db")).status_code == 404
            assert (await ann.get(f"/api/v1/runs/{run_id}/screens/screen-0000000000000000")).status_code == 404

            for path in ("", "/events", f"/screens/{state['screen']['screenshot_id']}", "/files", "/terminal"):
                assert (await bob.get(f"/api/v1/runs/{run_id}{path}")).status_code == 404, "somebody else's is not there"
            decision = {"version": state["version"], "decision": "accept", "candidate": 0}
            assert [(await post(who, run_id, "decide", decision)).status_code for who in (bob, eve)] == [404, 404]
            assert (await eve.get(f"/api/v1/runs/{run_id}")).json()["run_id"] == run_id, "a reviewer may look"

            answers = await asyncio.gather(*(post(ann, run_id, "decide", decision) for _ in range(3)))
            assert [answer.status_code for answer in answers] == [200, 200, 200]
            state = await until(ann, run_id, "deciding")
            assert len(state["history"]) == 1
            stale = await post(ann, run_id, "decide", {**decision, "candidate": 1})
            assert (stale.status_code, stale.json()["error"]) == (409, "OutOfDate")
            wrong = await post(ann, run_id, "decide", {"version": state["version"], "decision": "override", "action": "fly"})
            assert (wrong.status_code, wrong.json()["error"]) == (422, "UnreadableAnswer") and "fly" in wrong.json()["detail"]

            draft = {"step_index": 1, "number": 4, "thought": "t", "action": "ty", "candidate": None}
            assert (await ann.put(f"/api/v1/runs/{run_id}/draft", json=draft)).json() == draft
            assert (await ann.get(f"/api/v1/runs/{run_id}")).json()["draft"] == draft
            assert (await post(ann, run_id, "complete", {"action": "cl", "cursor": 2})).json()[0]["label"] == "click"
            assert (await post(ann, run_id, "check", {"action": "click [1]"})).json()["kind"] == "click"
            box = state["screen"]["elements"][0]
            at = (await post(ann, run_id, "at", {"point": {"x": box["x"] + 2, "y": box["y"] + 2}})).json()
            assert at[0]["action"] == "click [1]"
            written = (await post(ann, run_id, "write", {"action": {"kind": "wait", "seconds": 1}})).json()
            assert written["action"] == "wait 1" and (await ann.get(f"/api/v1/runs/{run_id}/files")).json()["has_workspace"] is False

            state = (await post(ann, run_id, "back", {"version": state["version"], "to_step": 0})).json()
            assert state["phase"] == "rewinding"
            state = await until(ann, run_id, "deciding")
            while state["phase"] == "deciding":
                await post(ann, run_id, "decide", {"version": state["version"], "decision": "accept", "candidate": 0})
                state = await until(ann, run_id, "deciding", "ended")
            assert state["verifier"] is True
            done = await post(ann, run_id, "finish", {"version": state["version"], "is_success": True, "note": "ok"})
            assert done.json()["phase"] == "finished"
            assert [seen["phase"] async for seen in states(ann, run_id)] == ["finished"], "a stream of what is over ends"

    asyncio.run(run())


@pytest.mark.slow
def test_a_hybrid_task_with_its_files_and_terminal(tmp_path: Path) -> None:
    """The annotator does what the task's oracle would do, through the routes of the page."""

    async def run() -> None:
        async with desk(tmp_path) as here:
            ann = await here.person("ann")
            here.offer(hybrid_tasks()["type-word"])
            run_id = (await ann.post("/api/v1/work/next", json={})).json()["run_id"]
            state = await until(ann, run_id, "deciding")
            listed = (await ann.get(f"/api/v1/runs/{run_id}/files")).json()
            path = next(entry["path"] for entry in listed["files"] if entry["kind"] == "file")
            read = await ann.get(f"/api/v1/runs/{run_id}/files/text", params={"path": path})
            assert read.json()["text"] and listed["has_workspace"]
            for refused in ("../../etc/passwd", "/etc/passwd", "nothing.txt"):
                assert (await ann.get(f"/api/v1/runs/{run_id}/files/text", params={"path": refused})).status_code == 404
            labels = [each["label"] for each in (await post(ann, run_id, "complete", {"action": 'run "cat', "cursor": 8})).json()]
            assert f"cat {path}" in labels
            is_first, num_backs = True, 0
            while state["phase"] == "deciding":
                if is_first:  # a look with the terminal comes before what the oracle does
                    action, is_first = {"kind": "tool", "name": "execute_bash", "arguments": {"command": f"cat {path}"}}, False
                else:
                    context = here.runs._get(run_id).context
                    assert context is not None
                    proposed = await context.oracle_action()
                    assert proposed is not None
                    action = ACTION.dump_python(proposed, mode="json")
                view = (await post(ann, run_id, "write", {"action": action})).json()
                body = {"version": state["version"], "decision": "override", "thought": view["thought"], "action": view["action"]}
                answer = await post(ann, run_id, "decide", body)
                assert answer.status_code == 200, answer.text
                state = await until(ann, run_id, "deciding", "ended")
                if len(state["history"]) == 2 and not num_backs:
                    num_backs = 1
                    await post(ann, run_id, "back", {"version": state["version"], "to_step": 1})
                    state = await until(ann, run_id, "deciding")
                    assert state["problem"] is None and len(state["history"]) == 1, "the workspace came back the same"
            assert state["verifier"] is True, state["history"]
            turns = (await ann.get(f"/api/v1/runs/{run_id}/terminal")).json()["calls"]
            assert turns[0]["line"].startswith('run "cat') and read.json()["text"].split()[0] in turns[0]["output"]
            done = await post(ann, run_id, "finish", {"version": state["version"], "is_success": True})
            assert done.json()["phase"] == "finished"
            assert (await ann.get(f"/api/v1/runs/{run_id}")).json()["history"] == state["history"], "as it was while it was live"
            assert (await ann.get(f"/api/v1/runs/{run_id}/terminal")).json()["calls"] == turns

    asyncio.run(run())


@pytest.mark.slow
def test_from_action_to_frame_over_http(tmp_path: Path) -> None:
    """From the decision's request to the bytes of the next screen in the page's hands; figures in the output (-s)."""

    async def run() -> None:
        async with desk(tmp_path) as here:
            ann = await here.person("ann")
            times: list[float] = []
            for _ in range(10):
                here.offer(task_named("enter-text"))
                run_id = (await ann.post("/api/v1/work/next", json={})).json()["run_id"]
                events = states(ann, run_id)
                started_s, shown, decided = 0.0, None, None
                async for state in events:
                    screen = state["screen"] and state["screen"]["screenshot_id"]
                    if started_s and screen and screen != shown:
                        await ann.get(f"/api/v1/runs/{run_id}/screens/{screen}")
                        times.append((time.monotonic() - started_s) * 1000)
                        started_s = 0.0
                    if state["phase"] == "ended":
                        await post(ann, run_id, "finish", {"version": state["version"], "is_success": True})
                        break
                    if state["phase"] == "deciding":
                        shown, started_s = screen, time.monotonic()
                        body = {"version": state["version"], "decision": "accept", "candidate": 0}
                        decided = asyncio.ensure_future(post(ann, run_id, "decide", body))
                if decided is not None:
                    await decided
            times.sort()
            print(f"\naction to frame over {len(times)} steps: median {times[len(times) // 2]:.0f} ms, worst {times[-1]:.0f} ms")
            assert len(times) >= 10, "each decision of each run showed a screen"

    asyncio.run(run())
