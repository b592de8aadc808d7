"""A home that an iteration was run on by several machines: the profile `cluster-smoke` on three hosts, network namespaces of this machine
(benchmarks/common/hosts.py), which share its processors. The first has Dagster, the tables in an object store and one training process; the
second sandboxes and the other training process; the third sandboxes and the policy server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from assets.seed_data.vocabulary import words
from benchmarks.common.hosts import Hosts
from benchmarks.common.object_store import BUCKET, ROOT, an_object_store
from models.checkpoints.checkpoint import save
from models.families.seed_policy import seed_policy
from pipelines import profiles
from warehouse.core.home import Home

PROFILE = "cluster-smoke"
TOKENS = {"FLYWHEEL_SANDBOX_TOKEN": "token-of-the-sandboxes-0123", "FLYWHEEL_POLICY_TOKEN": "token-of-the-policy-0123"}
CLI = (sys.executable, "-m", "pipelines.cli")


@contextlib.contextmanager
def a_cluster_home() -> Iterator[Home]:
    """The home, on the first host, after one iteration; its tables can be read within the block. Raises CalledProcessError where the
    iteration failed, with the end of what it said."""
    with tempfile.TemporaryDirectory(prefix="flywheel-cluster-") as folder, Hosts(3) as (head, *nodes), head.entered():
        base = Path(folder)
        base.chmod(0o755)  # browsers run as another user when we are root
        for name in ("tmp", "exchange"):
            (base / name).mkdir(mode=0o755)
        model, tokenizer = seed_policy(words(*profiles.load(PROFILE).seed_data.curricula), profiles.load(PROFILE).seed)
        save(base / "start", model, tokenizer, stage="start", iteration="0000", config={})
        enter = base / "enter"
        enter.write_text(f'#!/bin/sh\nexec nsenter --net=/run/netns/{head.name.rpartition("-")[0]}-${{1##*.}} sh -c "$2"\n')
        enter.chmod(0o755)
        with an_object_store(base / "store.log") as store:
            places = {"TMPDIR": str(base / "tmp"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLYWHEEL_STORE": f"s3://{BUCKET}/home"}
            env = {**os.environ, **TOKENS, **store.environment, **places, "FLYWHEEL_HOME": str(base / "home")}
            for node in nodes:
                own = env | {"FLYWHEEL_HOME": str(base / node.address)}
                sandboxes = ["sandbox", "serve", "--host", node.address, "--port", "8421", "--size", "6", "--oracles"]
                node.start([*CLI, *sandboxes], env=own, cwd=ROOT, output=base / f"{node.address}.log")
            roots = ["--weights-root", base / "exchange", "--weights-root", base / "home"]
            policy = ["policy", "serve", base / "start", "--host", node.address, "--port", "8431", *roots]
            node.start([*CLI, *policy], env=own, cwd=ROOT, output=base / f"{node.address}.log")
            sets = [f"engine.http.exchange={base / 'exchange'}", f"training.launch={enter} {{host}} {{command}}"]
            command = [*CLI, "run", "--iterations", "1", "--profile", PROFILE, "--set", sets[0], "--set", sets[1]]
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, command, done.stdout[-4000:], done.stderr[-4000:])
            with _environment(store.environment | {"FLYWHEEL_STORE": places["FLYWHEEL_STORE"]}):
                yield Home(base / "home")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
