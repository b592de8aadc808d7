"""Lessons: the worked examples that tutorials are made of. A lesson is a screen drawn at random (assets/seed_data/practice_screen.py) and a
few clauses about it, one after the other, with the moves that do what they say. How a lesson becomes a training text is
assets/seed_data/tutorials.py's business.

What is taught is reading a screen: to find what a phrase refers to, by name, kind, order, neighbour or state; to copy words from the
instruction or the screen into a field; to do several things in their order. Nothing here is taken from a task: screens mix kinds of
controls, and any clause may stand beside any other. benchmarks/lessons_beside_tasks.py measures how far lessons stay from tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from assets.seed_data.practice_page import Move, Widget
from assets.seed_data.practice_screen import PRESSED, PracticeScreen, draw_screen
from assets.seed_data.text_sampler import TextSampler
from sandbox.actions import Action
from sandbox.session import Observation

MAX_CLAUSES = 3
MAX_ALSO = 2
"""So many more questions are asked of a screen at most: it is long, and read again for little."""


class Practice(Protocol):
    """What a lesson is acted out on: a page or a shell in memory. Its moves are its own."""

    def observe(self, instruction: str) -> Observation: ...

    def action(self, move: Any) -> Action:
        """The action that carries out a move in the state as it is now."""
        ...

    def carry_out(self, move: Any) -> None:
        """Change the state as the real thing would."""
        ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """A page or shell at its beginning, the instruction, and the moves that carry it out. `crux` is the move that teaches most, if any
    does; `also` has, by the number of a move, what else may be asked of the page that it is made on, with the move that answers."""

    instruction: str
    page: Practice
    moves: Sequence[Any]
    crux: int | None = None
    also: Mapping[int, Sequence[tuple[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of an instruction, with the moves that do it. `uses` are the widgets that no other clause may touch."""

    text: str
    moves: Sequence[Move]
    uses: Sequence[Widget]


_PRESS = ("press {}", "use {}", "go for {}", "tap {}", "point at {}", "hit {}", "take {}", "{} is to be pressed", "reach for {}")
_WRITE = ("write {} {}", "put {} {}", "{} goes {}", "fill in {} {}", "have {} stand {}", "note {} {}")
Skill = Callable[[TextSampler, PracticeScreen], Clause | None]
"""Draws a clause about a screen; None where the screen has nothing that it could be about."""


def press(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """One thing, however the phrase refers to it."""
    kinds = sorted({widget.role for widget in screen.free})
    sampler.rng.shuffle(kinds)  # a screen has many of some kinds
    for kind in kinds:
        goal = sampler.rng.choice([widget for widget in screen.free if widget.role == kind])
        if phrases := screen.phrases(sampler, goal):
            return Clause(_said(sampler, _PRESS, sampler.rng.choice(phrases)), [Move("click", goal)], [goal])
    return None


def press_several(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """Two to four things that are named, in the order that the clause says."""
    goals = [widget for widget in screen.free if widget.role in PRESSED and screen.is_named(widget)]
    if len(goals) < 2:
        return None
    chosen = sampler.rng.sample(goals, min(len(goals), sampler.rng.choice((2, 2, 3, 3, 4))))
    names = [sampler.quoted(widget.text) for widget in chosen]
    moves = [Move("click", widget) for widget in chosen]
    listed = f"{', '.join(names[:-1])}{sampler.rng.choice((' and ', ', ', ' plus '))}{names[-1]}"
    return Clause(_said(sampler, _PRESS, listed), moves, chosen)


def write(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """Words of the instruction into a field; over what is there, if it holds something."""
    goal = _some_field(sampler, screen)
    if goal is None:
        return None
    text = sampler.name().replace('"', "") if sampler.often(0.75) else sampler.words(2, 3)
    return Clause(_said(sampler, _WRITE, f'"{text}"', screen.place_of(sampler, goal)), _fill(goal, text), [goal])


def copy(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """Words that stand on the screen, after others, into a field."""
    goal = _some_field(sampler, screen)
    texts = [pair for pair in screen.pairs if pair[0].text and pair[1].text]
    if goal is None or not texts:
        return None
    label, value = sampler.rng.choice(texts)
    phrase = sampler.rng.choice(("the text after {}", "the words next to {}")).format(sampler.quoted(label.text))
    return Clause(_said(sampler, _WRITE, phrase, screen.place_of(sampler, goal)), _fill(goal, value.text), [goal])


def choose(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """Another entry of a drop-down menu."""
    menus = [menu for menu in screen.visible("select") if menu in screen.free]
    if not menus:
        return None
    menu, entry = sampler.rng.choice(menus), sampler.name()
    text = sampler.rng.choice(("{phrase}: {entry}", "turn {phrase} to {entry}", "have {entry} in {phrase}")).format(
        phrase=sampler.rng.choice(screen.phrases(sampler, menu) or ["the select"]), entry=sampler.quoted(entry)
    )
    return Clause(text, [Move("select", menu, entry)], [menu])


def unfold(sampler: TextSampler, screen: PracticeScreen) -> Clause | None:
    """Something that shows only once a part of the screen is unfolded."""
    parts = [(header, inner) for header, inner in screen.parts if header in screen.free]
    if not parts:
        return None
    header, inner = sampler.rng.choice(parts)
    goal = sampler.rng.choice(inner)
    text = sampler.rng.choice(("in {} {}", "{1}, which {0} hides", "inside {} {}")).format(
        sampler.quoted(header.text), _said(sampler, _PRESS, sampler.quoted(goal.text))
    )
    return Clause(text, [Move("click", header), Move("click", goal)], [header, *inner])


def _said(sampler: TextSampler, wordings: Sequence[str], *parts: str) -> str:
    return sampler.rng.choice(wordings).format(*parts)


def _some_field(sampler: TextSampler, screen: PracticeScreen) -> Widget | None:
    fields = [each for each in screen.fields if each in screen.free]
    return sampler.rng.choice(fields) if fields else None


def _fill(goal: Widget, text: str) -> list[Move]:
    return [Move("triple_click" if goal.text and not goal.is_hint else "click", goal), Move("type", goal, text)]


SKILLS: Mapping[Skill, float] = {press: 0.30, press_several: 0.22, write: 0.28, copy: 0.06, choose: 0.08, unfold: 0.06}
"""Each kind of clause, with how often it is the first of a lesson."""


def lesson_of(skill: Skill) -> Callable[[TextSampler], Lesson]:
    """Lessons whose first clause is of a skill; one or two of any may follow."""

    def make(sampler: TextSampler) -> Lesson:
        while True:
            screen = draw_screen(sampler)
            first = skill(sampler, screen)
            if first is not None and first.moves:
                return _composed(sampler, screen, first)

    make.__name__ = skill.__name__
    return make


def _composed(sampler: TextSampler, screen: PracticeScreen, first: Clause) -> Lesson:
    clauses = [first]
    num = sampler.rng.choice((1, 2, 2, 2, MAX_CLAUSES))
    while len(clauses) < num and not any(header in clauses[-1].uses for header, _ in screen.parts):  # what is unfolded moves the rest
        screen.use(clauses[-1].uses)
        (skill,) = sampler.rng.choices(list(SKILLS), list(SKILLS.values()))
        clause = skill(sampler, screen)
        if clause is None:
            break
        clauses.append(clause)
    joined = clauses[0].text
    for clause in clauses[1:]:
        joined += sampler.rng.choice((". Then ", ", then ", "; next ", ", after that ", " and ")) + clause.text
    moves = [move for clause in clauses for move in clause.moves]
    said = sampler.say(joined[0].upper() + joined[1:] if sampler.often(0.8) else joined)
    return Lesson(said, screen.page(), moves, also=_also(sampler, screen, moves))


def _also(sampler: TextSampler, screen: PracticeScreen, moves: Sequence[Move]) -> dict[int, list[tuple[str, Move]]]:
    """More things of the first screen to press."""
    found: list[tuple[str, Move]] = []
    for _ in range(sampler.rng.randint(0, MAX_ALSO)):
        clause = press(sampler, screen)
        if clause is not None and clause.moves[0].widget is not moves[0].widget:
            found.append((sampler.say(clause.text), clause.moves[0]))
    return {0: found} if found else {}


LESSONS: tuple[tuple[Callable[[TextSampler], Lesson], float], ...] = tuple((lesson_of(skill), share) for skill, share in SKILLS.items())
"""Each kind of lesson with its share of the worked examples."""
