"""Recordings of people's own work, taken in from the annotation server's database: what was approved since the iteration before, in the
person's own words and, where a model is configured, in its words too. What is taken back again is people.py's.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Self

import dagster as dg

from agent.episode.rows import screenshot_row
from annotation.config import WordingConfig
from annotation.recordings.samples import VARIATION, attempt_of
from annotation.service.intake import intake
from annotation.service.intake.wording import Wording
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from assets import people
from assets.people import GROUP, RECORDED_STAGE, Row
from assets.settings.profile import Profile
from assets.stages.metadata import data_version, describe
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.stages.stage_assets import stage_asset
from warehouse.core.errors import FlywheelError, NotNow
from warehouse.core.home import Home
from warehouse.datasets.provenance import RECORDINGS, UNKNOWN, Source, add_sources
from warehouse.storage.content import content_digest
from warehouse.storage.tables import Warehouse

RECORDED_TABLES = ("tasks", "steps", "episodes", "ct_samples")
"""In the order in which they are written: nothing names what is not there yet."""
PICTURE_BYTES = 32 * 1024 * 1024
"""Of a recording's pictures so many are in memory at once."""
CONSENTED = "by consent: to train and to evaluate programs that operate computers"
OWN_WORDS_ALONE = "Its recordings are learned in their own words alone; materialize `recordings` of this iteration again to add others."


@stage_asset(
    table="ct_samples",
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
        by_status = intake.recordings_by_status(database)
        taken = set(people.episodes_taken(warehouse, RECORDED_STAGE, but=iteration).values())
        new = [recording_id for attempt, recording_id in by_status.counting.items() if attempt not in taken]
        made, counts, problems, note, barred = _recorded(tables.home, warehouse, database, settings, new, iteration)
    finally:
        database.close()
    counts["kept as they were"] = people.keep_others(warehouse, made, iteration, RECORDED_STAGE, but=barred)
    wrote = people.store_rows(warehouse, iteration, RECORDED_STAGE, made)
    wrote["sources"] = add_sources(warehouse, [_terms(settings)], iteration=iteration, stage=RECORDED_STAGE)
    for why in problems:
        context.log.warning(why)
    return dg.MaterializeResult(
        data_version=data_version(content_digest(warehouse, RECORDED_TABLES, iteration=iteration, stage=RECORDED_STAGE)),
        metadata=note | describe(counts=counts, wrote=wrote),
    )


def _recorded(
    home: Home, warehouse: Warehouse, database: Database, settings: Profile, new: Sequence[str], iteration: str
) -> tuple[dict[str, list[Row]], dict[str, int], list[str], dict[str, str], set[int]]:
    """Rows of recordings by table, what to count, what went wrong, a note where the model that adds other words was away, and the attempts
    of recordings that may not be learned from, whatever was before."""
    made: dict[str, list[Row]] = {table: [] for table in RECORDED_TABLES}
    left_out: Counter[str] = Counter()
    problems, barred = [], set[int]()
    asked = settings.people.wording if new else WordingConfig()
    builder, store = settings.agent.builder(), PartStore.of_home(home)
    with ExitStack() as stack:
        wording = stack.enter_context(closing(Wording(asked))) if asked.base_url is not None else None
        pictures = stack.enter_context(_Pictures(warehouse, iteration, RECORDED_STAGE))
        for recording_id in new:
            try:
                found = intake.take_recording(database, store, recording_id, builder, pictures.keep, wording)
            except (FlywheelError, ValueError) as error:
                pictures.drop()
                problems.append(f"recording {recording_id} is not taken in: {error}")
                if isinstance(error, NotNow):
                    barred.add(attempt_of(recording_id))
                continue
            pictures.take()
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
    return made, counts | {f"left out/{reason}": num for reason, num in sorted(left_out.items())}, problems, note, barred


def _terms(settings: Profile) -> Source:
    """Under which terms people give recordings: those of all annotators, or what the text of the consent says."""
    terms = people.terms_of(settings.people)
    if terms.licence == UNKNOWN:
        terms = replace(terms, licence=CONSENTED, stated_by="the consent that each recording was signed under")
    return replace(terms, source=RECORDINGS, origin="recordings of people's own work")


class _Pictures:
    """Puts pictures into the table `screenshots`, a recording's when all of it was read: of one that is not taken in no step would name
    them, and nothing could erase them. Until then they lie aside on the disk, since a recording may have more of them than there is memory.
    Those that are left go into the table when the block ends, unless it fails."""

    def __init__(self, warehouse: Warehouse, iteration: str, stage: str) -> None:
        self._warehouse, self._iteration, self._stage = warehouse, iteration, stage
        self._aside = tempfile.TemporaryFile(dir=warehouse.home.scratch)  # noqa: SIM115 (closed with the block)
        self._waiting: list[tuple[str, int]] = []
        """Id and length of what lies aside, in its order."""
        self._rows: list[Row] = []
        self._num_bytes = 0

    def keep(self, screenshot_id: str, png: bytes) -> None:
        """One of the recording that is being read."""
        self._aside.write(png)
        self._waiting.append((screenshot_id, len(png)))

    def take(self) -> None:
        """That recording was read to its end."""
        self._aside.seek(0)
        for screenshot_id, num_bytes in self._waiting:
            self._rows.append(screenshot_row(screenshot_id, self._aside.read(num_bytes)))
            self._num_bytes += num_bytes
            if self._num_bytes >= PICTURE_BYTES:
                self._store()
        self.drop()

    def drop(self) -> None:
        """It could not be read."""
        self._aside.seek(0)
        self._aside.truncate()
        self._waiting.clear()

    def _store(self) -> None:
        rows, self._rows, self._num_bytes = self._rows, [], 0
        self._warehouse.add_screenshots(rows, iteration=self._iteration, stage=self._stage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        with self._aside:
            if failed is None:
                self._store()
