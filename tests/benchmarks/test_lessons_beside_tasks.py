"""No lesson is a task in other words: the lessons as they are now lie far from every task, those before them did not; and the sketches of
the tasks that they are held beside are what live pages and their oracles give.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean

import pytest

from assets.seed_data.lessons import Lesson
from assets.seed_data.practice_page import Move, PracticePage, Widget
from benchmarks.common.sketches import Sketch, distance, family, nearest_task, reach, sketch, taken
from benchmarks.lessons_beside_tasks import INSTANCES, MAX_SHARE, MAX_SHARE_OF_ALL, acted_out, drawn, earlier, sample, sampled
from sandbox.tasks.miniwob.source import load_tasks

Sketches = Mapping[str, Sequence[Sketch]]
LISTS = ("quickstart", "wide", "unseen")


@pytest.fixture(scope="module")
def tasks() -> Sketches:
    return sampled()


@pytest.fixture(scope="module")
def within(tasks: Sketches) -> float:
    return reach(tasks)


def shares(lessons: Sketches, tasks: Sketches, within: float) -> dict[str, float]:
    return taken((one for of in lessons.values() for one in of), tasks, within)


def test_every_task_of_the_lists_that_can_be_solved_has_its_sketches(tasks: Sketches) -> None:
    wanted = {name for group in LISTS for name in load_tasks(group)}
    assert set(load_tasks("quickstart")) | set(load_tasks("unseen")) <= set(tasks) <= wanted
    assert len(tasks) > 0.95 * len(wanted)
    assert all(1 <= len(of) <= INSTANCES for of in tasks.values())


@pytest.mark.slow
def test_lessons_stay_out_of_reach_of_every_task(tasks: Sketches, within: float) -> None:
    found = shares(drawn(1500), tasks, within)
    assert max(found.values(), default=0.0) <= MAX_SHARE, found
    assert sum(found.values()) <= MAX_SHARE_OF_ALL, found
    assert not set(found) & set(load_tasks("unseen")), found


def test_earlier_lessons_were_tasks_in_other_words(tasks: Sketches, within: float) -> None:
    found = shares(earlier(), tasks, within)
    assert sum(found.values()) > 0.6
    assert found["click-checkboxes"] > 0.1 and found["simple-arithmetic"] > 0.08 and found["use-autocomplete-nodelay"] > 0.03
    assert {"enter-password", "focus-text", "click-test"} <= set(found), "tasks that are never trained on"


def test_a_task_in_other_words_is_found_out(tasks: Sketches, within: float) -> None:
    """Not a word of the task; its page and what is done there are enough."""
    one, two, go = Widget("input", is_secret=True), Widget("input", is_secret=True), Widget("button", "Off we go")
    page = PracticePage([Widget("text", "Say it"), one, Widget("text", "Say it twice"), two, go])
    moves = [Move("click", one), Move("type", one, "zu8"), Move("click", two), Move("type", two, "zu8"), Move("click", go)]
    name, how_near = nearest_task(sketch(acted_out(Lesson("What goes into each is zu8, and off we go", page, moves))), tasks)
    assert name == "enter-password" and how_near < within / 2


def test_instances_of_a_task_are_nearer_to_it_than_to_others(tasks: Sketches, within: float) -> None:
    """What the reach is worth: a task's own instances are mostly well within it, those of other families are not."""
    names = [name for name in load_tasks("quickstart") if len(tasks[name]) > 1]
    own = [min(distance(one, other) for other in tasks[name][1:]) for name in names for one in tasks[name][:1]]
    assert fmean(own) < within / 2
    others = [distance(tasks[a][0], tasks[b][0]) for a in names for b in names if family(a) != family(b)]
    assert sum(each < within for each in others) < 0.05 * len(others)


@pytest.mark.slow
def test_live_pages_look_like_the_sketches_of_their_tasks(tasks: Sketches, within: float) -> None:
    listed = load_tasks("wide")
    names = ("click-checkboxes", "simple-arithmetic", "use-autocomplete-nodelay", "enter-password")
    found = asyncio.run(sample({name: listed[name] for name in names}, 3))
    assert set(found) == set(names) and all(len(of) == 3 for of in found.values())
    for name, of in found.items():
        assert {family(nearest_task(one, tasks)[0]) for one in of} == {family(name)}
        assert fmean(min(distance(one, kept) for kept in tasks[name]) for one in of) < within / 2
