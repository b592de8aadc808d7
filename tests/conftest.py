"""One thread a process in every test: the suite runs on two cores with two workers, and a tiny model only waits for a second thread.

Set before torch is imported anywhere; subprocesses inherit it.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
