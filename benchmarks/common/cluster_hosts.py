"""The machines of the profile `cluster-smoke`, as network namespaces of this one (hosts.py), which share its processors. The head has the
tables in an object store, and runs the command with one training process; the first node has sandboxes and the other training process; the
second sandboxes and the policy server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assets.seed_data.vocabulary import words
from benchmarks.common.hosts import Host, Hosts
from benchmarks.common.object_store import BUCKET, ROOT, an_object_store
from models.checkpoints.checkpoint import save
from models.families.seed_policy import seed_policy
from pipelines import profiles

PROFILE = "cluster-smoke"
TOKENS = {"FLYWHEEL_SANDBOX_TOKEN": "token-of-the-sandboxes-0123", "FLYWHEEL_POLICY_TOKEN": "token-of-the-policy-0123"}
CLI = (sys.executable, "-m", "pipelines.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHosts:
    """Below `base` lie `home`, which is the head's, and a home of each node, named by its address. `environment`: what commands on any of
    the hosts need, and `store` of it: to read the tables."""

    base: Path
    head: Host
    nodes: tuple[Host, Host]
    store: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        return {**TOKENS, **self.store, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    @property
    def settings(self) -> list[str]:
        """Options of `flywheel run`."""
        changes = {"engine.http.exchange": self.base / "exchange", "training.launch": self.head.launch}
        return [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]

    def start(self, node: Host, inherited: Mapping[str, str]) -> None:
        """The services of a node, as its service manager would."""
        log, env = self.base / f"{node.address}.log", {**inherited, **self.environment, "FLYWHEEL_HOME": str(self.base / node.address)}
        sandbox = ["sandbox", "serve", "--host", node.address, "--port", "8421", "--size", "6", "--oracles"]
        node.start([*CLI, *sandbox], env=env, cwd=ROOT, output=log)
        if node is self.nodes[1]:
            roots = ["--weights-root", self.base / "exchange", "--weights-root", self.base / "home"]
            policy = ["policy", "serve", self.base / "start", "--host", node.address, "--port", "8431", *roots]
            node.start([*CLI, *policy], env=env, cwd=ROOT, output=log)


@contextmanager
def cluster_hosts(base: Path) -> Iterator[ClusterHosts]:
    """The hosts, with the store and the policy to begin with; services of nodes are not started yet. Within the block this thread is on
    the head."""
    with Hosts(3) as (head, one, two), head.entered(), an_object_store(base / "store.log", head.address) as store:
        (base / "exchange").mkdir(mode=0o755)
        profile = profiles.load(PROFILE)
        model, tokenizer = seed_policy(words(*profile.seed_data.curricula), profile.seed)
        save(base / "start", model, tokenizer, stage="start", iteration="0000", config={})
        place = {"FLYWHEEL_STORE": f"s3://{BUCKET}/home"}
        yield ClusterHosts(base=base, head=head, nodes=(one, two), store=store.environment | place)
