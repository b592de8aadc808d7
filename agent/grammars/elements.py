"""Elements as numbered lines, the way the compact grammar reads them: `checked "Ok" <button> [2]`. Answers are compact.py's business."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from agent.grammars.quoting import escape
from sandbox.session import Element, Observation

MAX_ELEMENTS = 60
MAX_NAME_CHARS = 48
MAX_TEXT_CHARS = 60
"""Names of elements are cut to the first figure, running text (role `text`) to the second."""
MAX_VALUE_CHARS = 72
VALUE_GAP = " ... "
VALUE_END_CHARS = 30
"""What a field holds is shown up to so many characters; of more its beginning and its end, which a gap parts."""
MAX_OUTPUT_LINES = 12
"""Of what a tool printed, so many of the last lines."""
SIZE_RATIO = 1.6
"""Between the tallest and the lowest shape of a screen, from which on shapes are called large or small."""
VALUE_ROLES = ("input", "textarea")
"""Elements whose text is what a person typed: shown to the character. All other text has its white space collapsed."""
MAX_OFFSET_PX = 60
"""So far from an element's click point a point may be named by it."""
ANSWER_ROLES = ("text", "link")
"""Elements whose text may be an answer."""


def element_line(element: Element, index: int, size: str = "") -> str:
    """`checked "Ok" <button> [2]`: size if it is said, states, name cut and escaped, role, 1-based number."""
    return " ".join((*([size] if size else []), *element.states, quoted_name(element), f"<{element.role}>", f"[{index}]"))


def render_elements(observation: Observation, limit: int = MAX_ELEMENTS) -> str:
    """The element list as the policy reads it: one line an element in reading order, and a last line that counts what was cut off."""
    shown = observation.elements[: min(limit, MAX_ELEMENTS)]
    sizes = _sizes(observation.elements)
    lines = [element_line(element, index, size) for index, (element, size) in enumerate(zip(shown, sizes, strict=False), start=1)]
    if len(observation.elements) > len(shown):
        lines.append(f"{len(observation.elements) - len(shown)} more elements")
    return "\n".join(lines)


def _sizes(elements: Sequence[Element]) -> list[str]:
    """For each element `large` or `small`, if it is a shape and the shapes of the screen are of clearly different heights: what a person
    sees at once, and lines do not show."""
    heights = [element.height_px for element in elements if element.role == "shape" and element.height_px > 0]
    if not heights or max(heights) < SIZE_RATIO * min(heights):
        return [""] * len(elements)
    middle = math.sqrt(min(heights) * max(heights))
    return [("large" if element.height_px >= middle else "small") if element.role == "shape" else "" for element in elements]


def render_observation(observation: Observation, limit: int = MAX_ELEMENTS) -> str:
    """All that the policy reads of a moment: what a tool printed, then the elements."""
    return "\n".join(part for part in (render_output(observation), render_elements(observation, limit)) if part)


def render_output(observation: Observation, limits: tuple[int, int] = (MAX_OUTPUT_LINES, MAX_TEXT_CHARS)) -> str:
    """What the last tool call printed as the policy reads it, `output "total 4"` a line, white space collapsed; a first line counts what
    was cut off. `limits`: the last so many lines, so many characters of each."""
    max_lines, max_chars = limits
    printed = _printed(observation.output)
    shown = printed[-max_lines:]
    lines = [f"{len(printed) - len(shown)} more output"] if len(printed) > len(shown) else []
    return "\n".join([*lines, *(f'output "{escape(line[:max_chars].rstrip())}"' for line in shown)])


def is_output_cut(output: str, limits: tuple[int, int]) -> bool:
    """Whether `render_output` leaves any of it out."""
    printed = _printed(output)
    return len(printed) > limits[0] or any(len(line) > limits[1] for line in printed)


def _printed(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines() if line.strip()]


def quoted_name(element: Element) -> str:
    """What the element is called or holds, cut and escaped, between quotes."""
    if element.role in VALUE_ROLES:
        return f'"{escape(_value(element.text))}"'
    max_chars = MAX_TEXT_CHARS if element.role == "text" else MAX_NAME_CHARS
    return f'"{escape(" ".join(element.text.split())[:max_chars].rstrip())}"'


def _value(text: str) -> str:
    if len(text) <= MAX_VALUE_CHARS:
        return text
    return text[: MAX_VALUE_CHARS - len(VALUE_GAP) - VALUE_END_CHARS] + VALUE_GAP + text[-VALUE_END_CHARS:]


def spoken_element(observation: Observation, index: int) -> str:
    """An element as thoughts name it: its line without the states."""
    element = observation.elements[index - 1]
    return f"{quoted_name(element)} <{element.role}> [{index}]"


def element_index_at(x_px: int, y_px: int, observation: Observation) -> int | None:
    """Number of the element whose click point this is. Where several share the point, the first that is not plain text."""
    hits = [
        index for index, element in enumerate(observation.elements[:MAX_ELEMENTS], start=1) if (element.x_px, element.y_px) == (x_px, y_px)
    ]
    return next((index for index in hits if observation.elements[index - 1].role != "text"), hits[0] if hits else None)


def element_index_near(x_px: int, y_px: int, observation: Observation) -> int | None:
    """Number of the element whose click point is nearest, if that is no more than MAX_OFFSET_PX away to a side and up or down; of several
    the first that is not plain text."""
    near = [
        (math.dist((x_px, y_px), (element.x_px, element.y_px)), element.role == "text", index)
        for index, element in enumerate(observation.elements[:MAX_ELEMENTS], start=1)
        if max(abs(element.x_px - x_px), abs(element.y_px - y_px)) <= MAX_OFFSET_PX
    ]
    return min(near)[2] if near else None


def source_of_text(text: str, observation: Observation, roles: Collection[str] = ("text",)) -> tuple[int, ...]:
    """Where a text can be read on the page: the number of the element of one of `roles` that is it, after that of the running text before
    it, which is often its label. Empty where the page does not show it."""
    shown = observation.elements[:MAX_ELEMENTS]
    index = next((index for index, element in enumerate(shown, start=1) if element.role in roles and element.text == text), None)
    if index is None:
        return ()
    return (index - 1, index) if index > 1 and shown[index - 2].role == "text" else (index,)
