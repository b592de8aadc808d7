"""Recordings of people's own work, taken in from the annotation server's database: what was approved since the iteration before, in the
person's own words and, where a model is configured, in its words too. What is taken back again is people.py's.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Self

import dagster as dg

from agent.episode_rows import screenshot_row
from annotation.config import WordingConfig
from annotation.recording.samples import VARIATION
from annotation.service import intake
from annotation.service.wording import Wording
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from assets import people
from assets.metadata import data_version, describe
from assets.partitions import ITERATIONS
from assets.people import GROUP, RECORDED_STAGE, Row
from assets.profile import Profile
from assets.resources import ProfileResource, WarehouseResource
from warehouse.errors import FlywheelError
from warehouse.home import Home
from warehouse.tables import Warehouse

RECORDED_TABLES = ("tasks", "steps", "episodes", "ct_samples")
"""In the order in which they are written: nothing names what is not there yet."""
PICTURE_BYTES = 32 * 1024 * 1024
"""Of a recording's pictures so many are in memory at once."""
OWN_WORDS_ALONE = "Its recordings are learned in their own words alone; materialize `recordings` of this iteration again to add others."


@dg.asset(
    partitions_def=ITERATIONS,
    group_name=GROUP,
    deps=["tasks"],
    kinds={"deltalake"},
    description="People's own work, recorded thinking aloud: what was approved since the iteration before joins D_CT.",
)
def recordings(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, warehouse, iteration = profile.load(), tables.warehouse, context.partition_key
    database = people.database_of(tables.home, settings.people)
    if database is None:
        return people.nothing_to_take(warehouse, iteration, RECORDED_STAGE, RECORDED_TABLES)
    try:
        standing = intake.standing_recordings(database)
        taken = set(people.episodes_taken(warehouse, RECORDED_STAGE, but=iteration).values())
        new = [recording_id for attempt, recording_id in standing.counting.items() if attempt not in taken]
        made, counts, problems, note = _recorded(tables.home, warehouse, database, settings, new, iteration)
    finally:
        database.close()
    wrote = people.store_rows(warehouse, iteration, RECORDED_STAGE, made)
    for why in problems:
        context.log.warning(why)
    return dg.MaterializeResult(
        data_version=data_version(sorted(row["sample_id"] for row in made["ct_samples"])),
        metadata=note | describe(counts=counts, wrote=wrote),
    )


def _recorded(
    home: Home, warehouse: Warehouse, database: Database, settings: Profile, new: Sequence[str], iteration: str
) -> tuple[dict[str, list[Row]], dict[str, int], list[str], dict[str, str]]:
    """Rows of recordings by table, what to count, what went wrong, and a note where the model that adds other words was away."""
    made: dict[str, list[Row]] = {table: [] for table in RECORDED_TABLES}
    left_out: Counter[str] = Counter()
    problems = []
    asked = settings.people.wording if new else WordingConfig()
    builder, store = settings.agent.builder(), PartStore.of_home(home)
    with ExitStack() as stack:
        wording = stack.enter_context(closing(Wording(asked))) if asked.base_url is not None else None
        pictures = stack.enter_context(_Pictures(warehouse, iteration, RECORDED_STAGE))
        for recording_id in new:
            try:
                found = intake.take_recording(database, store, recording_id, builder, pictures.keep, wording)
            except (FlywheelError, ValueError) as error:
                problems.append(f"recording {recording_id} is not taken in: {error}")
                continue
            people.add_episodes(warehouse, made, [found.episode], iteration, RECORDED_STAGE)
            made["ct_samples"] += found.samples + found.variations
            left_out.update(found.left_out)
    people.add_tasks(warehouse, made, iteration, RECORDED_STAGE)
    made["ct_samples"] = list({row["sample_id"]: row for row in made["ct_samples"]}.values())
    counts = {"recordings": len(new) - len(problems), "samples": len(made["ct_samples"]), "unreadable": len(problems)}
    note: dict[str, str] = {}
    if wording is not None:
        counts["samples in other words"] = sum(row["origin"] == VARIATION for row in made["ct_samples"])
        counts["asked of the model"] = wording.num_asked
        if wording.failure is not None:
            note["note"] = f"{wording.failure} {OWN_WORDS_ALONE}"
            problems.append(note["note"])
    return made, counts | {f"left out/{reason}": num for reason, num in sorted(left_out.items())}, problems, note


class _Pictures:
    """Puts pictures into the table `screenshots`, some at a time: a recording may have more of them than there is memory. Those that are
    left go there when the block ends."""

    def __init__(self, warehouse: Warehouse, iteration: str, stage: str) -> None:
        self._warehouse, self._iteration, self._stage = warehouse, iteration, stage
        self._rows: list[Row] = []
        self._num_bytes = 0

    def keep(self, screenshot_id: str, png: bytes) -> None:
        self._rows.append(screenshot_row(screenshot_id, png))
        self._num_bytes += len(png)
        if self._num_bytes >= PICTURE_BYTES:
            self._store()

    def _store(self) -> None:
        rows, self._rows, self._num_bytes = self._rows, [], 0
        self._warehouse.add_screenshots(rows, iteration=self._iteration, stage=self._stage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store()
