"""The contract of every task source, ours and yours: rules for its description (STATIC) and for its sessions (`played`)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from sandbox.actions import Finished
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.session import Observation, Session
from sandbox.tasks.describe import describe
from sandbox.tasks.prove import attempt, proving_seeds, random_action
from sandbox.tasks.task import Split, Task, first_seed
from sandbox.tasks.task_source import TaskSource
from warehouse.core.conformance import Checked, NotKept, checked, require
from warehouse.core.errors import ConfigError, CorpusMissing, TaskError

NO_GROUP = "no-such-group"
NUM_STARTS = 6
NUM_RANDOM = 8
"""Random actions of an episode whose rewards are looked at."""


def few(source: TaskSource) -> list[Task]:
    """The first two tasks of a source and the last two."""
    tasks = list(source.load_tasks().values())
    return tasks[:2] + tasks[max(2, len(tasks) - 2) :]


def _tasks_are_its_own(source: TaskSource) -> None:
    tasks = source.load_tasks()
    require(bool(tasks), "load_tasks gives none")
    strangers = [name for name, task in tasks.items() if (task.source, task.name) != (source.name, name)]
    require(not strangers, f"{strangers[:3]}: `source` of a task is the source's name, and its key is its name")
    require(len({task.task_id for task in tasks.values()}) == len(tasks), "two tasks are the same")
    require(source.load_tasks() == tasks, "load_tasks gives others the second time")


def _an_unknown_group_is_refused(source: TaskSource) -> None:
    try:
        source.load_tasks(NO_GROUP)
    except ConfigError as error:
        require(NO_GROUP in str(error), f"the error does not name the group: {error}")
        return
    raise NotKept(f"load_tasks({NO_GROUP!r}) raised no ConfigError")


def _splits_are_stable(source: TaskSource) -> None:
    for task in few(source):
        longer = task.model_copy(update={"max_steps": task.max_steps + 1})
        same = [task.split(seed) for seed in range(60)] == [longer.split(seed) for seed in range(60)]
        require(same, f"{task.name}: the split of a seed changes with the step limit")
        for split in Split:
            require(all(task.split(seed) is split for seed in task.seeds(split, 5)), f"{task.name}: a seed of {split} is of another split")
        require(not task.held_out or task.seeds(Split.TRAIN, 1) == [], f"{task.name} is held out, and has seeds to train on")


def _instances_are_the_same_each_time(source: TaskSource) -> None:
    for task in few(source):
        kind = source.kind_of(task)
        if kind == "page":
            page = source.page
            require(page is not None and page.root.is_dir(), f"{task.name}: `root` of its page is not a folder")
            require(page is not None and bool(page.url(task) and page.environment), f"{task.name}: its page has no url or no environment")
            continue
        require(bool(source.environment), "`environment`, the version of its instances, is empty")
        if kind not in ("web", "own"):
            first, again = (source.instance(task, first_seed(task)) for _ in range(2))
            same = getattr(first, "instruction", None) == getattr(again, "instruction", None)
            require(same, f"{task.name}: the same seed asks for something else the second time")


def _tasks_are_described(source: TaskSource) -> None:
    for task in few(source):
        said = describe(task)
        require(bool(said.strip()) and "\n" not in said, f"{task.name}: its description is {said!r}, expected one line")
    flags = [source.has_oracle(task) for task in source.load_tasks().values()]
    require(all(isinstance(flag, bool) for flag in flags), "has_oracle gives something else than True or False")


def _facts_name_an_instance_by_content(source: TaskSource) -> None:
    for task in few(source):
        for seed in proving_seeds(task, 3):
            with suppress(CorpusMissing):  # its pages are not on this machine
                first, again = source.facts(task, seed), source.facts(task, seed)
                if first is None or again is None:
                    require(first is again, f"{task.name}, seed {seed}: facts are given only sometimes")
                    continue
                require(first.content_id == again.content_id, f"{task.name}, seed {seed}: the content differs the second time")
                require(bool(first.instruction) and 0 <= first.difficulty <= 1, f"{task.name}, seed {seed}: no instruction or difficulty")


def _its_index_is_there(source: TaskSource) -> None:
    require(source.contents is None or source.contents.is_file(), f"there is no index {source.contents}")
    has_content = source.contents is None or source.content is not None or source.page is not None
    require(has_content, "it has an index, and neither `content` nor a page to make it from")


STATIC: Mapping[str, Callable[[TaskSource], None]] = {
    "tasks are its own, each with one name": _tasks_are_its_own,
    "an unknown group is refused": _an_unknown_group_is_refused,
    "a seed has one split": _splits_are_stable,
    "an instance is the same each time": _instances_are_the_same_each_time,
    "each task says what it asks for": _tasks_are_described,
    "facts name an instance by its content": _facts_name_an_instance_by_content,
    "its index of instances is there": _its_index_is_there,
}


def check_source(source: TaskSource, *, num_seeds: int = 2) -> Iterator[Checked]:
    """Every promise; the last ones in live sessions, of a few tasks with so many seeds each. Raises SandboxError where the environments
    fail."""
    yield from checked(STATIC, source)
    try:
        tasks = few(source)
    except Exception as error:
        yield Checked(promise="its sessions", problem=f"not played: {type(error).__name__}: {error}")
        return
    yield from asyncio.run(_play(source, tasks, num_seeds))


async def _play(source: TaskSource, tasks: list[Task], num_seeds: int) -> list[Checked]:
    found = []
    async with Fleet(FleetSettings(max_workers=1, sessions_per_worker=1)) as fleet:
        for promise, play in PLAYED.items():
            problem = ""
            for task in tasks:
                for seed in proving_seeds(task, num_seeds):
                    async with fleet.lease(task) as session:
                        try:
                            await play(session, source, task, seed)
                        except (NotKept, TaskError) as error:
                            problem = problem or f"{task.name}, seed {seed}: {error}"
            found.append(Checked(promise=promise, problem=problem))
    return found


def _seen(observation: Observation) -> tuple[object, ...]:
    return (
        observation.instruction,
        observation.output,
        observation.screenshot_id,
        tuple((each.role, each.text, each.states) for each in observation.elements),
    )


async def _same_start(session: Session, source: TaskSource, task: Task, seed: int) -> None:
    first, again = _seen(await session.reset(task, seed)), _seen(await session.reset(task, seed))
    require(first == again, "the second reset shows something else than the first")


async def _oracle(session: Session, source: TaskSource, task: Task, seed: int) -> None:
    if source.has_oracle(task):
        done = await attempt(session, task, seed)
        require(done.is_success, f"the oracle did not solve it in {done.num_steps} steps: {done.reason or 'no reason given'}")


async def _nothing_is_not_paid(session: Session, source: TaskSource, task: Task, seed: int) -> None:
    await session.reset(task, seed)
    require(not (await session.evaluate()).success, "it counts as solved before anything was done")
    transition = await session.step(Finished())
    require(transition.reward <= 0 or not (await session.evaluate()).success, "saying `finished` at once is paid")


async def _rewards_in_bounds(session: Session, source: TaskSource, task: Task, seed: int) -> None:
    rng, observation = random.Random(seed), await session.reset(task, seed)
    for _ in range(NUM_RANDOM):
        if (action := random_action(observation, rng)) is None:
            break
        transition = await session.step(action)
        require(math.isfinite(transition.reward) and -1 <= transition.reward <= 1, f"a reward of {transition.reward}")
        if transition.terminated or transition.truncated:
            break
        observation = transition.observation
    verdict = await session.evaluate()
    require(math.isfinite(verdict.score) and math.isfinite(verdict.threshold), f"a verdict of {verdict.score} at {verdict.threshold}")


async def _seeds_differ(session: Session, source: TaskSource, task: Task, seed: int) -> None:
    """Also between splits, where nothing says so before a session runs: no draw by split (`facts`), no index of instances."""
    if source.has_one_instance or source.contents is not None or source.facts(task, seed) is not None:
        return
    starts = {_seen(await session.reset(task, other)) for other in proving_seeds(task, NUM_STARTS)}
    problem = "so that what is trained on is what is reported: draw by split (docs/page-tasks.md), or set has_one_instance"
    require(len(starts) > 1, f"{NUM_STARTS} seeds start alike, {problem}")
    if not task.held_out:
        others = {_seen(await session.reset(task, other)) for other in task.seeds(Split.EVAL, NUM_STARTS)}
        require(starts.isdisjoint(others), f"seeds to train on start as seeds of eval do, {problem}")


PLAYED = {
    "a reset gives the same start": _same_start,
    "seeds are different instances": _seeds_differ,
    "its oracle solves it": _oracle,
    "doing nothing is not paid": _nothing_is_not_paid,
    "rewards and verdicts are in bounds": _rewards_in_bounds,
}
