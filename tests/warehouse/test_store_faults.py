"""An object store that fails as networks do: what was committed is there once, and nothing half-written is read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.object_store import Server, environment
from pipelines.cli.doctor import check_store
from tests.faulty_proxy import SLOW_S, Fault, Proxy, a_faulty_proxy
from tests.warehouse.conftest import Make
from tests.warehouse.test_concurrency import _PREAMBLE, ROOT
from warehouse.core import store as store_module
from warehouse.core.errors import ConfigError, StoreUnreachable, is_retryable
from warehouse.core.home import Home
from warehouse.core.store import Store
from warehouse.storage.remote.checkpoints import get, put
from warehouse.storage.remote.copying import to_store
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.slow
FIRST = {"iteration": "0001", "stage": "rollouts"}


@pytest.fixture
def proxy(object_store: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What lies between the homes of a test and their store."""
    with a_faulty_proxy(object_store.port) as made:
        for name, value in environment(made.address).items():
            monkeypatch.setenv(name, value)
        store_module._client_of.cache_clear()
        yield made
    store_module._client_of.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_clients() -> None:
    store_module._client_of.cache_clear()


def _ids(warehouse: Warehouse) -> list[str]:
    return sorted(warehouse.read("episodes", columns=["episode_id"]).column(0).to_pylist())


def _once(fault: Fault, method: str, part: str, times: int = 1) -> object:
    left = [times]

    def decide(asked: str, path: str) -> Fault:
        if asked == method and part in path and left[0]:
            left[0] -= 1
            return fault
        return Fault.NONE

    return decide


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW, Fault.CUT_THERE, Fault.LOST_ANSWER])
@pytest.mark.parametrize("part", ["_delta_log", ".parquet"])
def test_a_write_that_meets_a_fault_is_there_once(tmp_path: Path, proxy: Proxy, fault: Fault, part: str) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    one.append_partition("episodes", [Make.episode("a")], **FIRST)
    proxy.decide = _once(fault, "PUT", part, times=2)  # type: ignore[assignment]
    assert one.append_partition("episodes", [Make.episode("b")], **FIRST) == 2
    assert proxy.met.count(fault) == 2 or fault is Fault.SLOW
    assert _ids(one) == _ids(two) == ["a", "b"]


def test_what_takes_longer_to_send_than_an_answer_may_take_is_sent(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ANSWER_S", SLOW_S / 2)
    monkeypatch.setattr(store_module, "_PUT_AT_ONCE", 5 * 2**20)
    store, data = Store.from_env(), random.Random(2).randbytes(12 * 2**20)
    assert store is not None
    (tmp_path / "large").write_bytes(data)
    proxy.decide = lambda method, path: Fault.SLOW if method == "PUT" else Fault.NONE
    store.write("small", b"small")
    store.write("large", tmp_path / "large")
    assert proxy.met.count(Fault.SLOW) == 4, "each part was sent once"
    proxy.decide = lambda method, path: Fault.NONE
    monkeypatch.setattr(store_module, "ANSWER_S", 20)
    assert store.read("small") == b"small" and store.read("large") == data


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW, Fault.CUT_THERE, Fault.LOST_ANSWER, Fault.CUT_BACK])
def test_a_read_that_meets_a_fault_is_whole(tmp_path: Path, proxy: Proxy, fault: Fault) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    for name in "ab":
        one.append_partition("episodes", [Make.episode(name)], **FIRST)
    proxy.decide = _once(fault, "GET", "", times=4)  # type: ignore[assignment]
    assert _ids(two) == ["a", "b"]
    assert proxy.met.count(fault) == 4


def test_a_checkpoint_whose_copy_is_cut_again_and_again_arrives_whole(tmp_path: Path, proxy: Proxy, store: Store) -> None:
    source, data = tmp_path / "source", random.Random(1).randbytes(12 * 2**20)
    source.mkdir()
    (source / "model.safetensors").write_bytes(data)
    put(store, "checkpoints/x", source)
    proxy.decide = _once(Fault.CUT_BACK, "GET", "model.safetensors", times=4)  # type: ignore[assignment]
    get(store, "checkpoints/x", tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == data and proxy.met.count(Fault.CUT_BACK) == 4


def test_appends_of_two_hosts_through_random_faults_are_all_there_once(tmp_path: Path, proxy: Proxy) -> None:
    drawn = random.Random(20)
    proxy.decide = lambda method, path: drawn.choice([*Fault, Fault.NONE, Fault.NONE, Fault.NONE, Fault.NONE, Fault.NONE, Fault.NONE])
    code = """
row = verdicts(1, name)[0]
for number in range(8):
    warehouse.append_partition("verdicts", [row | {"episode_id": f"{name}-{number}"}], iteration="0001", stage="verdicts")
"""
    processes = [_start(tmp_path / name, name, code) for name in ("one", "two")]
    for process in processes:
        process.communicate(timeout=300)
    assert [process.returncode for process in processes] == [0, 0]
    third = Warehouse(Home(tmp_path / "three"))
    found = third.read("verdicts", columns=["episode_id"]).column(0).to_pylist()
    assert sorted(found) == sorted(f"{name}-{number}" for name in ("one", "two") for number in range(8))
    assert set(proxy.met) == set(Fault)


def test_a_store_whose_puts_are_not_conditional_takes_no_commit(tmp_path: Path, proxy: Proxy, store: Store) -> None:
    proxy.ignored.add("if-none-match")
    one = Warehouse(Home(tmp_path / "one"))
    with pytest.raises(ConfigError, match=r"puts an object where one is.*conditional puts"):
        one.append_partition("episodes", [Make.episode("a")], **FIRST)
    assert check_store(store).status == "fail"
    with pytest.raises(ConfigError, match="puts an object where one is"):
        next(to_store(Home(tmp_path / "disk", None), store))
    assert not [each for each in store.list("") if each.name.endswith(".json") or each.name.startswith("doctor")]
    proxy.ignored.clear()
    one.append_partition("episodes", [Make.episode("a")], **FIRST)
    assert _ids(one) == ["a"]
    asked = len(proxy.met)
    Warehouse(one.home).append_partition("episodes", [Make.episode("b")], **FIRST)
    assert len(proxy.met) - asked < 10 and _ids(one) == ["a", "b"], "it is tried once"


def test_a_store_that_is_away_is_named_and_nothing_was_committed(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TRIES_S", 1)
    monkeypatch.setattr(store_module, "SEND_S", 1)
    store_module._client_of.cache_clear()
    one = Warehouse(Home(tmp_path / "one"))
    one.append_partition("episodes", [Make.episode("a")], **FIRST)
    proxy.decide = lambda method, path: Fault.ERROR if method == "PUT" else Fault.NONE
    with pytest.raises(StoreUnreachable, match=r"could not write tables/episodes/.* in s3://.*do the same again") as caught:
        one.append_partition("episodes", [Make.episode("b")], **FIRST)
    assert is_retryable(caught.value)
    assert _ids(one) == ["a"]
    proxy.decide = lambda method, path: Fault.CUT_THERE
    with pytest.raises(StoreUnreachable, match="could not read"):
        _ids(one)
    proxy.decide = lambda method, path: Fault.NONE
    one.append_partition("episodes", [Make.episode("c")], **FIRST)
    assert _ids(one) == _ids(Warehouse(Home(tmp_path / "two"))) == ["a", "c"]


@pytest.mark.parametrize("part", [".parquet", "_delta_log"])
def test_a_writer_that_is_killed_while_it_sends_leaves_its_commit_whole_or_not_at_all(tmp_path: Path, proxy: Proxy, part: str) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    row = [Make.verdict("ep-first")]
    one.append_partition("verdicts", row, iteration="0001", stage="verdicts")
    code = 'print("ready", flush=True); sys.stdin.readline()\n'
    code += 'warehouse.append_partition("verdicts", verdicts(3, name), iteration="0001", stage="verdicts")'
    writer = _start(one.home.root, "killed", code)

    def killing(method: str, path: str) -> Fault:
        if method == "PUT" and part in path:
            os.kill(writer.pid, signal.SIGKILL)
            return Fault.LOST_ANSWER
        return Fault.NONE

    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    proxy.decide = killing
    writer.communicate("go\n", timeout=120)
    assert writer.returncode == -signal.SIGKILL
    proxy.decide = lambda method, path: Fault.NONE
    expected = 4 if part == "_delta_log" else 1
    assert two.read("verdicts").num_rows == expected
    assert Warehouse(one.home).read("verdicts").num_rows == expected
    two.append_partition("verdicts", [Make.verdict("ep-last")], iteration="0001", stage="verdicts")
    assert Warehouse(one.home).read("verdicts").num_rows == expected + 1


def _start(home: Path, name: str, code: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", _PREAMBLE + code, str(home), name], cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload,no-any-return]
