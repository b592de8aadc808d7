"""Hostile input at every door: requests to the gateway, the annotation server, a policy server and a sandbox server, messages of OpenEnv's
protocol, bytes that are hardly HTTP; answers of OpenEnv and MCP servers of others; profiles, references to plug-ins, files of tasks and
Harbor's folders; and the records of fuzz_imports.py.

A case is made from its door and its number: what a door takes, changed at random places (other types, huge, deep, half surrogate pairs,
paths that lead out, texts that fake a grammar's marks or a model's control tokens, pictures and archives that unpack to gigabytes), cut
off, with another client's token, or with none. Each is refused with words, or answered; nothing that was refused is stored, no server fails
(no 500), nobody without a token is let in and nobody gets another's secrets; and after each block the door still does what it does for
everybody. Blocks that are done are lines of the log: the same command goes on where it was, and several commands may share a log, each with
doors of its own. benchmarks/doors has the doors.

    python -m benchmarks.fuzz_doors --cases 100000 --log .bench/doors.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import fuzz_imports
from benchmarks.common.provenance import Publish, provenance, publish
from benchmarks.doors import peers, servers, sockets
from benchmarks.doors.files import FILES
from benchmarks.doors.player import Player, Tracebacks

BLOCK = 100
Open = Callable[[Path], AbstractAsyncContextManager[Player]]
DOORS: Mapping[str, tuple[Open, int]] = {
    **{name: (partial(servers.gateway, which=name), 20) for name in servers.ROUTES},
    "annotation server": (servers.annotation_server, 10),
    "policy server": (servers.policy_server, 16),
    "sandbox server": (servers.sandbox_server, 20),
    "openenv server": (sockets.openenv_server, 20),
    "http itself": (sockets.http_itself, 20),
    "openenv elsewhere": (peers.openenv_elsewhere, 8),
    "mcp elsewhere": (peers.mcp_elsewhere, 8),
    **{name: (opened, 8) for name, opened in FILES.items()},
}
"""How each is opened, and how many of the cases it gets beside the others."""
IMPORTS = tuple(f"import {format}" for format in (*fuzz_imports.FORMATS, *fuzz_imports.PLAYED))
SHARES = {name: share for name, (_, share) in DOORS.items()} | dict.fromkeys(IMPORTS, 1)


@dataclass(slots=True)
class Block:
    """What came of the cases from `first` on. `cpu_s`: of this process, all its threads."""

    first: int
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0


Done = Callable[[Block], None]


@asynccontextmanager
async def _timed(block: Block) -> AsyncIterator[None]:
    began_s, cpu_s = time.monotonic(), time.process_time()
    yield
    block.wall_s, block.cpu_s = round(time.monotonic() - began_s, 2), round(time.process_time() - cpu_s, 2)


async def play_blocks(name: str, firsts: Sequence[int], done: Done) -> None:
    """The blocks of a door that begin with these cases, one after the other."""
    if not firsts:
        return
    if name in IMPORTS:
        for first in firsts:
            block = Block(first)
            async with _timed(block):
                _import(name.removeprefix("import "), block)
            done(block)
        return
    with TemporaryDirectory() as scratch:
        async with DOORS[name][0](Path(scratch)) as player:
            tracebacks = Tracebacks()
            loggers = [logging.getLogger(), logging.getLogger("uvicorn.error")]  # uvicorn's takes its own handlers alone, as it starts
            try:
                for logger in loggers:
                    logger.addHandler(tracebacks)
                for first in firsts:
                    block = Block(first)
                    async with _timed(block):
                        await _play(name, player, block, tracebacks)
                    done(block)
            finally:
                for logger in loggers:
                    logger.removeHandler(tracebacks)


async def _play(name: str, player: Player, block: Block, tracebacks: Tracebacks) -> None:
    numbers = iter(range(block.first, block.first + BLOCK))

    async def one_after_another() -> None:
        for number in numbers:
            try:
                what = await player.play(number)
                tracebacks.check(f"{name} {number}: {what}")
            except AssertionError as error:
                what = "failed"
                block.faults.append(str(error))
            block.counts[what] += 1

    await asyncio.gather(*(one_after_another() for _ in range(player.num_at_once)))
    try:
        await player.after()
        tracebacks.check(f"{name} {block.first}: after it")
    except AssertionError as error:
        block.faults.append(f"{name} {block.first}: after it: {error}")


def _import(format: str, block: Block) -> None:
    numbers = range(block.first, block.first + BLOCK)
    with TemporaryDirectory() as scratch:
        try:
            num_refused = fuzz_imports.PLAYED.get(format, partial(fuzz_imports.play, format))(numbers, Path(scratch))
            block.counts.update({"refused": num_refused, "answered": BLOCK - num_refused})
        except Exception:
            block.counts["failed"] += BLOCK
            block.faults.append(f"import {format} {block.first}: {traceback.format_exc()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of all doors together, by their shares")
    parser.add_argument("--doors", default=",".join(SHARES), help="only these of them")
    parser.add_argument("--log", type=Path, default=Path(".bench/doors.jsonl"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no block after so long")
    parser.add_argument("--publish", action=Publish, help="put what the log has into docs/measured/fuzz_doors.json")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + given.seconds
    is_failed = False
    for name in given.doors.split(","):
        is_failed = _carry_on(name, given.cases, given.log, until_s) or is_failed
        print(f"{name}: {summed(lines_of(given.log)).get(name)}", flush=True)
    if given.publish:
        missing = {name: num for name in SHARES if (num := len(_left(name, given.cases, given.log)))}
        if missing:
            parser.error(f"the run is not whole: blocks are missing of {missing}")
        lines = lines_of(given.log)
        publish("fuzz_doors", {"rows": summed(lines), "cases": BLOCK * len(lines), "measured": provenance()})
    raise SystemExit(is_failed)


class _TimeIsUp(Exception):
    """No further block is begun."""


def _carry_on(name: str, num_cases: int, log: Path, until_s: float) -> bool:
    """Play what is left of a door; whether anything went wrong."""
    is_failed = False

    def done(block: Block) -> None:
        nonlocal is_failed
        is_failed = is_failed or bool(block.faults)
        line = {"door": name, "first": block.first, "counts": dict(block.counts), "faults": block.faults}
        with log.open("a", encoding="utf-8") as file:
            print(json.dumps(line | {"wall_s": block.wall_s, "cpu_s": block.cpu_s}), file=file)
        for fault in block.faults:
            print(fault, file=sys.stderr, flush=True)
        if time.monotonic() > until_s:
            raise _TimeIsUp

    if time.monotonic() < until_s:
        with suppress(_TimeIsUp):
            asyncio.run(play_blocks(name, _left(name, num_cases, log), done))
    return is_failed


def _left(name: str, num_cases: int, log: Path) -> list[int]:
    """First cases of the blocks that a door still has to play."""
    is_done = {line["first"] for line in lines_of(log) if line["door"] == name}
    num = -(-num_cases * SHARES[name] // sum(SHARES.values()))
    return [first for first in range(0, -(-num // BLOCK) * BLOCK, BLOCK) if first not in is_done]


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def summed(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By door: cases, what came of them, how many went wrong, and how many cases a processor second."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(line["door"] for line in lines):
        of_door = [line for line in lines if line["door"] == name]
        counts = sum((Counter(line["counts"]) for line in of_door), Counter[str]())
        num_cases, cpu_s = BLOCK * len(of_door), sum(line["cpu_s"] for line in of_door)
        found[name] = {
            "cases": num_cases,
            **dict(sorted(counts.items())),
            "faults": sum(len(line["faults"]) for line in of_door),
            "cases_per_cpu_s": round(num_cases / cpu_s, 1) if cpu_s else None,
        }
    return found


if __name__ == "__main__":
    main()
