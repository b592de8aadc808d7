"""Pictures of uploaded recordings, decoded in processes of their own: what a picture does to its decoder happens there, and requests go on
meanwhile. Turns go by picture: a person has one at a time, so that nobody waits for another person's whole recording.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from annotation.service.recordings.picture_check import PICTURE_CPU_S, Wanted, line_of

PROGRAM = "annotation.service.recordings.picture_check"


class PictureWorkers:
    """Started when they are needed. Close them in the end."""

    def __init__(self, num: int = 2) -> None:
        self._turns = asyncio.Semaphore(num)
        """First come, first served."""
        self._idle: list[Process] = []

    async def fault_of(self, wanted: Wanted) -> str | None:
        """picture_check.fault_of, elsewhere. A picture that its process does not survive is at fault."""
        async with self._turns:
            process = self._idle.pop() if self._idle else await self._start()
            try:
                answer = await _ask(process, wanted)
            except BaseException:
                await _end(process)
                raise
            if answer is None:
                await _end(process)
                return f"{wanted.screen_id} takes more than {PICTURE_CPU_S} s, or more memory than a picture needs: take it out"
            self._idle.append(process)
        fault: str | None = json.loads(answer)
        return fault

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-m", PROGRAM, stdin=PIPE, stdout=PIPE)


async def _ask(process: Process, wanted: Wanted) -> bytes | None:
    """None where the process ended instead."""
    if process.stdin is None or process.stdout is None:
        return None
    with suppress(ConnectionError):
        process.stdin.write(line_of(wanted))
        await process.stdin.drain()
    return await process.stdout.readline() or None


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
