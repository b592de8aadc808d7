"""From actions to pointer and keyboard gestures, and from gestures to DevTools input commands. Pure: nothing is sent here.

Gestures come in phases; the page draws a frame after each, as it would under a person's hand. Key names are those agents write
("ctrl", "pagedown", "a"); key codes are a US keyboard's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sandbox import actions
from sandbox.actions import Action, point_outside

Button = Literal["left", "middle", "right"]
Command = tuple[str, dict[str, Any]]

WHEEL_STEP_PX = 100
LONG_PRESS_MS = 700.0
DRAG_MOVES = 4
MAX_TYPED_CHARS = 4000
"""So many that a step cannot end within its limit are the policy's to avoid, not the machine's to type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerMove:
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerDown:
    button: Button
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerUp:
    button: Button
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    dx: int
    dy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStroke:
    """One key going down or up. `name` is a key of KEYS or one printable character."""

    name: str
    is_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """Characters no US keyboard has, as an input method would insert them."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Page time goes by."""

    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The action cannot be carried out here, and why: fed back to the agent."""

    reason: str


Gesture = PointerMove | PointerDown | PointerUp | Wheel | KeyStroke | Insert
Phase = tuple[Gesture, ...] | Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as the DevTools protocol and Playwright name it. `text` is what it types, if anything."""

    key: str
    code: str
    virtual_code: int
    text: str = ""


_MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
_BUTTONS = {"left": 1, "right": 2, "middle": 4}

KEYS: dict[str, Key] = {
    "enter": Key(key="Enter", code="Enter", virtual_code=13, text="\r"),
    "tab": Key(key="Tab", code="Tab", virtual_code=9),
    "escape": Key(key="Escape", code="Escape", virtual_code=27),
    "backspace": Key(key="Backspace", code="Backspace", virtual_code=8),
    "delete": Key(key="Delete", code="Delete", virtual_code=46),
    "insert": Key(key="Insert", code="Insert", virtual_code=45),
    "space": Key(key=" ", code="Space", virtual_code=32, text=" "),
    "arrowleft": Key(key="ArrowLeft", code="ArrowLeft", virtual_code=37),
    "arrowup": Key(key="ArrowUp", code="ArrowUp", virtual_code=38),
    "arrowright": Key(key="ArrowRight", code="ArrowRight", virtual_code=39),
    "arrowdown": Key(key="ArrowDown", code="ArrowDown", virtual_code=40),
    "pageup": Key(key="PageUp", code="PageUp", virtual_code=33),
    "pagedown": Key(key="PageDown", code="PageDown", virtual_code=34),
    "end": Key(key="End", code="End", virtual_code=35),
    "home": Key(key="Home", code="Home", virtual_code=36),
    "ctrl": Key(key="Control", code="ControlLeft", virtual_code=17),
    "shift": Key(key="Shift", code="ShiftLeft", virtual_code=16),
    "alt": Key(key="Alt", code="AltLeft", virtual_code=18),
    "meta": Key(key="Meta", code="MetaLeft", virtual_code=91),
    "capslock": Key(key="CapsLock", code="CapsLock", virtual_code=20),
    **{f"f{n}": Key(key=f"F{n}", code=f"F{n}", virtual_code=111 + n) for n in range(1, 13)},
}
_ALIASES = {
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "left": "arrowleft",
    "up": "arrowup",
    "right": "arrowright",
    "down": "arrowdown",
    "page_up": "pageup",
    "page_down": "pagedown",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "control": "ctrl",
    "option": "alt",
    "cmd": "meta",
    "command": "meta",
    "win": "meta",
    "super": "meta",
    "spacebar": "space",
    "arrow_left": "arrowleft",
    "arrow_up": "arrowup",
    "arrow_right": "arrowright",
    "arrow_down": "arrowdown",
    "plus": "+",
    "minus": "-",
    "comma": ",",
    "period": ".",
    "\n": "enter",
    "\t": "tab",
    " ": "space",
}
# (code, virtual code, plain, shifted) of the keys that are neither letters nor digits on a US keyboard
_SYMBOLS = (
    ("Backquote", 192, "`", "~"),
    ("Minus", 189, "-", "_"),
    ("Equal", 187, "=", "+"),
    ("BracketLeft", 219, "[", "{"),
    ("BracketRight", 221, "]", "}"),
    ("Backslash", 220, "\\", "|"),
    ("Semicolon", 186, ";", ":"),
    ("Quote", 222, "'", '"'),
    ("Comma", 188, ",", "<"),
    ("Period", 190, ".", ">"),
    ("Slash", 191, "/", "?"),
)
_SHIFTED_DIGITS = ")!@#$%^&*("


def _character_keys() -> Iterator[tuple[str, Key]]:
    for letter in "abcdefghijklmnopqrstuvwxyz":
        for character in (letter, letter.upper()):
            yield character, Key(key=character, code=f"Key{letter.upper()}", virtual_code=ord(letter.upper()), text=character)
    for digit, shifted in enumerate(_SHIFTED_DIGITS):
        for character in (str(digit), shifted):
            yield character, Key(key=character, code=f"Digit{digit}", virtual_code=48 + digit, text=character)
    for code, virtual_code, *characters in _SYMBOLS:
        for character in characters:
            yield character, Key(key=character, code=code, virtual_code=virtual_code, text=character)


_CHARACTERS = dict(_character_keys())


def find_key(name: str) -> Key | None:
    """The key of a name or character, or None."""
    if name in _CHARACTERS:
        return _CHARACTERS[name]
    lowered = name.lower()
    return KEYS.get(_ALIASES.get(lowered, lowered)) or _CHARACTERS.get(_ALIASES.get(lowered, ""))


def gestures(action: Action, area_px: tuple[int, int], place: str = "page") -> tuple[Phase, ...] | Refusal:
    """The phases that carry out an action of pointer, keyboard or time on a page (or another `place`) of the given size; a Refusal for a
    point that lies outside, an unknown key, and for every action that has no gesture."""
    if (outside := point_outside(action, area_px)) is not None:
        return Refusal(reason=f"point {outside} is outside the {place} of {area_px[0]}x{area_px[1]} pixels")
    match action:
        case actions.TypeText(text=text) if len(text) > MAX_TYPED_CHARS:
            return Refusal(reason=f"{len(text)} characters are too many for one action; at most {MAX_TYPED_CHARS} are typed at once")
        case actions.TypeText(text=text):
            return (tuple(_typing(text)),) if text else ()
        case actions.Hotkey(keys=keys):
            return _with_known_keys(
                keys, (*(KeyStroke(name=k, is_down=True) for k in keys), *(KeyStroke(name=k, is_down=False) for k in reversed(keys)))
            )
        case actions.KeyDown(key=key):
            return _with_known_keys((key,), (KeyStroke(name=key, is_down=True),))
        case actions.KeyUp(key=key):
            return _with_known_keys((key,), (KeyStroke(name=key, is_down=False),))
        case actions.Wait(seconds=seconds):
            return (Pause(ms=seconds * 1000),)
        case _:
            return _pointer_gestures(action, area_px) or Refusal(reason=f"{action.kind} is not possible in this {place}")


def _pointer_gestures(action: Action, area_px: tuple[int, int]) -> tuple[Phase, ...] | None:
    match action:
        case actions.Click(x=x, y=y, button=button, count=count):
            presses = ((PointerDown(button=button, count=n), PointerUp(button=button, count=n)) for n in range(1, count + 1))
            return ((PointerMove(x=x, y=y), *(gesture for press in presses for gesture in press)),)
        case actions.Drag(x=x, y=y, to_x=to_x, to_y=to_y):
            steps = [n / DRAG_MOVES for n in range(1, DRAG_MOVES + 1)]
            moves = [(PointerMove(x=round(x + (to_x - x) * f), y=round(y + (to_y - y) * f)),) for f in steps]
            return ((PointerMove(x=x, y=y), PointerDown(button="left")), *moves, (PointerUp(button="left"),))
        case actions.LongPress(x=x, y=y):
            return ((PointerMove(x=x, y=y), PointerDown(button="left")), Pause(ms=LONG_PRESS_MS), (PointerUp(button="left"),))
        case actions.MoveTo(x=x, y=y):
            return ((PointerMove(x=x, y=y),),)
        case actions.MouseDown(x=x, y=y, button=button):
            return ((*_move(x, y), PointerDown(button=button)),)
        case actions.MouseUp(x=x, y=y, button=button):
            return ((*_move(x, y), PointerUp(button=button)),)
        case actions.Scroll(direction=direction, x=x, y=y):
            dx, dy = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
            middle = (area_px[0] // 2, area_px[1] // 2) if x is None or y is None else (x, y)
            return ((*_move(*middle), Wheel(dx=dx * WHEEL_STEP_PX, dy=dy * WHEEL_STEP_PX)),)
        case _:
            return None


def _move(x: int | None, y: int | None) -> tuple[PointerMove, ...]:
    return () if x is None or y is None else (PointerMove(x=x, y=y),)


def _with_known_keys(names: tuple[str, ...], phase: tuple[Gesture, ...]) -> tuple[Phase, ...] | Refusal:
    unknown = [name for name in names if find_key(name) is None]
    if unknown:
        return Refusal(reason=f"unknown key {unknown[0]!r}; known are single characters and {', '.join(sorted(KEYS))}")
    return (phase,)


def _typing(text: str) -> Iterator[Gesture]:
    """Every character a keyboard has as a key stroke, so that pages see key events; runs of others are inserted."""
    other = ""
    for character in text.replace("\r\n", "\n").replace("\r", "\n"):
        if find_key(character) is None:
            other += character
            continue
        if other:
            yield Insert(text=other)
            other = ""
        yield KeyStroke(name=character, is_down=True)
        yield KeyStroke(name=character, is_down=False)
    if other:
        yield Insert(text=other)


class CdpInput:
    """Turns gestures into DevTools commands; remembers where the pointer is and what is held down."""

    def __init__(self) -> None:
        self.composes = False
        """Text that no key types is composed first, as an input method does, with the events that pages get from one."""
        self._x = self._y = 0
        self._buttons = 0
        self._modifiers = 0
        self._held: dict[str, Key] = {}

    def commands(self, gesture: Gesture) -> Iterator[Command]:
        match gesture:
            case PointerMove(x=x, y=y):
                self._x, self._y = x, y
                yield self._mouse("mouseMoved", button="left" if self._buttons & 1 else "none")
            case PointerDown(button=button, count=count):
                self._buttons |= _BUTTONS[button]
                yield self._mouse("mousePressed", button=button, clickCount=count)
            case PointerUp(button=button, count=count):
                self._buttons &= ~_BUTTONS[button]
                yield self._mouse("mouseReleased", button=button, clickCount=count)
            case Wheel(dx=dx, dy=dy):
                yield self._mouse("mouseWheel", deltaX=dx, deltaY=dy)
            case KeyStroke(name=name, is_down=is_down):
                yield from self._key(name, is_down)
            case Insert(text=text):
                if self.composes:
                    yield "Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)}
                yield "Input.insertText", {"text": text}

    @property
    def is_dragging(self) -> bool:
        """Whether the button is held that drags."""
        return bool(self._buttons & _BUTTONS["left"])

    def is_modified(self, phases: Sequence[Phase]) -> bool:
        """Whether a modifier key is held, or pressed by these gestures."""
        strokes = (gesture for phase in phases if isinstance(phase, tuple) for gesture in phase if isinstance(gesture, KeyStroke))
        return bool(self._modifiers) or any((key := find_key(stroke.name)) is not None and key.key in _MODIFIERS for stroke in strokes)

    def rest(self, x: int, y: int) -> Iterator[Command]:
        """Let everything go and take the pointer away, so that no episode feels the hand of the one before."""
        for button, bit in _BUTTONS.items():
            if self._buttons & bit:
                yield from self.commands(PointerUp(button=button))  # type: ignore[arg-type]
        for name in list(self._held):
            yield from self._key(name, is_down=False)
        yield from self.commands(PointerMove(x=x, y=y))

    def _mouse(self, kind: str, **more: Any) -> Command:
        point = {"x": self._x, "y": self._y}
        return "Input.dispatchMouseEvent", {"type": kind, **point, "buttons": self._buttons, "modifiers": self._modifiers, **more}

    def _key(self, name: str, is_down: bool) -> Iterator[Command]:
        key = find_key(name)
        if key is None:
            return
        bit = _MODIFIERS.get(key.key, 0)
        self._modifiers = self._modifiers | bit if is_down else self._modifiers & ~bit
        if is_down:
            self._held[name] = key
        else:
            self._held.pop(name, None)
        params: dict[str, Any] = {
            "type": "keyUp",
            "key": self._shifted(key.key) if key.text else key.key,
            "code": key.code,
            "windowsVirtualKeyCode": key.virtual_code,
            "modifiers": self._modifiers,
        }
        if is_down:
            types_text = key.text and not self._modifiers & (_MODIFIERS["Control"] | _MODIFIERS["Alt"] | _MODIFIERS["Meta"])
            text = self._shifted(key.text) if types_text else ""
            params |= {"type": "keyDown", "text": text, "unmodifiedText": text} if text else {"type": "rawKeyDown"}
            if sys.platform == "darwin" and self._modifiers & (_MODIFIERS["Control"] | _MODIFIERS["Meta"]):
                params["commands"] = _MAC_COMMANDS.get(key.key.lower(), [])
        yield "Input.dispatchKeyEvent", params

    def _shifted(self, text: str) -> str:
        return text.upper() if self._modifiers & _MODIFIERS["Shift"] and len(text) == 1 else text


_MAC_COMMANDS = {"a": ["selectAll"], "c": ["copy"], "v": ["paste"], "x": ["cut"], "z": ["undo"]}
"""On macOS the browser's window, which a headless one lacks, would turn these shortcuts into editing commands."""
