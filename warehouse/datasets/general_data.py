"""General chat and reasoning data in D_CT: keeps a policy from forgetting everything but interfaces. How a file of them is read is
pipelines/importing/general.py's.

They are samples of origin `general`, which CT and SFT draw from as they do from tutorials; how much of an epoch they make is the mixture's
business (warehouse/datasets/mixing.py), which also leaves out those that give away an instance that is evaluated on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from warehouse.core.errors import ConfigError
from warehouse.core.stages import SEED_ITERATION
from warehouse.routing.samples import GENERAL, chat_row
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


class GeneralData:
    """The general data of one name, which `commit` puts in place of what was stored under it before."""

    def __init__(self, warehouse: Warehouse, name: str) -> None:
        """Raises ConfigError for a name that cannot be one."""
        self._warehouse, self._stage = warehouse, stage_of(name)
        self._seen = _imported(warehouse, except_stage=self._stage)
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> bool:
        """Whether it is kept: a conversation that is there already, under any name, is not (letter case and white space do not count)."""
        key = _normalised(row["messages"])
        if key in self._seen:
            return False
        self._seen.add(key)
        self._rows.append(row)
        return True

    def commit(self) -> None:
        """General data are there before the first iteration, whenever they are imported."""
        self._warehouse.replace_partition("ct_samples", self._rows, iteration=SEED_ITERATION, stage=self._stage)


def stage_of(name: str) -> str:
    """Raises ConfigError for a name that cannot be one."""
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ConfigError(f"{name!r} cannot name general data: use lower-case letters, digits and _")
    return f"{GENERAL}_{name}"


def general_row(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of `ct_samples` of one conversation, whose messages have their own loss weights."""
    return chat_row("ct", origin=GENERAL, domain=GENERAL, messages=messages)


def _imported(warehouse: Warehouse, *, except_stage: str) -> set[str]:
    query = f"select messages from ct_samples where origin = '{GENERAL}' and stage <> $stage"
    with connect(warehouse, tables=["ct_samples"]) as con:
        rows = con.sql(query, params={"stage": except_stage}).to_arrow_table().to_pylist()
    return {_normalised(row["messages"]) for row in rows}


def _normalised(messages: Sequence[Any]) -> str:
    return "\n".join(f"{message['role']}: {' '.join(message['content'].casefold().split())}" for message in messages)
