"""Games scored as the paper does (arXiv 2509.02544): a policy's mean score at one task of each game, in the game's own points, and the mean
over games of 100 · score / reference. The reference is people's mean score or the oracle's, and a figure says which; what they scored is
sandbox/tasks/games/references.json.

References count as known: what so few of their episodes leave open is not in the intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import duckdb

from warehouse.core import stages
from warehouse.evaluation.statistics import Interval, mean_of_means, score_interval

Player = Literal["random", "oracle", "people"]
NORMALISED: Mapping[Player, str] = {"oracle": "oracle-normalised", "people": "human-normalised"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GameReference:
    """What others score at a task, in the mean; `people` is None where none have played it."""

    game: str
    task: str
    random: float
    oracle: float
    people: float | None
    best: float
    """The most that any of them scored in an episode."""

    def of(self, player: Player) -> float | None:
        return {"random": self.random, "oracle": self.oracle, "people": self.people}[player]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameScore:
    """A policy at one game, in the game's own points."""

    reference: GameReference
    mean: float
    interval: Interval
    num_episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalisedMean:
    """Over games, in percent of what `by` scores."""

    by: Player
    mean: float
    interval: Interval
    num_games: int

    @property
    def name(self) -> str:
        return NORMALISED[self.by]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameScores:
    """One policy of one iteration on one split: its score at each game, by the game's name."""

    iteration: str
    role: str
    split: str
    games: Mapping[str, GameScore]

    @property
    def normalised(self) -> NormalisedMean:
        """By people where they have played every one of these games, else by the oracle."""
        is_by_people = all(score.reference.people for score in self.games.values())
        return self.normalised_by("people" if is_by_people else "oracle")

    def normalised_by(self, by: Player) -> NormalisedMean:
        """Raises ValueError where `by` has not scored at one of the games."""
        each = []
        for game, score in self.games.items():
            if not (reference := score.reference.of(by)):
                raise ValueError(f"{game}: there is no score of {by} to normalise by")
            share = 100 / reference
            each.append((share * score.mean, Interval(low=share * score.interval.low, high=share * score.interval.high)))
        mean, interval = mean_of_means(each)
        return NormalisedMean(by=by, mean=mean, interval=interval, num_games=len(each))


_SCORES = """
select iteration, checkpoint_role, task_id, num_episodes, mean_points, points_deviation from evaluations
where num_episodes > 0 and mean_points is not null and ($iteration is null or iteration = $iteration) and split = $split
order by task_name, stage
"""


def game_scores(
    con: duckdb.DuckDBPyConnection, references: Mapping[str, GameReference], split: str, *, iteration: str | None = None
) -> list[GameScores]:
    """Every policy that was evaluated on any of these tasks, by the task's id, in the order in which iterations make them. Of a game whose
    task was played with and without elements the latter counts."""
    found: dict[tuple[str, str], dict[str, GameScore]] = defaultdict(dict)
    for key, role, task_id, num, mean, deviation in con.execute(_SCORES, {"iteration": iteration, "split": split}).fetchall():
        reference = references.get(task_id)
        if reference is not None and reference.game not in found[key, role]:
            interval = score_interval(mean, deviation, num, max(reference.best, mean))
            found[key, role][reference.game] = GameScore(reference=reference, mean=mean, interval=interval, num_episodes=num)
    made = [GameScores(iteration=key, role=role, split=split, games=dict(sorted(of.items()))) for (key, role), of in found.items() if of]
    return sorted(made, key=lambda one: (one.iteration, stages.rank(one.role)))


_PEOPLE = """
select e.task_id, e.points from episodes e join (
    select episode_id, count(*) as num from annotations where origin = 'human' and mode = 'intervene' and decision in ('edit', 'override')
    group by episode_id
) own on own.episode_id = e.episode_id and own.num >= e.num_steps
where e.purpose = 'annotation' and e.points is not null order by e.task_id, e.episode_id
"""


def people_scores(con: duckdb.DuckDBPyConnection) -> dict[str, list[float]]:
    """By task id, the scores of episodes in which a person decided every step and took none of it from a policy as it was."""
    found: dict[str, list[float]] = defaultdict(list)
    for task_id, points in con.execute(_PEOPLE).fetchall():
        found[task_id].append(points)
    return dict(found)
