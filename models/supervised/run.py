"""Continual training (CT) and supervised fine-tuning (SFT): a checkpoint, samples and a configuration in, a checkpoint out.

The two differ only in their data and in SupervisedConfig.prompt_loss_weight. A run is a pure function of its configuration, samples and
initial checkpoint: killed and started again, it resumes from its last complete trainer checkpoint and ends in the same weights. Which
samples there are is decided elsewhere (dataset snapshots); which are read at which step is models/batching.py; the loop is
models/supervised/fitting.py.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agent.policy import Message
from models.adapters import ADAPTER_FOLDER, has_adapters, merge_adapters, prepare_for_training, save_adapter
from models.batching import EncodedSample
from models.chat import ChatCodec
from models.checkpoint import Card, quiet, read_card, verify, write
from models.families import load_codec, load_policy, max_positions
from models.metrics import OnProgress, ignore_progress
from models.supervised.checkpoints import clear_unless_of, trainer_checkpoints
from models.supervised.config import SupervisedConfig
from models.supervised.distributed import IMAGES_FOLDER, WEIGHTS_FOLDER, fit_in_processes
from models.supervised.early_stop import hold_out
from models.supervised.fitting import BEST_FOLDER, NAMED_SAMPLES, fit
from models.tokenizer import WordCodec
from models.vision import ReadImage, VisionCodec, pixel_loader, read_images, screenshot_ids
from warehouse.errors import ConfigError
from warehouse.identity import content_id

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One row of a dataset snapshot: a conversation, and how often to draw it relative to the others. `sample_id` names it in messages."""

    messages: tuple[Message, ...]
    weight: float = 1.0
    sample_id: str = ""


def train_supervised(
    config: SupervisedConfig, samples: Sequence[TrainingSample], *, init: Path, output: Path, stage: str, iteration: str,
    run_folder: Path | None = None, datasets: tuple[str, ...] = (), on_progress: OnProgress = ignore_progress,
    read_image: ReadImage | None = None,
) -> Card:
    """Train the checkpoint `init` on `samples` and write the checkpoint `output`. What a killed run resumes from lies in `run_folder`
    (`<output>.run` unless given), with metrics.jsonl and TensorBoard's files; a run of other settings, samples or `init` starts it over.
    `read_image` gives the screenshots that messages name to a model that sees. Weights come out whole: what adapters learned is added in,
    and kept alone in the checkpoint's folder `adapter`.

    Raises TrainingDiverged when the loss is not a number, CheckpointError for a bad `init`, ConfigError when there is nothing to learn,
    StorageFull when the disk is full.
    """
    verify(init)
    codec = load_codec(init)
    chosen = select_samples(codec, samples, config.prompt_loss_weight, max_tokens=max_positions(init), read_image=read_image)
    parent = read_card(init).checkpoint_id
    run_folder = run_folder or output.parent / f"{output.name}.run"
    run_id = content_id("run", [config.model_dump(mode="json"), parent, [asdict(sample) for sample in chosen.samples]])
    clear_unless_of(run_folder, run_id)
    trained, held_out = hold_out(chosen.samples, config.eval_fraction)
    if config.is_distributed:
        model, metrics = fit_in_processes(init, trained, held_out, config, run_folder, on_progress, read_image=read_image)
    else:
        model = load_policy(init)
        prepare_for_training(model, config, seed=config.seed)
        metrics = fit(model, trained, config, run_folder, on_progress, held_out=held_out, pixels=pixel_loader(codec, read_image))
    card = write(
        output, partial(_fill, model, codec, config), stage=stage, iteration=iteration, parents=(parent,), datasets=datasets,
        config=config.model_dump(mode="json"), metrics={**metrics, **chosen.left_out},
    )
    for folder in [*trainer_checkpoints(run_folder), *(run_folder / name for name in (BEST_FOLDER, WEIGHTS_FOLDER, IMAGES_FOLDER))]:
        shutil.rmtree(folder, ignore_errors=True)
    return card


def _fill(model: PreTrainedModel, codec: ChatCodec, config: SupervisedConfig, aside: Path) -> None:
    if has_adapters(model):
        save_adapter(model, aside / ADAPTER_FOLDER, config)
        merge_adapters(model)
    with quiet():
        model.save_pretrained(aside)
    codec.save_pretrained(aside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What can be learned from, and how many samples were left out for which reason."""

    samples: list[EncodedSample]
    left_out: dict[str, float] = field(default_factory=dict)


def encode_samples(
    codec: ChatCodec | PreTrainedTokenizerFast, samples: Sequence[TrainingSample], prompt_loss_weight: float, *, max_tokens: int,
    read_image: ReadImage | None = None,
) -> list[EncodedSample]:  # fmt: skip
    """The samples of `select_samples`."""
    return select_samples(codec, samples, prompt_loss_weight, max_tokens=max_tokens, read_image=read_image).samples


def select_samples(
    codec: ChatCodec | PreTrainedTokenizerFast, samples: Sequence[TrainingSample], prompt_loss_weight: float, *, max_tokens: int,
    read_image: ReadImage | None = None,
) -> Selection:  # fmt: skip
    """Token ids and loss weights of each sample; of the images that it shows only the sizes are read yet. One that is too long for the
    model, or has nothing to learn, is left out, counted and logged. Raises ConfigError when none is left, ModelError when an image is
    missing. A bare tokenizer is the quickstart's."""
    codec = WordCodec(codec) if isinstance(codec, PreTrainedTokenizerFast) else codec
    encoded: list[EncodedSample] = []
    too_long: list[str] = []
    num_silent = 0
    for sample in samples:
        token_ids, loss_weights, shown = _encode(codec, sample.messages, prompt_loss_weight, read_image)
        if not any(loss_weights[1:]):
            num_silent += 1
        elif len(token_ids) > max_tokens:
            too_long.append(f"{sample.sample_id or 'a sample'} ({len(token_ids)} tokens)")
        else:
            encoded.append(
                EncodedSample(
                    token_ids=token_ids, loss_weights=loss_weights, weight=sample.weight, sample_id=sample.sample_id, screenshot_ids=shown
                )
            )
    if not any(sample.weight > 0 for sample in encoded):
        raise ConfigError(
            f"none of the {len(samples)} samples can be learned from: each needs a weight above 0, a message with loss above 0 and at most "
            f"{max_tokens} tokens ({num_silent} have no loss, {len(too_long)} are too long); look at the dataset snapshot"
        )
    if too_long:
        _LOG.warning("%d of %d samples are longer than %d tokens and left out: %s", len(too_long), len(samples), max_tokens,
                     ", ".join(too_long[:NAMED_SAMPLES]))  # fmt: skip
    return Selection(samples=encoded, left_out={"samples_too_long": float(len(too_long)), "samples_without_loss": float(num_silent)})


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
