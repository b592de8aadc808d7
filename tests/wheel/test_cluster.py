"""An iteration on three machines, played as network namespaces (benchmarks/common/hosts.py), by the profile `cluster-smoke`: the head has
Dagster on Postgres, Prefect, the tables in an object store and one training process; one node sandboxes and the other training process; the
last sandboxes and the policy server. Nodes are killed whole while stages work; what a person does then is to start their services again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from assets.seed_data.vocabulary import words
from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from benchmarks.common.object_store import BUCKET, an_object_store
from benchmarks.common.postgres import a_postgres, new_database
from models.checkpoints.checkpoint import save
from models.families.seed_policy import seed_policy
from pipelines import profiles
from pipelines.orchestration import progress
from pipelines.orchestration.instance import DRIVER
from tests.wheel.conftest import ROOT, Turned, Wheel
from tests.wheel.repeatable import assert_same_rows
from tests.wheel.test_faults import assert_nothing_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")]

PROFILE = "cluster-smoke"
MAX_COMMANDS = 8
POLL_S = 0.1
BEFORE = ("samples encoded",)
"""Units of progress of what a stage does on the head, before a node takes part."""
AWAY_S = 4.0
"""How long a killed node is gone."""
SERVERS = {"FLYWHEEL_SANDBOX_TOKEN": "token-of-the-sandboxes-0123", "FLYWHEEL_POLICY_TOKEN": "token-of-the-policy-0123"}


@dataclass
class Cluster:
    """Three hosts and a home on the first. `killed`: (stage, node) of each kill."""

    wheel: Wheel
    head: Host
    nodes: tuple[Host, Host]
    killed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def changes(self) -> list[str]:
        """A host is reached by its namespace, whose name ends with the last number of its address."""
        prefix = self.head.name.rpartition("-")[0]
        enter = self.wheel.base / "enter"
        enter.write_text(f'#!/bin/sh\nexec nsenter --net=/run/netns/{prefix}-${{1##*.}} sh -c "$2"\n')
        enter.chmod(0o755)
        return ["--set", f"engine.http.exchange={self.wheel.base / 'exchange'}", "--set", f"training.launch={enter} {{host}} {{command}}"]

    def start(self, node: Host) -> None:
        """The services of a node, as its service manager would."""
        flywheel = [sys.executable, "-m", "pipelines.cli"]
        log = self.wheel.base / f"{node.address}.log"
        env = self.wheel.environment | {"FLYWHEEL_HOME": str(self.wheel.base / node.address)}
        sandbox = ["sandbox", "serve", "--host", node.address, "--port", "8421", "--size", "6", "--oracles"]
        node.start([*flywheel, *sandbox], env=env, cwd=ROOT, output=log)
        if node is self.nodes[1]:
            roots = ["--weights-root", self.wheel.base / "exchange", "--weights-root", self.wheel.home.root]
            policy = ["policy", "serve", self.wheel.base / "start", "--host", node.address, "--port", "8431", *roots]
            node.start([*flywheel, *policy], env=env, cwd=ROOT, output=log)

    def run(self, num_iterations: int, kills: dict[str, int]) -> None:
        """Give the command again and again, as a person would; the first time that a stage of `kills` has done a part of its work, its node
        is killed."""
        output = self.wheel.base / "command.log"
        for _ in range(MAX_COMMANDS):
            with output.open("a") as log:
                arguments = ["run", "--iterations", str(num_iterations), "--profile", PROFILE, *self.changes]
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
        node = self.nodes[number]
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
    with Hosts(3) as (head, one, two), head.entered(), contextlib.ExitStack() as stack:
        wheel = new_wheel(**SERVERS)
        store = stack.enter_context(an_object_store(wheel.base / "store.log"))
        socket = stack.enter_context(a_postgres(is_durable=False))
        dagster = new_database(socket, "dagster").replace("postgresql+psycopg", DRIVER, 1)
        wheel.settings.update(
            store.environment,
            FLYWHEEL_STORE=f"s3://{BUCKET}/home",
            FLYWHEEL_POSTGRES_URL=dagster,
            PYTHONPATH=str(ROOT),
            OMP_NUM_THREADS="1",
        )
        (wheel.base / "exchange").mkdir()
        profile = profiles.load("smoke")
        model, tokenizer = seed_policy(words(*profile.seed_data.curricula), profile.seed)
        save(wheel.base / "start", model, tokenizer, stage="start", iteration="0000", config={})
        made = Cluster(wheel, head, (one, two))
        for node in made.nodes:
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
