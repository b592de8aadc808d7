"""The rows that a walk back through the lineage passes, read as it comes to them, from the files that hold them: so a walk costs what it
shows, not what exists. walk.py walks; relations.py says which column names what a row was made from.

Checkpoints, the sizes of datasets and what reinforcement learned from are the summaries'. Every other row is found by its id
(id_index.py), and steps with their episode, in whose partition they are. What is read lies in memory as tables of the same names with fewer
columns, so that the same SQL is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import duckdb

from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.lineage.graph import Node, NodeId
from warehouse.lineage.relations import STEP_SEPARATOR, Relation
from warehouse.reporting.iteration_summaries import FIRST_MEMBERS, TABLES_READ, Learned, Members, summaries
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.id_index import IdIndex
from warehouse.storage.files.table_files import Listing
from warehouse.storage.partitions import DataFile
from warehouse.storage.sql.file_sql import duckdb_type, later_columns, stored_rows
from warehouse.storage.sql.query import MEMORY_LIMIT, seen_rows
from warehouse.storage.tables import Warehouse

_PLACE = ("iteration", "stage")
_SAMPLE = (
    *_PLACE,
    "sample_id",
    "annotation_id",
    "episode_id",
    "step_index",
    "prompt_episode_ids",
    "prompt_step_indices",
    "origin",
    "domain",
    "withdrawn",
)
COLUMNS: dict[str, tuple[str, ...]] = {
    "checkpoints": (*_PLACE, "checkpoint_id", "parents", "datasets", "note"),
    "ct_samples": _SAMPLE,
    "sft_samples": _SAMPLE,
    "orm_samples": _SAMPLE,
    "annotations": (*_PLACE, "annotation_id", "episode_id", "step_index", "annotator", "mode", "decision", "withdrawn"),
    "episodes": (
        *_PLACE,
        "episode_id",
        "task_id",
        "policy_id",
        "purpose",
        "task_name",
        "seed",
        "outcome",
        "parent_episode_id",
        "fork_refused",
    ),
    "steps": (*_PLACE, "episode_id", "step_index", "screenshot_id", "action"),
    "screenshots": ("screenshot_id", "format", "width_px", "height_px"),
    "tasks": (*_PLACE, "task_id", "name", "domain"),
    "evaluations": ("iteration", "checkpoint_role", "split", "checkpoint_id", "num_episodes", "num_success"),
}
"""What relations and labels read of each table that a walk back can come to."""
BY_ID = {
    "ct_sample": "ct_samples",
    "sft_sample": "sft_samples",
    "orm_sample": "orm_samples",
    "annotation": "annotations",
    "episode": "episodes",
    "screenshot": "screenshots",
}
"""Kind of a node -> the table that has its row."""
KINDS = {*BY_ID, "checkpoint", "dataset", "step", "task"}
"""Of the nodes that a walk back can begin at."""


class LineageRows:
    """A connection with the rows that the nodes so far need. Close it after use, as a context."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        listing = Listing(warehouse, (*TABLES_READ, "tasks"))
        self._files = listing.files
        self._summaries = summaries(warehouse, listing)
        self._members_of: dict[str, list[tuple[str, Members]]] = {}
        self._learned_of: dict[str, list[Learned]] = {}
        for iteration, of in self._summaries.items():
            for members in of.members:
                self._members_of.setdefault(members.dataset_id, []).append((iteration, members))
            for learned in of.learned:
                self._learned_of.setdefault(learned.checkpoint_id, []).append(learned)
        self._indices: dict[str, IdIndex] = {}
        self._seen: set[tuple[str, str]] = set()
        scratch = str(warehouse.home.scratch / "duckdb")
        # its queries are small and many: one thread
        self.con = duckdb.connect(":memory:", config={"memory_limit": MEMORY_LIMIT, "temp_directory": scratch, "threads": 1})
        self.con.execute("set parquet_metadata_cache = true")
        self._reader = self.con.cursor()
        # what lies in memory is asked by short queries, which take longer to optimize than to answer; files are read with care
        self.con.execute("pragma disable_optimizer")
        for table, columns in COLUMNS.items():
            schema = TABLES[table].schema
            of_columns = ", ".join(f"{column} {duckdb_type(schema.field(column).type)}" for column in columns)
            self.con.execute(f"create table {table} ({of_columns})")
        self._read("tasks", self._files["tasks"])
        self._add_summaries()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self.con.close()

    def find(self, name: str) -> list[NodeId]:
        """Every node that a walk can begin at and that has this very id, or is a checkpoint's ITERATION/STAGE or a task's name; none where
        it may be something else."""
        iteration, slash, stage = name.partition("/")
        if slash or STEP_SEPARATOR in name:
            of = self._summaries.get(iteration)
            return [NodeId("checkpoint", made.checkpoint_id) for made in (of.checkpoints if of else ()) if made.stage == stage]
        found = {NodeId(kind, name) for kind in BY_ID if self._load(kind, [name])}
        found |= {NodeId("checkpoint", name) for of in self._summaries.values() for made in of.checkpoints if made.checkpoint_id == name}
        found |= {NodeId("dataset", name) for _ in self._members_of.get(name, ())}
        found |= {NodeId("task", id_) for (id_,) in self.con.execute("select task_id from tasks where task_id = ?", [name]).fetchall()}
        if found:
            return sorted(found)
        return [NodeId("task", id_) for (id_,) in self.con.execute("select distinct task_id from tasks where name = ?", [name]).fetchall()]

    def need(self, nodes: Iterable[NodeId]) -> None:
        """Read the rows of these nodes, and what they were made from."""
        by_kind: dict[str, list[str]] = {}
        for node in nodes:
            if node not in self._seen:
                self._seen.add(node)
                by_kind.setdefault(node.kind, []).append(node.id)
        for kind, ids in by_kind.items():
            if kind in BY_ID:
                self._load(kind, ids)
        of_steps = {id_.rpartition(STEP_SEPARATOR)[0] for id_ in by_kind.get("step", ())}
        if episodes := of_steps.union(by_kind.get("episode", ())):
            self._load_steps(sorted(episodes))

    def summarised(self, relation: Relation, ids: Sequence[str]) -> list[tuple[str, list[str], int]] | None:
        """Of each of these children of a relation with very many parents, its first ones and how many there are, from the summaries; None
        for a relation that they do not cover."""
        if relation.child == "dataset":
            return self._members(ids, relation.parent.removesuffix("_sample"))
        return self._learned(ids) if (relation.child, relation.parent) == ("checkpoint", "episode") else None

    def _learned(self, checkpoint_ids: Sequence[str]) -> list[tuple[str, list[str], int]]:
        found = []
        for id_ in checkpoint_ids:
            if of_stages := self._learned_of.get(id_):
                first = sorted((each for of in of_stages for each in of.first), key=lambda each: (len(each), each))
                found.append((id_, first[:FIRST_MEMBERS], sum(of.num for of in of_stages)))
        return found

    def _members(self, dataset_ids: Sequence[str], kind: str) -> list[tuple[str, list[str], int]]:
        found = {members.dataset_id: members for id_ in dataset_ids for _, members in self._members_of.get(id_, ()) if members.kind == kind}
        return [(id_, list(found[id_].first), found[id_].num) for id_ in sorted(found)]

    def describe_datasets(self, ids: Sequence[str]) -> list[Node]:
        """As relations.NODE_KINDS describes them."""
        nodes = []
        for id_ in ids:
            held = self._members_of.get(id_, [])
            counts = {kind: sum(each.num for _, each in held if each.kind == kind) for kind in ("sft", "ct", "orm")}
            label = " and ".join(f"{num} {kind}" for kind, num in counts.items() if num) + " samples" if held else ""
            nodes.append(
                Node(
                    kind="dataset",
                    id=id_,
                    label=label,
                    iteration=min((iteration for iteration, _ in held), default=None),
                    stage=min((each.stage for _, each in held), default=None),
                )
            )
        return nodes

    def _add_summaries(self) -> None:
        """Checkpoints, and what was reported of them."""
        self._insert(
            "checkpoints",
            [
                (iteration, made.stage, made.checkpoint_id, list(made.parents), list(made.datasets), made.note)
                for iteration, of in self._summaries.items()
                for made in of.checkpoints
            ],
        )
        self._insert(
            "evaluations",
            [
                (iteration, policy.role, REPORTED_SPLIT, policy.checkpoint_id, policy.num_episodes, policy.num_success)
                for iteration, of in self._summaries.items()
                for policy in of.evaluated
            ],
        )

    def _load(self, kind: str, ids: Sequence[str]) -> int:
        table = BY_ID[kind]
        (key,) = TABLES[table].key
        fresh = [id_ for id_ in ids if ("row of " + kind, id_) not in self._seen]
        self._seen.update(("row of " + kind, id_) for id_ in fresh)
        return self._read(table, self._index(table).files_with(fresh), key, fresh)

    def _load_steps(self, episode_ids: Sequence[str]) -> None:
        fresh = [id_ for id_ in episode_ids if ("steps", id_) not in self._seen]
        self._seen.update(("steps", id_) for id_ in fresh)
        places = {(file.iteration, file.stage) for file in self._index("episodes").files_with(fresh)}
        self._read("steps", [file for file in self._files_of("steps") if (file.iteration, file.stage) in places], "episode_id", fresh)

    def _index(self, table: str) -> IdIndex:
        if table not in self._indices:
            self._indices[table] = IdIndex(self._warehouse, table, self._files_of(table))
        return self._indices[table]

    def _files_of(self, table: str) -> list[DataFile]:
        if table not in self._files:
            self._files[table] = self._warehouse.listed(table)[1]
        return self._files[table]

    def _read(self, table: str, files: Sequence[DataFile], column: str | None = None, among: Sequence[str] = ()) -> int:
        """Read those rows of some files whose `column` has one of the values, as the view of query.connect has them; returns how many.
        Raises CorruptTable."""
        if not files:
            return 0
        stored = stored_rows(table, self._warehouse.files(table, files))
        is_meant = f"{column} in (select unnest($1))" if column is not None else "true"
        try:
            if any(TABLES[table].column(name).nullable for name in COLUMNS[table]):
                stored = f"(select *{later_columns(table, self._reader.sql(f'from {stored}').columns)} from {stored})"
            rows = f"select {', '.join(COLUMNS[table])} from {stored} where {is_meant}"
            if any(file.is_of_tombstones for file in files):
                rows = f"with more as materialized ({rows}) {seen_rows(TABLES[table], 'more')}"
            ((num,),) = self._reader.execute(f"insert into {table} {rows}", [among] if column is not None else []).fetchall()
        except duckdb.Error as error:
            self._warehouse.raise_explained(table, error)
        return int(num)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            columns = ", ".join(f"unnest(${place + 1})" for place in range(len(rows[0])))
            self.con.execute(f"insert into {table} select {columns}", [list(values) for values in zip(*rows, strict=True)])
