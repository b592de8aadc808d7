"""Oracles of tasks about shapes, colours, coordinates and dragging."""

from __future__ import annotations

import re

from sandbox.actions import Action, Drag, Scroll
from sandbox.session import Element
from sandbox.tasks.miniwob.oracle_screen import QUERY_HEIGHT_PX, Screen, click, drag, number

LARGE_PX = 16
"""MiniWoB draws shapes and letters in two sizes, 10 and 20 pixels."""
COLOUR_NAMES = {"aqua": "cyan", "gray": "grey"}
KINDS = {"square": "rectangle", "rectangle": "rectangle", "circle": "circle", "triangle": "triangle"}


def _look(element: Element) -> tuple[str, str]:
    """Colour and thing of a shape: ("red", "circle"), ("cyan", "M"); a letter without a colour is black."""
    colour, _, thing = element.text.rpartition(" ")
    return colour or "black", KINDS.get(thing, thing)


def _fits(element: Element, size: str, colour: str, thing: str) -> bool:
    found_colour, found = _look(element)
    if size and (element.height_px >= LARGE_PX) != (size == "large"):
        return False
    if colour and found_colour != COLOUR_NAMES.get(colour, colour):
        return False
    is_shape = found in KINDS.values()
    classes = {"item": True, "shape": is_shape, "letter": found.isalpha() and not is_shape, "digit": found.isdigit()}
    return classes.get(thing, found == thing)


def _describe(text: str) -> tuple[str, str, str]:
    """Size, colour and thing of a description such as "small red digit"; what is not said is empty."""
    words = text.split()
    size = words.pop(0) if words[0] in ("small", "large") and len(words) > 1 else ""
    return size, words[0] if len(words) > 1 else "", words[-1]


def shape_described(screen: Screen) -> Action | None:
    wanted = screen.match(r"Click on a (.+)")
    if not wanted:
        return None
    return click(next((e for e in screen.all("shape") if _fits(e, *_describe(wanted[0]))), None))


def count_shapes(screen: Screen) -> Action | None:
    wanted = screen.match(r"How many (.+)s are there")
    if not wanted:
        return None
    num = sum(_fits(e, *_describe(wanted[0])) for e in screen.all("shape"))
    return click(screen.first("button", text=str(num)))


def identify_shape(screen: Screen) -> Action | None:
    shape = screen.first("shape")
    if shape is None:
        return None
    thing = _look(shape)[1]
    name = thing.capitalize() if thing in KINDS.values() else "Number" if thing.isdigit() else "Letter"
    return click(screen.first("button", text=name))


def coloured_box(screen: Screen) -> Action | None:
    """The colour is said in words, or shown as a swatch in the instruction."""
    said = screen.match(r"Click on the (\w+) colored box")
    swatch = next((e for e in screen.elements if e.role == "shape" and e.y_px < QUERY_HEIGHT_PX), None)
    colour = said[0] if said else _look(swatch)[0] if swatch else None
    return click(next((e for e in screen.all("shape") if _look(e)[0] == colour), None))


def shades(screen: Screen) -> Action | None:
    wanted = screen.match(r"shades of (\w+)")
    if not wanted:
        return None
    for e in screen.all("shape"):
        if ("selected" in e.states) != (_look(e)[0] == wanted[0]):
            return click(e)
    return click(screen.first("button", text="Submit"))


def grid_point(screen: Screen) -> Action | None:
    wanted = screen.match(r"\((-?\d),(-?\d)\)")
    points = screen.all("shape")
    xs, ys = sorted({p.x_px for p in points}), sorted({p.y_px for p in points})
    if not wanted or len(xs) != 5 or len(ys) != 5:
        return None
    x, y = xs[int(wanted[0]) + 2], ys[2 - int(wanted[1])]
    return click(next((p for p in points if (p.x_px, p.y_px) == (x, y)), None))


# ---- dragging ----

STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SHIFT_PX = 25


def drag_towards(screen: Screen) -> Action | None:
    """drag-circle, drag-single-shape: what counts is where the shape ends, measured from where it first was."""
    wanted = screen.match(r"Drag the (?:circle|item) (\w+)")
    shape = screen.first("shape")
    if not wanted or shape is None:
        return None
    dx, dy = STEPS[wanted[0]]
    drags = [action for action in screen.history if isinstance(action, Drag)]
    start = (drags[0].x, drags[0].y) if drags else (shape.x_px, shape.y_px)
    moved = (shape.x_px - start[0]) * dx + (shape.y_px - start[1]) * dy
    if moved > SHIFT_PX / 2:
        return click(screen.first("button", text="Submit"))
    return drag(shape, start[0] + SHIFT_PX * dx, start[1] + SHIFT_PX * dy)


def into_the_box(screen: Screen) -> Action | None:
    """drag-shapes: the named kind into the box, everything else out of it."""
    wanted = screen.match(r"Drag all (\w+)s into")
    box = next((e for e in screen.all("shape") if "outlined" in e.text), None)
    if not wanted or box is None:
        return None
    shapes = [e for e in screen.all("shape") if e is not box]
    inside = [e for e in shapes if _is_within(e, box)]
    for e in shapes:
        belongs = _look(e)[1] == wanted[0]
        if belongs and e not in inside:
            return drag(e, *_slot(box, inside))
        if not belongs and e in inside:
            return drag(e, 10, QUERY_HEIGHT_PX + 10)
    return click(screen.first("button", text="Submit"))


def into_two_boxes(screen: Screen) -> Action | None:
    """drag-shapes-2: what is named goes left, the rest goes right."""
    wanted = screen.match(r"Drag all (\w+?)s? (?:shapes )?into the left box")
    boxes = sorted((e for e in screen.all("shape") if "outlined" in e.text), key=lambda e: e.x_px)
    if not wanted or len(boxes) != 2:
        return None
    shapes = [e for e in screen.all("shape") if e not in boxes]
    for e in shapes:
        named = COLOUR_NAMES.get(wanted[0], wanted[0])
        box = boxes[0] if named in _look(e) else boxes[1]
        if not _is_within(e, box):
            return drag(e, *_slot(box, [s for s in shapes if _is_within(s, box)]))
    return click(screen.first("button", text="Submit"))


def _is_within(e: Element, box: Element) -> bool:
    return abs(e.x_px - box.x_px) < box.width_px / 2 - 4 and abs(e.y_px - box.y_px) < box.height_px / 2 - 4


def _slot(box: Element, taken: list[Element]) -> tuple[int, int]:
    """A free place in a box, so that no shape hides another."""
    places = [(box.x_px + dx, box.y_px + dy) for dy in (-10, 10) for dx in (-20, 0, 20)]
    return max(places, key=lambda place: min((abs(place[0] - e.x_px) + abs(place[1] - e.y_px) for e in taken), default=0))


def small_box_into_large(screen: Screen) -> Action | None:
    """drag-box: the boxes are known by the letters in their top left corners; the small one has to lie 0 to 30 pixels inside."""
    small, large = screen.first("text", text="s"), screen.first("text", text="L")
    if small is None or large is None:
        return None
    if all(5 < d < 25 for d in (small.x_px - large.x_px, small.y_px - large.y_px)):
        return click(screen.first("button", text="Submit"))
    return drag(small, large.x_px + 15, large.y_px + 15)


def move_item(screen: Screen) -> Action | None:
    """drag-items: a list of five, the target said as an end, a step or a position."""
    wanted = screen.match(r"Drag (\S+) (.+)\.")
    items = screen.all("item")
    item = next((e for e in items if wanted and e.text == wanted[0]), None)
    if not wanted or item is None:
        return None
    index, where = items.index(item), wanted[1]
    nth = re.search(r"(\d)(?:st|nd|rd|th)", where)
    target = (
        int(nth[1]) - 1
        if nth
        else {"to the top": 0, "to the bottom": len(items) - 1, "down by one position": index + 1, "up by one position": index - 1}[where]
    )
    return _drop_on(item, items[target])


GRID_PLACES = [
    "top left",
    "top center",
    "top right",
    "center left",
    "center",
    "center right",
    "bottom left",
    "bottom center",
    "bottom right",
]
GRID_STEPS = {"up": -3, "down": 3, "left": -1, "right": 1}
LATE_PX = 16
"""From an item's middle to near its edge: a drag from there to the same place of another row enters that row last."""


def move_grid_item(screen: Screen) -> Action | None:
    """drag-items-grid. The page makes room at once for what is dragged: ahead of an item when the pointer comes over its left half going
    left or straight up, else behind it. So on the way up and right the item ahead of the goal is the one to come to; and where the way
    and the order of the items point apart, a row is entered at its end, so that no other item of it gives way first."""
    wanted = screen.match(r"Drag (\S+) (?:to the )?(.+)\.")
    items = screen.all("item")
    item = next((e for e in items if wanted and e.text == wanted[0]), None)
    if not wanted or item is None or len(items) != 9:
        return None
    where, index = wanted[1].removesuffix(" by one"), items.index(item)
    target = index + GRID_STEPS[where] if where in GRID_STEPS else GRID_PLACES.index(where)
    goal = items[target]
    down, right = target // 3 - index // 3, target % 3 - index % 3
    if down > 0 and right < 0:
        return Drag(x=item.x_px, y=item.y_px - LATE_PX, to_x=goal.x_px - 6, to_y=goal.y_px - LATE_PX)
    if down < 0 and right > 0:
        ahead = items[target - 1]
        return Drag(x=item.x_px - 8, y=item.y_px + LATE_PX, to_x=ahead.x_px + 12, to_y=ahead.y_px + LATE_PX)
    return drag(item, goal.x_px + (4 if right > 0 else -4), goal.y_px + (4 if target > index else -4))


def sort_numbers(screen: Screen) -> Action | None:
    """Selection sort: drag the smallest of what is out of order to its place."""
    items = screen.all("item")
    values = [number(e.text) for e in items]
    if not items or any(value is None for value in values):
        return None
    for index, value in enumerate(sorted(v for v in values if v is not None)):
        if values[index] != value:
            return _drop_on(items[values.index(value, index)], items[index])
    return click(screen.first("button", text="Submit"))


def _drop_on(item: Element, goal: Element) -> Action:
    """Past the middle of the goal, which makes a sortable list give way."""
    return drag(item, item.x_px, goal.y_px + (6 if goal.y_px > item.y_px else -6))


def resize(screen: Screen) -> Action | None:
    wanted = screen.match(r"so that the (width|height) is (smaller|larger)")
    handle = screen.first("image", text="resize handle")
    if not wanted or handle is None:
        return None
    drags = [action for action in screen.history if isinstance(action, Drag)]
    start = (drags[0].x, drags[0].y) if drags else (handle.x_px, handle.y_px)
    step = 15 if wanted[1] == "larger" else -15
    moved = handle.x_px - start[0] if wanted[0] == "width" else handle.y_px - start[1]
    if moved * step > 40:
        return click(screen.first("button", text="Submit"))
    return drag(handle, start[0] + (step if wanted[0] == "width" else 0), start[1] + (step if wanted[0] == "height" else 0))


def scroll_to_end(screen: Screen) -> Action | None:
    """scroll-text-2: nothing shows how far the text is scrolled, so scroll more than any of them needs."""
    wanted = screen.match(r"to the (top|bottom) of the text")
    area = screen.first("textarea")
    if not wanted or area is None:
        return None
    direction = "up" if wanted[0] == "top" else "down"
    last = screen.history[-SCROLLS_TO_END:]
    if len(last) == SCROLLS_TO_END and all(isinstance(action, Scroll) and action.direction == direction for action in last):
        return click(screen.first("button", text="Submit"))
    return Scroll(direction="up" if direction == "up" else "down", x=area.x_px, y=area.y_px)


SCROLLS_TO_END = 6
