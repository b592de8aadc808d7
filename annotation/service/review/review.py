"""Second opinions: which finished runs wait for one, what it does to them, and the word that settles a disagreement.

A run waits where the person and the verifier, or two people who did the same instance, disagree (storage/run_endings.py). A reviewer who
shares the annotator's verdict and approves settles it; one who does not leaves it to a third person, whose word stands. Some of the runs
that nobody disputes are looked at all the same, and any other may be: what counts already goes on counting until somebody objects.
Nobody reviews an instance that they annotated themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from sqlalchemy.orm import Session

from annotation.service.review.replays import replay_of
from annotation.storage import accounts, audit, reviews, run_endings, runs
from annotation.storage.database import Database
from annotation.storage.logins import Principal
from annotation.storage.reviews import Listed
from annotation.storage.reviews import reviews_of as reviews_of
from annotation.storage.schema import Review, Run
from annotation.wire.review import ReviewItem, ReviewKind, ReviewQueue, ReviewView, RunReview, StepOpinion, SubmitReview, Why, Withdrawal
from warehouse.core.errors import AccessDenied, ConfigError, NotNow, OutOfDate, UnknownSubject

MOST_LISTED = 200
DAY_S = 86400.0
SPOT_CHECKS = tuple(f"run-{number:02x}" for number in range(26))
"""What the ids of one run in ten begin with, which are by chance: those are reviewed even if all agree."""
MAY_REVIEW = ("reviewer", "admin")


class Reviews:
    """`clock` gives seconds since 1970."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    async def queue(self, reviewer_id: str) -> ReviewQueue:
        """What a person may review, most urgent first."""
        return await self._database.reading(_queue, reviewer_id, self._clock())

    async def look(self, run_id: str, viewer_id: str) -> RunReview:
        """All that is looked at. Earlier opinions are shown to the adjudicator, and to all once it is settled. Raises UnknownSubject,
        NotNow for a run that is not finished."""
        return await self._database.reading(_look, run_id, viewer_id)

    async def submit(self, run_id: str, said: SubmitReview, *, by: Principal, address: str | None = None) -> ReviewView:
        """Record what a reviewer says, and what follows from it. Raises UnknownSubject, AccessDenied for one's own instance, ConfigError
        for an unknown step, OutOfDate where another word is wanted by now, NotNow where none is."""

        def work(session: Session) -> ReviewView:
            run, now_s = finished(session, run_id, for_update=True), self._clock()
            _check(session, run, said, by)
            made = add_review(session, said, by=by, now_s=now_s, run_id=run_id)
            audit.record(
                session,
                "run.reviewed",
                now_s=now_s,
                user_id=by.user_id,
                subject=run_id,
                address=address,
                kind=said.kind,
                approves=said.approves,
                verdict=said.verdict,
            )
            _follow(session, run, made)
            return view_of(made, {by.user_id: by.name})

        return await self._database.writing(work)

    async def withdraw(self, run_id: str, reason: str, *, by: Principal, address: str | None = None) -> None:
        """By the run's own annotator, or a reviewer: it disappears from the next version of every dataset. May be done twice. Raises
        UnknownSubject, NotNow."""

        def work(session: Session) -> None:
            run, now_s = session.get(Run, run_id, with_for_update=True), self._clock()
            if run is None or (run.user_id != by.user_id and by.role not in MAY_REVIEW):
                raise runs.unknown(run_id)
            if run_endings.withdraw(session, run, now_s=now_s):
                audit.record(session, "run.withdrawn", now_s=now_s, user_id=by.user_id, subject=run_id, address=address, reason=reason)

        await self._database.writing(work)


def wanted(run: Run, said: Sequence[Review]) -> ReviewKind | None:
    """The kind of word that a finished run may still be given; None: it is settled."""
    if run.review_state in ("approved", "rejected"):
        return None
    return "adjudication" if run.review_state == "pending" and said else "second"


def may_say(session: Session, run: Run, by: Principal) -> ReviewKind | None:
    """The kind of word that a reviewer may still say of a finished run; None: none."""
    said = reviews_of(session, run.run_id)
    is_barred = run.withdrawn_at_s is not None or any(one.reviewer_id == by.user_id for one in said)
    return None if is_barred or reviews.annotated_instance(session, run.run_id, by.user_id) else wanted(run, said)


def why(run: Run, said: Sequence[Review], duplicates: Sequence[Run]) -> tuple[Why, ...]:
    """Why somebody is asked."""
    if run.review_state != "pending":
        return ("sampled",) if run.run_id.startswith(SPOT_CHECKS) else ("asked",)
    found: list[Why] = []
    if run.verifier_verdict is not None and run.verifier_verdict != run.person_verdict:
        found.append("verifier_disagrees")
    if any(duplicate.person_verdict != run.person_verdict for duplicate in duplicates):
        found.append("annotators_disagree")
    if said:
        found.append("reviewers_disagree")
    return tuple(found) or ("annotators_disagree",)  # about a step


def verdict_that_stands(run: Run, said: Sequence[Review]) -> bool | None:
    """The last word on whether the task was done: of who settled it, else of who did it."""
    settled = [one.verdict for one in said if one.kind == "adjudication" and one.verdict is not None]
    return settled[-1] if settled else run.person_verdict


def opinions(said: Sequence[Review], field: str) -> dict[int, Any]:
    """What the last reviewer who said something of a step's field said, by step."""
    return {int(index): says[field] for one in said for index, says in one.steps.items() if says.get(field) is not None}


def wrong_steps(said: Sequence[Review]) -> set[int]:
    """Steps that the last reviewer who said something of them called wrong: they teach nothing."""
    return {index for index, is_right in opinions(said, "is_right").items() if not is_right}


def add_review(
    session: Session, said: SubmitReview, *, by: Principal, now_s: float, run_id: str | None = None, recording_id: str | None = None
) -> Review:
    """Store what a reviewer says of a run or of a recording."""
    return reviews.add(
        session,
        run_id=run_id,
        recording_id=recording_id,
        reviewer_id=by.user_id,
        kind=said.kind,
        approves=said.approves,
        verdict=said.verdict,
        steps=steps_of(said),
        note=said.note,
        now_s=now_s,
    )


def steps_of(said: SubmitReview) -> dict[str, dict[str, Any]]:
    """Opinions of steps as they are kept: only steps and fields with one."""
    shown = {index: opinion.model_dump(exclude_none=True) for index, opinion in sorted(said.steps.items())}
    return {str(index): opinion for index, opinion in shown.items() if opinion}


def view_of(one: Review, names: dict[str, str]) -> ReviewView:
    return ReviewView(
        review_id=one.review_id,
        reviewer=names.get(one.reviewer_id, one.reviewer_id),
        kind=cast(ReviewKind, one.kind),
        approves=one.approves,
        verdict=one.verdict,
        steps={int(index): StepOpinion(**says) for index, says in one.steps.items()},
        note=one.note,
        created_at_s=one.created_at_s,
    )


def withdrawal_of(session: Session, kind: Literal["run", "recording"], subject: str, names: Mapping[str, str]) -> Withdrawal | None:
    """How something was taken back; None where it was not. The audit log alone keeps it."""
    found = audit.entries(session, subject=subject, action=f"{kind}.withdrawn", limit=1)
    return next((Withdrawal(by=_named(one.user_id, names), at_s=one.at_s, reason=str(one.detail["reason"])) for one in found), None)


def _named(user_id: str | None, names: Mapping[str, str]) -> str | None:
    return None if user_id is None else names.get(user_id, user_id)


def _queue(session: Session, reviewer_id: str, now_s: float) -> ReviewQueue:
    found, num = reviews.waiting(session, reviewer_id, sampled=SPOT_CHECKS, limit=MOST_LISTED)
    ids = [one.run.run_id for one in found]
    said, duplicates, steps = reviews.by_run(session, ids), reviews.duplicates(session, ids), reviews.num_steps(session, ids)
    names = accounts.names(session)
    items = (_item(one, said[one.run.run_id], duplicates[one.run.run_id], steps.get(one.run.run_id, 0), names) for one in found)
    today = reviews.num_by(session, reviewer_id, since_s=now_s - now_s % DAY_S)
    return ReviewQueue(waiting=tuple(items), num_waiting=num, num_reviewed_today=today)


def _look(session: Session, run_id: str, viewer_id: str) -> RunReview:
    run = finished(session, run_id)
    listed = reviews.listed(session, run_id)
    if listed is None:
        raise runs.unknown(run_id)
    said, duplicates, names = reviews_of(session, run_id), reviews.duplicates(session, [run_id])[run_id], accounts.names(session)
    stored = runs.load(session, run_id)
    shown = said if sees_opinions(run, said, viewer_id) else [one for one in said if one.reviewer_id == viewer_id]
    replay = replay_of(stored, names)
    return RunReview(
        item=_item(listed, said, duplicates, len(replay.steps), names),
        instruction=run.instruction,
        guidelines=stored.campaign.guidelines,
        run=replay,
        second_run=replay_of(runs.load(session, duplicates[0].run_id), names) if duplicates else None,
        reviews=tuple(view_of(one, names) for one in shown),
    )


def sees_opinions(run: Run, said: Sequence[Review], viewer_id: str) -> bool:
    """Whether somebody sees the others' opinions of a run."""
    if (kind := wanted(run, said)) is None:
        return True
    return kind == "adjudication" and viewer_id != run.user_id and all(one.reviewer_id != viewer_id for one in said)


def _item(one: Listed, said: Sequence[Review], duplicates: Sequence[Run], num_steps: int, names: dict[str, str]) -> ReviewItem:
    run, assignment = one.run, one.assignment
    return ReviewItem(
        run_id=run.run_id,
        kind=wanted(run, said) or "second",
        why=why(run, said, duplicates) if wanted(run, said) else (),
        campaign=one.campaign_name,
        task_name=assignment.task_name,
        seed=assignment.seed,
        annotator=names.get(run.user_id, run.user_id),
        num_steps=num_steps,
        person_verdict=run.person_verdict,
        verifier_verdict=run.verifier_verdict,
        finished_at_s=run.finished_at_s or 0.0,
    )


def finished(session: Session, run_id: str, *, for_update: bool = False) -> Run:
    """Raises UnknownSubject, NotNow."""
    run = session.get(Run, run_id, with_for_update=for_update)
    if run is None:
        raise UnknownSubject(f"there is no run {run_id[:80]!r}")
    if run.state != "finished":
        raise NotNow(f"run {run_id} is {run.state}: only finished runs are reviewed")
    return run


def _check(session: Session, run: Run, said: SubmitReview, by: Principal) -> None:
    if reviews.annotated_instance(session, run.run_id, by.user_id):
        raise AccessDenied(f"you annotated run {run.run_id} or another copy of its task: a second opinion is another person's")
    if run.withdrawn_at_s is not None:
        raise NotNow(f"run {run.run_id} was withdrawn: there is nothing to review any more")
    before = reviews_of(session, run.run_id)
    kind = wanted(run, before)
    if kind is None:
        raise NotNow(f"run {run.run_id} is settled: it was {run.review_state} meanwhile")
    if any(one.reviewer_id == by.user_id for one in before):
        raise NotNow(f"you spoke on run {run.run_id} before: what is wanted now is another person's word")
    if kind != said.kind:
        raise OutOfDate(f"run {run.run_id} waits for a review of the kind {kind}, not {said.kind}: look again, somebody spoke meanwhile")
    if unknown := set(said.steps) - reviews.step_indexes(session, run.run_id):
        raise ConfigError(f"run {run.run_id} has no step {min(unknown)}: opinions are of its decided steps, counted from 0")


def _follow(session: Session, run: Run, made: Review) -> None:
    """What follows from a review. An approving one without a verdict on the task settles nothing, and objects to nothing."""
    agrees = made.approves and made.verdict == run.person_verdict
    if made.kind == "adjudication" or agrees:
        run_endings.settle(session, run, approves=made.approves, now_s=made.created_at_s)
    elif not made.approves or made.verdict is not None:
        run_endings.dispute(session, run, now_s=made.created_at_s)
