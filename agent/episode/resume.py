"""Turn-exact resume: an episode that was cut off goes on at the step it was cut off at, by verified replay.

A session cannot be kept over a kill, so its episode starts on another one: the recorded actions are carried out again, their responses are
not asked for again, and at each step the prompt, the elements and the screen must be those that were recorded. Where one differs, the
environment does not repeat: what was recorded is dropped and the episode starts again.

The wall clock of decisions made before the cut does not count again towards `policy_timeout_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agent.episode.episode import EpisodeRequest, Step
from agent.episode.log import EpisodeLog, ResumeCounts
from agent.grammars.elements import render_observation
from agent.policy.action_source import ActionSource, StepContext
from agent.policy.policy import Response
from sandbox.session import Observation

_LOG = logging.getLogger(__name__)


class Diverged(Exception):
    """A replayed step is not as it was recorded."""


class RecordedSteps:
    """The steps that an episode has made so far, in this start and in earlier ones; kept in the log where there is one."""

    def __init__(self, request: EpisodeRequest, log: EpisodeLog | None) -> None:
        self._request, self._log = request, log
        self._counts = ResumeCounts() if log is None else log.resumed
        self._steps: list[Step] = [] if log is None else log.steps(request)
        self._num_replayed = 0
        self._has_gone_on = False

    def then(self, source: ActionSource) -> ActionSource:
        """What plays the episode: the recorded responses first, then `source`."""
        self._num_replayed = 0
        return _Resumed(self, source)

    def response_at(self, context: StepContext) -> Response | None:
        """The recorded response; None where the episode had not come so far. Raises Diverged."""
        if context.step_index >= len(self._steps):
            return None
        step = self._steps[context.step_index]
        seen = (render_observation(context.observation), context.observation.screenshot_id, context.messages)
        if seen != (step.observation, step.screenshot_id, step.messages):
            raise Diverged
        return _proposed(step, self._request.policy_id)

    async def watch(self, step: Step, _after: Observation) -> None:
        """The hook of the episode loop. Raises Diverged for a step that was carried out before and now came to something else."""
        if step.step_index == len(self._steps):
            self._steps.append(step)
            if self._log is not None:
                self._log.append_step(self._request, step)
            return
        before = self._steps[step.step_index]
        if _done(step) != _done(before):
            raise Diverged
        self._num_replayed += 1
        if self._num_replayed == len(self._steps) and not self._has_gone_on:
            self._has_gone_on = True
            self._counts.num_episodes += 1
            self._counts.num_steps += self._num_replayed

    def as_first_made(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps of an episode that has ended, as they were first made: a replayed one took no time to decide."""
        return tuple(self._steps[: len(steps)])

    def drop(self) -> None:
        """Begin with nothing: what was recorded may be what the sandbox fails at."""
        self._steps.clear()
        if self._log is not None:
            self._log.drop_steps(self._request)

    def forget(self) -> None:
        """The environment does not repeat: begin with nothing, and say so."""
        _LOG.warning(
            "%s of %s starts again: after %d of %d steps its environment was not as recorded",
            self._request.episode_id,
            self._request.task.name,
            self._num_replayed,
            len(self._steps),
        )
        self._counts.num_restarted += 1
        self.drop()


class _Resumed:
    """An action source that begins with what was recorded."""

    def __init__(self, recorded: RecordedSteps, source: ActionSource) -> None:
        self._recorded, self._source = recorded, source

    async def respond(self, context: StepContext) -> Response | None:
        return self._recorded.response_at(context) or await self._source.respond(context)


def _done(step: Step) -> tuple[object, ...]:
    """What a step did, and what came of it."""
    return step.response, step.action, step.more_actions, step.reward


def _proposed(step: Step, policy_id: str) -> Response:
    """What the source answered at a step: where an annotator's response stands, the proposal. Its tokens were not recorded then, and
    nobody learns from them."""
    if step.proposal is not None:
        return Response(text=step.proposal, prompt_token_ids=step.prompt_token_ids, token_ids=(), logprobs=(), policy_id=policy_id)
    return Response(
        text=step.response,
        prompt_token_ids=step.prompt_token_ids,
        token_ids=step.response_token_ids,
        logprobs=step.response_logprobs,
        versions=step.response_versions,
        policy_id=step.policy_id,
    )
