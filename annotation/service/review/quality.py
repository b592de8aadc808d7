"""What finished work amounts to: by person how much, how fast and how well; by day; by policy version how often its proposals are taken as
they are; and how far people agree (agreement.py, over the ratings of ratings.py).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

from sqlalchemy.orm import Session

from annotation.service.review.agreement import agreements
from annotation.service.review.ratings import ratings
from annotation.service.review.review import opinions
from annotation.storage import accounts, campaigns, finished_work
from annotation.storage.database import Database
from annotation.storage.finished_work import DecidedStep, Window
from annotation.storage.schema import Review, Run
from annotation.wire.review import Agreement, Day, PersonQuality, PolicyRates
from annotation.wire.review import Quality as QualityView

DAY_S = 86400.0
LONGEST_STEP_S = 300.0
"""A longer pause at one step counts as an absence: as working time it counts as much as this."""


class Quality:
    """`clock` gives seconds since 1970."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    async def look(self, *, days: int, campaign_id: str | None = None) -> QualityView:
        """Of what was finished in the last `days` days, UTC, today among them. Raises UnknownSubject for no such campaign."""
        return await self._database.reading(_look, days, campaign_id, self._clock())


@dataclass(slots=True)
class _Work:
    """Of one person."""

    runs: list[Run] = field(default_factory=list)
    steps: list[DecidedStep] = field(default_factory=list)
    are_right: list[bool] = field(default_factory=list)


def _look(session: Session, days: int, campaign_id: str | None, now_s: float) -> QualityView:
    if campaign_id is not None:
        campaigns.get(session, campaign_id)
    first_s = now_s - now_s % DAY_S - (days - 1) * DAY_S
    window = Window(since_s=first_s, campaign_id=campaign_id)
    runs, steps = finished_work.runs(session, window), finished_work.steps(session, window)
    said = finished_work.run_reviews(session, window)
    found = agreements(ratings(session, window, runs, said))
    return QualityView(
        agreement=tuple(
            Agreement(
                field=one.field, kappa=one.kappa, alpha=one.alpha, observed=one.observed, num_items=one.num_units, num_people=one.num_raters
            )
            for one in found
        ),
        people=_people(runs, steps, said, accounts.names(session)),
        days=_days(runs, steps, first_s, days),
        policies=_policies(steps),
    )


def _people(
    runs: Sequence[Run], steps: Sequence[DecidedStep], said: Sequence[Review], names: Mapping[str, str]
) -> tuple[PersonQuality, ...]:
    """Those with the most steps first."""
    work: defaultdict[str, _Work] = defaultdict(_Work)
    of_run: defaultdict[str, list[Review]] = defaultdict(list)
    for one in said:
        of_run[str(one.run_id)].append(one)
    for run in runs:
        work[run.user_id].runs.append(run)
        work[run.user_id].are_right += opinions(of_run[run.run_id], "is_right").values()
    for step in steps:
        work[step.user_id].steps.append(step)
    found = [_person(user_id, names.get(user_id, user_id), of) for user_id, of in work.items()]
    return tuple(sorted(found, key=lambda person: (-person.num_steps, person.name)))


def _person(user_id: str, name: str, of: _Work) -> PersonQuality:
    took_s = [max(0.0, step.decided_at_s - step.asked_at_s) for step in of.steps]
    decisions = Counter(step.decision for step in of.steps)
    agrees = [run.person_verdict == run.verifier_verdict for run in of.runs if run.verifier_verdict is not None]
    approved = [run.review_state == "approved" for run in of.runs if run.review_state in ("approved", "rejected")]
    num = len(of.steps)
    return PersonQuality(
        user_id=user_id,
        name=name,
        num_runs=len(of.runs),
        num_steps=num,
        worked_s=sum(min(LONGEST_STEP_S, one) for one in took_s),
        median_step_s=median(took_s) if took_s else None,
        accept_share=decisions["accept"] / num if num else None,
        edit_share=decisions["edit"] / num if num else None,
        override_share=decisions["override"] / num if num else None,
        num_backs=sum(run.num_backs for run in of.runs),
        agrees_with_verifier=_share(agrees),
        approved_share=_share(approved),
        right_share=_share(of.are_right),
    )


def _days(runs: Sequence[Run], steps: Sequence[DecidedStep], first_s: float, days: int) -> tuple[Day, ...]:
    """By the day on which a run was finished, oldest first, without gaps."""
    num_runs, num_steps = Counter(_day(run.finished_at_s or 0.0) for run in runs), Counter(_day(step.finished_at_s) for step in steps)
    people: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        people[_day(run.finished_at_s or 0.0)].add(run.user_id)
    names = [_day(first_s + number * DAY_S) for number in range(days)]
    return tuple(Day(day=day, num_runs=num_runs[day], num_steps=num_steps[day], num_people=len(people[day])) for day in names)


def _policies(steps: Sequence[DecidedStep]) -> tuple[PolicyRates, ...]:
    """In the order in which they were first annotated; `steps` are in the order of their decisions."""
    by_policy: dict[str, list[DecidedStep]] = {}
    for step in steps:
        by_policy.setdefault(step.policy_id, []).append(step)
    found = []
    for policy_id, of in by_policy.items():
        counts = Counter(step.decision for step in of)
        shares = {name: counts[name] / len(of) for name in ("accept", "edit", "override", "beyond_repair")}
        found.append(PolicyRates(policy_id=policy_id, first_at_s=of[0].decided_at_s, num_steps=len(of), **shares))
    return tuple(found)


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
