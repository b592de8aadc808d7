"""Scores at games for the report's pages: a table for each group of tasks that games are scored by, where any of its tasks was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from warehouse.core.stages import is_rl
from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.evaluation.game_scores import GameReference, GameScores, NormalisedMean, game_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesTable:
    """One group: what its games are scored beside, and each policy's scores."""

    group: str
    references: tuple[GameReference, ...]
    """of the games that any of the policies was evaluated on, by name"""
    policies: tuple[GameScores, ...]
    num_games: int
    """that there are"""

    @property
    def has_people(self) -> bool:
        return any(reference.people is not None for reference in self.references)

    @property
    def means(self) -> list[NormalisedMean]:
        return [policy.normalised for policy in self.policies]

    @property
    def random_mean(self) -> float:
        """Of random play, in percent of the oracle's scores, over the same games."""
        return sum(100 * reference.random / reference.oracle for reference in self.references) / len(self.references)


def games_tables(
    con: duckdb.DuckDBPyConnection, split: str = REPORTED_SPLIT, *, iteration: str | None = None, specialists: bool = True
) -> list[GamesTable]:
    """Of one iteration or of all; without the specialists of single domains where they are not asked for."""
    if con.execute("select 1 from evaluations where mean_points is not null limit 1").fetchone() is None:
        return []
    from sandbox.tasks.sources import score_references  # heavy, and most homes have no use for it

    found = []
    for group, references in score_references().items():
        scores = game_scores(con, references, split, iteration=iteration)
        policies = [one for one in scores if specialists or not is_rl(one.role)]
        if policies:
            num_games = len({reference.game for reference in references.values()})
            found.append(GamesTable(group=group, references=_references(policies), policies=tuple(policies), num_games=num_games))
    return found


def _references(policies: Sequence[GameScores]) -> tuple[GameReference, ...]:
    by_game = {game: score.reference for policy in policies for game, score in policy.games.items()}
    return tuple(by_game[game] for game in sorted(by_game))
