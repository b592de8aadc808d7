"""Reading what an agent wrote where that could harm the reader: a program of ours in a jail of its own, which ends with it.

A host that parses hostile files itself can be made to loop, to take all memory, or worse. Here the program has its input, no network, no
files, and little of everything else. What programs there are and what they read is the callers' business.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.terminal.bubblewrap import PYTHON, JailLimits
from sandbox.terminal.jail import Jail
from warehouse.core.errors import SandboxTimeout

LIMITS = JailLimits(processes=4, memory_mib=256, cpus=1.0, cpu_s=5, workspace_mib=1, scratch_mib=1, open_files=32)
WALL_LIMIT_S = 120.0
"""Only a machine that gives the program no processor time reaches this before the limit of processor time."""
MAX_OUTPUT_BYTES = 16 << 20


class Unreadable(Exception):
    """The program did not come to an end within its limits, or ended badly: the input is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read one kind of input. `program` is Python source for the system's Python and its standard library; it gets `arguments`, and
    the input as standard input, and prints its result."""

    program: str
    arguments: Sequence[str] = ()
    limits: JailLimits = LIMITS

    async def of(self, content: bytes) -> bytes:
        """What the program prints. Raises Unreadable, and JailCrashed, SandboxTimeout, BubblewrapMissing where the machine failed."""
        jail = await Jail.start(self.limits)
        try:
            done = await jail.run(
                [PYTHON, "-IBSc", self.program, *self.arguments], given=content, timeout_s=WALL_LIMIT_S, limit_bytes=MAX_OUTPUT_BYTES + 1
            )
        finally:
            await jail.close()
        if done.exit_code is None:
            raise SandboxTimeout(f"Reading what an agent wrote took longer than {WALL_LIMIT_S:g} s. Is the machine overloaded?")
        if done.exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
            used = f"{self.limits.cpu_s} s of processor time or {self.limits.memory_mib} MiB"
            raise Unreadable(f"reading it takes more than {used}")
        if done.exit_code != 0:
            raise Unreadable(done.output.decode(errors="replace").strip().rpartition("\n")[2][-200:] or f"exit code {done.exit_code}")
        if len(done.output) > MAX_OUTPUT_BYTES:
            raise Unreadable(f"it holds more than {MAX_OUTPUT_BYTES >> 20} MiB")
        return done.output
