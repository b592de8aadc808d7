"""From the conversations of a dataset to what a model is trained on: token ids and loss weights, what is left out, what is held out.

Samples are encoded as they come and never held together: a supervised run writes them into files (`training_set`). Small sets, which
reinforcement learning replays, are lists (`encode_samples`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from agent.policy.policy import Message
from models.families.chat import ChatCodec
from models.families.tokenizer import WordCodec
from models.families.vision import ReadImage, VisionCodec, read_images, screenshot_ids
from models.supervised.early_stop import is_held_out
from models.supervised.sample_file import SampleFile, SampleWriter
from models.training.batching import NAMED_SAMPLES, EncodedSample
from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id

SAMPLES_FOLDER = "samples"
"""In the run folder."""
TRAINED_FILE, HELD_OUT_FILE = "trained.arrow", "held_out.arrow"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One row of a dataset snapshot: a conversation, and how often to draw it relative to the others. `sample_id` names it in messages.
    `token_ids`, where they are known: prompt and answer as they were served, which are learned from as they are, the answer from
    `answer_begin` on; the messages then only say which pictures are shown."""

    messages: tuple[Message, ...]
    weight: float = 1.0
    sample_id: str = ""
    token_ids: tuple[int, ...] = ()
    answer_begin: int = 0


@dataclass(slots=True, kw_only=True)
class LeftOut:
    """How many samples there were, and how many were left out for which reason."""

    num_samples: int = 0
    num_silent: int = 0
    num_too_long: int = 0
    too_long: list[str] = field(default_factory=list)
    """The first of them, with their lengths."""
    is_any_drawn: bool = False

    def metrics(self) -> dict[str, float]:
        return {"samples_too_long": float(self.num_too_long), "samples_without_loss": float(self.num_silent)}

    def report(self, max_tokens: int) -> None:
        """Log what is too long. Raises ConfigError when nothing is left to learn from."""
        if not self.is_any_drawn:
            raise ConfigError(
                f"none of the {self.num_samples} samples can be trained on: each needs a weight above 0, a message with loss above 0 and "
                f"at most {max_tokens} tokens ({self.num_silent} have no loss, {self.num_too_long} are too long); check the dataset "
                "snapshot"
            )
        if self.num_too_long:
            _LOG.warning(
                "%d of %d samples are longer than %d tokens and left out: %s",
                self.num_too_long,
                self.num_samples,
                max_tokens,
                ", ".join(self.too_long),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet:
    """What a supervised run trains on and measures on. `digest` says what is in it."""

    trained: SampleFile
    held_out: SampleFile
    left_out: LeftOut
    digest: str


def training_set(
    folder: Path,
    codec: ChatCodec | PreTrainedTokenizerFast,
    samples: Iterable[TrainingSample],
    *,
    prompt_loss_weight: float,
    eval_fraction: float,
    max_tokens: int,
    read_image: ReadImage | None = None,
) -> TrainingSet:
    """Encode samples into files of `folder`, which is emptied first: those to train on, and the share `eval_fraction` to measure on. See
    `encode_samples` for what is left out.

    Raises ConfigError when there is nothing to learn, or when one of the two would be empty; ModelError when an image is missing;
    StorageFull when the disk is full.
    """
    shutil.rmtree(folder, ignore_errors=True)
    left_out = LeftOut()
    try:
        with SampleWriter(folder / TRAINED_FILE) as trained, SampleWriter(folder / HELD_OUT_FILE) as held_out:
            for sample in _encoded(codec, samples, prompt_loss_weight, max_tokens, read_image, left_out):
                if not is_held_out(sample, eval_fraction):
                    trained.add(sample)
                elif sample.weight > 0:
                    held_out.add(sample)
    except OSError as error:
        if is_full_disk(error):
            raise storage_full("encoded samples", folder, error, then="run the stage again") from error
        raise
    left_out.report(max_tokens)
    made = TrainingSet(
        trained=SampleFile(folder / TRAINED_FILE),
        held_out=SampleFile(folder / HELD_OUT_FILE),
        left_out=left_out,
        digest=content_id("samples", [trained.digest, held_out.digest]),
    )
    if eval_fraction and not (len(made.held_out) and made.trained.weights.any()):
        raise ConfigError(
            f"eval_fraction {eval_fraction} of {left_out.num_samples} samples holds out {len(made.held_out)} and trains on "
            f"{len(made.trained)}: neither may be 0; change eval_fraction, or add samples"
        )
    return made


def encode_samples(
    codec: ChatCodec | PreTrainedTokenizerFast,
    samples: Iterable[TrainingSample],
    prompt_loss_weight: float,
    *,
    max_tokens: int,
    read_image: ReadImage | None = None,
) -> list[EncodedSample]:
    """Token ids and loss weights of each sample; of the images that it shows only the sizes are read yet. One that is too long for the
    model, or has nothing to learn, is left out, counted and logged. Raises ConfigError when none is left, ModelError when an image is
    missing. A bare tokenizer is the quickstart's."""
    left_out = LeftOut()
    chosen = list(_encoded(codec, samples, prompt_loss_weight, max_tokens, read_image, left_out))
    left_out.report(max_tokens)
    return chosen


def _encoded(
    codec: ChatCodec | PreTrainedTokenizerFast,
    samples: Iterable[TrainingSample],
    prompt_loss_weight: float,
    max_tokens: int,
    read_image: ReadImage | None,
    left_out: LeftOut,
) -> Iterator[EncodedSample]:
    """One after the other; those left out are counted in `left_out`."""
    codec = WordCodec(codec) if isinstance(codec, PreTrainedTokenizerFast) else codec
    for sample in samples:
        left_out.num_samples += 1
        token_ids, loss_weights, shown = _as_served(codec, sample) or _encode(codec, sample.messages, prompt_loss_weight, read_image)
        if not any(loss_weights[1:]):
            left_out.num_silent += 1
        elif len(token_ids) > max_tokens:
            left_out.num_too_long += 1
            if len(left_out.too_long) < NAMED_SAMPLES:
                left_out.too_long.append(f"{sample.sample_id or 'a sample'} ({len(token_ids)} tokens)")
        else:
            left_out.is_any_drawn |= sample.weight > 0
            yield EncodedSample(
                token_ids=token_ids, loss_weights=loss_weights, weight=sample.weight, sample_id=sample.sample_id, screenshot_ids=shown
            )


def _as_served(codec: ChatCodec, sample: TrainingSample) -> tuple[Sequence[int], Sequence[float], tuple[str, ...]] | None:
    """What `_encode` gives, of a sample whose token ids are known; None of others."""
    if not sample.token_ids:
        return None
    weights = [float(place >= sample.answer_begin) for place in range(len(sample.token_ids))]
    return sample.token_ids, weights, tuple(screenshot_ids(sample.messages)) if isinstance(codec, VisionCodec) else ()


def _encode(
    codec: ChatCodec, messages: Sequence[Message], prompt_loss_weight: float, read_image: ReadImage | None
) -> tuple[Sequence[int], Sequence[float], tuple[str, ...]]:
    """Ids, loss weights and the screenshots that are looked at: none by a model that cannot see."""
    if isinstance(codec, VisionCodec):
        shown = tuple(screenshot_ids(messages))
        ids, weights = codec.encode_tokens(messages, read_images(shown, read_image), prompt_loss_weight=prompt_loss_weight)
        return ids, weights, shown
    encoded = codec.encode(messages, prompt_loss_weight=prompt_loss_weight)
    return encoded.token_ids, encoded.loss_weights, ()
