"""Annotated runs: their steps, proposals and drafts. Whoever changes a run holds its assignment's lease first (`hold`), so that one whose
lease has gone to the next person can change nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from annotation.storage import assignments
from annotation.storage.ids import new_id
from annotation.storage.schema import Assignment, Campaign, Draft, Proposal, Run, RunStep
from warehouse.errors import NotNow, UnknownSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A decision point as it is stored before it is shown; its proposals by rank."""

    step_id: str
    step_index: int
    at_s: float
    messages: list[Any]
    observation: str
    screenshot_id: str | None
    url: str | None
    screen: dict[str, Any]
    proposals: tuple[Proposed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    text: str
    score: float | None
    num_samples: int
    policy_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a person decided at a step. `action` is the response's, as JSON."""

    decision: str
    candidate: int | None
    response: str | None
    executed: str | None
    thought: str | None
    action: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What came of a step."""

    step_id: str
    reward: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A run with all that belongs to it. `steps` are those that were not stepped back over, in order; the last may be undecided."""

    run: Run
    assignment: Assignment
    campaign: Campaign
    steps: tuple[RunStep, ...]
    proposals: dict[str, tuple[Proposal, ...]]
    """By step id, in the order of their ranks."""
    drafts: dict[int, Draft]
    """By step index."""


def begin(
    session: Session, assignment_id: str, lease_number: int, user_id: str, *, policy_id: str, grammar: str, now_s: float
) -> tuple[str, bool]:
    """The run of a lease, and whether it is new; a lease has one. Runs of earlier leases are abandoned. Raises UnknownSubject,
    AssignmentLost."""
    assignments.held(session, assignment_id, user_id, lease_number)
    live = session.scalars(select(Run).where(Run.assignment_id == assignment_id, Run.state == "live")).all()
    for run in live:
        if run.lease_number == lease_number:
            return run.run_id, False
        run.state, run.finished_at_s = "abandoned", now_s
    run = Run(
        run_id=new_id("run"), assignment_id=assignment_id, lease_number=lease_number, user_id=user_id, policy_id=policy_id, grammar=grammar,
        state="live", started_at_s=now_s, num_backs=0, review_state="none",
    )  # fmt: skip
    session.add(run)
    return run.run_id, True


def campaign_of(session: Session, assignment_id: str) -> Campaign:
    """Raises UnknownSubject."""
    assignment = session.get(Assignment, assignment_id)
    if assignment is None:
        raise UnknownSubject(f"there is no assignment {assignment_id[:80]!r}")
    return session.get_one(Campaign, assignment.campaign_id)


def of_lease(session: Session, assignment_id: str, lease_number: int) -> str | None:
    """The live run of a lease."""
    query = select(Run.run_id).where(Run.assignment_id == assignment_id, Run.lease_number == lease_number, Run.state == "live")
    return session.scalar(query)


def get(session: Session, run_id: str) -> Run:
    """Raises UnknownSubject."""
    run = session.get(Run, run_id)
    if run is None:
        raise unknown(run_id)
    return run


def load(session: Session, run_id: str) -> Stored:
    """Raises UnknownSubject."""
    run = get(session, run_id)
    assignment, steps = session.get_one(Assignment, run.assignment_id), standing(session, run_id)
    proposals: dict[str, list[Proposal]] = {step.step_id: [] for step in steps}
    query = select(Proposal).where(Proposal.step_id.in_(list(proposals))).order_by(Proposal.step_id, Proposal.rank)
    for proposal in session.scalars(query):
        proposals[proposal.step_id].append(proposal)
    drafts = {draft.step_index: draft for draft in session.scalars(select(Draft).where(Draft.run_id == run_id))}
    return Stored(
        run=run, assignment=assignment, campaign=session.get_one(Campaign, assignment.campaign_id), steps=tuple(steps),
        proposals={step_id: tuple(found) for step_id, found in proposals.items()}, drafts=drafts,
    )  # fmt: skip


def standing(session: Session, run_id: str) -> Sequence[RunStep]:
    """Steps that were not stepped back over, in order."""
    query = select(RunStep).where(RunStep.run_id == run_id, RunStep.superseded_at_s.is_(None))
    return session.scalars(query.order_by(RunStep.step_index, RunStep.asked_at_s)).all()


def live_runs(session: Session) -> Sequence[tuple[Run, Assignment]]:
    """Every run that is live, with its assignment, whatever became of the lease."""
    query = select(Run, Assignment).join(Assignment, Run.assignment_id == Assignment.assignment_id).where(Run.state == "live")
    return [(run, assignment) for run, assignment in session.execute(query.order_by(Run.started_at_s))]


def holds(run: Run, assignment: Assignment) -> bool:
    """Whether a run's lease is still the assignment's."""
    return assignment.state == "leased" and assignment.lease_number == run.lease_number and assignment.user_id == run.user_id


def hold(session: Session, run_id: str, *, now_s: float, renew: bool = False) -> tuple[Run, Assignment]:
    """A live run and its assignment, locked until the transaction ends. `renew`: a sign of life of the person, which puts off the lease's
    end. Raises UnknownSubject, NotNow, AssignmentLost."""
    found = get(session, run_id)
    # The assignment is locked first, as by everybody else.
    assignment = assignments.held(session, found.assignment_id, found.user_id, found.lease_number)
    session.refresh(found, with_for_update=True)
    if found.state != "live":
        raise NotNow(f"run {run_id} is {found.state}: nothing about it can be changed any more")
    if renew:
        lease_s = session.get_one(Campaign, assignment.campaign_id).lease_s
        assignment.lease_until_s = max(assignment.lease_until_s or 0.0, now_s + lease_s)
    return found, assignment


def ask(session: Session, run_id: str, asked: Asked, executed: Sequence[Executed], *, instruction: str, environment: str | None) -> None:
    """Store a decision point, and what came of the steps before it. A draft of the same step belongs to one that was stepped back over:
    it is emptied."""
    run, _ = hold(session, run_id, now_s=asked.at_s)
    run.instruction, run.environment = instruction, environment
    note_executed(session, executed)
    session.add(
        RunStep(
            step_id=asked.step_id, run_id=run_id, step_index=asked.step_index, asked_at_s=asked.at_s, messages=asked.messages,
            observation=asked.observation, screenshot_id=asked.screenshot_id, url=asked.url, screen=asked.screen,
        )
    )  # fmt: skip
    session.flush()
    add_proposals(session, asked.step_id, asked.proposals)
    if (draft := session.get(Draft, (run_id, asked.step_index))) is not None:
        draft.number, draft.thought, draft.action, draft.saved_at_s = 0, "", "", asked.at_s


def add_proposals(session: Session, step_id: str, proposals: Sequence[Proposed], *, first_rank: int = 0) -> None:
    session.add_all(
        Proposal(
            step_id=step_id, rank=rank, text=each.text, score=each.score, num_samples=each.num_samples, policy_id=each.policy_id
        )
        for rank, each in enumerate(proposals, start=first_rank)
    )  # fmt: skip


def add_more(session: Session, run_id: str, step_id: str, proposals: Sequence[Proposed], *, first_rank: int, now_s: float) -> None:
    """Proposals that were asked for in addition."""
    hold(session, run_id, now_s=now_s, renew=True)
    add_proposals(session, step_id, proposals, first_rank=first_rank)


def note_executed(session: Session, executed: Sequence[Executed]) -> None:
    for each in executed:
        step = session.get_one(RunStep, each.step_id)
        step.reward, step.executed_at_s = each.reward, each.at_s


def decide(session: Session, run_id: str, step_id: str, decided: Decided, *, now_s: float) -> float:
    """Store a decision; when the lease ends now. Raises NotNow where the step was decided already."""
    _, assignment = hold(session, run_id, now_s=now_s, renew=True)
    step = session.get_one(RunStep, step_id)
    if step.decided_at_s is not None or step.superseded_at_s is not None:
        raise NotNow(f"step {step.step_index} of run {run_id} was decided already")
    step.decided_at_s, step.decision, step.candidate = now_s, decided.decision, decided.candidate
    step.response, step.executed, step.thought, step.action = decided.response, decided.executed, decided.thought, decided.action
    return assignment.lease_until_s or now_s


def rewind(session: Session, run_id: str, to_step: int, *, now_s: float, by_person: bool) -> float:
    """Supersede the steps from `to_step` on; the episode goes on. When the lease ends now."""
    run, assignment = hold(session, run_id, now_s=now_s, renew=by_person)
    later = update(RunStep).where(RunStep.run_id == run_id, RunStep.step_index >= to_step, RunStep.superseded_at_s.is_(None))
    session.execute(later.values(superseded_at_s=now_s))
    run.outcome = run.reward = run.verifier_verdict = None
    run.num_backs += int(by_person)
    return assignment.lease_until_s or now_s


def end(
    session: Session,
    run_id: str,
    *,
    outcome: str,
    reward: float | None,
    verdict: bool | None,
    environment: str,
    executed: Sequence[Executed],
    last: Asked | None,
    now_s: float,
) -> None:
    """The episode is over: its outcome, and its last screen as a step that is never decided."""
    run, _ = hold(session, run_id, now_s=now_s)
    run.outcome, run.reward, run.verifier_verdict, run.environment = outcome, reward, verdict, environment
    note_executed(session, executed)
    if last is not None:
        session.add(
            RunStep(
                step_id=last.step_id, run_id=run_id, step_index=last.step_index, asked_at_s=last.at_s, messages=last.messages,
                observation=last.observation, screenshot_id=last.screenshot_id, url=last.url, screen=last.screen,
            )
        )  # fmt: skip


def abandon(session: Session, run_id: str, *, now_s: float) -> bool:
    """A live run is given up; whether it was live."""
    run = session.get(Run, run_id, with_for_update=True)
    if run is None or run.state != "live":
        return False
    run.state, run.finished_at_s = "abandoned", now_s
    return True


def save_draft(session: Session, run_id: str, step_index: int, number: int, thought: str, action: str, *, now_s: float) -> Draft:
    """The newest draft of a step: a lower number than the stored one changes nothing."""
    hold(session, run_id, now_s=now_s, renew=True)
    draft = session.get(Draft, (run_id, step_index))
    if draft is None:
        draft = Draft(run_id=run_id, step_index=step_index, number=number, thought=thought, action=action, saved_at_s=now_s)
        session.add(draft)
    elif number > draft.number:
        draft.number, draft.thought, draft.action, draft.saved_at_s = number, thought, action, now_s
    return draft


def shows(session: Session, run_id: str, screenshot_id: str) -> bool:
    """Whether a picture is one of the run's."""
    query = select(RunStep.step_id).where(RunStep.run_id == run_id, RunStep.screenshot_id == screenshot_id).limit(1)
    return session.scalar(query) is not None


def unknown(run_id: str) -> UnknownSubject:
    return UnknownSubject(f"there is no run {run_id[:80]!r}, or it is somebody else's")
