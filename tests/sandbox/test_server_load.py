"""Many clients at once, of which some vanish: every session comes back, and nobody gets another's."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from benchmarks.leases import Load
from benchmarks.leases import run as run_trial
from sandbox.actions import Click, Wait
from sandbox.http.tokens import Tokens
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from tests.sandbox.counting import TASK, CountingPool
from warehouse.core.errors import AccessDenied

NUM_CLIENTS, NUM_SESSIONS, LEASES_EACH = 40, 6, 4


@pytest.mark.slow
def test_clients_that_come_and_vanish_leave_no_session_behind() -> None:
    tokens = {f"client{n}": f"token-of-client-{n:04}" for n in range(NUM_CLIENTS)}
    seen: Counter[str] = Counter()

    async def play(url: str, number: int) -> None:
        dice = random.Random(number)
        client = SandboxClient(url, tokens[f"client{number}"], ttl_s=30.0)  # on a busy machine a second of silence means nothing
        try:
            for lease in range(LEASES_EACH):
                seed = number * 100 + lease
                async with client.lease(TASK) as session:
                    assert (await session.reset(TASK, seed)).instruction == f"seed {seed}, count 0"
                    for count in range(1, 5):
                        transition = await session.step(Click(x=1, y=1))
                        assert transition.observation.instruction == f"seed {seed}, count {count}", "somebody else was at it"
                    assert [one["session_id"] for one in await client.sessions()] == [session.session_id]
                    seen["leases"] += 1
                    if dice.random() < 0.2:
                        await asyncio.wait_for(session.step(Wait(seconds=30)), 0.05)
        except TimeoutError:
            seen["gave up"] += 1
        finally:
            await client.close()

    async def vanish(url: str, number: int) -> None:
        """Leases, begins a step, and is gone without a word."""
        client = SandboxClient(url, tokens[f"client{number}"], ttl_s=1.0)
        session = await client.open(TASK)
        await session.reset(TASK, number)
        step = asyncio.create_task(session.step(Wait(seconds=0.2)))
        await asyncio.sleep(0.05)
        step.cancel()
        client._held.clear()
        await client.close()
        seen["vanished"] += 1

    async def knock(url: str) -> None:
        while True:
            async with SandboxClient(url, "token-of-nobody-at-all") as stranger:
                with pytest.raises(AccessDenied):
                    await stranger.open(TASK)
            seen["knocked"] += 1
            await asyncio.sleep(0.05)

    async def main() -> None:
        pool = CountingPool(NUM_SESSIONS)
        async with serving(pool, Tokens(tokens), ServerSettings(max_sessions=NUM_SESSIONS)) as url:
            stranger = asyncio.create_task(knock(url))
            players = (play(url, n) if n % 5 else vanish(url, n) for n in range(NUM_CLIENTS))
            await asyncio.gather(*players)
            stranger.cancel()
            await asyncio.wait({stranger})
            assert stranger.cancelled()
            await pool.is_whole()

    asyncio.run(main())
    assert seen["vanished"] == NUM_CLIENTS // 5 and seen["gave up"] and seen["knocked"] > 3
    assert seen["leases"] > NUM_CLIENTS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_hundred_clients_in_processes_that_are_killed() -> None:
    result = asyncio.run(run_trial(Load(num_clients=200, num_sessions=8, seconds=25, kill_every_s=6)))
    assert result.num_not_reclaimed == result.num_seen_by_others == result.num_wrong_tokens_let_in == result.num_mixed_up == 0
    assert result.num_processes_killed >= 3 and result.num_probes > 100 and result.num_steps > 20
    assert result.errors.keys() <= {"SandboxBusy"}
