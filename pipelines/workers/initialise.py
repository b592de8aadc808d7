"""The seed policy: tokenizer and model built from the configuration, with the weights that a seed gives."""

from __future__ import annotations

from agent.vocabulary import words
from assets.requests import InitialiseRequest, StageResult
from models.checkpoint import save
from models.seed_policy import seed_policy
from pipelines.workers.context import WorkerContext
from pipelines.workers.storing import store_checkpoint


def run(request: InitialiseRequest, context: WorkerContext) -> StageResult:
    model, tokenizer = seed_policy(words(*request.curricula), request.seed)
    card = save(context.draft, model, tokenizer, stage=request.stage, iteration=request.iteration, config={"seed": request.seed})
    version = store_checkpoint(context, card)
    return StageResult(
        checkpoint_id=card.checkpoint_id,
        table_versions={"checkpoints": version},
        counts={"parameters": model.num_parameters(), "vocabulary": len(tokenizer)},
    )
