"""Locks between hosts: one has it, a dead holder's runs out, and one that was away for too long stops. Hosts are processes; time is only
how long each has waited by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warehouse.core import leases
from warehouse.core.leases import StoreLease
from warehouse.core.store import Store

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LEASE_S = 3.0
HOLDER = """
import sys, time
from warehouse.core import leases
from warehouse.core.store import Store
leases.HEARTBEAT_S, leases.GIVE_UP_S, leases.LEASE_S = 0.3, 2.0, 3.0
lease = leases.StoreLease(Store.from_env(), "run", owner=sys.argv[1])
for line in sys.stdin:
    if line.startswith("acquire"):
        print(lease.acquire(), flush=True)
    else:
        lease.release()
        print("released", flush=True)
"""


class Host:
    """A process with a lease of its own."""

    def __init__(self, owner: str) -> None:
        command = [sys.executable, "-c", HOLDER, owner]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def asked(self, word: str) -> str:
        self.say(word)
        return self.answer()


@pytest.fixture
def hosts(store: Store) -> Iterator[list[Host]]:
    made = [Host(name) for name in ("one", "two")]
    yield made
    for host in made:
        host.process.kill()
        host.process.communicate()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEARTBEAT_S", 0.3), ("GIVE_UP_S", 2.0), ("LEASE_S", LEASE_S)):
        monkeypatch.setattr(leases, name, value)


def test_of_hosts_that_ask_at_once_one_gets_it_and_the_other_once_it_is_released(hosts: list[Host]) -> None:
    for _ in range(3):
        for host in hosts:
            host.say("acquire")
        answers = [host.answer() for host in hosts]
        assert sorted(answers) == ["False", "True"]
        first, second = sorted(hosts, key=lambda host: answers[hosts.index(host)], reverse=True)
        assert first.asked("release") == "released" and second.asked("acquire") == "True"
        assert second.asked("release") == "released"


def test_a_killed_holders_lease_runs_out(hosts: list[Host], store: Store) -> None:
    one, two = hosts
    assert one.asked("acquire") == "True"
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    begun = time.monotonic()
    assert two.asked("acquire") == "True" and time.monotonic() - begun >= LEASE_S
    assert len(list(store.list("locks/run"))) <= 2, "numbers of before are deleted"


def test_a_holder_that_stood_still_stops_once_another_has_its_lock(hosts: list[Host]) -> None:
    one, two = hosts
    assert one.asked("acquire") == "True"
    one.process.send_signal(signal.SIGSTOP)
    assert two.asked("acquire") == "True"
    one.process.send_signal(signal.SIGCONT)
    assert one.process.wait(timeout=60) == 1 and one.process.stderr is not None
    said = one.process.stderr.read()
    assert "/locks/run is lost" in said and "what is finished is kept" in said


def test_the_next_process_of_the_same_home_waits_for_nothing(hosts: list[Host], store: Store, quick: None) -> None:
    one, _ = hosts
    assert one.asked("acquire") == "True"
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    begun, lease = time.monotonic(), StoreLease(store, "run", owner="one")
    assert lease.acquire() and time.monotonic() - begun < LEASE_S
    holder = lease.holder()
    assert holder is not None and "on host" in str(holder)
    lease.release()
    assert lease.holder() is None


def test_who_only_asks_sees_a_dead_holders_lease_run_out(hosts: list[Host], store: Store, quick: None) -> None:
    one, _ = hosts
    assert one.asked("acquire") == "True"
    asking = StoreLease(store, "run", owner="two")
    begun = time.monotonic()
    while time.monotonic() - begun < 1.5 * LEASE_S:
        assert asking.living_holder() is not None, "it renews its lease"
        time.sleep(0.2)
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    killed_at = time.monotonic()
    while asking.living_holder() is not None:
        time.sleep(0.1)
    assert time.monotonic() - killed_at > LEASE_S - 1 and asking.holder() is not None


def test_a_number_of_before_wins_nothing(store: Store, quick: None) -> None:
    """Whoever saw the lock long ago may put a number that was deleted meanwhile."""
    one, late = (StoreLease(store, "run", owner=name) for name in ("one", "late"))
    assert one.acquire()
    deadline = time.monotonic() + 60
    while late._newest()[0] < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not late._take(2)
    time.sleep(1.0)
    found = one.holder()
    assert found is not None and found.owner == "one"
    one.release()


def test_a_holder_that_hears_nothing_of_the_store_gives_up_before_another_may_take_it(
    store: Store, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[tuple[float, str]] = []
    lease = StoreLease(store, "run", owner="one", on_loss=lambda why: lost.append((time.monotonic(), why)))
    begun = time.monotonic()
    assert lease.acquire()
    monkeypatch.setattr(Store, "create", lambda self, name, data: time.sleep(LEASE_S) or False)
    deadline = time.monotonic() + 60
    while not lost and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "could not be renewed" in lost[0][1] and lost[0][0] - begun < LEASE_S + 2
