"""Campaigns and who works on them: rows, and how far they are. What they are made of is service/campaigns.py's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from annotation.storage.run_status import copy_that_counts, state_that_counts
from annotation.storage.schema import CAMPAIGN_STATES, Assignment, Campaign, CampaignMember
from warehouse.core.errors import ConfigError, UnknownSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Assignments of a campaign. `num_finished` of the first copies is what counts towards its target; what was rejected or taken back
    afterwards is not among the finished, and the second copy of such an instance counts as its first (run_status.py)."""

    num_open: int = 0
    num_leased: int = 0
    num_finished: int = 0
    num_flagged: int = 0
    num_second_finished: int = 0
    num_second_wanted: int = 0


def add(session: Session, campaign: Campaign, members: Collection[str]) -> None:
    """Raises ConfigError for a name that is taken, UnknownSubject for a member who is nobody."""
    if session.scalar(select(Campaign.campaign_id).where(Campaign.name == campaign.name)) is not None:
        raise ConfigError(f"there is a campaign {campaign.name!r} already: choose another name")
    session.add(campaign)
    session.flush()
    set_members(session, campaign.campaign_id, members)


def get(session: Session, campaign_id: str, *, for_update: bool = False) -> Campaign:
    """Raises UnknownSubject."""
    campaign = session.get(Campaign, campaign_id, with_for_update=for_update)
    if campaign is None:
        raise UnknownSubject(f"there is no campaign {campaign_id[:80]!r}")
    return campaign


def named(session: Session, name: str) -> Campaign:
    """By name or id. Raises UnknownSubject."""
    campaign = session.scalar(select(Campaign).where(or_(Campaign.name == name, Campaign.campaign_id == name)))
    if campaign is None:
        raise UnknownSubject(f"there is no campaign {name[:80]!r}; `flywheel annotate campaign list` lists the campaigns")
    return campaign


def campaigns(session: Session, *, of_user: str | None = None, active_only: bool = False) -> Sequence[Campaign]:
    """The newest first; `of_user`: those that this user may work on."""
    query = select(Campaign).order_by(Campaign.created_at_s.desc(), Campaign.campaign_id)
    if active_only:
        query = query.where(Campaign.state == "active")
    if of_user is not None:
        query = query.where(may_work(of_user))
    return session.scalars(query).all()


def may_work(user_id: str) -> ColumnElement[bool]:
    """The condition that a campaign is open to a user: it has no members, or this one."""
    of_campaign = CampaignMember.campaign_id == Campaign.campaign_id
    return or_(~exists().where(of_campaign), exists().where(of_campaign, CampaignMember.user_id == user_id))


def members(session: Session, campaign_id: str) -> list[str]:
    """User ids."""
    return list(session.scalars(select(CampaignMember.user_id).where(CampaignMember.campaign_id == campaign_id)))


def set_members(session: Session, campaign_id: str, user_ids: Collection[str]) -> None:
    session.execute(delete(CampaignMember).where(CampaignMember.campaign_id == campaign_id))
    session.add_all(CampaignMember(campaign_id=campaign_id, user_id=user_id) for user_id in sorted(set(user_ids)))


def set_state(campaign: Campaign, state: str) -> None:
    """Raises ConfigError. What is leased may be finished whatever the state: people do not lose what they are at."""
    if state not in CAMPAIGN_STATES:
        raise ConfigError(f"a campaign cannot be {state[:40]!r}; it is {', '.join(CAMPAIGN_STATES)}")
    campaign.state = state


def progress(session: Session) -> dict[str, Progress]:
    """By campaign id; campaigns without any assignment are missing."""
    each = select(
        Assignment.campaign_id, state_that_counts(Assignment).label("state"), copy_that_counts(Assignment).label("copy")
    ).subquery()
    grouped = (each.c.campaign_id, each.c.state, each.c.copy)
    counts: dict[str, dict[tuple[str, int], int]] = {}
    for campaign_id, state, copy, num in session.execute(select(*grouped, func.count()).group_by(*grouped)):
        counts.setdefault(campaign_id, {})[state, copy] = num
    return {campaign_id: _progress(found) for campaign_id, found in counts.items()}


def _progress(found: dict[tuple[str, int], int]) -> Progress:
    """`found`: counts by (state, copy)."""
    first, second = ({state: num for (state, copy), num in found.items() if copy == which} for which in (0, 1))
    return Progress(
        num_open=first.get("open", 0),
        num_leased=first.get("leased", 0),
        num_finished=first.get("finished", 0),
        num_flagged=first.get("flagged", 0) + second.get("flagged", 0),
        num_second_finished=second.get("finished", 0),
        num_second_wanted=sum(second.get(state, 0) for state in ("open", "leased", "finished")),
    )
