"""Harnesses on sessions of a form, behind a real gateway: what a program asks and is answered becomes its episode, to the token and the
byte, and its end is the environment's, a limit's, or its own."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.runner import EpisodeRunner, RunnerSettings
from agent.gateway.log import read_calls, read_outcomes
from agent.harness.driven import DrivenSession
from agent.harness.endpoint import LED, MAX_ACTION_BYTES, Led
from agent.harness.harness import Assignment, Command, Harness
from agent.harness.runner import HarnessRunner
from agent.prompts.prompt import PromptBuilder
from models.gateway.episode_gateway import EpisodeGateway
from models.gateway.serve import Address
from sandbox import wire
from sandbox.actions import Action
from sandbox.session import Observation, Transition
from tests.agent.conftest import FormPool, FormSession, form_oracle, form_request, png
from tests.models.policy_servers import PlayedServer, played_server
from warehouse.core.errors import EngineUnreachable, HarnessMissing
from warehouse.core.home import Home

PICTURE = png(4, 4, 77)


def answers(method: str, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
    """A server with token ids that says how long the conversation is."""
    if method == "GET":
        return 200, {}, {"data": [{"id": "teacher", "owned_by": "vllm", "root": "teacher-7b"}]}
    num = len(body["messages"])
    entries = [{"token": "a", "logprob": -0.25 * num, "bytes": [97], "top_logprobs": []}] * num
    message = {"role": "assistant", "content": f"turn {num}"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": list(range(num)), "logprobs": {"content": entries}}
    return 200, {}, {"choices": [choice], "prompt_token_ids": [7] * num}


class Model:
    """A client of the model, as an agent's own."""

    def __init__(self, assignment: Assignment) -> None:
        self._url, self._headers = f"{assignment.openai_url}/chat/completions", {"authorization": f"Bearer {assignment.key}"}
        self.messages: list[dict[str, Any]] = []

    async def ask(self, content: Any) -> int:
        """The status; what is asked and answered joins the conversation."""
        self.messages.append({"role": "user", "content": content})
        response = await request("POST", self._url, headers=self._headers, json={"messages": self.messages})
        if response.status_code == 200:
            self.messages.append(response.json()["choices"][0]["message"])
        return response.status_code


class Screen:
    """A client of the session."""

    def __init__(self, assignment: Assignment) -> None:
        self._url = assignment.session_url

    async def look(self) -> Observation:
        return wire.OBSERVATION.from_json((await request("GET", self._url)).content)

    async def step(self, action: Action) -> Led:
        return LED.from_json((await request("POST", f"{self._url}/step", content=wire.ACTION.to_json(action))).content)


async def request(method: str, url: str, **given: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.request(method, url, **given)


async def solves(assignment: Assignment) -> None:
    """Asks the model before each action, of which the oracle knows the right one."""
    model, screen = Model(assignment), Screen(assignment)
    observation = await screen.look()
    assert observation.instruction == assignment.instruction
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"}}
    while (action := form_oracle(observation)) is not None:
        assert await model.ask([{"type": "text", "text": observation.elements[0].text or "empty"}, shown]) == 200
        led = await screen.step(action)
        observation = led.observation
        if led.terminated:
            break
    await asyncio.sleep(60)  # whoever has solved it is ended


class Stage:
    def __init__(self, runner: EpisodeRunner, gateway: EpisodeGateway, server: PlayedServer, home: Home) -> None:
        self._runner, self._gateway, self.server, self.home = runner, gateway, server, home

    async def run(
        self, harness: Harness, asked: EpisodeRequest | None = None, *, timeout_s: float = 30, log: EpisodeLog | None = None
    ) -> Episode:
        runner = HarnessRunner(self._runner, "mine", harness, self._gateway, timeout_s=timeout_s)
        return await runner.run(asked or form_request(), log=log)


@asynccontextmanager
async def stage(folder: Path, pool: FormPool | None = None, loaded: str | None = None) -> AsyncIterator[Stage]:
    home = Home(folder)
    with played_server(answers) as server:
        async with EpisodeGateway.open(home, Address(url=server.url, policy_id=loaded)) as gateway:
            settings = RunnerSettings(max_retries=1, retry_delay_s=0)
            runner = EpisodeRunner(pool or FormPool(1), PromptBuilder("compact"), settings=settings)
            yield Stage(runner, gateway, server, home)


def play(folder: Path, harness: Harness, **given: Any) -> Episode:
    async def once() -> Episode:
        async with stage(folder) as opened:
            return await opened.run(harness, **given)

    return asyncio.run(once())


def test_what_a_program_asked_and_was_answered_is_its_episode(tmp_path: Path) -> None:
    async def once() -> Episode:
        async with stage(tmp_path) as opened:
            log = EpisodeLog(tmp_path / "episodes")
            episode = await opened.run(solves, log=log)
            assert [one.episode_id for one in log.episodes()] == [episode.episode_id]
            return episode

    episode = asyncio.run(once())
    assert (episode.outcome, episode.reward, episode.environment) == (Outcome.SUCCESS, 1.0, "form 1; harness mine")
    assert [step.response for step in episode.steps] == ["turn 1", "turn 3", "turn 5"]
    assert {step.policy_id for step in episode.steps} == {"teacher-7b"}
    for step, num in zip(episode.steps, (1, 3, 5), strict=True):
        assert step.prompt_token_ids == (7,) * num and step.response_token_ids == tuple(range(num))
        assert step.response_logprobs == (-0.25 * num,) * num
    assert set(episode.screenshots.values()) == {PICTURE}
    assert [(one.value, one.origin) for one in read_outcomes(Home(tmp_path))] == [(1, "verifier")]
    assert len(list(read_calls(Home(tmp_path)))) == 3


def test_calls_after_the_end_are_refused_and_no_steps(tmp_path: Path) -> None:
    statuses: list[int] = []

    async def goes_on(assignment: Assignment) -> None:
        model, screen = Model(assignment), Screen(assignment)
        observation = await screen.look()
        await model.ask("what now?")
        while (action := form_oracle(observation)) is not None and not (led := await screen.step(action)).terminated:
            observation = led.observation
        statuses.append(await model.ask("and now?"))

    episode = play(tmp_path, goes_on)
    assert episode.outcome is Outcome.SUCCESS and len(episode.steps) == 1 and statuses in ([410], [])


def test_the_limit_of_steps_counts_calls(tmp_path: Path) -> None:
    async def never_acts(assignment: Assignment) -> None:
        model = Model(assignment)
        while await model.ask("and?") == 200:
            pass
        await asyncio.sleep(60)

    episode = play(tmp_path, never_acts, asked=form_request(max_steps=4))
    assert (episode.outcome, len(episode.steps), episode.reward) == (Outcome.TRUNCATED, 4, 0.0)


@pytest.mark.parametrize("asks_again", [False, True])
def test_a_program_that_ends_with_its_steps_was_cut_off(tmp_path: Path, asks_again: bool) -> None:
    async def stops(assignment: Assignment) -> None:
        model = Model(assignment)
        for _ in range(assignment.max_steps):
            assert await model.ask("and?") == 200
        assert not asks_again or await model.ask("one more?") == 200

    episode = play(tmp_path, stops, asked=form_request(max_steps=2))
    assert (episode.outcome, len(episode.steps), episode.error) == (Outcome.TRUNCATED, 2, None)


def test_calls_that_are_not_answered_are_no_steps(tmp_path: Path) -> None:
    async def stumbles(assignment: Assignment) -> None:
        model, wrong = Model(assignment), Model(assignment)
        for _ in range(3):
            assert await wrong.ask([{"type": "video"}]) == 400
        assert [await model.ask("and?") for _ in range(3)] == [200, 200, 410]

    episode = play(tmp_path, stumbles, asked=form_request(max_steps=2))
    assert (episode.outcome, len(episode.steps)) == (Outcome.TRUNCATED, 2)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_policy_server_that_fails_is_no_failure_of_the_policy(tmp_path: Path, comes_back: bool) -> None:
    async def once() -> Episode:
        async with stage(tmp_path) as opened:

            async def asks(assignment: Assignment) -> None:
                model = Model(assignment)
                assert await model.ask("hello") == 200
                opened.server.reply = refuses
                assert await model.ask("still there?") == 500
                if comes_back:
                    opened.server.reply = answers
                    assert await model.ask("and now?") == 200

            return await opened.run(asks)

    if not comes_back:
        with pytest.raises(EngineUnreachable, match=r"the policy's server failed during .*: out of memory"):
            asyncio.run(once())
    else:
        episode = asyncio.run(once())
        assert (episode.outcome, len(episode.steps)) == (Outcome.FAILURE, 2)


def test_steps_are_of_the_checkpoint_that_a_server_was_made_to_load(tmp_path: Path) -> None:
    async def once() -> Episode:
        async with stage(tmp_path, loaded="policy-0007") as opened:
            episode = await opened.run(gives_up)
            opened.server.reply = of_other_weights
            with pytest.raises(EngineUnreachable, match=r"answered with policy-0008, not with policy-0007"):
                await opened.run(gives_up)
            return episode

    assert [step.policy_id for step in asyncio.run(once()).steps] == ["policy-0007"]


def of_other_weights(method: str, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
    status, headers, data = answers(method, path, body)
    data["choices"][0]["flywheel"] = {"policy_id": "policy-0008"}
    return status, headers, data


def refuses(method: str, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
    return 500, {}, {"error": {"message": "out of memory", "type": "server_error", "code": "engine_failed"}}


def test_a_program_neither_ends_its_episode_nor_reaches_another(tmp_path: Path) -> None:
    statuses: list[int] = []

    async def meddles(assignment: Assignment) -> None:
        headers = {"authorization": f"Bearer {assignment.key}"}
        gateway, name = assignment.anthropic_url, assignment.key.partition("/")[2]
        assert await Model(assignment).ask("hello") == 200
        statuses.append((await request("GET", f"{gateway}/episodes", headers=headers)).status_code)
        outcome = {"value": 1, "by": "me"}
        statuses.append((await request("POST", f"{gateway}/episodes/{name}/outcome", headers=headers, json=outcome)).status_code)
        other = Model(assignment)
        other._headers["x-flywheel-episode"] = "of-another"
        statuses.append(await other.ask("whose is this?"))

    episode = play(tmp_path, meddles)
    assert (episode.outcome, len(episode.steps), statuses) == (Outcome.FAILURE, 2, [404, 404, 200])


def test_what_is_solved_without_the_policy_is_not_its_success(tmp_path: Path) -> None:
    async def knows(assignment: Assignment) -> None:
        screen = Screen(assignment)
        observation = await screen.look()
        while (action := form_oracle(observation)) is not None and not (led := await screen.step(action)).terminated:
            observation = led.observation

    episode = play(tmp_path, knows)
    assert (episode.outcome, episode.reward) == (Outcome.CRASHED, None)


async def hangs(assignment: Assignment) -> None:
    await Model(assignment).ask("hello")
    await asyncio.sleep(60)


async def gives_up(assignment: Assignment) -> None:
    await Model(assignment).ask("hello")


async def breaks(assignment: Assignment) -> None:
    await Model(assignment).ask("hello")
    raise ValueError("what is this?")


@pytest.mark.parametrize(
    ("harness", "outcome", "error"),
    [(hangs, Outcome.TIMEOUT, ""), (gives_up, Outcome.FAILURE, ""), (breaks, Outcome.FAILURE, "what is this?")],
)
def test_a_program_that_does_not_solve_it(tmp_path: Path, harness: Harness, outcome: Outcome, error: str) -> None:
    episode = play(tmp_path, harness, timeout_s=1.5)
    assert (episode.outcome, episode.reward, len(episode.steps)) == (outcome, 0.0, 1)
    assert error in (episode.error or "") and bool(error) == bool(episode.error)


def test_a_program_that_never_asks_is_no_failure_of_the_policy(tmp_path: Path) -> None:
    episode = play(tmp_path, Command((sys.executable, "-c", "raise SystemExit('no module agent')")))
    assert (episode.outcome, episode.reward, episode.num_retries) == (Outcome.CRASHED, None, 1)
    assert "no module agent" in (episode.error or "")
    silent = play(tmp_path, Command((sys.executable, "-c", "")))
    assert silent.outcome is Outcome.CRASHED and "none of the calls of the harness 'mine' was answered" in (silent.error or "")
    with pytest.raises(HarnessMissing, match=r"'/no/such/program' cannot be started"):
        play(tmp_path, Command(("/no/such/program",)))


def test_a_session_that_is_lost_is_played_again(tmp_path: Path) -> None:
    async def once() -> Episode:
        async with stage(tmp_path, FormPool(1, crash_plan=[[1]])) as opened:
            return await opened.run(solves)

    episode = asyncio.run(once())
    assert (episode.outcome, episode.num_retries, len(episode.steps)) == (Outcome.SUCCESS, 1, 3)


AGENT = """
import json, os, subprocess, sys, time, urllib.request
names = [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "FLYWHEEL_", "TEST_")) or name.lower() == "no_proxy"]
say = {name: os.environ[name] for name in names}
body = json.dumps({"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": json.dumps(say)}]}).encode()
headers = {"x-api-key": say["ANTHROPIC_API_KEY"], "content-type": "application/json"}
if not say["ANTHROPIC_BASE_URL"].endswith(":1"):
    print(urllib.request.urlopen(urllib.request.Request(say["ANTHROPIC_BASE_URL"] + "/v1/messages", body, headers)).read())
left = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True, env={})]
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
left.append(subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, env={}))
with open(sys.argv[1] + ".aside", "w") as file:
    file.write(" ".join(str(pid) for pid in [os.getpid(), *(one.pid for one in left)]))
os.rename(sys.argv[1] + ".aside", sys.argv[1])
time.sleep(float(sys.argv[2]))
print("I was given", say["OPENAI_API_KEY"])
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_a_command_gets_its_assignment_as_variables_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setenv("TEST_DATABASE_TOKEN", "a secret of ours")
    monkeypatch.setenv("no_proxy", "intranet.example")
    command = Command((sys.executable, "-c", AGENT, str(tmp_path / "pids"), "60" if hangs else "0"), variables={"TEST_GIVEN": "1"})
    episode = play(tmp_path / "home", command, timeout_s=20 if hangs else 60)
    assert episode.outcome is (Outcome.TIMEOUT if hangs else Outcome.FAILURE) and len(episode.steps) == 1
    said = json.loads(episode.steps[0].messages[0].content)
    assert said["FLYWHEEL_INSTRUCTION"] == episode.instruction and said["FLYWHEEL_MAX_STEPS"] == "6"
    assert said["OPENAI_API_KEY"] == said["ANTHROPIC_API_KEY"] and said["OPENAI_BASE_URL"] == f"{said['ANTHROPIC_BASE_URL']}/v1"
    assert "FLYWHEEL_DEVTOOLS" not in said and "TEST_DATABASE_TOKEN" not in said and said["TEST_GIVEN"] == "1"
    assert said["no_proxy"] == said["NO_PROXY"] == "intranet.example,127.0.0.1,localhost"
    assert hangs or ("ended with status 3" in (episode.error or "") and (episode.error or "").endswith("I was given KEY"))
    assert not running_of(tmp_path / "pids")


OWNER = """
import asyncio, sys
from pathlib import Path
from agent.harness.harness import Assignment, Command

folder = Path(sys.argv[1])
given = dict(episode="e", task="t", instruction="i", max_steps=1, temperature=0.0, seed=0, key="k", session_url="", devtools_url=None)
assignment = Assignment(**given, openai_url="http://127.0.0.1:1/v1", anthropic_url="http://127.0.0.1:1", folder=folder)
asyncio.run(Command((sys.executable, "-c", sys.argv[2], str(folder / "pids"), "60"))(assignment))
"""


@pytest.mark.slow
def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), AGENT]) as owner:
        wait_until(pids.exists)
        assert len(running_of(pids)) == 4
        owner.kill()
    wait_until(lambda: not running_of(pids))


def wait_until(is_so: Callable[[], bool], limit_s: float = 20) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def running_of(pids: Path) -> list[str]:
    """Which of the processes that a file names still run."""
    return [pid for pid in pids.read_text().split() if _state_of(Path("/proc") / pid / "stat") not in ("", "Z")]


def _state_of(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_what_is_no_action_is_reported_to_the_program(tmp_path: Path) -> None:
    received: list[Any] = []

    async def babbles(assignment: Assignment) -> None:
        for content in ('{"kind": "fly"}', "null", "no JSON"):
            response = await request("POST", f"{assignment.session_url}/step", content=content)
            received.append((response.status_code, bool(response.json()["error"])))
        response = await request("POST", f"{assignment.session_url}/step", content="x" * (MAX_ACTION_BYTES + 1))
        received.append((response.status_code, "larger than" in response.json()["error"]))
        await Model(assignment).ask("hello")

    assert play(tmp_path, babbles).outcome is Outcome.FAILURE
    assert received == [*[(422, True)] * 3, (413, True)]


class PageForm(FormSession):
    """A form with news, which whoever looks takes; and with an address if it was given one."""

    address: str | None = None

    async def devtools(self) -> str | None:
        return self.address

    async def look(self) -> Transition:
        seen = replace(self._observe(), output="a download came")
        return Transition(observation=seen, reward=0.0, terminated=False, truncated=False)


@pytest.mark.parametrize(("address", "output"), [(None, ""), ("http://127.0.0.1:1", "a download came")])
def test_only_what_a_program_may_have_driven_itself_is_looked_at(address: str | None, output: str) -> None:
    async def looked() -> str:
        session = PageForm()
        session.address = address
        driven = DrivenSession(session, await session.reset(form_request().task, 1))
        assert await driven.devtools() == address
        return (await driven.look()).observation.output

    assert asyncio.run(looked()) == output


def test_a_program_gets_no_reward(tmp_path: Path) -> None:
    received: list[Any] = []

    async def waits(assignment: Assignment) -> None:
        await Model(assignment).ask("hello")
        received.append((await request("POST", f"{assignment.session_url}/step", content='{"kind": "wait"}')).json())

    play(tmp_path, waits)
    assert set(received[0]) == {"observation", "terminated", "truncated"}


def test_an_episode_that_is_over_or_never_was_is_refused(tmp_path: Path) -> None:
    statuses: list[int] = []

    async def once() -> None:
        assigned: list[Assignment] = []

        async def remembers(assignment: Assignment) -> None:
            assigned.append(assignment)
            await Model(assignment).ask("hello")

        async with stage(tmp_path) as opened:
            await opened.run(remembers)
            for key in (assigned[0].key, f"{assigned[0].key}-other"):
                statuses.append(await Model(replace(assigned[0], key=key)).ask("hello again"))

    asyncio.run(once())
    assert statuses == [410, 410]
