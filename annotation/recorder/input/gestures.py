"""From what hands did to actions: presses become clicks, double clicks and drags, keys become text and hotkeys, notches become scrolls.

Pure: events in, drafts out, in the order in which they began. A draft comes out when it is sure to be over, by the next event or by the
time. Backspaces are resolved as far as they take back what was typed in the same burst; a burst ends with Enter, with any other key
or button, and after a pause.

Each event may bring a token along (the recorder gives the picture before it): a draft keeps the token of its first and of its last event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from annotation.recorder.input.events import COMMANDS, Button, Event, Key, Press, Wheel
from sandbox.actions import Action, Click, Direction, Drag, Hotkey, KeyDown, KeyUp, MouseDown, MouseUp, Scroll, TypeText

Token = TypeVar("Token")

DRAG_PX = 6
"""A button that comes up farther away than this dragged."""
REPEAT_S = 0.5
REPEAT_PX = 5
"""Clicks that follow each other within this time and distance are one double or triple click."""
TYPING_PAUSE_S = 2.0
SCROLL_PAUSE_S = 0.6
NOTCHES = 3
"""Notches that one Scroll stands for, as when it is carried out (sandbox/desktop/keys.py)."""
MAX_KEYS = 3
LONE = ("alt", "meta")
"""Modifiers that do something by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(Generic[Token]):
    """An action that happened. `before` came with its first event, `latest` with its last."""

    action: Action
    start_s: float
    end_s: float
    before: Token | None = None
    latest: Token | None = None

    @property
    def point(self) -> tuple[int, int] | None:
        match self.action:
            case Click(x=x, y=y) | Drag(x=x, y=y) | MouseDown(x=int(x), y=int(y)) | MouseUp(x=int(x), y=int(y)):
                return x, y
            case Scroll(x=int(x), y=int(y)):
                return x, y
        return None

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """All places it touched."""
        first = self.point
        if first is None:
            return ()
        return (first, (self.action.to_x, self.action.to_y)) if isinstance(self.action, Drag) else (first,)


@dataclass(slots=True, kw_only=True)
class _Open(Generic[Token]):
    """Something that may still go on."""

    start_s: float
    end_s: float
    before: Token | None
    latest: Token | None

    def go_on(self, time_s: float, token: Token | None) -> None:
        self.end_s, self.latest = time_s, token

    def draft(self, action: Action) -> Draft[Token]:
        return Draft(action=action, start_s=self.start_s, end_s=self.end_s, before=self.before, latest=self.latest)


@dataclass(slots=True, kw_only=True)
class _Typing(_Open[Token]):
    text: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Clicks(_Open[Token]):
    x: int
    y: int
    button: Button
    count: int
    modifiers: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Scrolling(_Open[Token]):
    direction: Direction
    x: int
    y: int
    notches: int
    is_first: bool


@dataclass(slots=True, kw_only=True)
class _Held(Generic[Token]):
    press: Press
    token: Token | None
    modifiers: tuple[str, ...]


class Gestures(Generic[Token]):
    """Feed it events in order; `tick` it now and then; `flush` it when something else ends what is under way, e.g. a change of focus."""

    def __init__(self) -> None:
        self._modifiers: dict[str, bool] = {}
        """Those that are down, and whether nothing else happened since."""
        self._typing: _Typing[Token] | None = None
        self._clicks: _Clicks[Token] | None = None
        self._scrolling: _Scrolling[Token] | None = None
        self._buttons: dict[Button, _Held[Token]] = {}

    @property
    def commands(self) -> tuple[str, ...]:
        """Modifiers that are down."""
        return tuple(name for name in COMMANDS if name in self._modifiers)

    @property
    def is_typing(self) -> bool:
        return self._typing is not None

    def feed(self, event: Event, token: Token | None = None) -> list[Draft[Token]]:
        """Drafts that this event shows to be over."""
        match event:
            case Key():
                return self._key(event, token)
            case Press():
                return self._press(event, token)
            case Wheel():
                return self._wheel(event, token)

    def tick(self, now_s: float) -> list[Draft[Token]]:
        """Drafts that are over because time went by."""
        over: list[Draft[Token]] = []
        if self._typing is not None and now_s - self._typing.end_s > TYPING_PAUSE_S:
            over += self._end_typing()
        if self._clicks is not None and now_s - self._clicks.end_s > REPEAT_S:
            over += self._end_clicks()
        if self._scrolling is not None and now_s - self._scrolling.end_s > SCROLL_PAUSE_S:
            over += self._end_scrolling()
        return over

    def flush(self) -> list[Draft[Token]]:
        """Everything that is under way; a button that is still down is left out."""
        return sorted([*self._end_clicks(), *self._end_scrolling(), *self._end_typing()], key=lambda draft: draft.start_s)

    def forget(self) -> None:
        """Drop everything that is under way, e.g. because recording paused."""
        self._typing = self._clicks = self._scrolling = None
        self._buttons.clear()
        self._modifiers.clear()

    def _key(self, key: Key, token: Token | None) -> list[Draft[Token]]:
        if key.name in COMMANDS or key.name == "altgr":
            return self._modifier(key, token)
        if not key.is_down:
            return []
        self._modifiers = dict.fromkeys(self._modifiers, False)
        over = [*self._end_clicks(), *self._end_scrolling()]
        if any(name in self._modifiers for name in ("ctrl", "alt", "meta")):
            return [*over, *self._end_typing(), *self._hotkey(key, token)]
        if key.name == "backspace" and self._typing is not None and self._typing.text:
            self._typing.text.pop()
            self._typing.go_on(key.time_s, token)
            return over
        if key.name == "enter" and self._typing is not None and self._typing.text:
            self._typing.text.append("\n")
            self._typing.go_on(key.time_s, token)
            return [*over, *self._end_typing()]
        if not key.text or not key.text.isprintable():
            return [*over, *self._end_typing(), *self._hotkey(key, token)]
        over += self.tick(key.time_s)
        if self._typing is None:
            self._typing = _Typing(start_s=key.time_s, end_s=key.time_s, before=token, latest=token)
        self._typing.text.append(key.text)
        self._typing.go_on(key.time_s, token)
        return over

    def _modifier(self, key: Key, token: Token | None) -> list[Draft[Token]]:
        if key.is_down:
            self._modifiers.setdefault(key.name, not self._modifiers)
            return []
        was_alone = self._modifiers.pop(key.name, False)
        if not was_alone or key.name not in LONE:
            return []
        return [*self.flush(), Draft(action=Hotkey(keys=(key.name,)), start_s=key.time_s, end_s=key.time_s, before=token, latest=token)]

    def _hotkey(self, key: Key, token: Token | None) -> list[Draft[Token]]:
        """The modifiers and the key; those that one Hotkey cannot hold are pressed around it."""
        held = self.commands
        inner = held[max(0, len(held) - MAX_KEYS + 1) :]
        action = Hotkey(keys=(*inner, key.name))
        return self._around(action, held[: len(held) - len(inner)], key.time_s, key.time_s, token, token)

    @staticmethod
    def _around(
        action: Action, modifiers: tuple[str, ...], start_s: float, end_s: float, before: Token | None, latest: Token | None
    ) -> list[Draft[Token]]:
        actions = [*(KeyDown(key=name) for name in modifiers), action, *(KeyUp(key=name) for name in reversed(modifiers))]
        return [Draft(action=one, start_s=start_s, end_s=end_s, before=before, latest=latest) for one in actions]

    def _press(self, press: Press, token: Token | None) -> list[Draft[Token]]:
        if press.is_down:
            self._modifiers = dict.fromkeys(self._modifiers, False)
            over = [*self._end_scrolling(), *self._end_typing()]
            if self._clicks is not None and not self._is_again(self._clicks, press):
                over += self._end_clicks()
            self._buttons[press.button] = _Held(press=press, token=token, modifiers=self.commands)
            return sorted(over, key=lambda draft: draft.start_s)
        held = self._buttons.pop(press.button, None)
        if held is None:  # it went down before we listened
            return []
        if max(abs(press.x - held.press.x), abs(press.y - held.press.y)) > DRAG_PX:
            return [*self._end_clicks(), *self._dragged(held, press, token)]
        if self._clicks is not None:
            self._clicks.count += 1
            self._clicks.go_on(press.time_s, token)
            return self._end_clicks() if self._clicks.count == 3 else []
        self._clicks = _Clicks(
            start_s=held.press.time_s,
            end_s=press.time_s,
            before=held.token,
            latest=token,
            x=held.press.x,
            y=held.press.y,
            button=press.button,
            count=1,
            modifiers=held.modifiers,
        )
        return []

    def _is_again(self, clicks: _Clicks[Token], press: Press) -> bool:
        is_near = max(abs(press.x - clicks.x), abs(press.y - clicks.y)) <= REPEAT_PX
        return is_near and press.button == clicks.button and press.time_s - clicks.end_s <= REPEAT_S and clicks.modifiers == self.commands

    def _dragged(self, held: _Held[Token], release: Press, token: Token | None) -> list[Draft[Token]]:
        start, times = held.press, (held.press.time_s, release.time_s)
        if release.button == "left":
            drag = Drag(x=start.x, y=start.y, to_x=release.x, to_y=release.y)
            return self._around(drag, held.modifiers, *times, held.token, token)
        down = MouseDown(x=start.x, y=start.y, button=release.button)
        up = MouseUp(x=release.x, y=release.y, button=release.button)
        return [Draft(action=one, start_s=times[0], end_s=times[1], before=held.token, latest=token) for one in (down, up)]

    def _wheel(self, wheel: Wheel, token: Token | None) -> list[Draft[Token]]:
        over = [*self._end_clicks(), *self._end_typing()]
        vertical: Direction = "down" if wheel.dy > 0 else "up"
        direction: Direction = vertical if wheel.dy else ("right" if wheel.dx > 0 else "left")
        going = self._scrolling
        is_same = going is not None and going.direction == direction and wheel.time_s - going.end_s <= SCROLL_PAUSE_S
        if going is not None and (not is_same or going.notches == NOTCHES):
            over += self._end_scrolling()
        if self._scrolling is None:
            self._scrolling = _Scrolling(
                start_s=wheel.time_s,
                end_s=wheel.time_s,
                before=token,
                latest=token,
                direction=direction,
                x=wheel.x,
                y=wheel.y,
                notches=0,
                is_first=not is_same,
            )
        self._scrolling.notches += 1
        self._scrolling.go_on(wheel.time_s, token)
        return sorted(over, key=lambda draft: draft.start_s)

    def _end_typing(self) -> list[Draft[Token]]:
        typing, self._typing = self._typing, None
        if typing is None or not typing.text:  # all of it was taken back
            return []
        return [typing.draft(TypeText(text="".join(typing.text)))]

    def _end_clicks(self) -> list[Draft[Token]]:
        clicks, self._clicks = self._clicks, None
        if clicks is None:
            return []
        action = Click(x=clicks.x, y=clicks.y, button=clicks.button, count=clicks.count)
        return self._around(action, clicks.modifiers, clicks.start_s, clicks.end_s, clicks.before, clicks.latest)

    def _end_scrolling(self) -> list[Draft[Token]]:
        scrolling, self._scrolling = self._scrolling, None
        # The one notch that is left over of a long scroll is less than half a gesture.
        if scrolling is None or (scrolling.notches == 1 and not scrolling.is_first):
            return []
        return [scrolling.draft(Scroll(direction=scrolling.direction, x=scrolling.x, y=scrolling.y))]
