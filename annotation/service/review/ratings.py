"""All cases in which two people judged the same thing, for agreement.py.

verdict            on a run: its annotator and its reviewers
verdict_of_copies  on an instance: the people who annotated a copy of it each
decision           at a step where two annotators of an instance saw the same screen and the same policy's proposals
action             at a step where they saw the same screen: the kind of action, and the element or the text that it was about
is_right, thought_fits  on a step of a run or recording: its reviewers
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from annotation.service.review.agreement import Rating
from annotation.storage import finished_work
from annotation.storage.finished_work import SeenStep, Window
from annotation.storage.schema import Review, Run

OF_STEPS = ("is_right", "thought_fits")


def ratings(session: Session, window: Window, runs: Sequence[Run], reviews: Sequence[Review]) -> list[Rating]:
    """Of finished runs and their reviews, and of recordings where no campaign is asked for."""
    found = [Rating(field="verdict", unit=run.run_id, rater=run.user_id, value=str(run.person_verdict)) for run in runs]
    found += [
        Rating(field="verdict", unit=str(one.run_id), rater=one.reviewer_id, value=str(one.verdict))
        for one in reviews
        if one.verdict is not None
    ]
    of_recordings = finished_work.recording_reviews(session, since_s=window.since_s) if window.campaign_id is None else ()
    found += _of_reviewed_steps([*reviews, *of_recordings])
    for instance, copies in finished_work.shared_instances(session, window).items():
        found += [Rating(field="verdict_of_copies", unit=instance, rater=run.user_id, value=str(run.person_verdict)) for run in copies]
        found += _of_copies(session, instance, copies)
    return found


def said_by(action: Mapping[str, Any] | None, elements: Sequence[Mapping[str, Any]]) -> str:
    """What two people would call the same action: points are the smallest element that they are in, where there is one."""
    if action is None:
        return "beyond repair"
    shown = {name: value for name, value in action.items() if name not in ("x", "y", "to_x", "to_y")}
    for x, y in (("x", "y"), ("to_x", "to_y")):
        if action.get(x) is not None and action.get(y) is not None:
            shown[f"{x},{y}"] = _place(action[x], action[y], elements)
    return json.dumps(shown, sort_keys=True, ensure_ascii=False)


def _place(x: float, y: float, elements: Sequence[Mapping[str, Any]]) -> object:
    """The element's number, or the point itself."""
    hit = [
        (one["width_px"] * one["height_px"], number)
        for number, one in enumerate(elements)
        if 2 * abs(x - one["x_px"]) <= one["width_px"] and 2 * abs(y - one["y_px"]) <= one["height_px"]
    ]
    return min(hit)[1] if hit else [x, y]


def _of_reviewed_steps(reviews: Iterable[Review]) -> list[Rating]:
    return [
        Rating(field=field, unit=f"{one.run_id or one.recording_id} {index}", rater=one.reviewer_id, value=str(says[field]))
        for one in reviews
        for index, says in one.steps.items()
        for field in OF_STEPS
        if says.get(field) is not None
    ]


def _of_copies(session: Session, instance: str, copies: Sequence[Run]) -> list[Rating]:
    by_id = {run.run_id: run for run in copies}
    found: list[Rating] = []
    for step in finished_work.seen_steps(session, list(by_id)):
        found += _of_step(instance, by_id[step.run_id], step)
    return found


def _of_step(instance: str, run: Run, step: SeenStep) -> tuple[Rating, Rating]:
    unit = f"{instance} {step.step_index} {step.screen}"
    return (
        Rating(field="action", unit=unit, rater=run.user_id, value=said_by(step.action, step.elements)),
        Rating(field="decision", unit=f"{unit} {run.policy_id}", rater=run.user_id, value=step.decision),
    )
