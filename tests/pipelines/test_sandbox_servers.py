"""Stages on sandbox servers: the same episodes as on sessions of their own, and what becomes of them when the machines of the servers die,
are cut off, slow, full or of another version. Machines are network namespaces (benchmarks/common/hosts.py), each with a server of its own.
How the pool chooses among servers is tests/sandbox/test_servers_pool.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import psutil
import pytest

from agent.episode.episode import Episode, EpisodeRequest
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource, StepContext
from agent.policy.policy import Policy, Prompt, Response
from assets.settings.agent import AgentSettings
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, EvaluationSettings, TaskSettings
from assets.stages.requests import EvaluateRequest
from benchmarks.common.delay import DelayingProxy
from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from models.engine.choice import EngineChoice
from pipelines import profiles
from pipelines.plan import sandbox_check
from pipelines.plan.sandbox_check import check_sandboxes
from pipelines.stages import context as contexts
from pipelines.stages import evaluate
from pipelines.stages.context import WorkerContext
from pipelines.stages.sandboxes import open_collector
from sandbox.http.tokens import Tokens
from sandbox.server.address import ServerAddress
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving as serving_here
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import TOKEN_VARIABLE
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split
from tests.disks import fill, mounted_disk
from tests.sandbox.counting import CountingPool
from warehouse.core.checks import Check
from warehouse.core.home import Home
from warehouse.core.identity import stable_fraction
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-all-nodes-0123456789"
LISTS = ("miniwob:smoke",)
on_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


def serving(host: str, port: int, *options: str) -> list[str]:
    """The command of a node."""
    command = [sys.executable, "-m", "pipelines.cli", "sandbox", "serve", "--size", "2", "--oracles"]
    return [*command, "--host", host, "--port", str(port), *options]


def once_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of a node that was started."""
    deadline_s = time.monotonic() + 120
    while "token: in" not in (text := log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline_s, text
        time.sleep(0.05)
    return text.split("sandbox server: ")[1].split()[0]


@contextmanager
def local_nodes(tmp_path: Path, num: int) -> Iterator[list[str]]:
    started: list[subprocess.Popen[bytes]] = []
    logs = [tmp_path / f"node-{number}.log" for number in range(num)]
    try:
        for log in logs:
            with log.open("ab") as file:
                started.append(subprocess.Popen(serving("127.0.0.1", 0), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
        yield [once_ready(process, log) for process, log in zip(started, logs, strict=True)]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=60)


def acting(servers: Sequence[str] = (), num_sessions: int = 4) -> ActingSettings:
    return ActingSettings(
        tasks=TaskSettings(lists=LISTS, domains=("pointing",)),
        agent=AgentSettings(grammar="uitars15", list_elements=True),
        sandbox=SandboxSettings.model_validate({"servers": servers, "num_sessions": num_sessions}),
    )


class Poking:
    """Clicks an element that its prompt and nothing else decides; now and then it is the right one."""

    policy_id = "policy-poking"

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: Prompt) -> Response:
        said = prompt.messages[-1].content
        clicks = re.findall(r"click\(start_box='[^']*'\)", said)
        text = f"Thought: Here.\nAction: {clicks[int(len(clicks) * stable_fraction(said, len(prompt.messages)))]}"
        return Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=self.policy_id)

    def close(self) -> None: ...


def evaluated(folder: Path, settings: ActingSettings, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Rows of an evaluation of `Poking`, in an order of their own, without what differs from run to run."""

    def opened(folder: Path, choice: EngineChoice) -> Policy:
        return Poking()

    monkeypatch.setattr(contexts, "open_engine", opened)
    context = WorkerContext(folder=folder / "work", home=Home(folder / "home"), iteration="0001", stage="evaluation", log=print)
    context.folder.mkdir(parents=True)
    row = {"checkpoint_id": Poking.policy_id, "path": "checkpoints/poking", "parents": [], "datasets": [], "config": "{}", "metrics": "{}"}
    context.warehouse.replace_partition("checkpoints", [row | {"note": ""}], iteration="0001", stage="sft_model")
    request = EvaluateRequest(
        iteration="0001",
        stage="evaluation",
        checkpoints={"sft_model": Poking.policy_id},
        splits={"sft_model": ("eval",)},
        seed=0,
        acting=settings,
        evaluation=EvaluationSettings(eval_per_task=3, holdout_per_task=1),
    )
    evaluate.run(request, context)
    found = {}
    for table, drop in (("evaluations", ()), ("episodes", ("duration_ms", "num_retries")), ("steps", ("latency_ms",))):
        rows = context.warehouse.read(table, iteration="0001", stage="evaluation").to_pylist()
        assert not {name for name in drop if name not in rows[0]}
        found[table] = sorted(({name: value for name, value in row.items() if name not in drop} for row in rows), key=str)
    return found


@pytest.mark.slow
def test_an_evaluation_on_servers_gives_what_a_local_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = evaluated(tmp_path / "here", acting(), monkeypatch)
    with local_nodes(tmp_path, 2) as urls:
        there = evaluated(tmp_path / "there", acting(urls), monkeypatch)
        assert there == here
        assert {row["num_crashed"] for row in here["evaluations"]} == {0} and len({row["outcome"] for row in here["episodes"]}) > 1
        profile = profiles.load("smoke", {"sandbox.servers": [*urls, "http://127.0.0.1:9"]})
        first, second, absent, total = check_sandboxes(profile)
        assert first.status == second.status == "ok" and "2 of 2 sessions free" in first.found and "started: page" in first.found
        assert absent.status == "fail" and "does not answer" in absent.found
        assert total.status == "warn" and "4 sessions on 3 servers, 12 wanted" in total.found


def test_where_no_server_answers_no_number_of_sessions_is_advised() -> None:
    (absent,) = check_sandboxes(profiles.load("smoke", {"sandbox.servers": ["http://127.0.0.1:9"]}))
    assert absent.status == "fail" and "num_sessions" not in absent.fix


def test_a_server_without_disk_is_not_reported_to_be_in_use() -> None:
    async def main() -> Check:
        settings = ServerSettings(oracles=True, min_free_disk_mib=1e12)  # more than any disk has
        async with serving_here(CountingPool(1), Tokens({"default": TOKEN}), settings) as url:
            return (await sandbox_check._check(ServerAddress(url=url), {}, []))[0]

    check = asyncio.run(main())
    assert check.status == "fail" and "too little to lend any" in check.found and "--min-free-disk" in check.fix


# ---- machines that fail -----------------------------------------------------------------------------------------------------------------


class Thinking:
    """The oracle, which takes its time."""

    def __init__(self, think_s: float) -> None:
        self._think_s, self._oracle = think_s, OracleActionSource(grammar_named("uitars15"))

    async def respond(self, context: StepContext) -> Response | None:
        await asyncio.sleep(self._think_s)
        return await self._oracle.respond(context)


@dataclass
class Site:
    """A head and two nodes."""

    head: Host
    nodes: list[Host]
    folder: Path

    def serve(self, node: Host, *options: str, tree: Path = ROOT, **env: str) -> str:
        """Start a sandbox server on a node; its address."""
        log = self.folder / f"{node.address}.log"
        log.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(tree), **env}
        process = node.start(serving(node.address, 8421, *options), env=environment, cwd=tree, output=log)
        return once_ready(process, log)

    def play(self, urls: Sequence[str], num: int, disturb: Callable[[list[Episode]], None], *, think_s: float = 0.1) -> list[Episode]:
        """Episodes of the oracle, collected on the head while `disturb` runs in a thread beside it; it gets those that are done."""
        task_list = list(tasks_in(LISTS).values())
        wanted = [(task, seed) for task in task_list for seed in task.seeds(Split.TRAIN, -(-num // len(task_list)))][:num]
        requests = [EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle") for task, seed in wanted]
        done: list[Episode] = []

        async def main() -> None:
            async with open_collector(acting(urls)) as collector:
                disturbing = asyncio.create_task(asyncio.to_thread(disturb, done))
                async for episode in collector.play(Thinking(think_s), requests):
                    done.append(episode)
                await disturbing

        with self.head.entered():
            asyncio.run(main())
        assert sorted(episode.episode_id for episode in done) == sorted(request.episode_id for request in requests), "each once"
        assert {(episode.outcome, episode.reward) for episode in done} == {("success", 1.0)}, "no failure of a machine is the agent's"
        return done

    def leased(self, url: str) -> int:
        """Sessions that a server has on lease."""

        async def main() -> int:
            async with SandboxClient(url, TOKEN) as client:
                return (await client.status()).num_leased

        with self.head.entered():
            return asyncio.run(main())

    def warm_up(self, urls: Sequence[str]) -> None:
        """Have every session of the servers open a page once, so that none is still being started when a machine fails."""
        task = next(iter(tasks_in(LISTS).values()))

        async def play(client: SandboxClient) -> None:
            async with client.lease(task) as session:
                await session.reset(task, 0)

        async def main() -> None:
            for url in urls:
                async with SandboxClient(url, TOKEN) as client:
                    await asyncio.gather(play(client), play(client))

        with self.head.entered():
            asyncio.run(main())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Hosts(3) as (head, *nodes):
        yield Site(head, nodes, tmp_path)


def when(done: list[Episode], num: int, act: Callable[[], object]) -> None:
    """Act once so many episodes are done."""
    deadline_s = time.monotonic() + 120
    while len(done) < num and time.monotonic() < deadline_s:
        time.sleep(0.02)
    act()


@pytest.mark.slow
@on_hosts
def test_a_node_that_is_killed_costs_retries_and_no_episode(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    urls = [site.serve(node) for node in site.nodes]
    site.warm_up(urls)
    done = site.play(urls, 24, lambda done: when(done, 4, site.nodes[0].kill), think_s=0.3)
    assert any(episode.num_retries for episode in done) and f"{urls[0]} is not used: it does not answer" in caplog.text


@pytest.mark.long
@on_hosts
def test_a_link_that_is_cut_and_mended_costs_retries_and_the_node_is_used_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    urls = [site.serve(node) for node in site.nodes]
    site.warm_up(urls)
    node = site.nodes[0]

    def cut(done: list[Episode]) -> None:
        when(done, 4, node.cut)
        time.sleep(30)
        node.restore()
        when(done, 160, lambda: None)

    done = site.play(urls, 160, cut, think_s=0.4)
    assert any(episode.num_retries for episode in done)
    assert f"{urls[0]} is not used: it does not answer" in caplog.text and f"{urls[0]} is used again" in caplog.text
    assert site.leased(urls[0]) == 0, "what was given up is released once it answers again, not after its time to live"


@pytest.mark.long
@on_hosts
def test_a_slow_node_gets_fewer_episodes(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    urls = [site.serve(node) for node in site.nodes]
    num_bytes = []

    async def proxied(stop: threading.Event, found: Queue[str]) -> None:
        proxies = [DelayingProxy(node.address, 8421, delay_s=delay_s) for node, delay_s in zip(site.nodes, (0.5, 0.0), strict=True)]
        async with proxies[0] as slow, proxies[1] as quick:
            found.put(slow.url)
            found.put(quick.url)
            await asyncio.to_thread(stop.wait)
            num_bytes.extend([slow.num_bytes, quick.num_bytes])

    stop, found = threading.Event(), Queue[str]()
    with site.head.entered():
        thread = threading.Thread(target=lambda: asyncio.run(proxied(stop, found)))
        thread.start()
    try:
        addresses = [found.get(timeout=20), found.get(timeout=20)]
        site.play(addresses, 60, lambda done: None)
    finally:
        stop.set()
        thread.join()
    slow, quick = num_bytes
    assert 0 < slow < quick / 2, f"{urls[0]} answers a second later"
    assert caplog.text.count(f"{addresses[0]} is slow: the median of its last calls is") == 1, "named once, with both figures"
    assert f"{addresses[1]} is slow" not in caplog.text and "is slow no more" not in caplog.text


@pytest.mark.long
@on_hosts
def test_a_node_whose_disk_is_full_lends_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(tempfile.mkdtemp(prefix="flywheel-disk-"))
    folder.chmod(0o755)
    try:
        with mounted_disk(folder / "disk", "160m"):
            (folder / "disk").chmod(0o1777)
            urls = [site.serve(site.nodes[0], "--min-free-disk", "40", TMPDIR=str(folder / "disk")), site.serve(site.nodes[1])]
            site.play(urls, 60, lambda done: when(done, 6, lambda: fill(folder / "disk" / "filler")))
            assert f"{urls[0]} is not used: it has only 0 MiB of disk left" in caplog.text
            site.nodes[0].kill()
    finally:
        shutil.rmtree(folder)


@pytest.mark.long
@on_hosts
def test_a_node_of_another_version_is_named_and_not_used(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    tree = site.folder / "tree"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if name.split("/")[0] in ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse", "pyproject.toml"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    with (tree / "sandbox" / "session.py").open("a") as file:
        file.write("# another version\n")
    urls = [site.serve(site.nodes[0], tree=tree), site.serve(site.nodes[1])]
    site.play(urls, 10, lambda done: None)
    assert f"{urls[0]} is not used: it runs other code" in caplog.text


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_whole_iteration_needs_no_browser_where_it_runs_and_survives_a_killed_server(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "run.log"
    with local_nodes(tmp_path, 2) as urls:
        servers = ", ".join(urls)
        command = [sys.executable, "-m", "pipelines.cli", "run", "--profile", "smoke", "--iterations", "1", "--home", str(home)]
        settings = ["--set", f"sandbox.servers=[{servers}]", "--set", "sandbox.num_sessions=4"]
        without = {**os.environ, "FLYWHEEL_CHROMIUM": "/no/such/browser", "PYTHONPATH": str(ROOT)}
        with log.open("ab") as file:
            run = subprocess.Popen([*command, *settings], cwd=ROOT, env=without, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            while "▸ rl_" not in log.read_text() and run.poll() is None:
                time.sleep(0.2)
            time.sleep(3)
            (first,) = [int(pid) for pid in _listeners(urls[0])]
            os.kill(first, signal.SIGKILL)
            assert run.wait(timeout=1200) == 0, log.read_text()
        finally:
            run.kill()
            run.wait()
    found = Warehouse(Home(home)).read("episodes").to_pylist()
    assert {row["purpose"] for row in found} == {"seed", "rollout", "annotation", "rl", "evaluation"}
    assert "crashed" not in {row["outcome"] for row in found}


def _listeners(url: str) -> list[int]:
    """Processes that listen there."""
    port = int(url.rpartition(":")[2])
    return [one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == port and one.pid is not None]
