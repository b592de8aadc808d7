"""The generative outcome reward model (UI-TARS-2, arXiv 2509.02544, on rewards): the policy or another model reads an episode's record,
writes a rationale and then the verdict's word. Its score is the probability of the good word, not the word.

Where the model is in this process the probability is exact: P(good) / (P(good) + P(bad)) at the place of the verdict, after the rationale
that was written. A server's answer gives the probability of the word it wrote, where it gives log-probabilities; else the word counts as
certain. Several votes are answers with several rationales, and the score is their mean (Zhang et al. 2024, arXiv 2408.15240).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from agent.judging.prompt import WORDS, JudgeBuilder, at_verdict, own_rationale
from agent.policy.policy import Message, Policy, Response
from models.judges.judge import NO_VERDICT, Asked, Case, Judgement, ask, bounded, total_tokens

MAX_REASON_CHARS = 300


class VerdictScores(Protocol):
    """Probabilities at the place where answers differ; see models/judges/verdict_scores.py."""

    def __call__(self, messages: Sequence[Sequence[Message]], answers: Sequence[tuple[str, str]], cases: Sequence[Case]) -> list[float]: ...


class Orm:
    """A Judge on a policy. `scores` is given where the policy's own model is at hand: then an answer without a verdict is judged too, at
    the place where one would have stood."""

    name = "orm"
    origin: Literal["judge", "orm"] = "orm"

    def __init__(
        self,
        policy: Policy,
        builder: JudgeBuilder,
        *,
        scores: VerdictScores | None = None,
        votes: int = 1,
        temperature: float = 0.7,
        max_new_tokens: int = 96,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """One vote is greedy; several are sampled at `temperature`. `decode` makes text of a server's tokens, to find the verdict's among
        them; without it the last before the end token is taken for it."""
        self._policy, self._builder, self._scores = policy, builder, scores
        self._votes, self._temperature, self._max_new_tokens = votes, temperature if votes > 1 else 0.0, max_new_tokens
        self._decode = decode

    @property
    def version(self) -> str:
        return self._policy.policy_id

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        rounds: list[tuple[list[Asked], list[float | None]]] = []
        cost_ms = 0.0
        for vote in range(self._votes):
            asked, each_ms = await ask(
                self._policy, self._builder, cases, vote=vote, temperature=self._temperature, max_new_tokens=self._max_new_tokens
            )
            rounds.append((asked, self._scored(asked, cases)))
            cost_ms += each_ms
        return [
            _judgement(case, [asked[index] for asked, _ in rounds], [scores[index] for _, scores in rounds], cost_ms)
            for index, case in enumerate(cases)
        ]

    def _scored(self, asked: Sequence[Asked], cases: Sequence[Case]) -> list[float | None]:
        """None for an answer in which no verdict can be read."""
        if self._scores is None:
            return [written_score(each.response, each.answer.is_good, self._decode) for each in asked]
        pairs = [at_verdict(self._builder, own_rationale(self._builder, each.answer) if _is_read(each) else "") for each in asked]
        return list(self._scores([each.messages for each in asked], pairs, cases))


def _is_read(asked: Asked) -> bool:
    return asked.answer.is_good is not None


def _judgement(case: Case, asked: Sequence[Asked], scores: Sequence[float | None], cost_ms: float) -> Judgement:
    known = [score for score in scores if score is not None]
    read = [each for each in asked if _is_read(each)]
    reasons = [own[:MAX_REASON_CHARS] for own in dict.fromkeys(each.answer.rationale for each in read) if own][:3]
    if len(read) < len(asked):
        reasons.insert(0, f"{NO_VERDICT} in {len(asked) - len(read)} of {len(asked)} answers")
    return Judgement(
        episode_id=case.record.episode_id,
        score=bounded(sum(known) / len(asked)),
        reasons=tuple(reasons),
        num_asked=len(asked),
        num_readable=len(read),
        cost_tokens=total_tokens(asked),
        cost_ms=cost_ms,
    )


def written_score(response: Response, is_good: bool | None, decode: Callable[[Sequence[int]], str] | None = None) -> float | None:
    """The score of an answer whose own log-probabilities are all that is known of it: the probability p of the verdict's word as written,
    p of a good one and 1 - p of a bad one (p bounds its share of the two words from below). Certain without log-probabilities."""
    if is_good is None:
        return None
    probability = _word_probability(response, decode)
    return probability if is_good else 1.0 - probability


def _word_probability(response: Response, decode: Callable[[Sequence[int]], str] | None) -> float:
    logprobs, ids = response.logprobs, response.token_ids
    if not logprobs or len(logprobs) != len(ids):
        return 1.0
    if decode is None:
        last = logprobs[-2:-1] or logprobs
        return math.exp(min(0.0, sum(last)))
    total = 0.0
    for place in range(len(ids) - 1, -1, -1):
        text = decode(ids[place:]).strip()
        if text:
            total += logprobs[place]
        if len(text.split()) > 1 or (text and text.strip(".!*").lower() in WORDS):
            break
    return math.exp(min(0.0, total))
