"""The training processes of one host: `python -m models.training.node JOB_FILE`. launcher.py starts it, here or on another machine.

torchrun's agent (torch.distributed.elastic) meets those of the other hosts at the launcher's store, gives out ranks, starts the processes
and ends all when one fails. Nothing is restarted here: a run that lost a process is restarted as a whole, and resumes.

It ends, and its processes with it, when its standard input does, that is with the launcher, through ssh as well; and when the store no
longer answers.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from models.training.launcher import Failed, NodeJob, failed_file
from models.training.processes import LOST_A_RANK, NODE_JOB, NODE_PID, use_interface_of
from warehouse.core.home import atomic_write

JOIN_S, READ_S = 600, 30
"""How long a host waits for the others to join, and for an answer of the store."""
GRACE_S = 5.0


def main(job_file: Path) -> int:
    job = NodeJob.model_validate_json(job_file.read_text())
    threading.Thread(target=_end_with_input, daemon=True).start()
    use_interface_of(job.address)
    os.environ |= {NODE_PID: str(os.getpid()), NODE_JOB: str(job_file)}
    with tempfile.TemporaryDirectory(prefix="flywheel-") as scratch:
        config = LaunchConfig(
            min_nodes=job.num_nodes,
            max_nodes=job.num_nodes,
            nproc_per_node=job.num_processes,
            run_id="flywheel",
            rdzv_backend="c10d",
            rdzv_endpoint=job.store,
            rdzv_configs={"is_host": False, "join_timeout": JOIN_S, "read_timeout": READ_S},
            local_addr=job.address,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
        )
        try:
            launch_agent(config, sys.executable, ["-u", "-m", job.module, *job.arguments])
        except ChildFailedError as error:
            failures = sorted(error.failures.items(), key=lambda failure: (failure[1].exitcode == LOST_A_RANK, failure[1].timestamp))
            rank, failure = failures[0]
            atomic_write(failed_file(job_file), Failed(rank=rank, status=failure.exitcode).model_dump_json().encode())
            return 1
        except SignalException as error:
            return 128 + int(error.sigval)
        except RendezvousError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return LOST_A_RANK
    return 0


def _end_with_input() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock would be held when this process ends by itself
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the agent ends its processes
    time.sleep(GRACE_S)
    os._exit(1)  # they watch this one


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
