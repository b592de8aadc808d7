"""The layered layout: arrows point right, boxes never overlap, and the SVG is well formed, whatever the graph."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.reporting.diagram import BOX_HEIGHT_PX, BOX_WIDTH_PX, Arrow, Box, Diagram, layered, to_mermaid, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def _diagram(count: int, pairs: list[tuple[int, int]]) -> Diagram:
    boxes = [Box(key=str(i), kind="episode", title=f"box {i}", subtitle="below" if i % 2 else "") for i in range(count)]
    arrows = [Arrow(start=str(a % count), end=str(b % count)) for a, b in pairs if a % count != b % count]
    return Diagram(boxes=boxes, arrows=arrows, emphasis="0")


PAIRS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40)


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 20), pairs=PAIRS)
def test_boxes_never_overlap_and_each_path_joins_its_boxes(count: int, pairs: list[tuple[int, int]]) -> None:
    diagram = _diagram(count, pairs)
    placement = layered(diagram)
    corners = sorted(placement.corners.values())
    for (x, y), (other_x, other_y) in pairwise(corners):
        assert x != other_x or other_y - y >= BOX_HEIGHT_PX
    assert all(x >= 0 and y >= 0 for x, y in corners)
    for index, arrow in enumerate(diagram.arrows):
        (x, y), (end_x, end_y) = placement.corners[arrow.start], placement.corners[arrow.end]
        first, last = placement.paths[index][0], placement.paths[index][-1]
        assert first == (x + BOX_WIDTH_PX, y + BOX_HEIGHT_PX / 2)
        assert last == (end_x, end_y + BOX_HEIGHT_PX / 2)


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 20), pairs=PAIRS)
def test_arrows_of_a_graph_without_circles_point_right(count: int, pairs: list[tuple[int, int]]) -> None:
    diagram = _diagram(count, [(min(a % count, b % count), max(a % count, b % count)) for a, b in pairs])
    corners = layered(diagram).corners
    assert all(corners[arrow.start][0] < corners[arrow.end][0] for arrow in diagram.arrows)


@settings(deadline=None, max_examples=40)
@given(title=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60))
def test_any_text_gives_well_formed_svg_and_one_mermaid_line_a_box(title: str) -> None:
    diagram = Diagram(boxes=[Box(key="a", kind="task", title=title), Box(key="b", kind="unheard of", title="b")], title=title)
    root = ElementTree.fromstring(to_svg(diagram))
    assert sum(1 for _ in root.iter(f"{SVG}rect")) == 3
    assert len(to_mermaid(diagram).splitlines()) == 1 + 2 + 2
    assert to_svg(diagram) == to_svg(diagram)
