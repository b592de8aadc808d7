"""What a click or a drag on the picture of a screen may mean: answers in the grammar's words, likeliest first. Pure functions.

A drag means one of two things: to drag from here to there, or a box around what is meant, whose middle becomes the point.
"""

from __future__ import annotations

from agent.grammars.base import Grammar, NotRepresentable
from agent.grammars.elements import MAX_ELEMENTS
from annotation.service.editor.answers import view_of_action
from annotation.service.editor.completion_values import TYPED_ROLES
from annotation.wire.runs import ActionView, Point
from sandbox.actions import Action, Click, Drag, MoveTo, Scroll
from sandbox.session import Element, Observation

SMALLEST_DRAG_PX = 3
SMALLEST_BOX_PX = 6
"""On either side: what is thinner is a line."""
REACH_PX = 3
"""Elements are hit so far beside their edge, as they are small and drawn to whole pixels."""
MAX_ANSWERS = 8


def at_point(point: Point, grammar: Grammar, observation: Observation) -> list[ActionView]:
    """The element under the point before the point itself. Points beside the screen are moved onto it."""
    x, y = _inside(point.x, point.y, observation)
    if point.to_x is not None and point.to_y is not None:
        to_x, to_y = _inside(point.to_x, point.to_y, observation)
        if max(abs(to_x - x), abs(to_y - y)) >= SMALLEST_DRAG_PX:
            drags, boxed = _drags((x, y), (to_x, to_y), observation), _boxed((x, y), (to_x, to_y), observation)
            both = [*boxed, *drags] if _is_box((x, y), (to_x, to_y), observation) else [*drags, *boxed]
            return _views(both, grammar, observation)
    return _views(_clicks(x, y, observation), grammar, observation)


def element_under(x: int, y: int, observation: Observation) -> Element | None:
    """The smallest element around a point, things to click on before running text; of equals the last, which is drawn on top."""
    hits = [
        (element.role == "text", element.width_px * element.height_px, -index, element)
        for index, element in enumerate(observation.elements[:MAX_ELEMENTS])
        if abs(element.x_px - x) <= element.width_px / 2 + REACH_PX and abs(element.y_px - y) <= element.height_px / 2 + REACH_PX
    ]
    return min(hits, key=lambda hit: hit[:3])[3] if hits else None


def _clicks(x: int, y: int, observation: Observation) -> list[Action]:
    element = element_under(x, y, observation)
    places = [(x, y)] if element is None else [(element.x_px, element.y_px), (x, y)]
    found: list[Action] = [Click(x=at_x, y=at_y) for at_x, at_y in places]
    first_x, first_y = places[0]
    found += [Click(x=first_x, y=first_y, count=2), Click(x=first_x, y=first_y, button="right")]
    if element is not None and element.role in TYPED_ROLES:
        found.insert(1, Click(x=first_x, y=first_y, count=3))
    return [*found, MoveTo(x=first_x, y=first_y), *(Scroll(direction=way, x=x, y=y) for way in ("down", "up"))]


def _drags(start: tuple[int, int], end: tuple[int, int], observation: Observation) -> list[Action]:
    """From thing to thing, then from pixel to pixel, and the mixtures."""
    found: list[Action] = []
    starts, ends = (_element_then_point(place, observation) for place in (start, end))
    for x, y in starts:
        found += [Drag(x=x, y=y, to_x=to_x, to_y=to_y) for to_x, to_y in ends if (x, y) != (to_x, to_y)]
    return found


def element_within(start: tuple[int, int], end: tuple[int, int], observation: Observation) -> Element | None:
    """The largest element that lies in a box, things to click on before running text; of equals the first."""
    (left, right), (top, bottom) = (sorted(ends) for ends in zip(start, end, strict=True))
    hits = [
        (element.role == "text", -element.width_px * element.height_px, index, element)
        for index, element in enumerate(observation.elements[:MAX_ELEMENTS])
        if left - REACH_PX <= element.x_px - element.width_px / 2
        and element.x_px + element.width_px / 2 <= right + REACH_PX
        and top - REACH_PX <= element.y_px - element.height_px / 2
        and element.y_px + element.height_px / 2 <= bottom + REACH_PX
    ]
    return min(hits, key=lambda hit: hit[:3])[3] if hits else None


def _is_box(start: tuple[int, int], end: tuple[int, int], observation: Observation) -> bool:
    """Whether a drag is more likely a box: it goes around something, and does not begin on another thing, which it would drag."""
    within, under = element_within(start, end, observation), element_under(*start, observation)
    return within is not None and (under is None or under is within)


def _boxed(start: tuple[int, int], end: tuple[int, int], observation: Observation) -> list[Action]:
    """Clicks on what a box is drawn around, and on its middle."""
    if min(abs(end[0] - start[0]), abs(end[1] - start[1])) < SMALLEST_BOX_PX:
        return []
    within, middle = element_within(start, end, observation), ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2)
    (x, y), *others = [middle] if within is None else [(within.x_px, within.y_px), middle]
    clicks: list[Action] = [Click(x=at_x, y=at_y) for at_x, at_y in ((x, y), *others)]
    return [*clicks, Click(x=x, y=y, count=2), Click(x=x, y=y, button="right")]


def _element_then_point(place: tuple[int, int], observation: Observation) -> list[tuple[int, int]]:
    element = element_under(*place, observation)
    return [place] if element is None or element.role == "text" else [(element.x_px, element.y_px), place]


def _views(actions: list[Action], grammar: Grammar, observation: Observation) -> list[ActionView]:
    views: dict[str, ActionView] = {}
    for action in actions:
        try:
            view = view_of_action(action, grammar, observation)
        except NotRepresentable:
            continue
        views.setdefault(view.action, view)
    return list(views.values())[:MAX_ANSWERS]


def _inside(x: int, y: int, observation: Observation) -> tuple[int, int]:
    return min(max(x, 0), observation.width_px - 1), min(max(y, 0), observation.height_px - 1)
