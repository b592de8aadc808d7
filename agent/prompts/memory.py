"""What the agent remembers of its episode: working memory (the last k steps verbatim) and episodic memory (what older steps meant to do,
and what came of it). How memory is written into a prompt is agent/prompts/prompt.py's business.

Source: UI-TARS-2 (arXiv 2509.02544), section on the agent formulation: M_t = (W_t, E_t), E keeps intention and outcome. The paper gives
neither k nor the summariser; the rules here are ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agent.grammars.base import ParsedResponse
from sandbox.actions import InvalidAction
from sandbox.session import Observation

StepOutcome = Literal["changed", "no change", "invalid"]
MAX_SEEN, MAX_SEEN_CHARS = 3, 24
"""Of what came into view a memory keeps so many texts, so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStep:
    """One step as the agent lived it: what it saw, wrote and did. `line` says what was done, `intention` what for."""

    observation: Observation
    response: str
    parsed: ParsedResponse
    line: str
    intention: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One memory of the past: an intention, what came of it and came into view, and how many steps in a row it took."""

    intention: str
    outcome: StepOutcome
    seen: tuple[str, ...] = ()
    num_steps: int = 1


class Summariser(Protocol):
    """Folds the step that leaves working memory into episodic memory; `after` is what was seen next. Must be deterministic: prompts are
    rebuilt for training."""

    def __call__(self, events: tuple[Event, ...], step: MemoryStep, after: Observation) -> tuple[Event, ...]: ...


def fold_step(events: tuple[Event, ...], step: MemoryStep, after: Observation) -> tuple[Event, ...]:
    """The default summariser: one event a step, repeats in a row counted, not listed."""
    return _folded(events, Event(intention=step.intention, outcome=outcome_of(step, after)))


def fold_step_with_notes(events: tuple[Event, ...], step: MemoryStep, after: Observation) -> tuple[Event, ...]:
    """The same, and each event also notes what came into view."""
    event = Event(intention=step.intention, outcome=outcome_of(step, after), seen=newly_seen(step.observation, after))
    return _folded(events, event)


def _folded(events: tuple[Event, ...], event: Event) -> tuple[Event, ...]:
    if events and replace(events[-1], num_steps=1) == event:
        return (*events[:-1], replace(events[-1], num_steps=events[-1].num_steps + 1))
    return (*events, event)


def outcome_of(step: MemoryStep, after: Observation) -> StepOutcome:
    """What came of a step, judged from the screens around it. Where there is a screenshot pixels count, else elements and address."""
    if any(isinstance(action, InvalidAction) for action in step.parsed.actions):
        return "invalid"
    before = step.observation
    same = (before.elements, before.url, before.output, before.screenshot) == (after.elements, after.url, after.output, after.screenshot)
    return "no change" if same else "changed"


def newly_seen(before: Observation, after: Observation) -> tuple[str, ...]:
    """What came into view: the first lines that a tool printed; else texts of elements that were not there before, in their order."""
    if after.output and after.output != before.output:
        texts = [" ".join(line.split()) for line in after.output.splitlines()]
    else:
        known = Counter((element.role, element.text) for element in before.elements)
        shown = Counter((element.role, element.text) for element in after.elements)
        texts = [" ".join(text.split()) for _, text in shown - known]
    return tuple(text[:MAX_SEEN_CHARS].rstrip() for text in texts if text)[:MAX_SEEN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Immutable: `remember` gives the memory after one more step."""

    instruction: str
    window: int
    working: tuple[MemoryStep, ...] = ()
    episodic: tuple[Event, ...] = ()
    summarise: Summariser = fold_step

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"memory window {self.window}: it must be at least 1, so that the last step is kept verbatim")

    @property
    def num_forgotten(self) -> int:
        """Steps that only episodic memory still knows."""
        return sum(event.num_steps for event in self.episodic)

    def remember(self, step: MemoryStep) -> Memory:
        working, episodic = (*self.working, step), self.episodic
        while len(working) > self.window:
            leaving, *rest = working
            episodic = self.summarise(episodic, leaving, rest[0].observation)
            working = tuple(rest)
        return replace(self, working=working, episodic=episodic)
