"""People who are away for longer than a lease, and servers that are: half-done work goes to a stranger only where nothing else is there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from annotation.service.runs.runs import LiveRuns
from annotation.storage import assignments
from annotation.storage.schema import Assignment, User
from sandbox.pool.pool import SessionPool
from tests.annotation.service.live_parts import ANN, BOB, OneSource, Reader, Work, accept, task_named, until

LEASE_S = 600.0
EVE = "user-eve"


def with_a_stranger(folder: Path) -> Work:
    work = Work(folder)
    with work.database.write() as session:
        session.add(User(user_id=EVE, name=EVE, role="annotator", created_at_s=0.0))
    return work


def taken_by(work: Work, user_id: str, now_s: float) -> str | None:
    found = work.database.transact(lambda session: assignments.take(session, user_id, None, now_s=now_s))
    return None if found is None else found.assignment.assignment_id


def test_what_is_overdue_goes_to_somebody_else_only_when_nothing_lies_open(tmp_path: Path) -> None:
    work, task = with_a_stranger(tmp_path), task_named("enter-text")
    campaign = work.campaign()
    begun = work.lease(campaign, task, seed=1)  # the most urgent
    lies_open = work.offer(campaign, task, seed=2, priority=0.1)
    now_s = time.time() + LEASE_S + 60.0
    assert taken_by(work, BOB, now_s) == lies_open
    assert taken_by(work, EVE, now_s) == begun, "nothing else is left"
    work.close()


def test_an_outage_longer_than_a_lease_gives_nobodys_run_away(tmp_path: Path) -> None:
    async def run() -> None:
        work, task = with_a_stranger(tmp_path), task_named("enter-text")
        campaign = work.campaign()
        begun = work.lease(campaign, task)
        over = work.lease(campaign, task, seed=3, user_id=BOB)  # whose person had gone long before
        with work.database.write() as session:
            session.get_one(Assignment, over).lease_until_s = time.time() - 5 * LEASE_S
        async with SessionPool(size=1) as pool:
            first = LiveRuns(work.database, work.blobs, pool, OneSource(Reader()))
            run_id = await first.start(begun, 1, ANN)
            before = await accept(first, await until(first, run_id, "deciding"))
            await first.close()

            later_s = time.time() + LEASE_S + 1.0
            then = LiveRuns(work.database, work.blobs, pool, OneSource(Reader()), clock=lambda: later_s)
            assert await then.recover() == 1
            assert taken_by(work, EVE, later_s) == over, "nothing lies open, and only what was over before is free"
            assert taken_by(work, ANN, later_s) == begun
            back = await until(then, run_id, "deciding")
            assert back.history == before.history and back.lease_until_s == later_s + LEASE_S
            assert await then.recover() == 0
            await then.close()
        work.close()

    asyncio.run(run())
