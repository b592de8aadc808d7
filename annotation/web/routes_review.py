"""Routes of what is done: finished runs, what waits for a second opinion, giving one, withdrawing a run, and what the work amounts to."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from annotation.web.access import Address, Who, needs, office_of
from annotation.wire.finished import RunDetail, RunList, RunStatus
from annotation.wire.review import Quality, ReviewQueue, ReviewView, RunReview, SubmitReview, Withdraw

ANNOTATOR, REVIEWER = needs("annotator"), needs("reviewer")
REVIEW = needs("reviewer", max_body_bytes=1024 * 1024)
"""A word on each of many steps."""


def add_to(app: FastAPI) -> None:
    _add_finished(app)
    _add_reviews(app)


def _add_finished(app: FastAPI) -> None:
    @app.get("/api/v1/runs", tags=["review"], summary="Finished runs: one's own; for reviewers all", **ANNOTATOR)
    async def finished(
        request: Request,
        who: Who,
        campaign_id: Annotated[str | None, Query(max_length=80)] = None,
        user: Annotated[str | None, Query(max_length=64)] = None,
        status: RunStatus | None = None,
        before: Annotated[str | None, Query(max_length=80)] = None,
    ) -> RunList:
        """The newest first, a hundred at a time; `before`: those after this run in that order."""
        found = office_of(request).finished
        return await found.listed(who, campaign_id=campaign_id, user=user, status=status, before=before)

    @app.get("/api/v1/runs/{run_id}/replay", tags=["review"], summary="A finished run, step by step", **ANNOTATOR)
    async def replay(run_id: str, request: Request, who: Who) -> RunDetail:
        return await office_of(request).finished.look(run_id, who)

    @app.post("/api/v1/runs/{run_id}/withdraw", status_code=204, tags=["review"], summary="Take a run back", **ANNOTATOR)
    async def withdraw(run_id: str, body: Withdraw, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).reviews.withdraw(run_id, body.reason, by=who, address=address)
        return Response(status_code=204)


def _add_reviews(app: FastAPI) -> None:
    @app.get("/api/v1/reviews", tags=["review"], summary="What one may review", **REVIEWER)
    async def queue(request: Request, who: Who) -> ReviewQueue:
        """Runs, and recordings of people's own work."""
        office = office_of(request)
        queue, (recordings, num) = await office.reviews.queue(who.user_id), await office.recordings.waiting(who)
        return queue.model_copy(update={"recordings": recordings, "num_recordings": num})

    @app.get("/api/v1/reviews/runs/{run_id}", tags=["review"], summary="All of a finished run", **REVIEWER)
    async def look(run_id: str, request: Request, who: Who) -> RunReview:
        return await office_of(request).reviews.look(run_id, who.user_id)

    @app.post("/api/v1/reviews/runs/{run_id}", status_code=201, tags=["review"], summary="Say what one thinks of a run", **REVIEW)
    async def submit(run_id: str, body: SubmitReview, request: Request, who: Who, address: Address) -> ReviewView:
        return await office_of(request).reviews.submit(run_id, body, by=who, address=address)

    @app.get("/api/v1/quality", tags=["review"], summary="Agreement, people, throughput, policy versions", **REVIEWER)
    async def quality(
        request: Request, days: Annotated[int, Query(ge=1, le=366)] = 30, campaign_id: Annotated[str | None, Query(max_length=80)] = None
    ) -> Quality:
        """Of what was finished in the last `days` days, UTC, today among them."""
        return await office_of(request).quality.look(days=days, campaign_id=campaign_id)
