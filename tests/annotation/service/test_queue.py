"""The work queue: nobody is asked twice, nothing is lost or doubled, and what is asked follows what the policy is weak at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import select, update

from annotation.service.campaigns.campaigns import CampaignChange, Campaigns, CampaignSpec
from annotation.service.campaigns.queue import Queue
from annotation.service.campaigns.task_priorities import TaskPriorities, TaskPriorityReader
from annotation.storage import accounts, assignments
from annotation.storage.database import Database
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Campaign, Run
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import AssignmentLost, ConfigError, UnknownSubject

QUICKSTART = "miniwob:quickstart"


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Known(TaskPriorityReader):
    """What is known of the policy, as the test says."""

    def __init__(self) -> None:
        super().__init__(None)
        self.priorities = TaskPriorities()

    def read(self) -> TaskPriorities:
        return self.priorities


@dataclass
class Office:
    database: Database
    campaigns: Campaigns
    queue: Queue
    known: Known
    clock: Clock

    async def campaign(self, **changes: object) -> Campaign:
        spec = {"name": "campaign", "tasks": [QUICKSTART], "double_share": 0.0, "lease_s": 60.0, **changes}
        return await self.campaigns.create(CampaignSpec.model_validate(spec), by=None)

    def people(self, num: int) -> list[str]:
        with self.database.write() as session:
            return [accounts.add_user(session, f"person{index}", "annotator", None, now_s=0.0).user_id for index in range(num)]

    def rows(self) -> list[Assignment]:
        with self.database.read() as session:
            return list(session.scalars(select(Assignment)))

    async def finish(self, assignment: Assignment, user_id: str) -> None:
        def work(session) -> None:
            assignments.finish(session, assignments.held(session, assignment.assignment_id, user_id, assignment.lease_number), now_s=0.0)

        await self.database.writing(work)


@pytest.fixture
def office(annotation_url: str) -> Iterator[Office]:
    database, known, clock = open_database(annotation_url), Known(), Clock()
    yield Office(database, Campaigns(database, known, clock=clock), Queue(database, known, clock=clock, stock=20), known, clock)
    database.close()


def task_of(row: Assignment) -> Task:
    return Task.model_validate(row.task)


def test_what_is_asked_is_of_the_train_split(office: Office):
    async def run() -> None:
        await office.campaign()
        (user,) = office.people(1)
        assert await office.queue.take(user) is not None

    asyncio.run(run())
    rows = office.rows()
    assert len(rows) == 20 and len({(row.task_id, row.seed) for row in rows}) == 20
    assert all(task_of(row).split(row.seed) is Split.TRAIN and task_of(row).task_id == row.task_id for row in rows)


@pytest.mark.slow
def test_fifty_people_at_once_get_fifty_assignments(office: Office):
    async def run() -> list[Assignment]:
        await office.campaign(target_count=60)
        users = office.people(50)
        taken = await asyncio.gather(*(office.queue.take(user) for user in users))
        again = await asyncio.gather(*(office.queue.take(user) for user in users for _ in range(2)))
        held = {one.assignment.assignment_id: one.assignment.user_id for one in taken if one is not None}
        assert len(held) == 50
        assert {one.assignment.assignment_id: one.assignment.user_id for one in again if one is not None} == held
        await asyncio.gather(*(office.finish(one.assignment, one.assignment.user_id) for one in taken if one is not None))
        rest = await asyncio.gather(*(office.queue.take(user) for user in users))
        await office.queue.close()
        return [one.assignment for one in rest if one is not None]

    rest = asyncio.run(run())
    rows = office.rows()
    assert len(rest) == 10 == len({row.assignment_id for row in rest}), "the target is 60"
    assert Counter(row.state for row in rows) == {"finished": 50, "leased": 10}
    assert all(row.lease_number == 1 for row in rows)


def test_two_servers_on_one_database_hand_out_each_assignment_once(office: Office, annotation_url: str):
    async def run() -> list[str]:
        await office.campaign(target_count=40)
        users = office.people(40)
        other = open_database(annotation_url)
        queues = (office.queue, Queue(other, office.known, clock=office.clock, stock=20))
        taken = await asyncio.gather(*(queues[index % 2].take(user) for index, user in enumerate(users)))
        for queue in queues:
            await queue.close()
        other.close()
        return [one.assignment.assignment_id for one in taken if one is not None]

    taken = asyncio.run(run())
    assert len(taken) == len(set(taken)) == 40
    assert Counter(row.state for row in office.rows()) == {"leased": 40}


def test_two_different_people_annotate_the_doubled_share(office: Office):
    async def run() -> None:
        await office.campaign(target_count=10, double_share=1.0)
        first, second = office.people(2)
        for _ in range(10):
            leased = await office.queue.take(first)
            assert leased is not None
            await office.finish(leased.assignment, first)
        assert await office.queue.take(first) is None
        while (leased := await office.queue.take(second)) is not None:
            await office.finish(leased.assignment, second)

    asyncio.run(run())
    people: dict[tuple[str, int], set[str]] = {}
    for row in office.rows():
        assert row.state == "finished"
        people.setdefault((row.task_id, row.seed), set()).add(str(row.user_id))
    assert len(people) == 10 and all(len(both) == 2 for both in people.values())


def test_the_share_of_doubled_instances_is_that_of_the_campaign(office: Office):
    async def run() -> None:
        campaign = await office.campaign(target_count=400, double_share=0.25)
        await Queue(office.database, office.known, stock=400).refresh(campaign)

    asyncio.run(run())
    copies = Counter(row.copy for row in office.rows())
    assert copies[0] == 400 and 70 <= copies[1] <= 130


def test_a_lease_that_ran_out_goes_to_the_next_and_its_holder_gets_an_error(office: Office):
    async def run() -> None:
        campaign = await office.campaign(target_count=1)
        first, second = office.people(2)
        held = await office.queue.take(first)
        assert held is not None and held.assignment.lease_until_s == office.clock.now_s + 60
        add_run(office.database, held.assignment, first)
        office.clock.now_s += 50
        assert await office.queue.heartbeat(held.assignment.assignment_id, first) == office.clock.now_s + 60
        office.clock.now_s += 59
        assert await office.queue.take(second) is None
        office.clock.now_s += 2
        back = await office.queue.take(first, campaign.campaign_id)  # nobody took it meanwhile
        assert back is not None and not back.is_new and back.run_id == "run-1"
        office.clock.now_s += 61
        taken = await office.queue.take(second)
        assert taken is not None and taken.assignment.lease_number == 2 and taken.abandoned_run_id == "run-1"
        with pytest.raises(AssignmentLost):
            await office.queue.heartbeat(held.assignment.assignment_id, first)
        with pytest.raises(AssignmentLost):
            await office.finish(held.assignment, first)
        with pytest.raises(AssignmentLost):
            await office.queue.skip(held.assignment.assignment_id, first, "late")
        await office.finish(taken.assignment, second)

    asyncio.run(run())
    with office.database.read() as session:
        assert session.get_one(Run, "run-1").state == "abandoned"


def test_a_new_campaign_is_filled_before_anybodys_overdue_work_is_taken(office: Office):
    async def run() -> None:
        await office.campaign(target_count=1)
        first, second = office.people(2)
        held = await office.queue.take(first)
        assert held is not None
        office.clock.now_s += 61
        new = await office.campaign(name="new", target_count=1)
        taken = await office.queue.take(second)
        assert taken is not None and taken.campaign.campaign_id == new.campaign_id
        await office.finish(taken.assignment, second)
        taken = await office.queue.take(second)
        assert taken is not None and taken.assignment.assignment_id == held.assignment.assignment_id, "nothing else is wanted"

    asyncio.run(run())


def test_an_earlier_lease_of_the_same_person_does_not_count(office: Office):
    async def run() -> None:
        await office.campaign(target_count=1)
        (user,) = office.people(1)
        before = await office.queue.take(user)
        assert before is not None
        assert await office.queue.release(before.assignment.assignment_id, user) is None
        assert (await office.queue.take(user)) is not None
        with pytest.raises(AssignmentLost):
            await office.finish(before.assignment, user)

    asyncio.run(run())


def test_what_was_passed_on_is_not_asked_again(office: Office):
    async def run() -> None:
        await office.campaign(target_count=2, double_share=1.0)
        users = office.people(4)
        first = await office.queue.take(users[0])
        assert first is not None
        add_run(office.database, first.assignment, users[0])
        assert await office.queue.skip(first.assignment.assignment_id, users[0], "I know nothing of this") == "run-1"
        other = await office.queue.take(users[0])
        assert other is not None
        instance = (first.assignment.task_id, first.assignment.seed)
        assert (other.assignment.task_id, other.assignment.seed) != instance
        await office.finish(other.assignment, users[0])
        assert await office.queue.take(users[0]) is None, "not the other copy either"
        for user in users[1:3]:
            while (taken := await office.queue.take(user)) is not None:
                if taken.assignment.assignment_id == first.assignment.assignment_id:
                    await office.queue.skip(taken.assignment.assignment_id, user, "nor I")
                    break
                await office.finish(taken.assignment, user)
        with office.database.read() as session:
            (flagged,) = assignments.flagged(session)
        assert flagged.assignment_id == first.assignment.assignment_id and "3 people" in str(flagged.reason)
        await office.queue.reopen(flagged.assignment_id, by=users[3])
        again = await office.queue.take(users[3])
        assert again is not None

    asyncio.run(run())


def test_what_was_flagged_is_replaced(office: Office):
    async def run() -> None:
        await office.campaign(target_count=1)
        (user,) = office.people(1)
        broken = await office.queue.take(user)
        assert broken is not None
        await office.queue.flag(broken.assignment.assignment_id, user, "the page is empty")
        good = await office.queue.take(user)
        assert good is not None and good.assignment.assignment_id != broken.assignment.assignment_id

    asyncio.run(run())
    assert Counter(row.state for row in office.rows()) == {"flagged": 1, "leased": 1}


def test_members_only_and_only_while_it_is_active(office: Office):
    async def run() -> None:
        member, stranger = office.people(2)
        campaign = await office.campaign(members=["person0"])
        assert await office.queue.take(stranger) is None
        await office.campaigns.change(campaign.campaign_id, CampaignChange(state="paused"), by=None)
        assert await office.queue.take(member) is None
        await office.campaigns.change(campaign.campaign_id, CampaignChange(state="active"), by=None)
        held = await office.queue.take(member)
        assert held is not None
        await office.campaigns.change(campaign.campaign_id, CampaignChange(state="paused"), by=None)
        assert (await office.queue.take(member)) is not None, "what is held goes on"
        await office.finish(held.assignment, member)
        await office.campaigns.change(campaign.campaign_id, CampaignChange(state="active", members=()), by=None)
        assert await office.queue.take(stranger) is not None
        (seen,) = await office.campaigns.list(of_user=stranger)
        assert (seen.progress.num_finished, seen.progress.num_leased, seen.members) == (1, 1, ())

    asyncio.run(run())


def test_another_share_is_that_of_what_nobody_has_begun(office: Office):
    def wanted() -> dict[tuple[str, int], str]:
        return {(row.task_id, row.seed): row.state for row in office.rows() if row.copy == 1 and row.state != "cancelled"}

    async def run() -> None:
        campaign = await office.campaign(target_count=20, double_share=0.0)
        first, second = office.people(2)
        begun = await office.queue.take(first)
        assert begun is not None and wanted() == {}

        async def share(value: float) -> None:
            change = await office.campaigns.change(campaign.campaign_id, CampaignChange(double_share=value), by=None)
            await office.queue.refresh(change)

        await share(1.0)
        everything = wanted()
        assert len(everything) == 19 and (begun.assignment.task_id, begun.assignment.seed) not in everything
        await office.finish(begun.assignment, first)
        taken = await office.queue.take(second)
        assert taken is not None
        await share(0.3)
        some = wanted()
        assert 2 <= len(some) <= 12 and some.keys() < everything.keys()
        await share(0.0)
        instance = (taken.assignment.task_id, taken.assignment.seed)
        assert set(wanted()) == {instance} & everything.keys(), "what somebody is at stays as it is"
        await share(1.0)
        assert wanted().keys() == everything.keys(), "what was called off is requested again"

    asyncio.run(run())
    assert len({(row.task_id, row.seed, row.copy) for row in office.rows()}) == len(office.rows())


def test_the_campaign_with_the_higher_priority_is_asked_for_first(office: Office):
    async def run() -> None:
        await office.campaign(target_count=60)
        (user,) = office.people(1)
        held = await office.queue.take(user)
        assert held is not None
        await office.finish(held.assignment, user)
        urgent = await office.campaign(name="urgent", priority=5)
        names = []
        for _ in range(5):
            leased = await office.queue.take(user)
            assert leased is not None
            names.append(leased.campaign.name)
            await office.finish(leased.assignment, user)
            await office.queue.close()  # what refreshes beside the request
        assert names[-3:] == ["urgent"] * 3, "it is filled though another campaign still has something"
        await office.campaigns.change(urgent.campaign_id, CampaignChange(priority=-5), by=None)
        leased = await office.queue.take(user)
        assert leased is not None and leased.campaign.name == "campaign"

    asyncio.run(run())


def test_weak_tasks_are_asked_for_first_and_more_often(office: Office):
    tasks = tasks_of(QUICKSTART)
    weak = tasks[3].task_id
    office.known.priorities = TaskPriorities(weakness={task.task_id: 0.9 if task.task_id == weak else 0.1 for task in tasks})

    async def run() -> None:
        campaign = await office.campaign(target_count=200)
        await Queue(office.database, office.known, stock=200).refresh(campaign)
        (user,) = office.people(1)
        leased = await office.queue.take(user)
        assert leased is not None and leased.assignment.task_id == weak

    asyncio.run(run())
    counts = Counter(row.task_id for row in office.rows())
    others = (200 - counts[weak]) / (len(tasks) - 1)
    assert counts[weak] / others == pytest.approx(9.0, rel=0.2)


def test_the_newest_pool_is_followed_without_a_restart(office: Office):
    old, new = tasks_of(QUICKSTART)[0], tasks_of(QUICKSTART)[1]
    office.known.priorities = TaskPriorities(task_pool=frozenset({old.task_id}))

    async def run() -> None:
        campaign = await office.campaign(tasks=["pool"], double_share=1.0, target_count=30)
        user, second = office.people(2)
        begun = await office.queue.take(user)
        assert begun is not None and begun.assignment.task_id == old.task_id
        await office.finish(begun.assignment, user)
        office.known.priorities = TaskPriorities(task_pool=frozenset({new.task_id}), weakness={new.task_id: 0.8})
        await office.queue.refresh(campaign)
        taken = await office.queue.take(user)
        assert taken is not None and taken.assignment.task_id == new.task_id
        with office.database.write() as session:
            session.execute(update(Assignment).where(Assignment.task_id == new.task_id).values(priority=0.1))
        copy = await office.queue.take(second)
        assert copy is not None and (copy.assignment.task_id, copy.assignment.copy) == (old.task_id, 1), "its first copy is done"

    asyncio.run(run())
    assert {row.task_id for row in office.rows() if row.state == "open"} == {new.task_id}


@pytest.mark.parametrize("tasks", [["nowhere"], ["miniwob:nothing"], ["miniwob/no-such-task"], ["no/task"]])
def test_a_campaign_that_selects_nothing_is_refused(office: Office, tasks: list[str]):
    with pytest.raises(ConfigError):
        asyncio.run(office.campaign(tasks=tasks))


def test_a_campaign_whose_selection_is_wrong_by_now_does_not_stop_the_others(office: Office):
    async def run() -> None:
        wrong = await office.campaign(name="wrong")
        (user,) = office.people(1)
        with office.database.write() as session:
            session.get_one(Campaign, wrong.campaign_id).tasks = ["miniwob/taken-away"]
        with pytest.raises(ConfigError, match="taken-away"):
            await office.queue.take(user)
        right = await office.campaign(name="right")
        leased = await office.queue.take(user)
        assert leased is not None and leased.campaign.campaign_id == right.campaign_id

    asyncio.run(run())


def test_one_task_can_be_asked_for(office: Office):
    async def run() -> None:
        await office.campaign(tasks=["miniwob/click-link"], members=[])
        (user,) = office.people(1)
        leased = await office.queue.take(user)
        assert leased is not None and leased.assignment.task_name == "click-link"
        with pytest.raises(ConfigError, match="already"):
            await office.campaign()
        with pytest.raises(UnknownSubject):
            await office.campaign(name="other", members=["nobody"])

    asyncio.run(run())


def add_run(database: Database, assignment: Assignment, user_id: str) -> None:
    with database.write() as session:
        session.add(
            Run(
                run_id="run-1",
                assignment_id=assignment.assignment_id,
                lease_number=assignment.lease_number,
                user_id=user_id,
                policy_id="p",
                grammar="compact",
                state="live",
                started_at_s=0.0,
                num_backs=0,
                review_state="none",
            )
        )
