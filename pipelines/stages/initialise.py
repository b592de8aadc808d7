"""The seed policy: a tokenizer and a small model with weights drawn by a seed, or an existing model, taken in as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assets.seed_data.vocabulary import words
from assets.settings.agent import PolicySettings
from assets.stages.requests import InitialiseRequest, StageResult
from models.checkpoints.checkpoint import Card, save
from models.checkpoints.importing import fetch, import_checkpoint, num_parameters
from models.families.chat import ChatCodec
from models.families.seed_policy import seed_policy
from models.families.tiny_vision import page_vision_policy
from pipelines.stages.context import WorkerContext
from pipelines.stages.storing import store_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    Built = tuple[PreTrainedModel, PreTrainedTokenizerFast | ChatCodec]


def run(request: InitialiseRequest, context: WorkerContext) -> StageResult:
    card = _build(request, context) if request.policy.is_random else _take_in(request, context)
    num = num_parameters(context.draft)
    version = store_checkpoint(context, card)
    return StageResult(checkpoint_id=card.checkpoint_id, table_versions={"checkpoints": version}, counts={"parameters": num})


def _build(request: InitialiseRequest, context: WorkerContext) -> Card:
    names = words(*request.curricula)
    if request.policy.source == "quickstart":
        made: Built = seed_policy(names, request.seed, request.policy.token_shift)
    else:
        made = page_vision_policy(names, request.seed, request.policy.source, max_pixels=request.max_image_pixels)
    return save(context.draft, *made, stage=request.stage, iteration=request.iteration, config={"seed": request.seed})


def _take_in(request: InitialiseRequest, context: WorkerContext) -> Card:
    policy = request.policy
    source = model_folder(policy)
    context.log(f"taking in {policy.model} from {source}")
    return import_checkpoint(
        source,
        context.draft,
        stage=request.stage,
        iteration=request.iteration,
        dtype=policy.dtype,
        link=policy.link,
        max_image_pixels=request.max_image_pixels,
        origin=policy.model_dump(mode="json"),
    )


def model_folder(policy: PolicySettings) -> Path:
    """Where the weights of a policy lie, fetched from the hub where they have to be. Raises CheckpointError."""
    name = str(policy.model)
    return fetch(name, policy.revision) if policy.source == "huggingface" else Path(name).expanduser().absolute()
