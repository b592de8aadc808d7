"""A judge that is given the right answer or a rubric: any OpenAI-compatible server, called by models/http/engine.py (UI-TARS-2, arXiv
2509.02544, judges browsing so). The reference is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent.judging.prompt import JudgeBuilder
from agent.policy.policy import Policy
from models.judges.judge import NO_VERDICT, Asked, Case, Judgement, ask, bounded, total_tokens
from models.judges.orm import MAX_REASON_CHARS

FURTHER_TEMPERATURE = 0.7


class ReferenceJudge:
    """A Judge on a policy, mostly a server's. The first vote is greedy, further ones are sampled; the score is the share of good verdicts.
    A case whose answer cannot be read is retried, up to `repeats` times a vote, with another seed."""

    name = "judge"
    origin: Literal["judge", "orm"] = "judge"

    def __init__(self, policy: Policy, builder: JudgeBuilder, *, votes: int = 1, repeats: int = 2, max_new_tokens: int = 256) -> None:
        self._policy, self._builder = policy, builder
        self._votes, self._repeats, self._max_new_tokens = votes, repeats, max_new_tokens

    @property
    def version(self) -> str:
        return self._policy.policy_id

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        answers: list[list[Asked]] = [[] for _ in cases]
        cost_ms = [0.0] * len(cases)
        for vote in range(self._votes):
            waiting = list(range(len(cases)))
            for repeat in range(self._repeats + 1):
                temperature = FURTHER_TEMPERATURE if vote or repeat else 0.0
                asked, each_ms = await ask(
                    self._policy,
                    self._builder,
                    [cases[index] for index in waiting],
                    vote=vote * (self._repeats + 1) + repeat,
                    temperature=temperature,
                    max_new_tokens=self._max_new_tokens,
                )
                for index, each in zip(waiting, asked, strict=True):
                    answers[index].append(each)
                    cost_ms[index] += each_ms
                waiting = [index for index in waiting if answers[index][-1].answer.is_good is None]
                if not waiting:
                    break
        return [_judgement(case, asked, ms) for case, asked, ms in zip(cases, answers, cost_ms, strict=True)]


def _judgement(case: Case, asked: Sequence[Asked], cost_ms: float) -> Judgement:
    read = [each.answer for each in asked if each.answer.is_good is not None]
    score = sum(bool(answer.is_good) for answer in read) / len(read) if read else 0.0
    reasons = [answer.rationale[:MAX_REASON_CHARS] for answer in read if answer.rationale][:3]
    if len(read) < len(asked):
        reasons.insert(0, f"{NO_VERDICT} in {len(asked) - len(read)} of {len(asked)} answers")
    return Judgement(
        episode_id=case.record.episode_id,
        score=bounded(score),
        reasons=tuple(reasons),
        num_asked=len(asked),
        num_readable=len(read),
        cost_tokens=total_tokens(asked),
        cost_ms=cost_ms,
    )
