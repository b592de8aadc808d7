"""The curricula that tutorials are drawn from, by name: the one literal registry of what the seed teaches before any task is seen.

A curriculum is a set of lessons, each with its share, and a word list of the same name (assets/seed_data/vocabulary.py) whose words are
those of the pages of some task lists. What a lesson is: assets/seed_data/lessons.py; how it becomes a text: assets/seed_data/tutorials.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from assets.seed_data.browsing_lessons import BROWSING_LESSONS, CHARACTER_WORDS
from assets.seed_data.lessons import LESSONS, Lesson
from assets.seed_data.shell_lessons import SHELL_LESSONS, SHELL_WORDS
from assets.seed_data.text_sampler import TextSampler
from warehouse.core.errors import ConfigError

WINDOW_WORDS = ("Cancel", "Ok", "close", "dialog", "maximise", "minimise", "press", "window")
"""What windows of a desktop say."""
Lessons = tuple[tuple[Callable[[TextSampler], Lesson], float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """`task_lists` are selections of sandbox/tasks/sources.py, of whose training instances the words are taken: those that were seen on so
    many of them (`min_instances`). `words` join them."""

    lessons: Lessons
    task_lists: tuple[str, ...]
    words: tuple[str, ...] = ()
    min_instances: int = 3


CURRICULA: Mapping[str, Curriculum] = {
    "web": Curriculum(lessons=LESSONS, task_lists=("miniwob:wide",)),
    "shell": Curriculum(lessons=SHELL_LESSONS, task_lists=("terminal:small", "terminal:memory"), words=SHELL_WORDS),
    "browsing": Curriculum(
        lessons=BROWSING_LESSONS,
        task_lists=("browsing:small", "web:small", "hybrid:generated-small"),
        words=CHARACTER_WORDS,
        min_instances=6,  # these pages are full of names, which are there to be spelled
    ),
    "screens": Curriculum(  # words alone: how to act there is learned from demonstrations
        lessons=(), task_lists=("games:quick-elements", "games:memory-elements", "hybrid:small"), words=WINDOW_WORDS
    ),
}


def lessons_of(*names: str) -> Lessons:
    """The lessons of some curricula together, with their shares. Raises ConfigError for an unknown one."""
    if unknown := [name for name in names if name not in CURRICULA]:
        raise ConfigError(f"unknown curriculum {unknown[0]!r}; known are {', '.join(CURRICULA)}")
    return tuple(lesson for name in names for lesson in CURRICULA[name].lessons)
