"""Training over two hosts that really are two (network namespaces): the same losses as on one, `kill -9` of either host, a link that goes
down between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from models.checkpoints.checkpoint import read_card
from models.supervised.run import train_supervised
from models.training.hosts import SSH, TrainingHosts
from models.training.launcher import Launch, shares
from models.training.metrics import read_metrics
from tests.models import test_deepspeed as supervised
from tests.models import test_rl_processes as rl
from warehouse.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
GONE_S = 60.0
needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")

PROGRAM = """
import sys
from pathlib import Path
from tests.models import test_training_hosts
test_training_hosts.main(*sys.argv[1:])
"""


def training_hosts(*hosts: Host, timeout_s: float = 600.0) -> TrainingHosts:
    return TrainingHosts(hosts=tuple(host.address for host in hosts), launch=hosts[0].launch, timeout_s=timeout_s)


def main(what: str, init: str, folder: str, hosts: str, settings: str) -> None:
    """What the head runs."""
    where, changes = TrainingHosts.model_validate_json(hosts), json.loads(settings)
    if what == "rl":
        run = rl.replace(rl.a_run(Path(init), Path(folder), 2, **changes), hosts=where)
        rl.train(run, rl.walking())
    else:
        config = supervised.CONFIG.model_copy(update={"steps": 40, "num_processes": 2, **changes})
        output = Path(folder) / "out"
        train_supervised(config, supervised.samples(), init=Path(init), output=output, stage="sft_model", iteration="0001", hosts=where)


SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
ALIVE_S = 30.0
"""After which ssh's ServerAliveInterval gives a host up."""


def hosts_by_ssh(head: Host, other: Host, folder: Path) -> TrainingHosts:
    """With the default `launch`, a server on the other host, and keys of this trial's own."""
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd asks for it
    (folder / "known").write_text(f"{other.address} {(folder / 'host.pub').read_text()}")
    server = {
        "ListenAddress": other.address,
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
    }
    client = {"IdentityFile": folder / "user", "UserKnownHostsFile": folder / "known", "IdentitiesOnly": "yes"}
    (folder / "server.conf").write_text("".join(f"{name} {value}\n" for name, value in server.items()))
    (folder / "client.conf").write_text("".join(f"{name} {value}\n" for name, value in client.items()))
    other.start([SSHD, "-D", "-e", "-f", folder / "server.conf"], output=folder / "log.txt")
    launch = SSH.replace("ssh", f"ssh -F {folder / 'client.conf'}", 1)
    hosts = TrainingHosts(hosts=(head.address, other.address), launch=launch)
    while head.run(hosts.command_on(other.address, "true"), check=False).returncode:
        time.sleep(0.1)
    return hosts


@pytest.fixture
def two() -> Iterator[list[Host]]:
    with Hosts(2) as hosts:
        yield hosts


def started(head: Host, hosts: TrainingHosts, what: str, init: Path, folder: Path, settings: str = "{}") -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", PROGRAM, what, str(init), str(folder), hosts.model_dump_json(), settings]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_IFNAME")}  # of other tests' runs
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return head.start(command, env=environment, cwd=ROOT, output=folder / "log.txt")


def ended(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Its output, after it has ended well."""
    assert process.wait() == 0, (folder / "log.txt").read_text()[-4000:]
    return (folder / "log.txt").read_text()


def wait_until(is_time: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    while not is_time() and process.poll() is None:
        time.sleep(0.02)  # the test's timeout says when that is too long
    assert process.poll() is None, (folder / "log.txt").read_text()[-4000:]


def nothing_runs_on(host: Host) -> bool:
    deadline = time.monotonic() + GONE_S
    while host.pids() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not host.pids()


def has_steps(folder: Path, num: int) -> Callable[[], bool]:
    return lambda: len(read_metrics(folder / "out.run")) >= num


def has_rounds(folder: Path, num: int) -> Callable[[], bool]:
    return lambda: bool(list(folder.glob(f"run/*/state/round-000{num}")))


def test_processes_are_shared_out_evenly() -> None:
    assert shares(5, ["a", "b", "c"]) == {"a": 2, "b": 2, "c": 1}
    assert shares(1, ["a", "b"]) == {"a": 1}


def test_hosts_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="one address of its own"):
        TrainingHosts(hosts=("10.0.0.1", "10.0.0.1"))
    with pytest.raises(ValidationError, match="as a word of its own"):
        TrainingHosts(launch="ssh {host} sh -c {command}; true")
    with pytest.raises(ConfigError, match=r"none of training.hosts \(192\.0\.2\.1\) is an address of this machine"):
        Launch("x", [], tmp_path, num_processes=2, hosts=TrainingHosts(hosts=("192.0.2.1",)))
    assert TrainingHosts(launch="srun -w {host} sh -c {command}").command_on("n1", "a b") == ["srun", "-w", "n1", "sh", "-c", "a b"]


@needs_hosts
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["null", "2", "3"])
def test_supervised_training_over_two_hosts_learns_what_one_does_and_survives_them(
    stage: str, seed_checkpoint: Path, tmp_path: Path, two: list[Host]
) -> None:
    head, other = two
    settings = f'{{"deepspeed_stage": {stage}}}'
    alone, whole, cut = (tmp_path / name for name in ("alone", "whole", "cut"))
    hosts = training_hosts(head, other)
    config = supervised.CONFIG.model_copy(update={"steps": 40})
    train_supervised(config, supervised.samples(), init=seed_checkpoint, output=alone / "out", stage="sft_model", iteration="0001")
    ended(started(head, hosts, "sft", seed_checkpoint, whole, settings), whole)
    losses = [[point.metrics["loss"] for point in read_metrics(path / "out.run")] for path in (alone, whole)]
    assert losses[1] == pytest.approx(losses[0], abs=supervised.TOLERANCE, rel=0)

    process = started(head, hosts, "sft", seed_checkpoint, cut, settings)
    wait_until(has_steps(cut, 13), process, cut)
    assert any("models.supervised.process" in psutil.Process(pid).cmdline() for pid in other.pids())
    other.kill()
    assert process.wait() == 1
    assert f"ProcessLost: training host {other.address} ended with status -9" in (cut / "log.txt").read_text()
    assert nothing_runs_on(head) and nothing_runs_on(other)

    process = started(head, hosts, "sft", seed_checkpoint, cut, settings)
    wait_until(has_steps(cut, 28), process, cut)
    head.kill()  # whoever started it is gone: the other host's processes end by themselves
    assert nothing_runs_on(other)
    ended(started(head, hosts, "sft", seed_checkpoint, cut, settings), cut)
    resumed = read_card(cut / "out")
    assert resumed.metrics["resumed_from_step"] >= 25
    assert resumed.checkpoint_id == read_card(whole / "out").checkpoint_id, "to the bit"
    assert read_metrics(cut / "out.run") == read_metrics(whole / "out.run"), "every step is reported once"


@needs_hosts
@pytest.mark.long
@pytest.mark.ci
@pytest.mark.timeout(300)
def test_two_hosts_learn_together_what_one_does(seed_checkpoint: Path, tmp_path: Path, two: list[Host]) -> None:
    """The shortest of them, for continuous integration."""
    changes: dict[str, Any] = {"steps": 6, "save_every": 99}
    alone = supervised.CONFIG.model_copy(update=changes)
    train_supervised(alone, supervised.samples(), init=seed_checkpoint, output=tmp_path / "out", stage="sft_model", iteration="0001")
    ended(started(two[0], training_hosts(*two), "sft", seed_checkpoint, tmp_path / "two", json.dumps(changes)), tmp_path / "two")
    losses = [[point.metrics["loss"] for point in read_metrics(path / "out.run")] for path in (tmp_path, tmp_path / "two")]
    assert len(losses[0]) == 6 and losses[1] == pytest.approx(losses[0], abs=supervised.TOLERANCE, rel=0)


@needs_hosts
@pytest.mark.skipif(not Path(SSHD).exists(), reason="needs openssh-server")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_ssh_starts_the_processes_of_another_host_and_gives_up_one_that_is_cut_off(
    seed_checkpoint: Path, tmp_path: Path, two: list[Host]
) -> None:
    head, other = two
    hosts, folder = hosts_by_ssh(head, other, tmp_path / "ssh"), tmp_path / "cut"
    process = started(head, hosts, "sft", seed_checkpoint, folder)
    wait_until(has_steps(folder, 13), process, folder)
    other.cut()
    was_cut = time.monotonic()
    assert process.wait() == 1
    assert time.monotonic() - was_cut < 3 * ALIVE_S < hosts.timeout_s
    assert f"ProcessLost: training host {other.address} ended" in (folder / "log.txt").read_text()
    other.restore()
    assert nothing_runs_on(head)
    ended(started(head, hosts, "sft", seed_checkpoint, folder), folder)
    assert read_card(folder / "out").metrics["resumed_from_step"] >= 10
    assert [point.step for point in read_metrics(folder / "out.run")] == list(range(1, 41)), "every step is reported once"


@needs_hosts
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "what, settings", [("rl", '{"zero_stage": 3}'), ("sft", '{"deepspeed_stage": null}'), ("sft", '{"deepspeed_stage": 2}')]
)
def test_a_link_that_goes_down_ends_the_run_which_resumes(
    what: str, settings: str, seed_checkpoint: Path, tmp_path: Path, two: list[Host]
) -> None:
    head, other = two
    hosts, cut = training_hosts(head, other, timeout_s=20.0), tmp_path / "cut"
    process = started(head, hosts, what, seed_checkpoint, cut, settings)
    wait_until(has_rounds(cut, 1) if what == "rl" else has_steps(cut, 13), process, cut)
    other.cut()
    was_cut = time.monotonic()
    assert process.wait() == 1
    assert time.monotonic() - was_cut < 120
    said = (cut / "log.txt").read_text()
    assert "ProcessLost: " in said and "start the run again" in said
    other.restore()
    assert nothing_runs_on(head) and nothing_runs_on(other)
    ended(started(head, hosts, what, seed_checkpoint, cut, settings), cut)
    card = read_card(cut / "out")
    if what == "rl":
        assert card.stage == "rl_pointing"
    else:
        assert card.metrics["resumed_from_step"] >= 10
        assert [point.step for point in read_metrics(cut / "out.run")] == list(range(1, 41)), "every step is reported once"


@needs_hosts
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")  # of DeepSpeed's calls
@pytest.mark.parametrize("stage", [0, 3])
def test_reinforcement_learning_over_two_hosts_learns_what_one_does_and_survives_them(
    stage: int, seed_checkpoint: Path, tmp_path: Path, two: list[Host]
) -> None:
    head, other = two
    hosts, folder, settings = training_hosts(head, other), tmp_path / "cut", f'{{"zero_stage": {stage}}}'
    process = started(head, hosts, "rl", seed_checkpoint, folder, settings)
    wait_until(has_rounds(folder, 1), process, folder)
    other.kill()
    assert process.wait() == 1
    assert f"ProcessLost: training host {other.address} ended with status -9" in (folder / "log.txt").read_text()
    assert nothing_runs_on(head)

    process = started(head, hosts, "rl", seed_checkpoint, folder, settings)
    wait_until(has_rounds(folder, 2), process, folder)
    head.kill()
    assert nothing_runs_on(other)
    ended(started(head, hosts, "rl", seed_checkpoint, folder, settings), folder)

    run = rl.a_run(seed_checkpoint, folder, 1, zero_stage=stage)
    resumed = rl.train(run, rl.Refusing())
    two_again = rl.replace(run, config=run.config.model_copy(update={"num_processes": 2}))
    again = rl.learned_again(resumed, two_again, tmp_path / "again")
    assert rl.train(again, rl.Refusing()).card.checkpoint_id == resumed.card.checkpoint_id, (
        "to the bit what two processes of one host learn"
    )
    alone = rl.learned_again(resumed, run, tmp_path / "alone")
    rl.train(alone, rl.Refusing())
    rms, furthest = rl.difference(run.output, alone.output)
    assert rms < rl.TOLERANCE_RMS and furthest < rl.TOLERANCE_MAX
