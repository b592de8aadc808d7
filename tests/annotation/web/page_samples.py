"""What a server with weeks of work in it says to the pages of review, quality, recordings and task design, as its own bodies: for tests of
the pages alone, and for their pictures in docs/. Names and numbers in it are made up; EVIL is text as a model might write it."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import urlsplit

from PIL import Image, ImageDraw
from playwright.async_api import Page, Route
from pydantic import BaseModel, TypeAdapter

from annotation.wire.design import ApplicationView, Graph, NodeView, QueryView
from annotation.wire.finished import CampaignName, RunDetail, RunItem, RunList, RunStatus
from annotation.wire.review import (
    Agreement,
    Day,
    PersonQuality,
    PolicyRates,
    Quality,
    RecordedStep,
    RecordingDetail,
    RecordingItem,
    Replay,
    ReplayStep,
    ReviewItem,
    ReviewQueue,
    ReviewView,
    RunReview,
    StepOpinion,
)
from annotation.wire.runs import ActionView, Box, Point, ProposalView, ScreenView

EVIL = '<img src=x onerror="window.evil = 1"><script>window.evil = 1</script>'
NOON_S = 1_790_000_000.0
WIDTH, HEIGHT = 160, 210
FIELDS = (("Name", 60), ("City", 95), ("Send", 140))


def picture(screenshot_id: str) -> bytes:
    """A small form, drawn; the id tells which field is filled."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, WIDTH, 44), fill="#ffef9e")
    pen.text((6, 8), "Fill in the form and\npress Send.", fill="black")
    for index, (name, y) in enumerate(FIELDS):
        is_button = name == "Send"
        pen.rectangle((14, y, 146, y + 22), outline="#444", fill="#d8e0ff" if is_button else "white")
        pen.text((60 if is_button else 18, y + 6), name if is_button or index >= int(screenshot_id[-1]) else "Ada", fill="black")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def _screen(step: int) -> ScreenView:
    boxes = tuple(
        Box(index=i + 1, role="button" if name == "Send" else "input", name=name, x=14, y=y, width=132, height=22)
        for i, (name, y) in enumerate(FIELDS)
    )
    return ScreenView(screenshot_id=f"screen-{step}", width_px=WIDTH, height_px=HEIGHT, url="http://localhost/form", elements=boxes)


def _action(step: int, thought: str) -> dict[str, Any]:
    name, y = FIELDS[step]
    action = f"click [{step + 1}]"
    view = ActionView(
        text=f"Thought {thought} Action {action}",
        thought=thought,
        action=action,
        kind="click",
        line=f'click "{name}"',
        points=(Point(x=80, y=y + 11),),
    )
    return view.model_dump()


def _replay(run_id: str, annotator: str, decisions: tuple[str, ...], verdict: bool) -> Replay:
    proposals = tuple(
        ProposalView(
            **_action(rank, "The next field is empty."),
            rank=rank,
            score=-0.1 - 0.6 * rank,
            num_samples=3 - rank,
            policy_id="policy-3f2a91c04d77",
        )
        for rank in range(2)
    )
    steps = tuple(
        ReplayStep(
            **_action(index, EVIL if index == 1 else "The field is empty, so it comes first."),
            step_index=index,
            decision=decision,
            candidate=0,
            screen=_screen(index),
            proposals=proposals,
            took_s=4.0 + index,
            reward=0.0,
        )
        for index, decision in enumerate(decisions)
    )
    return Replay(
        run_id=run_id,
        annotator=annotator,
        policy_id="policy-3f2a91c04d77",
        grammar="compact",
        started_at_s=NOON_S,
        finished_at_s=NOON_S + 48,
        outcome="success",
        verifier_verdict=True,
        person_verdict=verdict,
        note="The city was already there.",
        num_backs=1,
        steps=steps,
        last_screen=None,
        is_withdrawn=False,
    )


def _item(run_id: str, number: int) -> ReviewItem:
    why = (("verifier_disagrees",), ("annotators_disagree", "verifier_disagrees"), ("sampled",))[number % 3]
    return ReviewItem(
        run_id=run_id,
        kind="adjudication" if number == 1 else "second",
        why=why,
        campaign="Forms, November",
        task_name=("login-user", "book-flight", "enter-text")[number % 3],
        seed=41 + number,
        annotator=("ada", "grace", "edsger")[number % 3],
        num_steps=3,
        person_verdict=number != 0,
        verifier_verdict=number == 0,
        finished_at_s=NOON_S - 3600 * number,
    )


def review_queue() -> ReviewQueue:
    pending = tuple(item for item in recordings() if item.state == "pending")
    return ReviewQueue(
        waiting=tuple(_item(f"run-{number}", number) for number in range(6)),
        num_waiting=23,
        num_reviewed_today=11,
        recordings=pending,
        num_recordings=len(pending),
    )


def _finished(number: int) -> RunItem:
    status: RunStatus = ("counts", "waiting", "counts", "rejected", "withdrawn", "counts")[number]  # type: ignore[assignment]
    item = _item(f"run-{number}", number)
    return RunItem(
        **item.model_dump(exclude={"kind", "why"}),
        campaign_id="campaign-1",
        is_own=number == 1,
        status=status,
        policy_id="policy-3f2a91c04d77",
        withdrawn_at_s=NOON_S if status == "withdrawn" else None,
    )


def finished_runs() -> RunList:
    return RunList(
        runs=tuple(_finished(number) for number in range(6)),
        num=137,
        campaigns=(CampaignName(campaign_id="campaign-1", name="Forms, November"),),
        people=("ada", "edsger", "grace"),
    )


def finished_run() -> RunDetail:
    review = run_review()
    return RunDetail(
        item=_finished(1),
        instruction=review.instruction,
        guidelines=review.guidelines,
        run=review.run,
        reviews=review.reviews,
        review="adjudication",
    )


def run_review(number: int = 1) -> RunReview:
    earlier = ReviewView(
        review_id="review-1",
        reviewer="alan",
        kind="second",
        approves=False,
        verdict=False,
        steps={1: StepOpinion(is_right=False, note=EVIL)},
        note="Step 2 is wrong.",
        created_at_s=NOON_S,
    )
    return RunReview(
        item=_item(f"run-{number}", number),
        instruction=f"Fill in the form and press Send. {EVIL}",
        guidelines="Prefer the shortest way.",
        run=_replay("run-1", "grace", ("accept", "override", "edit"), True),
        second_run=_replay("run-7", "edsger", ("accept", "accept", "accept"), False),
        reviews=(earlier,),
    )


def quality() -> Quality:
    agreement = [
        ("verdict", 0.81, 0.8, 0.93, 58),
        ("decision", 0.62, 0.6, 0.78, 412),
        ("action", None, 0.71, 0.74, 412),
        ("thought_fits", None, None, 1.0, 9),
    ]
    people = [("ada", 61, 402, 0.66, 0.12), ("grace", 48, 377, 0.58, 0.2), ("edsger", 30, 241, 0.71, 0.09)]
    rates = [(0.41, 0.17, 0.4), (0.52, 0.16, 0.3), (0.6, 0.15, 0.24), (0.69, 0.12, 0.18)]
    return Quality(
        agreement=tuple(
            Agreement(field=name, kappa=kappa, alpha=alpha, observed=equal, num_items=num, num_people=3)
            for name, kappa, alpha, equal, num in agreement
        ),
        people=tuple(
            PersonQuality(
                user_id=f"user-{name}",
                name=name,
                num_runs=runs,
                num_steps=steps,
                worked_s=steps * 9.5,
                median_step_s=6.4,
                accept_share=accept,
                edit_share=edit,
                override_share=round(1 - accept - edit, 2),
                num_backs=7,
                agrees_with_verifier=0.96,
                approved_share=0.94,
                right_share=0.97,
            )
            for name, runs, steps, accept, edit in people
        ),
        days=tuple(Day(day=f"2026-11-{day:02}", num_runs=(day * 7) % 23, num_steps=(day * 41) % 190, num_people=3) for day in range(1, 22)),
        policies=tuple(
            PolicyRates(
                policy_id=f"policy-{number}f2a91c0",
                first_at_s=NOON_S + number,
                num_steps=250,
                accept=accept,
                edit=edit,
                override=override,
                beyond_repair=0.02,
            )
            for number, (accept, edit, override) in enumerate(rates)
        ),
    )


def recordings() -> list[RecordingItem]:
    states = ("pending", "approved", "pending", "withdrawn")
    return [
        RecordingItem(
            recording_id=f"recording-{number}",
            person="grace" if number else "ada",
            track="novice" if number % 2 else "expert",
            state=state,
            query=f"Put the totals of March into the sheet {number}",
            applications=("calc", "mail"),
            num_actions=3,
            length_s=190.0 + number,
            is_executable=None if number else True,
            is_own=False,
            created_at_s=NOON_S - 9000 * number,
        )
        for number, state in enumerate(states)
    ]


def recording() -> RecordingDetail:
    steps = tuple(
        RecordedStep(
            **_action(index, "I put the name here first"),
            step_index=index,
            at_s=9.0 * index + 2,
            screen=_screen(index),
            heard=f"uh i put the name here first {EVIL}",
            window="Form – Browser",
            hidden=("password",) if index == 1 else (),
        )
        for index in range(3)
    )
    return RecordingDetail(
        item=recordings()[0], result="done", system="Linux", hidden={"password": 1, "e-mail": 2}, steps=steps, reviews=()
    )


def applications() -> list[ApplicationView]:
    scores = {"calc": (0.9, 0.7, 0.8), "mail": (0.95, 0.9, 0.9), "maps": (0.5, 0.8, 0.6)}
    made = [
        ApplicationView(
            application_id=f"app-{name}",
            name=name,
            address=None,
            industry_coverage=a,
            user_engagement=b,
            market_penetration=c,
            importance=round((a + b + c) / 3, 2),
            num_nodes=4,
            num_queries=3,
            num_recordings=5,
        )
        for name, (a, b, c) in scores.items()
    ]
    return sorted(made, key=lambda one: -one.importance)


def graph() -> Graph:
    titles = [
        ("node-1", None, "Write"),
        ("node-2", "node-1", "Attach a file"),
        ("node-3", "node-1", f"Schedule {EVIL}"),
        ("node-4", None, "Search"),
    ]
    nodes = tuple(
        NodeView(
            node_id=node_id,
            parent_id=parent,
            application_id="app-mail",
            title=title,
            usage_frequency=0.9,
            user_benefit=0.7,
            cross_scenario_transfer=0.5,
            importance=0.9 - 0.15 * index,
        )
        for index, (node_id, parent, title) in enumerate(titles)
    )
    rubrics = [("novice", 4, False, 0, False), ("intermediate", 9, True, 1, False), ("expert", 30, True, 2, True)]
    queries = tuple(
        QueryView(
            query_id=f"query-{index}",
            node_id="node-1",
            text=f"Write to the team about the plan, version {index}.",
            track="expert" if index else "novice",
            num_steps=steps,
            crosses_pages=crosses,
            num_prerequisites=prerequisites,
            handles_exceptions=exceptions,
            difficulty=level,
            author="ada",
            num_recordings=index,
            is_retired=False,
        )
        for index, (level, steps, crosses, prerequisites, exceptions) in enumerate(rubrics)
    )
    return Graph(application=applications()[0], nodes=nodes, queries=queries)


def answers() -> dict[str, BaseModel | list[Any]]:
    """By path below /api/v1, what a GET answers."""
    return {
        "/reviews": review_queue(),
        "/reviews/runs/run-0": run_review(0),
        "/reviews/runs/run-1": run_review(),
        "/runs": finished_runs(),
        "/runs/run-1/replay": finished_run(),
        "/quality": quality(),
        "/recordings": list(recordings()),
        "/recordings/recording-0": recording(),
        "/design/applications": list(applications()),
        "/design/applications/app-mail/graph": graph(),
    }


async def answer_with_samples(page: Page) -> None:
    """Answer the requests of these pages with samples; all others go to the server. Pictures are drawn."""
    known = {path: json.loads(TypeAdapter(Any).dump_json(value)) for path, value in answers().items()}

    async def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path.removeprefix("/api/v1")
        if route.request.method == "GET" and path in known:
            await route.fulfill(json=known[path])
        elif "/screens/screen-" in path:
            await route.fulfill(body=picture(path.rpartition("/")[2]), content_type="image/png")
        elif route.request.method == "POST" and path.startswith(("/reviews/", "/recordings/", "/runs/", "/design/")):
            await route.fulfill(json={})
        else:
            await route.continue_()

    await page.route("**/api/v1/**", answer)
