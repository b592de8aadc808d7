"""What a model adds to a recording, where that is wanted: other wordings of its task, and thoughts that say why. It is kept apart from what
a person said: such thoughts have the origin "refined", and their raw words stay.
"""

from __future__ import annotations

import json
from typing import Protocol

from annotation.recordings.bundle import Manifest, RecordedAction, Thought
from annotation.recordings.refinement import json_of, text_of
from sandbox.actions import ACTION

MAX_QUERY_CHARS = 400
MAX_THOUGHT_CHARS = 600
VARY = """Reword the task below in {count} ways in which different people would ask for it: short and long, polite and plain, as an order
and as a question. Keep every name, number and condition. Answer with JSON only: {{"queries": ["...", "..."]}}"""
ENRICH = """A person used a computer and thought aloud. Below are the task, what was done before, what was said, and the next action.
Write the thought that leads from the situation to this action, in the first person and at most three sentences: what was seen, what is
still to be done, why this action. Say nothing that the given facts do not show. Leave words in square brackets as they are.
Answer with JSON only: {"text": "..."}"""
HISTORY = 5


class Asks(Protocol):
    """A model that is asked, e.g. a Refiner."""

    def ask(self, instructions: str, text: str) -> str:
        """Its answer. Raises WordingFailed."""
        ...


def other_wordings(task: str, model: Asks, count: int) -> list[str]:
    """Of what a task asks for; those that are empty, too long, repeated, or lose a number are left out. Raises WordingFailed."""
    found = json_of(model.ask(VARY.format(count=count), task)).get("queries")
    numbers = _numbers(task)
    kept: list[str] = []
    for query in found if isinstance(found, list) else ():
        text = " ".join(query.split()) if isinstance(query, str) else ""
        if text and len(text) <= MAX_QUERY_CHARS and _numbers(text) == numbers and text not in (task, *kept):
            kept.append(text)
    return kept[:count]


def with_reasons(manifest: Manifest, model: Asks) -> tuple[RecordedAction, ...]:
    """The actions of a recording with thoughts that say why. One that the person wrote stays, and so does one whose answer is unusable.
    Raises WordingFailed."""
    return tuple(_reasoned(manifest, index, model) for index in range(len(manifest.actions)))


def _reasoned(manifest: Manifest, index: int, model: Asks) -> RecordedAction:
    action = manifest.actions[index]
    thought = action.thought
    if (thought is not None and thought.origin == "person") or action.hidden:
        return action
    earlier = manifest.actions[max(0, index - HISTORY) : index]
    before = [ACTION.dump_python(one.action, mode="json", exclude_defaults=True) for one in earlier]
    facts = {
        "task": manifest.task.query,
        "before": before,
        "said": thought.raw if thought else "",
        "window": action.window.title,
        "action": ACTION.dump_python(action.action, mode="json"),
        "on": f"{action.target.role} {action.target.text[:80]!r}" if action.target else "",
    }
    text = text_of(model.ask(ENRICH, json.dumps(facts, ensure_ascii=False)))
    if not text or len(text) > MAX_THOUGHT_CHARS:
        return action
    old = thought or Thought(text="", start_s=action.start_s, end_s=action.start_s)
    return action.model_copy(update={"thought": old.model_copy(update={"text": text, "origin": "refined"})})


def _numbers(text: str) -> list[str]:
    return sorted("".join(character if character.isdigit() else " " for character in text).split())
