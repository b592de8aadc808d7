"""Finished runs: where each stands, who sees which, and that what came to nothing is requested again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import select, update

from annotation.service.campaigns.campaigns import CampaignChange, Campaigns
from annotation.service.campaigns.queue import Queue
from annotation.service.campaigns.task_priorities import TaskPriorities, TaskPriorityReader
from annotation.service.review.finished_runs import FinishedRuns
from annotation.service.review.review import Reviews
from annotation.storage import campaigns, withdrawals
from annotation.storage.campaigns import Progress
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Campaign
from annotation.wire.finished import RunList
from annotation.wire.review import SubmitReview, Withdrawal
from tests.annotation.service.review_parts import History
from warehouse.core.errors import NotNow, UnknownSubject

PEOPLE = ("ann", "bob", "rex:reviewer", "eve:reviewer", "ada:admin")


@pytest.fixture
def history(annotation_url: str) -> Iterator[History]:
    database = open_database(annotation_url)
    yield History(database, *PEOPLE)
    database.close()


def listed(history: History, who: str, role: str = "annotator", **asked: str) -> RunList:
    return asyncio.run(FinishedRuns(history.database).listed(history.who(who, role), **asked))  # type: ignore[arg-type]


def ids(found: RunList) -> list[str]:
    return [run.run_id for run in found.runs]


def progress(history: History) -> Progress:
    return history.database.transact(campaigns.progress)[history.campaign_id]


def reject(history: History, run_id: str) -> None:
    """By the word of two."""
    for who, kind in (("rex", "second"), ("eve", "adjudication")):
        said = SubmitReview.model_validate({"kind": kind, "approves": False, "verdict": False})
        asyncio.run(Reviews(history.database, clock=lambda: history.now_s).submit(run_id, said, by=history.who(who)))


def withdraw(history: History, run_id: str, who: str = "ann") -> None:
    asyncio.run(Reviews(history.database, clock=lambda: history.now_s).withdraw(run_id, "a slip", by=history.who(who, "annotator")))


def test_a_list_says_where_each_run_stands_and_is_ones_own(history: History):
    fine, doubtful, bad, slip = (history.run("ann", seed=seed, verifier=seed not in (1, 2)) for seed in range(4))
    reject(history, bad)
    withdraw(history, slip)
    other = history.run("bob", seed=9)
    history.run("ann", seed=10, finishes=False)
    own = listed(history, "ann")
    assert [(run.run_id, run.status) for run in own.runs] == [
        (slip, "withdrawn"),
        (bad, "rejected"),
        (doubtful, "waiting"),
        (fine, "counts"),
    ]
    assert own.num == 4 and all(run.is_own and run.campaign == "buttons" for run in own.runs) and own.people == ("ann",)
    assert ids(listed(history, "bob")) == [other], "an annotator sees their own alone"
    nobody = listed(history, "ann", user="bob")
    assert (nobody.runs, nobody.num) == ((), 0) and listed(history, "ann", user="no such person").num == 0
    for role in ("reviewer", "admin"):
        assert listed(history, "rex", role).num == 5
    assert listed(history, "rex", "reviewer").people == ("ann", "bob")
    for status, wanted in (("counts", [other, fine]), ("waiting", [doubtful]), ("rejected", [bad]), ("withdrawn", [slip])):
        found = listed(history, "rex", "reviewer", status=status)
        assert (ids(found), found.num) == (wanted, len(wanted)), status
    assert ids(listed(history, "rex", "reviewer", user="bob")) == [other]
    with pytest.raises(UnknownSubject, match="users list"):
        listed(history, "rex", "reviewer", user="no such person")


def test_a_list_goes_on_where_it_ended_and_is_of_the_campaign_that_is_asked_for(history: History):
    second = history.campaign("more buttons")
    elsewhere = history.run("ann", campaign_id=second)
    same_time = [history.run("ann", seed=seed, at_s=5_000_000.0) for seed in range(3)]
    assert ids(listed(history, "ann", campaign_id=second)) == [elsewhere]
    assert [one.name for one in listed(history, "ann").campaigns] == ["buttons", "more buttons"]
    first, *rest = sorted(same_time)
    assert ids(listed(history, "ann")) == [elsewhere, first, *rest]
    assert ids(listed(history, "ann", before=first)) == rest and ids(listed(history, "ann", before=rest[-1])) == []
    assert ids(listed(history, "ann", before="run-nothing")) == []


def test_one_run_is_shown_to_its_annotator_and_to_reviewers(history: History):
    finished = FinishedRuns(history.database)
    run_id = history.run("ann", verifier=False)
    own = asyncio.run(finished.look(run_id, history.who("ann", "annotator")))
    assert own.item.is_own and own.item.status == "waiting" and own.review is None and len(own.run.steps) == 1
    assert asyncio.run(finished.look(run_id, history.who("rex"))).review == "second"
    with pytest.raises(UnknownSubject):
        asyncio.run(finished.look(run_id, history.who("bob", "annotator")))
    said = SubmitReview(approves=False, verdict=False, note="not the right one")
    asyncio.run(Reviews(history.database).submit(run_id, said, by=history.who("rex")))
    assert asyncio.run(finished.look(run_id, history.who("rex"))).review is None, "they have spoken"
    assert asyncio.run(finished.look(run_id, history.who("eve"))).review == "adjudication"
    assert asyncio.run(finished.look(run_id, history.who("ann", "annotator"))).reviews == (), "before it is settled nobody sees them"
    asyncio.run(Reviews(history.database).submit(run_id, said.model_copy(update={"kind": "adjudication"}), by=history.who("eve")))
    reported = asyncio.run(finished.look(run_id, history.who("ann", "annotator")))
    assert (
        [one.reviewer for one in reported.reviews] == ["rex", "eve"] and reported.item.status == "rejected" and reported.withdrawal is None
    )
    with pytest.raises(NotNow, match="live"):
        asyncio.run(finished.look(history.run("ann", seed=7, finishes=False), history.who("ann", "annotator")))


def test_who_took_a_run_back_when_and_why_is_shown(history: History):
    finished, (own, others) = FinishedRuns(history.database), (history.run("ann", seed=seed) for seed in range(2))
    withdraw(history, own)
    history.database.transact(withdrawals.withdraw, [others], "asked to by mail", now_s=history.now_s + 5)
    reported = [asyncio.run(finished.look(run_id, history.who("ann", "annotator"))).withdrawal for run_id in (own, others)]
    assert reported == [
        Withdrawal(by="ann", at_s=history.now_s, reason="a slip"),
        Withdrawal(by=None, at_s=history.now_s + 5, reason="asked to by mail"),
    ]


def test_what_was_rejected_or_taken_back_does_not_count_as_progress(history: History):
    kept, slip, bad = history.run("ann"), history.run("ann", seed=1), history.run("ann", seed=2, verifier=False)
    assert (progress(history).num_finished, history.state(kept)) == (3, "none")
    withdraw(history, slip)
    assert progress(history).num_finished == 2
    reject(history, bad)
    assert progress(history).num_finished == 1
    (seen,) = asyncio.run(Campaigns(history.database, TaskPriorityReader(None)).list())
    assert seen.progress == Progress(num_finished=1)


def test_the_second_copy_stands_in_for_a_first_that_came_to_nothing(history: History):
    first, second = history.run("ann"), history.run("bob", copy=1)
    assert (progress(history).num_finished, progress(history).num_second_finished, progress(history).num_second_wanted) == (1, 1, 1)
    withdraw(history, first)
    assert progress(history) == Progress(num_finished=1), "the instance is annotated, though once"
    withdraw(history, second, "bob")
    assert progress(history) == Progress(), "nothing is left of it"


def test_another_instance_is_asked_for_instead(history: History):
    """The campaign wants one; what was done is taken back, then what was done instead is rejected."""

    class Known(TaskPriorityReader):
        def read(self) -> TaskPriorities:
            return TaskPriorities()

    queue = Queue(history.database, Known(None))

    async def ask() -> tuple[str, int] | None:
        leased = await queue.take("user-bob")
        if leased is None:
            return None
        await queue.release(leased.assignment.assignment_id, "user-bob")
        return leased.assignment.task_id, leased.assignment.seed

    run_id = history.run("ann")
    with history.database.write() as session:
        session.execute(update(Campaign).values(target_count=1, tasks=["miniwob/click-button"]))
    assert asyncio.run(ask()) is None, "all that is wanted is there"
    withdraw(history, run_id)
    asked = asyncio.run(ask())
    assert asked is not None and asked[1] != 0, "another instance: this one was seen"
    assert asyncio.run(ask()) == asked, "and one, not one each time"
    with history.database.read() as session:
        assert len(session.scalars(select(Assignment)).all()) == 2
    asyncio.run(Campaigns(history.database, Known(None)).change(history.campaign_id, CampaignChange(state="ended"), by=None))
    assert asyncio.run(ask()) is None
