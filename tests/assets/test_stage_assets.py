"""What an asset says of its table on Dagster's page."""

from __future__ import annotations

from assets.stages.stage_assets import table_schema
from warehouse.storage.catalogue import TABLES


def test_a_column_says_what_it_means_and_what_it_was_made_from() -> None:
    meanings = {column.name: column.meaning for column in TABLES["routes"].columns}
    assert {column.name: column.description for column in table_schema("routes").columns} == meanings
    made = {column.name: column.description for column in table_schema("routes", {"decided_by": ["verdicts.judge", "a/b.c"]}).columns}
    assert made == {**meanings, "decided_by": f"{meanings['decided_by']}. Made from verdicts.judge, a/b.c"}
