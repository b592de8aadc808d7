"""The waiting line of a pool: who gets which slot, in which order, and how long anyone is passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sandbox.pool import lease_queue
from sandbox.pool.lease_queue import LeaseQueue, Slot, SlotRequest
from warehouse.core.errors import SandboxError

A, B, C = (SlotRequest(kind="page", page=("html", name)) for name in "abc")
TERMINAL = SlotRequest(kind="terminal")


def line(num: int, **settings: Any) -> LeaseQueue[Slot]:
    queue: LeaseQueue[Slot] = LeaseQueue(**settings)
    queue.add([Slot(group=n % 2) for n in range(num)])
    return queue


async def asked(queue: LeaseQueue[Slot], *requests: SlotRequest) -> list[asyncio.Task[Slot]]:
    """Leases that have been asked for, in this order."""
    tasks = [asyncio.create_task(queue.take(request)) for request in requests]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_slots_are_spread_over_the_groups() -> None:
    async def test() -> None:
        queue = line(4)
        first, second = [await queue.take(request) for request in (A, B)]
        assert {first.group, second.group} == {0, 1} and queue.num_in_use == 2
        assert (queue.load(0), queue.load(1)) == (1, 1)

    run(test())


def test_a_free_slot_goes_to_whoever_waits_for_its_page() -> None:
    async def test() -> None:
        queue = line(1)
        slot = await queue.take(A)
        waits_for_b, waits_for_a = await asked(queue, B, A)
        queue.give_back(slot)
        assert await waits_for_a is slot and not waits_for_b.done() and queue.num_waiting == 1
        queue.give_back(slot)
        assert await waits_for_b is slot and slot.page == B.page

    run(test())


def test_a_page_that_will_come_free_is_waited_for_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_queue, "MAX_WAIT_S", 0.2)

    async def test() -> None:
        queue = line(2)
        busy, other = await queue.take(A), await queue.take(B)
        queue.give_back(other)
        (waits_for_a,) = await asked(queue, A)
        assert not waits_for_a.done(), "half of the slots are in use, one of them with the page"
        assert await waits_for_a is other and other.page == A.page
        queue.give_back(busy)

    run(test())


def test_nobody_is_passed_over_for_ever() -> None:
    async def test() -> None:
        queue = line(1)
        slot = await queue.take(A)
        waits_for_b, *wait_for_a = await asked(queue, B, *[A] * (2 * lease_queue.MAX_PASSED))
        order = []
        for _ in range(1 + 2 * lease_queue.MAX_PASSED):
            queue.give_back(slot)
            await asyncio.sleep(0)
            order.append(slot.page)
        assert order == [A.page] * lease_queue.MAX_PASSED + [B.page] + [A.page] * lease_queue.MAX_PASSED
        assert all(lease.done() for lease in (waits_for_b, *wait_for_a))

    run(test())


def test_a_kind_may_be_bounded() -> None:
    async def test() -> None:
        queue = line(4, max_at_once={"terminal": 2})
        first, second = await queue.take(TERMINAL), await queue.take(TERMINAL)
        third, page = await asked(queue, TERMINAL, A)
        assert page.done() and not third.done()
        assert queue.shortage()[0] == 0, "more slots would not help"
        queue.give_back(second)
        assert await third is second
        queue.give_back(first)
        queue.give_back(second)
        assert await queue.take(TERMINAL) in (first, second), "a terminal that is there is used again"

    run(test())


def test_a_shortage_is_reported() -> None:
    async def test() -> None:
        queue = line(1)
        assert queue.shortage() == (0, 0.0)
        await queue.take(A)
        waiting = await asked(queue, B, C)
        await asyncio.sleep(0.05)
        num, longest_s = queue.shortage()
        assert num == 2 and longest_s >= 0.05
        queue.add([Slot(group="new"), Slot(group="new")])
        assert {(await lease).group for lease in waiting} == {"new"}

    run(test())


def test_slots_that_are_gone_are_not_lent_again() -> None:
    async def test() -> None:
        queue = line(2)
        gone = await queue.take(A)
        queue.remove(gone.group)
        queue.give_back(gone)
        stays = await queue.take(B)
        assert stays is not gone and not queue.load(gone.group)
        (waiting,) = await asked(queue, A)
        queue.refuse_all(SandboxError("closed"))
        with pytest.raises(SandboxError, match="closed"):
            await waiting

    run(test())


@pytest.mark.parametrize("is_served", [False, True])
def test_who_gives_up_waiting_takes_no_slot(is_served: bool) -> None:
    async def test() -> None:
        queue = line(1)
        slot = await queue.take(A)
        gives_up, waits = await asked(queue, A, B)
        if is_served:
            queue.give_back(slot)
        gives_up.cancel()
        if not is_served:
            queue.give_back(slot)
        assert await waits is slot
        assert gives_up.cancelled() and queue.num_waiting == 0

    run(test())
