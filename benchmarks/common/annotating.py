"""Simulated annotators, and the server that they work on: programs with a token each that work as the page does, and `flywheel annotate
serve` as a process that may be killed. What is asked of the database afterwards is annotators.py's.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from warehouse.core.home import Home

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 60.0
THINK_S = (0.3, 1.5)
HEARTBEAT_S = 15.0
LOOKS = 5
FORGETFUL = 5
"""Every so many do not say that they are there, so that a lease runs out now and then."""
WAITING = ("starting", "proposing", "executing", "rewinding")
INTRUSIONS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "/api/v1/runs/{run}", None),
    ("GET", "/api/v1/runs/{run}/files", None),
    ("POST", "/api/v1/runs/{run}/decide", {"version": 1, "decision": "beyond_repair"}),
    ("POST", "/api/v1/runs/{run}/finish", {"version": 1, "is_success": True}),
    ("PUT", "/api/v1/runs/{run}/draft", {"step_index": 0, "number": 1_000_000, "thought": "mine", "action": "", "candidate": None}),
    ("POST", "/api/v1/assignments/{assignment}/heartbeat", None),
    ("POST", "/api/v1/assignments/{assignment}/skip", {"reason": "not mine"}),
)
"""What nobody may do to somebody else's work: method, path, body."""
TURNED_AWAY = (403, 404, 410)


@dataclass(slots=True)
class Counts:
    """Answers that one annotator got. `taken` is shared by all: assignment by run."""

    taken: dict[str, str]
    own: dict[str, str] = field(default_factory=dict)
    """The same of what they took themselves."""
    decisions: Counter[str] = field(default_factory=Counter)
    """By run, how many were acknowledged."""
    unsure: Counter[str] = field(default_factory=Counter)
    """By run, how many were sent again and then refused: they may have been carried out at the first time."""
    finished: list[str] = field(default_factory=list)
    ack_s: list[float] = field(default_factory=list)
    frame_s: list[float] = field(default_factory=list)
    take_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    """Where they were let in, or refused for another reason than that it is somebody else's."""
    num_backs: int = 0
    num_skips: int = 0
    num_sent_again: int = 0
    num_probes: int = 0

    @property
    def num_decisions(self) -> int:
        return sum(self.decisions.values())

    def error(self, answer: httpx.Response) -> None:
        with suppress(ValueError):
            self.errors[f"{answer.status_code} {answer.json().get('error')}"] += 1


class Annotator:
    """One simulated person, who sends every request until it is answered, and now and then tries what is somebody else's."""

    def __init__(self, number: int, url: str, token: str, counts: Counts, *, until_s: float, num_decisions: int | None = None) -> None:
        """Begins nothing new after `until_s` (by time.monotonic), nor after so many decisions; what is begun is finished."""
        self._number, self._dice = number, random.Random(number)
        self._counts, self._until_s, self._num_decisions = counts, until_s, num_decisions
        self._num_said = 0
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(60, connect=5), trust_env=False)

    @property
    def _is_done(self) -> bool:
        has_enough = self._num_decisions is not None and self._counts.num_decisions >= self._num_decisions
        return has_enough or time.monotonic() >= self._until_s

    async def work(self) -> None:
        async with self._http:
            while not self._is_done:
                asked_s = time.monotonic()
                answer = await self._send("POST", "/api/v1/work/next", {})
                if answer.status_code != 200:
                    if answer.status_code != 204:
                        self._counts.error(answer)
                    await asyncio.sleep(1.0)
                    continue
                state = answer.json()
                self._counts.take_s.append(time.monotonic() - asked_s)
                for taken in (self._counts.own, self._counts.taken):
                    taken[state["run_id"]] = state["assignment_id"]
                await self._run(state)

    async def _run(self, state: dict[str, Any]) -> None:
        """To its end, with a sign of life now and then, as the page gives."""
        alive = asyncio.create_task(self._stay(state["assignment_id"]))
        try:
            await self._play(state["run_id"], state)
        finally:
            alive.cancel()

    async def _stay(self, assignment_id: str) -> None:
        while self._number % FORGETFUL:
            await asyncio.sleep(HEARTBEAT_S)
            await self._say_here(assignment_id)

    async def _say_here(self, assignment_id: str) -> httpx.Response:
        return await self._send("POST", f"/api/v1/assignments/{assignment_id}/heartbeat")

    async def _play(self, run_id: str, state: dict[str, Any]) -> None:
        while True:
            state = await self._settled(run_id, state)
            if state["phase"] in ("finished", "abandoned"):
                return
            if state["phase"] == "broken":
                self._counts.errors[f"broken: {state['problem'][:60]}"] += 1
                await self._send("POST", f"/api/v1/assignments/{state['assignment_id']}/skip", {"reason": "it broke"})
                return
            await asyncio.sleep(self._dice.uniform(*THINK_S))
            await self._intrude()
            state = await self._step(run_id, state)

    async def _step(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        version, luck = state["version"], self._dice.random()
        if state["phase"] == "ended":
            done = await self._send("POST", f"/api/v1/runs/{run_id}/finish", {"version": version, "is_success": bool(state["verifier"])})
            if done.is_success:
                self._counts.finished.append(run_id)
            return self._state(done, state)
        if luck < 0.03:
            skipped = await self._send("POST", f"/api/v1/assignments/{state['assignment_id']}/skip", {"reason": "somebody else, please"})
            self._counts.num_skips += skipped.is_success
            return {**state, "phase": "abandoned"}
        if luck < 0.10 and state["step_index"] > 0:
            back = {"version": version, "to_step": self._dice.randrange(state["step_index"])}
            answer = await self._send("POST", f"/api/v1/runs/{run_id}/back", back)
            self._counts.num_backs += answer.is_success
            return self._state(answer, state)
        return await self._decide(run_id, state)

    async def _decide(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        sent_s, again = time.monotonic(), self._counts.num_sent_again
        answer = await self._send("POST", f"/api/v1/runs/{run_id}/decide", self._decision(state))
        if not answer.is_success:
            self._counts.unsure[run_id] += self._counts.num_sent_again > again
            return self._state(answer, state)
        self._counts.decisions[run_id] += 1
        self._counts.ack_s.append(time.monotonic() - sent_s)
        after = await self._settled(run_id, answer.json())
        if after["screen"] is not None and after["screen"]["screenshot_id"] is not None:
            await self._send("GET", f"/api/v1/runs/{run_id}/screens/{after['screen']['screenshot_id']}")
        self._counts.frame_s.append(time.monotonic() - sent_s)
        return after

    def _decision(self, state: dict[str, Any]) -> dict[str, Any]:
        """No two of them have the same words, so that one that was carried out twice is found."""
        usable = [proposal for proposal in state["proposals"] if not proposal["problem"]]
        if usable and self._dice.random() < 0.8:
            return {"version": state["version"], "decision": "accept", "candidate": usable[0]["rank"]}
        elements = state["screen"]["elements"]
        if not elements:
            return {"version": state["version"], "decision": "beyond_repair"}
        chosen = self._dice.choice(elements)
        self._num_said += 1
        thought = f"this is the {self._num_said}. time that number {self._number} overrides"
        return {"version": state["version"], "decision": "override", "thought": thought, "action": f"click [{chosen['index']}]"}

    async def _settled(self, run_id: str, state: dict[str, Any]) -> dict[str, Any]:
        """The state once it waits for a person, from the run's events. An annotator that was silent for too long comes back to it later."""
        num_looks = 0
        while state["phase"] in WAITING:
            try:
                async with self._http.stream("GET", f"/api/v1/runs/{run_id}/events") as events:
                    async for line in events.aiter_lines():
                        if line.startswith("data: "):
                            state = json.loads(line[6:])
                            if state["phase"] not in WAITING:
                                return state
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.2)
            num_looks += 1
            if num_looks % LOOKS == 0 and not (await self._say_here(state["assignment_id"])).is_success:
                return {**state, "phase": "abandoned"}
        return state

    async def _intrude(self) -> None:
        mine = set(self._counts.own.values())
        others = [run_id for run_id, assignment_id in self._counts.taken.items() if assignment_id not in mine]
        if not others:
            return
        run_id = self._dice.choice(others)
        method, path, body = self._dice.choice(INTRUSIONS)
        answer = await self._send(method, path.format(run=run_id, assignment=self._counts.taken[run_id]), body)
        self._counts.num_probes += 1
        if answer.status_code not in TURNED_AWAY:
            self._counts.seen.append(f"{answer.status_code} {method} {path} of {run_id}")

    def _state(self, answer: httpx.Response, before: dict[str, Any]) -> dict[str, Any]:
        """What the server says now. A refusal means that it was decided on something old: look again."""
        if answer.is_success:
            found: dict[str, Any] = answer.json()
            return found
        self._counts.error(answer)
        gone = answer.status_code in (404, 410)
        return {**before, "phase": "abandoned" if gone else "starting"}

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Until there is an answer: a decision that was carried out before the line broke is known by its version."""
        while True:
            try:
                answer = await self._http.request(method, path, json=body)
            except httpx.HTTPError:
                self._counts.num_sent_again += 1
                await asyncio.sleep(0.3)
                continue
            if answer.status_code in (429, 503):
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
                continue
            return answer


class Server:
    """`flywheel annotate serve` as a process of its own, on one port however often it is started. All it says is in `log`."""

    def __init__(self, home: Home, url: str, num_sessions: int, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: None is this process's."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            sys.executable,
            "-m",
            "pipelines.cli",
            "annotate",
            "serve",
            "--home",
            str(home.root),
            "--port",
            str(self.port),
            "--database",
            url,
            "--sessions",
            str(num_sessions),
        ]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home.root / "annotation-server.log"

    def start(self) -> None:
        """Returns once it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True, env=self._environment)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended with {self._process.returncode}: {self.said}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/login", trust_env=False).is_success:
                    return
            time.sleep(0.2)
        raise SystemExit(f"the server does not answer: {self.said}")

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """SIGKILL, to the server alone: what it started has to notice by itself."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(END_TIMEOUT_S)
