"""Where a policy is worse than the one before it, and which training lies between the two: the instances that it lost, the very step at
which each was lost, and the stages whose datasets it has learned from and its predecessor has not. Whom that leads to is blame.py's.

Only the split that is chosen by is read (warehouse/evaluation/choosing.py): what is taken out of training is a choice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.core.errors import ConfigError, UnknownId
from warehouse.core.stages import is_rl, rank
from warehouse.evaluation.comparing import Comparison, Parting, Played, compare, only, played
from warehouse.lineage import registry
from warehouse.lineage.registry import Registered
from warehouse.lineage.release_ledger import read_ledger
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SPLIT = "eval"
NOT_ASKED_ABOUT = ("orm_model",)
"""Stages whose datasets teach something else than acting."""
ORACLE = "oracle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage that learned from a dataset: what it made, from what, and its settings as they were stored."""

    made: Registered
    parent_id: str
    dataset_id: str
    kind: str
    config: Mapping[str, Any]
    num_steps: int | None
    """Where it stopped early, the step of the weights that it kept."""

    @property
    def name(self) -> str:
        return f"{self.made.iteration}/{self.made.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered to which prompt: messages as the table `steps` has them."""

    messages: tuple[Mapping[str, Any], ...]
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An instance that the policy did not solve and another did, at the step at which the two part."""

    task: str
    domain: str
    seed: int
    solved_by: str
    step_index: int
    wanted: Answer
    given: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A policy against its predecessor. `lost` are instances that the predecessor solved; where an oracle's solutions were asked for, of
    the others those that it solved."""

    policy: Registered
    predecessor: Registered
    comparison: Comparison
    lost: tuple[Lost, ...]
    num_alike: int
    """Lost instances whose two episodes are stored without a step at which they part: nothing can be asked about them."""


def regression(
    warehouse: Warehouse, name: str, *, against: str | None = None, tasks: Collection[str] = (), with_oracle: bool = False
) -> Regression:
    """Compare a policy with the one that entered its iteration (or with `against`), on the tasks or domains named, or on all.

    Raises CheckpointError or UnknownTable for policies that are not there, ConfigError where the two are one, either has not played or
    nothing was lost.
    """
    policy = registry.named(warehouse, name)
    if against is None:
        predecessor = registry.live_or_seed(warehouse, read_ledger(warehouse).entering(policy.iteration))
    else:
        predecessor = registry.named(warehouse, against)
    if policy.checkpoint_id == predecessor.checkpoint_id:
        raise ConfigError(
            f"{name} is {policy.checkpoint_id}, the very policy that it would be compared with: name what was refused, e.g. "
            f"{policy.iteration}/merged_policy, or another predecessor with --against"
        )
    before, after = (_played(warehouse, one, name, predecessor) for one in (predecessor, policy))
    kept = only(before | after, tasks)
    before, after = ({key: one for key, one in of.items() if key in kept} for of in (before, after))
    if not before.keys() & after.keys():
        words = f" of {', '.join(tasks)}" if tasks else ""
        raise ConfigError(
            f"{said(predecessor)} and {said(policy)} have played no instance{words} of {SPLIT} in common: {_how(name, predecessor)}"
        )
    found = compare(before, after)
    partings = [(one, predecessor.checkpoint_id) for one in found.partings if not one.second_solves]
    if with_oracle:
        partings += [(one, ORACLE) for one in _solved_by_oracle(warehouse, before, after)]
    if not partings:
        part = found.total
        raise ConfigError(
            f"{said(policy)} has lost none of the {part.paired.num_pairs} instances of {SPLIT} that {said(predecessor)} solves "
            f"({100 * part.second:.1f} % against {100 * part.first:.1f} %): there is nothing to blame anything for. --oracle asks about "
            "what an oracle solved, where it has played"
        )
    steps = _steps(warehouse, {id_ for one, _ in partings for id_ in (one.first_episode, one.second_episode)})
    asked = [_lost(one, by, steps) for one, by in partings]
    lost = tuple(one for one in asked if one is not None)
    if not lost:
        raise ConfigError(
            f"none of the {len(partings)} lost instances has stored steps that part: evaluate both policies again, "
            f"{_how(name, predecessor)}"
        )
    return Regression(policy=policy, predecessor=predecessor, comparison=found, lost=lost, num_alike=len(asked) - len(lost))


def stages_between(warehouse: Warehouse, policy: Registered, predecessor: Registered) -> list[Stage]:
    """The stages that the policy descends from and its predecessor does not, and that learned from a dataset; the last one first.
    Raises UnknownId where there is none: then no sample stands between the two."""
    rows = warehouse.read("checkpoints").to_pylist()
    made: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["iteration"], rank(row["stage"]))):
        made.setdefault(row["checkpoint_id"], row)
    between = _ancestors(made, policy.checkpoint_id) - _ancestors(made, predecessor.checkpoint_id)
    kinds = _kinds(warehouse, {id_ for one in between for id_ in made[one]["datasets"]})
    found = [
        Stage(
            made=registry.find(warehouse, id_),
            parent_id=made[id_]["parents"][0],
            dataset_id=made[id_]["datasets"][0],
            kind=kinds[made[id_]["datasets"][0]],
            config=json.loads(made[id_]["config"]),
            num_steps=_kept_step(made[id_]),
        )
        for id_ in between
        if _learned_samples(made[id_]["stage"]) and made[id_]["parents"] and set(made[id_]["datasets"]) & kinds.keys()
    ]
    if not found:
        learned = sorted(f"{made[id_]['iteration']}/{made[id_]['stage']}" for id_ in between if is_rl(made[id_]["stage"]))
        by = f" (it was made by {', '.join(learned)}, which learn from episodes by their rewards and not from samples)" if learned else ""
        raise UnknownId(
            f"lineage leads from {said(policy)} to no dataset that {said(predecessor)} has not learned from{by}: there is no sample to "
            f"blame. `flywheel lineage {policy.checkpoint_id}` shows what it was made from"
        )
    return sorted(found, key=lambda stage: (stage.made.iteration, rank(stage.made.stage)), reverse=True)


def _learned_samples(stage: str) -> bool:
    """Whether a stage learned to act from a dataset's samples. RL only replays some of the datasets that it names."""
    return stage not in NOT_ASKED_ABOUT and not is_rl(stage)


def said(policy: Registered) -> str:
    return f"{policy.iteration}/{policy.stage} ({policy.checkpoint_id})"


def _how(name: str, predecessor: Registered) -> str:
    return f"`flywheel compare {predecessor.checkpoint_id} {name} --split {SPLIT} --evaluate` plays and stores what is missing"


def _played(warehouse: Warehouse, policy: Registered, name: str, predecessor: Registered) -> dict[Any, Played]:
    found = played(warehouse, policy.checkpoint_id, SPLIT)
    if not found:
        raise ConfigError(f"{said(policy)} has no stored episode on {SPLIT}, so nobody knows what was lost: {_how(name, predecessor)}")
    return found


def _solved_by_oracle(warehouse: Warehouse, before: Mapping[Any, Played], after: Mapping[Any, Played]) -> Iterable[Parting]:
    """What neither policy solves and an oracle has, on the same instances, whatever it played them for."""
    with connect(warehouse, tables=["episodes"]) as con:
        rows = con.execute(
            "select task_id, seed, min(episode_id) from episodes where policy_id = ? and outcome = 'success' and split = ? group by all",
            [ORACLE, SPLIT],
        ).fetchall()
    for task_id, seed, episode_id in sorted(rows):
        key = (task_id, seed)
        if key in after and not after[key].solved and not (key in before and before[key].solved):
            one = after[key]
            yield Parting(
                task=one.task, domain=one.domain, seed=seed, second_solves=False, first_episode=episode_id, second_episode=one.episode_id
            )


def _steps(warehouse: Warehouse, episode_ids: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Steps by episode, in their order."""
    with connect(warehouse, tables=["steps"]) as con:
        relation = con.sql(
            "select episode_id, step_index, messages, response, action, observation from steps where episode_id in (select unnest($ids)) "
            "qualify row_number() over (partition by episode_id, step_index order by iteration desc, stage desc) = 1 "
            "order by episode_id, step_index",
            params={"ids": sorted(episode_ids)},
        )
        rows = relation.to_arrow_table().to_pylist()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["episode_id"], []).append(row)
    return found


def _lost(parting: Parting, solved_by: str, steps: Mapping[str, list[dict[str, Any]]]) -> Lost | None:
    """At the first step at which the two do something else."""
    for good, bad in zip(steps.get(parting.first_episode, ()), steps.get(parting.second_episode, ()), strict=False):
        if good["action"] != bad["action"] and good["response"].strip() and bad["response"].strip():
            return Lost(
                task=parting.task,
                domain=parting.domain,
                seed=parting.seed,
                solved_by=solved_by,
                step_index=good["step_index"],
                wanted=Answer(messages=tuple(good["messages"]), response=good["response"]),
                given=Answer(messages=tuple(bad["messages"]), response=bad["response"]),
            )
    return None


def _ancestors(made: Mapping[str, Mapping[str, Any]], start: str) -> set[str]:
    """A checkpoint and all that it was made from, as far as they are registered."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        id_ = waiting.pop()
        if id_ in made and id_ not in found:
            found.add(id_)
            waiting += made[id_]["parents"]
    return found


def _kept_step(row: Mapping[str, Any]) -> int | None:
    best = json.loads(row["metrics"]).get("eval_best_step")
    return int(best) if best and json.loads(row["config"]).get("early_stop_patience") is not None else None


def _kinds(warehouse: Warehouse, dataset_ids: Collection[str]) -> dict[str, str]:
    """What each dataset is of, by the stage that made it: ct or sft."""
    with connect(warehouse, tables=["datasets"]) as con:
        rows = con.execute(
            "select dataset_id, min(stage) from datasets where dataset_id in (select unnest($1)) group by dataset_id", [sorted(dataset_ids)]
        ).fetchall()
    return {id_: stage.partition("_")[0] for id_, stage in rows}
