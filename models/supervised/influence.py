"""What each training sample of a supervised stage did to an answer: influence by gradients, without training again.

TracIn (Pruthi et al. 2020, arXiv 2002.08484, section 3) adds up, over the steps at which a sample was read, learning rate times the dot
product of its loss gradient and that of what is asked about. Which samples a stage read at which step, and with what rate, follows from its
settings (models/training/batching.py), so that is exact here. The stage's weights are known before and after it; those between are
taken on the straight line from the one to the other. AdamW does not step along the gradient: each weight's is divided by the root of its
mean square, measured on some of the stage's own batches (LESS does so with the optimizer's own: Xia et al. 2024, arXiv 2402.04333;
momentum is left out, for it moves an update a few steps and no more), and clipping scales as it did. What comes out is in nats: how much
the answer's log-odds moved.

Who is to blame, by source and with what certainty, is warehouse/lineage/blame.py's business.

Shapes: N samples, Q questions, F folds of questions, P weights that are looked at.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.families.chat import ChatCodec
from models.families.registry import load_codec, load_policy, max_positions
from models.families.vision import PixelLoader, ReadImage, pixel_loader
from models.supervised.config import SupervisedConfig
from models.supervised.sample_file import SampleFile
from models.supervised.training_set import TrainingSample, encode_samples, training_set
from models.training.adapters import is_frozen
from models.training.batching import EncodedSample, plan_batches, tensors
from models.training.forward import weighted_loss
from warehouse.core.errors import CheckpointError, ConfigError

GRADIENT_BYTES = 2 * 1024**3
"""What the gradients of the folds may take; where all weights take more, the last layer alone is looked at."""
CHUNK = 16
"""Samples whose gradients are held at a time."""
PROBED_BATCHES = 24
"""Batches of the stage, a point, on which AdamW's mean squares are measured."""
DAMPING = 0.1
"""Added to the root of a weight's mean square, in units of the root mean square of all: a weight that the measured batches hardly touched
is not taken for one that moves by itself."""
OnScored = Callable[[int, int], None]
"""Gradients taken so far, of how many."""


class InfluenceConfig(BaseModel):
    """How finely influence is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: Annotated[int, Field(ge=1, le=16, description="weights on the way from the stage's first to its last; 1: the middle")] = 1
    folds: Annotated[int, Field(ge=2, le=64, description="parts of the lost instances, over which intervals are drawn")] = 24
    preconditioner: Annotated[
        Literal["adam", "none"], Field(description="adam: as the stage's optimizer scales a gradient; none: plain gradient descent")
    ] = "adam"
    weights: Annotated[
        Literal["auto", "all", "last"], Field(description="which weights are looked at; auto: all where memory allows, else the last layer")
    ] = "auto"
    most_samples: Annotated[int, Field(ge=1, description="samples scored; of more, some stand for the others")] = 6000
    seed: Annotated[int, Field(ge=0, description="which samples stand for others")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An answer that was hoped for, and the one that was given instead. Both conversations weigh their last message alone."""

    wanted: TrainingSample
    unwanted: TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Influences:
    """Of each sample scored, by row: how far reading it moved the log-odds of unwanted against wanted answers (nats, mean over the
    questions of a fold; above 0 it did harm), how often the stage read it, and for how many samples it stands."""

    sample_ids: tuple[str, ...]
    harm_NF: NDArray[np.float64]
    draws_N: NDArray[np.float64]
    stands_for_N: NDArray[np.float64]
    fold_sizes_F: NDArray[np.float64]
    num_samples: int
    """That the stage trained on, read or not."""
    num_weights: int
    """Of the model, that were looked at."""


def influences(
    config: InfluenceConfig,
    training: SupervisedConfig,
    samples: Iterable[TrainingSample],
    questions: Sequence[Question],
    *,
    init: Path,
    final: Path,
    num_steps: int | None = None,
    first: Collection[str] = (),
    on_scored: OnScored = lambda done, total: None,
    read_image: ReadImage | None = None,
) -> Influences:
    """What the samples of a stage, trained by `training` from the checkpoint `init` to `final`, did to the answers that the questions ask
    about. `num_steps`: where it stopped early, the step of the weights that it kept. `first`: ids of samples that are scored before others
    where there are more than config.most_samples.

    Raises CheckpointError for checkpoints of different shapes, ConfigError where there is no question or nothing was trained on.
    """
    if not questions:
        raise ConfigError("influence needs at least one answer to ask about")
    codec = load_codec(final)
    asked = _encode_questions(codec, questions, max_positions(final), read_image)
    with tempfile.TemporaryDirectory(prefix="influence-") as scratch:
        chosen = training_set(
            Path(scratch),
            codec,
            samples,
            prompt_loss_weight=training.prompt_loss_weight,
            eval_fraction=training.eval_fraction,
            max_tokens=max_positions(init),
            read_image=read_image,
        )
        way = _Way.between(init, final, training)
        pixels = pixel_loader(codec, read_image)
        plan = plan_batches(
            chosen.trained.lengths,
            chosen.trained.weights,
            batch_tokens=training.batch_tokens,
            steps=training.steps,
            seed=training.seed,
            packing=training.packing,
        )
        return _scored(config, training, chosen.trained, plan[:num_steps], asked, way, pixels, frozenset(first), on_scored)


@torch.no_grad()
def log_odds(folder: Path, questions: Sequence[Question], read_image: ReadImage | None = None) -> float:
    """How much likelier the unwanted answers are to a checkpoint than the wanted ones: mean log-odds in nats. Raises as `influences`."""
    codec, model = load_codec(folder), load_policy(folder)
    asked = _encode_questions(codec, questions, max_positions(folder), read_image)
    pixels, pad = pixel_loader(codec, read_image), _pad_of(model)
    lost = [_summed_loss(model, [wanted], pad, pixels) - _summed_loss(model, [unwanted], pad, pixels) for wanted, unwanted in asked]
    return float(torch.stack(lost).mean())


def _scored(
    config: InfluenceConfig,
    training: SupervisedConfig,
    trained: SampleFile,
    plan: Sequence[Sequence[int]],
    asked: Sequence[tuple[EncodedSample, EncodedSample]],
    way: _Way,
    pixels: PixelLoader | None,
    first: frozenset[str],
    on_scored: OnScored,
) -> Influences:
    read = _Reading.of(training, plan, trained, config.points)
    names = _looked_at(way.model, training, config)
    num_weights = sum(way.model.get_parameter(name).numel() for name in names)
    num_folds = max(2, min(config.folds, len(asked), GRADIENT_BYTES // (8 * num_weights)))
    rows, stands_for = _chosen_rows(read.draws_N, trained, first, config)
    harm_NF = np.zeros((len(rows), num_folds))
    fold_sizes = np.bincount(np.arange(len(asked)) % num_folds, minlength=num_folds).astype(np.float64)
    total, done = config.points * (len(rows) + len(asked)), 0
    for point in range(config.points):
        way.go_to(read.places[point])
        gradients = _Gradients(way.model, names, pixels)
        scale_P, clip = gradients.step_scale(training, trained, plan, read.steps_of[point], config.preconditioner)
        asked_FP = gradients.of_folds(asked, num_folds) * scale_P
        done += len(asked)
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            own_CP = torch.stack([gradients.of_sample(trained[int(row)]) for row in part])
            dots_CF = (own_CP @ asked_FP.T).double().cpu().numpy()
            # A step goes against the gradient: what both have in common makes the odds of the unwanted answer smaller.
            harm_NF[start : start + CHUNK] -= clip * read.rate_NC[part, point][:, None] * dots_CF
            done += len(part)
            on_scored(done, total)
    return Influences(
        sample_ids=tuple(trained[int(row)].sample_id for row in rows),
        harm_NF=harm_NF / np.maximum(fold_sizes, 1),
        draws_N=read.draws_N[rows],
        stands_for_N=stands_for,
        fold_sizes_F=fold_sizes,
        num_samples=len(trained),
        num_weights=num_weights,
    )


def _encode_questions(
    codec: ChatCodec, questions: Sequence[Question], max_tokens: int, read_image: ReadImage | None
) -> list[tuple[EncodedSample, EncodedSample]]:
    """Those that the model can read."""
    named = [
        replace(sample, weight=1.0, sample_id=f"{place} {side}")
        for place, question in enumerate(questions)
        for side, sample in (("wanted", question.wanted), ("unwanted", question.unwanted))
    ]
    found = {one.sample_id: one for one in encode_samples(codec, named, 0.0, max_tokens=max_tokens, read_image=read_image)}
    both = ((found.get(f"{place} wanted"), found.get(f"{place} unwanted")) for place in range(len(questions)))
    pairs = [(wanted, unwanted) for wanted, unwanted in both if wanted is not None and unwanted is not None]
    if not pairs:
        raise ConfigError(f"none of the {len(questions)} lost answers fits into the model's {max_tokens} tokens")
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Which samples the stage read where, at C points on its way: rate_NC is the sum over steps of learning rate divided by the weight of
    the batch, so that the gradient of a sample's summed loss times it is the sample's own part of the steps."""

    rate_NC: NDArray[np.float64]
    draws_N: NDArray[np.float64]
    places: tuple[float, ...]
    """Of each point, 0 at the first weights and 1 at the last."""
    steps_of: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, training: SupervisedConfig, plan: Sequence[Sequence[int]], trained: SampleFile, num_points: int) -> _Reading:
        weights_N = np.array([float(np.sum(trained[row].loss_weights[1:], dtype=np.float64)) for row in range(len(trained))])
        rates = np.array([training.learning_rate * training.rate_factor(step) for step in range(len(plan))])
        travelled = (np.cumsum(rates) - rates / 2) / max(rates.sum(), 1e-300)
        places = (0.5,) if num_points == 1 else tuple(np.linspace(0, 1, num_points).tolist())
        points = np.abs(travelled[:, None] - np.array(places)).argmin(axis=1)
        rate_NC, draws_N = np.zeros((len(trained), num_points)), np.zeros(len(trained))
        for step, rows in enumerate(plan):
            held = np.asarray(rows)
            total = float(weights_N[held].sum())
            np.add.at(rate_NC[:, points[step]], held, rates[step] / total if total else 0.0)
            np.add.at(draws_N, held, 1.0)
        steps_of = tuple(tuple(np.flatnonzero(points == point).tolist()) for point in range(num_points))
        return cls(rate_NC=rate_NC, draws_N=draws_N, places=places, steps_of=steps_of)


@dataclass(slots=True)
class _Way:
    """A model that can be put anywhere on the line between two checkpoints."""

    model: PreTrainedModel
    _first: dict[str, Tensor]
    _last: dict[str, Tensor]

    @classmethod
    def between(cls, init: Path, final: Path, training: SupervisedConfig) -> _Way:
        start, model = load_policy(init), load_policy(final)
        first = {name: weight.detach() for name, weight in start.named_parameters()}
        last = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        other = [name for name in last if name not in first or first[name].shape != last[name].shape]
        if other or len(first) != len(last):
            raise CheckpointError(
                f"{init} and {final} are not of one shape ({', '.join(other[:3])}): influence needs what a stage began with"
            )
        return cls(model, first, last)

    @torch.no_grad()
    def go_to(self, place: float) -> None:
        for name, weight in self.model.named_parameters():
            weight.copy_(torch.lerp(self._first[name], self._last[name], place))


def _looked_at(model: PreTrainedModel, training: SupervisedConfig, config: InfluenceConfig) -> list[str]:
    """Names of the weights that gradients are taken of. Where adapters were trained their layers are looked at whole: the update was
    added in."""
    trained = training.model_copy(update={"lora_rank": 0})
    names = [name for name, _ in model.named_parameters() if not is_frozen(name, trained)]
    num = sum(model.get_parameter(name).numel() for name in names)
    if config.weights == "all" or (config.weights == "auto" and 8 * num * config.folds <= GRADIENT_BYTES):
        return names
    layers = {int(part) for name in names for part in name.split(".") if part.isdigit()}
    last = str(max(layers, default=0))
    return [name for name in names if last in name.split(".")] or names


def _chosen_rows(
    draws_N: NDArray[np.float64], trained: SampleFile, first: frozenset[str], config: InfluenceConfig
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows to score, in order, and for how many each stands. What was never read did nothing."""
    read = np.flatnonzero(draws_N > 0)
    is_first = np.array([trained[int(row)].sample_id in first for row in read], dtype=bool)
    rng, left = np.random.default_rng(config.seed), config.most_samples
    rows: list[NDArray[np.int64]] = []
    stands: list[NDArray[np.float64]] = []
    for group in (read[is_first], read[~is_first]):
        if len(group):
            kept = group if len(group) <= left else np.sort(rng.choice(group, size=max(1, left), replace=False))
            rows.append(kept)
            stands.append(np.full(len(kept), len(group) / len(kept)))
            left = max(0, left - len(kept))
    if not rows:
        raise ConfigError("the stage read no sample at all")
    order = np.argsort(np.concatenate(rows))
    return np.concatenate(rows)[order], np.concatenate(stands)[order]


class _Gradients:
    """Gradients of a model as it stands, of the weights that are looked at, as vectors (P)."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str], pixels: PixelLoader | None) -> None:
        self._model, self._pixels = model.eval(), pixels
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self._weights: list[nn.Parameter] = [model.get_parameter(name) for name in names]
        for weight in self._weights:
            weight.requires_grad_(True)
        self._pad = _pad_of(model)

    def of_sample(self, sample: EncodedSample) -> Tensor:
        """Of the sum of its weighted losses."""
        return self._of(_summed_loss(self._model, [sample], self._pad, self._pixels))

    def of_folds(self, asked: Sequence[tuple[EncodedSample, EncodedSample]], num_folds: int) -> Tensor:
        """(F, P): of the log-odds of the unwanted answers against the wanted ones, summed in a fold."""
        found = torch.zeros(num_folds, sum(weight.numel() for weight in self._weights))
        for place, (wanted, unwanted) in enumerate(asked):
            losses = [_summed_loss(self._model, [one], self._pad, self._pixels) for one in (wanted, unwanted)]
            found[place % num_folds] += self._of(losses[0] - losses[1])
        return found

    def step_scale(
        self,
        training: SupervisedConfig,
        trained: SampleFile,
        plan: Sequence[Sequence[int]],
        steps: Sequence[int],
        preconditioner: Literal["adam", "none"],
    ) -> tuple[Tensor | float, float]:
        """By what the optimizer multiplies each weight's gradient (P), and clipping all of it, measured on some of the steps."""
        chosen = [steps[place] for place in _spread(len(steps), PROBED_BATCHES)]
        if preconditioner == "none" or not chosen:
            return 1.0, 1.0
        squares: Tensor | None = None
        clips = []
        for step in chosen:
            batch = [trained[row] for row in plan[step]]
            gradient = self._of(weighted_loss(self._model, tensors(batch, self._pad, "padded", self._pixels)))
            clip = min(1.0, training.max_grad_norm / max(float(gradient.norm()), 1e-12))
            clips.append(clip)
            square = (clip * gradient).square()
            squares = square if squares is None else squares + square
        if squares is None:
            raise ConfigError("no batch to measure the optimizer on")
        mean_square = squares / len(chosen)
        return 1.0 / (mean_square.sqrt() + DAMPING * mean_square.mean().sqrt() + 1e-8), sum(clips) / len(clips)

    def _of(self, loss: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, self._weights, allow_unused=True)
        parts: Iterator[Tensor] = (
            torch.zeros_like(weight).flatten() if gradient is None else gradient.flatten()
            for weight, gradient in zip(self._weights, gradients, strict=True)
        )
        return torch.cat(list(parts)).float()


def _summed_loss(model: PreTrainedModel, samples: Sequence[EncodedSample], pad: int, pixels: PixelLoader | None) -> Tensor:
    """Of all their tokens, weighted."""
    return weighted_loss(model, {**tensors(samples, pad, "padded", pixels), "total_weight": torch.tensor(1.0)})


def _pad_of(model: PreTrainedModel) -> int:
    text: Any = model.config.get_text_config()
    return int(text.pad_token_id or 0)


def _spread(num: int, most: int) -> list[int]:
    """At most so many places, evenly spaced."""
    return list(range(num)) if num <= most else [math.floor((place + 0.5) * num / most) for place in range(most)]
