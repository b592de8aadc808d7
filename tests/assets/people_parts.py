"""The assets that take people's work in, materialized in a home; and recordings that were uploaded to it and approved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from annotation.config import WordingConfig
from annotation.recorder.review import edits
from annotation.recorder.review.upload import Bundle
from annotation.recorder.store.store import Store
from annotation.service.recordings.recordings import Recordings
from annotation.storage.blobs import Blobs
from annotation.storage.logins import Principal
from annotation.storage.parts import PartStore
from annotation.wire.review import SubmitReview
from assets.iterations.partitions import ITERATIONS
from assets.people import human_annotations, withdrawals
from assets.recordings import recordings
from assets.routing import routing, verdicts
from assets.settings.profile import PeopleSettings, Profile
from assets.stages.resources import ProfileResource, WarehouseResource
from pipelines import profiles
from tests.annotation.service.live_parts import ANN, BOB, Work
from tests.assets.instances import emptied_instance
from warehouse.core.home import Home

ITERATION, NEXT = "0001", "0002"


class Smoke(ProfileResource):
    wording: str = WordingConfig().model_dump_json()

    def load(self) -> Profile:
        people = PeopleSettings(wording=WordingConfig.model_validate_json(self.wording))
        return profiles.load("smoke").model_copy(update={"people": people})


def materialize(root: Path, iteration: str, *more: dg.AssetsDefinition) -> dg.ExecuteInProcessResult:
    """What people did in the home comes in, and is routed; then `more`."""
    return _materialize(root, iteration, [withdrawals, human_annotations, recordings, verdicts, routing, *more])


def take_recordings(root: Path, iteration: str, wording: WordingConfig | None = None) -> dg.ExecuteInProcessResult:
    """The assets for recordings alone. `wording`: what is asked of a model; nothing where it is left out."""
    return _materialize(root, iteration, [withdrawals, recordings], wording)


def take_again(root: Path, iteration: str, stage: dg.AssetsDefinition = recordings) -> dict[str, Any]:
    """One asset alone; what it tells of itself."""
    (made,) = _materialize(root, iteration, [stage]).asset_materializations_for_node(stage.key.to_python_identifier())
    return {name: value.value for name, value in made.metadata.items()}


def _materialize(
    root: Path, iteration: str, stages: Sequence[dg.AssetsDefinition], wording: WordingConfig | None = None
) -> dg.ExecuteInProcessResult:
    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), [ITERATION, NEXT])
        profile = Smoke(wording=(wording or WordingConfig()).model_dump_json())
        resources = {"tables": WarehouseResource(root=str(root)), "profile": profile}
        return dg.materialize(stages, partition_key=iteration, instance=instance, resources=resources)


def principal(user_id: str, role: str) -> Principal:
    return Principal(user_id=user_id, name=user_id, role=role, kind="program", digest="", csrf_token=None)


def work_in(root: Path) -> Work:
    """The annotation database and pictures of a home."""
    (root / "annotation").mkdir()
    made = Work(root / "annotation")
    made.blobs = Blobs.of_home(Home(root))
    return made


def upload(work: Work, home: Home, store: Store) -> tuple[Recordings, Bundle]:
    """A recording, confirmed and sent to the home's annotation database by ANN."""
    edits.confirm(store)
    bundle, there, ann = Bundle(store), Recordings(work.database, PartStore.of_home(home)), principal(ANN, "annotator")

    async def send() -> None:
        for digest in (await there.announce(bundle.announcement(), by=ann)).missing:
            await there.receive(bundle.manifest.recording_id, digest, _chunks(bundle.read(digest)), num_bytes=None, by=ann)
        await there.complete(bundle.manifest.recording_id, by=ann, answer_s=600)
        await there.close()

    asyncio.run(send())
    return there, bundle


def approve(there: Recordings, recording_id: str) -> None:
    asyncio.run(there.review(recording_id, SubmitReview(approves=True, verdict=True), by=principal(BOB, "reviewer")))


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data
