"""Which words belong to which action. Pure.

The rule: people say what they are about to do, and go on speaking into the first moment of doing it. Words are split into utterances at
pauses. An utterance belongs to the first action that begins after the utterance's middle, so that the last words may run into the action
they announce; each action takes all utterances since the one before it. Where an utterance spans an action in its middle (words before and
after it, without a pause), it is split at the word gap nearest to where that action begins. What is said after the last action belongs to
no action: it is kept among the words.
"""

from __future__ import annotations

from collections.abc import Sequence

from annotation.recordings.bundle import Thought, Word

PAUSE_S = 0.6
"""Silence between words that ends an utterance."""
RUN_ON_S = 0.8
"""An utterance may run so far into the action that it announces."""


def utterances(words: Sequence[Word], pause_s: float = PAUSE_S) -> list[list[Word]]:
    """Words in groups, split at pauses."""
    groups: list[list[Word]] = []
    for word in sorted(words, key=lambda word: word.start_s):
        if groups and word.start_s - groups[-1][-1].end_s < pause_s:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def split_at_actions(group: list[Word], starts: Sequence[float]) -> list[list[Word]]:
    """An utterance cut where an action begins well inside it."""
    for start in starts:
        first, last = group[0].start_s, group[-1].end_s
        if first + RUN_ON_S < start < last - RUN_ON_S:
            cut = min(range(1, len(group)), key=lambda i: abs((group[i - 1].end_s + group[i].start_s) / 2 - start), default=0)
            if cut:
                return [group[:cut], *split_at_actions(group[cut:], [s for s in starts if s > start])]
    return [group]


def align(words: Sequence[Word], starts: Sequence[float]) -> list[Thought | None]:
    """The thought before each action; `starts` are when the actions begin, in order."""
    said: list[list[Word]] = [[] for _ in starts]
    for group in (part for whole in utterances(words) for part in split_at_actions(whole, starts)):
        middle = (group[0].start_s + group[-1].end_s) / 2
        index = next((i for i, start in enumerate(starts) if start >= middle or start + RUN_ON_S >= group[-1].end_s > start), None)
        if index is not None:
            said[index] += group
    return [_thought(own) for own in said]


def _thought(words: Sequence[Word]) -> Thought | None:
    if not words:
        return None
    text = " ".join(word.text for word in words)
    return Thought(text=text, raw=text, start_s=words[0].start_s, end_s=max(word.end_s for word in words))
