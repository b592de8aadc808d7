"""Rebuilds word lists of curricula: `python -m assets.seed_data.build_words web`. Needs the sandbox; run it when task lists or lessons
change.

Oracles play the first training instances of every task that is learned from. A word of their instructions or elements enters the list
when it was seen on several instances' pages, unless a suggestion list showed it: suggestions are there to be spelled. The lessons' own
wording joins it. Nothing of a held-out task or an `eval` or `holdout` instance is looked at.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from agent.episode.episode import EpisodeRequest, Step
from agent.episode.pool_collector import PoolCollector
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from assets.seed_data.curricula import CURRICULA, Lessons
from assets.seed_data.text_sampler import TextSampler
from assets.seed_data.vocabulary import words_file
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split

INSTANCES_PER_TASK = 60
MIN_INSTANCES = 3
LESSONS_DRAWN = 6000
MIN_LESSONS = 12


async def page_words(task_lists: Sequence[str], min_instances: int) -> set[str]:
    """Words of the training pages of some task lists that were seen on `min_instances` instances, in whatever case. A task without an
    oracle shows none: nobody plays it."""
    tasks = [task for task in tasks_in(task_lists).values() if not task.held_out]
    requests = [
        EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle", screenshots=False)
        for task in tasks
        for seed in task.seeds(Split.TRAIN, INSTANCES_PER_TASK)
    ]
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    suggested: set[str] = set()
    async with SessionPool(size=16, num_browsers=1) as pool:
        collector = PoolCollector(pool, PromptBuilder("compact"))
        async for episode in collector.play(OracleActionSource(grammar_named("compact")), requests):
            shown, items = words_of(episode.steps)
            suggested |= items
            for word in shown:
                seeds[word].add(episode.request.seed)
    return frequent(seeds, min_instances) - suggested


def frequent(seeds: Mapping[str, Set[int]], min_instances: int) -> set[str]:
    """Words that were seen often, whether with a capital or without: a form of its own takes MIN_INSTANCES. A word counts once an instance
    seed, because equal seeds draw equal random strings in different tasks."""
    forms: defaultdict[str, set[int]] = defaultdict(set)
    for word, found in seeds.items():
        forms[word.lower()] |= found
    return {word for word, found in seeds.items() if len(found) >= MIN_INSTANCES and len(forms[word.lower()]) >= min_instances}


def words_of(steps: Iterable[Step]) -> tuple[set[str], set[str]]:
    """Words of the prompts of an episode, and of the suggestions (role `item`) in them."""
    shown: set[str] = set()
    items: set[str] = set()
    for step in steps:
        for message in step.messages:
            for line in message.content.split("\n"):
                is_item = "<item>" in line
                (items if is_item else shown).update(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[a-z]", " ", line)))
    return shown, items


def lesson_words(lessons: Lessons) -> set[str]:
    """Words of the lessons' own wording, distinguished from what they fill in by how often they return."""
    if not lessons:
        return set()
    makers, shares = zip(*lessons, strict=True)
    counts: Counter[str] = Counter()
    for index in range(LESSONS_DRAWN):
        rng = random.Random(index)
        lesson = rng.choices(makers, shares)[0](TextSampler(rng, vocabulary=("x",)))
        counts.update(set(re.findall(r"[A-Za-z]{2,}|[1-9][a-z]{2}", lesson.instruction)))
    return {word for word, count in counts.items() if count >= MIN_LESSONS}


def main(names: Sequence[str] = tuple(CURRICULA)) -> None:
    for name in names:
        curriculum = CURRICULA[name]
        seen = asyncio.run(page_words(curriculum.task_lists, curriculum.min_instances))
        found = seen | lesson_words(curriculum.lessons) | set(curriculum.words)
        words_file(name).write_text("\n".join(sorted(found)) + "\n", encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(CURRICULA))
