"""Episodes on the nodes of a real Ray cluster: several raylets on this machine, with real sessions on each."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.episode.collector import Collector, MeasuresLeases
from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource
from agent.policy.policy import Prompt, Response
from assets.settings.agent import AgentSettings
from assets.settings.execution import RaySettings, SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from benchmarks.common.ray_nodes import ROOT, Nodes, ray_nodes
from benchmarks.common.waiting_node import TASK, Clicking, WaitingPool, WaitingSession
from pipelines import profiles
from pipelines.cluster import episode_cluster
from pipelines.cluster.collector import RayCollector
from pipelines.plan.ray_check import check_ray
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import PolicyService, open_collector
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.tasks.task import Split, Task
from tests.disks import fill, mounted_disk
from warehouse.core.checks import Check
from warehouse.core.errors import ConfigError, EngineUnreachable, ReportedOnly, SandboxBusy
from warehouse.core.identity import stable_seed

TASKS = TaskSettings(lists=("miniwob:smoke",), domains=("forms",))
ANSWERS = ("Action press ctrl a", 'Action type "a b"', "Action click 4 60", "Action scroll down 4 60", "Action wait", 'Action finished "x"')


class Drawing:
    """Answers by the seed of the prompt, so that an episode is the same wherever it runs. Waits as a model would."""

    policy_id = "policy-drawing"

    def __init__(self, wait_s: float = 0.0) -> None:
        self._wait_s = wait_s
        self.num_prompts = 0

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        self.num_prompts += len(prompts)
        await asyncio.sleep(self._wait_s)
        return [
            Response(text=text, prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.1,), policy_id=self.policy_id)
            for text in (ANSWERS[stable_seed("answer", prompt.sampling.seed) % len(ANSWERS)] for prompt in prompts)
        ]


class Stalling(Drawing):
    """Once keeps the event loop from everything else for so long."""

    def __init__(self, stall_s: float) -> None:
        super().__init__()
        self.stall_s = stall_s

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        if self.num_prompts:
            time.sleep(self.stall_s)
            self.stall_s = 0.0
        return await super().act(prompts)


STEP_MS = "FLYWHEEL_TEST_STEP_MS"
"""The variable by which a node of the test of a slow one is told how slow it is."""


class SlowPool(WaitingPool):
    """Sessions that wait as long as their node is slow, and say so."""

    def __init__(self, size: int) -> None:
        self.step_ms = os.environ[STEP_MS]
        super().__init__(size, float(self.step_ms) / 1000)

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[WaitingSession]:
        async with super().lease(task, screenshots=screenshots) as session:
            session.environment = self.step_ms
            yield session


@asynccontextmanager
async def slow_sessions(settings: SandboxSettings) -> AsyncIterator[SessionPoolProtocol]:
    yield SlowPool(settings.num_sessions)


class Refusing(Drawing):
    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        raise EngineUnreachable("nobody answers")


def acting(ray: RaySettings | None, **settings: Any) -> ActingSettings:
    return ActingSettings(tasks=TASKS, sandbox=SandboxSettings(**{"num_sessions": 2, "ray": ray, **settings}))


def requests(num: int, policy_id: str = Drawing.policy_id, **options: Any) -> list[EpisodeRequest]:
    return requests_for(TASKS, policy_id=policy_id, num=num, **{"purpose": "rollout", "split": Split.TRAIN, "temperature": 1.0, **options})


def essence(episodes: Sequence[Episode]) -> dict[str, Any]:
    """All of an episode but its clock times and retries."""
    return {
        episode.episode_id: (
            episode.model_dump(exclude={"duration_ms", "num_retries", "steps"}),
            [step.model_dump(exclude={"latency_ms"}) for step in episode.steps],
            sorted(episode.screenshots.keys() & {step.screenshot_id for step in episode.steps}),  # what a log keeps
        )
        for episode in episodes
    }


async def collected(settings: ActingSettings, asked: Sequence[EpisodeRequest], log: EpisodeLog | None = None) -> list[Episode]:
    async with open_collector(settings) as collector:
        assert isinstance(collector, Collector)
        return [episode async for episode in collector.collect(Drawing(), asked, log=log)]


def test_ray_and_servers_exclude_each_other_and_addresses_are_checked() -> None:
    with pytest.raises(ValueError, match=r"sandbox\.ray is set, and sandbox\.servers are named"):
        SandboxSettings(ray=RaySettings(), servers=("http://127.0.0.1:8421",))
    for address in ("ray://head:10001", "head", "http://head:8265"):
        with pytest.raises(ValueError, match="address"):
            RaySettings(address=address)
    assert RaySettings(address="10.0.0.1:6379").cpus is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"'ray' is not installed.*pip install 'flywheel\[ray\]'"):
        asyncio.run(collected(acting(RaySettings()), []))


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Nodes, list[subprocess.Popen[bytes]]]]:
    with ray_nodes(2) as (nodes, started):
        yield nodes, list(started)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_episodes_are_those_of_one_machine_each_once(cluster: Any, tmp_path: Path) -> None:
    """Of a policy and of an oracle; a stage that learns is refused what is only reported; what a policy raises is raised."""
    ray, asked = RaySettings(address=cluster[0].address), requests(8)
    here = asyncio.run(collected(acting(None), asked))
    log = EpisodeLog(tmp_path)

    async def on_nodes() -> list[Episode]:
        async with open_collector(acting(ray, max_retries=0), to_choose=True) as collector:
            assert isinstance(collector, MeasuresLeases) and collector.lease_use.num_sessions in (2, 4)
            found = [episode async for episode in collector.collect(Drawing(), asked, log=log)]
            assert collector.lease_use.leased_s > 0
            oracle = OracleActionSource(acting(None).agent.builder().grammar)
            shown = [episode async for episode in collector.play(oracle, requests(2, ORACLE_POLICY_ID, purpose="seed"))]
            assert len(shown) == 2 and all(episode.is_success for episode in shown)
            with pytest.raises(EngineUnreachable, match="nobody answers"):
                await anext(aiter(collector.collect(Refusing(), asked)))
            with pytest.raises(ReportedOnly, match="which is only reported"):
                await anext(aiter(collector.collect(Drawing(), requests(1, split=Split.HOLDOUT))))
            return found

    there = asyncio.run(on_nodes())
    assert len(there) == len(asked) and essence(there) == essence(here)
    assert essence(list(log.episodes())) == essence(here)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_closing_cancels_and_requests_are_taken_as_there_is_room(cluster: Any) -> None:
    ray = RaySettings(address=cluster[0].address, workers=1)
    taken = count()

    async def main() -> None:
        async with open_collector(acting(ray, num_sessions=1)) as collector:
            policy = Drawing(wait_s=0.1)
            stream = (request for request in requests(40) if next(taken) >= 0)
            async with aclosing(collector.collect(policy, stream)) as episodes:  # type: ignore[type-var]
                async for _ in episodes:
                    break
            assert next(taken) <= 6 + 1 + 1, "six places, and one that became free"
            await asyncio.sleep(1.0)
            before = policy.num_prompts
            await asyncio.sleep(1.0)
            assert policy.num_prompts == before, "nothing goes on"
            assert len([episode async for episode in collector.collect(policy, requests(2))]) == 2

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_dry_run_asks_the_cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(**ray: Any) -> Check:
        return check_ray(profiles.load("smoke", {"sandbox.ray": {"address": cluster[0].address, **ray}}))

    deadline = time.monotonic() + 120
    while "2 of 3 nodes have what episodes need, 1 CPU each" not in (found := checked(cpus=1)).found:
        assert time.monotonic() < deadline, found
    assert found.status == "ok" and checked(cpus=64).status == "warn"
    assert checked(address="127.0.0.1:9").status == "fail"
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "flywheel[ray]" in checked().found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_stage_that_stands_still_loses_no_node(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    lost_after_s = 6.0
    ray, policy = RaySettings(address=cluster[0].address, lost_after_s=lost_after_s), Stalling(lost_after_s + 2)

    async def main() -> None:
        async with open_collector(acting(ray)) as collector:
            assert len([episode async for episode in collector.collect(policy, requests(4))]) == 4

    asyncio.run(main())
    assert policy.stall_s == 0 and "run again elsewhere" not in caplog.text


SLOW_START_S = 15.0


@asynccontextmanager
async def slowly_opened(settings: SandboxSettings, opened: str) -> AsyncIterator[SessionPoolProtocol]:
    """Sessions that the first to ask has to wait for. `opened`: a file with a line for each that asked."""
    with open(opened, "a") as file:
        file.write("asked\n")
    if len(Path(opened).read_text().splitlines()) == 1:
        await asyncio.sleep(SLOW_START_S)
    yield WaitingPool(settings.num_sessions, 0.1)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [None, 1])
def test_a_slow_start_is_waited_for_and_holds_no_place(
    workers: int | None, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started again, a worker on a slow machine would begin from nothing each time."""
    monkeypatch.setattr(episode_cluster, "START_LIMIT_S", SLOW_START_S / 5)
    ray, opened = RaySettings(address=cluster[0].address, workers=workers), tmp_path / "opened"

    async def main() -> None:
        pool = partial(slowly_opened, opened=str(opened))
        async with episode_cluster.open_cluster(acting(ray), ray, to_choose=False, open_pool=pool) as made:
            while len(opened.read_text().splitlines()) < 2 or made._starting:
                await asyncio.sleep(0.1)
            assert len(made.workers) == (workers or 2)

    asyncio.run(main())
    assert opened.read_text().splitlines() == ["asked"] * 2, "nothing was restarted"
    assert "it is waited for" in caplog.text and "restarted" not in caplog.text


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_node_with_another_file_of_a_plug_in_is_named_and_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a grammar, which writes the prompts."""
    (file := tmp_path / "terse.py").write_text("GRAMMAR = None\n")
    monkeypatch.setenv("FLYWHEEL_GRAMMARS", f"{{terse: '{file}:GRAMMAR'}}")
    own = {**episode_cluster.plugin_ids(), f"grammars {file}:GRAMMAR": "file-0:GRAMMAR"}
    monkeypatch.setattr(episode_cluster, "plugin_ids", lambda: own)
    with pytest.raises(
        ConfigError, match=rf"other plug-ins than the stage \('grammars {file}:GRAMMAR' is \w{{64}}:GRAMMAR, not file-0:GRAMMAR\)"
    ):
        asyncio.run(collected(acting(RaySettings(address=cluster[0].address)), requests(1)))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_node_costs_no_episode_and_one_that_joins_is_used(cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Through the service that a Prefect flow asks. The raylet of a node and all on it are killed in the middle."""
    caplog.set_level(logging.INFO)
    nodes, started = cluster
    asked, log = requests(24), EpisodeLog(tmp_path)
    here = asyncio.run(collected(acting(None), asked))
    ray = RaySettings(address=nodes.address, lost_after_s=20)
    with PolicyService(acting(ray), Drawing(wait_s=0.3), log) as service:
        assert service.num_at_once == 2 * (2 * 12), "twice what the two nodes take, however many are ready"
        deadline = time.monotonic() + 60
        while len(service._runner.workers) < 2 and time.monotonic() < deadline:  # type: ignore[union-attr]
            time.sleep(0.2)
        futures = [service.submit(request) for request in asked]
        while sum(future.done() for future in futures) < 4:
            time.sleep(0.05)
        nodes.kill(started.pop())
        killed_s = time.monotonic()
        started.append(nodes.add())
        there = [future.result(timeout=200) for future in futures]
        print(f"{time.monotonic() - killed_s:.1f} s after the kill")
        while len(service._runner.workers) < 2 and time.monotonic() < killed_s + 100:  # type: ignore[union-attr]
            time.sleep(0.2)
        assert len(service._runner.workers) == 2, "the node that joined is used"  # type: ignore[union-attr]
    assert essence(there) == essence(here) and essence(list(log.episodes())) == essence(here)
    assert sum(1 for _ in log.without_screenshots()) == len(asked) and all(one.outcome is not Outcome.CRASHED for one in there)
    assert any(episode.num_retries for episode in there), "some were under way on the node that died"
    assert "episodes run again elsewhere" in caplog.text


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_node_with_other_code_is_named_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it ends the stage, but not where another was lost; where no node has the resources, the stage waits and says what it lacks."""
    for room in ("warehouse", "sandbox", "agent", "models", "annotation", "assets", "pipelines"):
        shutil.copytree(ROOT / room, tmp_path / "code" / room, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "code" / "warehouse" / "core" / "code.py").open("a") as file:
        file.write("# another release\n")
    monkeypatch.chdir(tmp_path)  # Ray would let its workers import from where we are
    with ray_nodes(0) as (nodes, _):
        good, other = nodes.add(), rf"node {re.escape(nodes.address.rpartition('.')[0])}\.4"
        ray = RaySettings(address=nodes.address, lost_after_s=5, wait_s=30)
        with PolicyService(acting(ray), Drawing(), EpisodeLog(tmp_path)) as service:
            nodes.add(env={"PYTHONPATH": str(tmp_path / "code")})
            deadline = time.monotonic() + 60
            while not service._runner._refused and time.monotonic() < deadline:  # type: ignore[union-attr]
                time.sleep(0.2)
            nodes.kill(good)
            with pytest.raises(SandboxBusy, match=rf"no node that runs episodes.*\n  {other} .* has other code"):
                service.submit(requests(1)[0]).result(timeout=120)
        with pytest.raises(ConfigError, match=rf"{other} .* has other code than this process .*install the same release"):
            asyncio.run(collected(acting(RaySettings(address=nodes.address)), requests(1)))
        with pytest.raises(SandboxBusy, match=r"no node that runs episodes; each needs 64 CPU, 1 lab"):
            asyncio.run(collected(acting(RaySettings(address=nodes.address, cpus=64, resources={"lab": 1}, wait_s=3)), requests(1)))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_autoscaler_is_asked_for_the_first_node_and_for_more_while_all_places_are_taken() -> None:
    """Ray's own, whose nodes are processes of this machine."""
    with ray_nodes(0, max_nodes=3) as (nodes, _):

        async def main() -> int:
            async with open_collector(acting(RaySettings(address=nodes.address, workers=2), num_sessions=1)) as collector:
                cluster = collector._cluster  # type: ignore[attr-defined]
                async with aclosing(collector.collect(Drawing(wait_s=1.0), requests(100))) as episodes:  # type: ignore[type-var]
                    async for _ in episodes:
                        if len(cluster.workers) == 2:
                            break
                return len(cluster.workers)

        assert asyncio.run(main()) == 2


SLOW_MS, QUICK_MS = "800", "100"


@pytest.fixture(scope="module")
def uneven() -> Iterator[tuple[Nodes, str, Path]]:
    """Two nodes, of which the first is slow and has a small disk under its sessions: with its address, and where that disk is."""
    folder = Path(tempfile.mkdtemp(prefix="flywheel-disk-"))
    folder.chmod(0o755)
    disk = folder / "disk"
    try:
        with mounted_disk(disk, "160m"), ray_nodes(0) as (nodes, _):
            disk.chmod(0o1777)
            nodes.add(env={"TMPDIR": str(disk), STEP_MS: SLOW_MS})
            nodes.add(env={STEP_MS: QUICK_MS})
            yield nodes, nodes.address.replace(".2:", ".3:").partition(":")[0], disk
    finally:
        shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_slow_node_gets_fewer_episodes(uneven: tuple[Nodes, str, Path], caplog: pytest.LogCaptureFixture) -> None:
    wanted = [EpisodeRequest(purpose="seed", task=TASK, seed=seed, policy_id="clicking") for seed in range(90)]
    ray = RaySettings(address=uneven[0].address, min_free_disk_mib=40)
    settings = acting(ray).model_copy(update={"agent": AgentSettings(grammar="uitars15")})

    async def main() -> list[Episode]:
        async with episode_cluster.open_cluster(settings, ray, to_choose=False, open_pool=slow_sessions) as cluster:
            while len(cluster.workers) < 2:
                await asyncio.sleep(0.1)
            return [episode async for episode in RayCollector(cluster, CollectorSettings()).play(Clicking(), wanted)]

    found = asyncio.run(main())
    assert len({episode.episode_id for episode in found}) == len(found) == len(wanted) and all(episode.is_success for episode in found)
    num = Counter(episode.environment for episode in found)
    assert 0 < num[SLOW_MS] < num[QUICK_MS] / 2 and num[SLOW_MS] + num[QUICK_MS] == len(wanted)
    (named,) = [message for message in caplog.messages if " is slow" in message]
    assert f" {uneven[1]} " in named and "the median of its last calls is" in named, "once, with its address and both figures"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_node_whose_disk_is_full_gets_no_episodes_until_it_has_space(
    uneven: tuple[Nodes, str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was under way there is played elsewhere, as on one machine."""
    nodes, address, disk = uneven
    asked, log = requests(48), EpisodeLog(tmp_path)
    here = asyncio.run(collected(acting(None), asked))
    ray = RaySettings(address=nodes.address, min_free_disk_mib=40)
    with PolicyService(acting(ray, max_retries=1), Drawing(wait_s=0.2), log) as service:
        cluster: Any = service._runner
        wait_until(lambda: len(cluster.workers) == 2)
        (small,) = [worker for worker in cluster.workers if f" {address} " in worker.node]
        futures = [service.submit(request) for request in asked]
        wait_until(lambda: sum(future.done() for future in futures) >= 6 and any(run.has_session for run in list(small._runs.values())))
        fill(disk / "filler")
        wait_until(lambda: small.trouble)
        found = [future.result(timeout=300) for future in futures]
        assert small.num_running == 0 and small.trouble and small.loss is None
        (disk / "filler").unlink()
        wait_until(lambda: not small.trouble)
        later = [service.submit(request) for request in requests(4, policy_id="policy-later")]
        wait_until(lambda: small.num_running > 0)
        assert all(future.result(timeout=300).outcome is not Outcome.CRASHED for future in later)
    assert essence(found) == essence(here) and any(episode.num_retries for episode in found), "some were under way there"
    assert caplog.text.count(" MiB of its temporary folder are free, at least 40 are needed") == 1, caplog.text
    assert caplog.text.count("gets episodes again") == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_where_every_node_is_short_of_disk_the_stage_waits_and_names_them(uneven: tuple[Nodes, str, Path]) -> None:
    ray = RaySettings(address=uneven[0].address, min_free_disk_mib=1e12)

    async def main() -> None:
        async with open_collector(acting(ray)) as collector:
            cluster = collector._cluster  # type: ignore[attr-defined]
            while len(cluster.workers) < 2 or not all(worker.trouble for worker in cluster.workers):
                await asyncio.sleep(0.1)
            cluster._settings = ray.model_copy(update={"wait_s": 3})
            await anext(aiter(collector.collect(Drawing(), requests(1))))

    with pytest.raises(SandboxBusy, match=r"no node that runs episodes(.|\n)*node .*: only \d+ MiB of its temporary folder are free"):
        asyncio.run(main())


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
