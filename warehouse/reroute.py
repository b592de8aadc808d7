"""Routing history again under other rules: new versions of `routes`, `ct_samples` and `sft_samples`, from the verdicts that are stored.

The old versions stay readable, and datasets that were made stay what they are: only those made afterwards see it. A sample that leaves D_CT
or D_SFT stays as a withdrawn row, so that lineage still leads from a dataset to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from warehouse.errors import ConfigError
from warehouse.query import connect
from warehouse.routing import RoutingConfig, reason_label, route
from warehouse.salvage import SalvageConfig
from warehouse.samples import samples_from_routes
from warehouse.tables import Warehouse

STAGE = "routing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An episode that the rules send elsewhere than before."""

    episode_id: str
    iteration: str
    before: str
    after: str
    reason: str


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
        return Counter((move.before, move.after, reason_label(move.reason)) for move in self.moves)


def routed_iterations(warehouse: Warehouse) -> list[str]:
    return sorted(set(warehouse.read("routes", columns=["iteration"])["iteration"].to_pylist()))


def reroute(
    warehouse: Warehouse, config: RoutingConfig, iterations: Sequence[str], salvage: SalvageConfig | None = None, *, dry_run: bool = False
) -> list[Rerouted]:
    """Route the episodes of `iterations` again. Run a second time it changes nothing. Nothing else may route meanwhile: hold the lock of
    the iteration. Raises ConfigError for an iteration that was never routed."""
    known = routed_iterations(warehouse)
    for iteration in iterations:
        if iteration not in known:
            raise ConfigError(f"iteration {iteration} was never routed: the routed ones are {', '.join(known) or 'none'}")
    return [_reroute(warehouse, config, iteration, salvage, dry_run) for iteration in iterations]


def _reroute(warehouse: Warehouse, config: RoutingConfig, iteration: str, salvage: SalvageConfig | None, dry_run: bool) -> Rerouted:
    with connect(warehouse) as con:
        routes = route(con, config, iteration=iteration)
    stored = warehouse.read("routes", iteration=iteration, stage=STAGE).select(routes.column_names).sort_by("episode_id")
    before = dict(zip(stored["episode_id"].to_pylist(), stored["route"].to_pylist(), strict=True))
    moves = tuple(
        Move(episode_id=row["episode_id"], iteration=iteration, before=before.get(row["episode_id"], "unrouted"), after=row["route"],
             reason=row["reason"])
        for row in routes.to_pylist() if before.get(row["episode_id"]) != row["route"]
    )  # fmt: skip
    if dry_run:
        return Rerouted(iteration=iteration, num_episodes=routes.num_rows, moves=moves)
    versions: dict[str, int] = {}
    if routes.cast(stored.schema) != stored:
        versions["routes"] = warehouse.replace_partition("routes", routes, iteration=iteration, stage=STAGE)
    samples: dict[str, tuple[int, int]] = {}
    with connect(warehouse) as con:
        wanted = samples_from_routes(con, iteration, salvage=salvage)
    for table, rows in wanted.items():
        version, samples[table] = _store(warehouse, table, rows, iteration)
        if version is not None:
            versions[table] = version
    return Rerouted(iteration=iteration, num_episodes=routes.num_rows, moves=moves, versions=versions, samples=samples)


def _store(warehouse: Warehouse, table: str, rows: list[dict[str, Any]], iteration: str) -> tuple[int | None, tuple[int, int]]:
    """Write an iteration's samples where they differ from the stored ones; what is no longer among them stays, withdrawn."""
    stored: pa.Table = warehouse.read(table, iteration=iteration, stage=STAGE)
    held = {row["sample_id"]: row for row in stored.drop_columns(["iteration", "stage"]).to_pylist()}
    wanted = {row["sample_id"] for row in rows}
    standing = {id_ for id_, row in held.items() if not row["withdrawn"]}
    if standing == wanted:
        return None, (0, 0)
    left = [row | {"withdrawn": True} for id_, row in held.items() if id_ not in wanted]
    version = warehouse.replace_partition(table, [*rows, *left], iteration=iteration, stage=STAGE)
    return version, (len(wanted - standing), len(standing - wanted))
