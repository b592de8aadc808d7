"""A network of its own for each browser: a Linux network namespace in which there is nothing but an empty loopback, and the sockets that
we put there for the proxies of its sessions (proxy.py).

So a page reaches no port of this machine and no other machine by any protocol, whatever it finds in the browser: the walls inside the
browser only fail it earlier. It takes root to make one; without, browsers share our network and those walls are all there is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import lru_cache

from sandbox.browser.isolation import loopback
from warehouse.core.errors import SandboxError

_CLONE_NEWNET = 0x40000000
_BACKLOG = 128


@lru_cache(maxsize=1)
def wrapper_with_loopback() -> tuple[str, ...]:
    """The same, for a command that listens on its loopback itself: it finds it raised."""
    return (*wrapper(), sys.executable, "-I", "-S", loopback.__file__) if wrapper() else ()


@lru_cache(maxsize=1)
def wrapper() -> tuple[str, ...]:
    """The words before a command that give it a network of its own; none where the system does not let us."""
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or os.geteuid() != 0 or unshare is None:
        return ()
    probe = subprocess.run([unshare, "--net", "--", "true"], capture_output=True, timeout=30, check=False)
    return (unshare, "--net", "--") if probe.returncode == 0 else ()


def listener(pid: int, *, own: bool = True) -> socket.socket:
    """A socket that listens on the loopback which a process has: its own network's, or ours where it has none of its own (or was not given
    one: `own`). Raises SandboxError."""
    if not own or not wrapper():
        return _listening()
    return _made_there(pid, _listening)


def connection(pid: int, port: int) -> socket.socket:
    """A connection to a port of the loopback which a process has, its own network's or ours. Raises SandboxError."""

    def connected() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=10)

    return _made_there(pid, connected)


def _made_there(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket, made in the network of a process: it stays where it was made. Raises SandboxError."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def work() -> None:
        """In a thread of its own, which enters the other network and ends there."""
        try:
            if wrapper():
                _enter(pid)
                loopback.raise_loopback()
            made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="socket of a browser")
    thread.start()
    thread.join()
    if not made:
        raise SandboxError(f"No socket could be opened in the browser's network: {failed[0]}. Start the episode again.") from failed[0]
    return made[0]


def _listening() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def _enter(pid: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as network:
        if library.setns(network.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
