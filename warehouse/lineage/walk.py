"""Walking lineage: from one id back to everything it was made from, and forward to everything that was made from it.

The edges are a view over the tables (relations.py), never a second copy. A walk reads one level at a time, and only the tables that can
hold its next edges; where one node has very many neighbours it shows the first few and counts the rest. What
it found, and its drawings, are graph.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import duckdb

from warehouse.core.errors import UnknownId
from warehouse.core.identity import LEAST_LIKENESS
from warehouse.lineage.graph import Edge, LineageGraph, Node, NodeId, Omitted
from warehouse.lineage.relations import NODE_KINDS, RELATIONS
from warehouse.lineage.rows import KINDS, LineageRows
from warehouse.reporting.iteration_summaries import FIRST_MEMBERS
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

Direction = Literal["up", "down", "both"]
"""`up`: what it was made from; `down`: what was made from it."""
MAX_NODES = 400
SHOWN_PER_RELATION = FIRST_MEMBERS
MOST_SHOWN = 2**31


class _Neighbours(NamedTuple):
    """The first few neighbours of `node` over one relation, of `total`."""

    node: NodeId
    kind: str
    relation: str
    ids: list[str]
    total: int


def trace(
    con: duckdb.DuckDBPyConnection,
    node_id: str,
    *,
    direction: Direction = "both",
    depth: int | None = None,
    limit_per_relation: int | None = SHOWN_PER_RELATION,
    max_nodes: int = MAX_NODES,
) -> LineageGraph:
    """Walk from one id, on a connection of query.connect. `depth` counts edges; None follows them to the end.

    `node_id` is an id, the unambiguous beginning of one, `<iteration>/<stage>` for a checkpoint (`0002/released_policy`), or a
    task's name. Raises
    UnknownId, naming the nearest ids, when nothing has it.
    """
    start = resolve(con, node_id)
    graph = LineageGraph(start=start)
    seen = {start}
    ways: tuple[Literal["up", "down"], ...] = ("up", "down") if direction == "both" else (direction,)
    for way in ways:
        _walk(con, graph, seen, way, depth, limit_per_relation, max_nodes)
    graph.nodes = {node.key: node for node in _describe(con, seen)}
    return graph


def trace_back(warehouse: Warehouse, node_id: str, *, depth: int | None = None) -> LineageGraph:
    """`trace` with the direction `up`, reading what it comes to and no more."""
    with LineageRows(warehouse) as rows:
        found = rows.find(node_id)
        if len(found) != 1:
            with connect(warehouse, lineage=True) as con:
                found = [resolve(con, node_id)]
                if found[0].kind not in KINDS:
                    return trace(con, node_id, direction="up", depth=depth)
        graph, seen = LineageGraph(start=found[0]), set(found)
        _walk(rows.con, graph, seen, "up", depth, SHOWN_PER_RELATION, MAX_NODES, rows)
        rows.need(seen)
        graph.nodes = {node.key: node for node in _describe(rows.con, seen, rows)}
        return graph


def resolve(con: duckdb.DuckDBPyConnection, node_id: str) -> NodeId:
    """The one node that `node_id` means. Raises UnknownId for no node, or several."""
    iteration, _, stage = node_id.partition("/")
    named = "SELECT DISTINCT 'checkpoint', checkpoint_id FROM checkpoints WHERE iteration = ? AND stage = ?"
    of_task = "SELECT DISTINCT 'task', task_id FROM tasks WHERE name = ?"
    exact = "SELECT DISTINCT kind, id FROM lineage_nodes WHERE id = ?"
    beginning = "SELECT DISTINCT kind, id FROM lineage_nodes WHERE starts_with(id, ?) ORDER BY length(id), id LIMIT 6"
    for query, values in ((exact, [node_id]), (named, [iteration, stage]), (of_task, [node_id]), (beginning, [node_id])):
        found = [NodeId(*row) for row in con.execute(query, values).fetchall()] if node_id else []
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownId(f"id {node_id!r} is ambiguous: it may be {_list(found)}. Give more of it")
    if stage and iteration.isdigit():
        made = con.execute("SELECT DISTINCT iteration || '/' || stage AS name FROM checkpoints ORDER BY name").fetchall()
        there_are = ", ".join(name for (name,) in made) or "none yet"
        raise UnknownId(f"stage {stage} of iteration {iteration} has made no checkpoint; there are {there_are}")
    alike = "SELECT DISTINCT kind, id, jaro_winkler_similarity(id, ?) AS likeness FROM lineage_nodes ORDER BY likeness DESC, id LIMIT 4"
    rows = con.execute(alike, [node_id]).fetchall()
    near = [NodeId(kind, id_) for kind, id_, likeness in rows if likeness >= LEAST_LIKENESS]
    nearest = f"the nearest are {_list(near)}" if near else "none is like it" if rows else "the warehouse is empty"
    raise UnknownId(
        f"nothing in the warehouse has the id {node_id!r}: {nearest}. A checkpoint may also be named by iteration/stage "
        "(0001/sft_model), a task by its name; `flywheel status` names checkpoints and datasets"
    )


def _list(nodes: Iterable[NodeId]) -> str:
    return ", ".join(f"{node.id} ({node.kind})" for node in nodes)


def _walk(
    con: duckdb.DuckDBPyConnection,
    graph: LineageGraph,
    seen: set[NodeId],
    way: Literal["up", "down"],
    depth: int | None,
    limit: int | None,
    max_nodes: int,
    rows: LineageRows | None = None,
) -> None:
    """Breadth first, one level a round, so that what is nearest is shown first when the number of nodes runs out."""
    frontier, level = [graph.start], 0
    while frontier and (depth is None or level < depth):
        level += 1
        following: list[NodeId] = []
        if rows is not None:
            rows.need(frontier)
        for found in _neighbours(con, frontier, way, limit, rows):
            num_shown = 0
            for other in (NodeId(found.kind, id_) for id_ in found.ids):
                if other not in seen:
                    if len(seen) >= max_nodes:
                        graph.is_cut = True
                        continue
                    seen.add(other)
                    following.append(other)
                num_shown += 1
                child, parent = (found.node, other) if way == "up" else (other, found.node)
                graph.edges.append(Edge(child=child, parent=parent, relation=found.relation))
            if found.total > num_shown:
                count = found.total - num_shown
                graph.omitted.append(Omitted(node=found.node, direction=way, kind=found.kind, relation=found.relation, count=count))
        frontier = following


def _neighbours(
    con: duckdb.DuckDBPyConnection, frontier: list[NodeId], way: Literal["up", "down"], limit: int | None, rows: LineageRows | None
) -> Iterator[_Neighbours]:
    """Over all relations by one query: to plan many takes longer than to answer them."""
    ids: dict[str, list[str]] = {}
    for node in frontier:
        ids.setdefault(node.kind, []).append(node.id)
    found: list[tuple[int, str, list[str], int]] = []
    asked: dict[int, str] = {}
    for place, relation in enumerate(RELATIONS):
        near = relation.child if way == "up" else relation.parent
        if near not in ids:
            continue
        summarised = rows.summarised(relation, ids[near]) if rows is not None else None
        if summarised is None:
            asked[place] = near
        else:
            found += [(place, node_id, of[:limit], total) for node_id, of, total in summarised]
    if asked:
        wanted = {kind: ids[kind] for kind in asked.values()}
        found += con.execute(_neighbours_query(asked, way), {**wanted, "most": limit or MOST_SHOWN}).fetchall()
    for place, node_id, of, total in sorted(found):
        relation = RELATIONS[place]
        near, far = (relation.child, relation.parent) if way == "up" else (relation.parent, relation.child)
        yield _Neighbours(NodeId(near, node_id), far, relation.name, of, total)


def _neighbours_query(asked: Mapping[int, str], way: Literal["up", "down"]) -> str:
    """SQL for (a relation's place, node id, its first few neighbours' ids, how many there are); shorter ids first, so that step 2 comes
    before step 10. `asked`: the kind of the nodes by the place; their ids are the parameter of that name."""
    near, far = ("child_id", "parent_id") if way == "up" else ("parent_id", "child_id")
    edges = " UNION ALL ".join(
        f"SELECT DISTINCT {place} AS place, {near} AS near, {far} AS far FROM ({RELATIONS[place].select}) "
        f"WHERE {near} IN (SELECT unnest(${kind}))"
        for place, kind in asked.items()
    )
    return f"SELECT place, near, list(far ORDER BY length(far), far)[:$most], count(*) FROM ({edges}) GROUP BY place, near"


def _describe(con: duckdb.DuckDBPyConnection, keys: Iterable[NodeId], rows: LineageRows | None = None) -> Iterator[Node]:
    """Each node with its first appearance in the tables; a node whose row is gone (or `oracle`) has only its id."""
    ids_by_kind: dict[str, list[str]] = {}
    for key in sorted(keys):
        ids_by_kind.setdefault(key.kind, []).append(key.id)
    selects = {kind.name: kind.select for kind in NODE_KINDS}
    for kind, ids in ids_by_kind.items():
        if kind == "dataset" and rows is not None:
            yield from rows.describe_datasets(ids)
            continue
        found = {}
        if kind in selects:
            # The last row of an id wins: its first appearance.
            query = (
                f"SELECT id, label, iteration, stage FROM ({selects[kind]}) WHERE id IN (SELECT unnest($1)) "
                "ORDER BY iteration DESC, stage DESC"
            )
            found = {row[0]: row[1:] for row in con.execute(query, [ids]).fetchall()}
        for id_ in ids:
            label, iteration, stage = found.get(id_, ("", None, None))
            yield Node(kind=kind, id=id_, label=label or "", iteration=iteration, stage=stage)
