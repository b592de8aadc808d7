"""What of an action may be stored: whether it was in an excluded place, its text without what is private, what it was done to and in which
window. The recorder (recorder.py) asks here before it writes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotation.recorder.input.events import InputSource
from annotation.recorder.input.gestures import Draft
from annotation.recorder.privacy.secrecy import Typed, why_secret
from annotation.recorder.screen.accessibility import Accessibility
from annotation.recorder.screen.camera import Camera, Frame
from annotation.recorder.screen.exclusions import asks_for_password
from annotation.recorder.screen.sign import Sign
from annotation.recorder.screen.snapshots import Snapshots, cover
from annotation.recorder.screen.text_reader import TextReader
from annotation.recorder.screen.windows import SeenWindow, WindowReader
from annotation.recorder.settings import RecordSettings
from annotation.recorder.speech.microphone import SpeechSource
from annotation.recordings.redaction import Redactor
from sandbox.actions import TypeText

Looks = list[tuple[SeenWindow, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderBackends:
    """What a recorder is put together from; `machine.py` chooses them for a system."""

    inputs: InputSource
    windows: WindowReader
    accessibility: Accessibility
    sign: Sign
    text_reader: TextReader | None
    speech: SpeechSource | None


class Screening:
    """Knows what was clicked last, and counts in `hidden` what it takes out."""

    def __init__(
        self,
        backends: RecorderBackends,
        settings: RecordSettings,
        camera: Camera,
        snapshots: Snapshots,
        redactor: Redactor,
        hidden: Counter[str],
    ) -> None:
        self._backends, self._settings, self._camera = backends, settings, camera
        self._snapshots, self._redactor, self._hidden = snapshots, redactor, hidden
        self._clicked = ""

    def is_excluded(self, draft: Draft[Frame], looks: Sequence[tuple[SeenWindow, ...]]) -> bool:
        exclusions, own = self._settings.exclusions, self._backends.sign.box
        if any(own is not None and own.holds(*point) for point in draft.points):
            return True
        if draft.points:
            return any(exclusions.hides_point(*point, windows) for windows in looks for point in draft.points)
        return any(window.is_active and exclusions.hides(window) for windows in looks for window in windows)

    def private(
        self, run: Sequence[tuple[Draft[Frame], Looks]], after: Mapping[float, Frame | None]
    ) -> tuple[list[str | None], list[tuple[str, ...]]]:
        """The text that may be stored of each draft (None: it has none), and what was taken out of it."""
        secret = [
            self._why_secret(draft, looks, after.get(draft.end_s)) if isinstance(draft.action, TypeText) else None for draft, looks in run
        ]
        for (draft, _), why in zip(run, secret, strict=True):
            # What did not show may have been plain words after all: a sentence is not looked for everywhere.
            if why == "password" or (why == "unseen" and " " not in text_of(draft).strip()):
                self._redactor.learn(text_of(draft))
        known = [text_of(draft) if why is None else "\n" for (draft, _), why in zip(run, secret, strict=True)]
        redacted = self._redactor.redact_run(known)
        texts: list[str | None] = []
        kinds: list[tuple[str, ...]] = []
        for (draft, _), why, (text, found) in zip(run, secret, redacted, strict=True):
            is_text = isinstance(draft.action, TypeText)
            ending = "\n" if text_of(draft).endswith("\n") else ""
            texts.append(None if not is_text else text if why is None else f"[{why}]{ending}")
            kinds.append((why,) if why is not None else found)
            self._hidden.update(kinds[-1])
        for text, finding in ((t, f) for t in ["".join(known)] for f in self._redactor.find(t)):
            self._redactor.learn(text[finding.start : finding.end], finding.kind)
        return texts, kinds

    def _why_secret(self, draft: Draft[Frame], looks: Looks, later: Frame | None) -> str | None:
        typed = Typed(
            text=text_of(draft),
            focus=self._backends.accessibility.focus_between(draft.start_s, draft.end_s),
            windows=looks,
            clicked=self._clicked,
            before=draft.before,
            after=draft.latest if text_of(draft).endswith("\n") else later,
        )
        return why_secret(typed, self._settings.unknown_typing)

    def target(self, draft: Draft[Frame]) -> dict[str, Any] | None:
        """What an action was done to. What was clicked is remembered: it may say what is typed next."""
        target, name = self._target(draft)
        if draft.points:
            self._clicked = name if target is None else f"{name} {target['text'] if target['role'] in ('text', 'button') else ''}"
        return target

    def _target(self, draft: Draft[Frame]) -> tuple[dict[str, Any] | None, str]:
        """The element, and what it is called."""
        snapshot = self._snapshots.of(draft.before) if draft.before is not None else None
        if snapshot is None:
            return None, ""
        if draft.points:
            hit = snapshot.at(*draft.points[0])
            return (cover(hit[0], self._redactor).model_dump(mode="json"), hit[1]) if hit is not None else (None, "")
        focus = [focus for focus in self._backends.accessibility.focus_between(draft.start_s, draft.start_s) if focus.box is not None]
        own = [e for e in snapshot.elements if focus and e.box == focus[-1].box]
        return (cover(own[0], self._redactor).model_dump(mode="json"), "") if own else (None, "")

    def window(self, draft: Draft[Frame], looks: Sequence[tuple[SeenWindow, ...]]) -> dict[str, Any]:
        """The window that was pointed at, or that had the keyboard; nothing of one that is excluded or asks for a password."""
        first = looks[0] if looks else ()
        if draft.points:
            window = next((window for window in first if window.box.holds(*draft.points[0])), None)
        else:
            window = next((window for window in first if window.is_active), None)
        if window is None or self._settings.exclusions.hides(window):
            return {}
        title, found = self._redactor.redact("" if asks_for_password(window.title) else window.title)
        self._hidden.update(found)
        return {"title": title[:2000], "application": window.application[:300], "box": window.box.model_dump()}


def text_of(draft: Draft[Frame]) -> str:
    return draft.action.text if isinstance(draft.action, TypeText) else ""
