"""Pictures that rows show and the table of pictures has no more: what is left of a stage whose pictures were lost apart from its rows."""

from __future__ import annotations

from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

_LOST = """
with shown as (
    select iteration, stage, screenshot_id from steps
    union all
    select iteration, stage, unnest(messages).screenshot_id from (from ct_samples union all from sft_samples)
    where episode_id is null and not withdrawn
)
select iteration, stage, count(distinct screenshot_id) from shown anti join screenshots using (screenshot_id)
where screenshot_id is not null group by all order by all
"""
"""A sample of an episode shows what its steps do, and is made again with them."""


def lost_screenshots(warehouse: Warehouse) -> dict[tuple[str, str], int]:
    """How many pictures the rows of each (iteration, stage) show that are not stored; stages that lack none are left out."""
    with connect(warehouse, tables=("steps", "screenshots", "ct_samples", "sft_samples")) as con:
        return {(iteration, stage): num for iteration, stage, num in con.execute(_LOST).fetchall()}
