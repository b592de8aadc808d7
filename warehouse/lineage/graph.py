"""What a walk of lineage found, and how a person sees it: as a text tree, as Mermaid, as SVG. Walking is walk.py's business."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.control import strip_control_codes
from rich.segment import Segment, Segments
from rich.style import Style

if TYPE_CHECKING:
    from warehouse.reporting.diagram import Diagram

STYLES = {
    "checkpoint": "blue",
    "dataset": "yellow",
    "ct_sample": "yellow",
    "sft_sample": "yellow",
    "annotation": "magenta",
    "episode": "cyan",
    "step": "cyan",
    "task": "magenta",
    "verdict": "red",
    "route": "red",
    "evaluation": "green",
}
"""Colour of a kind in the text tree."""


class NodeId(NamedTuple):
    """A node's identity. Sorts by kind, then id."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One thing of the warehouse. `iteration` and `stage` are None where it belongs to none, or where its row is gone."""

    kind: str
    id: str
    label: str = ""
    iteration: str | None = None
    stage: str | None = None

    @property
    def key(self) -> NodeId:
        return NodeId(self.kind, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`child` was made from `parent`."""

    child: NodeId
    parent: NodeId
    relation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """Neighbours of `node` that the walk counted and did not follow: parents when `direction` is up, children when it is down."""

    node: NodeId
    direction: Literal["up", "down"]
    kind: str
    relation: str
    count: int


@dataclass(slots=True, kw_only=True)
class LineageGraph:
    """What a walk from `start` found. `is_cut` says that it stopped because it had found as many nodes as it may."""

    start: NodeId
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    omitted: list[Omitted] = field(default_factory=list)
    is_cut: bool = False

    def to_tree(self) -> Segments:
        """A tree for a console of Rich: what the start was made from, and what was made from it. What was drawn before is only named."""
        ways: tuple[tuple[_Way, str], ...] = (("up", "made from"), ("down", "went into"))
        branches = [_Branch([(title, "bold")], of_start) for way, title in ways if (of_start := _Branching.of(self, way).grow(self.start))]
        if self.is_cut:
            branches.append(_Branch([(f"… stopped after {len(self.nodes)} nodes", "dim")], []))
        return Segments(_segments(chain([_line(self.nodes[self.start])], _lines(branches))))

    def to_diagram(self) -> Diagram:
        """Boxes and arrows; arrows follow the data, from what was there first to what was made from it."""
        from warehouse.reporting.diagram import Arrow, Box, Diagram

        result = Diagram(emphasis=_key(self.start), title=f"Lineage of {self.start.id}")
        for node in self.nodes.values():
            subtitle = node.id if not node.iteration else f"{node.id} · {node.iteration}"
            result.boxes.append(Box(key=_key(node.key), kind=node.kind, title=node.label or node.kind, subtitle=subtitle))
        for edge in dict.fromkeys(self.edges):
            result.arrows.append(Arrow(start=_key(edge.parent), end=_key(edge.child), label=edge.relation))
        for index, entry in enumerate(self.omitted):
            key = f"more {index}"
            result.boxes.append(Box(key=key, kind="more", title=f"… {_count(entry.count, entry.kind)}"))
            start, end = (key, _key(entry.node)) if entry.direction == "up" else (_key(entry.node), key)
            result.arrows.append(Arrow(start=start, end=end, label=entry.relation))
        return result

    def to_mermaid(self) -> str:
        """A Mermaid flowchart."""
        from warehouse.reporting.diagram import to_mermaid

        return to_mermaid(self.to_diagram())

    def to_svg(self) -> str:
        """A stand-alone SVG."""
        from warehouse.reporting.diagram import to_svg

        return to_svg(self.to_diagram())


_Way = Literal["up", "down"]
_Pieces = list[tuple[str, str]]
"""Of a line: texts, each with its style."""


class _Branch(NamedTuple):
    """A line of the text tree, and what hangs below it."""

    text: _Pieces
    below: list[_Branch]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branching:
    """Growing the tree in one direction."""

    graph: LineageGraph
    edges: dict[NodeId, list[Edge]]
    omitted: dict[NodeId, list[Omitted]]
    other: Callable[[Edge], NodeId]
    drawn: set[NodeId] = field(default_factory=set)

    @classmethod
    def of(cls, graph: LineageGraph, way: _Way) -> _Branching:
        edges: dict[NodeId, list[Edge]] = {}
        for edge in graph.edges:
            edges.setdefault(edge.child if way == "up" else edge.parent, []).append(edge)
        omitted: dict[NodeId, list[Omitted]] = {}
        for entry in graph.omitted:
            if entry.direction == way:
                omitted.setdefault(entry.node, []).append(entry)
        return cls(graph=graph, edges=edges, omitted=omitted, other=lambda edge: edge.parent if way == "up" else edge.child)

    def grow(self, node: NodeId) -> list[_Branch]:
        """What hangs below a node."""
        self.drawn.add(node)
        branches = []
        for edge in self.edges.get(node, ()):
            key = self.other(edge)
            text = [(f"{edge.relation} ", "dim"), *_line(self.graph.nodes[key])]
            branches.append(_Branch([*text, (" (above)", "dim")], []) if key in self.drawn else _Branch(text, self.grow(key)))
        omitted = self.omitted.get(node, ())
        return branches + [_Branch([(f"{entry.relation} … {_count(entry.count, entry.kind)}", "dim")], []) for entry in omitted]


def _lines(branches: Sequence[_Branch], indent: str = "") -> Iterator[_Pieces]:
    """With guides. Rich's own Tree renders each line once for every level above it."""
    for branch in branches:
        is_last = branch is branches[-1]
        yield [(f"{indent}{'└── ' if is_last else '├── '}", ""), *branch.text]
        yield from _lines(branch.below, indent + ("    " if is_last else "│   "))


def _line(node: Node) -> _Pieces:
    style = STYLES.get(node.kind, "white")
    says_its_kind = node.id == node.kind or node.id.startswith(f"{node.kind}-")
    pieces = [(node.id, style)] if says_its_kind else [(node.kind, style), (f" {node.id}", "")]
    if node.label:
        pieces.append((f" {node.label}", ""))
    if node.iteration:
        pieces.append((f" ({node.iteration}/{node.stage})", "dim"))
    return pieces


def _segments(lines: Iterable[_Pieces]) -> Iterator[Segment]:
    """As they are printed. Markup, of which Rich would parse every line, takes ten times as long."""
    for line in lines:
        for text, style in line:
            yield Segment(strip_control_codes(text), Style.parse(style) if style else None)
        yield Segment.line()


def _count(count: int, kind: str) -> str:
    return f"{count:,} more {kind}{'' if count == 1 else 's'}"


def _key(node: NodeId) -> str:
    return f"{node.kind} {node.id}"
