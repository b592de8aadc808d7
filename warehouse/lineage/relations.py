"""The edges of lineage as data: which column of which table names what its row was made from. Walking them is walk.py's business.

An edge points from what was made (child) to what it was made from (parent):

    checkpoint → dataset → sample → annotation, episode, step → screenshot;  episode → task, checkpoint, episode;
    checkpoint → checkpoint, episode
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_SEPARATOR = "#"
"""A step's node id is `<episode id>#<step index>`; a verdict's, route's and evaluation's use `/` in the same way."""
_STEP = f"episode_id || '{STEP_SEPARATOR}' || step_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One kind of edge: for each row of `source`, the node `child_id` was made from the node `parent_id` (both SQL expressions)."""

    child: str
    parent: str
    name: str
    source: str
    child_id: str
    parent_id: str
    where: str = "true"

    @property
    def select(self) -> str:
        return (
            f"SELECT '{self.child}' AS child_kind, {self.child_id} AS child_id, '{self.parent}' AS parent_kind, "
            f"{self.parent_id} AS parent_id, '{self.name}' AS relation FROM {self.source} "
            f"WHERE ({self.parent_id}) IS NOT NULL AND {self.where}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """How to list the nodes of one kind: SQL for their id, the iteration and stage that made them, and a line that describes them."""

    name: str
    source: str
    node_id: str
    label: str
    iteration: str = "iteration"
    stage: str = "stage"

    @property
    def select(self) -> str:
        return (
            f"SELECT '{self.name}' AS kind, {self.node_id} AS id, {self.iteration} AS iteration, {self.stage} AS stage, "
            f"{self.label} AS label FROM {self.source}"
        )


def _relation(child: str, parent: str, name: str, source: str, child_id: str, parent_id: str, where: str = "true") -> Relation:
    return Relation(child=child, parent=parent, name=name, source=source, child_id=child_id, parent_id=parent_id, where=where)


_PROMPTS = "(SELECT sample_id, unnest(prompt_episode_ids) AS episode_id, unnest(prompt_step_indices) AS step_index FROM {})"
"""Of a table of samples, those whose prompt is another episode's than the answer."""


def _of_samples(kind: str) -> tuple[Relation, ...]:
    sample, table = f"{kind}_sample", f"{kind}_samples"
    return (
        _relation("dataset", sample, "contains", "datasets", "dataset_id", "sample_id", f"kind = '{kind}'"),
        _relation(sample, "annotation", "corrected by", table, "sample_id", "annotation_id"),
        _relation(sample, "episode", "cut from", table, "sample_id", "episode_id"),
        _relation(sample, "step", "cut from", table, "sample_id", _STEP),
        _relation(sample, "episode", "prompted by", _PROMPTS.format(table), "sample_id", "episode_id"),
        _relation(sample, "step", "prompted by", _PROMPTS.format(table), "sample_id", _STEP),
    )


LEARNED_EPISODES = """(SELECT checkpoint_id, unnest(episode_ids) AS episode_id FROM checkpoints
    UNION ALL SELECT checkpoint_id, episode_id FROM checkpoints JOIN episodes USING (iteration, stage)
    WHERE episode_ids IS NULL AND purpose = 'rl' AND policy_id <> checkpoint_id)"""
"""Where a checkpoint does not name its episodes, for it is from before, all that were run to train it. But a specialist that no episode
moved is still the checkpoint that acted in them, and learned from none."""

RELATIONS: tuple[Relation, ...] = (
    _relation(
        "checkpoint",
        "checkpoint",
        "made from",
        "(SELECT checkpoint_id, unnest(parents) AS parent FROM checkpoints)",
        "checkpoint_id",
        "parent",
        "checkpoint_id <> parent",
    ),
    _relation(
        "checkpoint",
        "dataset",
        "learned from",
        "(SELECT checkpoint_id, unnest(datasets) AS dataset FROM checkpoints)",
        "checkpoint_id",
        "dataset",
    ),
    _relation("checkpoint", "episode", "learned from", LEARNED_EPISODES, "checkpoint_id", "episode_id"),
    *_of_samples("ct"),
    *_of_samples("sft"),
    *_of_samples("orm"),
    _relation("annotation", "episode", "annotates", "annotations", "annotation_id", "episode_id"),
    _relation("annotation", "step", "annotates", "annotations", "annotation_id", _STEP),
    _relation("episode", "episode", "forked from", "episodes", "episode_id", "parent_episode_id", "fork_refused IS NULL"),
    _relation("episode", "task", "attempts", "episodes", "episode_id", "task_id"),
    _relation("episode", "checkpoint", "acted by", "episodes", "episode_id", "policy_id", "policy_id <> 'oracle'"),
    _relation("episode", "oracle", "acted by", "episodes", "episode_id", "policy_id", "policy_id = 'oracle'"),
    _relation("episode", "step", "consists of", "steps", "episode_id", _STEP),
    _relation("step", "screenshot", "saw", "steps", _STEP, "screenshot_id"),
    _relation("verdict", "episode", "judges", "verdicts", "episode_id || '/' || judge", "episode_id"),
    _relation("route", "episode", "routes", "routes", "episode_id || '/route'", "episode_id"),
    _relation(
        "route", "verdict", "decided by", "routes JOIN verdicts USING (episode_id)", "episode_id || '/route'", "episode_id || '/' || judge"
    ),
    _relation(
        "evaluation",
        "checkpoint",
        "measures",
        "(SELECT DISTINCT iteration, checkpoint_role, split, checkpoint_id FROM evaluations)",
        "iteration || '/' || checkpoint_role || '/' || split",
        "checkpoint_id",
    ),
)


def _kind(name: str, source: str, node_id: str, label: str, **rest: str) -> NodeKind:
    return NodeKind(name=name, source=source, node_id=node_id, label=label, **rest)


_PERCENT = "round(100.0 * sum(num_success) / greatest(sum(num_episodes), 1), 1) || ' % of ' || sum(num_episodes) || ' episodes'"
_CHECKPOINT_LABEL = "stage || coalesce(', holdout ' || success, '') || coalesce(', also ' || others, '')"
_STEP_LABEL = "coalesce(json_extract_string(try_cast(action AS JSON), '$.kind'), 'action') || ' at step ' || step_index"
_SAMPLE_LABEL = "origin || ', ' || domain || CASE WHEN withdrawn THEN ', withdrawn' ELSE '' END"
_CHECKPOINTS = f"""(
    WITH named AS (
        SELECT *, row_number() OVER (
            PARTITION BY checkpoint_id ORDER BY iteration, list_contains(parents, checkpoint_id), note <> '', stage) AS place
        FROM checkpoints)
    SELECT checkpoint_id, arg_min(iteration, place) AS iteration, arg_min(stage, place) AS stage,
           string_agg(iteration || '/' || stage, ', ' ORDER BY place) FILTER (place > 1) AS others, any_value(success) AS success
    FROM named LEFT JOIN (
        SELECT checkpoint_id, arg_min(success, iteration || checkpoint_role) AS success FROM (
            SELECT checkpoint_id, iteration, checkpoint_role, {_PERCENT} AS success FROM evaluations WHERE split = 'holdout'
            GROUP BY checkpoint_id, iteration, checkpoint_role) GROUP BY checkpoint_id)
         USING (checkpoint_id) GROUP BY checkpoint_id)"""
"""A checkpoint that a stage passed on, or left as it was (then it is its own parent), or that was released, has several rows: the stage
that made it names it."""

NODE_KINDS: tuple[NodeKind, ...] = (
    _kind("checkpoint", _CHECKPOINTS, "checkpoint_id", _CHECKPOINT_LABEL),
    _kind(
        "dataset",
        "(SELECT dataset_id, min(iteration) AS iteration, min(stage) AS stage, count(*) FILTER (kind = 'ct') AS num_ct, "
        "count(*) FILTER (kind = 'sft') AS num_sft, "
        "count(*) FILTER (kind = 'orm') AS num_orm FROM datasets GROUP BY dataset_id)",
        "dataset_id",
        "concat_ws(' and ', CASE WHEN num_sft > 0 THEN num_sft || ' sft' END, CASE WHEN num_ct > 0 THEN num_ct || ' ct' END, "
        "CASE WHEN num_orm > 0 THEN num_orm || ' orm' END) "
        "|| ' samples'",
    ),
    _kind("ct_sample", "ct_samples", "sample_id", _SAMPLE_LABEL),
    _kind("sft_sample", "sft_samples", "sample_id", _SAMPLE_LABEL),
    _kind("orm_sample", "orm_samples", "sample_id", _SAMPLE_LABEL),
    _kind("annotation", "annotations", "annotation_id", "annotator || ' ' || mode || ': ' || decision"),
    _kind("episode", "episodes", "episode_id", "task_name || ' seed ' || seed || ': ' || outcome"),
    _kind("step", "steps", _STEP, _STEP_LABEL),
    _kind("task", "tasks", "task_id", "name || ' (' || domain || ')'"),
    _kind("screenshot", "screenshots", "screenshot_id", "width_px || '×' || height_px || ' ' || format", iteration="NULL", stage="NULL"),
    _kind("verdict", "verdicts", "episode_id || '/' || judge", "judge || CASE WHEN passed THEN ' passed' ELSE ' failed' END"),
    _kind("route", "routes", "episode_id || '/route'", "route || ': ' || reason"),
    _kind(
        "evaluation",
        f"(SELECT iteration, checkpoint_role, split, min(stage) AS stage, {_PERCENT} AS success FROM evaluations "
        "GROUP BY iteration, checkpoint_role, split)",
        "iteration || '/' || checkpoint_role || '/' || split",
        "checkpoint_role || ' on ' || split || ': ' || success",
    ),
)

ALL_EDGES = " UNION ALL ".join(relation.select for relation in RELATIONS)
LINEAGE_VIEW = f"CREATE VIEW lineage AS {ALL_EDGES}"
NODES_VIEW = "CREATE VIEW lineage_nodes AS " + " UNION ALL ".join(kind.select for kind in NODE_KINDS)
_EDGES = "edges AS MATERIALIZED (SELECT child_kind, child_id, parent_kind, parent_id FROM lineage)"
"""For a recursive walk: without it, DuckDB plans and reads the view of all tables again at every level."""
ANCESTORS_MACRO = f"""CREATE MACRO ancestors(start_id) AS TABLE (
    WITH RECURSIVE {_EDGES}, walk AS (
        SELECT parent_kind AS kind, parent_id AS id FROM edges WHERE child_id = start_id
        UNION SELECT parent_kind, parent_id FROM edges JOIN walk ON child_kind = walk.kind AND child_id = walk.id)
    SELECT kind, id FROM walk)"""
DESCENDANTS_MACRO = f"""CREATE MACRO descendants(start_id) AS TABLE (
    WITH RECURSIVE {_EDGES}, walk AS (
        SELECT child_kind AS kind, child_id AS id FROM edges WHERE parent_id = start_id
        UNION SELECT child_kind, child_id FROM edges JOIN walk ON parent_kind = walk.kind AND parent_id = walk.id)
    SELECT kind, id FROM walk)"""
LINEAGE_SQL = (LINEAGE_VIEW, NODES_VIEW, ANCESTORS_MACRO, DESCENDANTS_MACRO)
"""What query.connect creates besides the tables: the views `lineage` and `lineage_nodes`, and `ancestors(id)`, `descendants(id)`."""
