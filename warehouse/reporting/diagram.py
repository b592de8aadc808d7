"""Boxes and arrows as SVG and as Mermaid text. Knows nothing of what the boxes mean; lineage/graph.py and iterations_graph.py fill them.

The SVG stands alone (no script, no font, no address), so a report, a Dagster page and a browser all show it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

BOX_WIDTH_PX, BOX_HEIGHT_PX = 208, 44
COLUMN_GAP_PX, ROW_GAP_PX = 64, 16
MARGIN_PX = 20
CHARACTERS_PER_LINE = 28
SWEEPS = 8

COLOURS = {
    "checkpoint": ("#e0ecff", "#2457a6"),
    "released": ("#cfe8cf", "#1c6b2a"),
    "dataset": ("#fdeccb", "#9a6200"),
    "ct_sample": ("#fff6e0", "#9a6200"),
    "sft_sample": ("#fff6e0", "#9a6200"),
    "annotation": ("#f6dcf2", "#8a2b7c"),
    "episode": ("#dcf3f1", "#13706a"),
    "step": ("#eef8f7", "#13706a"),
    "screenshot": ("#efefef", "#555555"),
    "task": ("#e9e2f8", "#5a3da0"),
    "verdict": ("#fde0dc", "#a63a2b"),
    "route": ("#fde0dc", "#a63a2b"),
    "evaluation": ("#d9f0d9", "#1c6b2a"),
    "oracle": ("#efefef", "#333333"),
    "more": ("#ffffff", "#888888"),
}
"""(fill, line and text) of a box by kind; dark text on a light fill reads on any page."""
_PLAIN = ("#ffffff", "#333333")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    key: str
    kind: str
    title: str
    subtitle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    start: str
    end: str
    label: str = ""


@dataclass(slots=True, kw_only=True)
class Diagram:
    """Boxes in drawing order, and arrows between their keys. `emphasis` is the key of a box to outline."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    emphasis: str | None = None
    title: str = ""


Point = tuple[float, float]


@dataclass(slots=True, kw_only=True)
class Placement:
    """Top left corner of every box, and the points every arrow passes through (index into Diagram.arrows), in pixels."""

    corners: dict[str, Point]
    paths: dict[int, list[Point]]
    headings: list[tuple[Point, str]] = field(default_factory=list)


def to_mermaid(diagram: Diagram) -> str:
    """The diagram as a Mermaid flowchart, left to right."""
    names = {box.key: f"n{index}" for index, box in enumerate(diagram.boxes)}
    lines = ["flowchart LR"]
    for box in diagram.boxes:
        text = "<br/>".join(_mermaid_text(part) for part in (box.title, box.subtitle) if part)
        lines.append(f'    {names[box.key]}["{text}"]:::{box.kind}')
    for arrow in diagram.arrows:
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        lines.append(f"    {names[arrow.start]} -->{label} {names[arrow.end]}")
    for kind in dict.fromkeys(box.kind for box in diagram.boxes):
        fill, ink = COLOURS.get(kind, _PLAIN)
        lines.append(f"    classDef {kind} fill:{fill},stroke:{ink},color:{ink}")
    if diagram.emphasis in names:
        lines.append(f"    style {names[diagram.emphasis]} stroke-width:4px")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    for character, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;"), ("\n", " ")):
        text = text.replace(character, code)
    return text


def to_svg(diagram: Diagram, placement: Placement | None = None) -> str:
    """The diagram as a stand-alone SVG; laid out in layers, left to right, unless a placement is given."""
    placement = placement or layered(diagram)
    corners = placement.corners
    points = [*corners.values(), *(point for path in placement.paths.values() for point in path)]
    width = max((x for x, _ in points), default=0) + BOX_WIDTH_PX + MARGIN_PX
    height = max((y for _, y in points), default=0) + BOX_HEIGHT_PX + MARGIN_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(diagram.title)}</title>" if diagram.title else "",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#777777"/></marker></defs>',
    ]
    for index, arrow in enumerate(diagram.arrows):
        parts.append(_svg_arrow(placement.paths[index], arrow.label))
    for (x, y), text in placement.headings:
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="14" font-weight="600" fill="#333333">{escape(text)}</text>')
    for box in diagram.boxes:
        parts.append(_svg_box(box, corners[box.key], box.key == diagram.emphasis))
    return "\n".join(part for part in parts if part) + "\n</svg>\n"


def _svg_arrow(path: list[Point], label: str) -> str:
    """A smooth line through the points; the label is a tooltip, so that lines stay legible."""
    (x, y), *rest = path
    steps = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in rest:
        if next_x == x or next_y == y:
            steps.append(f"L{next_x:.1f} {next_y:.1f}")
        else:
            middle = (x + next_x) / 2
            steps.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {next_y:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
    title = f"<title>{escape(label)}</title>" if label else ""
    return f'<path d="{" ".join(steps)}" fill="none" stroke="#999999" stroke-width="1.3" marker-end="url(#tip)">{title}</path>'


def _svg_box(box: Box, corner: Point, is_emphasised: bool) -> str:
    fill, ink = COLOURS.get(box.kind, _PLAIN)
    x, y = corner
    dashes = ' stroke-dasharray="4 3"' if box.kind == "more" else ""
    lines = [(box.title, "600", 18.0 if box.subtitle else 26.0)] + ([(box.subtitle, "400", 34.0)] if box.subtitle else [])
    texts = "".join(
        f'<text x="{x + 10:.1f}" y="{y + offset:.1f}" font-weight="{weight}" fill="{ink}">{escape(_clip(text))}</text>'
        for text, weight, offset in lines
    )
    return (
        f'<g><title>{escape(f"{box.title} {box.subtitle}".strip())}</title><rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH_PX}" '
        f'height="{BOX_HEIGHT_PX}" rx="7" fill="{fill}" stroke="{ink}" stroke-width="{3 if is_emphasised else 1}"{dashes}/>{texts}</g>'
    )


def _clip(text: str) -> str:
    return text if len(text) <= CHARACTERS_PER_LINE else text[: CHARACTERS_PER_LINE - 1] + "…"


def layered(diagram: Diagram) -> Placement:
    """Sugiyama's method in short: a layer is the longest path from a box without arrows into it; long arrows get a place in each layer
    they cross; barycentre sweeps order the layers; boxes then move towards their neighbours as far as there is room."""
    layer_of = _layers(diagram)
    chains = _chains(diagram, layer_of)
    layers: list[list[str]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for key, layer in layer_of.items():
        layers[layer].append(key)
    before: dict[str, list[str]] = {key: [] for key in layer_of}
    after: dict[str, list[str]] = {key: [] for key in layer_of}
    for chain in chains.values():
        for one, other in pairwise(chain):
            after[one].append(other)
            before[other].append(one)
    is_box = {box.key for box in diagram.boxes}
    centres = _order(layers, before, after, is_box)
    pitch = BOX_WIDTH_PX + COLUMN_GAP_PX
    corners = {key: (float(MARGIN_PX + layer_of[key] * pitch), centres[key] - BOX_HEIGHT_PX / 2) for key in is_box}
    paths = {}
    for index, chain in chains.items():
        points: list[Point] = []
        for place, key in enumerate(chain):
            left, y = MARGIN_PX + layer_of[key] * pitch, centres[key]
            if place > 0:
                points.append((left, y))
            if place < len(chain) - 1:
                points.append((left + BOX_WIDTH_PX, y))
        paths[index] = points
    return Placement(corners=corners, paths=paths)


def _layers(diagram: Diagram) -> dict[str, int]:
    """Longest-path layer of each box; an arrow that closes a circle does not count."""
    inward: dict[str, list[str]] = {box.key: [] for box in diagram.boxes}
    for arrow in diagram.arrows:
        inward[arrow.end].append(arrow.start)
    layer: dict[str, int] = {}
    for root in inward:
        stack, on_path = [(root, iter(inward[root]))], {root}
        while stack:
            key, rest = stack[-1]
            pending = next((start for start in rest if start not in layer and start not in on_path), None)
            if pending is not None:
                stack.append((pending, iter(inward[pending])))
                on_path.add(pending)
                continue
            layer[key] = max((layer[start] + 1 for start in inward[key] if start in layer), default=0)
            on_path.discard(key)
            stack.pop()
    return layer


def _chains(diagram: Diagram, layer_of: dict[str, int]) -> dict[int, list[str]]:
    """For each arrow the boxes and way points it passes through, one a layer. Adds the way points to `layer_of`."""
    chains = {}
    for index, arrow in enumerate(diagram.arrows):
        start, end = layer_of[arrow.start], layer_of[arrow.end]
        chain = [arrow.start]
        for layer in range(start + 1, end):
            point = f"\0{index}.{layer}"
            layer_of[point] = layer
            chain.append(point)
        chains[index] = [*chain, arrow.end]
    return chains


def _order(layers: list[list[str]], before: Mapping[str, list[str]], after: Mapping[str, list[str]], is_box: set[str]) -> dict[str, float]:
    """Vertical centre of every box and way point. Reorders `layers` in place."""
    centres: dict[str, float] = {}
    for keys in layers:
        _pack(keys, {key: float(place) for place, key in enumerate(keys)}, is_box, centres)
    for sweep in range(SWEEPS):
        is_forward = sweep % 2 == 0
        for keys in layers if is_forward else reversed(layers):
            near = before if is_forward else after
            wanted = {key: _mean([centres[other] for other in near[key]], centres[key]) for key in keys}
            keys.sort(key=lambda key: (wanted[key], centres[key]))
            _pack(keys, wanted, is_box, centres)
    top = min((centres[key] for keys in layers for key in keys), default=0.0)
    return {key: centre - top + MARGIN_PX + BOX_HEIGHT_PX / 2 for key, centre in centres.items()}


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _pack(keys: list[str], wanted: Mapping[str, float], is_box: set[str], centres: dict[str, float]) -> None:
    """Put the keys, in this order, as near to their wanted centres as their heights allow: push down, then shift back as a whole."""
    bottom = float("-inf")
    for key in keys:
        half = (BOX_HEIGHT_PX + ROW_GAP_PX) / 2 if key in is_box else ROW_GAP_PX / 2
        centres[key] = max(wanted[key], bottom + half)
        bottom = centres[key] + half
    shift = _mean([wanted[key] - centres[key] for key in keys], 0.0)
    for key in keys:
        centres[key] += shift
