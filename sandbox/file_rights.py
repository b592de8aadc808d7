"""Touching files with another user's rights. For root, who works on files that belong to a session's user: what that user may not do is
then refused here too, new files are that user's, and they can be made where only that user's number means something (the file systems of
a jail, sandbox/terminal/bubblewrap.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def rights_of(uid: int, gid: int) -> Iterator[None]:
    """Within, this thread opens, makes and removes files as that user; other threads go on as they were. Do not await within. Does
    nothing where we are not root, or for root."""
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    group, user = _libc.setfsgid(gid), _libc.setfsuid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(user)
        _libc.setfsgid(group)
