"""The seed policy: tokenizer and model built from the configuration, with the weights that a seed gives."""

from __future__ import annotations

from agent.vocabulary import words
from assets.requests import InitialiseRequest, StageResult
from models.checkpoint import save
from models.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.tokenizer import build_tokenizer, character_twins
from pipelines.workers.context import WorkerContext
from pipelines.workers.storing import store_checkpoint


def run(request: InitialiseRequest, context: WorkerContext) -> StageResult:
    tokenizer = build_tokenizer(words(*request.curricula))
    config = tiny_config(
        len(tokenizer), pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id
    )
    model = ShiftQwen3ForCausalLM(config)
    initialise(model, request.seed, twins=character_twins(tokenizer))
    card = save(context.draft, model, tokenizer, stage=request.stage, iteration=request.iteration, config={"seed": request.seed})
    version = store_checkpoint(context, card)
    return StageResult(
        checkpoint_id=card.checkpoint_id,
        table_versions={"checkpoints": version},
        counts={"parameters": model.num_parameters(), "vocabulary": len(tokenizer)},
    )
