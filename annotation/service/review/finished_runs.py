"""Finished runs, for their annotators and for reviewers: lists of them, and one of them step by step. Judging them and taking them back is
review.py's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sqlalchemy.orm import Session

from annotation.service.review.replays import replay_of
from annotation.service.review.review import MAY_REVIEW, finished, may_say, sees_opinions, view_of, withdrawal_of
from annotation.storage import accounts, reviews, run_lists, runs
from annotation.storage.database import Database
from annotation.storage.logins import Principal
from annotation.storage.reviews import Listed
from annotation.storage.run_lists import Wanted
from annotation.storage.run_status import status_of
from annotation.wire.finished import CampaignName, RunDetail, RunItem, RunList, RunStatus

MOST_LISTED = 100
"""At once: older ones are asked for by the last run of these."""


class FinishedRuns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def listed(
        self,
        viewer: Principal,
        *,
        campaign_id: str | None = None,
        user: str | None = None,
        status: RunStatus | None = None,
        before: str | None = None,
    ) -> RunList:
        """One's own, for reviewers everybody's, the newest first. Raises UnknownSubject for a `user` who is nobody."""

        def work(session: Session) -> RunList:
            own = None if viewer.role in MAY_REVIEW else viewer.user_id
            # An annotator who names somebody else gets no list of them, nor hears whether there is such a person.
            if own is not None and user not in (None, viewer.name):
                return RunList(runs=(), num=0, campaigns=(), people=(viewer.name,))
            return list_of(session, user=user, campaign_id=campaign_id, status=status, before=before, viewer_id=viewer.user_id, own=own)

        return await self._database.reading(work)

    async def look(self, run_id: str, viewer: Principal) -> RunDetail:
        """Raises UnknownSubject, also for another's run, NotNow for one that is not finished."""

        def work(session: Session) -> RunDetail:
            owner = runs.get(session, run_id).user_id
            if owner != viewer.user_id and viewer.role not in MAY_REVIEW:
                raise runs.unknown(run_id)
            run, listed = finished(session, run_id), reviews.listed(session, run_id)
            if listed is None:
                raise runs.unknown(run_id)
            said, names, stored = reviews.reviews_of(session, run_id), accounts.names(session), runs.load(session, run_id)
            replay = replay_of(stored, names)
            shown = said if sees_opinions(run, said, viewer.user_id) else [one for one in said if one.reviewer_id == viewer.user_id]
            return RunDetail(
                item=_item(listed, len(replay.steps), names, viewer.user_id),
                instruction=run.instruction,
                run=replay,
                guidelines=stored.campaign.guidelines,
                reviews=tuple(view_of(one, names) for one in shown),
                review=may_say(session, run, viewer) if viewer.role in MAY_REVIEW else None,
                withdrawal=withdrawal_of(session, "run", run_id, names),
            )

        return await self._database.reading(work)


def list_of(
    session: Session,
    *,
    user: str | None = None,
    campaign_id: str | None = None,
    status: RunStatus | None = None,
    before: str | None = None,
    viewer_id: str | None = None,
    own: str | None = None,
    limit: int = MOST_LISTED,
) -> RunList:
    """What there is of what is asked for. `own`: of this account only. Raises UnknownSubject for a `user` who is nobody."""
    user_id = own if own is not None else accounts.named(session, user).user_id if user is not None else None
    wanted = Wanted(user_id=user_id, campaign_id=campaign_id, status=status)
    found, names = run_lists.listed(session, wanted, before=before, limit=limit), accounts.names(session)
    steps = reviews.num_steps(session, [one.run.run_id for one in found])
    campaigns = run_lists.campaigns_of(session, own)
    return RunList(
        runs=tuple(_item(one, steps.get(one.run.run_id, 0), names, viewer_id) for one in found),
        num=run_lists.num(session, wanted),
        campaigns=tuple(CampaignName(campaign_id=campaign_id, name=name) for campaign_id, name in campaigns),
        people=(names[own],) if own is not None else tuple(run_lists.people(session)),
    )


def _item(one: Listed, num_steps: int, names: Mapping[str, str], viewer_id: str | None) -> RunItem:
    run, assignment = one.run, one.assignment
    return RunItem(
        run_id=run.run_id,
        campaign_id=assignment.campaign_id,
        campaign=one.campaign_name,
        task_name=assignment.task_name,
        seed=assignment.seed,
        annotator=names.get(run.user_id, run.user_id),
        is_own=run.user_id == viewer_id,
        status=cast(RunStatus, status_of(run)),
        num_steps=num_steps,
        person_verdict=run.person_verdict,
        verifier_verdict=run.verifier_verdict,
        policy_id=run.policy_id,
        finished_at_s=run.finished_at_s or 0.0,
        withdrawn_at_s=run.withdrawn_at_s,
    )
