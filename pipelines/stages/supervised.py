"""CT, SFT and the ORM: continue a checkpoint on one dataset snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.policy.policy import Message
from assets.stages.requests import StageResult, SupervisedRequest
from models.checkpoints.checkpoint import read_card
from models.checkpoints.model_files import FAST_TOKENIZER_FILE
from models.families.registry import is_vision
from models.supervised.run import train_supervised
from models.supervised.text_loss import text_loss
from models.supervised.training_set import TrainingSample
from models.training.metrics import Progress, read_metrics
from pipelines.stages.context import WorkerContext
from pipelines.stages.images import spooled_images
from pipelines.stages.storing import store_checkpoint, store_metrics
from warehouse.core.errors import FlywheelError
from warehouse.datasets.held_out_texts import held_out_texts
from warehouse.lineage import registry
from warehouse.routing.samples import Kind, in_parts
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


def run(request: SupervisedRequest, context: WorkerContext) -> StageResult:
    context.track(request.tracking, request.config.model_dump(mode="json"))
    warehouse = context.warehouse
    progress = context.progress()

    def report(state: Progress) -> None:
        progress.update(state.step, state.num_steps, "steps", state.metrics)

    parent = registry.find(warehouse, request.checkpoint_id)
    config = request.config.model_copy(update={"seed": request.config.seed + request.seed})
    samples = DatasetSamples(warehouse, request.dataset_id, ("orm",) if request.kind == "orm" else ("ct", "sft"), init=parent.folder)
    num_samples = len(samples)

    def counted() -> Iterator[TrainingSample]:
        for number, sample in enumerate(samples, 1):
            progress.update(number, num_samples, "samples encoded")
            yield sample

    card = train_supervised(
        config,
        counted(),
        init=parent.folder,
        output=context.draft,
        run_folder=context.run_folder,
        stage=request.stage,
        iteration=request.iteration,
        datasets=(request.dataset_id,),
        on_progress=report,
        hosts=request.hosts,
        read_image=spooled_images(warehouse, samples, context.folder / "images") if is_vision(parent.folder) else None,
    )
    texts = [tuple(Message(**message) for message in text) for text in held_out_texts(warehouse)] if request.kind != "orm" else []
    measured = {"text_loss": loss} if texts and (loss := text_loss(context.draft, texts)) is not None else {}
    curve = [(point.step, point.metrics) for point in read_metrics(context.run_folder)]
    curve += [(int(card.metrics["steps"]), measured)]
    versions = {"checkpoints": store_checkpoint(context, card), "training_metrics": store_metrics(context, card.checkpoint_id, curve)}
    counts = {"samples": num_samples, "samples/too long": int(card.metrics["samples_too_long"])}
    return StageResult(checkpoint_id=card.checkpoint_id, table_versions=versions, counts=counts, metrics={**card.metrics, **measured})


def tokenizer_of(folder: Path) -> str | None:
    """Digest of a checkpoint's tokenizer."""
    return read_card(folder).files.get(FAST_TOKENIZER_FILE)


MEMORY_LIMIT = "1GB"
"""Of DuckDB, while samples are read and put in order."""
_OF_KIND = """
select {place} as place, s.sample_id, s.messages, d.weight, t.policy_id, t.prompt_token_ids, t.response_token_ids
from datasets d join {kind}_samples s using (sample_id)
left join (from steps where stage in ('gateway_episodes', 'rollouts')) t
    on s.origin = 'gateway' and '{kind}' = 'sft' and t.episode_id = s.episode_id and t.step_index = s.step_index
where d.dataset_id = $dataset and d.kind = '{kind}' and not s.withdrawn
qualify row_number() over (partition by d.iteration, d.sample_id order by s.iteration) = 1 and d.iteration = min(d.iteration) over ()
"""


@dataclass(frozen=True, slots=True)
class DatasetSamples:
    """The samples of a snapshot with their weights, those of D_CT before those of D_SFT, each in the order of their ids. Whenever they are
    gone through they are read from the warehouse, part by part, and never held together."""

    warehouse: Warehouse
    dataset_id: str
    kinds: Sequence[Kind] = ("ct", "sft")
    init: Path | None = None
    """The checkpoint that is trained: what the gateway served with its tokenizer is learned for SFT by its token ids, untouched. CT's
    objectives rewrite texts."""

    def __len__(self) -> int:
        (row,) = self._rows("select count(*) as num from ({samples})")
        return int(row["num"])

    def __iter__(self) -> Iterator[TrainingSample]:
        same, tokenizer = dict[str, bool](), None if self.init is None else tokenizer_of(self.init)
        for row in self._rows("select * from ({samples}) order by place, sample_id"):
            messages = tuple(Message(**message) for message in row["messages"])
            prompt, answer = row["prompt_token_ids"] or (), row["response_token_ids"] or ()
            if answer and (policy_id := row["policy_id"]) not in same:
                same[policy_id] = tokenizer is not None and tokenizer == self._tokenizer_of(policy_id)
            is_known = bool(prompt and answer) and same[row["policy_id"]]
            yield TrainingSample(
                messages=messages,
                weight=row["weight"],
                sample_id=row["sample_id"],
                token_ids=(*prompt, *answer) if is_known else (),
                answer_begin=len(prompt),
            )

    def _tokenizer_of(self, policy_id: str) -> str | None:
        """None for a policy that this home does not have."""
        try:
            return tokenizer_of(registry.find(self.warehouse, policy_id).folder)
        except FlywheelError:
            return None

    def _rows(self, query: str) -> Iterator[dict[str, Any]]:
        samples = " union all ".join(f"({_OF_KIND.format(place=place, kind=kind)})" for place, kind in enumerate(self.kinds))
        with connect(self.warehouse, memory_limit=MEMORY_LIMIT) as con:
            for part in in_parts(con.sql(query.format(samples=samples), params={"dataset": self.dataset_id})):
                yield from part.to_pylist()
