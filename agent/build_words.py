"""Makes agent/words.txt anew: `python -m agent.build_words`. Needs a browser; run it when the task list or the lessons' wording changes.

Oracles play the first training instances of every task that is learned from. A word of their instructions or elements enters the list
when it was seen on several instances' pages, unless a suggestion list showed it: suggestions are there to be spelled. The lessons' own
wording joins it. Nothing of a held-out task or an `eval` or `holdout` instance is looked at.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from agent.decider import OracleDecider
from agent.episode import EpisodeRequest, Step
from agent.grammars.registry import grammar_named
from agent.lessons import LESSONS
from agent.pen import Pen
from agent.pool_collector import PoolCollector
from agent.prompt import PromptBuilder
from agent.vocabulary import WORDS_FILE
from sandbox.miniwob.oracles import has_oracle
from sandbox.miniwob.source import load_tasks
from sandbox.pool import SessionPool
from sandbox.task import Split

INSTANCES_PER_TASK = 60
MIN_INSTANCES = 3
"""A word counts once an instance seed, because equal seeds draw equal random strings in different tasks."""
LESSONS_DRAWN = 6000
MIN_LESSONS = 12


async def page_words(group: str) -> set[str]:
    """Words of the training pages of a task group."""
    tasks = [task for task in load_tasks(group).values() if not task.held_out and has_oracle(task)]
    requests = [
        EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle", screenshots=False)
        for task in tasks
        for seed in task.seeds(Split.TRAIN, INSTANCES_PER_TASK)
    ]
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    suggested: set[str] = set()
    async with SessionPool(size=16, num_browsers=1) as pool:
        collector = PoolCollector(pool, PromptBuilder("compact"))
        async for episode in collector.play(OracleDecider(grammar_named("compact")), requests):
            shown, items = words_of(episode.steps)
            suggested |= items
            for word in shown:
                seeds[word].add(episode.request.seed)
    return {word for word, found in seeds.items() if len(found) >= MIN_INSTANCES} - suggested


def words_of(steps: Iterable[Step]) -> tuple[set[str], set[str]]:
    """Words of the prompts of an episode, and of the suggestions (role `item`) in them."""
    shown: set[str] = set()
    items: set[str] = set()
    for step in steps:
        for message in step.messages:
            for line in message.content.split("\n"):
                is_item = "<item>" in line
                (items if is_item else shown).update(re.findall(r"[A-Za-z]{2,}", line))
    return shown, items


def lesson_words() -> set[str]:
    """Words of the lessons' own wording, told from what they fill in by how often they return."""
    makers, shares = zip(*LESSONS, strict=True)
    counts: Counter[str] = Counter()
    for index in range(LESSONS_DRAWN):
        rng = random.Random(index)
        lesson = rng.choices(makers, shares)[0](Pen(rng, vocabulary=("x",)))
        counts.update(set(re.findall(r"[A-Za-z]{2,}|[1-9][a-z]{2}", lesson.instruction)))
    return {word for word, count in counts.items() if count >= MIN_LESSONS}


def main() -> None:
    found = asyncio.run(page_words("wide")) | lesson_words()
    WORDS_FILE.write_text("\n".join(sorted(found)) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
