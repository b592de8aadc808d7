"""Runs one program, and ends it and all its children when another process is gone: `python -m pipelines.orchestration.services.guard PID
PROGRAM …`.

For programs whose own children would outlive them, as those of `dagster dev` do. Start it in a session of its own: its process group is
what it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from warehouse.core.processes import wait_for_end


def main(pid: int, command: Sequence[str]) -> int:
    threading.Thread(target=_end_all_after, args=(pid,), name=f"watch-{pid}", daemon=True).start()
    program = subprocess.Popen(command)
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, signal.SIG_IGN)  # the whole group gets it, and we stay until the program has ended
    return program.wait()


def _end_all_after(pid: int) -> None:
    wait_for_end(pid)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
