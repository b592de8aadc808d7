"""Episodes to read: what was seen, thought and done at each step, with the screen where it was kept. Which ones are shown is chosen by
rule, the same each time.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import duckdb

EPISODES_PER_KIND = 2
MAX_STEPS_SHOWN = 8
THOUGHT_CHARS = 240
OBSERVATION_CHARS = 420


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCard:
    index: int
    image: str | None
    """the screenshot as a data URI."""
    mark: tuple[float, float] | None
    """where the action points, in percent of the screenshot's width and height."""
    observation: str
    """the beginning of the element list, or of a terminal's output."""
    thought: str
    action: str
    correction: str | None
    is_annotator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCard:
    episode_id: str
    kind: str
    task: str
    domain: str
    seed: int
    instruction: str
    outcome: str
    route: str
    reason: str
    steps: tuple[StepCard, ...]
    num_hidden: int


_KINDS = {
    "solved": "r.route = 'sft' and e.purpose = 'rollout'",
    "failed": "r.reason like 'V=0%' and e.purpose = 'rollout'",
    "corrected": "r.route <> 'withheld' and e.purpose = 'annotation' and exists (from annotations a "
    "where a.episode_id = e.episode_id and a.decision in ('edit', 'override') and not a.withdrawn)",
}
_COLUMNS = "e.episode_id, e.task_name, e.domain, e.seed, coalesce(e.instruction, ''), e.outcome, e.num_steps"
_ROUTED = f"""
select {_COLUMNS}, r.route, r.reason
from episodes e join routes r using (episode_id, iteration)
where e.iteration = ? and e.num_steps > 0 and {{condition}}
qualify row_number() over (partition by e.task_name order by abs(e.num_steps - 4), e.episode_id) = 1
order by abs(e.num_steps - 4), hash(e.episode_id) limit ?
"""


def trajectories(con: duckdb.DuckDBPyConnection, iteration: str) -> list[EpisodeCard]:
    """A few solved, failed and corrected episodes of an iteration, of different tasks where there are any."""
    cards = []
    for kind, condition in _KINDS.items():
        for row in con.execute(_ROUTED.format(condition=condition), [iteration, EPISODES_PER_KIND]).fetchall():
            cards.append(_card(con, iteration, kind, row[:7], route=row[7], reason=row[8]))
    return cards


_LEARNED_FROM = f"""
select {_COLUMNS} from episodes e
where e.iteration = ? and e.stage = ? and e.purpose = 'rl' and e.num_steps > 0 and (e.outcome = 'success') = ? and e.outcome <> 'crashed'
qualify row_number() over (partition by e.task_name order by abs(e.num_steps - 4), e.episode_id) = 1
order by abs(e.num_steps - 4), hash(e.episode_id) limit ?
"""


def learned_from(con: duckdb.DuckDBPyConnection, iteration: str, stage: str, num: int = EPISODES_PER_KIND) -> list[EpisodeCard]:
    """`num` wins and as many losses among the episodes that a run learned from, each of another task, medium long ones first."""
    cards = []
    for kind, is_win in (("solved", True), ("failed", False)):
        for row in con.execute(_LEARNED_FROM, [iteration, stage, is_win, num]).fetchall():
            cards.append(_card(con, iteration, kind, row))
    return cards


_EVALUATED = f"""
select {_COLUMNS} from episodes e
where e.iteration = ? and e.purpose = 'evaluation' and e.policy_id = ? and e.task_name = ? and e.seed = ? and e.split = ? limit 1
"""


def evaluated(
    con: duckdb.DuckDBPyConnection, iteration: str, policy_id: str, instances: Sequence[tuple[str, int]], split: str, kind: str, reason: str
) -> list[EpisodeCard]:
    """A policy's greedy episodes on these (task name, seed)."""
    cards = []
    for task, seed in instances:
        for row in con.execute(_EVALUATED, [iteration, policy_id, task, seed, split]).fetchall():
            cards.append(_card(con, iteration, kind, row, reason=reason))
    return cards


def _card(
    con: duckdb.DuckDBPyConnection, iteration: str, kind: str, row: Sequence[Any], *, route: str = "", reason: str = ""
) -> EpisodeCard:
    episode_id, task, domain, seed, instruction, outcome, num_steps = row
    return EpisodeCard(
        episode_id=episode_id, kind=kind, task=task, domain=domain, seed=seed, instruction=instruction, outcome=outcome, route=route,
        reason=reason, steps=tuple(_steps(con, iteration, episode_id)), num_hidden=max(0, num_steps - MAX_STEPS_SHOWN),
    )


_STEPS = """
select s.step_index, s.observation, s.thought, s.response, s.action, s.policy_id <> e.policy_id and e.purpose <> 'rl',
    i.data, i.format, i.width_px, i.height_px,
    (select a.response from annotations a where a.episode_id = s.episode_id and a.step_index = s.step_index
        and a.iteration = s.iteration and a.decision in ('edit', 'override') and a.mode = 'relabel' limit 1)
from steps s join episodes e using (episode_id, iteration, stage) left join screenshots i using (screenshot_id)
where s.iteration = ? and s.episode_id = ? order by s.step_index limit ?
"""


def _steps(con: duckdb.DuckDBPyConnection, iteration: str, episode_id: str) -> list[StepCard]:
    cards = []
    for row in con.execute(_STEPS, [iteration, episode_id, MAX_STEPS_SHOWN]).fetchall():
        index, observation, thought, response, action, is_annotator, data, form, width_px, height_px, correction = row
        parsed = json.loads(action)
        cards.append(
            StepCard(
                index=index, observation=_excerpt(observation), thought=shorten(thought or "", THOUGHT_CHARS, placeholder=" …"),
                action=_action_text(response, parsed), correction=_action_part(correction),
                image=None if data is None else f"data:image/{form};base64,{base64.b64encode(data).decode()}",
                mark=_mark(parsed, width_px, height_px), is_annotator=is_annotator,
            )
        )
    return cards


def _excerpt(observation: str) -> str:
    return observation if len(observation) <= OBSERVATION_CHARS else f"{observation[:OBSERVATION_CHARS].rstrip()} …"


def _mark(action: Mapping[str, Any], width_px: int | None, height_px: int | None) -> tuple[float, float] | None:
    if not width_px or not height_px or not isinstance(action.get("x"), int) or not isinstance(action.get("y"), int):
        return None
    return 100 * action["x"] / width_px, 100 * action["y"] / height_px


def _action_text(response: str, action: Mapping[str, Any]) -> str:
    if action.get("kind") == "invalid":
        return f"invalid: {action.get('reason', '')}"
    return _action_part(response) or json.dumps(action)


def _action_part(response: str | None) -> str | None:
    """What an answer does: the part behind `Action`, where it has one."""
    return None if response is None else (response.rpartition("Action")[2].strip(" :\n") or response.strip())
