"""A policy server that ends with its parent: `python -m models.server PARENT_PID`, a ServerJob on its standard input (process.py). Its
first line says where it answers, or why it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import closing
from typing import Any

from models.server.backend import ServedEngine
from models.server.process import ServerJob
from models.server.serve import serve
from sandbox.http.serving import address_of, bind
from warehouse.core.errors import FlywheelError, to_plain
from warehouse.core.processes import die_with_parent


def main(parent_pid: int) -> int:
    die_with_parent(parent_pid)
    job = ServerJob.model_validate_json(sys.stdin.buffer.read())
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no address

    def say(line: dict[str, Any]) -> None:
        said.write(json.dumps(line) + "\n")
        said.flush()

    try:
        engine = ServedEngine.open(job.folder, dtype=job.dtype, device=job.device, settings=job.engine)
    except FlywheelError as error:
        say(to_plain(error))
        return 1
    with closing(engine), bind("127.0.0.1", 0) as listener:
        asyncio.run(serve(engine, job.token, job.limits, listener, lambda: say({"url": address_of(listener)})))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
