"""The catalogue holds together, and the page made from it is the one in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from warehouse.storage.catalogue import TABLES, Table
from warehouse.storage.docs_page import tables_page

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_each_table_is_described_soundly(table: Table) -> None:
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert set(table.key) <= set(names)
    assert table.meaning and table.writer
    for column in table.columns:
        assert column.meaning, column.name
        assert column.name not in table.key or not column.nullable, column.name
        if column.references is not None:
            target, _, name = column.references.partition(".")
            assert name in TABLES[target].key or (target, name) == ("checkpoints", "checkpoint_id"), column.references


def test_the_page_in_the_repository_is_made_from_the_catalogue() -> None:
    assert PAGE.read_text() == tables_page(), "run `python -m warehouse.storage.docs_page > docs/tables.md`"
