"""Releases: promote, hold and roll back a policy, and what the release gate decided of a candidate. Each is one change of the ledger
(release_ledger.py), which takes effect when the next stage, episode or server looks.

A person's word goes before the gate's: what a person holds or has rolled back, the gate never makes live again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.core.errors import CheckpointError, ReleaseRefused, UnknownTable
from warehouse.evaluation.choosing import outcomes_to_choose
from warehouse.evaluation.statistics import PairedComparison, compare_paired
from warehouse.lineage import registry
from warehouse.lineage.release_ledger import CANDIDATES, EVIDENCE, Entry, Ledger, changing, check_seen, maker, read_ledger, write
from warehouse.storage.tables import Warehouse

NOT_POLICIES = ("orm_model",)
"""Stages whose checkpoints do not act."""
STANDS = ("held", "rolled_back")
"""States in which a person's word keeps the gate from a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a command changed: the policy it was about, its state before and now, and which one is live."""

    number: int
    policy: registry.Registered
    release: str
    before: str
    state: str
    live_id: str | None
    live_before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A candidate as it stands. `last` is None where nothing was decided on it yet."""

    checkpoint_id: str
    release: str
    state: str
    last: Entry | None


def promote(warehouse: Warehouse, ref: str, *, by: str, reason: str, seen: int | None = None) -> Change:
    """Make a policy live, whatever the gate decided: a checkpoint id, ITERATION/STAGE. What was live is superseded.

    `seen` is the number of the last change that who decides has seen (`read_ledger(…).number`); by default the last one when it is called.
    Raises CheckpointError for an unknown or unfinished policy, ReleaseRefused for one that is live or cannot act, ReleasesChanged where
    another change came first. Then nothing was changed. The same change again, by the same person with the same reason while it is the last
    one, is done already: a command that was cut off may be repeated.
    """
    seen = _seen(warehouse, by, reason, seen)
    policy = _finished(warehouse, ref)
    live_before = read_ledger(warehouse).live_id
    evidence = evidence_between(warehouse, policy.checkpoint_id, live_before)
    with changing(warehouse) as ledger:
        if (done := _done(ledger, policy, "live", by, reason)) is not None:
            return done
        check_seen(ledger, seen)
        if ledger.live_id == policy.checkpoint_id:
            raise ReleaseRefused(f"{_said(ledger, warehouse, policy.checkpoint_id)} is live already. Nothing was changed")
        return _write(warehouse, ledger, policy, "live", by, reason, evidence)


def hold(warehouse: Warehouse, ref: str, *, by: str, reason: str, seen: int | None = None) -> Change:
    """Keep a candidate from being released until a person promotes it; iterations go on with the live release. Also one that the gate has
    not decided on yet. Raises as `promote` does, and ReleaseRefused for one that is, or was, live."""
    seen = _seen(warehouse, by, reason, seen)
    policy = _finished(warehouse, ref)
    with changing(warehouse) as ledger:
        if (done := _done(ledger, policy, "held", by, reason)) is not None:
            return done
        check_seen(ledger, seen)
        state, name = ledger.state(policy.checkpoint_id), _said(ledger, warehouse, policy.checkpoint_id)
        if state == "live":
            raise ReleaseRefused(f"{name} is live, so it cannot be held: `flywheel release rollback` takes it back. Nothing was changed")
        if state in ("held", "superseded", "rolled_back"):
            raise ReleaseRefused(f"{name} is {state} already, and the gate does not decide on it again. Nothing was changed")
        return _write(warehouse, ledger, policy, "held", by, reason, None)


def rollback(warehouse: Warehouse, ref: str | None = None, *, by: str, reason: str, seen: int | None = None) -> Change:
    """Take the live release back: `ref`, which was live before, is live again, or by default the newest that was and was not rolled back.
    Raises ReleaseRefused without one, or if `ref` never was live; else as `promote` does. Without `ref` and `seen` each call goes one
    release further back."""
    seen = _seen(warehouse, by, reason, seen)
    wanted = None if ref is None else _finished(warehouse, ref)
    with changing(warehouse) as ledger:
        if wanted is not None and (done := _done(ledger, wanted, "live", by, reason)) is not None:
            return done
        check_seen(ledger, seen)
        bad = ledger.live_id
        if bad is None:
            raise ReleaseRefused("nothing is live yet, so there is nothing to roll back. `flywheel release promote` releases a candidate")
        target = _target(warehouse, ledger, bad) if wanted is None else wanted
        name = _said(ledger, warehouse, target.checkpoint_id)
        if target.checkpoint_id == bad:
            raise ReleaseRefused(f"{name} is live now: a rollback is to one that was live before. Nothing was changed")
        if target.checkpoint_id not in ledger.was_live():
            were = ", ".join(_said(ledger, warehouse, one) for one in ledger.was_live() if one != bad) or "none"
            raise ReleaseRefused(
                f"{name} never was live, so there is no rolling back to it: those that were are {were}. "
                "`flywheel release promote` makes it live. Nothing was changed"
            )
        return _write(warehouse, ledger, target, "live", by, reason, None, taken_back=bad)


def decide(
    warehouse: Warehouse,
    ledger: Ledger,
    iteration: str,
    candidate: registry.Registered,
    state: str,
    *,
    by: str,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> str | None:
    """Record what the stage of an iteration decided on its candidate; returns the policy that is live in the iteration now. The same
    decision again adds nothing. Inside `changing`."""
    kept, id_ = ledger.kept(iteration), candidate.checkpoint_id
    live_id = id_ if state == "live" else kept
    before = ledger.decision(iteration, id_)
    if before is not None and before.state == state and before.evidence == (dict.fromkeys(EVIDENCE) | dict(evidence or {})):
        return ledger.live_until(iteration)
    states = {id_: (f"{iteration}/{candidate.stage}", state)}
    if state == "live" and kept is not None and kept != id_:
        states[kept] = (_maker(warehouse, kept), "superseded")
    write(warehouse, ledger, states, live_id=live_id, by=by, is_person=False, reason=reason, iteration=iteration, evidence=evidence)
    return live_id


def releases(warehouse: Warehouse) -> list[Release]:
    """Every policy that was decided on and every merged policy that was not, the newest first."""
    ledger = read_ledger(warehouse)
    made = warehouse.read("checkpoints", columns=["iteration", "stage", "checkpoint_id"]).to_pylist()
    ids = {entry.checkpoint_id for entry in ledger.entries} | {row["checkpoint_id"] for row in made if row["stage"] == CANDIDATES}
    names = {row["checkpoint_id"] for row in made}
    found = [
        Release(
            checkpoint_id=id_,
            release=maker(made, id_) if id_ in names else ledger.of(id_)[-1].release,
            state=ledger.state(id_),
            last=next(reversed(ledger.of(id_)), None),
        )
        for id_ in ids
    ]
    return sorted(found, key=lambda one: (one.release, one.checkpoint_id), reverse=True)


def evidence_between(warehouse: Warehouse, checkpoint_id: str, other: str | None) -> dict[str, Any] | None:
    """The paired comparison of two policies on the eval split, as columns of `releases`; None where they have no instance in common."""
    if other is None or other == checkpoint_id:
        return None
    first, second = (outcomes_to_choose(warehouse, one) for one in (checkpoint_id, other))
    return evidence(compare_paired(first, second), other) if first.keys() & second.keys() else None


def evidence(comparison: PairedComparison, other: str) -> dict[str, Any]:
    """A comparison as columns of `releases`."""
    gain = comparison.difference
    return {
        "compared_with": other,
        "gain": gain.mean,
        "gain_low": gain.interval.low,
        "gain_high": gain.interval.high,
        "num_pairs": comparison.num_pairs,
        "num_won": comparison.candidate_only,
        "num_lost": comparison.incumbent_only,
        "p_worse": comparison.p_worse,
    }


def _seen(warehouse: Warehouse, by: str, reason: str, seen: int | None) -> int:
    """The change that was last when it was decided. Raises ReleaseRefused for a change that nobody answers for."""
    for name, value, example in (("by", by, "--by anna"), ("reason", reason, "--reason 'fails at checkout since Monday'")):
        if not value.strip():
            raise ReleaseRefused(f"a change of releases needs a {name}, got {value!r}: e.g. {example}. Nothing was changed")
    return read_ledger(warehouse).number if seen is None else seen


def _finished(warehouse: Warehouse, ref: str) -> registry.Registered:
    """A policy that can act. Raises CheckpointError, ReleaseRefused."""
    try:
        found = registry.named(warehouse, ref)
    except UnknownTable as error:
        raise CheckpointError(f"{ref!r} names no checkpoint: give an id, or ITERATION/STAGE, e.g. 0003/{CANDIDATES}") from error
    if found.stage in NOT_POLICIES:
        raise ReleaseRefused(f"{ref} is of the stage {found.stage}, which judges and does not act: only policies are released")
    if not (found.folder / "config.json").is_file() or not any(found.folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{ref} ({found.checkpoint_id}) is not whole: {found.folder} lacks config.json or weights. Make it again, or restore the "
            "folder from a backup; `flywheel verify` checks them all"
        )
    return found


def _target(warehouse: Warehouse, ledger: Ledger, bad: str) -> registry.Registered:
    """What the live release is rolled back to where nothing is named."""
    for id_ in ledger.was_live():
        if id_ != bad and ledger.state(id_) != "rolled_back":
            return _finished(warehouse, id_)
    raise ReleaseRefused(
        f"{_said(ledger, warehouse, bad)} is live, and nothing before it can be rolled back to: it is the first, or the others were rolled "
        "back. `flywheel release promote` makes another live, e.g. 0000/seed_policy. Nothing was changed"
    )


def _done(ledger: Ledger, policy: registry.Registered, state: str, by: str, reason: str) -> Change | None:
    """The change, where it is the last one and was written already."""
    last = next((entry for entry in ledger.of(policy.checkpoint_id) if entry.number == ledger.number and entry.is_persons), None)
    if last is None or (last.state, last.decided_by, last.reason) != (state, by.strip(), reason.strip()):
        return None
    return Change(
        number=last.number,
        policy=policy,
        release=last.release,
        before=state,
        state=state,
        live_id=ledger.live_id,
        live_before=ledger.live_id,
    )


def _write(
    warehouse: Warehouse,
    ledger: Ledger,
    policy: registry.Registered,
    state: str,
    by: str,
    reason: str,
    evidence: Mapping[str, Any] | None,
    *,
    taken_back: str | None = None,
) -> Change:
    id_, live_before = policy.checkpoint_id, ledger.live_id
    release = _maker(warehouse, id_)
    states = {id_: (release, state)}
    if state == "live" and live_before is not None:
        states[live_before] = (_maker(warehouse, live_before), "superseded" if taken_back is None else "rolled_back")
    live_id = id_ if state == "live" else live_before
    number = write(
        warehouse,
        ledger,
        states,
        live_id=live_id,
        by=by.strip(),
        is_person=True,
        reason=reason.strip(),
        iteration=ledger.newest_iteration,
        evidence=evidence,
    )
    before = ledger.state(id_)
    return Change(number=number, policy=policy, release=release, before=before, state=state, live_id=live_id, live_before=live_before)


def _maker(warehouse: Warehouse, checkpoint_id: str) -> str:
    made = warehouse.read("checkpoints", columns=["iteration", "stage", "checkpoint_id"]).to_pylist()
    return maker(made, checkpoint_id)


def _said(ledger: Ledger, warehouse: Warehouse, checkpoint_id: str) -> str:
    """A policy by both its names, with who made it what it is."""
    last = ledger.of(checkpoint_id)
    why = f", {last[-1].state} since change {last[-1].number} by {last[-1].decided_by}" if last and last[-1].number else ""
    return f"{_maker(warehouse, checkpoint_id)} ({checkpoint_id}{why})"
