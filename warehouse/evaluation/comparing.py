"""Two policies on the same instances, from the episodes of their evaluations: paired differences as a whole, by domain and by task, and
where the two part. For people: what a stage chooses by, it reads through choosing.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from warehouse.core.errors import ConfigError
from warehouse.evaluation.statistics import PairedComparison, TaskCount, compare_paired, macro_average
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

Instance = tuple[str, int]
"""Task id and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one instance; of several episodes the last of the newest iteration."""

    task: str
    domain: str
    solved: bool
    episode_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One task, one domain or all: both success rates, macro-averaged over tasks, on the instances that both have played."""

    name: str
    domain: str
    first: float
    second: float
    paired: PairedComparison
    """The second less the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """An instance that one of the two solves alone."""

    task: str
    domain: str
    seed: int
    second_solves: bool
    first_episode: str
    second_episode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    total: Part
    domains: tuple[Part, ...]
    tasks: tuple[Part, ...]
    partings: tuple[Parting, ...]
    num_first_only: int
    """Instances that only the first has played: they do not count."""
    num_second_only: int


def played(warehouse: Warehouse, checkpoint_id: str, split: str) -> dict[Instance, Played]:
    """The greedy episodes of a policy on a split. Crashed ones have no outcome and are left out."""
    with connect(warehouse, tables=["episodes"]) as con:
        rows = con.execute(
            "select task_id, seed, task_name, domain, outcome = 'success', episode_id from episodes where purpose = 'evaluation' and "
            "policy_id = ? and split = ? and outcome <> 'crashed' order by iteration, attempt, stage, episode_id",
            [checkpoint_id, split],
        ).fetchall()
    return {
        (task_id, seed): Played(task=task, domain=domain, solved=solved, episode_id=id_)
        for task_id, seed, task, domain, solved, id_ in rows
    }


def only(found: Mapping[Instance, Played], names: Collection[str]) -> dict[Instance, Played]:
    """Those of some tasks or domains, by name; all where none is named. Raises ConfigError for a name that is neither."""
    there = {name for one in found.values() for name in (one.task, one.domain)}
    if unknown := sorted(set(names) - there):
        raise ConfigError(f"no evaluated task or domain is called {', '.join(unknown)}; there are {', '.join(sorted(there)) or 'none'}")
    return {key: one for key, one in found.items() if not names or one.task in names or one.domain in names}


def compare(first: Mapping[Instance, Played], second: Mapping[Instance, Played]) -> Comparison:
    """The second policy against the first. Raises ValueError where they have no instance in common."""
    common = sorted(first.keys() & second.keys(), key=lambda key: (first[key].domain, first[key].task, key))
    domains = list(dict.fromkeys(first[key].domain for key in common))
    tasks = list(dict.fromkeys((first[key].domain, first[key].task) for key in common))
    return Comparison(
        total=_part("all tasks", "", common, first, second),
        domains=tuple(_part(name, name, [key for key in common if first[key].domain == name], first, second) for name in domains),
        tasks=tuple(
            _part(task, domain, [key for key in common if (first[key].domain, first[key].task) == (domain, task)], first, second)
            for domain, task in tasks
        ),
        partings=tuple(_parting(key, first[key], second[key]) for key in common if first[key].solved != second[key].solved),
        num_first_only=len(first.keys() - second.keys()),
        num_second_only=len(second.keys() - first.keys()),
    )


def _part(name: str, domain: str, keys: Sequence[Instance], first: Mapping[Instance, Played], second: Mapping[Instance, Played]) -> Part:
    def outcomes(of: Mapping[Instance, Played]) -> dict[tuple[str, object], bool]:
        return {(key[0], key[1]): of[key].solved for key in keys}

    def rate(of: Mapping[Instance, Played]) -> float:
        by_task: dict[str, list[bool]] = {}
        for key in keys:
            by_task.setdefault(key[0], []).append(of[key].solved)
        return macro_average([TaskCount(task=task, num_success=sum(all_), num_episodes=len(all_)) for task, all_ in by_task.items()]).mean

    return Part(name=name, domain=domain, first=rate(first), second=rate(second), paired=compare_paired(outcomes(second), outcomes(first)))


def _parting(key: Instance, first: Played, second: Played) -> Parting:
    return Parting(
        task=first.task,
        domain=first.domain,
        seed=key[1],
        second_solves=second.solved,
        first_episode=first.episode_id,
        second_episode=second.episode_id,
    )
