"""The task source of an adopted site: what tasks.json of its folder holds. Each family is a task, and its seeds take the instances of their
split in turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.adopting.records import AdoptedTask, AnswerCheck, Folder, KeptTask, Site, TaskSet, Wording
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Split, Task, first_seed
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import canonical_json, content_id, stable_fraction, stable_seed

if TYPE_CHECKING:
    from sandbox.adopting.session import AdoptedSession
    from sandbox.browser.page_session import Limits, OpenPage

TASKS, PLUGIN = "tasks.json", "source.py"
EDGES = {Split.TRAIN: 0.6, Split.EVAL: 0.7, Split.REPORT: 0.75, Split.HOLDOUT: 1.0}
"""Upper edges of a goal's hash. A site has few tasks, so more of them are held out than of generated ones."""
MAX_RANKED_SEED = 6_000
PLUGIN_TEXT = '''"""The tasks of an adopted site, as a plug-in: plugins.task_sources of a profile names this file."""

from pathlib import Path

from flywheel.sandbox.adopting.source import adopted_source

SOURCE = adopted_source(Path(__file__).resolve().parent)
'''


def split_of(site: Site, task: AdoptedTask) -> Split:
    """By what solves it, so that what is reported was never asked for in training, from whatever page and in whatever words."""
    fraction = stable_fraction("adopted split", site.name, canonical_json(task.goal).decode())
    return next(split for split, edge in EDGES.items() if fraction < edge)


def adopted_source(folder: Path) -> TaskSource:
    """Raises ConfigError where the folder has no usable tasks.json."""
    place = Folder(folder)
    found = place.read(TASKS, TaskSet)
    site = found.site
    by_task: dict[str, dict[Split, list[AdoptedTask]]] = defaultdict(lambda: defaultdict(list))
    for kept in found.tasks:
        by_task[f"{site.name}-{kept.task.family}"][kept.split].append(kept.task)
    tasks = {name: _task(site, name, instances) for name, instances in by_task.items()}

    def load_tasks(group: str | None = None) -> dict[str, Task]:
        if group is not None:
            raise ConfigError(f"The source {site.name!r} has no task group {group!r}; it has no groups.")
        return dict(tasks)

    @cache
    def ranked(task: Task) -> dict[Split, list[int]]:
        seeds: dict[Split, list[int]] = {split: [] for split in Split}
        split_of_seed = task.split_of_seeds()
        for seed in range(MAX_RANKED_SEED):
            seeds[split_of_seed(seed)].append(seed)
        return seeds

    def instance(task: Task, seed: int) -> AdoptedTask:
        if task.source != site.name or task.name not in tasks:
            raise TaskError(f"The site {site.name!r} has no task {task.source}/{task.name}; it has {', '.join(tasks)}.")
        split = task.split(seed)
        members = by_task[task.name].get(split, [])
        if not members:
            raise TaskError(f"{task.name} has no instance of split {split.value!r}.")
        rank = bisect_left(ranked(task)[split], seed) if seed < MAX_RANKED_SEED else stable_seed(site.name, task.name, seed)
        return members[rank % len(members)]

    def facts(task: Task, seed: int) -> Facts:
        adopted = instance(task, seed)
        reference = next((check.text for check in adopted.checks if isinstance(check, AnswerCheck)), None)
        return Facts(
            instruction=adopted.instruction,
            content=[adopted.instruction, adopted.start, adopted.goal],
            difficulty=min(1.0, len(adopted.steps) / 8),
            provenance={"site": site.origin, "page": adopted.start},
            reference=reference,
        )

    def open_session(open_page: OpenPage, limits: Limits) -> AdoptedSession:
        from sandbox.adopting.session import AdoptedSession

        return AdoptedSession(place, site, instance, limits=limits)

    return TaskSource(
        name=site.name,
        kind="own",
        load_tasks=load_tasks,
        open_session=open_session,
        environment="adopted site 1",
        facts=facts,
        description=lambda task: instance(task, first_seed(task)).instruction,
        licence="of the application",
        origin="tasks that flywheel adopt made of a running web application",
    )


def _task(site: Site, name: str, instances: dict[Split, list[AdoptedTask]]) -> Task:
    """Without instances to train on it is held out. Its version is of the instances: a seed of another version is another one."""
    steps = max(task.max_steps for members in instances.values() for task in members)
    version = content_id("adopted", {str(split): [task.task_id for task in members] for split, members in instances.items()})
    return Task(source=site.name, name=name, domain=site.name, max_steps=steps, held_out=not instances.get(Split.TRAIN), version=version)


def kept_tasks(site: Site, tasks: list[AdoptedTask]) -> TaskSet:
    """With their splits. A family that would have nothing to train or evaluate on is left out."""
    kept = [KeptTask(split=split_of(site, task), task=task) for task in tasks]
    usable = {each.task.family for each in kept if each.split in (Split.TRAIN, Split.EVAL)}
    return TaskSet(site=site, tasks=tuple(each for each in kept if each.task.family in usable))


def with_wordings(made: TaskSet, wordings: Sequence[Wording]) -> TaskSet:
    """With more training instances, which ask for the same in other words. Held-out tasks keep the words that they have, so that success is
    comparable with and without a language model. A wording that another task has, too, is left out."""
    others = {(wording.start, wording.instruction): wording.others for wording in wordings}
    taken = {kept.task.instruction.casefold() for kept in made.tasks}
    more: list[KeptTask] = []
    for kept in made.tasks:
        if kept.split is Split.TRAIN:
            for text in others.get((kept.task.start, kept.task.instruction), ()):
                if text.casefold() not in taken:
                    taken.add(text.casefold())
                    more.append(kept.model_copy(update={"task": kept.task.model_copy(update={"instruction": text})}))
    return made.model_copy(update={"tasks": (*made.tasks, *more)})
