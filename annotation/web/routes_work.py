"""Routes of work: the next assignment, its lease, campaigns, and the tasks that they may ask for. What happens in a run is
routes_runs.py's."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from annotation.service.campaigns.campaigns import CampaignChange, CampaignSpec, Seen
from annotation.service.campaigns.choosing import selected_tasks
from annotation.storage import accounts as stored
from annotation.storage import assignments, work_counts
from annotation.web.access import Address, Who, needs, office_of
from annotation.web.problems import answer_to
from annotation.wire.runs import NextWork, Reason, RunState
from annotation.wire.work import CampaignDetail, FlaggedView, HeldView, LeaseView, MyWork, TaskEntry, TaskList
from sandbox.tasks.registry import SOURCES
from warehouse.core.errors import FlywheelError, ModelError

log = logging.getLogger(__name__)
ANNOTATOR, REVIEWER, ADMIN = needs("annotator"), needs("reviewer"), needs("admin")


def add_to(app: FastAPI) -> None:
    _add_queue(app)
    _add_flags(app)
    _add_campaigns(app)


def _add_queue(app: FastAPI) -> None:
    @app.post(
        "/api/v1/work/next",
        tags=["work"],
        summary="Something to do",
        response_model=RunState,
        responses={204: {"description": "Nothing waits"}},
        **ANNOTATOR,
    )
    async def next_work(body: NextWork, request: Request, who: Who) -> Response:
        """What one holds already goes on; 204 where there is nothing to do. A problem whose `extra` names an assignment_id is that of
        something that one holds: it may be skipped, flagged or released."""
        office = office_of(request)
        failed: dict[str, ModelError] = {}
        while (leased := await office.queue.take(who.user_id, body.campaign_id, without=failed)) is not None:
            if leased.abandoned_run_id is not None:
                await office.runs.abandon(leased.abandoned_run_id)
            held = leased.assignment
            try:
                run_id = await office.runs.start(held.assignment_id, held.lease_number, who.user_id)
            except FlywheelError as error:
                if not leased.is_new:
                    return answer_to(request, error, {"assignment_id": held.assignment_id})
                await office.queue.release(held.assignment_id, who.user_id)
                if not isinstance(error, ModelError):
                    raise
                log.warning("campaign %s: its policy cannot be had: %s", leased.campaign.name, error)
                failed[leased.campaign.campaign_id] = error
                continue
            state = await office.runs.state(run_id)
            return Response(state.model_dump_json(), media_type="application/json")
        if failed:  # nothing in the other campaigns
            raise next(iter(failed.values()))
        return Response(status_code=204)

    @app.get("/api/v1/work", tags=["work"], summary="What one is at, and has done", **ANNOTATOR)
    async def my_work(request: Request, who: Who) -> MyWork:
        office = office_of(request)
        found = await office.database.reading(work_counts.of_user, who.user_id, now_s=office.clock())
        held, one = None, found.held
        if one is not None and found.campaign is not None:
            held = HeldView(
                assignment_id=one.assignment_id,
                campaign_id=one.campaign_id,
                campaign_name=found.campaign.name,
                task_name=one.task_name,
                domain=one.domain,
                lease_until_s=one.lease_until_s or 0.0,
                run_id=found.run_id,
            )
        return MyWork(held=held, num_today=found.num_today, num_finished=found.num_finished, num_decisions_today=found.num_decisions_today)

    @app.post(
        "/api/v1/assignments/{assignment_id}/heartbeat", tags=["work"], summary="A sign of life", **needs("annotator", is_automatic=True)
    )
    async def heartbeat(assignment_id: str, request: Request, who: Who) -> LeaseView:
        return LeaseView(lease_until_s=await office_of(request).queue.heartbeat(assignment_id, who.user_id))

    @app.post("/api/v1/assignments/{assignment_id}/skip", status_code=204, tags=["work"], summary="Pass it on", **ANNOTATOR)
    async def skip(assignment_id: str, body: Reason, request: Request, who: Who, address: Address) -> Response:
        office = office_of(request)
        return await _let_go(request, await office.queue.skip(assignment_id, who.user_id, body.reason, address=address))

    @app.post("/api/v1/assignments/{assignment_id}/flag", status_code=204, tags=["work"], summary="Say that it is broken", **ANNOTATOR)
    async def flag(assignment_id: str, body: Reason, request: Request, who: Who, address: Address) -> Response:
        office = office_of(request)
        return await _let_go(request, await office.queue.flag(assignment_id, who.user_id, body.reason, address=address))

    @app.post("/api/v1/assignments/{assignment_id}/release", status_code=204, tags=["work"], summary="Give it back", **ANNOTATOR)
    async def release(assignment_id: str, request: Request, who: Who) -> Response:
        return await _let_go(request, await office_of(request).queue.release(assignment_id, who.user_id))


async def _let_go(request: Request, run_id: str | None) -> Response:
    """The run is given up in the database already; this ends its sandbox."""
    if run_id is not None:
        await office_of(request).runs.abandon(run_id)
    return Response(status_code=204)


def _add_flags(app: FastAPI) -> None:
    @app.get("/api/v1/assignments/flagged", tags=["work"], summary="What somebody has to look at", **REVIEWER)
    async def flagged(request: Request) -> list[FlaggedView]:
        database = office_of(request).database
        found, names = await database.reading(assignments.flagged), await database.reading(stored.names)
        return [
            FlaggedView(
                assignment_id=one.assignment_id,
                campaign_id=one.campaign_id,
                task_name=one.task_name,
                domain=one.domain,
                seed=one.seed,
                reason=one.reason or "",
                user=names.get(one.user_id or ""),
                at_s=one.changed_at_s,
            )
            for one in found
        ]

    @app.post("/api/v1/assignments/{assignment_id}/reopen", status_code=204, tags=["work"], summary="Ask again", **REVIEWER)
    async def reopen(assignment_id: str, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).queue.reopen(assignment_id, by=who.user_id, address=address)
        return Response(status_code=204)


def _add_campaigns(app: FastAPI) -> None:
    @app.get("/api/v1/campaigns", tags=["campaigns"], summary="Campaigns open to the account; for admins all", **ANNOTATOR)
    async def campaigns(request: Request, who: Who) -> list[CampaignDetail]:
        found = await office_of(request).campaigns.list(of_user=None if who.role == "admin" else who.user_id)
        return [_detail(seen) for seen in found]

    @app.post("/api/v1/campaigns", status_code=201, tags=["campaigns"], summary="Begin a campaign", **ADMIN)
    async def create(body: CampaignSpec, request: Request, who: Who, address: Address) -> CampaignDetail:
        made = await office_of(request).campaigns.create(body, by=who, address=address)
        return await _one(request, made.campaign_id)

    @app.patch("/api/v1/campaigns/{campaign_id}", tags=["campaigns"], summary="Change, pause or end a campaign", **ADMIN)
    async def change(campaign_id: str, body: CampaignChange, request: Request, who: Who, address: Address) -> CampaignDetail:
        changed = await office_of(request).campaigns.change(campaign_id, body, by=who, address=address)
        return await _one(request, changed.campaign_id)

    @app.get("/api/v1/tasks", tags=["campaigns"], summary="Tasks that a campaign may ask for", **ADMIN)
    async def tasks(
        request: Request, select: Annotated[list[Annotated[str, Query(max_length=200)]] | None, Query(max_length=200)] = None
    ) -> TaskList:
        """Of all sources, or of what `select` selects."""
        priorities = await asyncio.to_thread(office_of(request).task_priorities.read)
        found = (await asyncio.to_thread(selected_tasks, select or tuple(SOURCES), priorities)).values()
        entries = sorted(
            (TaskEntry(source=task.source, name=task.name, domain=task.domain, weakness=priorities.of(task.task_id)) for task in found),
            key=lambda entry: (-entry.weakness, entry.source, entry.name),
        )
        return TaskList(sources=tuple(SOURCES), num=len(entries), tasks=tuple(entries))


async def _one(request: Request, campaign_id: str) -> CampaignDetail:
    found = await office_of(request).campaigns.list()
    return next(_detail(seen) for seen in found if seen.campaign.campaign_id == campaign_id)


def _detail(seen: Seen) -> CampaignDetail:
    one = seen.campaign
    return CampaignDetail.model_validate(
        {
            "campaign_id": one.campaign_id,
            "name": one.name,
            "guidelines": one.guidelines,
            "mode": one.mode,
            "tasks": tuple(one.tasks),
            "policy": one.policy,
            "num_candidates": one.num_candidates,
            "temperature": one.temperature,
            "target_count": one.target_count,
            "double_share": one.double_share,
            "priority": one.priority,
            "lease_s": one.lease_s,
            "state": one.state,
            "created_at_s": one.created_at_s,
            "members": seen.members,
            "progress": seen.progress,
        }
    )
