"""From what `uiautomator dump` prints to elements. Pure: nothing is asked of a device here.

Android nests what a person sees as one thing (a row with a title, a summary and a switch); whatever can be touched becomes one element
that carries the words and the switch inside it, and words outside of anything touchable become `text`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # nosec B405
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.session import Element
from warehouse.core.errors import SandboxError

_BOUNDS = re.compile(r"\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]")
_ROTATION = re.compile(r"<hierarchy[^>]* rotation=\"(\d)\"")
_ROLES = (
    ("EditText", "input"),
    ("AutoCompleteTextView", "input"),
    ("RadioButton", "radio"),
    ("CheckedTextView", "radio"),
    ("CheckBox", "checkbox"),
    ("Switch", "checkbox"),
    ("SwitchCompat", "checkbox"),
    ("ToggleButton", "checkbox"),
    ("Spinner", "select"),
    ("SeekBar", "slider"),
    ("RatingBar", "slider"),
    ("NumberPicker", "spinner"),
    ("Button", "button"),
    ("ImageView", "image"),
    ("Tab", "tab"),
)
"""Role by how a widget's class name ends, the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UiTree:
    """One dump: elements in reading order of the tree, and the package in front."""

    elements: tuple[Element, ...]
    package: str


def parse(xml: str, size_px: tuple[int, int]) -> UiTree:
    """Read a dump; what lies outside of the screen is left out. Raises SandboxError where it is not a dump."""
    start, end = xml.find("<hierarchy"), xml.rfind("</hierarchy>")
    if start < 0 or end < start:
        raise SandboxError(f"UI Automator gave no tree of the screen: {xml[:200]!r}. Is another UI Automator (Appium, u2) connected?")
    text = xml[start : end + len("</hierarchy>")]
    if "<!" in text:  # a dump has no declarations; one that does would be expanded by the parser
        raise SandboxError("UI Automator's tree has a document type or comment, which it never writes: what answered is not UI Automator.")
    try:
        root = ET.fromstring(text)  # nosec B314 # expat limits what entities become, and resolves no outer ones
    except ET.ParseError as error:
        raise SandboxError(f"UI Automator's tree of the screen is not XML ({error}): {xml[:200]!r}.") from error
    windows = list(root)
    return UiTree(
        elements=tuple(element for window in windows for element in _elements(window, size_px)),
        package=windows[0].get("package", "") if windows else "",
    )


def rotation(xml: str) -> int:
    """How the screen of a dump is turned, in quarter turns."""
    match = _ROTATION.search(xml)
    return int(match[1]) if match else 0


def _elements(node: ET.Element, size_px: tuple[int, int]) -> Iterator[Element]:
    if _is_touchable(node):
        inner = [part for child in node for part in _own_parts(child)]
        yield from _element(node, inner, size_px)
        for part in [node, *inner]:
            for child in part:
                if _is_touchable(child):
                    yield from _elements(child, size_px)
        return
    if _words(node):
        yield from _element(node, [], size_px)
    for child in node:
        yield from _elements(child, size_px)


def _own_parts(node: ET.Element) -> Iterator[ET.Element]:
    """What belongs to the touchable thing around it: everything that cannot be touched by itself."""
    if not _is_touchable(node):
        yield node
        for child in node:
            yield from _own_parts(child)


def _element(node: ET.Element, inner: list[ET.Element], size_px: tuple[int, int]) -> Iterator[Element]:
    box = _visible_box(node, size_px)
    if box is None:
        return
    left, top, right, bottom = box
    words = [word for part in [node, *inner] if (word := _words(part))]
    checks = [part for part in [node, *inner] if part.get("checkable") == "true"]
    role = _role(node, bool(checks))
    if checks and checks[0] is not node:
        role = _role(checks[0], True)
    states = [
        name
        for name, is_so in (
            ("checked", any(part.get("checked") == "true" for part in checks)),
            ("focused", node.get("focused") == "true" and role == "input"),
            ("selected", node.get("selected") == "true"),
            ("disabled", node.get("enabled") == "false"),
        )
        if is_so
    ]
    yield Element(
        role=role,
        text=", ".join(dict.fromkeys(words)),
        states=tuple(states),
        x_px=(left + right) // 2,
        y_px=(top + bottom) // 2,
        width_px=right - left,
        height_px=bottom - top,
    )


def _is_touchable(node: ET.Element) -> bool:
    if node.get("clickable") == "true" or node.get("long-clickable") == "true":
        return True
    return node.get("class", "").endswith("EditText")


def _words(node: ET.Element) -> str:
    """What it says, or what a screen reader would say in its place; a field's hint while it is empty."""
    return " ".join((node.get("text") or node.get("content-desc") or node.get("hint") or "").split())


def _role(node: ET.Element, is_checkable: bool) -> str:
    name = node.get("class", "").rpartition(".")[2]
    touchable = _is_touchable(node)
    for ending, role in _ROLES:
        if name.endswith(ending):
            return "button" if role == "image" and touchable else role
    if is_checkable:
        return "checkbox"
    if not touchable:
        return "text"
    return "button" if name.endswith("TextView") else "item"


def _visible_box(node: ET.Element, size_px: tuple[int, int]) -> tuple[int, int, int, int] | None:
    match = _BOUNDS.fullmatch(node.get("bounds", ""))
    if match is None:
        return None
    left, top, right, bottom = (int(edge) for edge in match.groups())
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, size_px[0]), min(bottom, size_px[1])
    return (left, top, right, bottom) if right > left and bottom > top else None
