"""What travels between the pages and the server about finished runs, one's own or everybody's. Wire forms only, as in runs.py; how one is
judged is review.py's.

    GET  /api/v1/runs?campaign_id=&user=&status=&before=   -> RunList     the newest first; one's own, a reviewer's: everybody's
    GET  /api/v1/runs/{run_id}/replay                        -> RunDetail   one's own, or a reviewer's
    POST /api/v1/runs/{run_id}/withdraw                      Withdraw (review.py) -> 204; one's own, or a reviewer's
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from annotation.wire.review import Replay, ReviewKind, ReviewView, Withdrawal

RunStatus = Literal["counts", "waiting", "rejected", "withdrawn"]
"""counts: it is learned from; waiting: for a reviewer's word; rejected, withdrawn: it is not, and its campaign asks for another."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunItem(_Body):
    run_id: str
    campaign_id: str
    campaign: str
    task_name: str
    seed: int
    annotator: str
    is_own: bool
    status: RunStatus
    num_steps: int
    person_verdict: bool | None
    verifier_verdict: bool | None
    policy_id: str
    finished_at_s: float
    withdrawn_at_s: float | None


class CampaignName(_Body):
    campaign_id: str
    name: str


class RunList(_Body):
    """`num`: how many there are of what was asked for; `campaigns` and `people`: what may be asked for."""

    runs: tuple[RunItem, ...]
    num: int
    campaigns: tuple[CampaignName, ...]
    people: tuple[str, ...]


class RunDetail(_Body):
    """`reviews` are shown once the run is settled. `review`: the kind of opinion that the viewer may give; null: none."""

    item: RunItem
    instruction: str | None
    guidelines: str
    run: Replay
    reviews: tuple[ReviewView, ...]
    review: ReviewKind | None
    withdrawal: Withdrawal | None = None
