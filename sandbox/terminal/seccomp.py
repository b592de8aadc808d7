"""The filter of system calls for jails: calls that no task needs and that reach into other processes or deep into the kernel fail with
"not permitted", and sockets are of a few families only. For most it is a second lock, behind missing capabilities and namespaces; for
ptrace, TIOCSTI, io_uring, bpf, userfaultfd, keys and families that have no namespace it is the first.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from functools import lru_cache

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
NO_SUCH_FAMILY = 0x00050000 | errno.EAFNOSUPPORT
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets into struct seccomp_data; of an argument its lower half (little endian)."""
TIOCSTI = 0x5412
FIRST_X32_CALL = 0x40000000

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED: dict[str, dict[str, int]] = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "unshare": 272,
        "setns": 308,
        "fsopen": 430,
        "open_tree": 428,
        "move_mount": 429,
        "fsmount": 432,
        "mount_setattr": 442,
        "open_by_handle_at": 304,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "kexec_load": 246,
        "kexec_file_load": 320,
        "init_module": 175,
        "finit_module": 313,
        "delete_module": 176,
        "reboot": 169,
        "swapon": 167,
        "swapoff": 168,
        "acct": 163,
        "settimeofday": 164,
        "clock_settime": 227,
        "adjtimex": 159,
        "quotactl": 179,
        "syslog": 103,
        "iopl": 172,
        "ioperm": 173,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "unshare": 97,
        "setns": 268,
        "fsopen": 430,
        "open_tree": 428,
        "move_mount": 429,
        "fsmount": 432,
        "mount_setattr": 442,
        "open_by_handle_at": 265,
        "bpf": 280,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "io_uring_setup": 425,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "kexec_load": 104,
        "kexec_file_load": 294,
        "init_module": 105,
        "finit_module": 273,
        "delete_module": 106,
        "reboot": 142,
        "swapon": 224,
        "swapoff": 225,
        "acct": 89,
        "settimeofday": 170,
        "clock_settime": 112,
        "adjtimex": 171,
        "quotactl": 60,
        "syslog": 116,
    },
}
IOCTL = {"x86_64": 16, "aarch64": 29}
SOCKET, SOCKETPAIR = {"x86_64": 41, "aarch64": 198}, {"x86_64": 53, "aarch64": 199}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
"""What sockets may be of. Others reach past the network namespace (AF_VSOCK: other jails, the machine that this one is a guest of) or deep
into the kernel (AF_NETLINK, AF_PACKET, AF_ALG, AF_BLUETOOTH, AF_XDP …)."""
Line = tuple[str, int, int, str | None, str | None]
"""Label, code, value, and the labels to go on at where a comparison holds and where not; None: the next line."""


@lru_cache(maxsize=1)
def filter_program() -> bytes:
    """A classic BPF program, as bubblewrap's --seccomp reads it; on an architecture that is not listed one that allows everything."""
    machine = platform.machine()
    if machine not in REFUSED:
        return _instruction(RETURN, ALLOW)
    return _assembled(
        [
            ("", LOAD, ARCHITECTURE, None, None),
            ("", JUMP_EQUAL, AUDIT_ARCHITECTURES[machine], None, "refuse"),  # calls of another architecture have other numbers
            ("", LOAD, NUMBER, None, None),
            ("", JUMP_AT_LEAST, FIRST_X32_CALL, "refuse", None),
            *(("", JUMP_EQUAL, number, "refuse", None) for number in sorted(REFUSED[machine].values())),
            ("", JUMP_EQUAL, IOCTL[machine], "ioctl", None),
            ("", JUMP_EQUAL, SOCKET[machine], "socket", None),
            ("", JUMP_EQUAL, SOCKETPAIR[machine], "socket", "allow"),
            ("ioctl", LOAD, SECOND_ARGUMENT, None, None),
            ("", JUMP_EQUAL, TIOCSTI, "refuse", "allow"),
            ("socket", LOAD, FIRST_ARGUMENT, None, None),
            *(("", JUMP_EQUAL, family, "allow", None) for family in FAMILIES.values()),
            ("", RETURN, NO_SUCH_FAMILY, None, None),
            ("refuse", RETURN, REFUSE, None, None),
            ("allow", RETURN, ALLOW, None, None),
        ]
    )


def _assembled(lines: Sequence[Line]) -> bytes:
    places = {label: place for place, (label, *_) in enumerate(lines) if label}
    return b"".join(
        _instruction(code, value, *(0 if target is None else places[target] - place - 1 for target in (holds, fails)))
        for place, (_, code, value, holds, fails) in enumerate(lines)
    )


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
