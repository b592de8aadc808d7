"""A home that an iteration was run on by several machines: the profile `cluster-smoke` on three hosts (cluster_hosts.py)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.cluster_hosts import CLI, PROFILE, ROOT, cluster_hosts
from benchmarks.common.stage_memory import stage_memory
from warehouse.core.home import Home


@dataclass(frozen=True)
class ClusterHome:
    """`memory`: bytes of the largest process of each (iteration, stage) on the first host (stage_memory.py)."""

    home: Home
    memory: Mapping[tuple[str, str], int]


@contextlib.contextmanager
def a_cluster_home() -> Iterator[ClusterHome]:
    """A home on the first host after one iteration; its tables can be read within the block. Raises CalledProcessError where the
    iteration failed, with the end of what it said."""
    with tempfile.TemporaryDirectory(prefix="flywheel-cluster-") as folder:
        base = Path(folder)
        base.chmod(0o755)  # browsers run as another user when we are root
        (base / "tmp").mkdir(mode=0o755)
        with cluster_hosts(base) as cluster:
            env = {**os.environ, **cluster.environment, "TMPDIR": str(base / "tmp"), "FLYWHEEL_HOME": str(base / "home")}
            for node in cluster.nodes:
                cluster.start(node, env)
            command = [*CLI, "run", "--iterations", "1", "--profile", PROFILE, *cluster.settings]
            home = Home(base / "home")
            with stage_memory(home) as memory:
                done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, command, done.stdout[-4000:], done.stderr[-4000:])
            with _environment(cluster.store):
                yield ClusterHome(home, memory)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
