"""The work queue: who gets what next, for how long, and what comes into the queue.

A stock of a few dozen assignments a campaign lies ready; it is filled up as it is taken, so that what is asked next follows the newest
release, the newest task pool and what the policy is weak at now. What a stale stock asks for that is no longer selected is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress

from sqlalchemy.orm import Session

from annotation.service.campaigns.choosing import next_instances, selected_tasks
from annotation.service.campaigns.task_priorities import TaskPriorities, TaskPriorityReader
from annotation.storage import assignments, audit, campaigns
from annotation.storage.assignments import Leased
from annotation.storage.database import Database, lock
from annotation.storage.schema import Assignment, Campaign
from sandbox import wire
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id, stable_fraction

STOCK = 48
"""Assignments of a campaign that lie ready: no fewer than people who may ask at once."""
REFRESH_S = 30.0
"""How old the stock's order may be."""
MOST_TRIES = 8
"""Of somebody who finds the stock empty, when others empty it as fast as it is filled."""
LOCKED_S = 0.02
"""Until the next look at work that was there, but locked: others were taking it, or its order was being changed."""


class Queue:
    """One a server, which is the only one of its database (storage/one_server.py)."""

    def __init__(
        self, database: Database, priorities: TaskPriorityReader, *, stock: int = STOCK, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._priorities, self._stock, self._clock = database, priorities, stock, clock
        self._refreshed_s: dict[str, float] = {}
        self._added_s: dict[str, float] = {}
        """By campaign, by time.monotonic: when its stock was last put in order, and when anything came in."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def take(self, user_id: str, campaign_id: str | None = None, *, without: Collection[str] = ()) -> Leased | None:
        """What the user holds already, else the most urgent assignment that they may have, on lease. None: there is none. `without`: ids
        of campaigns that are left out. Raises ConfigError where the reason is that a campaign's selection is wrong by now."""
        num_vain = 0  # from then on what is overdue may be taken, too: no campaign has anything else
        for _ in range(MOST_TRIES):
            asked_s = time.monotonic()
            leased = await self._take(user_id, campaign_id, without, overdue=num_vain > 0)
            if leased is not None:
                if leased.is_new:
                    # All that are open to them: one that lies empty would not be asked for as long as others have something.
                    for found in await self._open_to(user_id, campaign_id, without):
                        self._refresh_later(found.campaign_id)
                return leased
            refreshed: list[bool] = []
            problem: ConfigError | None = None
            for found in await self._open_to(user_id, campaign_id, without):
                try:
                    refreshed.append(await self.refresh(found, unless_since_s=asked_s))
                except ConfigError as error:  # the others may have something all the same
                    problem = error
            now_s = self._clock()
            if await self._database.reading(assignments.any_free, user_id, campaign_id, without=without, overdue=num_vain > 0, now_s=now_s):
                await asyncio.sleep(LOCKED_S)
                continue
            # Once more where nothing came in: somebody may have given work back between our two looks.
            num_vain = 0 if any(refreshed) else num_vain + 1
            if num_vain == 2:
                if problem is not None:
                    raise problem
                break
        return None

    async def _take(self, user_id: str, campaign_id: str | None, without: Collection[str], *, overdue: bool) -> Leased | None:
        now_s = self._clock()
        return await self._database.writing(assignments.take, user_id, campaign_id, without=without, overdue=overdue, now_s=now_s)

    async def heartbeat(self, assignment_id: str, user_id: str) -> float:
        """Until when the lease runs now. Raises AssignmentLost, UnknownSubject."""
        return await self._database.writing(assignments.renew, assignment_id, user_id, now_s=self._clock())

    async def skip(self, assignment_id: str, user_id: str, reason: str, *, address: str | None = None) -> str | None:
        """Somebody else shall do it; the user is not asked again. The id of the run that was given up, whose sandbox the caller ends.
        Raises AssignmentLost, UnknownSubject."""

        def work(session: Session) -> str | None:
            held, now_s = assignments.held(session, assignment_id, user_id), self._clock()
            audit.record(session, "assignment.skipped", now_s=now_s, user_id=user_id, subject=assignment_id, address=address, reason=reason)
            return assignments.skip(session, held, user_id, reason, now_s=now_s)

        return await self._database.writing(work)

    async def flag(self, assignment_id: str, user_id: str, reason: str, *, address: str | None = None) -> str | None:
        """Something is wrong with the task: nobody is asked again until somebody has looked. As `skip`."""

        def work(session: Session) -> str | None:
            held, now_s = assignments.held(session, assignment_id, user_id), self._clock()
            audit.record(session, "assignment.flagged", now_s=now_s, user_id=user_id, subject=assignment_id, address=address, reason=reason)
            return assignments.flag(session, held, reason, now_s=now_s)

        return await self._database.writing(work)

    async def release(self, assignment_id: str, user_id: str) -> str | None:
        """Give it back, e.g. at the end of the day; they may be asked again. As `skip`."""

        def work(session: Session) -> str | None:
            return assignments.release(session, assignments.held(session, assignment_id, user_id), now_s=self._clock())

        return await self._database.writing(work)

    async def reopen(self, assignment_id: str, *, by: str, address: str | None = None) -> Assignment:
        """Put what was flagged back into the queue. Raises AssignmentLost, UnknownSubject."""

        def work(session: Session) -> Assignment:
            now_s = self._clock()
            audit.record(session, "assignment.reopened", now_s=now_s, user_id=by, subject=assignment_id, address=address)
            return assignments.reopen(session, assignment_id, now_s=now_s)

        return await self._database.writing(work)

    async def refresh(self, campaign: Campaign, *, unless_since_s: float = float("inf")) -> bool:
        """Fill up a campaign's stock and put it in order, unless that was done since (by time.monotonic); whether anything came in. One at
        a time. Raises ConfigError where a selection is wrong by now."""
        campaign_id = campaign.campaign_id
        async with self._locks.setdefault(campaign_id, asyncio.Lock()):
            if self._refreshed_s.get(campaign_id, float("-inf")) < unless_since_s:
                priorities = await asyncio.to_thread(self._priorities.read)
                tasks = await asyncio.to_thread(selected_tasks, campaign.tasks, priorities)
                asked = await self._database.reading(assignments.instances, campaign_id)
                num = min(_num_wanted(campaign, asked), self._stock - sum(_is_ready(key, state, tasks) for key, state in asked.items()))
                # Outside of a transaction: a generated source makes each instance to know what is in it.
                chosen = await asyncio.to_thread(next_instances, tasks, priorities, asked, num)
                added = await self._database.writing(_restock, campaign_id, set(tasks), priorities, chosen, self._clock())
                self._refreshed_s[campaign_id] = time.monotonic()
                if added:
                    self._added_s[campaign_id] = time.monotonic()
            return self._added_s.get(campaign_id, float("-inf")) >= unless_since_s

    async def close(self) -> None:
        """Wait for what refreshes."""
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _open_to(self, user_id: str, campaign_id: str | None, without: Collection[str]) -> list[Campaign]:
        found = await self._database.reading(campaigns.campaigns, of_user=user_id, active_only=True)
        return [one for one in found if campaign_id in (None, one.campaign_id) and one.campaign_id not in without]

    def _refresh_later(self, campaign_id: str) -> None:
        """Beside the request that noticed."""
        due_s = time.monotonic() - REFRESH_S
        if self._refreshed_s.get(campaign_id, float("-inf")) >= due_s:
            return

        async def run() -> None:
            campaign = await self._database.reading(campaigns.get, campaign_id)
            # For example a task set that is gone: a request that finds the queue empty gets the error.
            with suppress(ConfigError):
                await self.refresh(campaign, unless_since_s=due_s)

        task = asyncio.ensure_future(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _num_wanted(campaign: Campaign, asked: Mapping[tuple[str, int], str]) -> int:
    return campaign.target_count - sum(state in ("open", "leased", "finished") for state in asked.values())


def _is_ready(key: tuple[str, int], state: str, tasks: Mapping[str, Task]) -> bool:
    return state == "open" and key[0] in tasks


def _restock(
    session: Session, campaign_id: str, tasks: Set[str], priorities: TaskPriorities, chosen: Sequence[tuple[Task, int]], now_s: float
) -> int:
    """How much came in: instances, and second copies of such as there were."""
    lock(session, f"stock of {campaign_id}")
    campaign = campaigns.get(session, campaign_id, for_update=True)
    if campaign.state != "active":
        return 0
    ready, begun = assignments.open_ones(session, campaign_id), assignments.begun(session, campaign_id)
    stale = [one for one in ready if one.task_id not in tasks and (one.task_id, one.seed) not in begun]
    assignments.cancel(stale, "its task is no longer selected", now_s=now_s)
    for one in ready:
        one.priority = priorities.of(one.task_id)
    num_doubled = _follow_share(session, campaign, [one for one in ready if one.state == "open"], begun, now_s)
    session.flush()
    asked = assignments.instances(session, campaign_id)  # again: what was asked before may have changed meanwhile
    new = [(task, seed) for task, seed in chosen if (task.task_id, seed) not in asked][: max(0, _num_wanted(campaign, asked))]
    for task, seed in new:
        first = _first_copy(campaign, task, seed, priorities.of(task.task_id), now_s)
        session.add_all([first, _second_copy(first, now_s)] if _is_double(campaign, task.task_id, seed) else [first])
    return len(new) + num_doubled


def _follow_share(session: Session, campaign: Campaign, ready: Sequence[Assignment], begun: Set[tuple[str, int]], now_s: float) -> int:
    """The share of instances that two people annotate may have changed: what nobody has begun follows it. How many second copies came in
    by that. `ready`: locked, as nothing else may be called off here."""
    seconds, own = assignments.second_copies(session, campaign.campaign_id), {one.assignment_id for one in ready}
    num = 0
    for first in ready:
        instance = first.task_id, first.seed
        if first.copy or instance in begun:
            continue
        second, is_double = seconds.get(instance), _is_double(campaign, *instance)
        if second is None and is_double:
            session.add(_second_copy(first, now_s))
            num += 1
        elif second is not None and is_double and second.state == "cancelled":
            assignments.put_back(second, priority=first.priority, now_s=now_s)
            num += 1
        elif second is not None and not is_double and second.assignment_id in own:
            assignments.cancel([second], "fewer are annotated twice by now", now_s=now_s)
    return num


def _is_double(campaign: Campaign, task_id: str, seed: int) -> bool:
    """Whether two people annotate an instance: which they are is fixed by content, and a larger share has all those of a smaller one."""
    return stable_fraction("double", campaign.campaign_id, task_id, seed) < campaign.double_share


def _first_copy(campaign: Campaign, task: Task, seed: int, priority: float, now_s: float) -> Assignment:
    return Assignment(
        assignment_id=content_id("assignment", [campaign.campaign_id, task.task_id, seed, 0]),
        campaign_id=campaign.campaign_id,
        task_id=task.task_id,
        task_name=task.name,
        domain=task.domain,
        task=wire.TASK.to_plain(task),
        seed=seed,
        copy=0,
        priority=priority,
        state="open",
        lease_number=0,
        changed_at_s=now_s,
    )


def _second_copy(first: Assignment, now_s: float) -> Assignment:
    return Assignment(
        assignment_id=content_id("assignment", [first.campaign_id, first.task_id, first.seed, 1]),
        campaign_id=first.campaign_id,
        task_id=first.task_id,
        task_name=first.task_name,
        domain=first.domain,
        task=first.task,
        seed=first.seed,
        copy=1,
        priority=first.priority,
        state="open",
        lease_number=0,
        changed_at_s=now_s,
    )
