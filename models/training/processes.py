"""What processes that train together share: the network that they use, how one ends with those that started it, the
error that it leaves behind, the last words of a log.

Who starts them is launcher.py's business, what they do models/supervised/process.py's and models/rl/distributed/process.py's.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from warehouse.core.errors import FlywheelError, ModelError, ProcessLost, from_plain, to_plain
from warehouse.core.home import atomic_write
from warehouse.core.processes import die_with

LAST_WORDS = 2000
"""Characters of a log that an error repeats."""
LOST_A_RANK = 75
"""Exit status of a process that ended because another one had."""
NODE_PID = "FLYWHEEL_TRAINING_NODE_PID"
"""Variable with the id of the process of node.py that started this one."""
NODE_JOB = "FLYWHEEL_TRAINING_NODE_JOB"
"""Variable with the path of that process's job."""


def interface_of(host: str) -> str | None:
    """The network interface of this machine that has a host's address; None where that is another machine's. Raises OSError for a name that
    is not known."""
    address = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            if each.family in (socket.AF_INET, socket.AF_INET6) and ipaddress.ip_address(each.address.partition("%")[0]) == address:
                return name
    return None


def use_interface_of(host: str) -> None:
    """Have collectives of this process and of those that it starts go over the interface with this machine's address `host`, unless the
    environment says which."""
    interface = interface_of(host)
    if interface is not None:
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)


def work_as_rank(folder: Path, rank: int, work: Callable[[], None]) -> int:
    """Do what a process of `rank` is there for; its exit status. It ends with the process that started it, whose launch is in `folder`. An
    error of this project is left there."""
    die_with(int(os.environ[NODE_PID]))
    try:
        work()
    except ProcessLost:
        traceback.print_exc()
        return LOST_A_RANK
    except FlywheelError as error:
        atomic_write(error_file(folder, rank), json.dumps(to_plain(error)).encode())
        traceback.print_exc()
        return 1
    except RuntimeError as error:
        if not is_of_collectives(error):
            raise
        traceback.print_exc()
        return LOST_A_RANK
    return 0


def is_of_collectives(error: RuntimeError) -> bool:
    """Whether gloo or NCCL say that another process does not answer."""
    return any(library in str(error) for library in ("gloo", "Gloo", "NCCL"))


def error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def left_error(path: Path) -> FlywheelError | None:
    """The error that a process left; None where it left none."""
    try:
        return from_plain(json.loads(path.read_text()), ModelError)
    except FileNotFoundError:
        return None


def last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:]
