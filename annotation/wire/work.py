"""What travels between pages and server about work: campaigns and the queue. Wire forms only; runs are runs.py's.

POST  /api/v1/work/next                    NextWork (runs.py) -> RunState; 204 where there is nothing to do; a problem
                                           about what one holds names it: extra.assignment_id                       (annotator)
GET   /api/v1/work                         MyWork                                                                (annotator)
POST  /api/v1/assignments/{id}/heartbeat   LeaseView                                                             (annotator)
POST  /api/v1/assignments/{id}/skip        Reason (runs.py) -> 204; not asked again                            (annotator)
POST  /api/v1/assignments/{id}/flag        Reason -> 204; nobody is asked until somebody has looked              (annotator)
POST  /api/v1/assignments/{id}/release     204; back into the queue                                              (annotator)
GET   /api/v1/assignments/flagged          list of FlaggedView                                                   (reviewer)
POST  /api/v1/assignments/{id}/reopen      204                                                                   (reviewer)
GET   /api/v1/campaigns                    list of CampaignDetail: those open to the account; admins: all     (annotator)
POST  /api/v1/campaigns                    CampaignSpec (service/campaigns.py) -> CampaignDetail                 (admin)
PATCH /api/v1/campaigns/{id}               CampaignChange -> CampaignDetail                                      (admin)
GET   /api/v1/tasks                        ?select= (several) -> TaskList: what a campaign may ask for           (admin)
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from annotation.storage.campaigns import Progress


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LeaseView(_Body):
    lease_until_s: float


class HeldView(_Body):
    """What somebody is at."""

    assignment_id: str
    campaign_id: str
    campaign_name: str
    task_name: str
    domain: str
    lease_until_s: float
    run_id: str | None


class MyWork(_Body):
    held: HeldView | None
    num_today: int
    """Episodes finished since midnight, UTC."""
    num_finished: int
    num_decisions_today: int
    """Steps decided since then."""


class FlaggedView(_Body):
    assignment_id: str
    campaign_id: str
    task_name: str
    domain: str
    seed: int
    reason: str
    user: str | None
    at_s: float


class CampaignDetail(_Body):
    campaign_id: str
    name: str
    guidelines: str
    mode: Literal["intervene", "relabel"]
    tasks: tuple[str, ...]
    policy: str
    num_candidates: int
    temperature: float
    target_count: int
    double_share: float
    priority: int
    lease_s: float
    state: Literal["active", "paused", "ended"]
    created_at_s: float
    members: tuple[str, ...]
    """Names; none: open to everyone."""
    progress: Progress


class TaskEntry(_Body):
    source: str
    name: str
    domain: str
    weakness: float
    """1 minus the share of its episodes that the policy solves; .5 where nothing is known."""


class TaskList(_Body):
    sources: tuple[str, ...]
    num: int
    tasks: tuple[TaskEntry, ...]
    """Held-out tasks, which nobody may train on, left out; the weakest first."""
