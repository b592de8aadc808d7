"""Who decides at a step: the Decider protocol, and its two kinds, a policy that is asked and an oracle that knows.

The episode loop (agent/episode/loop.py) is driven by one. What annotators do with a decision is `annotation`'s business.
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
Hint = Callable[[], Awaitable[Action | None]]
"""`Session.hint`: the next right action; None where the state is beyond repair or the task's oracle has no idea."""


async def no_hint() -> None:
    """The hint of a moment that has no live session behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One decision point: everything that may be looked at. `actions` is what was carried out so far, oldest first; `hint` is for oracles
    and annotators, never for a policy."""

    request: EpisodeRequest
    step_index: int
    observation: Observation
    memory: Memory
    messages: tuple[Message, ...]
    actions: tuple[Action, ...]
    max_new_tokens: int
    hint: Hint = no_hint


class Decider(Protocol):
    async def decide(self, moment: Moment) -> Response | None:
        """The response at this moment; None gives the episode up. Raises ModelError when the engine behind it is broken."""
        ...


class PolicyDecider:
    """Asks a policy, one prompt at a time: `act` is agent/policy/batcher.py's, which gathers the prompts of many episodes."""

    def __init__(self, act: Act) -> None:
        self._act = act

    async def decide(self, moment: Moment) -> Response | None:
        return await self._act(prompt_at(moment))


class OracleDecider:
    """Plays each task's oracle, written in the grammar that the episode is recorded in. Its responses carry no tokens: nobody sampled
    them."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    async def decide(self, moment: Moment) -> Response | None:
        text = await self.answer(moment)
        return None if text is None else Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=ORACLE_POLICY_ID)

    async def answer(self, moment: Moment) -> str | None:
        """The oracle's response text; None where it has no idea, or an idea that the grammar cannot write."""
        action = await moment.hint()
        if action is None:
            return None
        try:
            return self._grammar.format(None, action, moment.observation)
        except NotRepresentable:
            return None


def prompt_at(moment: Moment) -> Prompt:
    """The prompt of a moment, sampled by the episode's own generator and with the pictures that its messages name."""
    seen = [step.observation for step in moment.memory.working] + [moment.observation]
    named = {message.screenshot_id for message in moment.messages if message.screenshot_id}
    return Prompt(
        messages=moment.messages,
        sampling=Sampling(
            temperature=moment.request.temperature,
            max_new_tokens=moment.max_new_tokens,
            seed=moment.request.sampling_seed(moment.step_index),
        ),
        conversation=moment.request.episode_id,
        images={o.screenshot_id: o.screenshot for o in seen if named and o.screenshot is not None and o.screenshot_id in named},
    )
