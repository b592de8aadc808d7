"""Episodes that policies have played before, from the warehouse, for a critic to be pretrained on: of training instances alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from agent.episode.episode import Episode
from agent.episode.rows import stored_episode
from models.families.vision import screenshot_ids
from sandbox.tasks.task import Task
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

_EPISODES = """
select * from episodes where stage in (select unnest($stages::varchar[])) and split = 'train' and purpose in ('rl', 'rollout')
and outcome <> 'crashed' and task_name <> 'erased' and task_id in (select unnest($tasks::varchar[])) order by md5(episode_id) limit $num"""
_STEPS = "select * from steps where episode_id in (select unnest($ids::varchar[])) order by episode_id, step_index"
_SCREENSHOTS = "select screenshot_id, data from screenshots where screenshot_id in (select unnest($ids::varchar[]))"
CHUNK = 64
"""Episodes whose steps are read at once."""


def stored_episodes(warehouse: Warehouse, places: Sequence[str], tasks: Sequence[Task], num: int, *, screenshots: bool) -> list[Episode]:
    """At most `num` episodes of these tasks, of the newest iterations among `places` (ITERATION/STAGE), of each a random choice. One whose
    steps lack token ids or log-probabilities, because its policy answered through a server that gives none, is left out."""
    stages: dict[str, list[str]] = defaultdict(list)
    for place in places:
        iteration, _, stage = place.partition("/")
        stages[iteration].append(stage)
    of_id, found = {task.task_id: task for task in tasks}, list[Episode]()
    for iteration in sorted(stages, reverse=True):
        if len(found) < num:
            found += _of_iteration(warehouse, iteration, stages[iteration], of_id, num - len(found), screenshots=screenshots)
    return found


def _of_iteration(
    warehouse: Warehouse, iteration: str, stages: Sequence[str], of_id: dict[str, Task], num: int, *, screenshots: bool
) -> Iterator[Episode]:
    with connect(warehouse, tables=["episodes", "steps"], iterations=[iteration]) as con:
        asked = {"stages": list(stages), "tasks": sorted(of_id), "num": num}
        rows = con.sql(_EPISODES, params=asked).to_arrow_table().to_pylist()
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            ids = [row["episode_id"] for row in chunk]
            steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for step in con.sql(_STEPS, params={"ids": ids}).to_arrow_table().to_pylist():
                steps[step["episode_id"]].append(step)
            for row in chunk:
                of_row = steps[row["episode_id"]]
                if all(map(_has_tokens, of_row)):
                    episode = stored_episode(row, of_row, of_id[row["task_id"]])
                    yield _with_screenshots(warehouse, episode) if screenshots else episode


def _has_tokens(step: dict[str, Any]) -> bool:
    """Whether a trajectory can be made of a step: its tokens are known, each with its log-probability; or it has no answer at all."""
    answer, logprobs = step["response_token_ids"], step["response_logprobs"]
    return not step["response"] or bool(step["prompt_token_ids"] and answer and len(logprobs or ()) == len(answer))


def _with_screenshots(warehouse: Warehouse, episode: Episode) -> Episode:
    ids = sorted({id_ for step in episode.steps for id_ in screenshot_ids(step.messages)})
    with connect(warehouse, tables=["screenshots"]) as con:
        found = dict(con.execute(_SCREENSHOTS, {"ids": ids}).fetchall())
    return episode.model_copy(update={"screenshots": found})
