"""Annotated runs on real pages: accept, edit, override, step back, a lost browser, a restart in the middle, fencing, doubled requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from annotation.service.intake.export import exported
from annotation.storage import runs
from annotation.storage.schema import Assignment, Change, Draft, Proposal, Run, RunStep
from annotation.wire.runs import Check, Complete, Decide, Finish, Propose, SaveDraft, StepBack
from sandbox.http.tokens import Tokens
from sandbox.pool.pool import SessionPool
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from sandbox.session import Session
from sandbox.tasks.games.source import load_tasks as games
from sandbox.tasks.task import Task
from tests.annotation.service.live_parts import ANN, BOB, Reader, Work, accept, service, task_named, until
from warehouse.core.errors import AssignmentLost, NotNow, OutOfDate, UnknownSubject, UnreadableAnswer

Use = Callable[[SessionPool], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def on_pool() -> Iterator[Callable[[Use], Any]]:
    """Runs `use(pool)` on two sessions in one real browser."""
    with asyncio.Runner() as runner:
        pool = SessionPool(size=2, num_browsers=1)
        runner.run(pool.__aenter__())
        yield lambda use: runner.run(use(pool))
        runner.run(pool.close())


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    made = Work(tmp_path)
    yield made
    made.close()


def test_accept_edit_and_override_are_stored_with_all_that_was_shown(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        policy = Reader(errs=True)
        async with service(work, pool, policy) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            state = await until(live, run_id, "deciding")
            assert state.instruction and state.screen and state.screen.elements and state.step_index == 0 and not state.history
            assert policy.calls == [4], "all candidates in one call"
            assert [each.rank for each in state.proposals] == list(range(len(state.proposals))) and len(state.proposals) >= 2
            assert sum(each.num_samples for each in state.proposals) == 4 and state.proposals[0].score == pytest.approx(-0.1)
            garbage = next(each for each in state.proposals if each.problem)
            assert garbage.text == "I would rather not say" and garbage.kind is None
            with pytest.raises(UnreadableAnswer, match="cannot be carried out"):
                await live.decide(run_id, ANN, Decide(version=state.version, decision="accept", candidate=garbage.rank))
            png = await live.screen(run_id, str(state.screen.screenshot_id))
            assert png.startswith(b"\x89PNG")
            right = next(each for each in state.proposals if each.kind == "click" and "<input>" in each.text)
            state = await accept(live, state, candidate=right.rank)
            word = str(state.instruction).split('"')[1]
            assert state.proposals[0].action == f'type "{word}x"', "a wrong word, to be corrected"
            edit = Decide(version=state.version, decision="edit", candidate=0, thought=state.proposals[0].thought, action=f'type "{word}"')
            await live.decide(run_id, ANN, edit)
            state = await until(live, run_id, "deciding")
            submit = next(box for box in state.screen.elements if box.name == "Submit")  # type: ignore[union-attr]
            override = Decide(version=state.version, decision="override", thought="Now I send it", action=f"click [{submit.index}]")
            await live.decide(run_id, ANN, override)
            state = await until(live, run_id, "ended")
            assert state.verifier is True and state.outcome == "success" and state.screen is not None
            reported = [step.decision for step in state.history]
            assert reported == ["accept", "accept", "edit"], "what another candidate says, and what one does for another reason"
            assert state.history[2].reward == 1.0
            done = await live.finish(run_id, ANN, Finish(version=state.version, is_success=True, note="fine"))
            assert done.phase == "finished" and not live.is_live(run_id)

        steps = work.rows(select(RunStep).order_by(RunStep.step_index))
        assert [step.decision for step in steps] == ["accept", "accept", "edit", None], "the last is the screen at the end"
        assert steps[1].response == f'Thought type Action type "{word}"' and steps[1].candidate == 1 and steps[1].executed is None
        assert steps[2].thought == "Now I send it" and steps[2].action["kind"] == "click" and steps[2].reward == 1.0
        assert all(step.messages and step.screen["elements"] for step in steps[:3])
        assert all(step.asked_at_s <= step.decided_at_s <= step.executed_at_s for step in steps[:3])
        assert all(work.blobs.has(step.screenshot_id) for step in steps)
        assert {row.policy_id for row in work.rows(select(Proposal))} == {"policy-reader"}
        run = work.rows(select(Run))[0]
        assert (run.state, run.outcome, run.person_verdict, run.verifier_verdict, run.review_state) == (
            "finished",
            "success",
            True,
            True,
            "none",
        )
        assert run.environment and run.note == "fine" and work.rows(select(Assignment))[0].state == "finished"
        assert [(row.kind, row.subject_id) for row in work.rows(select(Change))] == [("run", run_id)]

    on_pool(use)


def test_a_games_score_is_kept_with_its_run_and_its_episode(on_pool: Any, work: Work) -> None:
    task = games("small-elements")["merge-tile-16-elements"].model_copy(update={"max_steps": 3})

    async def use(pool: SessionPool) -> None:
        async with service(work, pool, Reader()) as live:
            run_id = await live.start(work.lease(work.campaign(), task), 1, ANN)
            for _ in range(task.max_steps):
                state = await until(live, run_id, "deciding", "ended")
                column = next(box for box in state.screen.elements if box.role == "column")  # type: ignore[union-attr]
                drop = Decide(version=state.version, decision="override", thought="Drop it", action=f"click [{column.index}]")
                await live.decide(run_id, ANN, drop)
            state = await until(live, run_id, "ended")
            await live.finish(run_id, ANN, Finish(version=state.version, is_success=False, note=""))
        (run,) = work.rows(select(Run))
        assert run.outcome == "truncated" and run.points is not None
        episode = exported(await work.database.reading(runs.load, run_id), work.blobs).episode
        assert episode.points == run.points and {step.policy_id for step in episode.steps} == {ANN}

    on_pool(use)


def test_stepping_back_replays_and_supersedes_without_asking_again(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        policy = Reader()
        async with service(work, pool, policy) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            first = await until(live, run_id, "deciding")
            second = await accept(live, first)
            third = await accept(live, second)
            await live.save_draft(run_id, ANN, SaveDraft(step_index=2, number=1, thought="hm", action="cli", candidate=1))
            with pytest.raises(NotNow, match="cannot go back to step 3"):
                await live.back(run_id, ANN, StepBack(version=third.version, to_step=3))
            back = StepBack(version=third.version, to_step=1)
            assert (await live.back(run_id, ANN, back)).phase == "rewinding"
            await live.back(run_id, ANN, back)
            again = await until(live, run_id, "deciding")
            assert again.step_index == 1 and again.problem is None and len(again.history) == 1
            assert again.screen == second.screen and again.proposals == second.proposals, "the same screen to the pixel"
            assert policy.calls == [4, 4, 4], "what it had proposed there is known"
            state = await accept(live, await accept(live, again))
            assert state.phase == "ended" and state.verifier is True
            over = await live.back(run_id, ANN, StepBack(version=state.version, to_step=2))
            assert over.outcome is None and over.verifier is None
            state = await accept(live, await until(live, run_id, "deciding"))
            await live.finish(run_id, ANN, Finish(version=state.version, is_success=True))
        steps = work.rows(select(RunStep).order_by(RunStep.asked_at_s))
        kept_steps = [step for step in steps if step.superseded_at_s is None]
        assert [step.step_index for step in kept_steps] == [0, 1, 2, 3] and len(steps) > 4
        assert work.rows(select(Run))[0].num_backs == 2
        (draft,) = work.rows(select(Draft))
        assert (draft.action, draft.candidate) == ("", None), "a draft of a step that was stepped back over is gone"

    on_pool(use)


def test_a_lost_browser_is_replaced_and_the_steps_are_done_again(tmp_path: Path) -> None:
    async def use() -> None:
        work = Work(tmp_path)
        async with SessionPool(size=1, num_browsers=1) as pool, service(work, pool) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            state = await accept(live, await until(live, run_id, "deciding"))
            for pid in pool.browser_pids():
                victims = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
                for victim in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):  # a child ends with its parent
                        victim.kill()
            state = await accept(live, state)
            assert state.phase == "deciding" and state.step_index == 2 and "failed" in str(state.problem)
            state = await accept(live, state)
            assert state.phase == "ended" and state.verifier is True and state.problem is None
        assert len(work.rows(select(RunStep))) == 4
        work.close()

    asyncio.run(use())


def test_a_run_goes_on_where_it_was_after_the_service_died(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        policy = Reader()
        async with service(work, pool, policy) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            before = await accept(live, await until(live, run_id, "deciding"))
            await live.save_draft(run_id, ANN, SaveDraft(step_index=1, number=7, thought="half", action="typ"))
            before = await live.state(run_id)
        async with service(work, pool, policy) as live:
            assert await live.recover() == 1 and await live.recover() == 0
            state = await until(live, run_id, "deciding")
            assert state.step_index == 1 and state.history == before.history and state.screen == before.screen
            assert state.proposals == before.proposals and state.draft == before.draft and state.draft is not None
            assert policy.calls == [4, 4], "the open step is shown with what was proposed"
            assert state.version > before.version
            with pytest.raises(OutOfDate):
                await live.decide(run_id, ANN, Decide(version=before.version, decision="accept", candidate=0))
            state = await accept(live, await accept(live, state))
            assert state.phase == "ended" and state.verifier is True
        async with service(work, pool, policy) as live:
            assert await live.recover() == 1
            state = await until(live, run_id, "ended")
            assert state.verifier is True and len(state.history) == 3 and state.screen is not None
            done = Finish(version=state.version, is_success=True)
            await live.finish(run_id, ANN, done)
            assert (await live.finish(run_id, ANN, done)).phase == "finished"
        async with service(work, pool, policy) as live:
            assert await live.recover() == 0 and (await live.finish(run_id, ANN, done)).phase == "finished"
            with pytest.raises(NotNow, match="is finished"):
                await live.finish(run_id, ANN, done.model_copy(update={"is_success": False}))
        assert len(work.rows(select(RunStep))) == 4 and len(work.rows(select(Change))) == 1

    on_pool(use)


def test_doubled_and_late_requests_change_nothing_twice(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, pool) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            assert await live.start("assignment-2", 1, ANN) == run_id, "the run of a lease is one"
            state = await until(live, run_id, "deciding")
            decision = Decide(version=state.version, decision="accept", candidate=0)
            await asyncio.gather(*(live.decide(run_id, ANN, decision) for _ in range(5)))
            state = await until(live, run_id, "deciding")
            assert len(state.history) == 1 and (await live.decide(run_id, ANN, decision)).version >= state.version
            with pytest.raises(OutOfDate, match="look at it again"):
                await live.decide(run_id, ANN, Decide(version=decision.version, decision="beyond_repair"))
            with pytest.raises(UnknownSubject):
                await live.decide(run_id, BOB, Decide(version=state.version, decision="accept", candidate=0))
            late = SaveDraft(step_index=1, number=3, thought="", action="a")
            assert (await live.save_draft(run_id, ANN, late.model_copy(update={"number": 5, "action": "b"}))).number == 5
            assert (await live.save_draft(run_id, ANN, late)).action == "b"
            assert len((await live.state(run_id)).history) == 1
        assert len(work.rows(select(RunStep).where(RunStep.decision.is_not(None)))) == 1

    on_pool(use)


def test_whoever_lost_the_lease_changes_nothing(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, pool) as live:
            assignment_id = work.lease(work.campaign(), task_named("enter-text"))
            run_id = await live.start(assignment_id, 1, ANN)
            state = await until(live, run_id, "deciding")
            work.give_to(assignment_id, BOB)
            with pytest.raises(AssignmentLost):
                await live.decide(run_id, ANN, Decide(version=state.version, decision="accept", candidate=0))
            for request in (Finish(version=state.version, is_success=True), StepBack(version=state.version, to_step=0)):
                with pytest.raises(AssignmentLost):
                    await (live.finish if isinstance(request, Finish) else live.back)(run_id, ANN, request)  # type: ignore[operator]
            with pytest.raises(AssignmentLost):
                await live.start(assignment_id, 1, ANN)
            assert (await live.state(run_id)).phase == "abandoned" and not live.is_live(run_id)
            other = await live.start(assignment_id, 2, BOB)
            state = await accept(live, await until(live, other, "deciding"), BOB)
            assert len(state.history) == 1
            work.give_to(assignment_id, ANN)
            await asyncio.gather(live.sweep(), *(live.abandon(other) for _ in range(3)))  # the watch, and whoever takes it next
            assert not live.is_live(other), "its sandbox is free again"
        assert [row.state for row in work.rows(select(Run))] == ["abandoned", "abandoned"]
        assert len(work.rows(select(RunStep).where(RunStep.decision.is_not(None)))) == 1

    on_pool(use)


def test_relabel_carries_out_the_policy_and_keeps_the_label(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, pool, Reader(errs=True)) as live:
            run_id = await live.start(work.lease(work.campaign("relabel"), task_named("click-button")), 1, ANN)
            state = await until(live, run_id, "deciding")
            while state.phase == "deciding":
                right = next(each for each in state.proposals if each.rank and each.kind == "click")
                state = await accept(live, state, candidate=right.rank)
            assert state.verifier is False, "the policy's own wrong clicks were carried out"
            assert {step.text for step in state.history} == {right.text}
            await live.finish(run_id, ANN, Finish(version=state.version, is_success=False))
        step = work.rows(select(RunStep).where(RunStep.decision == "accept"))[0]
        assert step.response == right.text and step.executed != step.response and step.candidate == right.rank
        assert work.rows(select(Run))[0].review_state == "none"

    on_pool(use)


def test_a_picture_that_is_forgotten_while_its_step_is_stored_is_kept_once_more(
    on_pool: Any, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetting(stored: Callable[..., Any], screen_of: Callable[..., str]) -> Callable[..., Any]:
        def store(*args: Any, **kwargs: Any) -> Any:
            assert work.blobs.erase([screen_of(*args, **kwargs)]) == 1
            return stored(*args, **kwargs)

        return store

    monkeypatch.setattr(runs, "ask", forgetting(runs.ask, lambda session, run_id, asked, *_, **__: str(asked.screenshot_id)))
    monkeypatch.setattr(runs, "end", forgetting(runs.end, lambda *_, last, **__: str(last.screenshot_id)))

    async def use(pool: SessionPool) -> None:
        async with service(work, pool, Reader()) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("click-button")), 1, ANN)
            await until(live, run_id, "deciding")
            assert all(work.blobs.has(step.screenshot_id) for step in work.rows(select(RunStep)))
            assert (await accept(live, await until(live, run_id, "deciding"))).phase == "ended"
        steps = work.rows(select(RunStep))
        assert len(steps) == 2 and all(work.blobs.has(step.screenshot_id) for step in steps)

    on_pool(use)


def test_finishing_early_and_giving_up_let_the_verifier_speak(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        campaign = work.campaign()
        async with service(work, pool) as live:
            run_id = await live.start(work.lease(campaign, task_named("enter-text")), 1, ANN)
            state = await accept(live, await until(live, run_id, "deciding"))
            done = await live.finish(run_id, ANN, Finish(version=state.version, is_success=True))
            assert done.phase == "finished" and done.verifier is False
            lost = await live.start(work.lease(campaign, task_named("click-button")), 1, ANN)
            state = await until(live, lost, "deciding")
            await live.decide(lost, ANN, Decide(version=state.version, decision="beyond_repair"))
            state = await until(live, lost, "ended")
            assert state.verifier is False and state.history[0].decision == "beyond_repair" and state.history[0].line == "beyond repair"
            await live.finish(lost, ANN, Finish(version=state.version, is_success=False))
        reviews = {row.run_id: row.review_state for row in work.rows(select(Run))}
        assert reviews == {run_id: "pending", lost: "none"}, "the person said that it was done, the verifier that it was not"
        assert [row.subject_id for row in work.rows(select(Change))] == [lost]
        ends = work.rows(select(RunStep).where(RunStep.run_id == run_id).order_by(RunStep.step_index))
        assert [step.decision for step in ends] == ["accept", None]

    on_pool(use)


def test_two_people_who_differ_are_looked_at(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        campaign, task = work.campaign("relabel"), task_named("click-button")
        async with service(work, pool, Reader()) as live:
            for user_id, copy, candidate in ((ANN, 0, 0), (BOB, 1, 1)):
                run_id = await live.start(work.lease(campaign, task, copy=copy, user_id=user_id), 1, user_id)
                state = await until(live, run_id, "deciding")
                rank = 0 if candidate == 0 else next(each.rank for each in state.proposals if each.rank and not each.problem)
                state = await accept(live, state, user_id, rank)
                await live.finish(run_id, user_id, Finish(version=state.version, is_success=True))
        assert [run.review_state for run in work.rows(select(Run))] == ["pending", "pending"]
        assert [row.kind for row in work.rows(select(Change).order_by(Change.change_id))] == ["run", "withdrawal"]

    on_pool(use)


def test_a_policy_that_is_down_leaves_the_person_at_work(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        policy = Reader()
        policy.is_down = True
        async with service(work, pool, policy) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            state = await until(live, run_id, "deciding")
            assert not state.proposals and "does not answer" in str(state.problem)
            field = next(box for box in state.screen.elements if box.role == "input")  # type: ignore[union-attr]
            await live.decide(run_id, ANN, Decide(version=state.version, decision="override", action=f"click [{field.index}]"))
            state = await until(live, run_id, "deciding")
            assert state.history[0].thought == f'click "" <input> [{field.index}]', "the grammar's own thought"
            policy.is_down = False
            state = await live.propose(run_id, ANN, Propose(version=state.version))
            assert state.proposals and state.problem is None and state.proposals[0].kind == "type"
            num = len(state.proposals)
            state = await live.propose(run_id, ANN, Propose(version=state.version))
            assert len(state.proposals) >= num and len({each.text for each in state.proposals}) == len(state.proposals)
            state = await accept(live, await accept(live, state))
            assert state.verifier is True

    on_pool(use)


def test_the_editor_is_helped_from_the_live_screen(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, pool) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            state = await until(live, run_id, "deciding")
            word = str(state.instruction).split('"')[1]
            assert word in [each.label for each in await live.complete(run_id, Complete(action='type "', cursor=6))]
            assert (await live.complete(run_id, Complete(action="cl", cursor=2)))[0].label == "click"
            view = await live.check(run_id, Check(thought=None, action="click [1]"))
            assert view.problem is None and view.points and (await live.check(run_id, Check(action="fly"))).problem

    on_pool(use)


@pytest.mark.slow
def test_from_action_to_frame(on_pool: Any, work: Work) -> None:
    """Latency of a decision until the next screen can be shown; figures in the output (-s)."""

    async def use(pool: SessionPool) -> None:
        async with service(work, pool) as live:
            times = []
            for seed in range(12):
                run_id = await live.start(work.lease(work.campaign(), task_named("enter-text"), seed=seed), 1, ANN)
                state = await until(live, run_id, "deciding")
                while state.phase == "deciding":
                    shown = str(state.screen.screenshot_id)  # type: ignore[union-attr]
                    started_s = time.monotonic()
                    state = await live.decide(run_id, ANN, Decide(version=state.version, decision="accept", candidate=0))
                    while state.screen is None or state.screen.screenshot_id == shown:
                        state = await live.changes(run_id, state.version, 5.0) or state
                        if state.phase in ("deciding", "ended"):
                            break
                    await live.screen(run_id, str(state.screen.screenshot_id))  # type: ignore[union-attr]
                    times.append((time.monotonic() - started_s) * 1000)
                    state = await until(live, run_id, "deciding", "ended")
                await live.abandon(run_id)
            times.sort()
            print(f"\naction to frame over {len(times)} steps: median {times[len(times) // 2]:.0f} ms, worst {times[-1]:.0f} ms")
            assert len(times) >= 12, "each decision of each run showed a screen"

    on_pool(use)


@pytest.mark.slow
def test_the_same_on_postgres_and_sessions_of_a_sandbox_server(on_pool: Any, tmp_path: Path, postgres_url: str) -> None:
    async def use(pool: SessionPool) -> None:
        tokens = Tokens({"annotation": "token-of-annotation-0123456789"})
        work = Work(tmp_path, postgres_url)
        async with serving(pool, tokens) as url, SandboxClient(url, "token-of-annotation-0123456789") as remote:
            campaign = work.campaign()
            async with service(work, remote) as live:
                assignment_ids = [work.lease(campaign, task_named("enter-text"), seed=seed) for seed in range(2)]
                run_ids = await asyncio.gather(*(live.start(assignment_id, 1, ANN) for assignment_id in assignment_ids))
                states = await asyncio.gather(*(until(live, run_id, "deciding") for run_id in run_ids))
                decision = [Decide(version=state.version, decision="accept", candidate=0) for state in states]
                doubled = [live.decide(run_id, ANN, body) for run_id, body in zip(run_ids, decision, strict=True) for _ in range(3)]
                await asyncio.gather(*doubled)
                states = await asyncio.gather(*(until(live, run_id, "deciding") for run_id in run_ids))
                await live.back(run_ids[0], ANN, StepBack(version=states[0].version, to_step=0))
                state = await until(live, run_ids[0], "deciding")
                assert state.step_index == 0 and state.problem is None
                work.give_to(assignment_ids[1], BOB)
                with pytest.raises(AssignmentLost):
                    await live.decide(run_ids[1], ANN, Decide(version=states[1].version, decision="accept", candidate=0))
            async with service(work, remote) as live:
                assert await live.recover() == 1
                state = await until(live, run_ids[0], "deciding")
                while state.phase == "deciding":
                    state = await accept(live, state)
                assert state.verifier is True
                await live.finish(run_ids[0], ANN, Finish(version=state.version, is_success=True))
            assert [row.subject_id for row in work.rows(select(Change))] == [run_ids[0]]
            assert {row.run_id: row.state for row in work.rows(select(Run))} == {run_ids[0]: "finished", run_ids[1]: "abandoned"}
        work.close()

    on_pool(use)


class _Shifting:
    """A pool whose second and later episodes are other instances than were asked for: an environment that does not come back."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool, self._num = pool, 0

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[Session]:
        async with self._pool.lease(task, screenshots=screenshots) as session:
            real, shift, self._num = session.reset, self._num, self._num + 1
            session.reset = lambda task, seed: real(task, seed + shift)  # type: ignore[method-assign]
            try:
                yield session
            finally:
                del session.reset  # type: ignore[method-assign]

    async def close(self) -> None:
        return None


def test_an_environment_that_does_not_come_back_is_reported_and_the_run_goes_on(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, _Shifting(pool)) as live:
            run_id = await live.start(work.lease(work.campaign(), task_named("enter-text")), 1, ANN)
            first = await until(live, run_id, "deciding")
            state = await accept(live, await accept(live, first))
            await live.back(run_id, ANN, StepBack(version=state.version, to_step=2))
            state = await until(live, run_id, "deciding")
            assert "did not come back as it was at step 1" in str(state.problem) and state.instruction != first.instruction
            assert state.step_index == 0 and state.history == () and state.proposals
            while state.phase == "deciding":
                state = await accept(live, state)
            assert state.verifier is True and state.problem is None and len(state.history) == 3
            await live.finish(run_id, ANN, Finish(version=state.version, is_success=True))
        kept_steps = work.rows(select(RunStep).where(RunStep.superseded_at_s.is_(None)).order_by(RunStep.step_index))
        assert [(step.step_index, step.decision) for step in kept_steps] == [(0, "accept"), (1, "accept"), (2, "accept"), (3, None)]

    on_pool(use)


def test_who_went_away_frees_the_sandbox_and_finds_the_work_again(on_pool: Any, work: Work) -> None:
    async def use(pool: SessionPool) -> None:
        async with service(work, pool) as live:
            assignment_id = work.lease(work.campaign(), task_named("enter-text"))
            run_id = await live.start(assignment_id, 1, ANN)
            state = await accept(live, await until(live, run_id, "deciding"))
            work.expire(assignment_id)
            await live.sweep()
            assert not live.is_live(run_id) and pool.stats().num_leased == 0
            assert (await live.state(run_id)).phase == "starting" and not await live.wake(run_id, if_overdue=False)
            with pytest.raises(OutOfDate):  # what was decided on the old page; it brings the run back
                await live.decide(run_id, ANN, Decide(version=state.version, decision="accept", candidate=0))
            back = await until(live, run_id, "deciding")
            assert back.history == state.history and back.screen == state.screen
            state = await accept(live, back)
            assert work.rows(select(Assignment))[0].lease_until_s > time.time(), "working on it renews the lease"

    on_pool(use)
