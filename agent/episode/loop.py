"""The episode loop: observe, respond, parse, act, until something ends it. agent/episode/pool_collector.py runs many at once.

A policy's failure is an outcome; an infrastructure failure is a SandboxError, which passes through to the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.episode.episode import CUT_OFF, Episode, EpisodeRequest, Outcome, Step
from agent.grammars.base import ParsedResponse, invalid_response
from agent.grammars.elements import render_observation
from agent.policy.action_source import ActionSource, StepContext
from agent.policy.policy import Response
from agent.prompts.memory import Memory
from agent.prompts.prompt import PromptBuilder
from sandbox.actions import Action, CallUser, Finished
from sandbox.session import Observation, Session, first_content

Intervene = Callable[[StepContext, Response], Awaitable[str | None]]
"""An annotator beside the policy: gets the step's context and the policy's proposal; a text overrides the proposal, None accepts it."""
Watch = Callable[[Step, Observation], Awaitable[None]]
"""Called with each step once it has been executed, and with the observation that it led to."""
UNKNOWN_ENVIRONMENT = "unknown"


class EpisodeLimits(BaseModel):
    """What ends an episode beside its task, whose `max_steps` counts responses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy_timeout_s: Annotated[
        float | None, Field(gt=0, description="wall clock of all decisions of a try together, else `timeout`; null where a person decides")
    ] = 300.0
    max_invalid_in_a_row: Annotated[int, Field(ge=1, description="so many bad answers in a row are outcome `invalid_action`")] = 3
    max_new_tokens: Annotated[int, Field(ge=1, description="tokens of the longest answer")] = 96


async def run_episode(
    request: EpisodeRequest,
    session: Session,
    source: ActionSource,
    builder: PromptBuilder,
    limits: EpisodeLimits | None = None,
    *,
    intervene: Intervene | None = None,
    annotator: str = "oracle",
    watch: Watch | None = None,
) -> Episode:
    """Run one episode on a session that is ours for that long. Raises SandboxError and ModelError; all else is an outcome.

    A step that `intervene` overrides records `annotator` as its policy, the policy's text as its proposal, and no tokens.
    """
    run = _Run(request, session, source, builder, limits or EpisodeLimits(), intervene, annotator, watch)
    return await run.to_the_end()


class _OutOfTime(Exception):
    """The responses of an episode took longer than `policy_timeout_s`."""


class _Run:
    """One episode under way."""

    def __init__(
        self,
        request: EpisodeRequest,
        session: Session,
        source: ActionSource,
        builder: PromptBuilder,
        limits: EpisodeLimits,
        intervene: Intervene | None,
        annotator: str,
        watch: Watch | None,
    ) -> None:
        self._request, self._session, self._source, self._builder = request, session, source, builder
        self._limits, self._intervene, self._annotator, self._watch = limits, intervene, annotator, watch
        self._steps: list[Step] = []
        self._actions: list[Action] = []
        self._screenshots: dict[str, bytes] = {}
        self._num_invalid_in_a_row = 0
        self._decision_time_left_s = limits.policy_timeout_s

    async def to_the_end(self) -> Episode:
        started_s = time.monotonic()
        observation = self._keep_screenshot(await self._session.reset(self._request.task, self._request.seed))
        instruction, content = observation.instruction, first_content(observation)
        memory = self._builder.start(instruction)
        outcome: Outcome | None = None
        while outcome is None:
            memory, observation, outcome = await self._step(memory, observation)
        reward, points = 0.0, None
        if outcome not in (Outcome.TIMEOUT, Outcome.INVALID_ACTION):
            # A task may be done although nobody said so before the steps ran out: the verifier looks at the state.
            verdict = await self._session.evaluate()
            reward, points = min(1.0, max(-1.0, verdict.score)), verdict.points
            outcome = Outcome.SUCCESS if verdict.success else outcome
        is_cut_off = outcome in CUT_OFF and self._request.purpose == "rl"  # a critic values the state after the cut
        return Episode(
            request=self._request,
            instruction=instruction,
            content_id=content,
            steps=tuple(self._steps),
            outcome=outcome,
            reward=reward,
            points=points,
            duration_ms=(time.monotonic() - started_s) * 1000,
            environment=str(getattr(self._session, "environment", UNKNOWN_ENVIRONMENT)),
            final_messages=self._builder.build(memory, observation) if is_cut_off else (),
            screenshots=self._screenshots,
        )

    async def _step(self, memory: Memory, observation: Observation) -> tuple[Memory, Observation, Outcome | None]:
        """One response and all its actions. The outcome is None while the episode goes on; FAILURE stands until the verifier speaks."""
        started_s = time.monotonic()
        context = StepContext(
            request=self._request,
            step_index=len(self._steps),
            observation=observation,
            memory=memory,
            messages=self._builder.build(memory, observation),
            actions=tuple(self._actions),
            max_new_tokens=self._limits.max_new_tokens,
            oracle_action=self._session.oracle_action,
        )
        try:
            response, proposal = await self._respond(context)
        except _OutOfTime:
            return memory, observation, Outcome.TIMEOUT
        if response is None:
            return memory, observation, Outcome.FAILURE
        parsed = self._parse(response, observation)
        after, reward, outcome = await self._carry_out(parsed, observation)
        self._record(context, response, proposal, parsed, reward, latency_ms=(time.monotonic() - started_s) * 1000)
        if self._watch is not None:
            await self._watch(self._steps[-1], after)
        memory = self._builder.remember(memory, observation, response.text, parsed)
        if outcome is not None:
            return memory, after, outcome
        self._num_invalid_in_a_row = self._num_invalid_in_a_row + 1 if parsed.invalid else 0
        if self._num_invalid_in_a_row >= self._limits.max_invalid_in_a_row:
            return memory, after, Outcome.INVALID_ACTION
        return memory, after, Outcome.TRUNCATED if len(self._steps) >= self._request.task.max_steps else None

    async def _respond(self, context: StepContext) -> tuple[Response | None, str | None]:
        """The response that stands and, where an annotator overrode it, the policy's text. Raises _OutOfTime."""
        started_s = time.monotonic()
        deadline = asyncio.timeout(self._decision_time_left_s)
        try:
            async with deadline:
                response = await self._source.respond(context)
        except TimeoutError:
            if deadline.expired():
                raise _OutOfTime from None
            raise
        if self._decision_time_left_s is not None:
            self._decision_time_left_s -= time.monotonic() - started_s
        if response is None or self._intervene is None:
            return response, None
        override = await self._intervene(context, response)
        if override is None:
            return response, None
        stands = Response(text=override, prompt_token_ids=response.prompt_token_ids, token_ids=(), logprobs=(), policy_id=self._annotator)
        return stands, response.text

    def _parse(self, response: Response, observation: Observation) -> ParsedResponse:
        if not response.text and not response.token_ids:
            return invalid_response("", "the prompt is too long for the policy")
        return self._builder.grammar.parse(response.text, observation)

    async def _carry_out(self, parsed: ParsedResponse, observation: Observation) -> tuple[Observation, float, Outcome | None]:
        """All actions of a response, in order, up to the one that ends the episode; the last screen and what the steps paid."""
        reward = 0.0
        for action in parsed.actions:
            transition = await self._session.step(action)
            self._actions.append(action)
            observation = transition.observation
            reward += transition.reward
            if transition.terminated or transition.truncated or isinstance(action, Finished | CallUser):
                cut_off = transition.truncated and not transition.terminated
                return self._keep_screenshot(observation), reward, Outcome.TRUNCATED if cut_off else Outcome.FAILURE
        return self._keep_screenshot(observation), reward, None

    def _keep_screenshot(self, observation: Observation) -> Observation:
        if observation.screenshot is None:
            return observation
        if not self._request.screenshots:
            return replace(observation, screenshot=None)
        self._screenshots.setdefault(str(observation.screenshot_id), observation.screenshot)
        return observation

    def _record(
        self, context: StepContext, response: Response, proposal: str | None, parsed: ParsedResponse, reward: float, *, latency_ms: float
    ) -> None:
        self._steps.append(
            Step(
                step_index=context.step_index,
                policy_id=response.policy_id,
                observation=render_observation(context.observation),
                screenshot_id=context.observation.screenshot_id,
                messages=context.messages,
                response=response.text,
                thought=parsed.thought,
                action=parsed.actions[0],
                more_actions=parsed.actions[1:],
                proposal=proposal,
                prompt_token_ids=response.prompt_token_ids,
                response_token_ids=response.token_ids,
                response_logprobs=response.logprobs,
                response_versions=response.versions,
                reward=min(1.0, max(-1.0, reward)),
                latency_ms=latency_ms,
            )
        )
