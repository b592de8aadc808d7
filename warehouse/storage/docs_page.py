"""The documentation of the tables, made from the catalogue: `python -m warehouse.storage.docs_page > docs/tables.md`."""

from __future__ import annotations

import sys

import pyarrow as pa

from warehouse.storage.catalogue import MESSAGES, TABLES, Column, Table

_INTRODUCTION = """# Tables

Made from `warehouse/storage/catalogue.py` by `python -m warehouse.storage.docs_page`: change the catalogue, not this page.

Every table is a Delta table under `FLYWHEEL_HOME/tables`, a view of its name in `flywheel sql`, and, where one writes it, an asset of
its name. A table is partitioned by `iteration` and `stage`, and a stage that runs again replaces its partition in one commit;
`screenshots` alone is keyed by content and only added to. Keys are unique inside a partition. `?` after a type means that the value may
be null.

The rows that a notebook reads (`fw.open().table(NAME)`) come by iteration, then by stage, and of one stage as they were written.
`flywheel sql` gives them in an order only where the query has an `order by`: order by the key to get the same answer every time.

`flywheel sql` has four more: the view `lineage` (child_kind, child_id, parent_kind, parent_id, relation), the view `lineage_nodes`
(kind, id, iteration, stage, label), and the table functions `ancestors('ID')` and `descendants('ID')` (kind, id).
"""

_TYPE_NAMES = {
    pa.string(): "text",
    pa.int64(): "integer",
    pa.float64(): "number",
    pa.float32(): "number",
    pa.bool_(): "yes/no",
    pa.binary(): "bytes",
}


def tables_page() -> str:
    """The whole page, as Markdown."""
    contents = "\n".join(f"- [`{table.name}`](#{table.name}): {table.meaning}" for table in TABLES.values())
    return "\n".join([_INTRODUCTION, contents, "", *(_section(table) for table in TABLES.values())])


def _section(table: Table) -> str:
    rows = "\n".join(f"| `{column.name}` | {_type(column)} | {_meaning(column)} |" for column in table.columns)
    key = ", ".join(f"`{name}`" for name in table.key)
    return f"""\
## {table.name}

{table.meaning} Written by: {table.writer}. Key: {key}.

| column | type | meaning |
|---|---|---|
{rows}
"""


def _type(column: Column) -> str:
    return f"{_type_name(column.type)}{'?' if column.nullable else ''}"


def _type_name(type_: pa.DataType) -> str:
    if type_ == MESSAGES:
        return "messages"
    if pa.types.is_list(type_):
        return f"list of {_type_name(type_.value_type)}"
    return _TYPE_NAMES[type_]


def _meaning(column: Column) -> str:
    parts = [column.meaning]
    if column.values is not None:
        parts.append("one of " + ", ".join(f"`{value}`" for value in column.values))
    if column.minimum is not None and column.maximum is not None:
        parts.append(f"{column.minimum:g} to {column.maximum:g}")
    elif column.minimum is not None:
        parts.append(f"at least {column.minimum:g}")
    elif column.maximum is not None:
        parts.append(f"at most {column.maximum:g}")
    if column.references is not None:
        parts.append(f"names `{column.references}`")
    if column.type == MESSAGES:
        parts.append("each with `role`, `content`, `screenshot_id?` and `loss`, the weight of its tokens in the loss")
    return "; ".join(parts).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(tables_page())
