"""More samples than fit one part: stored once each, counted, told apart from what stands, and all or none of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.homes import copied
from tests.warehouse.conftest import Make
from warehouse.core.errors import SchemaMismatch
from warehouse.core.home import Home
from warehouse.core.identity import content_id, long_list_id
from warehouse.routing import samples
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.routed_samples import Stored, follow_routes, store_routed_samples
from warehouse.routing.samples import PART_ROWS
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).parents[2]
NUM_EPISODES, NUM_STEPS = 60, 100
NUM = NUM_EPISODES * NUM_STEPS
ACTED = {"iteration": "0001", "stage": "rollouts"}
ROUTED = {"iteration": "0001", "stage": "routing"}


def step(episode: int, index: int) -> dict[str, object]:
    return Make.step(f"ep-{episode:02d}", index, response=f"Action click [{episode}] [{index}]", messages=Make.messages()[:1])


def play(warehouse: Warehouse, stage: str = "rollouts") -> None:
    episodes = [Make.episode(f"ep-{number:02d}") for number in range(NUM_EPISODES)]
    steps = [step(number, index) for number in range(NUM_EPISODES) for index in range(NUM_STEPS)]
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage=stage)
    warehouse.replace_partition("steps", steps, iteration="0001", stage=stage)


def send(warehouse: Warehouse, route: str, but: dict[int, str] | None = None) -> None:
    """All episodes to one place, `but` some."""
    reasons = {"sft": "V=1: verifier", "ct": "V=0: verifier", "withheld": "leak 0 < 1"}
    places = {number: (but or {}).get(number, route) for number in range(NUM_EPISODES)}
    rows = [{"episode_id": f"ep-{number:02d}", "route": place, "reason": reasons[place]} for number, place in places.items()]
    warehouse.replace_partition("routes", rows, **ROUTED)


def stored_ids(warehouse: Warehouse, table: str, *, withdrawn: bool = False) -> list[str]:
    rows = warehouse.read(table, **ROUTED)
    return sorted(rows.filter(pa.compute.equal(rows["withdrawn"], withdrawn))["sample_id"].to_pylist())


def reported(stored: Stored) -> tuple[int, int, bool]:
    return stored.num_joined, stored.num_left, stored.is_written


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """What `played` is copied from."""
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("stored")))
    play(warehouse)
    return warehouse


@pytest.fixture
def played(stored: Warehouse, tmp_path: Path) -> Warehouse:
    return copied(stored, tmp_path / "played")


@pytest.mark.usefixtures("tables_place")
def test_each_is_stored_once_and_a_second_time_nothing_is_written(played: Warehouse) -> None:
    assert NUM > PART_ROWS
    send(played, "sft")
    first = store_routed_samples(played, "0001")
    assert reported(first["sft_samples"]) == (NUM, 0, True) and reported(first["ct_samples"]) == (0, 0, False)
    assert first["sft_samples"].by_origin == {"rollout": NUM} and first["ct_samples"].by_origin == {}
    ids = stored_ids(played, "sft_samples")
    assert len(set(ids)) == len(ids) == NUM and first["sft_samples"].sample_ids.to_pylist() == ids
    parts = (chunk.to_pylist() for chunk in first["sft_samples"].sample_ids.chunks)
    assert long_list_id("data", parts) == content_id("data", [ids])
    assert sorted(row["step_index"] for row in played.read("sft_samples").to_pylist()) == sorted(list(range(NUM_STEPS)) * NUM_EPISODES)
    again = store_routed_samples(played, "0001")
    assert reported(again["sft_samples"]) == (0, 0, False) and again["sft_samples"].version == first["sft_samples"].version
    assert not list(played.home.scratch.glob("*.parquet"))


@pytest.mark.slow
def test_what_is_recorded_twice_is_one_sample_though_it_comes_in_another_part(played: Warehouse) -> None:
    play(played, stage="annotations")
    for route, table in (("sft", "sft_samples"), ("ct", "ct_samples")):
        send(played, route)
        stored = store_routed_samples(played, "0001")[table]
        assert reported(stored) == (NUM, 0, True) and stored.by_origin == {"rollout": NUM}
        assert len(stored_ids(played, table)) == len(stored.sample_ids) == NUM
        assert reported(store_routed_samples(played, "0001")[table]) == (0, 0, False)


@pytest.mark.usefixtures("tables_place")
def test_what_leaves_stays_withdrawn_with_its_chat_as_long_as_its_source_is_stored(played: Warehouse) -> None:
    send(played, "sft")
    store_routed_samples(played, "0001")
    before = {row["sample_id"]: row["messages"] for row in played.read("sft_samples").to_pylist()}
    send(played, "ct", but={0: "sft"})
    moved = store_routed_samples(played, "0001")
    assert reported(moved["sft_samples"]) == (0, NUM - NUM_STEPS, True) and reported(moved["ct_samples"]) == (NUM - NUM_STEPS, 0, True)
    after = played.read("sft_samples").to_pylist()
    assert {row["sample_id"]: row["messages"] for row in after} == before
    assert {row["episode_id"] for row in after if not row["withdrawn"]} == {"ep-00"}
    assert follow_routes(played, "0001", FailureMiningConfig()) is None
    followed = follow_routes(played, "0001", FailureMiningConfig(corrections=True))
    assert followed is not None and reported(followed) == (0, 0, False), "what is not a pair stays as it is"
    played.replace_partition("episodes", [Make.episode("ep-00"), Make.episode("ep-01")], **ACTED)
    send(played, "sft")
    store_routed_samples(played, "0001")
    assert {row["episode_id"] for row in played.read("sft_samples").to_pylist()} == {"ep-00", "ep-01"}
    assert {row["episode_id"] for row in played.read("ct_samples").to_pylist()} == {"ep-01"}, "of what is gone nothing is left"


def test_a_failure_half_way_leaves_what_was_there(played: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    send(played, "sft", but=dict.fromkeys(range(1, NUM_EPISODES), "withheld"))
    version = store_routed_samples(played, "0001")["sft_samples"].version
    make, last = samples._finish, f"ep-{NUM_EPISODES - 1:02d}"
    monkeypatch.setattr(
        samples,
        "_finish",
        lambda kind, messages, **row: make(kind, messages, **row) | ({"domain": None} if row["episode_id"] == last else {}),
    )
    send(played, "sft")
    with pytest.raises(SchemaMismatch, match="domain"):
        store_routed_samples(played, "0001")
    assert played.version("sft_samples") == version and len(stored_ids(played, "sft_samples")) == NUM_STEPS
    monkeypatch.undo()
    assert reported(store_routed_samples(played, "0001")["sft_samples"]) == (NUM - NUM_STEPS, 0, True)


_STORE = """
import sys
from pathlib import Path
from warehouse.core.home import Home
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.storage.tables import Warehouse
from warehouse.storage.log.writing import RowsAside
add = RowsAside.add
def add_and_wait(self, part):
    data = add(self, part)
    if data.num_rows:
        print(data.num_rows, flush=True)
        sys.stdin.read()
    return data
RowsAside.add = add_and_wait
store_routed_samples(Warehouse(Home(Path(sys.argv[1]))), "0001")
"""


@pytest.mark.usefixtures("tables_place")
@pytest.mark.slow
def test_a_kill_half_way_leaves_the_old_version_and_nothing_aside(played: Warehouse) -> None:
    send(played, "sft", but=dict.fromkeys(range(1, NUM_EPISODES), "withheld"))
    version = store_routed_samples(played, "0001")["sft_samples"].version
    send(played, "sft")
    process = subprocess.Popen(
        [sys.executable, "-c", _STORE, str(played.home.root)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and 0 < int(process.stdout.readline()) <= PART_ROWS
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    fresh = Warehouse(Home(played.home.root))
    assert fresh.version("sft_samples") == version and len(stored_ids(fresh, "sft_samples")) == NUM_STEPS
    assert not [path for path in fresh.home.scratch.rglob("*") if path.is_file()]
    assert reported(store_routed_samples(fresh, "0001")["sft_samples"]) == (NUM - NUM_STEPS, 0, True)
