"""What can be checked of a profile's Ray cluster before a run: that the extra is installed, that it takes this process, its nodes, its job
server.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from assets.settings.execution import RaySettings
from assets.settings.profile import Profile
from pipelines.cluster.connection import connected, import_ray
from pipelines.cluster.episode_cluster import fits, needs_of_node
from pipelines.cluster.stage_jobs import job_server
from warehouse.core.checks import Check
from warehouse.core.errors import FlywheelError

ANSWER_S = 5.0


def check_ray(profile: Profile) -> Check:
    """Of a profile that has sandbox.ray. Nothing is started on the cluster."""
    settings = profile.sandbox.ray
    if settings is None:
        return Check(name="ray", status="ok", found="none: sandbox.ray is not set")
    needs = needs_of_node(profile.sandbox)
    try:
        import_ray()
        if settings.address == "local":
            return Check(name="ray", status="ok", found="local: stages start it on this machine")
        if settings.address != "auto":
            host, _, port = settings.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
        with ThreadPoolExecutor(1) as apart:  # `connected` is not for the main thread
            fitting, alive = apart.submit(_nodes, settings, needs).result()
    except OSError as error:
        fix = "Start its head (`ray start --head`, docs/cluster.md), or fix sandbox.ray.address"
        return Check(name="ray", status="fail", found=f"{settings.address}: {error}", fix=fix)
    except FlywheelError as error:
        return Check(name="ray", status="fail", found=str(error), fix="docs/cluster.md says how a cluster is started and joined")
    each = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
    found = f"{settings.address}: {fitting} of {alive} nodes have what episodes need, {each} each"
    fix = "" if fitting else "Start nodes (`ray start --address`) unless an autoscaler does, or ask for less: sandbox.ray.cpus"
    return Check(name="ray", status="ok" if fitting else "warn", found=found, fix=fix)


def check_job_server(profile: Profile) -> Check:
    """Of a profile whose stages are jobs of Ray. Nothing is submitted."""
    try:
        return Check(name="runner", status="ok", found=f"{job_server(profile.runner)} takes jobs")
    except FlywheelError as error:
        fix = "Start its head (`ray start --head`, docs/cluster.md), or fix runner.address"
        return Check(name="runner", status="fail", found=str(error), fix=fix)


def _nodes(settings: RaySettings, needs: Mapping[str, float]) -> tuple[int, int]:
    """Nodes that can run episodes, and nodes."""
    with connected(settings) as ray:
        alive = [node for node in ray.nodes() if node["Alive"]]
    return sum(fits(node, needs) for node in alive), len(alive)
