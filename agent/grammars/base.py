"""What every grammar shares: the Grammar protocol, the parsed response, the error of an unwritable action, and coordinate arithmetic.

The text of a particular grammar is in its own file; which grammars there are is in registry.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import ValidationError

from sandbox.actions import Action, InvalidAction
from sandbox.session import Observation
from warehouse.core.errors import FlywheelError

Layout = Literal["elements", "chat"]
"""How prompts are laid out: `elements` is one user message with the element list, `chat` is turns with screenshots."""

QWEN_PATCH_PX = 28
QWEN_MIN_AREA_PX = 100 * QWEN_PATCH_PX**2
QWEN_MAX_AREA_PX = 16384 * QWEN_PATCH_PX**2
QWEN_MAX_ASPECT = 200
THINK_TAGS = r"think\w{0,64}|thought"
"""Names of the tags that models put around thoughts, whatever their case: think, thinkt, Thought, think_never_used_<32 digits>, …"""
_WRAPPER = re.compile(rf"</?(?:seed:)?(?:{THINK_TAGS}|computer_env|answer)\s*>", re.IGNORECASE)
MAX_INVALID_TEXT = 500
"""Characters of a bad response that an InvalidAction repeats; the step keeps the whole response."""


class NotRepresentable(FlywheelError, ValueError):
    """The grammar has no way to write this action. Raised by `format` only: what a policy writes badly is an InvalidAction."""


class BadText(ValueError):
    """Inside a parser: the text is not an action, and why. Never leaves a grammar; `parse` turns it into an InvalidAction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """What a response says. `actions` has at least one member; a bad response has exactly one, an InvalidAction."""

    thought: str | None
    actions: tuple[Action, ...]

    @property
    def invalid(self) -> InvalidAction | None:
        return next((action for action in self.actions if isinstance(action, InvalidAction)), None)


@runtime_checkable
class Grammar(Protocol):
    """One way of writing thoughts and actions as text."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    def parse(self, text: str, observation: Observation) -> ParsedResponse:
        """Never raises and never evaluates anything: bad text gives one InvalidAction that carries the reason."""
        ...

    def format(self, thought: str | None, action: Action, observation: Observation) -> str:
        """The canonical text of a thought and an action. Raises NotRepresentable for what the grammar cannot write (an InvalidAction,
        for one). `parse(format(t, a, o), o)` gives `a` back, up to the grammar's resolution of points."""
        ...

    def describe(self, action: Action, observation: Observation) -> str:
        """One short line for the history: what was done, or `invalid: <reason>`."""
        ...


def invalid_response(text: str, reason: str, thought: str | None = None) -> ParsedResponse:
    return ParsedResponse(thought=thought, actions=(InvalidAction(text=text[:MAX_INVALID_TEXT], reason=reason),))


def storable(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def without_wrappers(text: str) -> str:
    """The text without the tags that models put around thoughts, answers and turns."""
    return _WRAPPER.sub("", text)


def read_json(text: str, what: str) -> Any:
    """A JSON value that can be stored again as JSON. Raises BadText."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise BadText(f"{what} must be JSON, not {text[:40]!r}") from None
    return value


def validation_reason(error: ValidationError) -> str:
    """The first complaint of a pydantic model about an action's fields, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'action'}: {first['msg']}"


def to_pixels(x: float, y: float, *, scale_x: float, scale_y: float, observation: Observation) -> tuple[int, int]:
    """A point on a grid of `scale_x` by `scale_y` units as viewport pixels. Its far edge is the last pixel; raises BadText outside."""
    if not (math.isfinite(x) and math.isfinite(y) and 0 <= x <= scale_x and 0 <= y <= scale_y):
        raise BadText(f"point ({x:g}, {y:g}) is outside the screen of {scale_x:g} by {scale_y:g}")
    x_px = round(x / scale_x * observation.width_px)
    y_px = round(y / scale_y * observation.height_px)
    return min(x_px, observation.width_px - 1), min(y_px, observation.height_px - 1)


def from_pixels(x_px: int, y_px: int, *, scale_x: float, scale_y: float, observation: Observation) -> tuple[int, int]:
    """The inverse of `to_pixels`, rounded to whole grid units. Raises NotRepresentable outside the viewport."""
    if not (0 <= x_px < observation.width_px and 0 <= y_px < observation.height_px):
        raise NotRepresentable(
            f"point ({x_px}, {y_px}) is outside the viewport of {observation.width_px} by {observation.height_px} pixels; "
            "scroll it into view first"
        )
    return round(x_px / observation.width_px * scale_x), round(y_px / observation.height_px * scale_y)


def smart_resize(
    width_px: int,
    height_px: int,
    *,
    patch_px: int = QWEN_PATCH_PX,
    min_area_px: int = QWEN_MIN_AREA_PX,
    max_area_px: int = QWEN_MAX_AREA_PX,
) -> tuple[int, int]:
    """Size that Qwen2.5-VL's image processor gives a picture: sides are multiples of the patch, the area lies within the bounds.

    UI-TARS 1.5 writes points in pixels of that picture. Returns (width, height). Raises ValueError when one side is more than
    200 times the other. Source: the image processor's published behaviour (`Qwen2VLImageProcessor`), as UI-TARS 1.5 uses it.
    """
    if min(width_px, height_px) < 1 or max(width_px, height_px) > QWEN_MAX_ASPECT * min(width_px, height_px):
        raise ValueError(f"picture of {width_px} by {height_px}: sides must be positive and their ratio at most {QWEN_MAX_ASPECT}")

    def to_patches(side: float, whole: Callable[[float], int]) -> int:
        return max(patch_px, whole(side / patch_px) * patch_px)

    width, height = to_patches(width_px, round), to_patches(height_px, round)
    area_px = width_px * height_px
    if width * height > max_area_px:
        shrink = math.sqrt(area_px / max_area_px)
        return to_patches(width_px / shrink, math.floor), to_patches(height_px / shrink, math.floor)
    if width * height < min_area_px:
        grow = math.sqrt(min_area_px / area_px)
        return to_patches(width_px * grow, math.ceil), to_patches(height_px * grow, math.ceil)
    return width, height
