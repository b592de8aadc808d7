"""Who is to blame for what a policy lost: from how far each sample moved it, the sources and episodes that did harm, with intervals.

A sample's harm is measured by models/supervised/influence.py, in nats of log-odds of the answers that lost against those that were wanted.
A stage reads a fixed number of batches, so what is taken out of its dataset is replaced by more of the rest: a source is blamed for what
it did beyond what as many draws of the others would have done,

    blame(s) = harm(s) - draws(s) · harm(others) / draws(others),

which is also what leaving it out is expected to give back. It is surely to blame only where its harm itself is above zero, too: beside a
source that helps much, others that help less are not at fault. Intervals are over what could have come otherwise: which instances were lost
(folds of them) and which episodes the source happened to give, by a bootstrap with Poisson weights. An episode is named where its
blame stands out among all episodes and is above zero whichever instances were lost.

A source most of whose episodes are sound may help on the whole, though a few of its episodes do harm: so it is also asked whether more of
its episodes are named than chance would have it (Fisher's exact test, one-sided, over as many sources as there are).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from warehouse.lineage.sources import DIMENSIONS, Traced

RESAMPLES = 1000
OUTLIER = 3.5
"""Robust standard deviations (median and median absolute deviation) above the other episodes: the customary limit (Iglewicz & Hoaglin
1993)."""
TAILS = (2.5, 97.5)
"""Percentiles of a 95 % interval."""
LEAST_LOST = 5
"""Parts of lost instances without which nothing is said to be sure: what one lost instance says may be chance."""
SIGNIFICANCE = 0.05
LEAST_TO_COMPARE = 10
"""Episodes among which one can stand out; where there are fewer, it is among all that the stage read."""
LEAST_UNITS = 2
"""Episodes that a source must have given to be blamed as a source."""
_Array = NDArray[np.float64]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BlamedSource(_Record):
    """One source with what it did. Blame is in nats a lost instance; above 0 it made the answers that lost likelier than others would."""

    dimension: Annotated[str, Field(description="in what way samples have it: judge, annotator, campaign, import, task list, collection")]
    name: str
    blame: float
    low: Annotated[float, Field(description="lower end of its 95 % interval")]
    high: float
    harm: Annotated[
        float, Field(description="what it did, whatever others would have done; above 0 it made the answers that lost likelier")
    ]
    harm_low: Annotated[float, Field(description="lower end of its 95 % interval")]
    num_samples: int
    num_episodes: int
    num_named: Annotated[int, Field(description="of these episodes, those that are named themselves")]
    p_named: Annotated[float, Field(description="chance that so many of its episodes are named if they were like the others")]
    share_of_draws: Annotated[float, Field(description="of what the stage read, 0 to 1")]
    is_sure: Annotated[bool, Field(description="both intervals lie above zero, or p_named is below 0.05 over all sources of its dimension")]

    @property
    def key(self) -> str:
        return f"{self.dimension}={self.name}"


class BlamedEpisode(_Record):
    """One episode, or a sample that was cut from none, with its samples, the worst first."""

    episode_id: str | None
    task: str | None
    seed: int | None
    sources: dict[str, str]
    blame: float
    low: float
    high: float
    score: Annotated[float, Field(description="robust standard deviations above the other episodes")]
    is_named: bool
    samples: Annotated[dict[str, float], Field(description="sample id → its blame")]


class Blame(_Record):
    """All sources and episodes: the sure sources first, then the most blamed first."""

    sources: tuple[BlamedSource, ...]
    episodes: tuple[BlamedEpisode, ...]
    num_scored: Annotated[int, Field(description="samples whose influence was measured")]
    num_read: Annotated[int, Field(description="samples that the stage read")]
    total: Annotated[float, Field(description="what all samples together moved, nats a lost instance; below 0 they helped")]

    @property
    def named(self) -> list[BlamedEpisode]:
        return [one for one in self.episodes if one.is_named]

    @property
    def most_blamed(self) -> BlamedSource | None:
        """The first source that is surely to blame."""
        return next((one for one in self.sources if one.is_sure), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Of samples, by row: harm to each fold of lost instances (mean of the fold), draws, and for how many samples each stands."""

    harm_NF: _Array
    draws_N: _Array
    stands_for_N: _Array
    fold_sizes_F: _Array


def blame(samples: Sequence[Traced], scored: Scored, *, seed: int = 0) -> Blame:
    """Aggregate by source and by episode. `samples` are in the order of the rows of `scored`. Raises ValueError where they are not as
    many."""
    if len(samples) != len(scored.draws_N) or not samples:
        raise ValueError(f"{len(samples)} samples and {len(scored.draws_N)} rows of influence: give one row a sample, and at least one")
    rng = np.random.default_rng(seed)
    share_F = scored.fold_sizes_F / scored.fold_sizes_F.sum()
    unit_of, units = _units(samples)
    harm_NF, draws_N = scored.harm_NF * scored.stands_for_N[:, None], scored.draws_N * scored.stands_for_N
    harm_UF, draws_U = _sum_by(harm_NF, unit_of, len(units)), _sum_by(draws_N, unit_of, len(units))
    mean_F = harm_UF.sum(axis=0) / draws_U.sum()
    folds_RF = rng.multinomial(len(share_F), share_F, size=RESAMPLES) / len(share_F)
    # An episode's own blame is that of its samples, not of those that they stand for.
    own_UF = _sum_by(scored.harm_NF - scored.draws_N[:, None] * mean_F, unit_of, len(units))
    episodes = _episodes(samples, units, own_UF, share_F, folds_RF, (scored.harm_NF - scored.draws_N[:, None] * mean_F) @ share_F)
    is_named_U = np.zeros(len(units), dtype=bool)
    is_named_U[[place for place, one in episodes if one.is_named]] = True
    is_episode_U = np.array([one.episode_id is not None for _, one in episodes])
    is_enough, num_of = int((scored.fold_sizes_F > 0).sum()) >= LEAST_LOST, _num_sources(samples)
    weights_RU = rng.poisson(1.0, size=(RESAMPLES, len(units))).astype(np.float64)
    sources = []
    for (dimension, name), rows in _by_source(samples).items():
        own = np.unique(unit_of[rows])
        if len(own) < LEAST_UNITS or len(rows) == len(samples):
            continue
        is_own_N = np.zeros(len(samples), dtype=bool)
        is_own_N[rows] = True
        source = _Part.of(harm_NF, draws_N, is_own_N, unit_of, len(units))
        low, high = _interval(source.resampled(weights_RU, folds_RF))
        harm_low, _ = _interval(((weights_RU @ source.harm_UF) * folds_RF).sum(axis=1))
        own_episodes = own[is_episode_U[own]]
        p_named = tail(int(is_named_U[own_episodes].sum()), len(own_episodes), int(is_named_U[is_episode_U].sum()), int(is_episode_U.sum()))
        sources.append(
            BlamedSource(
                dimension=dimension,
                name=name,
                blame=float(source.blame_F() @ share_F),
                low=low,
                high=high,
                harm=float(source.harm_UF.sum(axis=0) @ share_F),
                harm_low=harm_low,
                num_samples=round(float(scored.stands_for_N[rows].sum())),
                num_episodes=len({samples[row].episode_id for row in rows} - {None}),
                num_named=int(is_named_U[own].sum()),
                p_named=p_named,
                share_of_draws=float(draws_N[rows].sum() / draws_N.sum()),
                is_sure=is_enough and (min(low, harm_low) > 0 or p_named < SIGNIFICANCE / num_of[dimension]),
            )
        )
    return Blame(
        sources=tuple(sorted(sources, key=lambda one: (not one.is_sure, -one.blame, DIMENSIONS.index(one.dimension), one.name))),
        episodes=tuple(one for _, one in sorted(episodes, key=lambda pair: (-pair[1].blame, pair[0]))),
        num_scored=len(samples),
        num_read=round(float(scored.stands_for_N.sum())),
        total=float(harm_UF.sum(axis=0) @ share_F),
    )


def members(samples: Sequence[Traced], key: str) -> set[str]:
    """Ids of the samples of a source, named DIMENSION=NAME. Raises ValueError for one that no sample has."""
    dimension, _, name = key.partition("=")
    found = {one.sample_id for one in samples if one.sources.get(dimension) == name}
    if not found:
        there = sorted({f"{way}={value}" for one in samples for way, value in one.sources.items()})
        raise ValueError(f"no sample of the stage is of {key!r}; there are {', '.join(there) or 'no sources'}")
    return found


def _units(samples: Sequence[Traced]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """What is resampled: episodes, and samples that were cut from none. The unit of each sample, and the rows of each unit."""
    place: dict[str, int] = {}
    rows: list[list[int]] = []
    unit_of = np.zeros(len(samples), dtype=np.int64)
    for row, one in enumerate(samples):
        key = f"episode {one.episode_id}" if one.episode_id is not None else f"sample {one.sample_id}"
        if key not in place:
            place[key] = len(rows)
            rows.append([])
        unit_of[row] = place[key]
        rows[place[key]].append(row)
    return unit_of, rows


def _by_source(samples: Sequence[Traced]) -> dict[tuple[str, str], list[int]]:
    rows: dict[tuple[str, str], list[int]] = {}
    for row, one in enumerate(samples):
        for dimension, name in one.sources.items():
            rows.setdefault((dimension, name), []).append(row)
    return rows


def _sum_by(values: _Array, unit_of: NDArray[np.int64], num_units: int) -> _Array:
    total = np.zeros((num_units, *values.shape[1:]))
    np.add.at(total, unit_of, values)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A source beside the rest, summed by unit. A unit may have samples in both."""

    harm_UF: _Array
    draws_U: _Array
    other_harm_UF: _Array
    other_draws_U: _Array

    @classmethod
    def of(cls, harm_NF: _Array, draws_N: _Array, is_own_N: NDArray[np.bool_], unit_of: NDArray[np.int64], num_units: int) -> _Part:
        return cls(
            harm_UF=_sum_by(harm_NF * is_own_N[:, None], unit_of, num_units),
            draws_U=_sum_by(draws_N * is_own_N, unit_of, num_units),
            other_harm_UF=_sum_by(harm_NF * ~is_own_N[:, None], unit_of, num_units),
            other_draws_U=_sum_by(draws_N * ~is_own_N, unit_of, num_units),
        )

    def blame_F(self) -> _Array:
        rest_F: _Array = self.other_harm_UF.sum(axis=0) / self.other_draws_U.sum()
        found: _Array = self.harm_UF.sum(axis=0) - self.draws_U.sum() * rest_F
        return found

    def resampled(self, weights_RU: _Array, folds_RF: _Array) -> _Array:
        """Blame in each resample (R)."""
        others_R = np.maximum(weights_RU @ self.other_draws_U, 1e-12)
        rest_RF = (weights_RU @ self.other_harm_UF) / others_R[:, None]
        blame_RF = weights_RU @ self.harm_UF - (weights_RU @ self.draws_U)[:, None] * rest_RF
        found: _Array = (blame_RF * folds_RF).sum(axis=1)
        return found


def _episodes(
    samples: Sequence[Traced], units: Sequence[Sequence[int]], own_UF: _Array, share_F: _Array, folds_RF: _Array, own_N: _Array
) -> list[tuple[int, BlamedEpisode]]:
    """(unit, its description)."""
    own_U = own_UF @ share_F
    lows_U, highs_U = np.percentile(own_UF @ folds_RF.T, TAILS, axis=1)
    is_enough = int((share_F > 0).sum()) >= LEAST_LOST
    # Beside tutorials and chats, which do next to nothing, any episode would stand out, and of them any that does a little more.
    is_episode_U = np.array([samples[rows[0]].episode_id is not None for rows in units])
    scores_U = robust_scores(own_U, own_U[is_episode_U] if is_episode_U.sum() >= LEAST_TO_COMPARE else own_U)
    found = []
    for place, rows in enumerate(units):
        one = samples[rows[0]]
        merged: dict[str, str] = {}
        for row in rows:
            merged |= samples[row].sources
        found.append(
            (
                place,
                BlamedEpisode(
                    episode_id=one.episode_id,
                    task=one.task,
                    seed=one.seed,
                    sources=merged,
                    blame=float(own_U[place]),
                    low=float(lows_U[place]),
                    high=float(highs_U[place]),
                    score=float(scores_U[place]),
                    is_named=is_enough and bool(scores_U[place] > OUTLIER and lows_U[place] > 0),
                    samples={samples[row].sample_id: float(own_N[row]) for row in sorted(rows, key=lambda row: -own_N[row])},
                ),
            )
        )
    return found


def robust_scores(values: _Array, others: _Array | None = None) -> _Array:
    """How many robust standard deviations each lies above the median, of all or of `others`: median absolute deviation, times 1.4826 to be
    the standard deviation of a normal distribution; where half are alike, the mean absolute deviation times 1.2533."""
    among = values if others is None else others
    if not len(among):
        return np.zeros_like(values)
    middle = float(np.median(among))
    spread = 1.4826 * float(np.median(np.abs(among - middle))) or 1.2533 * float(np.mean(np.abs(among - middle)))
    found: _Array = (values - middle) / spread if spread else np.zeros_like(values)
    return found


def tail(num_hits: int, num_drawn: int, num_marked: int, num_all: int) -> float:
    """Chance of at least `num_hits` marked ones among `num_drawn` of `num_all`, of which `num_marked` are marked (hypergeometric), in
    integers."""
    most = min(num_drawn, num_marked)
    ways = sum(math.comb(num_marked, hits) * math.comb(num_all - num_marked, num_drawn - hits) for hits in range(num_hits, most + 1))
    return float(Fraction(ways, math.comb(num_all, num_drawn)))


def _num_sources(samples: Sequence[Traced]) -> dict[str, int]:
    """By dimension."""
    names: dict[str, set[str]] = {}
    for one in samples:
        for dimension, name in one.sources.items():
            names.setdefault(dimension, set()).add(name)
    return {dimension: len(each) for dimension, each in names.items()}


def _interval(values: _Array) -> tuple[float, float]:
    low, high = np.percentile(values, TAILS)
    return float(low), float(high)
