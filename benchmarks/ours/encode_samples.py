"""Samples of a stored iteration encoded for training, as one process: prints tokens, seconds and peak memory as JSON, with a digest.

python -m benchmarks.ours.encode_samples HOME snapshot    store a dataset snapshot of all samples of HOME
python -m benchmarks.ours.encode_samples HOME files       encode it into files, as a training run does, and read a hundred batches
python -m benchmarks.ours.encode_samples HOME list        all samples at once: rows, then tokens, then the same batches
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.common.process import peak_mb
from benchmarks.ours.sample_episodes import ITERATION
from models.families.tokenizer import build_tokenizer
from models.supervised.sample_file import sizes
from models.supervised.training_set import encode_samples, training_set
from models.training.batching import EncodedSample, PlannedBatches, plan_batches
from pipelines.stages.supervised import MEMORY_LIMIT, DatasetSamples
from warehouse.core.home import Home
from warehouse.core.identity import content_id
from warehouse.routing.samples import in_parts
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

DATASET = "dataset-all"
MAX_TOKENS, BATCH_TOKENS, STEPS = 4096, 8192, 100
WORDS = ("visit", "text", "button", "link", "textbox", "item", "Open", "list", "page", "task", "confirm", "of", "the", "and", "what")
_SNAPSHOT = """
select '{dataset}' as dataset_id, kind, sample_id, 'sft' as component, 1.0::double as weight
from (select 'ct' as kind, sample_id from ct_samples union all select 'sft', sample_id from sft_samples)
"""


def snapshot(warehouse: Warehouse) -> dict[str, object]:
    schema = TABLES["datasets"].schema
    with connect(warehouse, memory_limit=MEMORY_LIMIT) as con:
        parts = in_parts(con.sql(_SNAPSHOT.format(dataset=DATASET)))
        names = [name for name in schema.names if name in ("dataset_id", "kind", "sample_id", "component", "weight")]
        cast = pa.schema([schema.field(name) for name in names])
        rows = (pa.Table.from_batches([part]).select(names).cast(cast) for part in parts)
        warehouse.replace_partition_by_parts("datasets", rows, iteration=ITERATION, stage="sft_dataset")
    return {"rows": warehouse.dataset("datasets").count_rows()}


def encode(warehouse: Warehouse, is_in_files: bool) -> dict[str, object]:
    """Encode all, plan and read batches; `begins_mb` is what a process takes that has done nothing yet."""
    codec, begins_mb = build_tokenizer(WORDS), peak_mb()
    began, cpu = time.perf_counter(), time.process_time()
    samples = DatasetSamples(warehouse, DATASET)
    encoded: Sequence[EncodedSample]
    if is_in_files:
        folder = warehouse.home.root / "encoded"
        encoded = training_set(folder, codec, samples, prompt_loss_weight=0.0, eval_fraction=0.0, max_tokens=MAX_TOKENS).trained
    else:
        encoded = encode_samples(codec, list(samples), 0.0, max_tokens=MAX_TOKENS)
    encoded_s = time.perf_counter() - began
    lengths, weights = sizes(encoded)
    batches = PlannedBatches(encoded, plan_batches(lengths, weights, batch_tokens=BATCH_TOKENS, steps=STEPS, seed=0), 0)
    sums = [int(batches[step]["input_ids"].sum()) for step in range(STEPS)]
    return {
        "samples": len(encoded),
        "tokens": int(lengths.sum()),
        "seconds": encoded_s,
        "batches_s": time.perf_counter() - began - encoded_s,
        "cpu_s": time.process_time() - cpu,
        "begins_mb": begins_mb,
        "peak_mb": peak_mb(),
        "digest": content_id("batches", [lengths.tolist()[:1000], sums]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("what", choices=("snapshot", "files", "list"))
    arguments = parser.parse_args()
    warehouse = Warehouse(Home(arguments.home))
    print(json.dumps(snapshot(warehouse) if arguments.what == "snapshot" else encode(warehouse, arguments.what == "files")))


if __name__ == "__main__":
    main()
