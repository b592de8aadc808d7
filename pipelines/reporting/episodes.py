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

from warehouse.quality.patterns import quoted
from warehouse.storage.screenshots.stored import pictures
from warehouse.storage.tables import Warehouse

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An episode of an evaluation that is to be shown."""

    policy_id: str
    task: str
    seed: int
    kind: str
    reason: str


_KINDS = {
    "solved": "r.route = 'sft' and e.purpose = 'rollout'",
    "failed": "not r.decided_verdict and r.route = 'ct' and e.purpose = 'rollout'",
    "corrected": "r.route <> 'withheld' and e.purpose = 'annotation' and exists (from annotations a "
    "where a.episode_id = e.episode_id and a.decision in ('edit', 'override') and not a.withdrawn)",
}
_COLUMNS = "e.episode_id, e.stage, e.task_name, e.domain, e.seed, coalesce(e.instruction, ''), e.outcome, e.num_steps"
_NUM_COLUMNS = 8
_ROUTED = f"""
select {_COLUMNS}, r.route, r.reason
from episodes e join routes r using (episode_id, iteration)
where e.iteration = ? and e.num_steps > 0 and {{condition}}
qualify row_number() over (partition by e.task_name order by abs(e.num_steps - 4), e.episode_id) = 1
order by abs(e.num_steps - 4), hash(e.episode_id) limit ?
"""


def trajectories(con: duckdb.DuckDBPyConnection, warehouse: Warehouse, iteration: str) -> list[EpisodeCard]:
    """A few solved, failed and corrected episodes of an iteration, of different tasks where there are any."""
    chosen = []
    for kind, condition in _KINDS.items():
        for row in con.execute(_ROUTED.format(condition=condition), [iteration, EPISODES_PER_KIND]).fetchall():
            chosen.append(_Chosen(kind=kind, row=row[:_NUM_COLUMNS], route=row[-2], reason=row[-1]))
    return _cards(con, warehouse, iteration, chosen)


_LEARNED_FROM = f"""
select {_COLUMNS} from episodes e
where e.iteration = ? and e.stage = ? and e.purpose = 'rl' and e.num_steps > 0 and (e.outcome = 'success') = ? and e.outcome <> 'crashed'
qualify row_number() over (partition by e.task_name order by abs(e.num_steps - 4), e.episode_id) = 1
order by abs(e.num_steps - 4), hash(e.episode_id) limit ?
"""


def learned_from(
    con: duckdb.DuckDBPyConnection, warehouse: Warehouse, iteration: str, stage: str, num: int = EPISODES_PER_KIND
) -> list[EpisodeCard]:
    """`num` wins and as many losses among the episodes that a run learned from, each of another task, medium long ones first."""
    chosen = []
    for kind, is_win in (("solved", True), ("failed", False)):
        for row in con.execute(_LEARNED_FROM, [iteration, stage, is_win, num]).fetchall():
            chosen.append(_Chosen(kind=kind, row=row))
    return _cards(con, warehouse, iteration, chosen)


_EVALUATED = f"""
select {_COLUMNS} from episodes e
where e.iteration = ? and e.purpose = 'evaluation' and e.policy_id = ? and e.task_name = ? and e.seed = ? and e.split = ? limit 1
"""


def evaluated(
    con: duckdb.DuckDBPyConnection, warehouse: Warehouse, iteration: str, instances: Sequence[Instance], split: str
) -> list[EpisodeCard]:
    """The greedy episodes of these policies on these instances."""
    chosen = []
    for each in instances:
        for row in con.execute(_EVALUATED, [iteration, each.policy_id, each.task, each.seed, split]).fetchall():
            chosen.append(_Chosen(kind=each.kind, row=row, reason=each.reason))
    return _cards(con, warehouse, iteration, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """An episode that is shown: `row` has _COLUMNS."""

    kind: str
    row: Sequence[Any]
    route: str = ""
    reason: str = ""


def _cards(con: duckdb.DuckDBPyConnection, warehouse: Warehouse, iteration: str, chosen: Sequence[_Chosen]) -> list[EpisodeCard]:
    steps = _steps(con, warehouse, iteration, [each.row for each in chosen])
    cards = []
    for each in chosen:
        episode_id, _, task, domain, seed, instruction, outcome, num_steps = each.row
        cards.append(
            EpisodeCard(
                episode_id=episode_id,
                kind=each.kind,
                task=task,
                domain=domain,
                seed=seed,
                instruction=instruction,
                outcome=outcome,
                route=each.route,
                reason=each.reason,
                steps=tuple(steps.get(episode_id, ())),
                num_hidden=max(0, num_steps - MAX_STEPS_SHOWN),
            )
        )
    return cards


_STEPS = f"""
select s.episode_id, s.step_index, s.observation, s.thought, s.response, s.action, s.policy_id <> e.policy_id and e.purpose <> 'rl',
    s.screenshot_id,
    (select a.response from annotations a where a.episode_id = s.episode_id and a.step_index = s.step_index
        and a.iteration = s.iteration and a.decision in ('edit', 'override') and a.mode = 'relabel' limit 1)
from steps s join episodes e using (episode_id, iteration, stage)
where s.iteration = {{iteration}} and s.stage in ({{stages}}) and s.episode_id in ({{ids}})
qualify row_number() over (partition by s.episode_id order by s.step_index) <= {MAX_STEPS_SHOWN} order by s.episode_id, s.step_index
"""


def _steps(
    con: duckdb.DuckDBPyConnection, warehouse: Warehouse, iteration: str, episodes: Sequence[Sequence[Any]]
) -> dict[str, list[StepCard]]:
    """The first steps of each episode; all of them are read together, for their files hold the steps of thousands."""
    if not episodes:
        return {}
    ids, stages = ({row[place] for row in episodes} for place in (0, 1))
    named = {name: ", ".join(quoted(value) for value in sorted(values)) for name, values in (("ids", ids), ("stages", stages))}
    rows = con.execute(_STEPS.format(iteration=quoted(iteration), **named)).fetchall()
    screens = pictures(warehouse, {row[7] for row in rows if row[7] is not None})
    cards: dict[str, list[StepCard]] = {}
    for episode_id, index, observation, thought, response, action, is_annotator, screenshot_id, correction in rows:
        parsed, screen = json.loads(action), screens.get(screenshot_id)
        cards.setdefault(episode_id, []).append(
            StepCard(
                index=index,
                observation=_excerpt(observation),
                thought=shorten(thought or "", THOUGHT_CHARS, placeholder=" …"),
                action=_action_text(response, parsed),
                correction=_action_part(correction),
                image=None if screen is None else f"data:image/{screen.format};base64,{base64.b64encode(screen.data).decode()}",
                mark=None if screen is None else _mark(parsed, screen.width_px, screen.height_px),
                is_annotator=is_annotator,
            )
        )
    return cards


def _excerpt(observation: str) -> str:
    return observation if len(observation) <= OBSERVATION_CHARS else f"{observation[:OBSERVATION_CHARS].rstrip()} …"


def _mark(action: Mapping[str, Any], width_px: int, height_px: int) -> tuple[float, float] | None:
    if not isinstance(action.get("x"), int) or not isinstance(action.get("y"), int):
        return None
    return 100 * action["x"] / width_px, 100 * action["y"] / height_px


def _action_text(response: str, action: Mapping[str, Any]) -> str:
    if action.get("kind") == "invalid":
        return f"invalid: {action.get('reason', '')}"
    return _action_part(response) or json.dumps(action)


def _action_part(response: str | None) -> str | None:
    """What an answer does: the part behind `Action`, where it has one."""
    return None if response is None else (response.rpartition("Action")[2].strip(" :\n") or response.strip())
