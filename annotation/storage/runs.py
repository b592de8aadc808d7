"""Annotated runs: their steps, proposals and drafts. To change a run, hold its assignment's lease first (`hold`), so that one whose
lease has gone to the next person can change nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from sqlalchemy import Table, bindparam, insert, select, update
from sqlalchemy.orm import Session

from annotation.storage import assignments
from annotation.storage.ids import new_id
from annotation.storage.schema import Assignment, Campaign, Draft, Proposal, Run, RunStep
from warehouse.core.errors import AssignmentLost, NotNow, UnknownSubject

DECIDED_COLUMNS = ("decision", "candidate", "response", "executed", "thought", "action")
WORTH_RENEWING = 0.9
"""A lease that has more than this share of its time left is not written again."""
AS_IT_IS = {"synchronize_session": False}
"""Nothing that such a statement changes has been read in the same transaction."""

# Built once: what each step of each run does is dear enough without.
_HELD = (
    select(Assignment, Run, Campaign.lease_s)
    .select_from(Assignment)
    .join(Run, Run.assignment_id == Assignment.assignment_id)
    .join(Campaign, Campaign.campaign_id == Assignment.campaign_id)
    .where(Run.run_id == bindparam("run"))
    .with_for_update(of=(Assignment, Run))
    .execution_options(populate_existing=True)
)
_STEP_TABLE = cast(Table, RunStep.__table__)
_STEPS = _STEP_TABLE.c
_NEW_STEP, _NEW_PROPOSAL = insert(_STEP_TABLE), insert(cast(Table, Proposal.__table__))
_EXECUTED = (
    update(_STEP_TABLE).where(_STEPS.step_id == bindparam("step")).values(reward=bindparam("reward"), executed_at_s=bindparam("at_s"))
)
_DECIDED = (
    update(_STEP_TABLE)
    .where(_STEPS.step_id == bindparam("step"), _STEPS.decided_at_s.is_(None), _STEPS.superseded_at_s.is_(None))
    .values(decided_at_s=bindparam("at_s"), **{name: bindparam(name) for name in DECIDED_COLUMNS})
)


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


def begin(session: Session, assignment_id: str, lease_number: int, user_id: str, *, policy_id: str, grammar: str, now_s: float) -> Stored:
    """The run of a lease; a lease has one. Runs of earlier leases are abandoned. Raises UnknownSubject, AssignmentLost."""
    assignment = assignments.held(session, assignment_id, user_id, lease_number)
    live = session.scalars(select(Run).where(Run.assignment_id == assignment_id, Run.state == "live")).all()
    for run in live:
        if run.lease_number == lease_number:
            return load(session, run.run_id)
        run.state, run.finished_at_s = "abandoned", now_s
    run = Run(
        run_id=new_id("run"),
        assignment_id=assignment_id,
        lease_number=lease_number,
        user_id=user_id,
        policy_id=policy_id,
        grammar=grammar,
        state="live",
        started_at_s=now_s,
        num_backs=0,
        review_state="none",
    )
    session.add(run)
    campaign = session.get_one(Campaign, assignment.campaign_id)
    return Stored(run=run, assignment=assignment, campaign=campaign, steps=(), proposals={}, drafts={})


def campaign_of(session: Session, assignment_id: str) -> Campaign:
    """Raises UnknownSubject."""
    assignment = session.get(Assignment, assignment_id)
    if assignment is None:
        raise UnknownSubject(f"there is no assignment {assignment_id[:80]!r}")
    return session.get_one(Campaign, assignment.campaign_id)


def get(session: Session, run_id: str) -> Run:
    """Raises UnknownSubject."""
    run = session.get(Run, run_id)
    if run is None:
        raise unknown(run_id)
    return run


def load(session: Session, run_id: str) -> Stored:
    """Raises UnknownSubject."""
    run = get(session, run_id)
    assignment, steps = session.get_one(Assignment, run.assignment_id), kept_steps(session, run_id)
    proposals: dict[str, list[Proposal]] = {step.step_id: [] for step in steps}
    query = select(Proposal).where(Proposal.step_id.in_(list(proposals))).order_by(Proposal.step_id, Proposal.rank)
    for proposal in session.scalars(query):
        proposals[proposal.step_id].append(proposal)
    drafts = {draft.step_index: draft for draft in session.scalars(select(Draft).where(Draft.run_id == run_id))}
    return Stored(
        run=run,
        assignment=assignment,
        campaign=session.get_one(Campaign, assignment.campaign_id),
        steps=tuple(steps),
        proposals={step_id: tuple(found) for step_id, found in proposals.items()},
        drafts=drafts,
    )


def kept_steps(session: Session, run_id: str) -> Sequence[RunStep]:
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
    found = session.execute(_HELD, {"run": run_id}).one_or_none()
    if found is None:
        raise unknown(run_id)
    assignment, run, lease_s = found
    if run.state != "live":
        raise NotNow(f"run {run_id} is {run.state}: it can no longer be changed")
    if not holds(run, assignment):
        raise AssignmentLost("this assignment is not yours any more: the lease ran out and somebody else has it, or it was ended elsewhere")
    if renew and (assignment.lease_until_s or 0.0) < now_s + WORTH_RENEWING * lease_s:
        assignment.lease_until_s = now_s + lease_s
    return run, assignment


def ask(session: Session, run_id: str, asked: Asked, executed: Sequence[Executed], *, instruction: str, environment: str | None) -> None:
    """Store a decision point, and what came of the steps before it."""
    run, _ = hold(session, run_id, now_s=asked.at_s)
    run.instruction, run.environment = instruction, environment
    note_executed(session, executed)
    _add_step(session, run_id, asked)
    add_proposals(session, asked.step_id, asked.proposals)


def _add_step(session: Session, run_id: str, asked: Asked) -> None:
    row = {
        "step_id": asked.step_id,
        "run_id": run_id,
        "step_index": asked.step_index,
        "asked_at_s": asked.at_s,
        "messages": asked.messages,
        "observation": asked.observation,
        "screenshot_id": asked.screenshot_id,
        "url": asked.url,
        "screen": asked.screen,
    }
    session.execute(_NEW_STEP, row)


def add_proposals(session: Session, step_id: str, proposals: Sequence[Proposed], *, first_rank: int = 0) -> None:
    if proposals:
        session.execute(
            _NEW_PROPOSAL, [{"step_id": step_id, "rank": rank, **asdict(each)} for rank, each in enumerate(proposals, first_rank)]
        )


def add_more(session: Session, run_id: str, step_id: str, proposals: Sequence[Proposed], *, first_rank: int, now_s: float) -> None:
    """Proposals that were asked for in addition."""
    hold(session, run_id, now_s=now_s, renew=True)
    add_proposals(session, step_id, proposals, first_rank=first_rank)


def note_executed(session: Session, executed: Sequence[Executed]) -> None:
    if executed:
        session.connection().execute(_EXECUTED, [{"step": each.step_id, "reward": each.reward, "at_s": each.at_s} for each in executed])


def decide(session: Session, run_id: str, step_id: str, decided: Decided, *, now_s: float) -> float:
    """Store a decision; when the lease ends now. Raises NotNow where the step was decided already."""
    _, assignment = hold(session, run_id, now_s=now_s, renew=True)
    changed = session.connection().execute(_DECIDED, {"step": step_id, "at_s": now_s, **asdict(decided)})
    if changed.rowcount != 1:
        raise NotNow(f"this step of run {run_id} was decided already")
    return assignment.lease_until_s or now_s


def rewind(session: Session, run_id: str, to_step: int, *, now_s: float, by_person: bool) -> float:
    """Supersede the steps from `to_step` on, and empty their drafts; the episode goes on. When the lease ends now."""
    run, assignment = hold(session, run_id, now_s=now_s, renew=by_person)
    later = update(RunStep).where(RunStep.run_id == run_id, RunStep.step_index >= to_step, RunStep.superseded_at_s.is_(None))
    session.execute(later.values(superseded_at_s=now_s), execution_options=AS_IT_IS)
    drafts = update(Draft).where(Draft.run_id == run_id, Draft.step_index >= to_step)
    session.execute(drafts.values(number=0, thought="", action="", candidate=None, saved_at_s=now_s), execution_options=AS_IT_IS)
    run.outcome = run.reward = run.points = run.verifier_verdict = None
    run.num_backs += int(by_person)
    return assignment.lease_until_s or now_s


def end(
    session: Session,
    run_id: str,
    *,
    outcome: str,
    reward: float | None,
    points: float | None,
    verdict: bool | None,
    environment: str,
    executed: Sequence[Executed],
    last: Asked | None,
    now_s: float,
) -> None:
    """The episode is over: its outcome, and its last screen as a step that is never decided."""
    run, _ = hold(session, run_id, now_s=now_s)
    run.outcome, run.reward, run.points, run.verifier_verdict, run.environment = outcome, reward, points, verdict, environment
    note_executed(session, executed)
    if last is not None:
        _add_step(session, run_id, last)


def abandon(session: Session, run_id: str, *, now_s: float) -> bool:
    """A live run is given up; whether it was live."""
    run = session.get(Run, run_id, with_for_update=True)
    if run is None or run.state != "live":
        return False
    run.state, run.finished_at_s = "abandoned", now_s
    return True


def save_draft(
    session: Session, run_id: str, step_index: int, number: int, thought: str, action: str, candidate: int | None, *, now_s: float
) -> Draft:
    """The newest draft of a step: a lower number than the stored one changes nothing."""
    hold(session, run_id, now_s=now_s, renew=True)
    draft = session.get(Draft, (run_id, step_index))
    if draft is None:
        draft = Draft(
            run_id=run_id, step_index=step_index, number=number, thought=thought, action=action, candidate=candidate, saved_at_s=now_s
        )
        session.add(draft)
    elif number > draft.number:
        draft.number, draft.thought, draft.action, draft.candidate, draft.saved_at_s = number, thought, action, candidate, now_s
    return draft


def shows(session: Session, run_id: str, screenshot_id: str) -> bool:
    """Whether a picture is one of the run's."""
    query = select(RunStep.step_id).where(RunStep.run_id == run_id, RunStep.screenshot_id == screenshot_id).limit(1)
    return session.scalar(query) is not None


def unknown(run_id: str) -> UnknownSubject:
    return UnknownSubject(f"there is no run {run_id[:80]!r}, or it is somebody else's")
