"""The registry of checkpoints: which stage of which iteration made which weights, and where they lie. A thin reading of the table
`checkpoints`.

A stage that passes its input on (CT between cadences, a release that kept the previous policy) registers the same checkpoint id under
its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.core import stages
from warehouse.core.errors import CheckpointError
from warehouse.core.home import Home
from warehouse.core.stages import SEED_ITERATION
from warehouse.lineage.release_ledger import RELEASES, read_ledger
from warehouse.storage.remote.checkpoints import folder_of, send
from warehouse.storage.tables import Warehouse

RELEASED = "released"
"""Names the live release wherever a checkpoint is named."""
SEED = "seed_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One row of `checkpoints`."""

    checkpoint_id: str
    iteration: str
    stage: str
    home: Home
    path: str
    """Below the home's root, and in its store."""
    parents: tuple[str, ...]
    note: str

    @property
    def folder(self) -> Path:
        """Where it lies, copied from the home's store where it is not here. Raises CheckpointError."""
        return folder_of(self.home, self.path)


def register(
    warehouse: Warehouse,
    *,
    iteration: str,
    stage: str,
    checkpoint_id: str,
    folder: Path,
    parents: Sequence[str] = (),
    datasets: Sequence[str] = (),
    episode_ids: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    note: str = "",
    kind: str = "model",
) -> int:
    """Record what a stage made; returns the table version. A repeated stage replaces its row."""
    path = str(folder.relative_to(warehouse.home.root))
    send(warehouse.home, path)
    row = {
        "checkpoint_id": checkpoint_id,
        "kind": kind,
        "path": path,
        "parents": list(parents),
        "datasets": list(datasets),
        "episode_ids": None if episode_ids is None else list(episode_ids),
        "config": json.dumps(config or {}, sort_keys=True),
        "metrics": json.dumps(metrics or {}, sort_keys=True),
        "note": note,
    }
    return warehouse.replace_partition("checkpoints", [row], iteration=iteration, stage=stage)


def pass_on(warehouse: Warehouse, source: Registered, *, iteration: str, stage: str, note: str) -> int:
    """Register a stage that hands its input on unchanged, and say why."""
    return register(
        warehouse,
        iteration=iteration,
        stage=stage,
        checkpoint_id=source.checkpoint_id,
        folder=source.home.root / source.path,
        parents=source.parents,
        note=note,
    )


def made_by(warehouse: Warehouse, iteration: str, stage: str) -> Registered:
    """What a stage made. Raises CheckpointError when it has made nothing yet."""
    rows = warehouse.read("checkpoints", iteration=iteration, stage=stage).to_pylist()
    if not rows:
        table = warehouse.read("checkpoints").select(["iteration", "stage"]).to_pylist()
        there_are = ", ".join(sorted(f"{row['iteration']}/{row['stage']}" for row in table)) or "none yet"
        raise CheckpointError(f"stage {stage} of iteration {iteration} has made no checkpoint; there are {there_are}")
    return _registered(warehouse, rows[0])


def released(warehouse: Warehouse) -> Registered:
    """The live release. Raises CheckpointError before the first one."""
    live_id = read_ledger(warehouse).live_id
    if live_id is None:
        raise CheckpointError(
            f"nothing is released in {warehouse.home.root} yet: run one iteration (`flywheel run --iterations 1`), promote what is held "
            "(`flywheel release list`), or give a checkpoint's id, ITERATION/STAGE or folder instead"
        )
    return find(warehouse, live_id)


def entering(warehouse: Warehouse, iteration: str, before: str) -> Registered:
    """The policy that enters an iteration, whose predecessor is `before`: the live release, or the seed policy where nothing is live yet.
    Raises CheckpointError when the iteration before has not come to its release."""
    if before != SEED_ITERATION:
        made_by(warehouse, before, RELEASES)
    return live_or_seed(warehouse, read_ledger(warehouse).entering(iteration))


def acting(warehouse: Warehouse, iteration: str) -> Registered:
    """The policy that an iteration collects with: the live release once the iteration has come to its own, or the seed policy where nothing
    is live yet. Raises CheckpointError before."""
    made_by(warehouse, iteration, RELEASES)
    return live_or_seed(warehouse, read_ledger(warehouse).live_until(iteration))


def live_or_seed(warehouse: Warehouse, live_id: str | None) -> Registered:
    """The policy of an id; the seed policy where nothing is live yet."""
    return made_by(warehouse, SEED_ITERATION, SEED) if live_id is None else find(warehouse, live_id)


def named(warehouse: Warehouse, name: str) -> Registered:
    """A checkpoint by id, as ITERATION/STAGE, or `released` for the live release. Raises CheckpointError, UnknownTable."""
    if name == RELEASED:
        return released(warehouse)
    iteration, slash, stage = name.partition("/")
    return made_by(warehouse, iteration, stage) if slash else find(warehouse, name)


def find(warehouse: Warehouse, checkpoint_id: str) -> Registered:
    """A checkpoint by id, wherever it was made first."""
    table = warehouse.read("checkpoints")
    rows = [row for row in table.to_pylist() if row["checkpoint_id"] == checkpoint_id]
    if not rows:
        raise CheckpointError(f'no checkpoint {checkpoint_id} is registered; `flywheel sql "from checkpoints"` lists those that are')
    return _registered(warehouse, min(rows, key=lambda row: (row["iteration"], stages.rank(row["stage"]))))


def _registered(warehouse: Warehouse, row: Mapping[str, Any]) -> Registered:
    return Registered(
        checkpoint_id=row["checkpoint_id"],
        iteration=row["iteration"],
        stage=row["stage"],
        home=warehouse.home,
        path=row["path"],
        parents=tuple(row["parents"]),
        note=row["note"],
    )
