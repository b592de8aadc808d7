"""What the policy proposes at a step: k candidates from one call, equal ones counted as one, each with a score.

Candidate 0 is what the policy would do by itself; the others are sampled at the campaign's temperature. What is shown of one is
answers.py's business, what is stored storage/runs.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.grammars.base import Grammar
from agent.policy.action_source import StepContext, prompt_for
from agent.policy.policy import Policy, Prompt, Response
from annotation.service.editor.answers import canonical
from annotation.storage.runs import Proposed
from sandbox.session import Observation
from warehouse.core.identity import stable_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One proposal. Its rank is its place in the list."""

    response: Response
    num_samples: int
    score: float | None
    """Mean log-probability of its tokens, in nats, under the distribution that it was sampled from."""

    @property
    def row(self) -> Proposed:
        return Proposed(text=self.response.text, score=self.score, num_samples=self.num_samples, policy_id=self.response.policy_id)


async def propose(
    policy: Policy, context: StepContext, grammar: Grammar, *, num_candidates: int, temperature: float, more: int = 0
) -> list[Candidate]:
    """Candidates of one `policy.act`. The first is sampled as the episode is; the rest, oftenest sampled and then likeliest first. `more`
    counts the calls before this one at the same step: each samples others. Raises ModelError."""
    prompts = prompts_at(context, num_candidates=num_candidates, temperature=temperature, more=more)
    return merged(await policy.act(prompts), grammar, context.observation)


def prompts_at(context: StepContext, *, num_candidates: int, temperature: float, more: int = 0) -> list[Prompt]:
    own = prompt_for(context)
    seeds = [stable_seed("candidate", context.request.episode_id, context.step_index, more, number) for number in range(1, num_candidates)]
    return [own, *(replace(own, sampling=replace(own.sampling, temperature=temperature, seed=seed)) for seed in seeds)]


def merged(responses: Sequence[Response], grammar: Grammar, observation: Observation) -> list[Candidate]:
    """Equal answers once: those that the grammar writes alike, and what it cannot read where the text is the same."""
    groups: dict[tuple[bool, str], list[Response]] = {}
    for response in responses:
        written = canonical(response.text, grammar, observation)
        key = (True, written) if written is not None else (False, " ".join(response.text.split()))
        groups.setdefault(key, []).append(response)
    first, *others = (Candidate(response=group[0], num_samples=len(group), score=mean_logprob(group[0])) for group in groups.values())
    return [first, *sorted(others, key=lambda each: (-each.num_samples, -(each.score if each.score is not None else float("-inf"))))]


def added(candidates: Sequence[Candidate], new: Sequence[Candidate], grammar: Grammar, observation: Observation) -> list[Candidate]:
    """Of new candidates those that are not among the old ones."""
    known = {canonical(each.response.text, grammar, observation) or each.response.text for each in candidates}
    return [each for each in new if (canonical(each.response.text, grammar, observation) or each.response.text) not in known]


def mean_logprob(response: Response) -> float | None:
    return sum(response.logprobs) / len(response.logprobs) if response.logprobs else None
