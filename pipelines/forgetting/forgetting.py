"""Forgetting: what is found of the subject (`find`), and how it goes (`forget`), step by step, each of which may be done twice.

First the journal, then tombstones, so that no dataset that is made from here on holds it, then marks on what learned from it, then content:
tables in every version, the annotation database with its pictures and recordings, files beside the tables, Dagster's history. The caller
holds the home's locks (`alone`), so nobody writes meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from agent.gateway.log import is_written
from pipelines.annotation_server.withdrawal import erase_withdrawn
from pipelines.cli.annotate.options import opened_if_there, server_of
from pipelines.cli.terminal import counted
from pipelines.forgetting import files, journal
from pipelines.forgetting.dagster_events import take_out_screens
from pipelines.forgetting.journal import Journal
from pipelines.forgetting.subjects import Given, Subject, given_by
from pipelines.orchestration.instance import check_named
from pipelines.orchestration.runs.iteration_lock import IterationLock, driver_path, lock_path
from warehouse.core.errors import IterationLocked, NotNow
from warehouse.core.home import Home
from warehouse.core.locks import LOOKED_AT_S, FileLock
from warehouse.datasets import erasing_episodes
from warehouse.datasets.withdrawal import WITHDRAWABLE, num_held, purge, withdraw, withdrawn_ids
from warehouse.lineage.descent import Descent, Start, descent
from warehouse.lineage.release_ledger import Ledger, read_ledger
from warehouse.lineage.taints import add_taints, taints
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What there is of a subject. `emptied`: rows whose content would go, by table; those of `descent.rows` are withdrawn and go whole:
    `withdrawn` counts those that are not yet, `held` those that are still there."""

    subject: Subject
    given: Given
    descent: Descent
    emptied: dict[str, int]
    withdrawn: dict[str, int]
    held: dict[str, int]
    files: list[files.Found]
    ledger: Ledger
    tainted: dict[str, str] = field(default_factory=dict)
    """Why, by id, of every checkpoint that will be tainted, whatever by."""

    @property
    def is_empty(self) -> bool:
        """It was forgotten before, or never gave anything."""
        is_in_files = any(one.is_of_it for one in self.files)
        return not (
            any(self.withdrawn.values()) or any(self.held.values()) or any(self.emptied.values()) or is_in_files or self.given.is_left
        )


@contextmanager
def alone(home: Home, subject: Subject) -> Iterator[None]:
    """No iteration and no import runs meanwhile. Raises IterationLocked."""
    locks = [driver_path(home), lock_path(home)]
    locks += [home.locks / f"import-{subject.folder}.lock"] if subject.folder is not None else []
    with ExitStack() as held:
        for path in locks:
            lock = FileLock(path) if path.name.startswith("import-") else IterationLock(home, path)
            if not lock.acquire(timeout_s=LOOKED_AT_S):
                what = "importing" if path.name.startswith("import-") else "running an iteration"
                raise IterationLocked(
                    f"process {lock.holder()} is {what} in {home.root}: nothing was forgotten. Give the command again when it has ended"
                )
            held.callback(lock.release)
        yield


def find(warehouse: Warehouse, subject: Subject) -> Plan:
    given = given_by(warehouse, subject)
    found = descent(warehouse, given.start)
    emptied = erasing_episodes.erasable(warehouse, (), forgotten=found.episodes, unsaid=given.start.judged)
    why = {one.checkpoint_id: one.because for one in found.learned}
    why |= {id_: "made from " + ", ".join(roots) for id_, roots in found.made_from.items()}
    return Plan(
        subject=subject,
        given=given,
        descent=found,
        emptied=erasing_episodes.rows_with_content(warehouse, emptied),
        withdrawn={table: num for table in WITHDRAWABLE if (num := len(found.rows[table] - withdrawn_ids(warehouse, table)))},
        held={table: num for table, ids in found.rows.items() if (num := num_held(warehouse, table, ids))},
        files=files.found(warehouse, found.episodes, found.rows, subject.folder),
        ledger=read_ledger(warehouse),
        tainted=taints(warehouse) | why,
    )


def check(home: Home, plan: Plan) -> None:
    """Raises NotNow, ConfigError for what keeps it from being forgotten now, before anything is done."""
    check_named(home)
    if plan.given.live_runs and (server := server_of(home, None)) is not None:
        raise NotNow(
            f"{len(plan.given.live_runs)} annotated episodes of it are under way on the annotation server {server.address}: stop the "
            "server, or have them finished, and give the command again. Nothing was forgotten"
        )
    if any(one.what == files.GATEWAY_LOG for one in plan.files) and is_written(home):
        raise NotNow(
            f"a gateway records in {home.root}, and its log holds episodes of it: end the gateway, and give the command again. Nothing was "
            "forgotten"
        )
    if plan.given.account is not None:
        _check_account(home, plan.given.account)


def _check_account(home: Home, user_id: str) -> None:
    from annotation.storage import accounts

    with opened_if_there(home) as database:
        if database is not None:
            with database.read() as session:
                accounts.check_another_admin(session, accounts.get(session, user_id))


def begin(warehouse: Warehouse, plan: Plan) -> tuple[Plan, Journal]:
    """From here on the next call of the command continues it. Returns the present plan: while somebody read the old one more may
    have come, and a person, whose account is disabled first, can give nothing more. Raises NotNow, after which it stays disabled."""
    name_digest = _shut_out(warehouse.home, plan.given.account) if plan.given.account is not None else None
    plan = find(warehouse, plan.subject)
    check(warehouse.home, plan)
    found = Journal(
        subject=plan.subject,
        begun_at=datetime.now(UTC).isoformat(timespec="seconds"),
        iteration=plan.ledger.newest_iteration,
        episodes=plan.descent.episodes,
        judged=tuple(sorted(plan.given.start.judged)),
        rows={table: tuple(sorted(ids)) for table, ids in plan.descent.rows.items()},
        runs=plan.given.runs,
        recordings=plan.given.recordings,
        account=plan.given.account,
        name_digest=name_digest,
        screens=tuple(sorted(_places(warehouse, plan.descent.episodes))),
    )
    journal.begin(warehouse.home, found)
    return plan, found


def _shut_out(home: Home, user_id: str) -> str | None:
    """Disable an account and end its logins; the digest of its name, None where there is no database. May be done twice."""
    from annotation.storage import accounts, logins
    from annotation.storage.ids import digest_of

    with opened_if_there(home) as database:
        if database is None:
            return None
        with database.write() as session:
            user, now_s = accounts.get(session, user_id, for_update=True), time.time()
            accounts.disable(session, user, now_s=now_s)
            logins.end_all(session, user_id, now_s=now_s)
            return digest_of(user.name)


def forget(warehouse: Warehouse, found: Journal, log: Callable[[str], None]) -> Path:
    """Do it, or go on with it; the receipt. Raises NotNow where the annotation database cannot be rewritten."""
    home, counts = warehouse.home, Counter[str]()
    samples = frozenset(id_ for table, ids in found.rows.items() if table != "annotations" for id_ in ids)
    for table, ids in found.rows.items():
        if ids:
            withdraw(warehouse, table, ids, iteration=found.iteration)
    learned = descent(warehouse, Start(episodes=frozenset(found.episodes), samples=samples)).learned
    add_taints(warehouse, found.subject.forget_id, learned)
    log("no dataset holds it from here on; erasing")
    beside = files.found(warehouse, found.episodes, found.rows, found.subject.folder)
    counts.update(_erase_given(home, found))
    for erased in purge(warehouse, forgotten=found.episodes, unsaid=found.judged):
        counts[erased.table] += erased.num_rows
        log(f"{erased.table}: {counted(erased.num_rows, 'row')} erased, {counted(erased.num_files, 'file')} removed")
    still_held = []
    for one in beside:
        if (why := one.erase()) is not None:
            still_held.append(str(one.path))
            log(f"{one.what}: {one.path} could not be written again and still holds it: erase it by hand ({why})")
        else:
            log(f"{one.what}: {one.path} {'written again' if one.what == 'export' else 'erased'}")
    counts["files"] = len(beside) - len(still_held)
    counts["pictures in Dagster"] = take_out_screens(home, found.screens)
    return journal.finish(
        home,
        found,
        {name: num for name, num in sorted(counts.items()) if num},
        tainted=tuple(one.checkpoint_id for one in learned),
        still_held=tuple(still_held),
    )


def _erase_given(home: Home, found: Journal) -> dict[str, int]:
    """What the annotation server holds."""
    if not (found.runs or found.recordings or found.account):
        return {}
    from annotation.storage import forgetting, withdrawals
    from annotation.storage.blobs import Blobs
    from annotation.storage.schema import Recording

    now_s = time.time()
    with opened_if_there(home) as database:
        if database is None:
            return {}
        with database.write() as session:
            left = [one for one in found.recordings if session.get_one(Recording, one).state != "withdrawn"]
            withdrawals.withdraw(session, left, forgetting.FORGOTTEN, now_s=now_s)
            forgetting.forget_recording_rows(session, found.recordings)
            num_steps = forgetting.erase_runs(session, Blobs.of_home(home), found.runs, now_s=now_s)
        num_parts = erase_withdrawn(database, home)
        if found.account is not None:
            with database.write() as session:
                forgetting.erase_account(session, found.account, now_s=now_s)
        forgetting.compact(database)
    return {"runs": len(found.runs), "steps of runs": num_steps, "recordings": len(found.recordings), "parts of recordings": num_parts}


def _places(warehouse: Warehouse, episodes: tuple[str, ...]) -> set[tuple[str, str]]:
    rows = warehouse.read("episodes", columns=["iteration", "stage", "episode_id"])
    rows = rows.filter(pc.is_in(rows["episode_id"], value_set=pa.array(sorted(episodes), pa.string())))
    return set(zip(rows["iteration"].to_pylist(), rows["stage"].to_pylist(), strict=True))
