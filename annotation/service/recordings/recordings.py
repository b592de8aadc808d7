"""Recordings on the server: announced, uploaded part by part, checked when complete, reviewed by a second person, taken back, erased.

What a bundle is, and the client's side of the calls, is recording/bundle.py's. Each call may be repeated, and goes on where a killed server
or a lost line left it: what has arrived stays. A recording is its own person's until it is complete, and from then on reviewers' too.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from sqlalchemy.orm import Session

from annotation.recordings.bundle import MAX_PART_BYTES, Announced, Announcement, Checking, Completed, Incomplete, Part
from annotation.service.recordings import bundles
from annotation.service.recordings.bundles import Checked
from annotation.service.recordings.picture_workers import PictureWorkers
from annotation.service.recordings.recorded_steps import sounds_of_manifest, steps_of_manifest
from annotation.service.recordings.recording_lists import item_of
from annotation.service.recordings.unfinished import Unfinished, UploadLimits
from annotation.service.review.review import MAY_REVIEW, add_review, view_of, withdrawal_of
from annotation.storage import accounts, audit, recordings, reviews
from annotation.storage.database import Database
from annotation.storage.logins import Principal
from annotation.storage.parts import Parts, PartStore
from annotation.storage.schema import Recording
from annotation.wire.review import RecordingDetail, RecordingItem, ReviewView, SubmitReview, Withdrawal
from warehouse.core.errors import AccessDenied, BadUpload, ConfigError, NotNow, TooManyAttempts, UnknownSubject, UploadTooLarge
from warehouse.core.identity import ID_HEX_DIGITS

MAX_RECORDING_BYTES = 4 * 1024**3
MOST_LISTED = 500
DAY_S = 86400.0
ANSWER_S = 10.0
"""After so long the client that completes a recording gets the answer that its pictures are being checked."""


class Recordings:
    """`clock` gives seconds since 1970."""

    def __init__(
        self,
        database: Database,
        store: PartStore,
        limits: UploadLimits | None = None,
        *,
        clock: Callable[[], float] = time.time,
        on_complete: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_complete` is called with the id of a recording that has become complete."""
        self._database, self._store, self._clock = database, store, clock
        self.unfinished = Unfinished(database, store, limits, clock=clock)
        self._reading, self._looking = asyncio.Semaphore(1), asyncio.Semaphore(1)
        """One at a time of each: a manifest in memory is many times its bytes. Who looks does not wait for a check."""
        self._pictures = PictureWorkers()
        self._on_complete = on_complete
        self._checks: dict[str, _Check] = {}
        """By recording, until its uploader has heard of the end. A server that ends leaves them: they are requested again."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._spent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """Of each person: the lock of their check, and pixels with the time when they were decoded."""

    # --- uploading ---

    async def announce(self, announcement: Announcement, *, by: Principal) -> Announced:
        """Note what will come; what of it is not here yet. Raises UploadTooLarge, StorageFull, NotNow for what somebody else recorded or
        what is complete already with another manifest."""
        num_bytes, recording_id = sum(part.num_bytes for part in announcement.parts), announcement.recording_id
        if num_bytes > MAX_RECORDING_BYTES:
            raise UploadTooLarge(
                f"{recording_id} has {num_bytes / 1024**3:.1f} GiB, {MAX_RECORDING_BYTES / 1024**3:.0f} are taken at most: trim it"
            )
        parts = self._store.of(by.user_id)
        sizes = {part.sha256: part.num_bytes for part in announcement.parts}
        await asyncio.to_thread(self._store.remove_torn)
        await self.unfinished.sweep_now_and_then()
        missing = await asyncio.to_thread(parts.missing, sizes)
        await asyncio.to_thread(self._store.check_disk_space, sum(sizes[sha256] for sha256 in missing))
        plain = [part.model_dump(mode="json") for part in announcement.parts]

        def work(session: Session) -> Recording:
            found, left = recordings.announce(session, recording_id, by.user_id, announcement.manifest, plain, now_s=self._clock())
            self.unfinished.check(session, found)
            parts.erase(sorted(left))
            return found

        found = await self._database.writing(work)
        # Asked again: from here on nothing that it names is erased.
        missing = await asyncio.to_thread(parts.missing, sizes)
        is_complete = found.state != "uploading"
        return Announced(recording_id=recording_id, missing=() if is_complete else missing, is_complete=is_complete)

    async def receive(self, recording_id: str, sha256: str, chunks: AsyncIterator[bytes], *, num_bytes: int | None, by: Principal) -> None:
        """One part as it comes. `num_bytes`: its length by the request's head, None where that has none. Raises UnknownSubject,
        NotNow, UploadTooLarge, BadUpload, StorageFull."""
        announced = await self._database.reading(_announced_bytes, recording_id, sha256, by.user_id)
        if num_bytes is not None and num_bytes != announced:
            kind = UploadTooLarge if num_bytes > announced else BadUpload
            raise kind(f"part {sha256[:12]}… comes with {num_bytes} bytes and was announced with {announced}: announce it again")
        await self._store.of(by.user_id).receive(sha256, announced, chunks)
        await self._database.writing(self._received, recording_id, sha256, by.user_id)

    def _received(self, session: Session, recording_id: str, sha256: str, user_id: str) -> None:
        """What was announced again or erased while a part was on its way does not leave it behind."""
        recordings.lock_parts(session, user_id)
        if not recordings.is_named(session, recording_id, user_id, sha256):
            self._store.of(user_id).erase([sha256])
            raise NotNow(f"{recording_id} does not name the part {sha256[:12]}… any more: announce it again")

    async def complete(
        self, recording_id: str, *, by: Principal, address: str | None = None, answer_s: float = ANSWER_S
    ) -> Completed | Incomplete | Checking:
        """All parts are here: check them, and let it wait for a reviewer; or what is missing. After `answer_s` it says how far it is, and
        goes on. Raises UnknownSubject, BadUpload, NotNow, TooManyAttempts."""
        found = await self._database.reading(recordings.of_user, recording_id, by.user_id)
        if found.state in recordings.COMPLETE:
            self._checks.pop(recording_id, None)
            return Completed(recording_id=recording_id, num_actions=int(found.summary["num_actions"]))
        _check_uploading(found)
        check = self._checks.get(recording_id)
        if check is None or check.digest != found.digest:
            missing = await asyncio.to_thread(self._store.of(by.user_id).missing, [part["sha256"] for part in found.parts])
            if missing:
                return Incomplete(recording_id=recording_id, missing=missing)
            check = self._checks.get(recording_id)
            if check is None or check.digest != found.digest:
                check = self._checks[recording_id] = _Check(self, found, by, address)
        await asyncio.wait({check.task}, timeout=answer_s)
        if not check.task.done():
            return Checking(recording_id=recording_id, num_checked=check.num_checked, num_pictures=check.num_pictures)
        if self._checks.get(recording_id) is check:
            del self._checks[recording_id]
        return check.task.result()

    async def close(self) -> None:
        """Clients that were uploading ask the next server."""
        tasks = {check.task for check in self._checks.values() if not check.task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pictures.close()

    async def _check(self, check: _Check, found: Recording, by: Principal, address: str | None) -> Completed:
        """One recording of a person at a time."""
        parts, announced = self._store.of(by.user_id), [Part.model_validate(part) for part in found.parts]
        async with self._turns[by.user_id]:
            async with self._reading:
                checked = await asyncio.to_thread(bundles.checked, parts, found.digest, found.recording_id, announced)
            self._spend(by.user_id, checked)
            check.num_pictures = len(checked.pictures)
            for wanted in checked.pictures:
                if (fault := await self._pictures.fault_of(wanted)) is not None:
                    raise BadUpload(fault)
                check.num_checked += 1
        await self._database.writing(self._completed, found, checked, by, address)
        self._on_complete(found.recording_id)
        return Completed(recording_id=found.recording_id, num_actions=checked.num_actions)

    def _spend(self, user_id: str, checked: Checked) -> None:
        """Raises TooManyAttempts where a person had so much decoded within a day that this would be too much."""
        spent, now_s, most = self._spent[user_id], time.monotonic(), self.unfinished.limits.max_pixels_a_day
        while spent and spent[0][0] < now_s - DAY_S:
            spent.popleft()
        before = sum(num for _, num in spent)
        if spent and before + checked.num_pixels > most:
            raise TooManyAttempts(
                f"with the {checked.num_pixels} pixels of this recording's pictures more than {most} of yours would be looked at within a "
                "day: complete it tomorrow",
                spent[0][0] + DAY_S - now_s,
            )
        spent.append((now_s, checked.num_pixels))

    def _completed(self, session: Session, seen: Recording, checked: Checked, by: Principal, address: str | None) -> None:
        recordings.lock_parts(session, by.user_id)
        found, now_s = recordings.of_user(session, seen.recording_id, by.user_id, for_update=True), self._clock()
        if found.state in recordings.COMPLETE and found.digest == seen.digest:
            return
        _check_uploading(found)
        if (found.digest, found.parts) != (seen.digest, seen.parts):
            raise NotNow(f"{seen.recording_id} was announced again meanwhile: complete it once more")
        found.track, found.summary, found.completed_at_s = checked.track, checked.summary, now_s
        found.query_id = recordings.existing_query(session, checked.node)
        recordings.set_state(session, found, "pending", now_s=now_s)
        audit.record(
            session,
            "recording.completed",
            now_s=now_s,
            user_id=by.user_id,
            subject=found.recording_id,
            address=address,
            num_actions=checked.num_actions,
            consent=checked.consent,
        )

    # --- looking at it ---

    async def listed(self, viewer: Principal) -> list[RecordingItem]:
        """One's own, and for reviewers what others completed, the newest first."""

        def work(session: Session) -> list[RecordingItem]:
            names = accounts.names(session)
            found = recordings.listed(session, viewer.user_id, may_review=_may_review(viewer), limit=MOST_LISTED)
            return [item_of(one, names, viewer.user_id) for one in found]

        return await self._database.reading(work)

    async def waiting(self, reviewer: Principal) -> tuple[tuple[RecordingItem, ...], int]:
        """What a reviewer may judge, oldest first, and how much of it there is in all."""

        def work(session: Session) -> tuple[tuple[RecordingItem, ...], int]:
            names = accounts.names(session)
            found, num = recordings.waiting(session, reviewer.user_id, limit=MOST_LISTED)
            return tuple(item_of(one, names, reviewer.user_id) for one in found), num

        return await self._database.reading(work)

    async def look(self, recording_id: str, viewer: Principal) -> RecordingDetail:
        """Raises UnknownSubject, also for what was erased, NotNow for what is not complete yet."""

        def work(session: Session) -> tuple[Recording, RecordingItem, tuple[ReviewView, ...], Withdrawal | None]:
            names = accounts.names(session)
            found = recordings.seen_by(session, recording_id, viewer.user_id, may_review=_may_review(viewer))
            said = tuple(view_of(one, names) for one in reviews.of_recording(session, recording_id))
            return found, item_of(found, names, viewer.user_id), said, withdrawal_of(session, "recording", recording_id, names)

        found, item, said, withdrawal = await self._database.reading(work)
        if found.completed_at_s is None:
            raise NotNow(f"{recording_id} is {found.state} and was never complete: there is nothing to look at yet")
        if found.erased_at_s is not None:
            raise UnknownSubject(f"{recording_id} was withdrawn and erased: nothing of it is left to look at")
        parts = self._store.of(found.user_id)
        async with self._looking:
            manifest = await asyncio.to_thread(bundles.read_manifest, parts, found.digest)
            steps = await asyncio.to_thread(steps_of_manifest, manifest)
        return RecordingDetail(
            item=item,
            result=manifest.result,
            system=manifest.machine.system,
            hidden=manifest.hidden,
            steps=steps,
            sounds=sounds_of_manifest(manifest),
            reviews=said,
            withdrawal=withdrawal,
        )

    async def picture(self, recording_id: str, screen_id: str, viewer: Principal) -> bytes:
        """One of its screens, a PNG. Raises UnknownSubject."""
        parts, sha256 = await self._part(recording_id, screen_id, viewer, "screen", "image/png")
        return await asyncio.to_thread(parts.get, sha256)

    async def sound(self, recording_id: str, sound_id: str, viewer: Principal) -> Path:
        """Where one of its stretches of speech lies, a WAV. Raises UnknownSubject."""
        parts, sha256 = await self._part(recording_id, sound_id, viewer, "sound", "audio/wav")
        if not await asyncio.to_thread(parts.has, sha256):
            raise UnknownSubject(f"there is no part {sha256}")
        return parts.path(sha256)

    async def _part(self, recording_id: str, part_id: str, viewer: Principal, kind: str, media_type: str) -> tuple[Parts, str]:
        """The digest of a part that a recording names, by its id as pages know it. Raises UnknownSubject."""
        may_review = _may_review(viewer)
        found = await self._database.reading(recordings.seen_by, recording_id, viewer.user_id, may_review=may_review)
        given, _, digits = part_id.partition("-")
        named = (part["sha256"] for part in found.parts if part["media_type"] == media_type and part["sha256"].startswith(digits))
        sha256 = next(named, None)
        if found.completed_at_s is None or given != kind or len(digits) != ID_HEX_DIGITS or sha256 is None:
            raise UnknownSubject(f"{recording_id} has no {kind} {part_id[:80]!r}")
        return self._store.of(found.user_id), sha256

    # --- judging it and taking it back ---

    async def review(self, recording_id: str, said: SubmitReview, *, by: Principal, address: str | None = None) -> ReviewView:
        """A second person's word, which settles it. Raises UnknownSubject, AccessDenied for one's own, ConfigError, NotNow."""

        def work(session: Session) -> ReviewView:
            found = recordings.seen_by(session, recording_id, by.user_id, may_review=_may_review(by), for_update=True)
            _check_review(found, said, by)
            now_s = self._clock()
            made = add_review(session, said, by=by, now_s=now_s, recording_id=recording_id)
            audit.record(
                session,
                "recording.reviewed",
                now_s=now_s,
                user_id=by.user_id,
                subject=recording_id,
                address=address,
                approves=said.approves,
            )
            recordings.set_state(session, found, "approved" if said.approves else "rejected", now_s=now_s)
            return view_of(made, {by.user_id: by.name})

        return await self._database.writing(work)

    async def withdraw(self, recording_id: str, reason: str, *, by: Principal, address: str | None = None) -> None:
        """By its recorder, or a reviewer; for good. May be done twice. Raises UnknownSubject."""

        def work(session: Session) -> None:
            now_s = self._clock()
            found = recordings.seen_by(session, recording_id, by.user_id, may_review=_may_review(by), for_update=True)
            if found.state == "withdrawn":
                return
            audit.record(
                session, "recording.withdrawn", now_s=now_s, user_id=by.user_id, subject=recording_id, address=address, reason=reason
            )
            recordings.set_state(session, found, "withdrawn", now_s=now_s)

        await self._database.writing(work)

    async def erase(self, recording_id: str, *, by: Principal | None = None) -> int:
        """Remove a withdrawn recording's parts from the disk, but for those that another of the same person's names; how many went. `by`
        None: from the command line. May be done twice. Raises UnknownSubject, NotNow for one that is not withdrawn."""

        def work(session: Session) -> int:
            found = session.get(Recording, recording_id)
            if found is None:
                raise recordings.unknown(recording_id)
            recordings.lock_parts(session, found.user_id)
            session.refresh(found, with_for_update=True)
            if found.state != "withdrawn":
                raise NotNow(f"{recording_id} is {found.state}: only what was withdrawn is erased")
            own = {part["sha256"] for part in found.parts}
            # On the disk first: after an interruption the names of what is left are known.
            parts = self._store.of(found.user_id)
            num = parts.erase(sorted(own - recordings.parts_of_others(session, found)))
            parts.answers(recording_id).erase()
            if found.erased_at_s is None:
                now_s, who = self._clock(), by.user_id if by is not None else None
                found.erased_at_s = now_s
                audit.record(session, "recording.erased", now_s=now_s, user_id=who, subject=recording_id, num_parts=num)
            found.parts, found.summary = [], {}
            return num

        return await self._database.writing(work)

    async def withdrawn(self) -> tuple[str, ...]:
        """Ids of what was withdrawn and is not erased yet."""
        return tuple(await self._database.reading(recordings.withdrawn))


class _Check:
    """A recording whose parts are being checked."""

    def __init__(self, recordings_: Recordings, found: Recording, by: Principal, address: str | None) -> None:
        self.digest, self.num_checked, self.num_pictures = found.digest, 0, 0
        self.task = asyncio.create_task(recordings_._check(self, found, by, address), name=f"check {found.recording_id}")
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # callers get it; there may be none


def parts_of(store: PartStore, recording: Recording) -> Parts:
    """Where the bytes of a recording are, e.g. to make samples of it: `bundles.read_manifest(parts, recording.digest)`."""
    return store.of(recording.user_id)


def _may_review(viewer: Principal) -> bool:
    return viewer.role in MAY_REVIEW


def _announced_bytes(session: Session, recording_id: str, sha256: str, user_id: str) -> int:
    found = recordings.of_user(session, recording_id, user_id)
    _check_uploading(found)
    num_bytes = next((int(part["num_bytes"]) for part in found.parts if part["sha256"] == sha256), None)
    if num_bytes is None:
        raise UnknownSubject(f"{recording_id} was not announced with a part {sha256[:80]!r}")
    return min(num_bytes, MAX_PART_BYTES)


def _check_uploading(found: Recording) -> None:
    if found.state != "uploading":
        raise NotNow(f"{found.recording_id} is {found.state}: it takes no more parts")
    if found.erased_at_s is not None:
        raise UnknownSubject(f"{found.recording_id} was not completed for long and is no longer here: announce it again")


def _check_review(found: Recording, said: SubmitReview, by: Principal) -> None:
    if found.user_id == by.user_id:
        raise AccessDenied(f"{found.recording_id} is your own recording: another person reviews it")
    if found.state != "pending":
        raise NotNow(f"{found.recording_id} is {found.state} already; what should not have been approved can be withdrawn")
    if said.kind != "second":
        raise ConfigError(f"a recording waits for a review of the kind second, not {said.kind}")
    if unknown := {index for index in said.steps if not 0 <= index < found.summary["num_actions"]}:
        raise ConfigError(f"{found.recording_id} has no action {min(unknown)}: it has {found.summary['num_actions']}, counted from 0")
