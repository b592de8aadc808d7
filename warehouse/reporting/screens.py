"""Stored pictures: whether one is what its id says, and samples of a stage's episodes as one picture, for people who want to see what was
collected. Charts are charts.py's."""

from __future__ import annotations

import re

import duckdb

from warehouse.core.errors import CorruptTable
from warehouse.core.identity import bytes_id
from warehouse.reporting.svg import Drawing

NUM_SHOWN = 6
_CHOSEN = """
with chosen as (
    select e.task_name, e.outcome, s.screenshot_id
    from episodes e join steps s using (episode_id, iteration, stage)
    where e.iteration = $iteration and e.stage = $stage and s.screenshot_id is not null
    qualify row_number() over (partition by e.task_name order by e.episode_id, s.step_index desc) = 1
    order by hash(e.task_name) limit $num
)
select task_name, outcome, data, format, width_px, height_px from chosen join screenshots using (screenshot_id) order by task_name
"""
_ID = re.compile(r"screen-[0-9a-f]{16}")
_HEIGHT, _GAP, _CAPTION = 210.0, 14.0, 34.0


def is_what_its_id_says(screenshot_id: str, data: bytes) -> bool:
    """Whether a picture's bytes are those that its id was made of; true for an id that was not made of bytes."""
    return _ID.fullmatch(screenshot_id) is None or bytes_id("screen", data) == screenshot_id


def check_screenshot(screenshot_id: str, data: bytes) -> None:
    """Raises CorruptTable for a picture that is not what its id says."""
    if not is_what_its_id_says(screenshot_id, data):
        raise CorruptTable(
            f"table screenshots: picture {screenshot_id} is not what its id says. To fix it: restore tables/screenshots from a backup"
        )


def sample_screens(con: duckdb.DuckDBPyConnection, iteration: str, stage: str) -> str | None:
    """The screen before the last action of an episode of each of a few tasks, as SVG; None where the stage kept no screenshot."""
    rows = con.execute(_CHOSEN, {"iteration": iteration, "stage": stage, "num": NUM_SHOWN}).fetchall()
    if not rows:
        return None
    widths = [_HEIGHT * width_px / height_px for *_, width_px, height_px in rows]
    drawing = Drawing(
        sum(widths) + _GAP * (len(rows) + 1), _HEIGHT + _CAPTION + 2 * _GAP, f"Sample screens of {stage}, iteration {iteration}"
    )
    x = _GAP
    for (task, outcome, data, form, *_), width in zip(rows, widths, strict=True):
        drawing.image(x, _GAP, width, _HEIGHT, data, form)
        drawing.text(x, _GAP + _HEIGHT + 16, task, "small strong")
        drawing.text(x, _GAP + _HEIGHT + 30, outcome, "small muted")
        x += width + _GAP
    return drawing.render()
