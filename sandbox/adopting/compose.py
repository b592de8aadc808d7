"""From pages to candidate tasks: an instruction in plain words, checks, and the way that the crawl has found (families/). What is ambiguous
is dropped, with its reason, as far as the pages show it; what only a play shows is proof.py's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sandbox.adopting.families.controls import Controls
from sandbox.adopting.families.forms import Forms
from sandbox.adopting.families.links import Links
from sandbox.adopting.families.readings import Readings
from sandbox.adopting.records import AdoptedTask, Look, Site, is_sayable
from sandbox.adopting.values import samples, vocabulary
from warehouse.core.identity import canonical_json, stable_fraction

MAX_SAME_GOAL = 2


@dataclass(slots=True, kw_only=True)
class Composed:
    tasks: list[AdoptedTask] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


class Composer:
    """All candidates of a site."""

    def __init__(self, site: Site, pages: Mapping[str, Look]) -> None:
        self._pages = pages
        self.dropped: Counter[str] = Counter()
        words, held = vocabulary(pages.values()), samples(pages.values())
        self._links = Links(site, pages, self.dropped)
        self._readings = Readings(pages, self._links, self.dropped)
        self._controls = Controls(pages, self.dropped, words=words, samples=held)
        self._forms = Forms(site, pages, self.dropped, words=words, samples=held)

    def compose(self, max_tasks: int) -> Composed:
        """At most so many, of all families alike."""
        found = [task for key in self._pages for task in self._of_page(key)]
        found = self._one_meaning(found)
        return Composed(tasks=_chosen(found, max_tasks), dropped=self.dropped)

    def _of_page(self, key: str) -> Iterator[AdoptedTask]:
        yield from self._links.tasks(key)
        yield from self._readings.tasks(key)
        yield from self._controls.tasks(key)
        yield from self._forms.tasks(key)

    def _one_meaning(self, tasks: Sequence[AdoptedTask]) -> list[AdoptedTask]:
        """Without those whose instruction means different things, wherever they start, and without repeats. Where the heading of the page
        that they start on tells them apart, the instruction has it, too."""
        goals = _goals(tasks)
        tasks = [task if len(goals[task.instruction.casefold()]) == 1 else self._with_heading(task) for task in tasks]
        goals = _goals(tasks)
        kept: dict[str, AdoptedTask] = {}
        for task in tasks:
            if len(goals[task.instruction.casefold()]) > 1:
                self.dropped["the same instruction with another verifier"] += 1
            else:
                kept.setdefault(task.task_id, task)
        return list(kept.values())

    def _with_heading(self, task: AdoptedTask) -> AdoptedTask:
        heading = self._pages[task.start].heading
        if not is_sayable(heading):
            return task
        return task.model_copy(update={"instruction": f'On the page "{heading}": {task.instruction}'})


def _goals(tasks: Iterable[AdoptedTask]) -> Mapping[str, set[bytes]]:
    """Of each instruction."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for task in tasks:
        found[task.instruction.casefold()].add(canonical_json(task.goal))
    return found


def _chosen(tasks: Sequence[AdoptedTask], max_tasks: int) -> list[AdoptedTask]:
    """Of each family alike, and in it first one of each goal, near the top of the list of a hash."""
    families: dict[str, list[AdoptedTask]] = defaultdict(list)
    seen: Counter[bytes] = Counter()
    for task in sorted(tasks, key=lambda task: stable_fraction("adopted", task.task_id)):
        goal = canonical_json([task.family, task.goal])
        seen[goal] += 1
        if seen[goal] <= MAX_SAME_GOAL:
            families[task.family].append(task)
    for family, members in families.items():
        rank: Counter[bytes] = Counter()
        order: list[tuple[int, AdoptedTask]] = []
        for task in members:
            rank[canonical_json(task.goal)] += 1
            order.append((rank[canonical_json(task.goal)], task))
        families[family] = [task for _, task in sorted(order, key=lambda pair: pair[0])]
    chosen: list[AdoptedTask] = []
    for place in range(max((len(members) for members in families.values()), default=0)):
        chosen += [members[place] for members in families.values() if place < len(members)]
    return chosen[:max_tasks]
