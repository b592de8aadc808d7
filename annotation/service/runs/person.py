"""The person as the action source of an episode: does again what stands, then stores and shows each step and waits for a decision.

So stepping back, a lost sandbox and a server that was killed are one thing: the episode begins again, with a prefix of what was decided.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from agent.episode.episode import Step
from agent.episode.rows import message_rows
from agent.grammars.elements import render_observation
from agent.policy.action_source import StepContext
from agent.policy.policy import Response
from annotation.service.runs.live_run import LiveRun, Open, surely
from annotation.service.runs.proposals import Candidate, propose
from annotation.service.runs.screens import LONGEST_OUTPUT, difference, screen_json
from annotation.storage import runs
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.ids import new_id
from annotation.storage.runs import Asked, Executed
from annotation.wire.runs import DraftView
from sandbox.session import Observation
from warehouse.core.errors import ModelError, SandboxError


class Person:
    """The player of one run's episode (platform/live.py)."""

    def __init__(self, run: LiveRun, database: Database, blobs: Blobs, clock: Callable[[], float] = time.time) -> None:
        self._run, self._database, self._blobs, self._clock = run, database, blobs, clock

    @property
    def num_decided(self) -> int:
        return len(self._run.kept_steps)

    async def respond(self, context: StepContext) -> Response | None:
        run, index = self._run, context.step_index
        run.context = context
        run.show(context.observation)
        if index < len(run.kept_steps) and not await self._has_diverged(context):
            run.publish()
            return run.kept_steps[index].base
        if run.stops:
            return None
        run.open = await self._ask(context)
        choice = await run.open.decision
        return None if choice is None else choice.base

    async def intervene(self, context: StepContext, response: Response) -> str | None:
        return self._run.kept_steps[context.step_index].override

    async def watch(self, step: Step, after: Observation) -> None:
        """Note what came of a step; it is stored with what comes next."""
        run, kept = self._run, self._run.kept_steps[step.step_index]
        run.open = None
        run.show(after)
        if not kept.is_executed:
            kept.is_executed = True
            output = after.output[-LONGEST_OUTPUT:] if kept.view.kind == "tool" else None
            kept.view = kept.view.model_copy(update={"reward": step.reward, "output": output})
            run.executed.append(Executed(step_id=kept.step_id, reward=step.reward, at_s=self._clock()))

    async def failed(self, error: SandboxError) -> None:
        problem = f"The sandbox failed ({type(error).__name__}) and is restarted; your steps are done again on another one."
        self._run.publish("rewinding", problem)

    async def _has_diverged(self, context: StepContext) -> bool:
        """Whether the environment did not come back as it was: then the person goes on from here, and what came later is superseded."""
        run, index = self._run, context.step_index
        kept = run.kept_steps[index]
        match difference(kept.observation, kept.screenshot_id, kept.instruction, context.observation):
            case None:
                return False
            case "pixels":
                run.problem = f"When it was done again, the picture of step {index + 1} was not the same to the pixel; its elements were."
                return False
        run.lease_until_s = await surely(self._database.writing(runs.rewind, run.plan.run_id, index, now_s=self._clock(), by_person=False))
        del run.kept_steps[index:]
        run.closing, run.stops, run.recovered = None, False, None
        run.problem = (
            f"The environment did not come back as it was at step {index + 1}: "
            "what was decided from there on no longer fits and is set aside. Go on from here."
        )
        return True

    async def _ask(self, context: StepContext) -> Open:
        run = self._run
        run.publish("proposing")
        keeping = asyncio.ensure_future(self._keep_picture(context.observation))
        try:
            opened = self._recovered(context) or await self._ask_again(context, keeping)
        finally:
            await surely(keeping)
        # Once more now that the step is stored: what was forgotten meanwhile may have shown the same, and not known of this run.
        await self._keep_picture(context.observation)
        run.publish("deciding")
        return opened

    def _recovered(self, context: StepContext) -> Open | None:
        """The step that was open when the server ended, where it looks the same again."""
        run = self._run
        candidates = run.asked.get((context.step_index, context.messages))
        if run.recovered is None or candidates is None or run.recovered[1] != render_observation(context.observation):
            return None
        run.open, run.recovered = Open(step_id=run.recovered[0], candidates=list(candidates)), None
        return run.open

    async def _ask_again(self, context: StepContext, keeping: asyncio.Future[None]) -> Open:
        run = self._run
        if run.recovered is not None:  # the screen is another one than it was asked on
            run.recovered = None
            await surely(self._database.writing(runs.rewind, run.plan.run_id, context.step_index, now_s=self._clock(), by_person=False))
        candidates = await self._candidates(context)
        await keeping
        asked = replace(asked_of(context, self._clock()), proposals=tuple(each.row for each in candidates))
        executed = list(run.executed)
        await surely(
            self._database.writing(
                runs.ask, run.plan.run_id, asked, executed, instruction=context.observation.instruction, environment=run.episode.environment
            )
        )
        del run.executed[: len(executed)]
        if run.draft is not None and run.draft.step_index == context.step_index:
            run.draft = DraftView(step_index=context.step_index, number=0, thought="", action="")
        run.open = Open(step_id=asked.step_id, candidates=list(candidates))
        return run.open

    async def _candidates(self, context: StepContext) -> list[Candidate]:
        run, key = self._run, (context.step_index, context.messages)
        if key not in run.asked:
            plan = run.plan
            try:
                run.asked[key] = await propose(
                    plan.served.policy, context, plan.grammar, num_candidates=plan.num_candidates, temperature=plan.temperature
                )
            except ModelError as error:
                run.problem = f"The policy does not answer ({error}). Ask it again, or say yourself what is to be done."
                return []
        return run.asked[key]

    async def _keep_picture(self, observation: Observation) -> None:
        if observation.screenshot is not None:
            await asyncio.to_thread(self._blobs.put, observation.screenshot)


def asked_of(context: StepContext, now_s: float) -> Asked:
    """A decision point as it is stored."""
    return point_of(context.observation, context.step_index, now_s, messages=message_rows(context.messages))


def point_of(observation: Observation, step_index: int, now_s: float, *, messages: list[dict[str, object]]) -> Asked:
    return Asked(
        step_id=new_id("step"),
        step_index=step_index,
        at_s=now_s,
        messages=messages,
        observation=render_observation(observation),
        screenshot_id=observation.screenshot_id,
        url=observation.url or None,
        screen=screen_json(observation),
    )
