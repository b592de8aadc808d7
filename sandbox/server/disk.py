"""The disk under the sessions of a server, or of a node of a Ray cluster. Browsers and desktops write there; on a full one they fail in
ways that look like the agent's doing, so a machine that runs out of it lends nothing and fails what is under way, which then runs again
elsewhere.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable

from sandbox.browser.isolation.scratch import scratch_root
from warehouse.core.errors import SandboxBusy, SandboxError

MIB = 1 << 20
FULL_SHARE = 4
"""Below a quarter of what must be free the disk counts as full."""


def free_mib() -> float:
    """Of the disk that the sessions' temporary files lie on."""
    try:
        return shutil.disk_usage(scratch_root()).free / MIB
    except OSError as error:
        if error.errno == errno.ENOSPC:  # it has no space for their folder
            return 0.0
        raise


class Disk:
    """Watches that `min_free_mib` are free; 0 watches nothing."""

    def __init__(self, min_free_mib: float, free: Callable[[], float] = free_mib) -> None:
        self.min_free_mib, self.free_mib = min_free_mib, free

    @property
    def is_short(self) -> bool:
        return self.min_free_mib > 0 and self.free_mib() < self.min_free_mib

    @property
    def is_full(self) -> bool:
        """Whether what a session does can no longer be trusted."""
        return self.min_free_mib > 0 and self.free_mib() < self.min_free_mib / FULL_SHARE

    def check_for_lease(self) -> None:
        """Raises SandboxBusy where no new session may begin."""
        if self.is_short:
            raise SandboxBusy(self._text())

    def check_for_call(self) -> None:
        """Raises SandboxError where what a session does can no longer be trusted."""
        if self.is_full:
            raise SandboxError(self._text())

    def _text(self) -> str:
        return (
            f"The disk of the sandbox server is nearly full: {self.free_mib():.0f} MiB of its temporary folder are free, at least "
            f"{self.min_free_mib:g} are needed (`flywheel sandbox serve --min-free-disk`)."
        )
