"""Figures of a small history that was made by hand, each reckoned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from annotation.service.review.quality import DAY_S, LONGEST_STEP_S, Quality
from annotation.service.review.ratings import said_by
from annotation.service.review.review import Reviews
from annotation.storage.migrating import open_database
from annotation.wire.review import Quality as QualityView
from annotation.wire.review import StepOpinion, SubmitReview
from tests.annotation.service.review_parts import NOON_S, SCREEN, Did, History, click
from warehouse.core.errors import UnknownSubject


@pytest.fixture
def history(annotation_url: str) -> Iterator[History]:
    database = open_database(annotation_url)
    yield History(database, "ann", "bob", "rex:reviewer", "eve:reviewer")
    database.close()


def look(history: History, days: int = 7, campaign_id: str | None = None) -> QualityView:
    service = Quality(history.database, clock=lambda: NOON_S + 3600.0)
    return asyncio.run(service.look(days=days, campaign_id=campaign_id))


def say(history: History, run_id: str, who: str, said: SubmitReview) -> None:
    asyncio.run(Reviews(history.database, clock=lambda: history.now_s).submit(run_id, said, by=history.who(who)))


def test_nothing_is_no_division_by_zero(history: History):
    found = look(history)
    assert (found.agreement, found.people, found.policies) == ((), (), ())
    assert len(found.days) == 7 and all(day.num_runs == 0 for day in found.days)
    with pytest.raises(UnknownSubject):
        look(history, campaign_id="campaign-none")


def test_people_are_measured_by_how_much_how_fast_and_how_well_they_work(history: History):
    steps = (Did(took_s=2.0), Did(decision="edit", took_s=6.0), Did(decision="override", took_s=4.0), Did(took_s=9.0, is_superseded=True))
    checked = history.run("ann", seed=1, steps=steps, num_backs=2)
    history.run("ann", seed=2, steps=(Did(took_s=2000.0),), verdict=False, verifier=True)
    history.run("ann", seed=3, steps=(), verifier=None)
    history.run("bob", seed=4)
    history.run("bob", seed=5, finishes=False)
    opinions = {0: StepOpinion(is_right=True), 1: StepOpinion(is_right=False), 2: StepOpinion(thought_fits=True)}
    say(history, checked, "rex", SubmitReview(approves=True, verdict=True, steps=opinions))
    ann, bob = look(history).people
    assert (ann.name, ann.num_runs, ann.num_steps, ann.num_backs) == ("ann", 3, 4, 2)
    assert (ann.accept_share, ann.edit_share, ann.override_share) == (0.5, 0.25, 0.25)
    assert ann.worked_s == pytest.approx(12.0 + LONGEST_STEP_S) and ann.median_step_s == pytest.approx(5.0)
    assert (ann.agrees_with_verifier, ann.approved_share, ann.right_share) == (0.5, 1.0, 0.5)
    assert (bob.num_runs, bob.num_steps, bob.approved_share, bob.right_share) == (1, 1, None, None)


def test_days_have_no_gaps_and_old_work_is_left_out(history: History):
    for seed, days_ago in enumerate((0, 0, 2, 9), start=1):
        history.run("ann", seed=seed, at_s=NOON_S - days_ago * DAY_S, steps=(Did(), Did()))
    history.run("bob", at_s=NOON_S)
    days = look(history, 4).days
    assert [(day.num_runs, day.num_steps, day.num_people) for day in days] == [(0, 0, 0), (1, 2, 1), (0, 0, 0), (3, 5, 2)]
    assert [day.day[-2:] for day in days] == sorted(day.day[-2:] for day in days)


def test_rates_are_reported_by_policy_version_in_their_order(history: History):
    history.run("ann", seed=1, steps=(Did(policy_id="policy-b"), Did(policy_id="policy-b", decision="edit")))
    history.run(
        "ann", seed=2, steps=[Did(policy_id="policy-a", decision=said) for said in ("accept", "accept", "override", "beyond_repair")]
    )
    other = history.campaign("others")
    history.run("bob", seed=3, campaign_id=other)
    first, second, third = look(history).policies
    assert (first.policy_id, first.num_steps, first.accept, first.edit) == ("policy-b", 2, 0.5, 0.5)
    assert (second.policy_id, second.accept, second.override, second.beyond_repair) == ("policy-a", 0.5, 0.25, 0.25)
    assert third.num_steps == 1 and [one.num_steps for one in look(history, campaign_id=other).policies] == [1]


def test_agreement_is_reported_by_field(history: History):
    """Ann and Bob annotate four instances each; the verdicts are 3 of 4 alike, and Bob clicks elsewhere at one of five shared screens."""
    for seed, (ann, bob, number) in enumerate([(True, True, 1), (True, True, 1), (False, False, 2), (True, False, 1)]):
        history.run("ann", seed=seed, verdict=ann, verifier=None, steps=(Did(number=number), Did(number=2)))
        decision = "override" if seed == 0 else "accept"
        history.run("bob", seed=seed, copy=1, verdict=bob, verifier=None, steps=(Did(number=1, decision=decision),))
    found = {one.field: one for one in look(history).agreement}
    copies, actions, decisions = found["verdict_of_copies"], found["action"], found["decision"]
    # p_o 3/4; p_e 3/4 · 1/2 + 1/4 · 1/2 = 1/2
    assert (copies.num_items, copies.num_people, copies.observed, copies.kappa) == (4, 2, 0.75, 0.5)
    # Krippendorff: coincidences TT 4, FF 2, TF and FT 1 each; alpha = 1 - (8-1) · 1·2/2 / (5·3) = 1 - 7/15
    assert copies.alpha == pytest.approx(8 / 15)
    assert (actions.num_items, actions.observed) == (4, 0.75)
    assert (decisions.num_items, decisions.observed) == (4, 0.75)
    assert found.keys() == {"verdict_of_copies", "action", "decision"}, "nothing else was said by two"


def test_reviewers_agree_about_verdicts_and_steps(history: History):
    wrong = history.run("ann", seed=1, verifier=False, steps=(Did(), Did()))
    right = history.run("ann", seed=2, verifier=False)
    said = {0: StepOpinion(is_right=False, thought_fits=True), 1: StepOpinion(is_right=True)}
    say(history, wrong, "rex", SubmitReview(approves=False, verdict=False, steps=said))
    again = {0: StepOpinion(is_right=False, thought_fits=False), 1: StepOpinion(is_right=True)}
    say(history, wrong, "eve", SubmitReview(kind="adjudication", approves=False, verdict=False, steps=again))
    say(history, right, "rex", SubmitReview(approves=True, verdict=True))
    found = {one.field: one for one in look(history).agreement}
    assert (found["is_right"].num_items, found["is_right"].kappa, found["is_right"].alpha) == (2, 1.0, 1.0)
    assert (found["thought_fits"].observed, found["thought_fits"].num_items) == (0.0, 1)
    assert (found["verdict"].num_items, found["verdict"].num_people) == (2, 3)
    # Of the pairs ann-rex (twice), ann-eve and rex-eve: two alike of four.
    assert found["verdict"].observed == 0.5


def test_one_action_is_another_where_it_is_about_the_same_element():
    elements, (_, action) = SCREEN["elements"], click(1)
    near, far = {**action, "x": 31, "y": 66}, {**action, "x": 150}
    assert said_by(action, elements) == said_by(near, elements) != said_by(far, elements)
    assert said_by(far, elements) != said_by({**far, "x": 151}, elements)
    assert said_by({"kind": "type", "text": "Ada"}, elements) != said_by({"kind": "type", "text": "ada"}, elements)
    assert said_by(None, elements) == said_by(None, [])
