"""A collection on three hosts with Ray: the head, where the stage runs, and two nodes, of which one dies or is cut off meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from assets.settings.execution import RaySettings
from benchmarks.common.hosts import can_make_hosts
from benchmarks.common.ray_nodes import RayHosts, ray_hosts
from pipelines.stages.sandboxes import PolicyService
from tests.pipelines.test_ray_collector import Drawing, acting, essence, requests

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_make_hosts(), reason="needs network namespaces: Linux, root and iproute2")]
WAIT_S = 120.0


def collect(address: str, folder: str, num: str, wait_s: str) -> None:
    """The stage, in a process on the head's host; begins once both nodes have a worker."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    settings = acting(RaySettings(address=address), num_sessions=4)
    with PolicyService(settings, Drawing(wait_s=float(wait_s)), EpisodeLog(Path(folder))) as service:
        cluster: Any = service._runner
        wait_until(lambda: len(cluster.workers) == 2, "two workers")
        for future in [service.submit(request) for request in requests(int(num))]:
            future.result(timeout=WAIT_S)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}, within {WAIT_S:g} s"
        time.sleep(0.1)


def played(folder: Path) -> list[Episode]:
    return list(EpisodeLog(folder).episodes()) if folder.exists() else []


def alone(num: int) -> dict[str, Any]:
    import asyncio

    from tests.pipelines.test_ray_collector import collected

    return essence(asyncio.run(collected(acting(None), requests(num))))


def collected_while(hosts: RayHosts, folder: Path, num: int, wait_s: float, happens: Callable[[], None]) -> str:
    """What the stage said; `happens` once some episodes are stored."""
    output = folder / "said.txt"
    stage = hosts.run("tests.pipelines.test_ray_hosts:collect", hosts.address, folder / "log", num, wait_s, output=output)
    wait_until(lambda: stage.poll() is not None or len(played(folder / "log")) >= 4, "some episodes")
    assert stage.poll() is None, output.read_text()
    happens()
    wait_until(lambda: stage.poll() is not None, "the end")
    assert stage.returncode == 0, output.read_text() + hosts.output.read_text()[-3000:]
    return output.read_text()


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_host_that_is_killed_costs_no_episode(tmp_path: Path) -> None:
    num = 16
    with ray_hosts(2) as hosts:
        said = collected_while(hosts, tmp_path, num, 0.3, hosts.others[0].kill)
    there = played(tmp_path / "log")
    assert len(there) == num and essence(there) == alone(num)
    assert all(episode.outcome is not Outcome.CRASHED for episode in there) and any(episode.num_retries for episode in there)
    assert f"{hosts.others[0].address}" in said and "run again elsewhere" in said


@pytest.mark.timeout(400)
def test_a_host_that_is_cut_off_for_30_s_costs_no_episode(tmp_path: Path) -> None:
    """The link comes back while the stage goes on: nothing is stored twice, whatever the host says of the episodes that it went on with."""
    num = 40

    def cut() -> None:
        hosts.others[0].cut()
        time.sleep(30)
        hosts.others[0].restore()

    with ray_hosts(2) as hosts:
        said = collected_while(hosts, tmp_path, num, 2.0, cut)
    there = played(tmp_path / "log")
    assert len(there) == num and essence(there) == alone(num)
    assert all(episode.outcome is not Outcome.CRASHED for episode in there) and any(episode.num_retries for episode in there)
    assert f"{hosts.others[0].address}" in said and "run again elsewhere" in said
