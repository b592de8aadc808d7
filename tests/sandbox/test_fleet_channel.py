"""Manager and worker on one socket: replies find who asked, errors keep their class, and the death of one end is the other's news."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandbox.fleet.channel import Channel, error_from_plain, error_to_plain
from sandbox.fleet.settings import FleetSettings
from warehouse.core.errors import (
    BrowserMissing,
    ConfigError,
    DesktopCrashed,
    LeaseLost,
    PageNotReady,
    SandboxError,
    SandboxTimeout,
    WorkerCrashed,
)


async def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "wait":
        await asyncio.sleep(params["seconds"])
        return params["seconds"]
    if method == "echo":
        return params["value"]
    if method == "late page":
        raise PageNotReady("not ready") from SandboxTimeout("too slow")
    if method == "cut off":
        task = asyncio.current_task()
        assert task is not None and task.cancel()
        await asyncio.sleep(60)
    if method == "unpackable":
        return object()
    raise KeyError(method)


def talk(use: Callable[[Channel, Channel], Awaitable[None]]) -> None:
    async def both() -> None:
        ours, theirs = socket.socketpair()
        other = await Channel.open(theirs, answer=answer)
        channel = await Channel.open(ours)
        try:
            await asyncio.wait_for(use(channel, other), 30)
        finally:
            channel.close("done")
            other.close("done")
            await asyncio.sleep(0.01)

    asyncio.run(both())


def test_replies_find_who_asked() -> None:
    async def use(channel: Channel, _: Channel) -> None:
        slow, fast = asyncio.create_task(channel.call("wait", seconds=0.2)), asyncio.create_task(channel.call("wait", seconds=0.0))
        assert await fast == 0.0 and not slow.done()
        assert await slow == 0.2
        value = {"png": b"\x89PNG", "sizes": [1, 2.5, None]}
        assert await channel.call("echo", value=value) == value

    talk(use)


def test_large_values_cross_in_pieces() -> None:
    async def use(channel: Channel, _: Channel) -> None:
        values = [bytes([n]) * (1_000_000 * n) for n in range(1, 6)]
        assert await asyncio.gather(*(channel.call("echo", value=value) for value in values)) == values

    talk(use)


def test_errors_keep_their_class_and_cause() -> None:
    async def use(channel: Channel, _: Channel) -> None:
        with pytest.raises(PageNotReady, match="not ready") as late:
            await channel.call("late page")
        assert isinstance(late.value.__cause__, SandboxTimeout)
        with pytest.raises(SandboxError, match="defect"):
            await channel.call("unpackable")

    talk(use)


def test_a_defect_is_named_and_its_traceback_stays_here(caplog: pytest.LogCaptureFixture) -> None:
    """Messages end up in stored episodes: no path of this machine may be in them, and the log has it all."""

    async def use(channel: Channel, _: Channel) -> None:
        with pytest.raises(SandboxError) as defect:
            await channel.call("no such method")
        message = str(defect.value)
        assert f"KeyError in {__name__}.answer" in message and "no such method" not in message and "/" not in message

    talk(use)
    assert "KeyError: 'no such method'" in caplog.text and __file__ in caplog.text


def test_a_call_that_is_cut_off_is_answered() -> None:
    async def use(channel: Channel, _: Channel) -> None:
        with pytest.raises(LeaseLost, match="cut off"):
            await channel.call("cut off")
        assert await channel.call("echo", value=1) == 1

    talk(use)


@pytest.mark.parametrize("error", [BrowserMissing("none"), DesktopCrashed("gone"), ConfigError("wrong"), SandboxError("bad")])
def test_errors_survive_the_channel(error: Exception) -> None:
    again = error_from_plain(error_to_plain(error))
    assert type(again) is type(error) and str(again) == str(error) and again.__cause__ is None


def test_a_name_that_is_no_error_is_not_looked_up() -> None:
    assert type(error_from_plain({"type": "annotations", "message": "m", "cause": None})) is SandboxError


def test_the_other_ends_death_is_reported_to_all_who_wait() -> None:
    async def use(channel: Channel, other: Channel) -> None:
        waiting = [asyncio.create_task(channel.call("wait", seconds=60)) for _ in range(3)]
        await asyncio.sleep(0.05)
        other.close("killed")
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, WorkerCrashed)
        assert channel.is_lost and channel.lost.is_set()
        with pytest.raises(WorkerCrashed):
            await channel.call("echo", value=1)

    talk(use)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_workers": 3, "max_workers": 2}, "more than max_workers"),
        ({"sessions_per_worker": 1, "browsers_per_worker": 2}, "useless"),
        ({"call_limit_s": 30.0}, "more than ready_limit_s"),
        ({"workers": 2}, "workers"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FleetSettings(**wrong)


@pytest.mark.parametrize("named", ["nonesuch:page_tasks", "sandbox.tasks.sources:nonesuch", "sandbox.tasks.sources"])
def test_page_sources_that_are_not_there(named: str) -> None:
    with pytest.raises(ConfigError, match="module:function"):
        FleetSettings(page_sources=named).page_tasks()
