"""Sessions under a low limit of open files, each in a process of its own: they run with fewer, or the limit is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import asyncio, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from sandbox.actions import ToolCall
from sandbox.terminal.jail import Jail
from sandbox.terminal.tools import Tools
"""
TOOLS = """
async def use():
    tools = await Tools.open()
    print(await tools.call(ToolCall(name="execute_bash", arguments={"command": "ulimit -Hn"})))
    print(await tools.call(ToolCall(name="JupyterCI", arguments={"code": "print(6 * 7)"})))
    print(tools.jail.held_by["open_files"])
    await tools.jail.close()
asyncio.run(use())
"""
REFUSED = """
async def use():
    try:
        await Jail.start()
    except Exception as error:
        print(type(error).__name__, error)
asyncio.run(use())
"""
USED_UP = """
def count():
    return len(os.listdir("/proc/self/fd"))
async def use():
    await (await Jail.start()).close()
    before = count()
    for spare in range(12):
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        for fd in taken[:spare]:
            os.close(fd)
        try:
            await Jail.start()
        except Exception as error:
            print(type(error).__name__, error)
        for fd in taken[spare:]:
            os.close(fd)
        assert count() == before, (spare, before, count())
asyncio.run(use())
"""
FLEET = """
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.tasks.terminal.source import load_tasks
async def use():
    async with Fleet(FleetSettings(max_workers=1, sessions_per_worker=1)) as fleet:
        task = next(iter(load_tasks().values()))
        try:
            async with fleet.lease(task) as session:
                await session.reset(task, 0)
        except Exception as error:
            print(type(error).__name__, error)
asyncio.run(use())
"""


def said_under(limit: int, script: str) -> str:
    """What a process that may open so many files prints; it must end well."""
    ran = subprocess.run([sys.executable, "-c", BEGIN + script, str(limit)], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_terminal_takes_what_the_hard_limit_leaves() -> None:
    said = said_under(256, TOOLS)
    assert said.startswith("256\n") and "42" in said and "RLIMIT_NOFILE, 256 in each process" in said


@pytest.mark.parametrize("limit", [64, 255])
def test_too_low_a_hard_limit_is_named(limit: int) -> None:
    said = said_under(limit, REFUSED)
    assert said.startswith(f"MachineLimit a process may open {limit} files at most") and "ulimit -n 4096" in said


def test_descriptors_that_run_out_are_named_and_none_is_left_open() -> None:
    said = said_under(300, USED_UP).splitlines()
    assert len(said) == 12 and all(line.startswith("MachineLimit this process may not open more than 300 files") for line in said), said


@pytest.mark.slow
def test_a_fleet_tells_it_from_a_crash() -> None:
    said = said_under(200, FLEET)
    assert said.startswith("MachineLimit a process may open 200 files at most"), said
