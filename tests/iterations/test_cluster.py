"""An iteration on three machines, played as network namespaces (benchmarks/common/hosts.py), by the profile `cluster-smoke`: the head has
Dagster on Postgres, Prefect, the tables in an object store and one training process; one node sandboxes and the other training process; the
last sandboxes and the policy server. Nodes are killed whole while stages work; what a person does then is to start their services again.

And on four with Ray: the head has Dagster and Ray's job server; one node the stages, each a job of Ray; two nodes the episodes.
"""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import psutil
import pytest

from benchmarks.common.acknowledged import acknowledged_episodes
from benchmarks.common.cluster_hosts import PROFILE, ClusterHosts, cluster_hosts
from benchmarks.common.hosts import Host, can_make_hosts
from benchmarks.common.object_store import BUCKET
from benchmarks.common.postgres import a_postgres, new_database
from benchmarks.common.ray_nodes import RayHosts, ray_hosts
from pipelines.cluster.stage_jobs import JOB
from pipelines.orchestration.instance import DRIVER
from pipelines.orchestration.work import progress
from pipelines.orchestration.work.folder import RESULT
from tests.iterations.conftest import Finished, Workspace
from tests.iterations.repeatable import assert_same_rows
from tests.iterations.test_faults import GONE_S, acknowledged, assert_nothing_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")]

MAX_COMMANDS = 8
POLL_S = 0.1
BEFORE = ("samples encoded",)
"""Units of progress of what a stage does on the head, before a node takes part."""
AWAY_S = 4.0
"""How long a killed node is gone."""


@dataclass
class Machines(ABC):
    """Hosts and a home on the first. `killed`: (stage, node) of each kill; `promised`: episodes that were acknowledged by then."""

    profile: ClassVar[str]
    workspace: Workspace
    killed: list[tuple[str, str]] = field(default_factory=list)
    promised: set[str] = field(default_factory=set)

    @property
    @abstractmethod
    def changes(self) -> Sequence[str]:
        """Options of the command."""

    @abstractmethod
    def start(self, node: Host) -> None:
        """The services of a node, as its service manager would."""

    @abstractmethod
    def acknowledged(self) -> set[str]:
        """Episodes that are stored, or in the log of a stage."""

    def has_work(self, node: Host) -> bool:
        """Whether killing it now costs the stage that is under way something."""
        return True

    def run(self, num_iterations: int, kills: dict[str, Sequence[Host]]) -> None:
        """Give the command again and again, as a person would. The first time that a stage of `kills` has done a part of its work, the
        first of its nodes that has work is killed."""
        output = self.workspace.base / "command.log"
        for _ in range(MAX_COMMANDS):
            with output.open("a") as log:
                arguments = ["run", "--iterations", str(num_iterations), "--profile", self.profile, *self.changes]
                command = self.workspace.start("-m", "pipelines.cli", *arguments, stdout=log)
            while command.poll() is None:
                for stage in kills.keys() & self.ready(num_iterations):
                    if node := next(filter(self.has_work, kills[stage]), None):
                        self.kill(stage, node)
                        del kills[stage]
                time.sleep(POLL_S)
            if command.returncode == 0:
                assert not kills, f"{kills} never met their stages"
                return
        logs = [
            output,
            *self.workspace.base.glob("10.*.log"),
            *self.workspace.home.work.glob("*/*.log"),
            *self.workspace.home.work.glob("*.log"),
        ]
        pytest.fail("\n".join([str(self.killed), *(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs)]))

    def ready(self, num_iterations: int) -> set[str]:
        """Stages that have done a part of what they do: episodes, steps or rounds."""
        found = [snapshot for name in iterations(num_iterations) for snapshot in progress.working(self.workspace.home, name)]
        return {each.stage for each in found if each.unit not in BEFORE and 0 < each.done < each.total}

    def kill(self, stage: str, node: Host) -> None:
        node.kill()
        self.promised |= self.acknowledged()
        self.killed.append((stage, node.address))
        time.sleep(AWAY_S)
        self.start(node)


def iterations(num: int) -> list[str]:
    return ["0000", *(f"{number:04d}" for number in range(1, num + 1))]


@dataclass
class Cluster(Machines):
    """Three hosts."""

    profile = PROFILE
    hosts: ClusterHosts = field(kw_only=True)

    @property
    def changes(self) -> Sequence[str]:
        return self.hosts.settings

    def start(self, node: Host) -> None:
        self.hosts.start(node, self.workspace.environment)

    def acknowledged(self) -> set[str]:
        stored = self.workspace.flywheel("sql", "select episode_id from episodes", "--json")
        assert stored.returncode == 0, stored.stderr
        return acknowledged_episodes(self.workspace.home, (json.loads(line)["episode_id"] for line in stored.stdout.splitlines()))


@pytest.fixture
def cluster(new_workspace: Callable[..., Workspace]) -> Iterator[Cluster]:
    workspace = new_workspace()
    with cluster_hosts(workspace.base) as hosts, a_postgres(is_durable=False, listen=hosts.head.address) as socket:
        dagster = new_database(socket, "dagster", listen=hosts.head.address).replace("postgresql+psycopg", DRIVER, 1)
        workspace.settings.update(hosts.environment, FLYWHEEL_POSTGRES_URL=dagster)
        made = Cluster(workspace, hosts=hosts)
        for node in hosts.nodes:
            made.start(node)
        yield made


def local_copy(cluster: Cluster) -> Workspace:
    """The tables and checkpoints of the store, on a disk."""
    base = cluster.workspace.base / "copy"
    base.mkdir()
    copied = cluster.workspace.flywheel("store", "copy", f"s3://{BUCKET}/home", str(base / "home"), timeout_s=600)
    assert copied.returncode == 0, copied.stderr
    return Workspace(base)


def assert_as_on_one_machine(copy: Workspace, finished_home: Finished) -> None:
    """All but SFT, of which a second process has its share: there the seed's rows and CT's checkpoint, to the bit; and as many episodes."""
    assert_same_rows(finished_home.warehouse, copy.warehouse, but=("sft_model",))
    assert_as_many_episodes(copy, finished_home)


def assert_as_many_episodes(workspace: Workspace, finished_home: Finished) -> None:
    """In the seed and the first iteration, of the stages that play a fixed number."""
    stages = "('seed_demonstrations', 'evaluation', 'rollouts')"
    asked = f"select stage, split, count(*) from episodes where iteration <= '0001' and stage in {stages} group by all order by all"
    assert workspace.sql(asked) == finished_home.sql(asked)


@pytest.mark.ci
def test_an_iteration_on_three_machines_survives_the_loss_of_one(cluster: Cluster, finished_home: Finished) -> None:
    cluster.run(1, {"rl_pointing": cluster.hosts.nodes[:1]})
    copy = local_copy(cluster)
    assert_nothing_lost(copy, cluster.promised)
    assert_as_on_one_machine(copy, finished_home)
    kept = [path.name for path in cluster.workspace.home.root.iterdir()]
    assert not (cluster.workspace.home.root / "tables").exists(), kept


def test_two_iterations_on_three_machines_of_which_one_dies_in_each_stage(cluster: Cluster, finished_home: Finished) -> None:
    one, two = ([node] for node in cluster.hosts.nodes)
    kills = {
        "seed_demonstrations": one,
        "sft_model": one,
        "rl_forms": one,
        "rl_pointing": two,
        "merged_policy": two,
        "evaluation": one,
        "annotations": two,
        "rollouts": one,
    }
    cluster.run(2, kills)
    copy = local_copy(cluster)
    assert_nothing_lost(copy, cluster.promised)
    assert_as_on_one_machine(copy, finished_home)
    assert len(copy.sql("select distinct iteration from routes")) == 2


STAGE, SANDBOX = "stage", "sandbox"
"""Resources of Ray's nodes: those with the first take stages, those with the second play episodes."""
LOST = {
    STAGE: ("seed_policy", "ct_model", "sft_model", "rl_pointing", "rollouts", "annotations"),
    SANDBOX: ("seed_demonstrations", "rl_forms", "merged_policy", "evaluation"),
}
"""In which stages a node with each resource is killed."""
QUICK = ("seed_policy", "seed_demonstrations")
"""Stages that are over before they are seen half done: a node is killed as soon as they work."""
EPISODES = "ray::EpisodeActor"
"""How the process of an episode worker begins its command."""


@dataclass
class RayCluster(Machines):
    """A head, a node on which stages are jobs, and two on which they play their episodes."""

    profile = "smoke"
    ray: RayHosts = field(kw_only=True)
    jobs: dict[str, str] = field(default_factory=dict)
    """Of the stages that were hit, the job that worked then."""

    @property
    def changes(self) -> Sequence[str]:
        runner = {"kind": "ray", "address": self.ray.page, "cpus": 1, f"resources.{STAGE}": 1}
        episodes = {"address": "auto", "cpus": 1, f"resources.{SANDBOX}": 1}
        settings = {
            "max_parallel": 1,  # each node plays the episodes of one stage at a time
            "sandbox.num_sessions": 2,
            **{f"runner.{name}": value for name, value in runner.items()},
            **{f"sandbox.ray.{name}": value for name, value in episodes.items()},
        }
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def start(self, node: Host) -> None:
        self.ray.start(node)

    def acknowledged(self) -> set[str]:
        return acknowledged(self.workspace)

    def has_work(self, node: Host) -> bool:
        return node is self.ray.others[0] or works_on(node, EPISODES)

    def kill(self, stage: str, node: Host) -> None:
        (folder,) = self.workspace.home.work.glob(f"*/{stage}")
        self.jobs[stage] = (folder / JOB).read_text()
        super().kill(stage, node)

    def ready(self, num_iterations: int) -> set[str]:
        folders = [self.workspace.home.work / name / stage for name in iterations(num_iterations) for stage in QUICK]
        quick = [folder for folder in folders if (folder / JOB).exists() and not (folder / RESULT).exists()]
        return super().ready(num_iterations) | {each.name for each in quick if works_on(self.ray.others[0], str(each))}


def works_on(host: Host, word: str) -> bool:
    """Whether a process of the host has a word of its command that begins so."""
    for pid in host.pids():
        with contextlib.suppress(psutil.Error):
            if any(part.startswith(word) for part in psutil.Process(pid).cmdline()):
                return True
    return False


@pytest.fixture
def ray_cluster(new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    workspace = new_workspace()
    monkeypatch.setenv("TMPDIR", str(workspace.base / "tmp"))
    with ray_hosts(3, job_server=True, resources=({STAGE: 1}, {SANDBOX: 1}, {SANDBOX: 1})) as ray, ray.head.entered():
        yield RayCluster(workspace, ray=ray)


@pytest.mark.timeout(5400)  # that a node is lost Ray says after 20 s, and all that its stage loads is loaded again
@pytest.mark.parametrize("resource", [STAGE, SANDBOX])
def test_an_iteration_on_ray_survives_the_loss_of_a_node_in_each_stage(
    resource: str, ray_cluster: RayCluster, finished_home: Finished
) -> None:
    """Of the node of a stage's job, which is started again; or of one that plays its episodes, without which the job goes on."""
    own, *others = ray_cluster.ray.others
    ray_cluster.run(1, dict.fromkeys(LOST[resource], [own] if resource == STAGE else others))
    workspace = ray_cluster.workspace
    print(ray_cluster.killed)
    assert_nothing_lost(workspace, ray_cluster.promised)
    assert_same_rows(finished_home.warehouse, workspace.warehouse)
    assert_as_many_episodes(workspace, finished_home)
    assert workspace.sql("select episode_id, stage, error from episodes where outcome = 'crashed'") == []
    for stage, job in ray_cluster.jobs.items():
        (last,) = workspace.home.work.glob(f"*/{stage}/{JOB}")
        assert (last.read_text() == job) is (resource == SANDBOX), stage
    if resource == SANDBOX:
        assert workspace.sql("select count(*) from episodes where num_retries > 0") > [(0,)]
    deadline = time.monotonic() + GONE_S
    while left := [node.address for node in ray_cluster.ray.others if works_on(node, EPISODES)]:
        assert time.monotonic() < deadline, f"episode workers are left on {left}"
        time.sleep(POLL_S)
