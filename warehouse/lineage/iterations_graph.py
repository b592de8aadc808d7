"""The iterations so far: one row each, from its data over its checkpoints to what its rollouts gave the next. SVG and Mermaid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import duckdb

from warehouse.core.stages import SEED_ITERATION
from warehouse.reporting.diagram import (
    BOX_HEIGHT_PX,
    BOX_WIDTH_PX,
    COLUMN_GAP_PX,
    MARGIN_PX,
    ROW_GAP_PX,
    Arrow,
    Box,
    Diagram,
    Placement,
    Point,
    to_mermaid,
    to_svg,
)
from warehouse.reporting.iteration_summaries import IterationSummary

COLUMN_OF_STAGE = {"ct_model": 1, "sft_model": 2, "merged_policy": 4, "released_policy": 5, "seed_policy": 5}
DATA_COLUMN, RL_COLUMN, ROUTES_COLUMN = 0, 3, 6
HEADING_PX = 30
LANE_GAP_PX = 7
"""Between the lines that run back from one iteration to the next."""

_SUCCESS = """
    SELECT iteration, checkpoint_role, round(100.0 * sum(num_success) / greatest(sum(num_episodes), 1), 1)
    FROM evaluations WHERE split = 'holdout' GROUP BY ALL"""


@dataclass(slots=True)
class IterationsGraph:
    """Boxes and arrows of every iteration, each box with its row (the iteration) and its column (the stage)."""

    diagram: Diagram = field(default_factory=lambda: Diagram(title="Iterations of the flywheel"))
    cells: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, iteration: str, column: int, box: Box) -> None:
        self.cells[box.key] = (iteration, column)
        self.diagram.boxes.append(box)

    def link(self, start: str | None, end: str | None, label: str) -> None:
        if start is not None and end is not None and start in self.cells and end in self.cells and start != end:
            self.diagram.arrows.append(Arrow(start=start, end=end, label=label))

    def to_svg(self) -> str:
        """A stand-alone SVG."""
        return to_svg(self.diagram, _grid(self))

    def to_mermaid(self) -> str:
        """A Mermaid flowchart."""
        return to_mermaid(self.diagram)


def iterations_graph(con: duckdb.DuckDBPyConnection, summaries_by_key: Mapping[str, IterationSummary]) -> IterationsGraph:
    """The iterations of `summaries_by_key` (iteration_summaries.summaries), with their success as the connection (of query.connect) sees
    it."""
    graph = IterationsGraph()
    data = _add_data(graph, summaries_by_key)
    boxes_of_id = _add_checkpoints(con, graph, data, summaries_by_key)
    _add_routes(graph, boxes_of_id, summaries_by_key)
    graph.diagram.boxes.sort(key=lambda box: (*graph.cells[box.key], box.key))
    return graph


def _add_data(graph: IterationsGraph, summaries_by_key: Mapping[str, IterationSummary]) -> dict[str, str]:
    """Boxes of the seed data and of every snapshot; returns the box of each dataset id."""
    for kind, count in (summaries_by_key[SEED_ITERATION].seed_samples if SEED_ITERATION in summaries_by_key else {}).items():
        box = Box(key=f"0000/{kind}", kind="dataset", title=f"seed of D_{kind.upper()}", subtitle=f"{count:,} samples")
        graph.add("0000", DATA_COLUMN, box)
    boxes = {}
    for iteration, summary in summaries_by_key.items():
        sizes = Counter[tuple[str, str]]()
        for members in summary.members:
            sizes[members.kind, members.dataset_id] += members.num
        for (kind, dataset_id), count in sorted(sizes.items()):
            key = f"{iteration}/{dataset_id}"
            boxes[dataset_id] = key
            graph.add(iteration, DATA_COLUMN, Box(key=key, kind="dataset", title=f"{kind}_dataset", subtitle=f"{count:,} samples"))
            if iteration == "0001":
                graph.link(f"0000/{kind}", key, "seed data")
    return boxes


def _add_checkpoints(
    con: duckdb.DuckDBPyConnection, graph: IterationsGraph, data: dict[str, str], summaries_by_key: Mapping[str, IterationSummary]
) -> dict[str, list[str]]:
    """Boxes of every checkpoint; returns those of each id."""
    success = {(iteration, role): percent for iteration, role, percent in con.execute(_SUCCESS).fetchall()}
    rows = [(iteration, made) for iteration, summary in summaries_by_key.items() for made in summary.checkpoints]
    boxes_of_id: dict[str, list[str]] = {}
    ordered = sorted(rows, key=lambda row: (row[0], _column(row[1].stage), row[1].stage))
    for iteration, made in ordered:
        key = f"{iteration}/{made.stage}"
        percent = success.get((iteration, made.stage))
        measured = f"holdout {percent} % · " if percent is not None else ""
        subtitle = measured + (made.note or made.checkpoint_id)
        kind = "released" if _column(made.stage) == COLUMN_OF_STAGE["released_policy"] else "checkpoint"
        graph.add(iteration, _column(made.stage), Box(key=key, kind=kind, title=made.stage, subtitle=subtitle))
        boxes_of_id.setdefault(made.checkpoint_id, []).append(key)
    for iteration, made in ordered:
        key = f"{iteration}/{made.stage}"
        # A stage that passed its input on stands for the same weights as the box before it.
        same = _latest_before(graph, boxes_of_id[made.checkpoint_id], key)
        for dataset_id in () if same else made.datasets:
            graph.link(data.get(dataset_id), key, "learned from")
        for start in [same] if same else [_latest_before(graph, boxes_of_id.get(parent, []), key) for parent in made.parents]:
            graph.link(start, key, "passed on" if same else "made from")
    return boxes_of_id


def _latest_before(graph: IterationsGraph, candidates: list[str], key: str) -> str | None:
    """Of several boxes of the same weights, the one that stands last before `key`."""
    return max((other for other in candidates if graph.cells[other] < graph.cells[key]), key=lambda other: graph.cells[other], default=None)


def _add_routes(graph: IterationsGraph, boxes_of_id: dict[str, list[str]], summaries_by_key: Mapping[str, IterationSummary]) -> None:
    """Boxes of what was collected, from the policy that played it: after a rollback not the one that its iteration released."""
    snapshots: dict[str, list[str]] = {}
    for key, (iteration, column) in sorted(graph.cells.items(), key=lambda cell: (cell[1][0], cell[0])):
        if column == DATA_COLUMN:
            snapshots.setdefault(iteration, []).append(key)
    for iteration, summary in summaries_by_key.items():
        if summary.routes:
            parts = [f"{route} {count:,}" for route, count in summary.routes.items()]
            key = f"{iteration}/routes"
            graph.add(iteration, ROUTES_COLUMN, Box(key=key, kind="route", title="routes of its rollouts", subtitle=" · ".join(parts)))
            for policy_id in summary.acted:
                graph.link(_latest_before(graph, boxes_of_id.get(policy_id, []), key), key, "acted")
            for snapshot in snapshots.get(f"{int(iteration) + 1:04d}", ()):
                graph.link(key, snapshot, "joined the next data")


def _column(stage: str) -> int:
    return COLUMN_OF_STAGE.get(stage, RL_COLUMN)


def _grid(graph: IterationsGraph) -> Placement:
    """Rows are iterations, columns are stages; boxes of one cell are stacked. A line to the next column is direct, a longer one runs
    through the gap below its row, one to a later row through the gap above that row."""
    cells: dict[tuple[str, int], list[str]] = {}
    for box in graph.diagram.boxes:
        cells.setdefault(graph.cells[box.key], []).append(box.key)
    columns = {column: place for place, column in enumerate(sorted({column for _, column in cells}))}
    corners: dict[str, Point] = {}
    headings: list[tuple[Point, str]] = []
    gaps: dict[tuple[str, str], float] = {}
    num_lanes = Counter(_gap(graph, arrow, cells) for arrow in graph.diagram.arrows)
    rows: dict[str, dict[int, list[str]]] = {}
    for (iteration, column), keys in cells.items():
        rows.setdefault(iteration, {})[column] = keys
    y = float(MARGIN_PX)
    for iteration in sorted(rows):
        gaps[iteration, "above"] = y
        y += LANE_GAP_PX * (1 + num_lanes[iteration, "above"])
        headings.append(((float(MARGIN_PX), y + HEADING_PX / 2), "seed" if iteration == "0000" else f"iteration {iteration}"))
        y += HEADING_PX
        tallest = max(len(keys) for keys in rows[iteration].values())
        for column, keys in rows[iteration].items():
            x = float(MARGIN_PX + columns[column] * (BOX_WIDTH_PX + COLUMN_GAP_PX))
            inset = (tallest - len(keys)) / 2
            corners.update({key: (x, y + (inset + place) * (BOX_HEIGHT_PX + ROW_GAP_PX)) for place, key in enumerate(keys)})
        y += tallest * (BOX_HEIGHT_PX + ROW_GAP_PX)
        gaps[iteration, "below"] = y - ROW_GAP_PX
        y += LANE_GAP_PX * num_lanes[iteration, "below"] + ROW_GAP_PX
    return Placement(corners=corners, paths=_paths(graph, corners, gaps, cells), headings=headings)


def _gap(graph: IterationsGraph, arrow: Arrow, filled: Container[tuple[str, int]]) -> tuple[str, str] | None:
    """The gap between rows that an arrow runs through; None for one that goes straight to the next column."""
    (row, column), (end_row, end_column) = graph.cells[arrow.start], graph.cells[arrow.end]
    if row != end_row:
        return end_row, "above"
    between = any((row, other) in filled for other in range(column + 1, end_column))
    return (row, "below") if between else None


def _paths(
    graph: IterationsGraph, corners: dict[str, Point], gaps: dict[tuple[str, str], float], filled: Container[tuple[str, int]]
) -> dict[int, list[Point]]:
    paths: dict[int, list[Point]] = {}
    lanes: dict[tuple[str, str], int] = {}
    for index, arrow in enumerate(graph.diagram.arrows):
        (x, y), (end_x, end_y) = corners[arrow.start], corners[arrow.end]
        middle, end_middle = y + BOX_HEIGHT_PX / 2, end_y + BOX_HEIGHT_PX / 2
        gap = _gap(graph, arrow, filled)
        if gap is None:
            paths[index] = [(x + BOX_WIDTH_PX, middle), (end_x, end_middle)]
            continue
        lane = lanes[gap] = lanes.get(gap, 0) + 1
        aside = min(LANE_GAP_PX * lane, MARGIN_PX - 4)
        out, into, level = x + BOX_WIDTH_PX + aside, end_x - aside, gaps[gap] + LANE_GAP_PX * lane
        paths[index] = [(x + BOX_WIDTH_PX, middle), (out, middle), (out, level), (into, level), (into, end_middle), (end_x, end_middle)]
    return paths
