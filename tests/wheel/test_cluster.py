"""An iteration on three machines, played as network namespaces (benchmarks/common/hosts.py), by the profile `cluster-smoke`: the head has
Dagster on Postgres, Prefect, the tables in an object store and one training process; one node sandboxes and the other training process; the
last sandboxes and the policy server. Nodes are killed whole while stages work; what a person does then is to start their services again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from benchmarks.common.cluster_hosts import PROFILE, ClusterHosts, cluster_hosts
from benchmarks.common.hosts import Host, can_make_hosts
from benchmarks.common.object_store import BUCKET
from benchmarks.common.postgres import a_postgres, new_database
from pipelines.orchestration import progress
from pipelines.orchestration.instance import DRIVER
from tests.wheel.conftest import Turned, Wheel
from tests.wheel.repeatable import assert_same_rows
from tests.wheel.test_faults import assert_nothing_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")]

MAX_COMMANDS = 8
POLL_S = 0.1
BEFORE = ("samples encoded",)
"""Units of progress of what a stage does on the head, before a node takes part."""
AWAY_S = 4.0
"""How long a killed node is gone."""


@dataclass
class Cluster:
    """Three hosts and a home on the first. `killed`: (stage, node) of each kill."""

    wheel: Wheel
    hosts: ClusterHosts
    killed: list[tuple[str, str]] = field(default_factory=list)

    def start(self, node: Host) -> None:
        """The services of a node, as its service manager would."""
        self.hosts.start(node, self.wheel.environment)

    def run(self, num_iterations: int, kills: dict[str, int]) -> None:
        """Give the command again and again, as a person would; the first time that a stage of `kills` has done a part of its work, its node
        is killed."""
        output = self.wheel.base / "command.log"
        for _ in range(MAX_COMMANDS):
            with output.open("a") as log:
                arguments = ["run", "--iterations", str(num_iterations), "--profile", PROFILE, *self.hosts.settings]
                command = self.wheel.start("-m", "pipelines.cli", *arguments, stdout=log)
            while command.poll() is None:
                for stage in kills.keys() & self._half_done(num_iterations):
                    self._kill(stage, kills.pop(stage))
                time.sleep(POLL_S)
            if command.returncode == 0:
                assert not kills, f"{kills} never met their stages"
                return
        logs = [output, *self.wheel.base.glob("10.*.log"), *self.wheel.home.work.glob("*/*.log"), *self.wheel.home.work.glob("*.log")]
        pytest.fail("\n".join([str(self.killed), *(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs)]))

    def _kill(self, stage: str, number: int) -> None:
        node = self.hosts.nodes[number]
        node.kill()
        self.killed.append((stage, node.address))
        time.sleep(AWAY_S)
        self.start(node)

    def _half_done(self, num_iterations: int) -> set[str]:
        """Stages that have done a part of what they do: episodes, steps or rounds."""
        names = ["0000", *(f"{number:04d}" for number in range(1, num_iterations + 1))]
        found = [snapshot for name in names for snapshot in progress.working(self.wheel.home, name)]
        return {each.stage for each in found if each.unit not in BEFORE and 0 < each.done < each.total}


@pytest.fixture
def cluster(new_wheel: Callable[..., Wheel]) -> Iterator[Cluster]:
    wheel = new_wheel()
    with cluster_hosts(wheel.base) as hosts, a_postgres(is_durable=False, listen=hosts.head.address) as socket:
        dagster = new_database(socket, "dagster", listen=hosts.head.address).replace("postgresql+psycopg", DRIVER, 1)
        wheel.settings.update(hosts.environment, FLYWHEEL_POSTGRES_URL=dagster)
        made = Cluster(wheel, hosts)
        for node in hosts.nodes:
            made.start(node)
        yield made


def local_copy(cluster: Cluster) -> Wheel:
    """The tables and checkpoints of the store, on a disk."""
    base = cluster.wheel.base / "copy"
    base.mkdir()
    copied = cluster.wheel.flywheel("store", "copy", f"s3://{BUCKET}/home", str(base / "home"), timeout_s=600)
    assert copied.returncode == 0, copied.stderr
    return Wheel(base)


def assert_as_on_one_machine(copy: Wheel, turned_home: Turned) -> None:
    """All but SFT, of which a second process has its share: there the seed's rows and CT's checkpoint, to the bit."""
    assert_same_rows(turned_home.warehouse, copy.warehouse, but=("sft_model",))


@pytest.mark.ci
def test_an_iteration_on_three_machines_survives_the_loss_of_one(cluster: Cluster, turned_home: Turned) -> None:
    cluster.run(1, {"rl_pointing": 0})
    copy = local_copy(cluster)
    assert_nothing_lost(copy, set())
    assert_as_on_one_machine(copy, turned_home)
    kept = [path.name for path in cluster.wheel.home.root.iterdir()]
    assert not (cluster.wheel.home.root / "tables").exists(), kept


def test_two_iterations_on_three_machines_of_which_one_dies_in_each_stage(cluster: Cluster, turned_home: Turned) -> None:
    kills = {
        "seed_demonstrations": 0,
        "sft_model": 0,
        "rl_forms": 0,
        "rl_pointing": 1,
        "merged_policy": 1,
        "evaluation": 0,
        "annotations": 1,
        "rollouts": 0,
    }
    cluster.run(2, kills)
    copy = local_copy(cluster)
    assert_nothing_lost(copy, set())
    assert_as_on_one_machine(copy, turned_home)
    assert len(copy.sql("select distinct iteration from routes")) == 2
