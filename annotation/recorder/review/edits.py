"""What a person changes in a recording when looking through it: spans, words and boxes that go, thoughts and the task that are reworded,
and the word that it may be uploaded. Every change is on the disk, and what it removes is off it, before the call returns.

A change after the confirmation takes that back: what is uploaded is what was confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256

from annotation.recorder.review.finish import silence, speech_parts, stretches_of_parts
from annotation.recorder.screen.pixels import blacken, pixels_of, png_of
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import (
    MAX_QUERY,
    Box,
    Manifest,
    RecordedAction,
    Result,
    Review,
    Screen,
    ScreenElement,
    Span,
    Thought,
    Word,
)
from annotation.recordings.redaction import Redactor, redacted_task
from warehouse.core.errors import RecordingRefused
from warehouse.core.identity import bytes_id

DRAWN = "drawn"


def _changeable(store: Store) -> Manifest:
    if store.cover.state == "uploaded":
        raise RecordingRefused(f"The recording {store.name} was uploaded: what it holds here can no longer be changed, only deleted.")
    return store.manifest().model_copy(update={"review": None})


def _checked(manifest: Manifest) -> Manifest:
    """model_copy does not validate."""
    return Manifest.model_validate(manifest.model_dump())


def delete_span(store: Store, span: Span, *, speech_only: bool = False) -> Manifest:
    """Take out a stretch of time: actions of which any part was in it with their pictures, words, sound. `speech_only` leaves actions and
    pictures.

    A picture that an action outside the span needs stays: it shows the screen as it was then.
    """
    manifest = _changeable(store)
    words = tuple(word for word in manifest.words if not _touches(word.start_s, word.end_s, span))
    actions = [_without_words(action, span, words) for action in manifest.actions if speech_only or not _meets(action, span)]
    last = None if not speech_only and span.end_s >= manifest.length_s else manifest.last_screen_id
    needed = {action.screen_id for action in actions} | {last}
    stretches = stretches_of_parts(manifest.speech)
    samples = silence(store.speech(), stretches, [span]) if stretches else b""
    changed = manifest.model_copy(
        update={
            "actions": tuple(actions),
            "words": words,
            "last_screen_id": last,
            "deleted": _joined([*manifest.deleted, span]),
            "screens": tuple(screen for screen in manifest.screens if screen.screen_id in needed),
            "speech": tuple(part for _, part in speech_parts(stretches, samples)),
        }
    )
    checked = _checked(changed)
    if stretches:
        store.replace_speech(samples)
    store.put_manifest(checked, "recorded")
    return checked


def _without_words(action: RecordedAction, span: Span, words: Sequence[Word]) -> RecordedAction:
    """An action whose thought has lost the words of a span. Words of the recogniser come back where a refined wording held them."""
    thought = action.thought
    if thought is None or not _touches(thought.start_s, thought.end_s, span):
        return action
    left = [word for word in words if thought.start_s <= word.start_s and word.end_s <= thought.end_s]
    raw = " ".join(word.text for word in left)
    if thought.origin == "person":
        return action.model_copy(update={"thought": thought.model_copy(update={"raw": raw})})
    if not left:
        return action.model_copy(update={"thought": None})
    return action.model_copy(update={"thought": Thought(text=raw, raw=raw, start_s=left[0].start_s, end_s=left[-1].end_s)})


def edit_thought(store: Store, index: int, text: str) -> Manifest:
    """Give an action's thought another wording. The words that were heard stay beside it; `delete_span` removes those."""
    manifest = _changeable(store)
    if not 0 <= index < len(manifest.actions):
        raise RecordingRefused(f"There is no action {index}; there are {len(manifest.actions)}, counted from 0.")
    action, text = manifest.actions[index], " ".join(text.split())
    old = action.thought or Thought(text="", start_s=action.start_s, end_s=action.start_s)
    if text == old.text:
        return store.manifest()
    new = None if not text and not old.raw else old.model_copy(update={"text": text, "origin": "person"})
    actions = list(manifest.actions)
    actions[index] = action.model_copy(update={"thought": new})
    changed = _checked(manifest.model_copy(update={"actions": tuple(actions)}))
    store.put_manifest(changed, "recorded")
    return changed


def edit_query(store: Store, text: str) -> Manifest:
    """Give the task another wording; what is private is taken out of it as when it was recorded."""
    manifest, text = _changeable(store), " ".join(text.split())
    if not text or len(text) > MAX_QUERY:
        raise RecordingRefused(f"The task has {len(text)} characters: say it in 1 to {MAX_QUERY}.")
    task, _ = redacted_task(manifest.task.model_copy(update={"query": text}), Redactor())
    if task == manifest.task:
        return store.manifest()
    changed = _checked(manifest.model_copy(update={"task": task}))
    store.put_manifest(changed, "recorded")
    return changed


def draw_box(store: Store, screen_id: str, box: Box, *, everywhere: bool = False) -> Manifest:
    """Blacken a part of a picture, or of all pictures; the elements' text about that part goes, too."""
    manifest = _changeable(store)
    if all(screen.screen_id != screen_id for screen in manifest.screens):
        raise RecordingRefused(f"There is no picture {screen_id} in the recording {store.name}.")
    renamed: dict[str, Screen] = {}
    for screen in manifest.screens:
        if everywhere or screen.screen_id == screen_id:
            renamed[screen.screen_id] = _blackened(store, screen, box)
    names = {old: new.screen_id for old, new in renamed.items()}
    screens = {new.screen_id: new for screen in manifest.screens for new in [renamed.get(screen.screen_id, screen)]}
    actions = tuple(
        action.model_copy(
            update={
                "screen_id": names.get(action.screen_id or "", action.screen_id),
                "target": _silent(action.target, box) if action.target is not None and action.screen_id in names else action.target,
            }
        )
        for action in manifest.actions
    )
    hidden = {**manifest.hidden, DRAWN: manifest.hidden.get(DRAWN, 0) + 1}
    last = names.get(manifest.last_screen_id or "", manifest.last_screen_id)
    update = {"screens": tuple(screens.values()), "actions": actions, "last_screen_id": last, "hidden": hidden}
    changed = _checked(manifest.model_copy(update=update))
    store.put_manifest(changed, "recorded")
    return changed


def _blackened(store: Store, screen: Screen, box: Box) -> Screen:
    png = png_of(blacken(pixels_of(store.screen(screen.screen_id)), [box]))
    screen_id = bytes_id("screen", png)
    store.put_screen(screen_id, png)
    elements = tuple(_silent(element, box) for element in screen.elements)
    update = {"screen_id": screen_id, "sha256": sha256(png).hexdigest(), "redacted": (*screen.redacted, box), "elements": elements}
    return screen.model_copy(update=update)


def _silent(element: ScreenElement, box: Box) -> ScreenElement:
    return element.model_copy(update={"text": ""}) if element.box.overlaps(box) else element


def say_result(store: Store, result: Result) -> Manifest:
    """How the person says that it went."""
    changed = _checked(_changeable(store).model_copy(update={"result": result}))
    store.put_manifest(changed, "recorded")
    return changed


def confirm(store: Store) -> Manifest:
    """The person has looked through it and lets it be uploaded. Raises RecordingRefused where nothing is left of it."""
    manifest = _changeable(store)
    if not manifest.actions:
        raise RecordingRefused(f"The recording {store.name} has no action left: there is nothing to upload. Delete it.")
    review = Review(
        confirmed_at=datetime.now(UTC),
        num_deleted_spans=len(manifest.deleted),
        num_drawn_boxes=manifest.hidden.get(DRAWN, 0),
        num_edited_thoughts=sum(action.thought is not None and action.thought.origin == "person" for action in manifest.actions),
    )
    changed = _checked(manifest.model_copy(update={"review": review}))
    store.put_manifest(changed, "reviewed")
    return changed


def _meets(action: RecordedAction, span: Span) -> bool:
    """Whether an action has a moment in common with a span, its edges included: what is erased may take too much, never too little."""
    return action.start_s <= span.end_s and action.end_s >= span.start_s


def _touches(start_s: float, end_s: float, span: Span) -> bool:
    return start_s < span.end_s and end_s > span.start_s


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in order, those that overlap as one."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if joined and span.start_s <= joined[-1].end_s:
            joined[-1] = Span(start_s=joined[-1].start_s, end_s=max(joined[-1].end_s, span.end_s))
        else:
            joined.append(span)
    return tuple(joined)
