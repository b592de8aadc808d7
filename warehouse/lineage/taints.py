"""Which checkpoints have learned from what was forgotten since: the table `taints`, and what was made from those. A checkpoint stays as it
is, and stays tainted; what is trained again without the forgotten is another checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from warehouse.core.locks import FileLock
from warehouse.lineage.descent import Learned, descendants
from warehouse.lineage.graph import LineageGraph
from warehouse.lineage.release_ledger import maker, read_ledger
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TABLE = "taints"
STAGE = "forgotten"


def add_taints(warehouse: Warehouse, forget_id: str, learned: Sequence[Learned]) -> int:
    """Record what learned from the forgotten, each once; how many are new."""
    with FileLock(warehouse.home.locks / f"{TABLE}.lock"):
        there = {row["checkpoint_id"] for row in warehouse.read(TABLE).to_pylist() if row["forget_id"] == forget_id}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [
            {"forget_id": forget_id, "checkpoint_id": one.checkpoint_id, "release": one.name, "because": one.because, "forgotten_at": now}
            for one in learned
            if one.checkpoint_id not in there
        ]
        if rows:
            warehouse.append_partition(TABLE, rows, iteration=read_ledger(warehouse).newest_iteration, stage=STAGE)
    return len(rows)


def taints(warehouse: Warehouse) -> dict[str, str]:
    """By id, why a checkpoint is tainted, of every one that is."""
    with connect(warehouse, tables=(TABLE, "checkpoints"), natively=True) as con:
        found = con.execute(
            f"select checkpoint_id, because, forget_id, forgotten_at from {TABLE} order by forgotten_at, forget_id"
        ).fetchall()
        if not found:
            return {}
        rows = con.execute("select iteration, stage, checkpoint_id, parents from checkpoints").fetchall()
    made = [dict(zip(("iteration", "stage", "checkpoint_id", "parents"), row, strict=True)) for row in rows]
    said: dict[str, list[str]] = {}
    for checkpoint_id, because, forget_id, forgotten_at in found:
        said.setdefault(checkpoint_id, []).append(f"{because} that {forget_id} took out ({forgotten_at[:10]})")
    why = {id_: "; ".join(each) for id_, each in said.items()}
    parents = [(row["checkpoint_id"], parent) for row in made for parent in row["parents"]]
    for id_, roots in descendants(why.keys(), parents).items():
        why[id_] = "made from " + ", ".join(sorted(maker(made, root) for root in roots)) + ", tainted"
    return why


def mark(graph: LineageGraph, why: dict[str, str]) -> None:
    """Say it in the labels of a lineage's checkpoints."""
    for key, node in graph.nodes.items():
        if key.kind == "checkpoint" and key.id in why:
            graph.nodes[key] = replace(node, label=f"{node.label}, TAINTED: {why[key.id]}")
