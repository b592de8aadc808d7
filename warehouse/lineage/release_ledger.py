"""The ledger of releases, the table `releases`: which policy is live, which was before, and what was decided on each candidate.

Reading, and the one way in which a change is written: under a lock, as one commit. What may be changed into what is releases.py's
business; a home of before there was the ledger is read from the stages `released_policy` of its table `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warehouse.core.errors import ReleasesChanged
from warehouse.core.locks import FileLock
from warehouse.core.stages import SEED_ITERATION, rank
from warehouse.storage.catalogue import VERDICT_STAGE
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TABLE = "releases"
RELEASES = "released_policy"
"""The stage that releases."""
CANDIDATES = "merged_policy"
"""The stage whose checkpoint is a candidate."""
PEOPLE = VERDICT_STAGE
"""The stage of what people decided."""
LOCKED_S = 20.0
"""How long a change waits for another one; a change takes a fraction of a second, the gate a few."""
EVIDENCE = ("compared_with", "gain", "gain_low", "gain_high", "num_pairs", "num_won", "num_lost", "p_worse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of `releases` (the catalogue has the meanings). `number` is 0 of what is read from `checkpoints`."""

    iteration: str
    stage: str
    number: int
    checkpoint_id: str
    release: str
    state: str
    live_id: str | None
    decided_by: str
    origin: str
    reason: str
    decided_at: str
    compared_with: str | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    num_pairs: int | None = None
    num_won: int | None = None
    num_lost: int | None = None
    p_worse: float | None = None

    @property
    def is_persons(self) -> bool:
        return self.origin == "human"

    @property
    def evidence(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in EVIDENCE}


@dataclass(frozen=True, slots=True)
class Ledger:
    """All entries, by iteration and then as they were written: where an older iteration releases once more, what is live now stays so."""

    entries: tuple[Entry, ...]
    newest_iteration: str
    """Of the home: the iteration that a person's change is counted to."""

    @property
    def number(self) -> int:
        """Of the last change; 0 before the first."""
        return max((entry.number for entry in self.entries), default=0)

    @property
    def live_id(self) -> str | None:
        """The policy that is live; None where none ever was."""
        return self.entries[-1].live_id if self.entries else None

    def live_until(self, iteration: str) -> str | None:
        """The policy that was live when an iteration ended, or is by now."""
        return next((entry.live_id for entry in reversed(self.entries) if entry.iteration <= iteration), None)

    def kept(self, iteration: str) -> str | None:
        """The policy that is live in an iteration if it releases nothing itself: what its candidate has to hold its own against."""
        return self._before(iteration, made_earlier=False)

    def entering(self, iteration: str) -> str | None:
        """The policy that an iteration starts from, which is never of its own making."""
        return self._before(iteration, made_earlier=True)

    def _before(self, iteration: str, *, made_earlier: bool) -> str | None:
        for entry in reversed(self.entries):
            is_own = entry.stage == RELEASES or (made_earlier and self._maker(entry.live_id) >= iteration)
            if entry.iteration < iteration or (entry.iteration == iteration and not is_own):
                return entry.live_id
        return None

    def _maker(self, checkpoint_id: str | None) -> str:
        return next((entry.release.partition("/")[0] for entry in self.entries if entry.checkpoint_id == checkpoint_id), SEED_ITERATION)

    def of(self, checkpoint_id: str) -> list[Entry]:
        """What was decided on one policy, as it was written."""
        return sorted((entry for entry in self.entries if entry.checkpoint_id == checkpoint_id), key=lambda entry: entry.number)

    def name(self, checkpoint_id: str) -> str:
        """ITERATION/STAGE of a policy that was decided on; its id of another."""
        return next((entry.release for entry in self.entries if entry.checkpoint_id == checkpoint_id), checkpoint_id)

    def with_state(self, state: str) -> list[str]:
        """Names of the policies in a state, in the order of their iterations."""
        ids = dict.fromkeys(entry.checkpoint_id for entry in self.entries)
        return [self.name(id_) for id_ in ids if self.state(id_) == state]

    def state(self, checkpoint_id: str) -> str:
        """One of the catalogue's RELEASE_STATES, or `candidate` where nothing was decided yet."""
        if checkpoint_id == self.live_id:
            return "live"
        last = self.of(checkpoint_id)
        return "candidate" if not last else "superseded" if last[-1].state == "live" else last[-1].state

    def persons_word(self, checkpoint_id: str) -> Entry | None:
        """The last thing that a person decided on a policy itself: that another took its place is none."""
        said = [entry for entry in self.of(checkpoint_id) if entry.is_persons and entry.state != "superseded"]
        return said[-1] if said else None

    def was_live(self) -> list[str]:
        """Every policy that was ever live, the latest first, each once."""
        return list(dict.fromkeys(entry.live_id for entry in reversed(self.entries) if entry.live_id is not None))

    def was_refused(self, checkpoint_id: str, other: str) -> bool:
        """Whether the gate has looked at both before and refused the first."""
        return any(entry.state == "refused" and entry.compared_with == other for entry in self.of(checkpoint_id))

    def decision(self, iteration: str, checkpoint_id: str) -> Entry | None:
        """What the stage of an iteration decided last, where it was on this candidate."""
        own = [entry for entry in self.entries if entry.iteration == iteration and entry.stage == RELEASES and entry.state != "superseded"]
        return own[-1] if own and own[-1].checkpoint_id == checkpoint_id else None


def read_ledger(warehouse: Warehouse, *, of_before: bool = True) -> Ledger:
    """The ledger as it is now; with the releases `of_before` there was one, for which `checkpoints` is read. Raises CorruptTable."""
    entries = _written(warehouse)
    files = warehouse.listed("checkpoints")[1]
    written = {entry.iteration for entry in entries if entry.stage == RELEASES}
    if of_before and not {file.iteration for file in files if file.stage == RELEASES} <= written:
        made = warehouse.read("checkpoints", columns=["iteration", "stage", "checkpoint_id", "note"]).to_pylist()
        entries += _of_before(made, written)
    ordered = sorted(entries, key=lambda entry: (entry.iteration, entry.number, entry.checkpoint_id == entry.live_id))
    newest = max((*(file.iteration for file in files), *(entry.iteration for entry in entries)), default=SEED_ITERATION)
    return Ledger(tuple(ordered), newest)


def _written(warehouse: Warehouse) -> list[Entry]:
    with connect(warehouse, tables=[TABLE], natively=True) as con:
        found = con.execute(f"from {TABLE}")
        names = [name for name, *_ in found.description or ()]
        return [Entry(**dict(zip(names, row, strict=True))) for row in found.fetchall()]


def _of_before(made: Sequence[Mapping[str, Any]], written: set[str]) -> list[Entry]:
    """Releases of iterations that wrote nothing into the ledger."""
    return [
        Entry(
            iteration=row["iteration"],
            stage=RELEASES,
            number=0,
            checkpoint_id=row["checkpoint_id"],
            release=maker(made, row["checkpoint_id"]),
            state="live",
            live_id=row["checkpoint_id"],
            decided_by="release gate",
            origin="rule",
            reason=row["note"],
            decided_at="",
        )
        for row in made
        if row["stage"] == RELEASES and row["iteration"] not in written
    ]


def maker(made: Sequence[Mapping[str, Any]], checkpoint_id: str) -> str:
    """ITERATION/STAGE that made a checkpoint, of rows of `checkpoints`: of a merge that is one of its specialists, the merge."""
    rows = [
        (row["iteration"], row["stage"] == RELEASES, row["stage"] != CANDIDATES, rank(row["stage"]))
        for row in made
        if row["checkpoint_id"] == checkpoint_id
    ]
    iteration, _, _, (_, stage) = min(rows)
    return f"{iteration}/{stage}"


@contextmanager
def changing(warehouse: Warehouse) -> Iterator[Ledger]:
    """The ledger to change, with nobody else changing it. Raises ReleasesChanged where somebody else holds the lock for long."""
    lock = FileLock(warehouse.home.locks / "releases.lock")
    if not lock.acquire(timeout_s=LOCKED_S):
        raise ReleasesChanged(
            f"process {lock.holder()} has been changing the releases of {warehouse.home.root} for {LOCKED_S:g} s: nothing was changed. "
            "`flywheel release list` shows what is live; try again when that process has ended"
        )
    try:
        yield read_ledger(warehouse)
    finally:
        lock.release()


def check_seen(ledger: Ledger, seen: int) -> None:
    """Raises ReleasesChanged where `seen`, the last change that was known when another was decided on, is not the last."""
    if ledger.number == seen:
        return
    if ledger.number < seen:
        raise ReleasesChanged(f"you saw change {seen}, but the last is {ledger.number}: is it the same home? Nothing was changed")
    last = max(ledger.entries, key=lambda entry: (entry.number, entry.checkpoint_id == entry.live_id))
    raise ReleasesChanged(
        f"the releases have changed meanwhile: {last.decided_by} made {last.release} ({last.checkpoint_id}) {last.state} "
        f"(change {last.number}, you saw {seen}): {last.reason}. Nothing else was changed; `flywheel release list` shows what is live now, "
        "decide again"
    )


def write(
    warehouse: Warehouse,
    ledger: Ledger,
    states: Mapping[str, tuple[str, str]],
    *,
    live_id: str | None,
    by: str,
    is_person: bool,
    reason: str,
    iteration: str,
    evidence: Mapping[str, Any] | None = None,
) -> int:
    """Add a change, `{checkpoint id: (release, state)}`, as one commit; returns its number. Inside `changing`. `evidence` belongs to the
    first."""
    number = ledger.number + 1
    common = {
        "number": number,
        "live_id": live_id,
        "decided_by": by,
        "origin": "human" if is_person else "rule",
        "reason": reason,
        "decided_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    names = {checkpoint_id: release for checkpoint_id, (release, _) in states.items()}
    rows = [
        {**common, **dict.fromkeys(EVIDENCE), "checkpoint_id": checkpoint_id, "release": release, "state": state}
        | ({"reason": f"{names[str(live_id)]} took its place"} if state == "superseded" else {})
        for checkpoint_id, (release, state) in states.items()
    ]
    rows[0].update(evidence or {})
    warehouse.append_partition(TABLE, rows, iteration=iteration, stage=PEOPLE if is_person else RELEASES)
    return number
