"""The one launcher of CT, SFT and RL: processes that train together, on this machine or on several, started, watched and ended.

A process of node.py on every host is torchrun's agent there. They meet at a store of torch's (TCPStore) that the launcher itself serves on
its host's address, so that nothing outlives it: agents end when the store is gone or their standard input ends. On this machine a host's
process is a child; on another one it is started by the command that `TrainingHosts.launch` says. Files of the run are on a file system that
all share.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.processes import LOST_A_RANK, error_file, interface_of, last_words, left_error
from warehouse.core.errors import ConfigError, FlywheelError, ProcessLost
from warehouse.core.home import atomic_write
from warehouse.core.processes import end_group, environment_of_child

LAUNCH_FOLDER = "launch"
"""Of a training run's folder: what the processes of a launch share."""
LOOPBACK = "127.0.0.1"
POLL_S, GRACE_S = 0.05, 10.0
PASSED_ON = ("GLOO_", "NCCL_", "TORCH_", "OMP_", "CUDA_")
"""Beginnings of the names of variables that processes on other hosts get as they are here, but for those of THEIR_OWN."""
THEIR_OWN = ("_IFNAME", "CUDA_VISIBLE_DEVICES")
"""Ends of the names of variables that say what one host has: its interfaces, its GPUs."""


class NodeJob(BaseModel):
    """What one host runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    module: Annotated[str, Field(description="each process is `python -m module arguments`")]
    arguments: tuple[str, ...]
    address: Annotated[str, Field(description="of the host, as the others reach it")]
    num_processes: Annotated[int, Field(ge=1, description="that the host runs")]
    num_nodes: Annotated[int, Field(ge=1, description="hosts that run any")]
    store: Annotated[str, Field(description="host:port of the launcher's store")]
    first_device: Annotated[int, Field(ge=0, description="GPU of the host's first process; those before are the launcher's")] = 0


class Failed(BaseModel):
    """Which process of a host ended first, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    status: int


def failed_file(job_file: Path) -> Path:
    return job_file.with_suffix(".failed.json")


def shares(num_processes: int, hosts: Sequence[str]) -> dict[str, int]:
    """How many processes each host runs: as many as the others, or one more; hosts without any are left out."""
    each, more = divmod(num_processes, len(hosts))
    found = {host: each + (index < more) for index, host in enumerate(hosts)}
    return {host: num for host, num in found.items() if num}


class Launch:
    """Processes `python -m module arguments` over the hosts, and their store. Used from one thread at a time.

    `folder` is the launch's own, emptied at its start: jobs, and a log for each host. With `leads` this process is one of `num_processes`
    itself, rank 0, and the others count from 1.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        num_processes: int,
        hosts: TrainingHosts = THIS_MACHINE,
        leads: bool = False,
    ) -> None:
        """Raises ConfigError where this machine is none of the hosts."""
        self._module, self._arguments, self._folder = module, tuple(arguments), folder.resolve()
        self._hosts, self._num, self._first_rank = hosts, num_processes, int(leads)
        every = _this_one_first(hosts.hosts) if hosts.hosts else (LOOPBACK,)
        self.address = every[0]
        self._shares = shares(num_processes, every)
        if leads:
            self._shares[self.address] -= 1
        self.num_here = self._shares.get(self.address, 0)
        """Processes of this machine, without the one that leads."""
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.store: TCPStore | None = None

    def start(self) -> TCPStore:
        """Serve the store, which is returned, and start all hosts. What their processes do next is not waited for."""
        for left in (*self._folder.glob("node-*"), *self._folder.glob("error-*.json")):
            left.unlink()
        self._folder.mkdir(parents=True, exist_ok=True)
        self.store, address = _serve(self.address)
        commands = self.commands()
        for index, (host, command) in enumerate(commands.items()):
            job = NodeJob(
                module=self._module,
                arguments=self._arguments,
                address=host,
                num_processes=self._shares[host],
                num_nodes=len(commands),
                store=address,
                first_device=self._first_rank if host == self.address else 0,
            )
            atomic_write(self._job_file(index), job.model_dump_json().encode())
            with self._log(index).open("wb") as said:
                self._nodes[host] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=_environment(), start_new_session=True
                )
        return self.store

    def commands(self) -> dict[str, list[str]]:
        """What `start` runs here for each host's agent."""
        hosts = [host for host, num in self._shares.items() if num]
        return {host: self._command(index, host) for index, host in enumerate(hosts)}

    def _command(self, index: int, host: str) -> list[str]:
        command = [sys.executable, "-m", "models.training.node", str(self._job_file(index))]
        return command if host == self.address else self._hosts.command_on(host, shell_command(command))

    def is_over(self) -> bool:
        """Whether all have ended well. Raises ProcessLost where one has failed, or what is left of its error (`error`)."""
        statuses = [node.poll() for node in self._nodes.values()]
        if any(statuses):
            raise self._lost()
        return all(status == 0 for status in statuses)

    def check(self) -> None:
        """Raises ProcessLost where one has ended."""
        if any(node.poll() is not None for node in self._nodes.values()):
            raise self._lost()

    @contextlib.contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """A ProcessLost raised within the block is raised again with the process that ended and its status."""
        try:
            yield
        except ProcessLost as error:
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline:
                try:
                    self.check()
                except ProcessLost as lost:
                    raise lost from error
                time.sleep(POLL_S)
            raise

    def error(self) -> FlywheelError | None:
        """An error of this project that a process left."""
        ranks = range(self._first_rank, self._num)
        return next((error for rank in ranks if (error := left_error(error_file(self._folder, rank)))), None)

    def _lost(self) -> ProcessLost:
        """Of several that ended, the one that did so by itself."""
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and (found := self._first_failure()) is None:
            time.sleep(POLL_S)  # those that lost another say so before it does
        index, who, status = found or self._any_ended()
        log = self._log(index)
        error = self.error()
        cause = f"the end of its log {log}:\n{last_words(log)}" if error is None else f"{type(error).__name__}: {error}; its log is {log}"
        return ProcessLost(f"training {who} ended with status {status}; start the run again: it resumes from its last state. {cause}")

    def _first_failure(self) -> tuple[int, str, int] | None:
        for index, (host, node) in enumerate(self._nodes.items()):
            status = node.poll()
            if status is None:
                continue
            file = failed_file(self._job_file(index))
            if file.exists():
                failed = Failed.model_validate_json(file.read_text())
                if failed.status != LOST_A_RANK:
                    return index, f"process {failed.rank + self._first_rank} of {self._num}", failed.status
            elif status not in (0, LOST_A_RANK):
                return index, f"host {host}", status
        return None

    def _any_ended(self) -> tuple[int, str, int]:
        return next(
            (index, f"host {host}", status) for index, (host, node) in enumerate(self._nodes.items()) if (status := node.poll()) is not None
        )

    def stop(self, *, wait_s: float = 0.0) -> None:
        """End what is left, on all hosts, after so long a time in which it may end by itself."""
        self._wait(wait_s)
        for node in self._nodes.values():
            if node.stdin is not None:
                node.stdin.close()
        self._wait(GRACE_S)
        for node in self._nodes.values():
            end_group(node.pid)
            node.wait()
        self._nodes.clear()
        self.store = None

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(node.poll() is None for node in self._nodes.values()) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _job_file(self, index: int) -> Path:
        return self._folder / f"node-{index}.json"

    def _log(self, index: int) -> Path:
        return self._folder / f"node-{index}.log"


def _this_one_first(hosts: Sequence[str]) -> tuple[str, ...]:
    own = [host for host in hosts if interface_of(host)]
    if not own:
        raise ConfigError(
            f"none of training.hosts ({', '.join(hosts)}) is an address of this machine, which is one of them: name it by the address that "
            "the others reach"
        )
    return (*own, *(host for host in hosts if host not in own))


def _serve(address: str) -> tuple[TCPStore, str]:
    """A store that listens there and nowhere else, and its host:port."""
    listening = socket.create_server((address, 0))
    port = listening.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, f"{address}:{port}"


def store_at(address: str) -> TCPStore:
    """The launcher's store, for a process that it started (NodeJob.store)."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False)


def _environment() -> dict[str, str]:
    """This process's, with its import path, wherever it was started. One thread each unless the environment says otherwise."""
    return {"OMP_NUM_THREADS": "1", **environment_of_child()}


def shell_command(command: Sequence[str]) -> str:
    """For a shell of another host: the command with what of this environment it needs."""
    given = {
        name: value
        for name, value in _environment().items()
        if name == "PYTHONPATH" or (name.startswith(PASSED_ON) and not name.endswith(THEIR_OWN))
    }
    return shlex.join(["exec", "env", *(f"{name}={value}" for name, value in given.items()), *command])
