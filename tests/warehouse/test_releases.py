"""Releases: what is live, what a person may change, and that a change is whole or not there, whoever else changes or dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warehouse.judging import episode_row
from warehouse.core.errors import CheckpointError, ReleaseRefused, ReleasesChanged
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.lineage import registry
from warehouse.lineage.release_ledger import changing, read_ledger
from warehouse.lineage.releases import decide, hold, promote, releases, rollback
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

WHO = {"by": "anna", "reason": "because"}


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = Warehouse(Home(tmp_path))
    made(found, "0000", "seed_policy", "seed")
    return found


def made(warehouse: Warehouse, iteration: str, stage: str, id_: str) -> registry.Registered:
    """A checkpoint with the files that one has."""
    folder = warehouse.home.checkpoints / iteration / stage / id_
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"{}")
    registry.register(warehouse, iteration=iteration, stage=stage, checkpoint_id=id_, folder=folder)
    return registry.made_by(warehouse, iteration, stage)


def run_iteration(warehouse: Warehouse, iteration: str, id_: str, state: str = "live") -> None:
    """What the stages of an iteration leave: a merge, what was decided on it, and the row of the release."""
    candidate = made(warehouse, iteration, "merged_policy", id_)
    with changing(warehouse) as ledger:
        live_id = decide(warehouse, ledger, iteration, candidate, state, by="release gate", reason="figures")
    live = registry.live_or_seed(warehouse, live_id)
    registry.pass_on(warehouse, live, iteration=iteration, stage="released_policy", note="figures")


def states(warehouse: Warehouse) -> dict[str, str]:
    return {one.checkpoint_id: one.state for one in releases(warehouse)}


def enters(warehouse: Warehouse, iteration: str) -> str:
    return registry.entering(warehouse, iteration, f"{int(iteration) - 1:04d}").checkpoint_id


def test_what_the_gate_decides_is_what_enters_and_collects(warehouse: Warehouse) -> None:
    assert enters(warehouse, "0001") == "seed"
    with pytest.raises(CheckpointError, match="nothing is released"):
        registry.released(warehouse)
    run_iteration(warehouse, "0001", "one")
    run_iteration(warehouse, "0002", "two", "refused")
    run_iteration(warehouse, "0003", "three")
    assert states(warehouse) == {"three": "live", "two": "refused", "one": "superseded"}
    assert [enters(warehouse, f"000{n}") for n in (1, 2, 3, 4)] == ["seed", "one", "one", "three"]
    assert [registry.acting(warehouse, f"000{n}").checkpoint_id for n in (1, 2, 3)] == ["one", "one", "three"]
    assert registry.released(warehouse).checkpoint_id == "three"
    (last,) = (one.last for one in releases(warehouse) if one.checkpoint_id == "one")
    assert last is not None and last.reason == "0003/merged_policy took its place"
    with pytest.raises(CheckpointError, match="0004 has made no checkpoint"):
        enters(warehouse, "0005")


def test_a_stage_that_is_worked_again_adds_no_row_and_an_older_one_does_not_take_over(warehouse: Warehouse) -> None:
    for iteration, id_ in (("0001", "one"), ("0002", "two")):
        run_iteration(warehouse, iteration, id_)
    rows = warehouse.read("releases").num_rows
    for iteration, state in (("0002", "live"), ("0001", "live")):
        with changing(warehouse) as ledger:
            candidate = registry.made_by(warehouse, iteration, "merged_policy")
            assert decide(warehouse, ledger, iteration, candidate, state, by="release gate", reason="x") == candidate.checkpoint_id
    assert warehouse.read("releases").num_rows == rows
    again = made(warehouse, "0001", "merged_policy", "one-made-again")
    with changing(warehouse) as ledger:
        assert decide(warehouse, ledger, "0001", again, "live", by="release gate", reason="x") == "one-made-again"
    assert registry.acting(warehouse, "0001").checkpoint_id == "one-made-again" == enters(warehouse, "0002")
    assert registry.released(warehouse).checkpoint_id == "two"


def test_nothing_goes_live_without_a_persons_word_where_it_is_held(warehouse: Warehouse) -> None:
    """Also not the first: the iteration goes on with what entered it."""
    run_iteration(warehouse, "0001", "one", "held")
    assert registry.acting(warehouse, "0001").checkpoint_id == "seed" == enters(warehouse, "0002")
    change = promote(warehouse, "0001/merged_policy", **WHO)
    assert (change.before, change.state, change.live_before, change.live_id) == ("held", "live", None, "one")
    assert registry.acting(warehouse, "0001").checkpoint_id == "one" == enters(warehouse, "0002")
    assert registry.released(warehouse).checkpoint_id == "one"
    assert enters(warehouse, "0001") == "seed", "an iteration that is worked again does not start from what it made itself"


def test_a_rollback_counts_from_the_next_stage_on_and_stands(warehouse: Warehouse) -> None:
    for number, id_ in enumerate(("one", "two", "three"), start=1):
        run_iteration(warehouse, f"000{number}", id_)
    change = rollback(warehouse, **WHO)
    assert (change.release, change.live_before, change.live_id) == ("0002/merged_policy", "three", "two")
    assert registry.released(warehouse).checkpoint_id == "two" == enters(warehouse, "0004")
    assert registry.acting(warehouse, "0003").checkpoint_id == "two"
    assert states(warehouse) == {"three": "rolled_back", "two": "live", "one": "superseded"}
    assert rollback(warehouse, **WHO).live_id == "one", "not back to what was rolled back"
    with pytest.raises(ReleaseRefused, match="nothing before it can be rolled back to"):
        rollback(warehouse, **WHO)
    assert promote(warehouse, "three", by="bo", reason="it was the network").before == "rolled_back"
    assert states(warehouse) == {"three": "live", "two": "rolled_back", "one": "superseded"}
    assert rollback(warehouse, "two", **WHO).live_id == "two", "a person may name one that was rolled back"


def test_a_change_that_was_cut_off_may_be_repeated(warehouse: Warehouse) -> None:
    for number, id_ in enumerate(("one", "two", "three"), start=1):
        run_iteration(warehouse, f"000{number}", id_, "refused" if id_ == "two" else "live")
    for change in (lambda: hold(warehouse, "two", **WHO, seen=3), lambda: promote(warehouse, "two", **WHO, seen=4)):
        first, again = change(), change()
        assert (again.number, again.before, again.state) == (first.number, first.state, first.state)
    assert [rollback(warehouse, "one", **WHO, seen=5).number for _ in range(2)] == [6, 6]
    assert read_ledger(warehouse).number == 6 and registry.released(warehouse).checkpoint_id == "one"
    with pytest.raises(ReleaseRefused, match=r"since change 6 by anna.*live already"):
        promote(warehouse, "one", by="bo", reason="because")
    with pytest.raises(ReleasesChanged, match="you saw change 9, but the last is 6"):
        promote(warehouse, "two", **WHO, seen=9)


def test_what_is_refused_says_what_is_allowed_and_changes_nothing(warehouse: Warehouse) -> None:
    with pytest.raises(ReleaseRefused, match="nothing is live yet"):
        rollback(warehouse, **WHO)
    for number, id_ in enumerate(("one", "two"), start=1):
        run_iteration(warehouse, f"000{number}", id_)
    made(warehouse, "0002", "sft_model", "sft")
    made(warehouse, "0002", "orm_model", "orm")
    before = warehouse.read("releases").num_rows
    for what, error, words in (
        (lambda: promote(warehouse, "nobody", **WHO), CheckpointError, "no checkpoint nobody is registered"),
        (lambda: promote(warehouse, "0003/merged_policy", **WHO), CheckpointError, "iteration 0003 has made no checkpoint"),
        (lambda: promote(warehouse, "x/y", **WHO), CheckpointError, "names no checkpoint"),
        (lambda: promote(warehouse, "two", **WHO), ReleaseRefused, "live since change 2 by release gate.* is live already"),
        (lambda: promote(warehouse, "orm", **WHO), ReleaseRefused, "judges and does not act"),
        (lambda: promote(warehouse, "one", by=" ", reason="r"), ReleaseRefused, "needs a by"),
        (lambda: promote(warehouse, "one", by="anna", reason=""), ReleaseRefused, "needs a reason"),
        (lambda: rollback(warehouse, "sft", **WHO), ReleaseRefused, r"0002/sft_model \(sft\) never was live.*0001/merged_policy"),
        (lambda: rollback(warehouse, "two", **WHO), ReleaseRefused, "is live now"),
        (lambda: hold(warehouse, "two", **WHO), ReleaseRefused, "flywheel release rollback"),
        (lambda: hold(warehouse, "one", **WHO), ReleaseRefused, "superseded already"),
        (lambda: promote(warehouse, "one", **WHO, seen=1), ReleasesChanged, r"two\) live \(change 2, you saw 1\)"),
    ):
        with pytest.raises(error, match=words):
            what()
    (warehouse.home.checkpoints / "0001/merged_policy/one/model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is not whole"):
        rollback(warehouse, **WHO)
    assert warehouse.read("releases").num_rows == before and registry.released(warehouse).checkpoint_id == "two"


def test_a_promotion_keeps_the_figures_of_eval(warehouse: Warehouse) -> None:
    run_iteration(warehouse, "0001", "one")
    run_iteration(warehouse, "0002", "two", "refused")
    rows = [
        episode_row(f"{policy}-{seed}", purpose="evaluation", split="eval", seed=seed, policy_id=policy, outcome=outcome)
        for policy, num in (("one", 3), ("two", 5))
        for seed in range(10)
        for outcome in ("success" if seed < num else "failure",)
    ]
    bare = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in rows]
    warehouse.replace_partition("episodes", bare, iteration="0002", stage="evaluation")
    promote(warehouse, "two", **WHO)
    (last,) = (one.last for one in releases(warehouse) if one.checkpoint_id == "two")
    assert last is not None and last.compared_with == "one" and (last.num_won, last.num_lost, last.num_pairs) == (2, 0, 10)
    assert last.gain == pytest.approx(0.2) and (last.decided_by, last.reason, last.origin) == ("anna", "because", "human")


def test_a_home_of_before_the_ledger_has_the_releases_of_its_iterations(warehouse: Warehouse) -> None:
    for iteration, id_ in (("0001", "one"), ("0002", "two")):
        candidate = made(warehouse, iteration, "merged_policy", id_)
        registry.pass_on(warehouse, candidate, iteration=iteration, stage="released_policy", note="does not lose")
    assert registry.released(warehouse).checkpoint_id == "two" == enters(warehouse, "0003") and enters(warehouse, "0002") == "one"
    assert states(warehouse) == {"two": "live", "one": "superseded"} and read_ledger(warehouse).number == 0
    assert rollback(warehouse, **WHO).live_id == "one"
    run_iteration(warehouse, "0003", "three")
    assert states(warehouse) == {"three": "live", "two": "rolled_back", "one": "superseded"}


CHANGE = """
import sys
from pathlib import Path
from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home
from warehouse.lineage import releases
from warehouse.storage.tables import Warehouse
try:
    print(releases.promote(Warehouse(Home(Path(sys.argv[1]))), sys.argv[2], by=sys.argv[3], reason="at once").number)
except FlywheelError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def changer(warehouse: Warehouse, ref: str, by: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHANGE, str(warehouse.home.root), ref, by]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lock(process: subprocess.Popen[str], path: Path) -> None:
    """Until the process tries for the lock: it has the file open."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if os.readlink(link) == str(path):
                    return
            except OSError:  # closed meanwhile
                continue
        time.sleep(0.02)
    raise AssertionError(f"it did not come to the lock: {process.communicate()}")


@pytest.mark.slow
def test_of_two_promotions_at_once_one_wins_and_the_other_learns_by_whom(warehouse: Warehouse) -> None:
    for number, id_ in enumerate(("one", "two", "three"), start=1):
        run_iteration(warehouse, f"000{number}", id_, "live" if number == 1 else "refused")
    with FileLock(path := warehouse.home.locks / "releases.lock"):
        both = [changer(warehouse, ref, by) for ref, by in (("two", "anna"), ("three", "bo"))]
        for process in both:
            wait_for_lock(process, path)
    said = [process.communicate(timeout=60) for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], said
    winner = next(place for place, process in enumerate(both) if process.returncode == 0)
    name, id_ = (("anna", "two"), ("bo", "three"))[winner]
    lost = said[1 - winner][1]
    assert f"ReleasesChanged: the releases have changed meanwhile: {name} made" in lost and f"({id_}) live (change 4, you saw 3)" in lost
    assert registry.released(warehouse).checkpoint_id == id_
    assert read_ledger(warehouse).number == 4 and sorted(states(warehouse).values()) == ["live", "refused", "superseded"]


@pytest.mark.slow
def test_a_change_that_is_killed_at_any_moment_is_whole_or_not_there(warehouse: Warehouse) -> None:
    """Killed at eight moments from before the lock to after the commit. The next change needs no repair, and each is one step."""
    run_iteration(warehouse, "0001", "one")
    run_iteration(warehouse, "0002", "two")
    lock = warehouse.home.locks / "releases.lock"
    for moment in range(8):
        live, number = registry.released(warehouse).checkpoint_id, read_ledger(warehouse).number
        other = "one" if live == "two" else "two"
        with FileLock(lock):
            process = changer(warehouse, other, "anna")
            wait_for_lock(process, lock)
        time.sleep(0.02 * moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ledger = read_ledger(warehouse)
        of_change = [entry for entry in ledger.entries if entry.number == number + 1]
        assert (ledger.number, ledger.live_id, len(of_change)) in ((number, live, 0), (number + 1, other, 2)), moment
    target = "one" if registry.released(warehouse).checkpoint_id == "two" else "two"
    assert promote(warehouse, target, **WHO).live_id == target
