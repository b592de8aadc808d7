"""What is left of a worked example once its words are taken out: the shape of its first page, and of what is done there. And how far two
such sketches, or two sets of them, are apart.

Words are left out on purpose: a task in other words is still that task. Lessons and task instances are sketched alike, from what is seen
and done at each step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Any

from sandbox.actions import Action, Click, Drag, Finished, Scroll, SelectOption, ToolCall, TypeText
from sandbox.session import Element, Observation

MAX_PAGE = 30
"""Elements of a page that are looked at."""
PROSE_WORDS = 4
"""From so many words on, a text is running text and not a name."""
_ORDER = re.compile(r"\b(\d+(st|nd|rd|th)|first|second|third|fourth|fifth|last)\b")
_SUM = re.compile(r"\d+\s*[-+x*×÷/]\s*\d+|[-+x*×÷/=]\s*$|^[-+=]\s")
_NUMBER = re.compile(r"[-+$]?[\d.,:/]+%?")
Doing = tuple[str, str, str]
"""A verb, the role of what it is done to, and how that, or the text that is typed, was to be known: see `_known` and `_source`."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """`page`: role and shape of each element of the first page, equal neighbours counted once. `doings`: what is done, likewise."""

    page: tuple[str, ...]
    doings: tuple[Doing, ...]


def sketch(steps: Sequence[tuple[Observation, Action]]) -> Sketch:
    """Of an episode, or of a lesson acted out: what was seen and done at each step. Raises ValueError where there is no step."""
    if not steps:
        raise ValueError("an episode without a step has no sketch")
    page = [f"{element.role}/{_shape(element)}" for element in steps[0][0].elements[:MAX_PAGE]]
    typed: list[str] = []
    doings = [_doing(action, observation, steps[0][0], typed) for observation, action in steps]
    return Sketch(page=tuple(token for token, _ in groupby(page)), doings=tuple(doing for doing, _ in groupby(doings)))


def _shape(element: Element) -> str:
    text = " ".join(element.text.split())
    if not text:
        return "empty"
    if set(text) <= {"*", "•"}:
        return "secret"
    if _NUMBER.fullmatch(text):
        return "number"
    if _SUM.search(text):
        return "sum"
    return "prose" if len(text.split()) >= PROSE_WORDS else "name"


def _doing(action: Action, now: Observation, first: Observation, typed: list[str]) -> Doing:
    """`typed` is what was typed so far; it grows."""
    if isinstance(action, TypeText):
        source = _source(action.text, now, typed)
        typed.append(action.text)
        return "type", "", source
    if isinstance(action, Finished):
        return "finished", "", _source(action.answer, now, typed) if action.answer else ""
    if isinstance(action, ToolCall):
        return "tool", action.name, ""
    if isinstance(action, Scroll):
        return "scroll", "", action.direction
    if isinstance(action, Click | Drag | SelectOption):
        target = next((each for each in now.elements if (each.x_px, each.y_px) == (action.x, action.y)), None)
        role = target.role if target is not None else "point"
        verb = f"{action.kind}{action.count}" if isinstance(action, Click) else action.kind
        return verb, role, _known(target, now, first, typed) if target is not None else ""
    return action.kind, "", ""


def _known(target: Element, now: Observation, first: Observation, typed: Sequence[str]) -> str:
    """How an element is to be known: by its name in the instruction, as what begins as was typed, as what was not there at first, by its
    number in an order, or by none of these."""
    text, instruction = " ".join(target.text.split()).lower(), now.instruction.lower()
    if text and any(text.startswith(each.lower()) and text != each.lower() for each in typed):
        return "completion"
    if text and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", instruction):
        return "named"
    if not any((each.role, each.text) == (target.role, target.text) for each in first.elements):
        return "new"
    return "numbered" if _ORDER.search(instruction) else "unnamed"


def _source(text: str, now: Observation, typed: Sequence[str]) -> str:
    """Where a text comes from: typed before, the instruction, the page, or neither, so that it has to be worked out."""
    if text in typed:
        return "again"
    if text.lower() in now.instruction.lower() and not _NUMBER.fullmatch(text):
        return "instruction"
    if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", now.instruction):
        return "instruction"
    return "page" if any(text in element.text for element in now.elements) else "derived"


def distance(one: Sketch, other: Sketch) -> float:
    """From 0 (alike) to 1: the mean of how far the pages and the doings are apart."""
    return (_page_distance(one.page, other.page) + _doings_distance(one.doings, other.doings)) / 2


@cache
def _page_distance(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Jaccard distance of what stands on both pages and what stands next to what."""
    here, there = _neighbours(one), _neighbours(other)
    return 1 - len(here & there) / len(here | there)


@cache
def _neighbours(page: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset((*((token,) for token in page), *pairwise(("", *page, ""))))


@cache
def _doings_distance(one: tuple[Doing, ...], other: tuple[Doing, ...]) -> float:
    """Edit distance, as a share of the longer one. A doing for another costs the share of its three parts that differ, another verb 1."""
    row = [float(place) for place in range(len(other) + 1)]
    for place, mine in enumerate(one, 1):
        above, row[0] = row[0], float(place)
        for column, theirs in enumerate(other, 1):
            changed = 1.0 if mine[0] != theirs[0] else ((mine[1] != theirs[1]) + (mine[2] != theirs[2])) / 3
            above, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, above + changed)
    return row[-1] / max(len(one), len(other))


def family(task: str) -> str:
    """The tasks that are variants of one another share a family: what stands before a number or a word for a variant."""
    return re.sub(r"(-\d+|-(nodelay|easy|medium|hard|large|soft|transfer|dynamic|popup|nl|noscroll|all|some|delay))+$", "", task)


def reach(tasks: Mapping[str, Collection[Sketch]]) -> float:
    """How near a task is the nearest task of another family, in the middle: the median over tasks of the mean over a task's sketches."""
    return median(min(_mean_nearest(tasks[name], tasks[other]) for other in tasks if family(other) != family(name)) for name in tasks)


def _mean_nearest(those: Collection[Sketch], others: Collection[Sketch]) -> float:
    return fmean(min(distance(one, other) for other in others) for one in those)


def nearest_task(one: Sketch, tasks: Mapping[str, Collection[Sketch]]) -> tuple[str, float]:
    """The task that one sketch is nearest to, and how near."""
    found = ((min(distance(one, other) for other in own), name) for name, own in tasks.items())
    how_near, name = min(found)
    return name, how_near


def taken(lessons: Iterable[Sketch], tasks: Mapping[str, Collection[Sketch]], within: float) -> dict[str, float]:
    """The share of lessons that are as good as an instance of a task, by task: it is the nearest one, and nearer than `within`. Tasks
    without such lessons are left out; the largest come first."""
    found, num = Counter[str](), 0
    for lesson, times in Counter(lessons).items():
        name, how_near = nearest_task(lesson, tasks)
        num += times
        if how_near < within:
            found[name] += times
    return {name: times / num for name, times in found.most_common()}


def written(sketches: Iterable[Sketch]) -> list[list[Any]]:
    """For a file: each sketch once, as how often it came, its page and its doings, in order."""
    counts = Counter(sketches)
    return sorted([times, " ".join(one.page), "; ".join(",".join(doing) for doing in one.doings)] for one, times in counts.items())


def read(rows: Iterable[Sequence[Any]]) -> list[Sketch]:
    """The sketches that `written` wrote."""
    found = []
    for times, page, doings in rows:
        done = tuple(tuple(doing.split(",")) for doing in doings.split("; "))
        found += [Sketch(page=tuple(page.split()), doings=tuple((verb, role, known) for verb, role, known in done))] * times
    return found
