"""LiveRuns: what people, pages and programs ask of annotated runs. Each request that changes something names the version that it was made
on, so that a late or doubled one changes nothing; each is fenced by the assignment's lease (storage/runs.py).

How an episode is played is person.py's, what is known of one run live_run.py's, starting and ending run_keeper.py's, and whatever changes
nothing run_readers.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from agent.grammars.elements import render_observation
from annotation.service.runs import stored_runs
from annotation.service.runs.choices import Choice, choice_of
from annotation.service.runs.live_run import KeptStep, LiveRun, history_step, surely
from annotation.service.runs.proposals import added, propose
from annotation.service.runs.run_readers import RunReaders
from annotation.storage import run_endings, runs
from annotation.wire import runs as bodies
from annotation.wire.runs import Decide, RunPhase, RunState
from sandbox.session import Observation
from warehouse.core.errors import AssignmentLost, NotNow, OutOfDate, SandboxError

T = TypeVar("T")
END_TIMEOUT_S = 120.0
"""How long a finish waits for the verifier."""


class LiveRuns(RunReaders):
    """Methods that change a run take the user who asks: a run is its own annotator's. Raise UnknownSubject, AssignmentLost, OutOfDate,
    NotNow."""

    async def decide(self, run_id: str, user_id: str, body: Decide) -> RunState:
        """Store what was decided and have it carried out. Raises UnreadableAnswer too; then nothing was done."""
        run = await self._own(run_id, user_id)
        async with run.lock:
            if run.done == body:
                return run.view()
            self._check(run, body.version, "deciding")
            await self._carry_out(run, choice_of(body, run.situation))
            run.done = body
            return run.view()

    async def back(self, run_id: str, user_id: str, body: bodies.StepBack) -> RunState:
        """Begin again and do the first `to_step` steps once more; the later ones are superseded."""
        run = await self._own(run_id, user_id)
        async with run.lock:
            if run.done == body:
                return run.view()
            self._check(run, body.version, "deciding", "proposing", "ended", "broken")
            if body.to_step > len(run.kept_steps):
                raise NotNow(f"run {run_id} has {len(run.kept_steps)} steps: it cannot go back to step {body.to_step}")
            await self._stop(run)
            rewound = self._database.writing(runs.rewind, run_id, body.to_step, now_s=self._clock(), by_person=True)
            run.lease_until_s = await self._fenced(run, rewound)
            del run.kept_steps[body.to_step :]
            run.closing, run.stops, run.outcome, run.reward, run.verifier = None, False, None, None, None
            run.problem, run.recovered, run.done = None, None, body
            run.publish("rewinding")
            self._launch(run)
            return run.view()

    async def finish(self, run_id: str, user_id: str, body: bodies.Finish) -> RunState:
        """The person's verdict; where the episode still goes on it ends, and the verifier speaks first."""
        try:
            run = await self._own(run_id, user_id)
        except NotNow:
            return await self._finished_before(run_id, body)
        async with run.lock:
            if run.done == body:
                return run.view()
            self._check(run, body.version, "deciding", "ended")
            if run.phase == "deciding":
                await self._end_episode(run)
            await self._fenced(
                run, self._database.writing(run_endings.finish, run_id, is_success=body.is_success, note=body.note, now_s=self._clock())
            )
            run.done, run.problem = body, None
            self._let_go(run_id, "finished")
            return run.view()

    async def save_draft(self, run_id: str, user_id: str, body: bodies.SaveDraft) -> bodies.DraftView:
        """What stands now: the newer of the two. Drafts are not changes that decisions are made on."""
        run = await self._own(run_id, user_id)
        typed = (body.step_index, body.number, body.thought, body.action, body.candidate)
        saved = await self._fenced(run, self._database.writing(runs.save_draft, run_id, *typed, now_s=self._clock()))
        draft = stored_runs.view_of_draft(saved)
        if body.step_index == len(run.kept_steps):
            run.draft = draft
            run.forget_view()
        return draft

    async def propose(self, run_id: str, user_id: str, body: bodies.Propose) -> RunState:
        """Ask the policy again, for candidates that are not there yet. Raises ModelError."""
        run = await self._own(run_id, user_id)
        self._check(run, body.version, "deciding")
        opened, context, plan = run.open, run.context, run.plan
        if opened is None or context is None:
            raise NotNow(f"run {run_id} is not waiting for a decision")
        number, opened.num_asked = opened.num_asked, opened.num_asked + 1
        new = await propose(
            plan.served.policy, context, plan.grammar, num_candidates=plan.num_candidates, temperature=plan.temperature, more=number
        )
        async with run.lock:
            if run.open is not opened or run.phase != "deciding":
                return run.view()
            fresh = added(opened.candidates, new, plan.grammar, context.observation)
            rows = [each.row for each in fresh]
            first_rank = len(opened.candidates)
            await self._fenced(
                run, self._database.writing(runs.add_more, run_id, opened.step_id, rows, first_rank=first_rank, now_s=self._clock())
            )
            opened.candidates += fresh
            run.asked[context.step_index, context.messages] = list(opened.candidates)
            run.problem = None if opened.candidates else run.problem
            run.publish()
            return run.view()

    async def _carry_out(self, run: LiveRun, choice: Choice) -> None:
        opened, observation = run.open, run.seen
        if opened is None:
            raise NotNow(f"run {run.plan.run_id} is not waiting for a decision")
        decided = self._database.writing(runs.decide, run.plan.run_id, opened.step_id, choice.decided, now_s=self._clock())
        run.lease_until_s = await self._fenced(run, decided)
        view = history_step(
            choice.decided.response,
            run.plan.grammar,
            observation,
            step_index=len(run.kept_steps),
            decision=choice.decided.decision,
            screenshot_id=observation.screenshot_id,
        )
        if choice.base is None:
            run.closing, run.stops = view, True
        else:
            run.kept_steps.append(_kept_step(opened.step_id, choice, observation, view))
        run.problem = run.draft = None
        run.publish("executing")
        opened.decision.set_result(None if choice.base is None else choice)

    async def _end_episode(self, run: LiveRun) -> None:
        """The person has nothing left to do: the episode ends here, and the verifier looks."""
        if run.open is None or run.task is None:
            raise NotNow(f"run {run.plan.run_id} is not waiting for a decision")
        run.stops = True
        run.open.decision.set_result(None)
        await asyncio.wait({run.task}, timeout=END_TIMEOUT_S)
        phase: RunPhase = run.phase  # it has changed meanwhile
        if phase == "abandoned":
            raise AssignmentLost(run.problem or "the assignment is no longer leased to you")
        if phase != "ended":
            run.stops = False
            raise SandboxError(
                run.problem or "The episode could not be ended: its sandbox does not answer. Go back to a step to try it again."
            )

    async def _finished_before(self, run_id: str, body: bodies.Finish) -> RunState:
        stored = await self._database.reading(runs.load, run_id)
        if stored.run.state == "finished" and stored.run.person_verdict == body.is_success:
            return stored_runs.state_of(stored, version=int(self._clock() * 1000))
        raise NotNow(f"run {run_id} is {stored.run.state}: it can no longer be changed")

    async def _fenced(self, run: LiveRun, work: Awaitable[T]) -> T:
        """What is stored on a person's behalf. A run whose lease is gone ends with it."""
        try:
            return await surely(work)
        except AssignmentLost:
            if run.plan.run_id in self._live:
                await self.abandon(run.plan.run_id)
            raise

    async def _own(self, run_id: str, user_id: str) -> LiveRun:
        """A person's own live run, or one that has just ended."""
        run = self._live.get(run_id) or self._gone.get(run_id)
        if run is None:
            row = await self._database.reading(runs.get, run_id)
            if row.user_id != user_id:
                raise runs.unknown(run_id)
            await self.wake(run_id)
            if run_id not in self._live:
                raise NotNow(f"run {run_id} is {row.state}: it can no longer be changed")
            run = self._live[run_id]
        if run.plan.user_id != user_id:
            raise runs.unknown(run_id)
        return run

    @staticmethod
    def _check(run: LiveRun, version: int, *phases: RunPhase) -> None:
        """Raises OutOfDate for a request that was made on an earlier state, NotNow for one that the state does not allow."""
        if run.phase == "abandoned":
            raise AssignmentLost(run.problem or f"run {run.plan.run_id} was given up: its assignment is no longer leased to you")
        if version != run.version:
            raise OutOfDate(
                f"run {run.plan.run_id} has changed since (version {version}, now {run.version}): look at it again before you decide"
            )
        if run.phase not in phases:
            raise NotNow(f"run {run.plan.run_id} is {run.phase}: this can be done while it is {' or '.join(phases)}")


def _kept_step(step_id: str, choice: Choice, observation: Observation, view: bodies.HistoryStep) -> KeptStep:
    if choice.base is None:
        raise ValueError("a choice that nothing is done for does not stand")
    return KeptStep(
        step_id=step_id,
        base=choice.base,
        override=choice.override,
        instruction=observation.instruction,
        observation=render_observation(observation),
        screenshot_id=observation.screenshot_id,
        view=view,
    )
