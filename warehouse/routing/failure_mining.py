"""What failed episodes teach after all: their beginning, up to the first wrong step; and, beside a solved attempt at the same instance,
what was right where they erred (a correction) and what leads on after the error (a reflection).

A correction is the failed episode's prompt at its first wrong step with the answer of the solved one on the same screen. A reflection is
its prompt one step later, the error in its history, with the solved one's answer on that screen: the error is kept, and only the answer
that recovers is learned (UI-TARS, arXiv 2501.12326, section 4.5). Both name the solved episode and step that the answer is from, and every
failed one whose prompt it is: several went wrong after the same beginning.

Annotators and step rewards say which step was the first wrong one. `solved_attempts_tell` guesses it: the first one that no solved attempt
at the same instance took on the same screen. Two ways may be right, and screens that look alike may hide different states.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import duckdb
from pydantic import BaseModel, ConfigDict, Field, field_validator

from warehouse.routing.ct_objectives import CtObjective

VIEWS = Path(__file__).with_name("failure_mining.sql")
PAIR_ORIGINS = ("correction", "reflection")
_PAIRS = """
select origin, domain, true as verdict, messages, response, episode_id, step_index,
    list(failed order by failed) as prompt_episode_ids, list(failed_step order by failed) as prompt_step_indices
from (
    select 'correction' as origin, w.episode_id as failed, f.step_index as failed_step, f.messages, s.* exclude (messages)
    from first_wrong_steps w join mined_steps f on f.episode_id = w.episode_id and f.step_index = w.step_index
    {joined} where f.action <> s.action and {pair} qualify {one}
    union all
    select 'reflection', w.episode_id, f.step_index, f.messages, s.* exclude (messages)
    from first_wrong_steps w join mined_steps f on f.episode_id = w.episode_id and f.step_index = w.step_index + 1
    {joined} where {pair} qualify {one}
)
where list_contains($wanted, origin) group by all order by origin, min(failed), episode_id
""".format(
    joined="join mined_steps s on s.task_id = f.task_id and s.seed = f.seed and s.state = f.state",
    pair="not f.is_solved and s.is_solved and s.route = 'sft' and greatest(f.iteration, s.iteration) = $iteration "
    "and f.messages <> s.messages and trim(s.response) <> ''",
    one="row_number() over (partition by f.episode_id order by s.iteration, s.episode_id, s.step_index) = 1",
)


class FailureMiningConfig(BaseModel):
    """What of failed episodes joins the training sets beside what routing sends there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ct_objectives: Annotated[
        tuple[CtObjective, ...],
        Field(
            min_length=1,
            description="what CT learns of each episode that is routed to it. answers: the policy's answers; all_tokens: its prompts as "
            "well; next_observation: what the environment showed after each action; hindsight: a failed episode's answers under the "
            "instruction that they do carry out, where solved attempts show it; until_first_error: the answers before the first wrong "
            "step, where annotations or step rewards show it (or solved attempts: solved_attempts_tell). Prompts and observations weigh "
            "prompt_loss_weight. Several: a sample of each",
        ),
    ] = ("answers",)
    corrections: Annotated[
        bool, Field(description="SFT learns, at a failed episode's first wrong step, the answer of a solved attempt on the same screen")
    ] = False
    reflections: Annotated[
        bool, Field(description="SFT learns, one step after the error, which stays in the prompt, the answer of a solved attempt there")
    ] = False
    solved_attempts_tell: Annotated[
        bool,
        Field(
            description="a step that no solved attempt at the instance took on its screen counts as wrong: a guess, for tasks whose "
            "screens show all and that are solved in one way"
        ),
    ] = False

    @field_validator("ct_objectives")
    @classmethod
    def _each_once(cls, objectives: tuple[CtObjective, ...]) -> tuple[CtObjective, ...]:
        if len(set(objectives)) < len(objectives):
            raise ValueError(f"ct_objectives is [{', '.join(objectives)}]: name each objective once")
        return objectives

    @property
    def pair_origins(self) -> tuple[str, ...]:
        """Origins of the pairs that are asked for."""
        return tuple(origin for origin, is_on in zip(PAIR_ORIGINS, (self.corrections, self.reflections), strict=True) if is_on)


def first_wrong_steps(con: duckdb.DuckDBPyConnection, config: FailureMiningConfig) -> str:
    """Name of a view (episode_id, step_index) that is made: the first wrong step of each failed episode where it is known."""
    _make_views(con, config)
    return "first_wrong_steps"


def pairs(con: duckdb.DuckDBPyConnection, iteration: str, config: FailureMiningConfig) -> duckdb.DuckDBPyRelation:
    """Corrections and reflections of one iteration, as far as asked for, in the order of the failed episodes, as a query: (origin,
    domain, verdict, messages, response, episode_id, step_index, prompt_episode_ids, prompt_step_indices)."""
    _make_views(con, config)
    return con.sql(_PAIRS, params={"iteration": iteration, "wanted": list(config.pair_origins)})


def _make_views(con: duckdb.DuckDBPyConnection, config: FailureMiningConfig) -> None:
    con.execute(VIEWS.read_text().replace("$attempts_tell", str(config.solved_attempts_tell).lower()))
