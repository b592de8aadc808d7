"""Rows of the table `verdicts`: the environment verifier's V(s) and every quality filter, for each episode that is to be routed.

Computed from rows of `episodes` and `steps` alone, so history can be judged again at any time. Where an episode then goes is decided in
warehouse/routing.sql.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from agent.quality import Context, QualityConfig, Trajectory, quality, trajectory
from warehouse.tables import Warehouse

JUDGED_PURPOSES = ("annotation", "rollout")
"""Purposes whose episodes are judged and routed, in the order in which they count as the original of a duplicate."""
VERIFIER_VERSION = "1"
STEP_COLUMNS = ("episode_id", "step_index", "observation", "screenshot_id", "messages", "response", "thought", "action")
EPISODE_COLUMNS = ("iteration", "episode_id", "purpose", "task_id", "split", "instruction", "outcome", "reward")

Rows: TypeAlias = "pa.Table | Sequence[Mapping[str, Any]]"


def iteration_verdicts(warehouse: Warehouse, iteration: str, config: QualityConfig) -> list[dict[str, Any]]:
    """`verdict_rows` of one iteration, compared with all earlier ones. Reads only the partitions that hold episodes to judge."""
    episodes = warehouse.read("episodes", columns=(*EPISODE_COLUMNS, "stage"))
    is_judged = pc.is_in(episodes["purpose"], value_set=pa.array(JUDGED_PURPOSES))
    episodes = episodes.filter(pc.and_(is_judged, pc.less_equal(episodes["iteration"], iteration)))
    steps = [warehouse.read("steps", stage=stage, columns=STEP_COLUMNS) for stage in sorted(set(episodes["stage"].to_pylist()))]
    return verdict_rows(episodes, pa.concat_tables(steps) if steps else [], config, iteration=iteration)


def verdict_rows(episodes: Rows, steps: Rows, config: QualityConfig, *, iteration: str | None = None) -> list[dict[str, Any]]:
    """Judge the episodes of `iteration` (None: of all rows), in the order of their ids.

    `episodes` and `steps` may, and for duplicates should, reach back to earlier iterations: those are compared with, not judged. A
    crashed episode has no V: only its filters are recorded. Rows lack `iteration` and `stage`, which the warehouse fills in.
    """
    trajectories = read_trajectories(episodes, steps)
    context = Context(typical_steps=typical_steps(trajectories, config), nearest=nearest_earlier(trajectories, config))
    judged = [t for t in trajectories if iteration is None or t.iteration == iteration]
    rows: list[dict[str, Any]] = []
    for episode in sorted(judged, key=lambda t: t.episode_id):
        if episode.outcome != "crashed" and episode.reward is not None:
            rows.append(_verifier_row(episode, config))
        for result in quality(episode, config, context):
            rows.append(
                _row(episode, judge=result.judge, judge_version=result.judge_version, kind="filter", origin="filter", score=result.score,
                     threshold=result.threshold, reasons=list(result.reasons))
            )
    return rows


def read_trajectories(episodes: Rows, steps: Rows) -> list[Trajectory]:
    """Join the rows of the routed purposes, earliest first. An episode recorded in two iterations counts in the first."""
    by_episode: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in _as_rows(steps, STEP_COLUMNS):
        by_episode.setdefault(row["episode_id"], {})[row["step_index"]] = row
    rows = sorted(
        (row for row in _as_rows(episodes, EPISODE_COLUMNS) if row["purpose"] in JUDGED_PURPOSES),
        key=lambda row: (row.get("iteration") or "", JUDGED_PURPOSES.index(row["purpose"]), row["episode_id"]),
    )
    unique: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        unique.setdefault(row["episode_id"], row)
    return [trajectory(row, list(by_episode.get(row["episode_id"], {}).values())) for row in unique.values()]


def typical_steps(trajectories: Iterable[Trajectory], config: QualityConfig) -> dict[str, float]:
    """Median number of steps of the solved episodes of each task."""
    lengths: dict[str, list[int]] = {}
    for episode in trajectories:
        if (episode.reward or 0.0) >= config.success_threshold:
            lengths.setdefault(episode.task_id, []).append(len(episode.steps))
    return {task: float(median(values)) for task, values in lengths.items()}


def nearest_earlier(trajectories: Sequence[Trajectory], config: QualityConfig) -> dict[str, tuple[float, str]]:
    """For each episode its (similarity, id) to the most similar original before it; `trajectories` come earliest first.

    Two episodes are compared when task, instruction and every action agree; their similarity is the mean, over steps, of the Jaccard
    index of the screens' element lines. Only originals, i.e. episodes that are no duplicates themselves, are compared with. An
    annotated episode is a duplicate of annotated ones only: a rollout that was made before has not been corrected.
    """
    originals: dict[str, list[tuple[Trajectory, list[frozenset[str]]]]] = {}
    nearest: dict[str, tuple[float, str]] = {}
    for episode in trajectories:
        if not episode.is_duplicable:
            continue
        bucket = originals.setdefault(json.dumps([episode.task_id, episode.instruction, [s.signature for s in episode.steps]]), [])
        screens = [frozenset(step.state.splitlines()) for step in episode.steps]
        others = [(o, s) for o, s in bucket if episode.purpose != "annotation" or o.purpose == "annotation"]
        best = max(((_similarity(screens, seen), other.episode_id) for other, seen in others), default=(0.0, ""))
        if best[0] > 0:
            nearest[episode.episode_id] = best
        if 1 - best[0] >= config.min_novelty:
            bucket.append((episode, screens))
    return nearest


def _similarity(first: Sequence[frozenset[str]], second: Sequence[frozenset[str]]) -> float:
    scores = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in zip(first, second, strict=True)]
    return sum(scores) / len(scores)


def _verifier_row(episode: Trajectory, config: QualityConfig) -> dict[str, Any]:
    reward = episode.reward or 0.0
    return _row(
        episode, judge="verifier", judge_version=VERIFIER_VERSION, kind="verdict", origin="verifier", score=min(1.0, max(0.0, reward)),
        threshold=config.success_threshold, reasons=[f"reward {reward:g}", f"outcome {episode.outcome}"],
    )


def _row(episode: Trajectory, **columns: Any) -> dict[str, Any]:
    return {"episode_id": episode.episode_id, **columns, "passed": columns["score"] >= columns["threshold"]}


def _as_rows(rows: Rows, columns: Sequence[str]) -> list[Mapping[str, Any]]:
    """Rows as mappings; of an Arrow table only the columns that are read are turned into Python values."""
    if not isinstance(rows, pa.Table):
        return list(rows)
    result: list[Mapping[str, Any]] = rows.select([name for name in columns if name in rows.column_names]).to_pylist()
    return result
