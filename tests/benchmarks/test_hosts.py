"""Hosts of one machine, by which tests and benchmarks try what runs on many (benchmarks/common/hosts.py)."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from benchmarks.common.hosts import Hosts, can_make_hosts

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")
ANSWER = "import socket; s = socket.create_server(('{}', 9000)); print('ready', flush=True)\nwhile True: s.accept()[0].sendall(b'here')"


def ask(address: str, *, timeout_s: float = 1) -> bytes:
    with socket.create_connection((address, 9000), timeout=timeout_s) as connection:
        return connection.recv(10)


def test_hosts_reach_each_other_until_one_is_cut_off_or_killed(tmp_path: Path) -> None:
    with Hosts(2) as (head, node):
        log = tmp_path / "log"
        process = node.start([sys.executable, "-c", ANSWER.format(node.address)], output=log)
        while "ready" not in (log.read_text() if log.exists() else ""):
            assert process.poll() is None
        with head.entered():
            assert ask(node.address) == b"here"
            node.cut()
            with pytest.raises(TimeoutError):
                ask(node.address)
            node.restore()
            assert ask(node.address, timeout_s=20) == b"here"  # addresses are requested again and lost packets sent again, a second apart
            node.kill()
            assert process.poll() is not None
            with pytest.raises(ConnectionRefusedError):
                ask(node.address)
        with pytest.raises(OSError):  # from outside nobody gets in
            ask(node.address)
    assert not list(Path("/run/netns").glob(f"{node.name}*"))
