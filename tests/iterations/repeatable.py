"""What two homes of one profile and seed share wherever they run: the rows of the deterministic stages, and their checkpoints."""

from __future__ import annotations

from collections.abc import Collection

from warehouse.lineage import registry
from warehouse.storage.content import content_digest
from warehouse.storage.tables import Warehouse

REPEATABLE = {
    ("0000", "tasks"): ("tasks", "task_instances"),
    ("0000", "seed_demonstrations"): ("episodes", "steps", "sft_samples"),
    ("0000", "seed_tutorials"): ("ct_samples",),
    ("0001", "ct_dataset"): ("datasets",),
    ("0001", "sft_dataset"): ("datasets",),
    ("0001", "ct_model"): ("training_metrics",),
    ("0001", "sft_model"): ("training_metrics",),
}
"""Tables of the stages that give the same rows whenever they run with the same seed."""
TRAINED = ("ct_model", "sft_model")


def assert_same_rows(one: Warehouse, other: Warehouse, *, but: Collection[str] = ()) -> None:
    """Of all repeatable stages but those named, as where one shares its batches over several processes and rounds otherwise."""
    for (iteration, stage), tables in REPEATABLE.items():
        if stage not in but:
            rows, others = (content_digest(each, tables, iteration=iteration, stage=stage) for each in (one, other))
            assert rows == others, f"{iteration}/{stage}"
    made, others_made = (
        {stage: registry.made_by(each, "0001", stage).checkpoint_id for stage in TRAINED if stage not in but} for each in (one, other)
    )
    assert made == others_made
