"""Near-duplicate pairs with datasketch: MinHash of every document, LSH, then the exact Jaccard index of each candidate.

python near_datasketch.py FILE.parquet THRESHOLD sha1|crc32 WEIGHT_OF_FALSE_NEGATIVES
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path

import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH


def peak_mb() -> float:
    """Highest resident memory of this process; the kernel's other figure, ru_maxrss, begins with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    path, threshold, name = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    began, cpu = time.perf_counter(), time.process_time()
    documents = [set(tokens) for tokens in pq.read_table(path, columns=["tokens"])["tokens"].to_pylist()]
    settings = {} if name == "sha1" else {"hashfunc": zlib.crc32}
    encoded = ([token.encode() for token in tokens] for tokens in documents)
    missed = float(sys.argv[4])
    index = MinHashLSH(threshold=threshold, num_perm=128, weights=(1 - missed, missed))
    found = set()
    for i, minhash in enumerate(MinHash.bulk(encoded, num_perm=128, **settings)):
        for j in index.query(minhash):
            shared = len(documents[i] & documents[j])
            if shared / (len(documents[i]) + len(documents[j]) - shared) >= threshold:
                found.add((i, j))
        index.insert(i, minhash)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    planted = {(i, j) for i, j in enumerate(pq.read_table(path, columns=["original"])["original"].to_pylist()) if j >= 0}
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "peak_mb": peak_mb(),
                "pairs": len(found),
                "planted": len(planted),
                "recall": len(planted & found) / max(1, len(planted)),
            }
        )
    )


if __name__ == "__main__":
    main()
