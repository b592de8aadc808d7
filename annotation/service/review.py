"""Second opinions: which finished runs wait for one, what it does to them, and the word that settles a disagreement.

A run waits where the person and the verifier, or two people who did the same instance, disagree (review_state `pending`, set when a run
is finished). A reviewer who shares the annotator's verdict and approves settles it; one who does not leaves it to a third person. Anyone's
run may be looked at again: what counts already goes on counting until it is rejected.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from annotation.service.agreement import Rating
from annotation.storage import landings
from annotation.storage.ids import new_id
from annotation.storage.schema import Assignment, Review, Run, RunStep
from warehouse.errors import NotNow, UnknownSubject

Wanted = Literal["second", "adjudication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that waits for a word, and of which kind."""

    run_id: str
    assignment_id: str
    task_name: str
    domain: str
    user_id: str
    finished_at_s: float
    wanted: Wanted
    why: str


def waiting(session: Session, reviewer_id: str, *, limit: int = 100) -> list[Waiting]:
    """What this person may say something of, oldest first: never their own runs, nor those that they spoke on already."""
    query = (
        select(Run, Assignment)
        .join(Assignment, Assignment.assignment_id == Run.assignment_id)
        .where(Run.state == "finished", Run.withdrawn_at_s.is_(None), Run.user_id != reviewer_id)
        .where((Run.review_state == "pending") | Run.run_id.in_(select(Review.run_id).where(Review.run_id.is_not(None))))
        .order_by(Run.finished_at_s, Run.run_id)
    )
    found: list[Waiting] = []
    pairs = session.execute(query).all()
    reviews = _reviews(session, [run.run_id for run, _ in pairs])
    for run, assignment in pairs:
        said = reviews[run.run_id]
        wanted = _wanted(run, said)
        if wanted is None or any(review.reviewer_id == reviewer_id for review in said):
            continue
        found.append(
            Waiting(
                run_id=run.run_id, assignment_id=run.assignment_id, task_name=assignment.task_name, domain=assignment.domain,
                user_id=run.user_id, finished_at_s=run.finished_at_s or 0.0, wanted=wanted, why=_why(run, said),
            )
        )  # fmt: skip
        if len(found) == limit:
            break
    return found


def review(
    session: Session, run_id: str, reviewer_id: str, *, approves: bool, verdict: bool, steps: Mapping[int, Mapping[str, Any]],
    note: str = "",
) -> Review:  # fmt: skip
    """Record what a reviewer says, as the kind that the run waits for, and what follows from it. `verdict`: whether the task was done.

    Raises UnknownSubject for no such run, NotNow where it is not finished, withdrawn or settled, is the reviewer's own, or was spoken on
    by them before.
    """
    run = session.get(Run, run_id, with_for_update=True)
    if run is None:
        raise UnknownSubject(f"there is no run {run_id[:80]!r}")
    if run.state != "finished" or run.withdrawn_at_s is not None:
        raise NotNow(f"run {run_id} is {'withdrawn' if run.withdrawn_at_s else run.state}: only finished runs are reviewed")
    said = _reviews(session, [run_id])[run_id]
    if run.user_id == reviewer_id or any(one.reviewer_id == reviewer_id for one in said):
        raise NotNow(f"run {run_id} is yours, or you spoke on it before: a second opinion is another person's")
    if any(one.kind == "adjudication" for one in said):
        raise NotNow(f"run {run_id} is settled: it was adjudicated")
    unknown = set(steps) - set(session.scalars(select(RunStep.step_index).where(*_standing(run_id))))
    if unknown:
        raise UnknownSubject(f"run {run_id} has no step {min(unknown)}")
    made = Review(
        review_id=new_id("review"), run_id=run_id, recording_id=None, reviewer_id=reviewer_id,
        kind="adjudication" if _wanted(run, said) == "adjudication" else "second", approves=approves, verdict=verdict,
        steps={str(index): dict(says) for index, says in sorted(steps.items())}, note=note or None, created_at_s=time.time(),
    )  # fmt: skip
    session.add(made)
    _settle(session, run, made)
    return made


def withdraw(session: Session, run_id: str) -> None:
    """Take a finished run back: it disappears from the next version of every dataset. May be done twice. Raises UnknownSubject, NotNow."""
    run = session.get(Run, run_id, with_for_update=True)
    if run is None:
        raise UnknownSubject(f"there is no run {run_id[:80]!r}")
    if run.state != "finished":
        raise NotNow(f"run {run_id} is {run.state}: only what is finished can be withdrawn")
    if run.withdrawn_at_s is None:
        run.withdrawn_at_s = time.time()
        landings.append(session, "withdrawal", run_id, now_s=run.withdrawn_at_s)


def verdict_that_stands(run: Run, said: Sequence[Review]) -> bool | None:
    """The last word on whether the task was done: of who settled it, else of who did it."""
    settled = [one for one in said if one.kind == "adjudication" and one.verdict is not None]
    return settled[-1].verdict if settled else run.person_verdict


def wrong_steps(said: Sequence[Review]) -> set[int]:
    """Steps that the last reviewer who said something of them called wrong: they teach nothing."""
    is_right: dict[int, bool] = {}
    for one in said:
        is_right |= {int(index): bool(says["is_right"]) for index, says in one.steps.items() if "is_right" in says}
    return {index for index, right in is_right.items() if not right}


def ratings(session: Session) -> list[Rating]:
    """All that two people said of one thing: the verdict on a run (annotator, reviewers) and on an instance (both copies), and, where
    both saw the same screen, what they decided and did there."""
    runs = list(session.scalars(select(Run).where(Run.state == "finished").order_by(Run.finished_at_s)))
    found = [
        Rating(field="verdict", unit=f"run {run.run_id}", rater=run.user_id, value=str(run.person_verdict))
        for run in runs if run.person_verdict is not None
    ]  # fmt: skip
    for one in session.scalars(select(Review).where(Review.run_id.is_not(None), Review.verdict.is_not(None)).order_by(Review.created_at_s)):
        found.append(Rating(field="verdict", unit=f"run {one.run_id}", rater=one.reviewer_id, value=str(one.verdict)))
    for unit, copies in _copies(session, runs).items():
        found += [Rating(field="verdict of copies", unit=unit, rater=run.user_id, value=str(run.person_verdict)) for run in copies]
        found += _of_steps(session, unit, copies)
    return found


def _copies(session: Session, runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of one instance by several people, by instance."""
    wanted = {run.assignment_id: run for run in runs}
    rows = session.execute(select(Assignment.assignment_id, Assignment.campaign_id, Assignment.task_id, Assignment.seed)).all()
    together: dict[str, list[Run]] = defaultdict(list)
    for assignment_id, campaign_id, task_id, seed in rows:
        if assignment_id in wanted:
            together[f"{campaign_id} {task_id} {seed}"].append(wanted[assignment_id])
    return {unit: copies for unit, copies in together.items() if len({run.user_id for run in copies}) > 1}


def _of_steps(session: Session, unit: str, copies: Sequence[Run]) -> list[Rating]:
    steps = session.scalars(
        select(RunStep).where(RunStep.run_id.in_([run.run_id for run in copies]), RunStep.superseded_at_s.is_(None))
        .where(RunStep.decided_at_s.is_not(None)).order_by(RunStep.step_index)
    )  # fmt: skip
    whose = {run.run_id: run.user_id for run in copies}
    found = []
    for step in steps:
        seen = f"{unit} {step.step_index} {step.screenshot_id or step.observation}"
        found.append(Rating(field="decision", unit=seen, rater=whose[step.run_id], value=str(step.decision)))
        kind = (step.action or {}).get("kind", "none")
        found.append(Rating(field="kind of action", unit=seen, rater=whose[step.run_id], value=str(kind)))
    return found


def _reviews(session: Session, run_ids: Sequence[str]) -> dict[str, list[Review]]:
    found: dict[str, list[Review]] = defaultdict(list)
    for one in session.scalars(select(Review).where(Review.run_id.in_(run_ids)).order_by(Review.created_at_s, Review.review_id)):
        found[str(one.run_id)].append(one)
    return found


def reviews_of(session: Session, run_id: str) -> list[Review]:
    """Oldest first."""
    return _reviews(session, [run_id])[run_id]


def _standing(run_id: str) -> tuple[Any, ...]:
    return RunStep.run_id == run_id, RunStep.superseded_at_s.is_(None), RunStep.decided_at_s.is_not(None)


def _wanted(run: Run, said: Sequence[Review]) -> Wanted | None:
    if any(one.kind == "adjudication" for one in said):
        return None
    if any(not one.approves or one.verdict != run.person_verdict for one in said):
        return "adjudication"
    return "second" if run.review_state == "pending" else None


def _why(run: Run, said: Sequence[Review]) -> str:
    if any(one.verdict != run.person_verdict for one in said):
        return "annotator and reviewer disagree about the verdict"
    if any(not one.approves for one in said):
        return "the reviewer does not approve"
    if run.verifier_verdict is not None and run.verifier_verdict != run.person_verdict:
        return "person and verifier disagree"
    return "two people who did it disagree"


def _settle(session: Session, run: Run, made: Review) -> None:
    """What follows from a review. A run that counts for the first time lands; one that no longer counts is taken back."""
    agrees = made.approves and made.verdict == run.person_verdict
    if made.kind == "second" and not agrees:
        return
    counted = run.review_state in ("none", "approved")
    run.review_state = "approved" if made.approves else "rejected"
    if made.approves and not counted:
        landings.append(session, "run", run.run_id, now_s=made.created_at_s)
    elif not made.approves and counted:
        landings.append(session, "withdrawal", run.run_id, now_s=made.created_at_s)
