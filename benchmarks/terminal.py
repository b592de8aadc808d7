"""Terminal commands a second and session creations a second, beside what the same costs without a jail, in one run.

Contestants: `flywheel` is a session's terminal (bash on a pty in a jail: an exit code, a directory, output that cannot pass for its end);
`bash without a jail` the same kind of shell, driven by the simplest framing over pipes; `subprocess` a new `/bin/sh -c` for each command,
which keeps no state: the floor of what a tool without sessions does; `bwrap per command` a new jail for each command, which is what
isolation costs without a session to keep. Rounds of all contestants are interleaved; figures are medians over the rounds.

    python -m benchmarks.terminal --json .bench/terminal.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.terminal.jail import Jail
from sandbox.terminal.tools import Tools

COMMANDS = {"builtin": "echo hello", "program": "/bin/true", "output": "seq 1 2000"}
"""What runs: nothing but the shell, one program, one program with 9 KB of output."""
Run = Callable[[str], Awaitable[None]]


class PlainBash:
    """A bash on pipes: a command, then a line that ends it. What a command prints can be taken for the end."""

    async def open(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            "/bin/bash", "--noprofile", "--norc", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )

    async def run(self, command: str) -> None:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("bash without pipes")
        self._process.stdin.write(f"{command}\necho; echo end $?\n".encode())
        while not (line := await self._process.stdout.readline()).startswith(b"end "):
            if not line:
                raise RuntimeError("bash has ended")

    async def close(self) -> None:
        self._process.kill()
        await self._process.communicate()


class JailedBash:
    """Our session."""

    async def open(self) -> None:
        self._tools = await Tools.open()

    async def run(self, command: str) -> None:
        result = await self._tools.terminal.execute(command)
        if result.exit_code != 0:
            raise RuntimeError(f"{command}: {result.text[-300:]}")

    async def close(self) -> None:
        await self._tools.close()


class Floor:
    """A process a command."""

    async def open(self) -> None:
        return

    async def run(self, command: str) -> None:
        subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True)

    async def close(self) -> None:
        return


class JailPerCommand:
    """A jail a command."""

    async def open(self) -> None:
        return

    async def run(self, command: str) -> None:
        jail = await Jail.start()
        try:
            done = await jail.run(["/bin/sh", "-c", command])
            if done.exit_code != 0:
                raise RuntimeError(f"{command}: {done.output[-300:]!r}")
        finally:
            await jail.close()

    async def close(self) -> None:
        return


CONTESTANTS = {"flywheel": JailedBash, "bash without a jail": PlainBash, "subprocess (floor)": Floor, "bwrap per command": JailPerCommand}
COMMANDS_PER_ROUND = {"flywheel": 200, "bash without a jail": 200, "subprocess (floor)": 60, "bwrap per command": 5}
SESSIONS_PER_ROUND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Medians over the rounds."""

    name: str
    what: str
    per_s: float
    per_s_low: float
    per_s_high: float
    cpu_ms: float
    """Processor time of all processes that took part and have ended, a command or session."""
    ours_over_this: float


def cpu_s() -> float:
    """Of this process and every one that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def commands_round(name: str, command: str) -> tuple[float, float]:
    """Commands a second, and processor milliseconds a command; the session's start and end are not timed, but their processor time is
    in the second figure where a session's processes are counted when they end."""
    contestant, num = CONTESTANTS[name](), COMMANDS_PER_ROUND[name]
    await contestant.open()
    try:
        await contestant.run(command)
        before_s, started = cpu_s(), time.perf_counter()
        for _ in range(num):
            await contestant.run(command)
        took_s = time.perf_counter() - started
    finally:
        await contestant.close()
    return num / took_s, (cpu_s() - before_s) / num * 1000


async def sessions_round(name: str) -> tuple[float, float]:
    """Sessions a second, made, used for one command and ended; processor milliseconds of each."""
    before_s, started = cpu_s(), time.perf_counter()
    for _ in range(SESSIONS_PER_ROUND):
        contestant = CONTESTANTS[name]()
        await contestant.open()
        try:
            await contestant.run("echo hello")
        finally:
            await contestant.close()
    took_s = time.perf_counter() - started
    return SESSIONS_PER_ROUND / took_s, (cpu_s() - before_s) / SESSIONS_PER_ROUND * 1000


async def measure(rounds: int, console: Console) -> list[Figure]:
    kept: dict[tuple[str, str], list[tuple[float, float]]] = {}
    names = list(CONTESTANTS)
    for number in range(rounds):
        order = [names[(n + number) % len(names)] for n in range(len(names))]
        for what, command in COMMANDS.items():
            for name in order:
                kept.setdefault((what, name), []).append(await commands_round(name, command))
        for name in order:
            if name != "subprocess (floor)":  # has no session; a command of it is what the first table says
                kept.setdefault(("session", name), []).append(await sessions_round(name))
        console.print(f"  round {number + 1} of {rounds} done")
    return [figure(what, name, found, kept[what, "flywheel"]) for (what, name), found in kept.items()]


def figure(what: str, name: str, found: Sequence[tuple[float, float]], ours: Sequence[tuple[float, float]]) -> Figure:
    """The ratio is the median of the rounds' ratios: what disturbed a round disturbed both."""
    rates = [rate for rate, _ in found]
    return Figure(
        name=name,
        what=what,
        per_s=statistics.median(rates),
        per_s_low=min(rates),
        per_s_high=max(rates),
        cpu_ms=statistics.median(cpu_ms for _, cpu_ms in found),
        ours_over_this=statistics.median(our_rate / rate for (our_rate, _), rate in zip(ours, rates, strict=True)),
    )


def show(figures: Sequence[Figure], console: Console) -> None:
    for what in [*COMMANDS, "session"]:
        title = "sessions: made, one command, ended" if what == "session" else f"commands: {COMMANDS[what]}"
        table = Table(title=title, title_justify="left")
        for heading in ("contestant", "a second", "lowest–highest", "CPU ms each", "flywheel is … times as fast"):
            table.add_column(heading, justify="left" if heading == "contestant" else "right")
        for each in (each for each in figures if each.what == what):
            low_high = f"{each.per_s_low:.0f}–{each.per_s_high:.0f}"
            table.add_row(each.name, f"{each.per_s:.0f}", low_high, f"{each.cpu_ms:.1f}", f"{each.ours_over_this:.2f}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds; figures are their medians (default: 7)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    console = Console()
    figures = asyncio.run(measure(arguments.rounds, console))
    show(figures, console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"rounds": arguments.rounds, "figures": [asdict(each) for each in figures]}, indent=1))


if __name__ == "__main__":
    main()
