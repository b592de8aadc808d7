"""What a walk of lineage found, and how a person sees it: as a text tree, as Mermaid, as SVG. Walking is walk.py's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.markup import escape

from warehouse.reporting.diagram import Arrow, Box, Diagram, to_mermaid, to_svg

STYLES = {
    "checkpoint": "blue", "dataset": "yellow", "ct_sample": "yellow", "sft_sample": "yellow", "annotation": "magenta", "episode": "cyan",
    "step": "cyan", "task": "magenta", "verdict": "red", "route": "red", "evaluation": "green",
}  # fmt: skip
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

    def parents(self, node: NodeId) -> list[Edge]:
        return [edge for edge in self.edges if edge.child == node]

    def children(self, node: NodeId) -> list[Edge]:
        return [edge for edge in self.edges if edge.parent == node]

    def to_tree(self) -> str:
        """A tree in Rich's markup: what the start was made from, and what was made from it. What was drawn before is only named."""
        up = _Branching(way="up", edges_of=self.parents, other=lambda edge: edge.parent, graph=self)
        down = _Branching(way="down", edges_of=self.children, other=lambda edge: edge.child, graph=self)
        branches = [
            _Branch(f"[bold]{title}[/bold]", of_start)
            for branching, title in ((up, "made from"), (down, "went into"))
            if (of_start := branching.grow(self.start))
        ]
        if self.is_cut:
            branches.append(_Branch(f"[dim]… stopped after {len(self.nodes)} nodes[/dim]", []))
        return "\n".join([_line(self.nodes[self.start]), *_lines(branches)])

    def to_diagram(self) -> Diagram:
        """Boxes and arrows; arrows follow the data, from what was there first to what was made from it."""
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
        return to_mermaid(self.to_diagram())

    def to_svg(self) -> str:
        """A stand-alone SVG."""
        return to_svg(self.to_diagram())


class _Branch(NamedTuple):
    """A line of the text tree, in Rich's markup, and what hangs below it."""

    text: str
    below: list[_Branch]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branching:
    """Growing the tree in one direction."""

    way: str
    edges_of: Callable[[NodeId], list[Edge]]
    other: Callable[[Edge], NodeId]
    graph: LineageGraph
    drawn: set[NodeId] = field(default_factory=set)

    def grow(self, node: NodeId) -> list[_Branch]:
        """What hangs below a node."""
        self.drawn.add(node)
        branches = []
        for edge in self.edges_of(node):
            key = self.other(edge)
            text = f"[dim]{edge.relation}[/dim] {_line(self.graph.nodes[key])}"
            is_drawn = key in self.drawn
            branches.append(_Branch(f"{text} [dim](above)[/dim]", []) if is_drawn else _Branch(text, self.grow(key)))
        omitted = [entry for entry in self.graph.omitted if entry.node == node and entry.direction == self.way]
        return branches + [_Branch(f"[dim]{entry.relation} … {_count(entry.count, entry.kind)}[/dim]", []) for entry in omitted]


def _lines(branches: Sequence[_Branch], indent: str = "") -> Iterator[str]:
    """With guides. Rich's own Tree renders each line once for every level above it."""
    for branch in branches:
        is_last = branch is branches[-1]
        yield f"{indent}{'└── ' if is_last else '├── '}{branch.text}"
        yield from _lines(branch.below, indent + ("    " if is_last else "│   "))


def _line(node: Node) -> str:
    style = STYLES.get(node.kind, "white")
    where = f" [dim]({node.iteration}/{node.stage})[/dim]" if node.iteration else ""
    label = f" {escape(node.label)}" if node.label else ""
    says_its_kind = node.id == node.kind or node.id.startswith(f"{node.kind}-")
    name = f"[{style}]{escape(node.id)}[/]" if says_its_kind else f"[{style}]{node.kind}[/] {escape(node.id)}"
    return f"{name}{label}{where}"


def _count(count: int, kind: str) -> str:
    return f"{count:,} more {kind}{'' if count == 1 else 's'}"


def _key(node: NodeId) -> str:
    return f"{node.kind} {node.id}"
