"""One in HELD_OUT general conversations and manual passages is in no dataset: the loss on these shows what training on interfaces costs of
everything else. Which they are depends on their content alone, so they are the same in every iteration and every home.
"""

from __future__ import annotations

from typing import Any

from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

HELD_OUT = 20
MOST_MEASURED = 200
IS_HELD_OUT = f"(s.origin in ('general', 'manual') and md5_number_lower(s.sample_id) % {HELD_OUT} = 0)"
"""SQL of a row `s` of samples."""


def held_out_texts(warehouse: Warehouse, most: int = MOST_MEASURED) -> list[list[dict[str, Any]]]:
    """The messages of each, at most so many; which, if there are more, depends on their content alone as well."""
    query = f"select any_value(messages) from ct_samples s where {IS_HELD_OUT} and not withdrawn group by sample_id order by md5(sample_id)"
    with connect(warehouse, tables=["ct_samples"]) as con:
        return [row[0] for row in con.execute(f"{query} limit {most}").fetchall()]
