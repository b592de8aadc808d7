"""A network of its own for each browser: a Linux network namespace in which there is nothing but an empty loopback, and the sockets that
we put there for the proxies of its sessions (proxy.py).

So a page reaches no port of this machine and no other machine by any protocol, whatever it finds in the browser: the walls inside the
browser only tell it earlier. It takes root to make one; without, browsers share our network and those walls are all there is.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from functools import lru_cache

from warehouse.core.errors import SandboxError

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_BACKLOG = 128


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
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        """In a thread of its own, which enters the other network and ends there; a socket stays where it was made."""
        try:
            _enter(pid)
            _raise_loopback()
            made.append(_listening())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make, name="listener")
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


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))
