"""The Judge protocol: records of finished episodes in, scores with reasons and costs out; and what its implementations share, which is
asking a policy and reading its answers. Importing this imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from agent.judging.prompt import Answer, JudgeBuilder, Record, read_answer
from agent.policy.policy import Message, Policy, Prompt, Response, Sampling
from warehouse.core.identity import stable_seed

MAX_SCORE = 1.0 - 1e-6
"""No judge that may err gives a score of 1, so that a threshold of 1 lets nothing pass."""
NO_VERDICT = "no verdict could be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An episode to judge. `reference` is the right answer or a rubric, where there is one; `images` holds the screenshots that its prompt
    shows."""

    record: Record
    reference: str | None = None
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's verdict on an episode. `score` is the probability that the task was carried out; `num_readable` of `num_asked` answers
    held a verdict. `cost_tokens` were read and written, None where the server does not report them."""

    episode_id: str
    score: float
    reasons: tuple[str, ...]
    num_asked: int
    num_readable: int
    cost_tokens: int | None
    cost_ms: float


@runtime_checkable
class Judge(Protocol):
    @property
    def name(self) -> str:
        """As in the table `verdicts`."""
        ...

    @property
    def origin(self) -> Literal["judge", "orm"]: ...

    @property
    def version(self) -> str:
        """Who answers: a checkpoint's id, or a server's model."""
        ...

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """One judgement a case, in order. An answer that cannot be read is a judgement of score 0 that says so. Raises ModelError when the
        policy is broken or its server cannot be reached."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer of a policy to one case, as it came and as it was read."""

    messages: tuple[Message, ...]
    response: Response
    answer: Answer

    @property
    def tokens(self) -> int | None:
        num = len(self.response.prompt_token_ids) + len(self.response.token_ids)
        return num or None


async def ask(
    policy: Policy, builder: JudgeBuilder, cases: Sequence[Case], *, vote: int, temperature: float, max_new_tokens: int
) -> tuple[list[Asked], float]:
    """One answer a case, and the milliseconds that a case took. `vote` counts the answers to one case: each has dice of its own."""
    built = [builder.build(case.record, reference=case.reference) for case in cases]
    prompts = [
        Prompt(
            messages=messages,
            images=case.images,
            sampling=Sampling(
                temperature=temperature, max_new_tokens=max_new_tokens, seed=stable_seed("judge", case.record.episode_id, vote) % 2**31
            ),
        )
        for case, messages in zip(cases, built, strict=True)
    ]
    started = time.monotonic()
    responses = await policy.act(prompts)
    each_ms = 1000 * (time.monotonic() - started) / max(1, len(cases))
    asked = [
        Asked(messages=messages, response=response, answer=read_answer(response.text))
        for messages, response in zip(built, responses, strict=True)
    ]
    return asked, each_ms


def total_tokens(asked: Sequence[Asked]) -> int | None:
    """The tokens of all answers; None where a server did not report them."""
    costs = [each.tokens for each in asked]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def bounded(score: float) -> float:
    return min(MAX_SCORE, max(0.0, score))
