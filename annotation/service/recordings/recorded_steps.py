"""A recording's actions as they are looked at: in words, with where they were and what was said."""

from __future__ import annotations

from annotation.recordings.bundle import Manifest, RecordedAction, Screen, ScreenElement
from annotation.service.editor.answers import points_of
from annotation.service.runs.screens import MAX_BOXES
from annotation.wire.review import RecordedStep, SoundView
from annotation.wire.runs import Box, ScreenView
from sandbox.actions import Action
from warehouse.core.identity import ID_HEX_DIGITS


def steps_of_manifest(manifest: Manifest) -> tuple[RecordedStep, ...]:
    screens = {screen.screen_id: screen for screen in manifest.screens}
    return tuple(_step(index, one, screens[one.screen_id] if one.screen_id else None) for index, one in enumerate(manifest.actions))


def sounds_of_manifest(manifest: Manifest) -> tuple[SoundView, ...]:
    return tuple(
        SoundView(sound_id=f"sound-{one.sha256[:ID_HEX_DIGITS]}", start_s=one.start_s, length_s=one.num_samples / one.sample_rate_hz)
        for one in manifest.speech
    )


def in_words(action: Action) -> str:
    """In pixels of the screen, and no grammar's: `click (12, 30) right`, `type “Ada”`, `hotkey ctrl+c`."""
    values = action.model_dump(exclude_defaults=True, exclude={"kind"})
    words: list[str] = [action.kind]
    for x, y, sign in (("x", "y", ""), ("to_x", "to_y", "→ ")):
        if (at := (values.pop(x, None), values.pop(y, None))) != (None, None):
            words.append(f"{sign}({at[0]}, {at[1]})")
    for name, value in values.items():
        if name == "keys":
            words.append("+".join(value))
        elif isinstance(value, str):
            words.append(f"“{value}”" if name in ("text", "option", "answer", "question") else value)
        else:
            words.append(f"{name} {value}")
    return " ".join(words)


def _step(index: int, one: RecordedAction, screen: Screen | None) -> RecordedStep:
    words = in_words(one.action)
    if one.target is not None:
        words += f" on {one.target.role} “{one.target.text}”"
    return RecordedStep(
        text=words,
        thought=one.thought.text if one.thought else None,
        action=words,
        kind=one.action.kind,
        line=words,
        points=points_of([one.action]),
        step_index=index,
        at_s=one.start_s,
        screen=None if screen is None else _screen(screen, one),
        heard=one.thought.raw if one.thought and one.thought.raw else None,
        window=one.window.title or one.window.application,
        hidden=one.hidden,
    )


def _screen(screen: Screen, one: RecordedAction) -> ScreenView:
    return ScreenView(
        screenshot_id=screen.screen_id,
        width_px=screen.width_px,
        height_px=screen.height_px,
        url=one.window.url or None,
        elements=tuple(_box(element, number) for number, element in enumerate(screen.elements[:MAX_BOXES], start=1)),
    )


def _box(element: ScreenElement, number: int) -> Box:
    box = element.box
    return Box(index=number, role=element.role, name=element.text, x=box.x, y=box.y, width=box.width, height=box.height)
