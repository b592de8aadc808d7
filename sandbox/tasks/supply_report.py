"""How good a generator's supply is: its first instances counted, compared with each other, and played by their oracle in live sessions.
What is printed and written of it is supply_page.py; the facts of an instance are supply.py.

Families take turns, and within a family the splits: the n-th instance of each is of `train`, `eval`, `holdout`, `train` … (a held-out
family has only the last two). So every split is compared with the others for instances that are in both.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, count

from sandbox.actions import Action, Click, Drag, Finished, Hotkey, LongPress, Navigate, Scroll, SelectOption, ToolCall, TypeText
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.session import Observation
from sandbox.tasks.prove import MAX_TRIES, Attempt, Watch, attempt
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.supply import OTHER_SPLIT, Facts
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, SandboxError, TaskError

SHINGLE_WORDS = 3
NEAR = 0.9
"""Instructions are nearly the same when their sets of word triples have at least this Jaccard similarity."""
MAX_REFUSED = 20
"""A family whose generator gives nothing for so many seeds of a split on end is broken."""
NO_INSTANCE = "no instance for the seed"

OnProgress = Callable[[str], None]
"""Called with the family after each instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplied:
    """One generated instance; `proof` and what follows is None or empty until its oracle has played."""

    task: Task
    seed: int
    split: Split
    facts: Facts
    made_ms: float
    proof: Attempt | None = None
    played_s: float = 0.0
    """Wall-clock seconds of the oracle's episode, from the lease to the verdict."""
    actions: tuple[str, ...] = ()
    error: str = ""
    """Of the infrastructure, where the episode could not be run: then there is no proof."""

    @property
    def why_not(self) -> str:
        """Why the oracle did not solve it; empty where it did, or has not played."""
        return self.error or ("" if self.proof is None or self.proof.is_success else self.proof.reason or "the verifier gives no reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """All instances that were asked for, and how the proof went as a whole."""

    instances: tuple[Supplied, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Candidates refused on the way, by reason; those for which a seed gave nothing at all included."""
    proving_s: float = 0.0
    """Wall-clock seconds that all oracles took together, several at once."""

    @property
    def num_candidates(self) -> int:
        return len(self.instances) + sum(self.dropped.values())

    @property
    def num_of_other_splits(self) -> int:
        """Good candidates that were left to another split's seeds."""
        return self.dropped.get(OTHER_SPLIT, 0)

    @property
    def refused(self) -> dict[str, int]:
        """What filters refused, by reason."""
        return {reason: num for reason, num in self.dropped.items() if reason != OTHER_SPLIT}

    @property
    def yield_(self) -> float:
        """Candidates that pass every filter, whichever split they then belong to, a candidate."""
        return 1 - sum(self.refused.values()) / max(self.num_candidates, 1)

    @property
    def proved(self) -> list[Supplied]:
        return [each for each in self.instances if each.proof is not None]

    @property
    def num_solved(self) -> int:
        return sum(each.proof is not None and each.proof.is_success for each in self.instances)

    @property
    def failed(self) -> list[Supplied]:
        """Instances whose oracle did not solve them, or could not be run."""
        return [each for each in self.instances if each.why_not]

    @property
    def by_family(self) -> dict[str, list[Supplied]]:
        found: dict[str, list[Supplied]] = defaultdict(list)
        for each in self.instances:
            found[each.task.name].append(each)
        return dict(found)

    @property
    def duplicates(self) -> Duplicates:
        return duplicates_of(self.instances)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Instances that there need not be: beyond the first of equal ones, and pairs that nearly say the same."""

    within_splits: int
    """Instances whose content another of the same split has, not counting the first."""
    across_splits: int
    """Contents that more than one split has: leaks."""
    same_instructions: int
    """Instances whose instruction another has to the word (they may still differ in what they are about)."""
    near_instructions: int
    """Instances whose instruction is nearly one before them, those of equal instructions included."""


def gather(tasks: Sequence[Task], num: int, on_progress: OnProgress | None = None) -> Supply:
    """The first `num` instances of these families. Raises ConfigError for tasks of a source that says nothing of its instances, or for a
    family that gives none."""
    if not tasks:
        raise ConfigError("There is nothing to count: the selection has no tasks.")
    dropped: Counter[str] = Counter()
    found: list[Supplied] = []
    walks = [_instances(task, dropped) for task in tasks]
    while len(found) < num:
        for walk in walks[: num - len(found)]:
            found.append(next(walk))
            if on_progress is not None:
                on_progress(found[-1].task.name)
    return Supply(instances=tuple(found), dropped=dict(sorted(dropped.items())))


def _instances(task: Task, dropped: Counter[str]) -> Iterator[Supplied]:
    """A family's instances, its splits taking turns."""
    splits = [split for split in Split if not (task.held_out and split is Split.TRAIN)]
    walks = [_of_split(task, split, dropped) for split in splits]
    while True:
        for walk in walks:
            yield next(walk)


def _of_split(task: Task, split: Split, dropped: Counter[str]) -> Iterator[Supplied]:
    refused = 0
    for seed in (seed for seed in count() if task.split(seed) is split):
        begun = time.perf_counter()
        try:
            facts = SOURCES[task.source].facts(task, seed)
        except TaskError as error:
            dropped[NO_INSTANCE] += 1
            refused += 1
            if refused == MAX_REFUSED:
                raise ConfigError(f"{task.name} gave nothing for {refused} seeds of {split} on end; the last said: {error}") from error
            continue
        if facts is None:
            raise ConfigError(
                f"{task.name}: the source {task.source!r} does not say what its instances are, so there is nothing to count. Sources that "
                "generate their tasks have a function `facts` in their module."
            )
        refused = 0
        dropped.update(facts.dropped)
        yield Supplied(task=task, seed=seed, split=split, facts=facts, made_ms=(time.perf_counter() - begun) * 1000)


async def prove_supply(supply: Supply, *, settings: FleetSettings | None = None, on_progress: OnProgress | None = None) -> Supply:
    """The same with every instance played by its oracle on a fleet. An environment that fails `MAX_TRIES` times is recorded with the
    instance, and proves nothing. Raises SandboxError for what a person must fix, e.g. a missing browser."""
    begun = time.monotonic()
    async with Fleet(settings or FleetSettings()) as fleet:
        places = asyncio.Semaphore(fleet.size)

        async def one(each: Supplied) -> Supplied:
            async with places:
                done = await _play(fleet, each)
            if on_progress is not None:
                on_progress(each.task.name)
            return done

        instances = await asyncio.gather(*(one(each) for each in supply.instances))
    return replace(supply, instances=tuple(instances), proving_s=time.monotonic() - begun)


async def _play(fleet: Fleet, each: Supplied) -> Supplied:
    error = ""
    for _ in range(MAX_TRIES):
        taken: list[str] = []
        begun = time.monotonic()
        try:
            async with fleet.lease(each.task, screenshots=False) as session:
                proof = await attempt(session, each.task, each.seed, watch=_describing(taken))
            return replace(each, proof=proof, played_s=time.monotonic() - begun, actions=tuple(taken))
        except SandboxError as problem:
            if not problem.is_retryable:
                raise
            error = f"{type(problem).__name__}: {problem}"
    return replace(each, error=error)


def _describing(taken: list[str]) -> Watch:
    return lambda seen, action: taken.append(in_words(action, seen))


def in_words(action: Action, seen: Observation) -> str:
    """An action as a person would describe it: with the name of what lies under its point."""
    match action:
        case Click(x=x, y=y, count=times):
            return f"{'click' if times == 1 else f'click {times} times'} {_under(seen, x, y)}"
        case LongPress(x=x, y=y):
            return f"press long {_under(seen, x, y)}"
        case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
            return f"drag {_under(seen, x, y)} to {_under(seen, to_x, to_y)}"
        case SelectOption(x=x, y=y, option=option):
            return f"choose {option!r} in {_under(seen, x, y)}"
        case TypeText(text=text):
            return f"type {text!r}"
        case Hotkey(keys=keys):
            return f"press {'+'.join(keys)}"
        case Scroll(direction=direction):
            return f"scroll {direction}"
        case Navigate(url=url):
            return f"open {url}"
        case ToolCall(name=name, arguments=arguments):
            return f"{name}: {' '.join(str(value) for value in arguments.values())}"
        case Finished(answer=answer):
            return f"finish with {answer!r}" if answer else "finish"
        case _:
            return action.kind.replace("_", " ")


def _under(seen: Observation, x: int, y: int) -> str:
    """The smallest element at a point, else the point."""
    there = [each for each in seen.elements if abs(each.x_px - x) * 2 <= each.width_px and abs(each.y_px - y) * 2 <= each.height_px]
    if not there:
        return f"({x}, {y})"
    smallest = min(there, key=lambda each: each.width_px * each.height_px)
    return f"{smallest.role} {smallest.text!r}" if smallest.text else smallest.role


def duplicates_of(instances: Sequence[Supplied]) -> Duplicates:
    splits: dict[str, Counter[Split]] = defaultdict(Counter)
    for each in instances:
        splits[each.facts.content_id][each.split] += 1
    instructions = [" ".join(each.facts.instruction.lower().split()) for each in instances]
    near: set[int] = set()
    shingles = [_shingles(instruction) for instruction in instructions]
    for (_, first), (later, second) in combinations(enumerate(shingles), 2):
        if later not in near and len(first & second) >= NEAR * len(first | second):
            near.add(later)
    return Duplicates(
        within_splits=sum(num - 1 for of_split in splits.values() for num in of_split.values()),
        across_splits=sum(len(of_split) > 1 for of_split in splits.values()),
        same_instructions=len(instructions) - len(set(instructions)),
        near_instructions=len(near),
    )


def _shingles(text: str) -> frozenset[str]:
    words = text.split()
    return frozenset(" ".join(words[at : at + SHINGLE_WORDS]) for at in range(max(1, len(words) - SHINGLE_WORDS + 1)))
