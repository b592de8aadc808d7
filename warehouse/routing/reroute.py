"""Routing history again under other rules: new versions of `routes`, `ct_samples` and `sft_samples`, from the verdicts that are stored.

The old versions stay readable, and datasets that were made stay what they are: only those made afterwards see it. What becomes of samples
that leave D_CT or D_SFT is warehouse/routing/routed_samples.py's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypedDict

from warehouse.core.errors import ConfigError
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.hindsight import ReadElements
from warehouse.routing.routed_samples import STAGE, Stored, follow_routes, store_routed_samples
from warehouse.routing.routes import DEFAULT_RULES, RoutingConfig, cause_label, route
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An episode that the rules send elsewhere than before."""

    episode_id: str
    iteration: str
    before: str
    after: str
    reason: str
    label: str
    """The judge or cause that now decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerouted:
    """What one iteration's routing became; `versions` are the tables' new ones, none where nothing was written."""

    iteration: str
    num_episodes: int
    moves: tuple[Move, ...]
    versions: dict[str, int] = field(default_factory=dict)
    samples: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each table of samples how many joined and how many left."""

    @property
    def counts(self) -> Counter[tuple[str, str, str]]:
        """Moves by (from, to, judge or cause that now decides)."""
        return Counter((move.before, move.after, move.label) for move in self.moves)


class _Written(TypedDict):
    versions: dict[str, int]
    samples: dict[str, tuple[int, int]]


def routed_iterations(warehouse: Warehouse) -> list[str]:
    return sorted(set(warehouse.read("routes", columns=["iteration"])["iteration"].to_pylist()))


def _check_judges(warehouse: Warehouse, config: RoutingConfig) -> None:
    """A mistyped judge would look like a rule that moves nothing."""
    spoken = set(warehouse.read("verdicts", columns=["judge"])["judge"].to_pylist()) | set(DEFAULT_RULES)
    for judge in sorted(set(config.rules) - spoken):
        hint = "".join(f"is {meant} meant? " for meant in get_close_matches(judge, spoken, n=1))
        raise ConfigError(f"no judge is called {judge!r}; {hint}there are {', '.join(sorted(spoken))}")


def reroute(
    warehouse: Warehouse,
    config: RoutingConfig,
    iterations: Sequence[str],
    mining: FailureMiningConfig | None = None,
    *,
    read_elements: ReadElements | None = None,
    dry_run: bool = False,
) -> list[Rerouted]:
    """Route the episodes of `iterations` again, and make what later iterations have learned from pairs with these again. Run a second time
    it changes nothing. Nothing else may route meanwhile: hold the lock of the iteration. Returns these iterations, then the later ones
    whose samples have changed. `read_elements` as in samples.sample_parts. Raises ConfigError for an iteration that was never routed and
    for a rule of nobody who ever judged."""
    known = routed_iterations(warehouse)
    for iteration in iterations:
        if iteration not in known:
            raise ConfigError(f"iteration {iteration} was never routed: the routed ones are {', '.join(known) or 'none'}")
    _check_judges(warehouse, config)
    wanted, settings = sorted(set(iterations)), mining or FailureMiningConfig()
    results = [_reroute(warehouse, config, iteration, settings, read_elements, dry_run) for iteration in wanted]
    if not dry_run and wanted:
        results += _followed(warehouse, [iteration for iteration in known if iteration > wanted[0] and iteration not in wanted], settings)
    return results


def _reroute(
    warehouse: Warehouse,
    config: RoutingConfig,
    iteration: str,
    mining: FailureMiningConfig,
    read_elements: ReadElements | None,
    dry_run: bool,
) -> Rerouted:
    with connect(warehouse) as con:
        routes = route(con, config, iteration=iteration)
    stored = warehouse.read("routes", iteration=iteration, stage=STAGE).select(routes.column_names).sort_by("episode_id")
    before = dict(zip(stored["episode_id"].to_pylist(), stored["route"].to_pylist(), strict=True))
    moves = tuple(
        Move(
            episode_id=row["episode_id"],
            iteration=iteration,
            before=before.get(row["episode_id"], "unrouted"),
            after=row["route"],
            reason=row["reason"],
            label=cause_label(row["cause"], row["withheld_by"], row["demoted_by"]),
        )
        for row in routes.to_pylist()
        if before.get(row["episode_id"]) != row["route"]
    )
    if dry_run:
        return Rerouted(iteration=iteration, num_episodes=routes.num_rows, moves=moves)
    versions: dict[str, int] = {}
    if routes.cast(stored.schema) != stored:
        versions["routes"] = warehouse.replace_partition("routes", routes, iteration=iteration, stage=STAGE)
    return Rerouted(
        iteration=iteration,
        num_episodes=routes.num_rows,
        moves=moves,
        **_written(store_routed_samples(warehouse, iteration, mining, read_elements=read_elements), versions),
    )


def _followed(warehouse: Warehouse, iterations: Sequence[str], mining: FailureMiningConfig) -> list[Rerouted]:
    """Of later iterations, whose own routes stay, those whose corrections and reflections have changed."""
    results = []
    for iteration in iterations:
        stored = follow_routes(warehouse, iteration, mining)
        if stored is not None and stored.is_written:
            results.append(Rerouted(iteration=iteration, num_episodes=0, moves=(), **_written({"sft_samples": stored}, {})))
    return results


def _written(stored: Mapping[str, Stored], versions: Mapping[str, int]) -> _Written:
    return {
        "versions": {**versions, **{table: each.version for table, each in stored.items() if each.is_written}},
        "samples": {table: (each.num_joined, each.num_left) for table, each in stored.items()},
    }
