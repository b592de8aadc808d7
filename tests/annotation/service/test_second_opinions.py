"""Second opinions: who is asked about what, what a word does to a run, and which word stands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from annotation.service.review.review import Reviews, reviews_of, verdict_that_stands, wrong_steps
from annotation.storage.migrating import open_database
from annotation.storage.schema import AuditEntry, Review, Run
from annotation.wire.review import ReviewView, StepOpinion, SubmitReview
from tests.annotation.service.review_parts import Did, History
from warehouse.core.errors import AccessDenied, ConfigError, FlywheelError, NotNow, OutOfDate, UnknownSubject

PEOPLE = ("ann", "bob", "rex:reviewer", "eve:reviewer", "roy:reviewer")


@pytest.fixture
def history(annotation_url: str) -> Iterator[History]:
    database = open_database(annotation_url)
    yield History(database, *PEOPLE)
    database.close()


def service(history: History) -> Reviews:
    return Reviews(history.database, clock=lambda: history.now_s)


def say(history: History, run_id: str, who: str, *, approves: bool = True, verdict: bool | None = True, **more: Any) -> ReviewView:
    said = SubmitReview(approves=approves, verdict=verdict, **more)
    return asyncio.run(service(history).submit(run_id, said, by=history.who(who)))


def waiting(history: History, who: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = asyncio.run(service(history).queue(f"user-{who}"))
    assert found.num_waiting == len(found.waiting)
    return {item.run_id: (item.kind, item.why) for item in found.waiting}


def test_a_reviewer_who_shares_the_annotators_verdict_settles_what_the_verifier_disputes(history: History):
    run_id = history.run("ann", verdict=True, verifier=False)
    assert (history.state(run_id), history.changes(run_id)) == ("pending", [])
    assert waiting(history, "rex") == {run_id: ("second", ("verifier_disagrees",))}
    assert say(history, run_id, "rex").reviewer == "rex"
    assert (history.state(run_id), history.changes(run_id)) == ("approved", ["run"])
    assert waiting(history, "rex") == waiting(history, "eve") == {}
    with pytest.raises(NotNow, match="settled"):
        say(history, run_id, "eve")


@pytest.mark.parametrize(("approves", "verdict"), [(False, True), (True, False), (True, None), (False, None)])
def test_one_who_does_not_leaves_it_to_a_third_person_whose_word_stands(history: History, approves: bool, verdict: bool | None):
    run_id = history.run("ann", verdict=True, verifier=False)
    say(history, run_id, "rex", approves=approves, verdict=verdict)
    assert (history.state(run_id), history.changes(run_id), waiting(history, "rex")) == ("pending", [], {})
    assert waiting(history, "eve") == {run_id: ("adjudication", ("verifier_disagrees", "reviewers_disagree"))}
    with pytest.raises(OutOfDate, match="adjudication"):
        say(history, run_id, "eve")
    with pytest.raises(NotNow, match="before"):
        say(history, run_id, "rex", kind="adjudication")
    say(history, run_id, "eve", kind="adjudication", approves=True, verdict=False)
    assert (history.state(run_id), history.changes(run_id)) == ("approved", ["run"])
    with history.database.read() as session:
        assert verdict_that_stands(session.get_one(Run, run_id), reviews_of(session, run_id)) is False


def test_an_adjudicator_who_does_not_approve_ends_it(history: History):
    run_id = history.run("ann", verdict=True, verifier=False)
    say(history, run_id, "rex", approves=False)
    say(history, run_id, "eve", kind="adjudication", approves=False, verdict=None)
    assert (history.state(run_id), history.changes(run_id)) == ("rejected", [])
    with history.database.read() as session:
        assert verdict_that_stands(session.get_one(Run, run_id), reviews_of(session, run_id)) is True, "the adjudicator could not tell"


def test_nobody_reviews_what_they_annotated_or_its_other_copy(history: History):
    mine, yours = history.run("rex", seed=7, verdict=True), history.run("eve", seed=7, copy=1, verdict=False, verifier=None)
    assert history.state(mine) == history.state(yours) == "pending", "two people disagree"
    assert history.changes(mine) == ["run", "withdrawal"] and history.changes(yours) == []
    assert waiting(history, "rex") == waiting(history, "eve") == {}
    assert waiting(history, "roy") == {mine: ("second", ("annotators_disagree",)), yours: ("second", ("annotators_disagree",))}
    for run_id in (mine, yours):
        for who in ("rex", "eve"):
            with pytest.raises(AccessDenied, match="another person"):
                say(history, run_id, who)
    say(history, mine, "roy")
    say(history, yours, "roy", approves=False, verdict=True)
    assert history.changes(mine) == ["run", "withdrawal", "run"] and history.state(yours) == "pending"


def test_a_run_that_nobody_disputes_can_be_checked_and_counts_until_somebody_objects(history: History):
    run_id = history.run("ann")
    assert history.changes(run_id) == ["run"] and waiting(history, "rex") == {}
    say(history, run_id, "roy", approves=True, verdict=None)
    assert (history.state(run_id), history.changes(run_id)) == ("none", ["run"]), "who cannot tell objects to nothing"
    say(history, run_id, "rex", approves=False)
    assert (history.state(run_id), history.changes(run_id)) == ("pending", ["run", "withdrawal"])
    assert waiting(history, "eve") == {run_id: ("adjudication", ("reviewers_disagree",))}
    say(history, run_id, "eve", kind="adjudication", approves=False, verdict=False)
    assert (history.state(run_id), history.changes(run_id)) == ("rejected", ["run", "withdrawal"])


def test_a_check_that_agrees_changes_nothing_for_the_flywheel(history: History):
    run_id = history.run("ann")
    say(history, run_id, "rex")
    assert (history.state(run_id), history.changes(run_id)) == ("approved", ["run"])


def test_a_share_of_the_undisputed_runs_is_asked_about_after_what_is_disputed(history: History):
    sampled = history.run("ann", seed=1, run_id="run-07" + "a" * 14)
    disputed = history.run("ann", seed=2, verifier=False)
    third = history.run("bob", seed=3, verifier=False)
    say(history, third, "roy", approves=False)
    history.run("bob", seed=4)
    assert waiting(history, "rex") == {
        third: ("adjudication", ("verifier_disagrees", "reviewers_disagree")),
        disputed: ("second", ("verifier_disagrees",)),
        sampled: ("second", ("sampled",)),
    }
    assert list(waiting(history, "rex")) == [third, disputed, sampled]
    say(history, sampled, "rex")
    found = asyncio.run(service(history).queue("user-rex"))
    assert (found.num_reviewed_today, [item.run_id for item in found.waiting]) == (1, [third, disputed])


def test_earlier_opinions_are_shown_to_whoever_adjudicates_and_when_it_is_settled(history: History):
    run_id = history.run("ann", verifier=False)

    def seen_by(who: str) -> list[str]:
        return [one.reviewer for one in asyncio.run(service(history).look(run_id, f"user-{who}")).reviews]

    say(history, run_id, "rex", approves=False, note="the wrong button")
    assert (seen_by("eve"), seen_by("rex"), seen_by("ann")) == (["rex"], ["rex"], [])
    say(history, run_id, "eve", kind="adjudication")
    assert seen_by("roy") == seen_by("ann") == seen_by("rex") == ["rex", "eve"]


def test_a_reviewer_sees_each_step_with_what_was_proposed_and_the_other_copy(history: History):
    steps = (Did(number=2, is_superseded=True), Did(took_s=2.5), Did(decision="override", number=2), Did(decision="beyond_repair"))
    run_id = history.run("ann", seed=3, steps=steps, num_backs=1)
    second_run_id = history.run("bob", seed=3, copy=1, verdict=False, verifier=False)
    seen = asyncio.run(service(history).look(run_id, "user-rex"))
    assert (seen.instruction, seen.guidelines, seen.item.num_steps) == ("Click on two.", "Be kind.", 3)
    assert [(step.step_index, step.decision, step.action, step.took_s) for step in seen.run.steps] == [
        (0, "accept", "click [1]", 2.5),
        (1, "override", "click [2]", 4.0),
        (2, "beyond_repair", "", 4.0),
    ]
    first = seen.run.steps[0]
    assert (first.screen.width_px, len(first.screen.elements), first.points[0].y) == (160, 2, 60)
    assert [(one.rank, one.action, one.num_samples, one.score) for one in first.proposals] == [(0, "click [1]", 3, -0.5)]
    assert seen.run.last_screen is not None and seen.run.last_screen.screenshot_id == "screen-fedcba9876543210"
    assert seen.second_run is not None and (seen.second_run.run_id, seen.second_run.annotator, seen.second_run.person_verdict) == (
        second_run_id,
        "bob",
        False,
    )


def test_opinions_of_steps_are_kept_by_step_and_the_last_one_counts(history: History):
    run_id = history.run("ann", steps=(Did(), Did(), Did()), verifier=False)
    first = {0: StepOpinion(is_right=False), 1: StepOpinion(is_right=False, note="no"), 2: StepOpinion()}
    say(history, run_id, "rex", approves=False, steps=first)
    with pytest.raises(ConfigError, match="no step 3"):
        say(history, run_id, "eve", kind="adjudication", steps={3: StepOpinion(is_right=True)})
    say(history, run_id, "eve", kind="adjudication", steps={0: StepOpinion(is_right=True), 1: StepOpinion(thought_fits=False)})
    with history.database.read() as session:
        said = reviews_of(session, run_id)
        assert (wrong_steps(said), said[0].steps) == ({1}, {"0": {"is_right": False}, "1": {"is_right": False, "note": "no"}})


def test_what_is_withdrawn_counts_no_longer_and_is_reviewed_no_more(history: History):
    counting, disputed = history.run("ann", seed=1), history.run("ann", seed=2, verifier=False)
    reviews = service(history)
    for run_id in (counting, disputed):
        with pytest.raises(UnknownSubject):
            asyncio.run(reviews.withdraw(run_id, "not mine", by=history.who("bob", "annotator")))
    asyncio.run(reviews.withdraw(counting, "I misread the task", by=history.who("ann", "annotator")))
    asyncio.run(reviews.withdraw(disputed, "personal data on the screen", by=history.who("rex")))
    asyncio.run(reviews.withdraw(disputed, "again", by=history.who("rex")))
    assert history.changes(counting) == ["run", "withdrawal"] and history.changes(disputed) == []
    assert waiting(history, "rex") == {}
    with pytest.raises(NotNow, match="withdrawn"):
        say(history, disputed, "eve")
    reported = [(one.subject, one.user_id, one.detail["reason"]) for one in history.all(AuditEntry) if one.action == "run.withdrawn"]
    assert reported == [(counting, "user-ann", "I misread the task"), (disputed, "user-rex", "personal data on the screen")]
    assert asyncio.run(reviews.look(disputed, "user-eve")).run.is_withdrawn


def test_what_is_not_finished_is_neither_reviewed_nor_withdrawn(history: History):
    run_id = history.run("ann", finishes=False)
    for asked in (
        service(history).look(run_id, "user-rex"),
        service(history).submit(run_id, SubmitReview(approves=True, verdict=True), by=history.who("rex")),
        service(history).withdraw(run_id, "no", by=history.who("rex")),
    ):
        with pytest.raises(NotNow, match="live"):
            asyncio.run(asked)
    with pytest.raises(UnknownSubject):
        asyncio.run(service(history).look("../run", "user-rex"))


def test_of_reviewers_who_speak_at_once_one_settles_it(history: History):
    run_id = history.run("ann", verifier=False)

    async def speak() -> list[ReviewView | BaseException]:
        said = SubmitReview(approves=True, verdict=True)
        reviews = service(history)
        words = (reviews.submit(run_id, said, by=history.who(who)) for who in ("rex", "eve", "roy"))
        return list(await asyncio.gather(*words, return_exceptions=True))

    found = asyncio.run(speak())
    assert sum(isinstance(one, ReviewView) for one in found) == 1
    assert all(isinstance(one, ReviewView | NotNow) for one in found), found
    assert history.changes(run_id) == ["run"] and len(history.all(Review)) == 1


def test_two_people_who_finish_copies_at_once_are_seen_to_disagree(history: History):
    ids = [history.run(who, seed=9, copy=copy, finishes=False) for copy, who in enumerate(("ann", "bob"))]
    together, problems = threading.Barrier(2), []

    def finish(run_id: str, verdict: bool) -> None:
        together.wait()
        try:
            history.finish(run_id, verdict)
        except FlywheelError as error:
            problems.append(error)

    threads = [threading.Thread(target=finish, args=(run_id, verdict)) for run_id, verdict in zip(ids, (True, False), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [] and [history.state(run_id) for run_id in ids] == ["pending", "pending"]
