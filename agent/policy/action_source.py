"""Where the response of a step comes from: the ActionSource protocol, and its two kinds, a policy and an oracle.

The episode loop (agent/episode/loop.py) is driven by one. What annotators do with a response is `annotation`'s business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from agent.episode.episode import EpisodeRequest
from agent.grammars.base import Grammar, NotRepresentable
from agent.policy.policy import Message, Prompt, Response, Sampling
from agent.prompts.memory import Memory
from sandbox.actions import Action
from sandbox.session import Observation

ORACLE_POLICY_ID = "oracle"


Act = Callable[[Prompt], Awaitable[Response]]
OracleAction = Callable[[], Awaitable[Action | None]]
"""`Session.oracle_action`: the next right action; None where the state is beyond repair or the task's oracle does not know one."""


async def no_oracle_action() -> None:
    """The oracle action of a step without a live session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a response at one step may depend on. `actions` are those executed so far, oldest first; `oracle_action` is for oracles and
    annotators, never for a policy."""

    request: EpisodeRequest
    step_index: int
    observation: Observation
    memory: Memory
    messages: tuple[Message, ...]
    actions: tuple[Action, ...]
    max_new_tokens: int
    oracle_action: OracleAction = no_oracle_action


class ActionSource(Protocol):
    async def respond(self, context: StepContext) -> Response | None:
        """The response at this step; None gives the episode up. Raises ModelError when the engine behind it is broken."""
        ...


class PolicyActionSource:
    """Prompts a policy, one step at a time: `act` is agent/policy/batcher.py's, which batches the prompts of many episodes."""

    def __init__(self, act: Act) -> None:
        self.act = act

    async def respond(self, context: StepContext) -> Response | None:
        return await self.act(prompt_for(context))


class OracleActionSource:
    """Plays each task's oracle, written in the grammar that the episode is recorded in. Its responses carry no tokens, since none were
    sampled."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    async def respond(self, context: StepContext) -> Response | None:
        text = await self.response_text(context)
        return None if text is None else Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=ORACLE_POLICY_ID)

    async def response_text(self, context: StepContext) -> str | None:
        """The oracle's response text; None where it knows no action, or one that the grammar cannot write."""
        action = await context.oracle_action()
        if action is None:
            return None
        try:
            return self._grammar.format(None, action, context.observation)
        except NotRepresentable:
            return None


def prompt_for(context: StepContext) -> Prompt:
    """The prompt of a step, sampled with the episode's own generator and with the screenshots that its messages name."""
    seen = [step.observation for step in context.memory.working] + [context.observation]
    named = {message.screenshot_id for message in context.messages if message.screenshot_id}
    return Prompt(
        messages=context.messages,
        sampling=Sampling(
            temperature=context.request.temperature,
            max_new_tokens=context.max_new_tokens,
            seed=context.request.sampling_seed(context.step_index),
        ),
        conversation=context.request.episode_id,
        images={o.screenshot_id: o.screenshot for o in seen if named and o.screenshot is not None and o.screenshot_id in named},
    )
