"""What it takes to take in a long recording: peak memory and time of the asset `recordings` on an approved one with many pictures, in a
process of its own.

    python -m benchmarks.recording_intake [--pictures 1000] [--kib 1000]
    python -m benchmarks.recording_intake --large

Pictures are noise, which does not get smaller in a PNG: each has about so many KiB. They lie twice on the disk while it runs, once as the
person's own recording and once on the server, and a third time in the warehouse. `--large` measures how long a server is busy with an
upload of a few MB that holds twelve pictures of one colour: of 8192 by 8192 pixels, and of as many pixels as are taken.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from annotation.recorder.review import edits
from annotation.recorder.review.upload import Bundle
from annotation.recorder.store import store as stores
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Checking, Machine, Manifest, RecordedAction, Screen, TaskQuery
from annotation.recordings.consent import sign
from annotation.service.recordings.recordings import Recordings
from annotation.storage.database import default_url
from annotation.storage.logins import Principal
from annotation.storage.migrating import open_database
from annotation.storage.parts import PartStore
from annotation.storage.schema import User
from annotation.wire.review import SubmitReview
from sandbox.actions import Click
from warehouse.core.errors import BadUpload
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.storage.screenshots.pictures import MAX_PIXELS

WIDTH_PX = 640
ITERATION = "0001"


def noise_pictures(num: int, height: int) -> Iterator[bytes]:
    noise = np.random.default_rng(0)
    for _ in range(num):
        buffer = io.BytesIO()
        pixels = noise.integers(0, 256, (height, WIDTH_PX, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
        yield buffer.getvalue()


def plain_pictures(num: int, width: int, height: int) -> Iterator[bytes]:
    for number in range(num):
        buffer = io.BytesIO()
        Image.new("RGB", (width, height), (number, 0, 0)).save(buffer, "PNG")
        yield buffer.getvalue()


def make(root: Path, pictures: Iterable[bytes], width: int, height: int) -> Store:
    """A confirmed recording of a click on each picture."""
    store = stores.create(root, "long")
    screens, actions = [], []
    for number, png in enumerate(pictures):
        screen_id = bytes_id("screen", png)
        store.put_screen(screen_id, png)
        screens.append(Screen(screen_id=screen_id, sha256=sha256(png).hexdigest(), width_px=width, height_px=height))
        actions.append(RecordedAction(action=Click(x=10, y=10), start_s=float(number), end_s=number + 0.1, screen_id=screen_id))
    manifest = Manifest(
        recording_id=store.cover.recording_id,
        source="desktop",
        started_at=datetime.now(UTC),
        length_s=float(len(screens)),
        track="expert",
        task=TaskQuery(query="Sort the pictures"),
        consent=sign("Ann Example", with_microphone=False),
        machine=Machine(system="Linux", width_px=width, height_px=height, input_source="x11-record", accessibility=True),
        actions=tuple(actions),
        screens=tuple(screens),
    )
    store.put_manifest(manifest, "recorded")
    edits.confirm(store)
    return store


def send(home: Home, store: Store, *, approve: bool = True) -> str:
    """The recording, sent to the home's annotation database and approved there. What the server says of it, and in how many seconds."""
    database = open_database(default_url(home))
    people = {role: f"user-{role}" for role in ("annotator", "reviewer")}
    with database.write() as session:
        session.add_all(User(user_id=user, name=user, role=role, created_at_s=0.0) for role, user in people.items())
    ann, bob = (Principal(user_id=user, name=user, role=role, kind="program", digest="", csrf_token=None) for role, user in people.items())
    bundle, there = Bundle(store), Recordings(database, PartStore.of_home(home))

    async def bytes_of(digest: str) -> AsyncIterator[bytes]:
        yield bundle.read(digest)

    async def main() -> str:
        recording_id = bundle.manifest.recording_id
        for digest in (await there.announce(bundle.announcement(), by=ann)).missing:
            await there.receive(recording_id, digest, bytes_of(digest), num_bytes=None, by=ann)
        began_s = time.monotonic()
        try:
            while isinstance(said := await there.complete(recording_id, by=ann), Checking):
                pass
        except BadUpload as error:
            return f"refused in {time.monotonic() - began_s:.2f} s ({error})"
        took_s = time.monotonic() - began_s
        if approve:
            await there.review(recording_id, SubmitReview(approves=True, verdict=True), by=bob)
        return f"{type(said).__name__} in {took_s:.2f} s"

    try:
        return asyncio.run(main())
    finally:
        database.close()


def measure_large() -> None:
    for height in (8192, MAX_PIXELS // 8192):
        with tempfile.TemporaryDirectory(prefix="intake-") as folder:
            home = Home(Path(folder))
            (home.root / "annotation").mkdir()
            said = send(home, make(home.root / "own", plain_pictures(12, 8192, height), 8192, height), approve=False)
            print(f"12 pictures of 8192 by {height}: {said}")


def take(root: Path) -> None:
    """In a fresh process: the asset, and what it took."""
    import dagster as dg

    from assets.iterations.partitions import ITERATIONS
    from assets.recordings import recordings
    from assets.settings.profile import Profile
    from assets.stages.resources import ProfileResource, WarehouseResource
    from pipelines import profiles

    class Chat(ProfileResource):
        def load(self) -> Profile:
            found = profiles.load("smoke")
            return found.model_copy(update={"agent": found.agent.model_copy(update={"grammar": "doubao"})})

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), [ITERATION])
        resources = {"tables": WarehouseResource(root=str(root)), "profile": Chat()}
        before, start_s = _peak_mib(), time.process_time()
        result = dg.materialize([recordings], partition_key=ITERATION, instance=instance, resources=resources)
    (made,) = result.asset_materializations_for_node("recordings")
    num = made.metadata["samples"].value
    took_s = time.process_time() - start_s
    print(f"{num} samples: peak memory {_peak_mib():.0f} MiB, {before:.0f} before it began; {took_s:.1f} CPU seconds")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--kib", type=int, default=1000)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--take", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.take is not None:
        return take(given.take)
    if given.large:
        return measure_large()
    with tempfile.TemporaryDirectory(prefix="intake-") as folder:
        home = Home(Path(folder))
        (home.root / "annotation").mkdir()
        height = given.kib * 1024 // (WIDTH_PX * 3)
        send(home, make(home.root / "own", noise_pictures(given.pictures, height), WIDTH_PX, height))
        command = [sys.executable, "-m", "benchmarks.recording_intake", "--take", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        print(f"{given.pictures} pictures of {given.kib} KiB: {done.stdout.strip()}")


if __name__ == "__main__":
    main()
