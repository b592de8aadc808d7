"""Step-exact resume: an interrupted episode goes on at the step at which it was interrupted, by verified replay.

A session cannot be kept over a kill, so its episode starts on another one: the recorded actions are carried out again, their responses are
not requested again, and at each step the prompt, the elements and the screen must be those that were recorded. Where one differs, the
environment does not repeat: what was recorded is dropped and the episode restarts. A fork (fork.py) is resumed in the same way, at a
step of its parent: where that fails it is refused, with the reason in its record, and played from its first step on.

The wall clock of decisions made before the cut does not count again towards `policy_timeout_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agent.episode.episode import Episode, EpisodeRequest, Step
from agent.episode.log import EpisodeLog, ResumeCounts
from agent.grammars.elements import render_observation
from agent.policy.action_source import ActionSource, StepContext
from agent.policy.policy import Response
from sandbox.session import Observation
from warehouse.core.errors import ConfigError

_LOG = logging.getLogger(__name__)


class Diverged(Exception):
    """A replayed step is not as it was recorded; says what differs, and where."""


class RecordedSteps:
    """The steps that an episode has made so far, in this start and in earlier ones; kept in the log where there is one."""

    def __init__(self, request: EpisodeRequest, log: EpisodeLog | None) -> None:
        self._request, self._log = request, log
        self._counts = ResumeCounts() if log is None else log.resumed
        self._steps: list[Step] = [] if log is None else log.steps(request)
        self._num_replayed = 0
        self._has_gone_on = self._is_new_fork = False
        self._environment = ""
        self._has_left = False
        self._left_at: Step | None = None
        """The parent's step at which a fork leaves it: the same was seen there."""
        self.fork_refused: str | None = None
        if request.fork is not None:
            self._begin_fork(request.fork.step)

    def _begin_fork(self, step_index: int) -> None:
        """What the log has of a fork: the parent's steps, the one it leaves at, and then its own."""
        if self._log is None:
            raise ConfigError(f"{self._request.episode_id} is a fork, and begins in a log: play it with the one that fork.py wrote it to")
        self.fork_refused = self._log.fork_refused(self._request)
        if self.fork_refused is not None:
            return
        if len(self._steps) <= step_index:
            self._refuse("its log does not have the steps of its parent")
            return
        self._left_at = self._steps.pop(step_index)
        self._has_gone_on = self._is_new_fork = len(self._steps) == step_index

    def then(self, source: ActionSource, environment: str = "") -> ActionSource:
        """What plays the episode: the recorded responses first, then `source`. `environment`: of the session that it is played on."""
        self._num_replayed, self._environment, self._has_left = 0, environment, False
        return _Resumed(self, source)

    def response_at(self, context: StepContext) -> Response | None:
        """The recorded response; None where the episode had not come so far. Raises Diverged."""
        if self._left_at is not None and context.step_index == self._left_at.step_index:
            _compare(context, self._left_at)
            self._has_left = True
            if self._is_new_fork:
                self._is_new_fork = False
                self._counts.num_forks += 1
                self._counts.num_fork_steps += context.step_index
        if context.step_index >= len(self._steps):
            return None
        step = self._steps[context.step_index]
        _compare(context, step)
        return _proposed(step, self._request.policy_id)

    async def watch(self, step: Step, _after: Observation) -> None:
        """The hook of the episode loop. Raises Diverged for a step that was carried out before and now came to something else."""
        if step.step_index == len(self._steps):
            self._steps.append(step)
            if self._log is not None:
                self._log.append_step(self._request, step)
            return
        before = self._steps[step.step_index]
        for name in _DONE:
            if getattr(step, name) != getattr(before, name):
                raise Diverged(f"step {step.step_index} came to another {name}")
        self._num_replayed += 1
        if self._num_replayed == len(self._steps) and not self._has_gone_on:
            self._has_gone_on = True
            self._counts.num_episodes += 1
            self._counts.num_steps += self._num_replayed

    def require_whole(self, episode: Episode) -> None:
        """Raises Diverged for one that has ended before all that was recorded was carried out again."""
        if len(episode.steps) < len(self._steps) or (self._left_at is not None and not self._has_left):
            raise Diverged(f"the episode ended after {len(episode.steps)} steps ({episode.outcome.value})")

    def as_first_made(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps of an episode that has ended, as they were first made: a replayed one took no time to decide."""
        return tuple(self._steps[: len(steps)])

    def drop(self) -> None:
        """Begin with nothing: what was recorded may be what the sandbox fails at."""
        if self._left_at is not None:
            self._refuse("the sandbox failed on every try, and the last one starts from the beginning")
        self._steps.clear()
        if self._log is not None:
            self._log.drop_steps(self._request)

    def _refuse(self, reason: str) -> None:
        self.fork_refused, self._left_at = reason, None
        self._counts.num_refused += 1
        if self._log is not None:
            self._log.refuse_fork(self._request, reason)
        _LOG.warning("%s of %s is not a fork of its parent: %s", self._request.episode_id, self._request.task.name, reason)

    def forget(self, difference: Diverged) -> None:
        """The environment does not repeat: begin with nothing, and say so."""
        if self._left_at is not None:
            self._refuse(f"{self._request.task.name} does not repeat in the environment {self._environment}: {difference}")
        _LOG.warning(
            "%s of %s restarts: after %d of %d steps its environment was not as recorded (%s)",
            self._request.episode_id,
            self._request.task.name,
            self._num_replayed,
            len(self._steps),
            difference,
        )
        self._counts.num_restarted += 1
        self.drop()


class _Resumed:
    """An action source that begins with what was recorded."""

    def __init__(self, recorded: RecordedSteps, source: ActionSource) -> None:
        self._recorded, self._source = recorded, source

    async def respond(self, context: StepContext) -> Response | None:
        return self._recorded.response_at(context) or await self._source.respond(context)


_DONE = ("response", "action", "more_actions", "reward")
"""What a step did, and what came of it."""


def _compare(context: StepContext, step: Step) -> None:
    """Raises Diverged where something else is seen now than at the recorded step."""
    seen = context.observation
    differs = {
        "other elements": render_observation(seen) != step.observation,
        "another screen": seen.screenshot_id != step.screenshot_id,
        "another prompt": context.messages != step.messages,
    }
    if any(differs.values()):
        raise Diverged(f"step {step.step_index} shows {' and '.join(name for name, is_so in differs.items() if is_so)}")


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
