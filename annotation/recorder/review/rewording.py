"""The thoughts of a confirmed recording, reworded by a model (annotation/recordings/refinement.py) before the recording is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from annotation.recorder.store.store import Store, read_cover
from annotation.recordings.bundle import Manifest, RecordedAction
from warehouse.core.errors import RecordingRefused


def refine_confirmed(store: Store, reword: Callable[[Manifest], Sequence[RecordedAction]]) -> int:
    """Have the thoughts of a recording reworded; returns how many were. That takes the recording's confirmation back.

    `reword` gives all actions with their thoughts. Raises RecordingRefused for a recording that is not confirmed, before anything is sent,
    and for one that was changed in the meantime, whose changes stand.
    """
    manifest = store.manifest()
    if store.cover.state == "uploaded":
        raise RecordingRefused(f"The recording {store.name} was uploaded: its thoughts can no longer be reworded.")
    if store.cover.state != "reviewed" or manifest.review is None:
        raise RecordingRefused(
            f"The recording {store.name} is {store.cover.state}, not confirmed: what a model is to word is sent to it, so look through it "
            f"and confirm it first (`flywheel record review {store.name}`)."
        )
    actions = tuple(reword(manifest))
    if read_cover(store.folder) != store.cover or store.manifest() != manifest:
        raise RecordingRefused(f"The recording {store.name} was changed while the model worded its thoughts: nothing was taken over.")
    changed = sum(old != new for old, new in zip(manifest.actions, actions, strict=True))
    if changed:
        store.put_manifest(manifest.model_copy(update={"actions": actions, "review": None}), "recorded")
    return changed
