"""Tutorial texts: D_CT before the first iteration. Deterministic, written by rules, with no browser and no task.

Each is one step of a worked example (assets/seed_data/lessons.py), acted out on a page in memory and written by the same prompt builder and
grammar that the policy is asked with, history lines included.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agent.grammars.base import ParsedResponse
from agent.policy.policy import Message
from agent.prompts.prompt import PromptBuilder, training_messages
from assets.seed_data.curricula import Lessons, lessons_of
from assets.seed_data.lessons import Lesson
from assets.seed_data.text_sampler import TextSampler
from assets.seed_data.vocabulary import words

CRUX_SHARE = 0.6
"""How often a lesson's crux is the step that is shown; else any step is as likely."""


def tutorials(num: int, seed: int, curricula: Sequence[str] = ("web",), builder: PromptBuilder | None = None) -> list[tuple[Message, ...]]:
    """`num` tutorial conversations of some curricula, written by `builder` (default: the compact grammar's). The prompt's messages carry
    loss 1 too: continual training may learn every token, and its configuration says how much a prompt's count. Raises ConfigError."""
    lessons, vocabulary, builder = lessons_of(*curricula), words(*curricula), builder or PromptBuilder("compact")
    return [tutorial(random.Random(f"{seed}/{index}"), lessons, vocabulary, builder) for index in range(num)]


def tutorial(rng: random.Random, lessons: Lessons, vocabulary: Sequence[str], builder: PromptBuilder) -> tuple[Message, ...]:
    """One conversation."""
    makers, shares = zip(*lessons, strict=True)
    lesson = rng.choices(makers, shares)[0](TextSampler(rng, vocabulary))
    is_crux = lesson.crux is not None and rng.random() < CRUX_SHARE
    shown = lesson.crux if is_crux else rng.randrange(len(lesson.moves))
    return next(step for place, step in enumerate(worked_example(lesson, builder, goes_on=True)) if place == shown)


def worked_example(lesson: Lesson, builder: PromptBuilder, *, goes_on: bool = False) -> Iterator[tuple[Message, ...]]:
    """A lesson acted out on its page, one training conversation a step, with the steps before it as history. `goes_on`: what else may be
    asked of the step's page follows as turns of its conversation: a page is long, and read again for little."""
    memory = builder.start(lesson.instruction)
    for place, move in enumerate(lesson.moves):
        observation = lesson.page.observe(lesson.instruction)
        action = lesson.page.action(move)
        response = builder.grammar.format(None, action, observation)
        prompt = builder.build(memory, observation)
        turns = list(training_messages(prompt, response))
        for question, answer in lesson.also.get(place, ()) if goes_on else ():
            text = builder.grammar.format(None, lesson.page.action(answer), observation)
            turns += [Message(role="user", content=question), Message(role="assistant", content=text)]
        yield tuple(replace(message, loss=1.0) for message in turns)
        memory = builder.remember(memory, observation, response, ParsedResponse(thought=None, actions=(action,)))
        lesson.page.carry_out(move)
