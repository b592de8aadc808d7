"""Campaigns: what one says, its making, its changes, and how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from annotation.service.campaigns.choosing import check_selections
from annotation.service.campaigns.policies import NEWEST, KnownPolicies
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.storage import accounts, audit, campaigns
from annotation.storage.campaigns import Progress
from annotation.storage.database import Database
from annotation.storage.ids import new_id
from annotation.storage.logins import Principal
from annotation.storage.schema import Campaign
from warehouse.core.errors import ConfigError, ModelError


class CampaignSpec(BaseModel):
    """What is to be annotated, of which policy, by whom, how often."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=128, description="what people call it; each name once")]
    guidelines: Annotated[str, Field(max_length=20_000, description="instructions for annotators, as plain text")] = ""
    mode: Annotated[
        Literal["intervene", "relabel"],
        Field(description="intervene: what the person decides is carried out; relabel: the policy's own choice is, the decision its label"),
    ] = "intervene"
    tasks: Annotated[
        tuple[Annotated[str, Field(max_length=200)], ...],
        Field(min_length=1, max_length=200, description="source, source:group, source/name, or pool: what the newest iteration plays"),
    ]
    policy: Annotated[str, Field(max_length=80, description="newest (release, when an episode begins), or a checkpoint id")] = NEWEST
    num_candidates: Annotated[int, Field(ge=1, le=8, description="proposals at each step, the policy's own choice among them")] = 3
    temperature: Annotated[float, Field(ge=0, le=5, description="of the proposals beside the policy's own choice")] = 1.0
    target_count: Annotated[int, Field(ge=1, le=1_000_000, description="annotated episodes wanted, second copies not counted")] = 100
    double_share: Annotated[float, Field(ge=0, le=1, description="share of the instances that two people annotate")] = 0.1
    priority: Annotated[int, Field(ge=-100, le=100, description="what has the higher one is asked for first, of all that is open")] = 0
    lease_s: Annotated[float, Field(ge=30, le=7200, description="seconds after the last sign of life when an assignment goes on")] = 300.0
    members: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=1000, description="names of who works on it; none: everyone")
    ] = ()


class CampaignChange(BaseModel):
    """What may change while a campaign runs; what is null stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["active", "paused", "ended"] | None = None
    guidelines: Annotated[str | None, Field(max_length=20_000)] = None
    policy: Annotated[str | None, Field(min_length=1, max_length=80)] = None
    target_count: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    double_share: Annotated[float | None, Field(ge=0, le=1)] = None
    priority: Annotated[int | None, Field(ge=-100, le=100)] = None
    members: Annotated[tuple[Annotated[str, Field(max_length=64)], ...] | None, Field(max_length=1000)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A campaign as lists show it."""

    campaign: Campaign
    progress: Progress
    members: tuple[str, ...]
    """Names."""


class Campaigns:
    """`policies` lists those that exist; None: any name is accepted."""

    def __init__(
        self,
        database: Database,
        priorities: TaskPriorityReader,
        policies: KnownPolicies | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._priorities, self._policies, self._clock = database, priorities, policies, clock

    async def create(self, spec: CampaignSpec, *, by: Principal | None, address: str | None = None) -> Campaign:
        """`by` None: from the command line. Raises ConfigError, UnknownSubject for a member who is nobody."""
        priorities = await asyncio.to_thread(self._priorities.read)
        await asyncio.to_thread(check_selections, spec.tasks, priorities)
        await self._check_policy(spec.policy)
        return await self._database.writing(self._create, spec, by, address)

    def _create(self, session: Session, spec: CampaignSpec, by: Principal | None, address: str | None) -> Campaign:
        now_s, who = self._clock(), by.user_id if by is not None else None
        campaign = Campaign(
            campaign_id=new_id("campaign"),
            name=spec.name,
            guidelines=spec.guidelines,
            mode=spec.mode,
            tasks=list(spec.tasks),
            policy=spec.policy,
            num_candidates=spec.num_candidates,
            temperature=spec.temperature,
            target_count=spec.target_count,
            double_share=spec.double_share,
            priority=spec.priority,
            lease_s=spec.lease_s,
            state="active",
            created_by=who,
            created_at_s=now_s,
        )
        campaigns.add(session, campaign, _ids(session, spec.members))
        audit.record(session, "campaign.created", now_s=now_s, user_id=who, subject=campaign.campaign_id, address=address, name=spec.name)
        return campaign

    async def change(self, campaign_id: str, change: CampaignChange, *, by: Principal | None, address: str | None = None) -> Campaign:
        """What is under way ends with the policy that it began with; another share is that of instances that nobody has begun. Raises
        UnknownSubject, ConfigError for an unknown policy."""
        if change.policy is not None:
            await self._check_policy(change.policy)

        def work(session: Session) -> Campaign:
            campaign = campaigns.get(session, campaign_id, for_update=True)
            if change.state is not None:
                campaigns.set_state(campaign, change.state)
            if change.members is not None:
                campaigns.set_members(session, campaign_id, _ids(session, change.members))
            for name in ("guidelines", "policy", "target_count", "double_share", "priority"):
                if (value := getattr(change, name)) is not None:
                    setattr(campaign, name, value)
            changed = change.model_dump(mode="json", exclude_none=True, exclude={"guidelines"})
            audit.record(
                session,
                "campaign.changed",
                now_s=self._clock(),
                user_id=by.user_id if by else None,
                subject=campaign_id,
                address=address,
                **changed,
            )
            return campaign

        return await self._database.writing(work)

    async def _check_policy(self, policy: str) -> None:
        if self._policies is None:
            return
        try:
            await self._policies.check(policy)
        except ModelError as error:
            raise ConfigError(f"a campaign cannot ask for the policy {policy!r}: {error}; or say {NEWEST!r}") from error

    async def list(self, *, of_user: str | None = None) -> list[Seen]:
        """The newest first. `of_user`: those that they may work on, and that are not ended."""

        def work(session: Session) -> list[Seen]:
            progress, names = campaigns.progress(session), accounts.names(session)
            found = [one for one in campaigns.campaigns(session, of_user=of_user) if of_user is None or one.state != "ended"]
            return [
                Seen(
                    campaign=one,
                    progress=progress.get(one.campaign_id, Progress()),
                    members=tuple(sorted(names[user_id] for user_id in campaigns.members(session, one.campaign_id))),
                )
                for one in found
            ]

        return await self._database.reading(work)


def _ids(session: Session, names: Sequence[str]) -> list[str]:
    return [accounts.named(session, name).user_id for name in names]
