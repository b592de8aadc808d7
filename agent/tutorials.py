"""Tutorial texts: D_CT before the first iteration. Deterministic, written by rules, with no browser and no word of a task's instruction.

Most are one step of a worked example (agent/lessons.py), acted out on a page in memory and written by the same prompt builder and grammar
that the policy is asked with, history lines included. The rest are plain texts of arithmetic facts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from agent.grammars.base import ParsedResponse
from agent.lessons import LESSONS, Lesson, Pen, fact
from agent.policy import Message
from agent.prompt import PromptBuilder, training_messages

FACTS_SHARE = 0.06
"""Share of plain texts with arithmetic facts."""
FACTS_PER_TEXT = 12


def tutorials(num: int, seed: int) -> list[tuple[Message, ...]]:
    """`num` tutorial conversations. The prompt's messages carry loss 1 too: continual training may learn every token, and its
    configuration says how much a prompt's count."""
    return [tutorial(random.Random(f"{seed}/{index}")) for index in range(num)]


def tutorial(rng: random.Random) -> tuple[Message, ...]:
    """One conversation."""
    if rng.random() < FACTS_SHARE:
        return (Message(role="assistant", content=facts(rng), loss=1.0),)
    makers, shares = zip(*LESSONS, strict=True)
    lesson = rng.choices(makers, shares)[0](Pen(rng))
    return one_step(lesson, rng.randrange(len(lesson.moves)))


def facts(rng: random.Random) -> str:
    """A text dense with single-digit sums: `7 x 3 = 21 ; 4 - 9 = -5 ; …`"""
    return " ; ".join(" = ".join(fact(rng)) for _ in range(FACTS_PER_TEXT))


def worked_example(lesson: Lesson) -> list[tuple[Message, ...]]:
    """A whole lesson, one training conversation a step."""
    return list(_steps(lesson))


def one_step(lesson: Lesson, index: int) -> tuple[Message, ...]:
    """The conversation of one step of a lesson, with those before it as history."""
    return next(step for place, step in enumerate(_steps(lesson)) if place == index)


def _steps(lesson: Lesson) -> Iterator[tuple[Message, ...]]:
    builder = PromptBuilder("compact")
    memory = builder.start(lesson.instruction)
    for move in lesson.moves:
        observation = lesson.page.observe(lesson.instruction)
        action = lesson.page.action(move)
        response = builder.grammar.format(None, action, observation)
        prompt = builder.build(memory, observation)
        yield tuple(
            Message(role=message.role, content=message.content, loss=1.0) for message in training_messages(prompt, response)
        )
        memory = builder.remember(memory, observation, response, ParsedResponse(thought=None, actions=(action,)))
        lesson.page.carry_out(move)
