"""Filters and routing with Hugging Face `datasets`: one `map` that judges episode by episode, then one pass over what it found, and the
`filter` that makes the SFT set.

    python filter_datasets.py NESTED.parquet NUM_PROCESSES
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time

import datasets
from filter_plain import digest, features, judged, peak_mb

COLUMNS = ("episode_id", "task_id", "instruction", "split", "outcome", "reward")


def main() -> None:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        began, cpu = time.perf_counter(), time.process_time()
        rows = datasets.Dataset.from_parquet(sys.argv[1], cache_dir=cache)
        dropped = [name for name in rows.column_names if name not in COLUMNS]
        scored = rows.map(features, remove_columns=dropped, num_proc=int(sys.argv[2]) if int(sys.argv[2]) > 1 else None)
        found = judged(scored)
        sft = scored.filter(lambda episode_id: found[episode_id][0] == "sft", input_columns="episode_id")
        seconds, cpu_s, peak = time.perf_counter() - began, time.process_time() - cpu, peak_mb()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "episodes": len(found),
                "sft": len(sft),
                "seconds": seconds,
                "cpu_s": cpu_s + children.ru_utime + children.ru_stime,
                "peak_mb": peak,
                "digest": digest(found),
                "version": datasets.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
