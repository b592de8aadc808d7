"""What a choice may read: the warehouse without what is only reported. Merge weights, releases, thresholds and tasks are chosen through
this and nothing else, so no reported figure was chosen by. What is chosen, and how, is the stage's business.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

import duckdb

from warehouse.core.errors import ReportedOnly
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

CHOICE_SPLITS = ("train", "eval")
"""Every other split is only reported."""


def connect_to_choose(warehouse: Warehouse) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """As `connect`, and no view has a row of a split that is only reported, or of an episode on one."""
    return connect(warehouse, splits=CHOICE_SPLITS)


def outcomes_to_choose(warehouse: Warehouse, checkpoint_id: str) -> dict[tuple[str, object], bool]:
    """(task, seed) → solved: how a checkpoint did on the instances that releases are chosen by. Crashed episodes have no outcome.
    Of an instance that it was asked more than once the newest iteration counts, and in it the last attempt, whatever the order of rows."""
    with connect_to_choose(warehouse) as con:
        rows = con.execute(
            "select task_id, seed, outcome = 'success' from episodes "
            "where purpose = 'evaluation' and policy_id = ? and outcome <> 'crashed' order by iteration, attempt, stage, episode_id",
            [checkpoint_id],
        ).fetchall()
    return {(str(task_id), seed): bool(solved) for task_id, seed, solved in rows}


def require_choosable(splits: Collection[str], what: str) -> None:
    """Raises ReportedOnly where one of these splits may not be chosen by; `what` would read it."""
    if others := sorted(set(splits) - set(CHOICE_SPLITS)):
        raise ReportedOnly(
            f"{what} would read the split {', '.join(others)}, which is only reported: choose by {' and '.join(CHOICE_SPLITS)} only"
        )
