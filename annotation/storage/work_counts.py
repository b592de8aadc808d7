"""What somebody is at and has done, in numbers. Quality is reported elsewhere: this is for the person themselves."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from annotation.storage.assignments import held_by_user, live_run
from annotation.storage.schema import Assignment, Campaign, Run, RunStep

DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    held: Assignment | None
    campaign: Campaign | None
    run_id: str | None
    num_today: int
    num_finished: int
    num_decisions_today: int


def of_user(session: Session, user_id: str, *, now_s: float) -> Counts:
    """`today` begins at midnight, UTC."""
    midnight_s = now_s - now_s % DAY_S
    held = held_by_user(session, user_id)
    finished = select(func.count()).select_from(Run).where(Run.user_id == user_id, Run.state == "finished", Run.withdrawn_at_s.is_(None))
    decided = select(func.count()).select_from(RunStep).join(Run, Run.run_id == RunStep.run_id)
    return Counts(
        held=held,
        campaign=session.get(Campaign, held.campaign_id) if held is not None else None,
        run_id=live_run(session, held) if held is not None else None,
        num_today=session.scalar(finished.where(Run.finished_at_s >= midnight_s)) or 0,
        num_finished=session.scalar(finished) or 0,
        num_decisions_today=session.scalar(decided.where(Run.user_id == user_id, RunStep.decided_at_s >= midnight_s)) or 0,
    )
