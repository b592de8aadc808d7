"""Which imported rows no gate has looked at yet: what people bring in joins iteration 0000 at any time, after the seed's own rows were
checked. What of it is checked, and when, is assets/gates/checks.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow.compute as pc

from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.catalogue import TABLES, WITHDRAWN_STAGE
from warehouse.storage.tables import Warehouse

IMPORT_TABLES = ("tasks", "episodes", "steps", "screenshots", "verdicts", "sft_samples", "ct_samples")


def unchecked_imports(
    warehouse: Warehouse, iteration: str, *, seeded: Collection[str], snapshots: Sequence[str]
) -> Iterator[tuple[str, str | None]]:
    """(table, stage) of iteration 0000 that was written since an iteration before this one made its `snapshots`, which its gate looked at
    after. `seeded`: stages that the seed writes, which has a gate of its own. Screenshots have no stages: None stands for all of them."""
    since_ms = _made_ms(warehouse, iteration, snapshots)
    for table in IMPORT_TABLES:
        written = {
            commit.stage
            for commit in warehouse.history(table)
            if commit.timestamp_ms >= since_ms and (commit.stage is None or commit.iteration in (None, SEED_ITERATION))
        }
        if not TABLES[table].partitioned:
            yield from [(table, None)] if written - {None, *seeded} else []
            continue
        if not written:
            continue
        stages = pc.unique(warehouse.read(table, iteration=SEED_ITERATION, columns=("stage",)).column("stage")).to_pylist()
        # A commit that names no stage has put back an older version or purged: it may have changed any.
        yield from ((table, stage) for stage in sorted({*stages} - {WITHDRAWN_STAGE, *seeded}) if stage in written or None in written)


def _made_ms(warehouse: Warehouse, iteration: str, snapshots: Sequence[str]) -> int:
    """When earlier iterations had last made each of the snapshots; 0 where one was never made."""
    made = dict.fromkeys(snapshots, 0)
    for commit in warehouse.history("datasets"):
        if commit.stage in made and commit.iteration is not None and commit.iteration < iteration:
            made[commit.stage] = max(made[commit.stage], commit.timestamp_ms)
    return min(made.values())
